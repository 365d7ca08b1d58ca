"""An app for one test: its log is in memory, its clock is moved by hand."""

from __future__ import annotations

import contextlib
import inspect
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import taskq.extras as extras
from taskq import Durability, engine, errors, hooks, values, views

if TYPE_CHECKING:
    from taskq import JobHandle, State, Task, TaskQ, views

#: Most jobs of one drain; if there are more, the jobs enqueue one another for ever.
DRAINED_MAX: Final = 100_000
#: Most failures that an error lists.
_DRAINING_SHOWN_MAX: Final = 5
#: Added to a duration, since a float of seconds may fall short of a moment in nanoseconds.
_LATER_SECONDS: Final = 0.001
_FAILURES: Final = frozenset({"retried", "dead"})


@values.dataclass(slots=True)
class Drained:
    """Result of a drain.

    Attributes:
        outcomes: number of attempts by end: "succeeded", "retried", "dead", "released",
            "cancelled".
        failures: one text for each failed attempt: task, job, attempt and reason.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Return how many attempts ran."""
        return self.outcomes.total()

    @property
    def succeeded(self) -> int:
        """Return how many jobs succeeded."""
        return self.outcomes["succeeded"]

    def __call__(self, event: Any) -> None:
        """Count one ``JobFinished``."""
        self.outcomes[event.outcome] += 1
        if event.outcome in _FAILURES:
            self.failures.append(
                f"{event.task} {event.job_id}, attempt {event.attempt}: {event.reason}"
            )
        if self.count > DRAINED_MAX:
            raise AssertionError(f"over {DRAINED_MAX} jobs ran: they enqueue one another for ever")


async def drain(
    app: TaskQ,
    queues: Iterable[str] | None = None,
    *,
    concurrency: int = 1,
    ahead: FakeClock | None = None,
    raises: bool = True,
) -> Drained:
    """Run the ready jobs, and the jobs that they enqueue, until none is left.

    The jobs run in this event loop (sync jobs in threads), in the order of a worker with
    ``concurrency`` slots.

    Args:
        app: the app with the jobs.
        queues: names of the queues to drain; None for all.
        concurrency: number of jobs at a time.
        ahead: the app's clock, moved to the due time of the next job as long as there is one.
        raises: whether a failed attempt makes this function raise at the end.

    Raises:
        AssertionError: an attempt failed, or the jobs enqueue one another for ever.
    """
    report = Drained()
    names = None if queues is None else list(values.checked_queues(queues))
    while True:
        worker = app.worker(concurrency, names, burst=True, on_event=report)
        async with worker as running:
            await running.stopped.wait()
        if report.count > DRAINED_MAX:
            raise AssertionError(f"over {DRAINED_MAX} jobs ran: they enqueue one another for ever")
        if ahead is None or not _move_to_next(app, ahead, names):
            break
    if raises and report.failures:
        shown = "\n".join(report.failures[:_DRAINING_SHOWN_MAX])
        raise AssertionError(
            f"{len(report.failures)} of {report.count} attempts failed "
            f"(raises=False to go on):\n{shown}"
        )
    return report


def _move_to_next(app: TaskQ, clock: FakeClock, queues: list[str] | None) -> bool:
    """Move the clock to the due time of the next job; return False if no job has one."""
    with engine.LogReader.open(str(app.data_dir), clock) as reader:
        views = reader.jobs(set(engine.kinds.BY_TIME), None, None, DRAINED_MAX)
    moments = [
        view.due_ns
        for view in views
        if (queues is None or view.queue in queues) and view.task in app.tasks
    ]
    now_ns = clock.wall_ns()
    moments = [
        moment for moment in moments if moment < values.TIME_NS_MAX
    ]  # otherwise it waits for other jobs
    if not moments:
        return False
    clock.advance(max(min(moments) - now_ns, 0) / values.SECOND_NS + _LATER_SECONDS)
    return True


#: 2024-01-01 00:00 UTC, in seconds.
START_SECONDS: Final = 1_704_067_200
_SECOND_NS: Final = 1_000_000_000
#: Uptime of the machine when a test begins.
_UPTIME_SECONDS: Final = 1_000


