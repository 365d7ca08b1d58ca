"""Hold an app's declarations for its workers: tasks, lifespans, middleware, hooks, schedules."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from taskq.app.schedules import Listeners, Planned
from taskq.app.tasks import Task, tasks_with
from taskq.calls.naming import Declared, Origin, checked_modules, origin_here, origin_of
from taskq.calls.serialization import load_checks
from taskq.calls.signature import Resources, Signature
from taskq.core.errors import UsageError
from taskq.core.parsing import checked_names
from taskq.core.values import NamedTuple

if TYPE_CHECKING:
    from taskq.app.app import DeathCall, TaskQ
    from taskq.conditions.breakers import BreakerRule

    AroundFunction: TypeAlias = Callable[..., AsyncIterator[Any] | AbstractAsyncContextManager[Any]]


class Around:
    """A lifespan or middleware: a function whose context manager is entered around jobs.

    Attributes:
        name: for errors, such as "the lifespan database".

    Args:
        kind: "lifespan" or "middleware".
        subject: what its first argument is called in errors: "app" or "job".
        function: as the app's author wrote it.

    Raises:
        UsageError: the function cannot make an async context manager, or has an unknown parameter.
    """

    def __init__(self, kind: str, subject: str, function: AroundFunction) -> None:
        if not callable(function):
            raise UsageError(f"app.{kind} takes a function, got {function!r:.60}")
        name = getattr(function, "__qualname__", repr(function))
        self.name: str = f"the {kind} {name}"
        self._signature = Signature(self.name, function)
        self._function: Callable[..., Any] = function
        if inspect.isasyncgenfunction(function):
            self._function = contextlib.asynccontextmanager(function)
        elif inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise UsageError(
                f"{self.name} must be an async generator function that yields once: "
                f"async def {name}({subject}): ... yield ..."
            )
        if len(self._signature.names) > 1:
            raise UsageError(
                f"{self.name} takes {', '.join(self._signature.names)}: it may take the {subject}, "
                f"and what lifespans yield by Inject[...]"
            )
        self._takes_subject = bool(self._signature.names)

    def resources(self, entered: Resources) -> dict[str, Any]:
        """Return the function's injected arguments, by parameter.

        Raises:
            UsageError: no lifespan yielded one of them.
        """
        return entered.arguments(self._signature.task, self._signature.injected)

    def enter(self, subject: object, resources: dict[str, Any]) -> AbstractAsyncContextManager[Any]:
        """Make the context manager, not entered yet.

        Raises:
            UsageError: the function returns something else.
        """
        manager = self._function(*((subject,) if self._takes_subject else ()), **resources)
        if not hasattr(manager, "__aenter__"):
            raise UsageError(
                f"{self.name} gives {manager!r:.60}, and no async context manager: "
                f"write it as an async generator function that yields once"
            )
        lifespan: AbstractAsyncContextManager[Any] = manager
        return lifespan


class StepDone(NamedTuple):
    """A step of a job that the log has just recorded, for ``app.on_step``.

    Attributes:
        job_id, task, queue, attempt: of the job.
        name, number: name of the step, and its number among the job's calls of that name.
        form: "step" (its function returned), "tried" (a try failed), "sleep", "event", "timeout",
            "call" (its jobs are enqueued), "failed" (some of these jobs failed), "first",
            "version", "undo" (its block began) or "undoing" (the job begins to undo).
        seconds: run time of the function; 0 without one.
    """

    job_id: str
    task: str
    queue: str
    attempt: int
    name: str
    number: int
    form: str
    seconds: float


class Hooks:
    """An app's declarations: decorators write them, workers and plugins read them.

    All views of an app share them, see ``taskq.app.logs``.

    Attributes:
        tasks: tasks by all their names. Replaced as a whole: workers on other threads read it.
        renewed: listeners for a new task, or a new form of one.
        included: modules with tasks, which workers import.
        lifespans, middleware: the first is the outermost.
        deaths: functions for dead letters, each with its tasks; None for all tasks.
        steps: functions for finished steps.
        breakers: rules for queues, by queue name.
        schedules: tasks enqueued by the clock.
        alerts: declared alerts, by name.
        services: by name, makers of the services that a worker runs for each log.
    """

    def __init__(self, include: Iterable[str] = ()) -> None:
        self.tasks: dict[str, Task[..., Any]] = {}
        self.renewed: Listeners = Listeners()
        self.included: list[str] = checked_modules(include)
        self.lifespans: Declared[Around] = Declared()
        self.middleware: Declared[Around] = Declared()
        self.deaths: Declared[tuple[DeathCall, frozenset[str] | None]] = Declared()
        self.steps: Declared[Callable[[StepDone], object]] = Declared()
        self.breakers: dict[str, BreakerRule] = {}
        self.schedules: Planned = Planned()
        self.alerts: dict[str, Any] = {}
        self.services: dict[str, Callable[[TaskQ], Any]] = {}
        self._breaker_origins: dict[str, Origin] = {}

    @property
    def shared(self) -> Hooks:
        """Return the object that all views of one app share."""
        return self

    def add_task(self, task: Task[..., Any]) -> None:
        """Add a task, and notify running workers.

        Raises:
            UsageError: one of its names is taken.
        """
        self.tasks = tasks_with(self.tasks, task)
        self.renewed.notify()

    def add_death_hook(self, hook: DeathCall, tasks: Iterable[str] | None) -> None:
        """Call a function or a task with each new dead letter, and notify running workers.

        Args:
            hook: the function or task.
            tasks: names of the tasks whose dead letters it gets; None for all.

        Raises:
            UsageError: the hook is no function, or the tasks are no list of names.
        """
        if not callable(hook):
            raise UsageError(f"on_dead takes a function or a task, got {hook!r:.60}")
        names = None if tasks is None else checked_names("tasks", tasks)
        self.deaths.add((hook, names), origin_of(hook))
        self.renewed.notify()

    def add_step_hook(self, hook: Callable[[StepDone], object]) -> None:
        """Call a function with each finished step.

        Raises:
            UsageError: the hook is no function, or async.
        """
        if not callable(hook):
            raise UsageError(f"on_step takes a function, got {hook!r:.60}")
        if inspect.iscoroutinefunction(hook):
            raise UsageError(
                f"on_step takes a plain function, for a job waits for it: {hook.__qualname__} is "
                f"async; let it start a task, or read app.stream(kinds=['stepped'])"
            )
        self.steps.add(hook, origin_of(hook))

    def call_step_hooks(self, done: StepDone) -> None:
        """Call all hooks of steps; log their errors."""
        import logging  # noqa: PLC0415 - few apps have such hooks

        for hook in self.steps:
            try:
                hook(done)
            except KeyboardInterrupt:
                raise
            except BaseException:  # a hook is the user's code
                logger = logging.getLogger("taskq")
                logger.exception("an on_step hook failed on job %s; it goes on", done.job_id)

    def include(self, modules: Iterable[str]) -> None:
        """Make workers import these modules, too.

        Raises:
            UsageError: a text is given in place of a list, or a name is no module name.
        """
        self.included += [name for name in checked_modules(modules) if name not in self.included]

    def load_checks(self) -> None:
        """Import the validators of the tasks' calls, so that no first call waits for the import."""
        load_checks([task.signature for task in self.tasks.values()])

    def check_tasks(self) -> None:
        """Refuse tasks whose arguments or results could not be read or written.

        Raises:
            UsageError: with the problem of each such task.
        """
        problems: dict[str, None] = {}
        for task in self.tasks.values():
            try:
                task.check()
            except UsageError as error:
                problems[str(error)] = None
        if problems:
            raise UsageError("; ".join(problems))

    def add_breaker(self, rule: BreakerRule) -> None:
        """Add the circuit breaker of a queue.

        Raises:
            UsageError: the queue has another breaker already.
        """
        queue, origin = rule.queue, origin_here()
        known = self.breakers.get(queue, rule)
        if known != rule and not origin.is_rerun_of(self._breaker_origins[queue]):
            raise UsageError(f"queue {queue!r} has another breaker already: declare it once")
        self.breakers[queue], self._breaker_origins[queue] = rule, origin