class MovedClock:
    """A clock that wakes its logs when it is moved."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[hooks.Connection] = weakref.WeakSet()

    def note(self, connection: hooks.Connection) -> None:
        """Register a log that uses this clock."""
        self._connections.add(connection)

    def _moved(self) -> None:
        for connection in self._connections:
            store = connection.current
            if store is not None and store.usable:
                # Jobs that are due now must not wait for the old time.
                store.mailbox.wake_up()


class FakeClock(MovedClock):
    """Wall time and steady time, in nanoseconds, moved by hand. Implements ``Clock``."""

    def __init__(self, wall_seconds: float = START_SECONDS) -> None:
        super().__init__()
        self._wall_ns = round(wall_seconds * _SECOND_NS)
        self._steady_ns = _UPTIME_SECONDS * _SECOND_NS

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return self._wall_ns

    def steady_ns(self) -> int:
        """Return nanoseconds since boot."""
        return self._steady_ns

    def advance(self, duration: values.Duration) -> None:
        """Let time pass, such as "1h": both clocks move on, and logs check for due jobs."""
        passed = values.nanoseconds(duration, "advance")
        self._wall_ns += passed
        self._steady_ns += passed
        self._moved()

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a user or NTP does."""
        self._wall_ns += round(seconds * _SECOND_NS)
        self._moved()

    def reboot(self, off_seconds: float = 0.0, wall_seconds: float | None = None) -> None:
        """Restart the steady clock; the wall clock kept running, or lost its time."""
        self._steady_ns = _SECOND_NS
        self._wall_ns += round(off_seconds * _SECOND_NS)
        if wall_seconds is not None:
            self._wall_ns = round(wall_seconds * _SECOND_NS)


class TravelClock(MovedClock):
    """The machine's clock from another moment on, moved forward by hand. Implements ``Clock``.

    It never stops, so real threads and processes that wait by it end their waits.

    Args:
        wall_seconds: first value of its wall clock, in seconds since 1970; now if None.
    """

    def __init__(self, wall_seconds: float | None = None) -> None:
        super().__init__()
        self._machine = engine.SystemClock()
        self._ahead_ns = 0
        self._step_ns = 0
        if wall_seconds is not None:
            self._step_ns = round(wall_seconds * _SECOND_NS) - self._machine.wall_ns()

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return self._machine.wall_ns() + self._ahead_ns + self._step_ns

    def steady_ns(self) -> int:
        """Return nanoseconds since boot."""
        return self._machine.steady_ns() + self._ahead_ns

    def advance(self, duration: values.Duration) -> None:
        """Move both clocks ahead by a duration."""
        self._ahead_ns += values.nanoseconds(duration, "advance")
        self._moved()

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a user or NTP does."""
        self._step_ns += round(seconds * _SECOND_NS)
        self._moved()


def use_clock(app: TaskQ, clock: engine.Clock) -> None:
    """Set the clock of an app's log, before the app is opened.

    Raises:
        UsageError: the app is open.
    """
    connection = app.connection
    if connection.current is not None and connection.current.usable:
        raise errors.UsageError(
            f"{connection.path} is open: close the app first, or set the clock before its first use"
        )
    connection.config = replace(connection.config, clock=clock)
    if isinstance(clock, MovedClock):
        clock.note(connection)


#: Most jobs that a test gets, the newest.
JOBS_MAX: Final = 10_000
_SHOWN_MAX: Final = 10


@values.dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedJob:
    """A job of the log, with its arguments in the form that its function gets.

    Attributes:
        view: state, queue, priority, headers, attempts and so on.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """

    view: views.JobView
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def id(self) -> str:
        """The job's id."""
        return self.view.job_id

    def __str__(self) -> str:
        given = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return f"{self.view.task}({', '.join(given)}) in {self.view.queue}, {self.view.state.name}"


def enqueued(
    task: Task[..., Any] | str | None = None,
    *,
    app: TaskQ | None = None,
    state: State | str | None = None,
) -> list[EnqueuedJob]:
    """Return the jobs of a task, or all jobs, oldest first; at most the newest 10 000.

    Args:
        task: the task or its name; None for all, which needs ``app``.
        app: the app with the log; the task's app if None.
        state: only jobs in this state or state name; None for any, including settled jobs.

    Raises:
        UsageError: the state is unknown, or a task's name is given without an app.
    """
    wanted = None if state is None else views.STATES.get(str(state))
    if state is not None and wanted is None:
        raise errors.UsageError(f"state is {state!r:.60}: the states are {', '.join(views.STATES)}")
    name = task if isinstance(task, str) or task is None else task.name
    if app is None:
        if task is None or isinstance(task, str):
            raise errors.UsageError("a task's name does not name its app: give app= too")
        app = task.app
    clock = app.connection.config.clock
    try:
        with engine.LogReader.open(str(app.data_dir), clock) as reader:
            jobs = reader.jobs(None if wanted is None else {wanted}, None, name, JOBS_MAX)
    except errors.LogError:
        if (app.data_dir / "taskq.json").exists():
            raise
        return []  # no job was ever enqueued
    return [_job(app, view) for view in reversed(jobs)]


def assert_enqueued(
    task: Task[..., Any] | str, *args: Any, taskq_app: TaskQ | None = None, **kwargs: Any
) -> EnqueuedJob:
    """Return the newest job of this task with these arguments, in any state.

    Arguments that are not given match any value: ``assert_enqueued(send)`` accepts any call,
    ``assert_enqueued(send, subject="hi")`` any call with that subject.

    Args:
        task: the task, or its name.
        args: the job's positional arguments.
        taskq_app: the app with the log; the task's app if None.
        kwargs: arguments by name.

    Raises:
        AssertionError: no job matches; the message lists the others.
    """
    __tracebackhide__ = True
    known = _known(taskq_app, task, args, kwargs)
    jobs = enqueued(task, app=taskq_app)
    fitting = [job for job in jobs if _fits(known, job, args, kwargs)]
    if fitting:
        return fitting[-1]
    wanted = _call(task, args, kwargs)
    if not jobs:
        raise AssertionError(f"no job of {_name(task)} was enqueued, expected {wanted}")
    raise AssertionError(f"{wanted} was not enqueued; these were:\n{_listed(jobs)}")


def assert_not_enqueued(
    task: Task[..., Any] | str, *args: Any, taskq_app: TaskQ | None = None, **kwargs: Any
) -> None:
    """Check that no job of this task has these arguments; see ``assert_enqueued``.

    Raises:
        AssertionError: a job matches; the message lists the matching jobs.
    """
    __tracebackhide__ = True
    known = _known(taskq_app, task, args, kwargs)
    jobs = enqueued(task, app=taskq_app)
    fitting = [job for job in jobs if _fits(known, job, args, kwargs)]
    if fitting:
        raise AssertionError(f"{_call(task, args, kwargs)} was enqueued:\n{_listed(fitting)}")


def _job(app: TaskQ, view: views.JobView) -> EnqueuedJob:
    payload = app.connection.packer.bodies.open_view(view).payload
    task = app.tasks.get(view.task)
    if task is not None:
        try:
            args, kwargs = task.decode(payload)
        except (
            errors.InvalidCall
        ):  # such as a step of a flow, whose first argument is set when it runs
            args, kwargs = hooks.decode_call(payload)
    elif view.task:
        args, kwargs = hooks.decode_call(payload)
    else:
        args, kwargs = (payload,), {}
    return EnqueuedJob(view=view, args=args, kwargs=kwargs)


def _known(
    app: TaskQ | None, task: Task[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.Signature | None:
    """Return the task's signature, to check the arguments; None if the task is unknown here."""
    known = task if not isinstance(task, str) else app and app.tasks.get(task)
    if not known:
        if isinstance(task, str) and app is not None and not enqueued(task, app=app):
            raise errors.UsageError(
                f"the app has no task {task!r}, and its log no job of one (for a task of another "
                f"program, say assert not enqueued({task!r}, app=app)): "
                f"{values.rather(task, app.tasks, 'tasks')}"
            )
        return None
    signature = inspect.signature(known.fn)
    try:
        signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise errors.UsageError(
            f"{known.name}: {error}: such a call could not be enqueued"
        ) from None
    return signature


def _fits(
    known: inspect.Signature | None,
    job: EnqueuedJob,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> bool:
    if not args and not kwargs:
        return True
    if known is None:
        return job.args[: len(args)] == args and kwargs.items() <= job.kwargs.items()
    wanted = known.bind_partial(*args, **kwargs).arguments
    there = known.bind_partial(*job.args, **job.kwargs)
    there.apply_defaults()
    return all(there.arguments.get(name) == value for name, value in wanted.items())


def _name(task: Task[..., Any] | str) -> str:
    return task if isinstance(task, str) else task.name


def _call(task: Task[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"{_name(task)}({', '.join(given)})"


def _listed(jobs: list[EnqueuedJob]) -> str:
    lines = [f"  {job}" for job in jobs[-_SHOWN_MAX:]]
    if len(jobs) > _SHOWN_MAX:
        lines.insert(0, f"  … {len(jobs) - _SHOWN_MAX} earlier ones")
    return "\n".join(lines)


#: A file system in memory, if the machine has one.
_MEMORY = Path("/dev/shm")  # noqa: S108 - a fresh directory of our own is made in it
#: Prefix of the directories of sandboxes.
PREFIX: Final = "taskq-test-"


def _new_directory() -> str:
    """Create a directory in memory, or else with other temporary files."""
    try:
        return tempfile.mkdtemp(prefix=PREFIX, dir=_MEMORY)
    except OSError:  # missing or read-only, as in hardened containers
        return tempfile.mkdtemp(prefix=PREFIX)


class Sandbox:
    """Moves an app into a temporary log inside a ``with`` block.

    ::

        async with Sandbox(app) as box:
            await sign_up("a@b.c")
            box.assert_enqueued(send_welcome, "a@b.c")
            await box.drain()
            box.clock.advance("1h")
            await box.drain()

    The log is a real one, written by the same code, in a directory in memory (``/dev/shm``;
    otherwise a temporary one), and never fsynced. So arguments and results are always encoded and
    decoded, and keys, retries and schedules work as in production. The clock stands still until it
    is moved.

    Args:
        app: a closed or unused app; it uses its own directory again afterwards.
        clock: the log's clock; a new ``FakeClock`` if None.

    Attributes:
        app: the app.
        clock: its clock.

    Raises:
        UsageError: the app is open.
    """

    def __init__(self, app: TaskQ, clock: FakeClock | None = None) -> None:
        self.app = app
        self.clock: FakeClock = clock or FakeClock()
        self._undo = contextlib.ExitStack()
        self._scheduler: Any = None

    def __enter__(self) -> Self:
        directory = _new_directory()
        config = replace(
            self.app.connection.config,
            durability=Durability.OS,
            min_free_bytes=0,
            reserve_bytes=0,
            upkeep=False,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, directory, ignore_errors=True)
            undo.enter_context(hooks.elsewhere(self.app, directory, config))
            use_clock(self.app, self.clock)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.app.close_sync()
        self._undo.close()

    async def __aenter__(self) -> Self:
        self.__enter__()
        await self.tick()  # schedules count from now on
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.app.close()
        self._undo.close()

    async def drain(
        self,
        queues: Iterable[str] | None = None,
        *,
        concurrency: int = 1,
        with_scheduled: bool = False,
        raises: bool = True,
    ) -> Drained:
        """Run ready jobs to their end; see ``taskq.testing.drain``."""
        clock = self.clock if with_scheduled else None
        return await drain(self.app, queues, concurrency=concurrency, ahead=clock, raises=raises)

    drain_sync: Final = hooks.blocking(drain)

    async def tick(self) -> None:
        """Enqueue the due jobs of the app's schedules, each by its catch-up policy.

        Schedules count from the start of an ``async with``, or else from the first call of this
        method.
        """
        if not self.app.hooks.schedules.all:
            return
        if self._scheduler is None:
            self._scheduler = extras.workers().Scheduler(self.app)
        await self.app.open()
        await self._scheduler.look(self.app.store())

    tick_sync: Final = hooks.blocking(tick)

    def advance(self, duration: values.Duration) -> None:
        """Let time pass, such as "1h"."""
        self.clock.advance(duration)

    async def signal(
        self, job: JobHandle[Any] | str, name: str, value: Any = None, *, once: str = ""
    ) -> bool:
        """Send a value to a waiting job; see ``TaskQ.signal``."""
        return await self.app.signal(job, name, value, once=once)

    signal_sync: Final = hooks.blocking(signal)

    def enqueued(
        self, task: Task[..., Any] | str | None = None, *, state: State | str | None = None
    ) -> list[EnqueuedJob]:
        """Return the jobs of a task, oldest first; see ``taskq.testing.enqueued``."""
        return enqueued(task, app=self.app, state=state)

    def assert_enqueued(self, task: Task[..., Any] | str, *args: Any, **kwargs: Any) -> EnqueuedJob:
        """See ``taskq.testing.assert_enqueued``."""
        return assert_enqueued(task, *args, taskq_app=self.app, **kwargs)

    def assert_not_enqueued(self, task: Task[..., Any] | str, *args: Any, **kwargs: Any) -> None:
        """See ``taskq.testing.assert_not_enqueued``."""
        assert_not_enqueued(task, *args, taskq_app=self.app, **kwargs)
