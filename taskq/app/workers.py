"""The package of the workers, found by name, since imports point from there to here."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict

from taskq.calls.signature import Signature
from taskq.core.errors import UsageError
from taskq.core.parsing import rather

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import TypeAlias

    from taskq.calls.signature import Resources
    from taskq.core.durations import Duration
    from taskq.log.decide.listeners import DeadLetter

if TYPE_CHECKING:
    #: Names of queues, or the weight of each.
    Queues: TypeAlias = Iterable[str] | Mapping[str, int]


class WorkerOptions(TypedDict, total=False):
    """What ``app.worker`` takes besides concurrency and queues; see ``taskq.Worker``."""

    #: stop by itself once no job is ready and none runs
    burst: bool
    #: stop by itself after so many attempts of jobs
    max_jobs: int | None
    #: what running jobs get to finish at a stop
    drain_timeout: Duration
    #: how many sync jobs run at a time; None: as ``concurrency``
    thread_limit: int | None
    #: how many jobs run in child processes at a time; None: as ``concurrency``
    process_limit: int | None
    #: replace a child process after so many jobs
    max_jobs_per_child: int | None
    #: replace one that takes more memory after a job: bytes, or "500MB"
    max_rss_per_child: int | str | None
    #: ``module:app`` that children import; by default each task's own module
    target: str
    #: whether it ticks the app's schedules
    schedules: bool
    #: whether it looks each minute for jobs that no worker would take, and logs what it finds
    warns: bool
    #: called with a ``taskq_workers.JobFinished`` for each job that ended
    on_event: Callable[[Any], object] | None
    #: called with each ``DeadLetter`` that this process makes, besides the app's own hooks
    on_dead: Callable[[DeadLetter], Any] | None


class AppWorker(Protocol):
    """A worker of an app, as the app's program sees it: ``taskq.Worker``."""

    #: set once the log is open and the first claim waits
    started: asyncio.Event
    #: set once everything is settled
    stopped: asyncio.Event

    @property
    def running(self) -> int:
        """How many jobs run now."""
        ...

    async def start(self) -> None:
        """Open the log and claim; returns once it runs."""
        ...

    async def run(self) -> None:
        """Start, and return once stopped."""
        ...

    async def stop(self) -> None:
        """Drain: claim no more, let running jobs finish, cancel those that outlast the time."""
        ...

    def request_stop(self) -> None:
        """Begin to drain, and return at once."""
        ...

    def request_cancel(self) -> None:
        """Stop without waiting for running jobs. Returns at once."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def find_workers(method: str, options: WorkerOptions) -> Any:
    """Import the package of the workers.

    Raises:
        UsageError: it is not installed, or is somebody else's; or an option is unknown.
    """
    try:
        workers = importlib.import_module("taskq_workers")
        known = workers.Worker.__init__.__kwdefaults__
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"app.{method}() needs the package taskq_workers ({error}): "
            f"install the whole distribution, taskq-local"
        ) from error
    unknown = options.keys() - known.keys()
    if unknown:
        name = min(unknown)
        raise UsageError(f"app.{method}() has no option {name!r}: {rather(name, known, 'options')}")
    return workers


# What an app opens when a worker starts and closes when it ends: ``@app.lifespan``.

if TYPE_CHECKING:
    #: An async generator function that yields once, or a function that gives a context manager.
    LifespanFunction: TypeAlias = Callable[
        ..., AsyncIterator[Any] | AbstractAsyncContextManager[Any]
    ]


class Lifespan:
    """One function of an app that opens resources.

    Attributes:
        name: for errors.
        takes_app: whether it wants the app as its argument.
    """

    def __init__(self, function: LifespanFunction) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        self._signature = Signature(f"the lifespan {self.name}", function)
        self._function: Callable[..., Any] = function
        if inspect.isasyncgenfunction(function):
            self._function = contextlib.asynccontextmanager(function)
        elif inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise UsageError(
                f"the lifespan {self.name} must be an async generator function: "
                f"async def {self.name}(app): ... yield what tasks share"
            )
        if len(self._signature.names) > 1:
            raise UsageError(
                f"the lifespan {self.name} takes {', '.join(self._signature.names)}: it may take "
                f"the app, and what earlier lifespans yield by Inject[...]"
            )
        self.takes_app = bool(self._signature.names)

    def enter(self, app: object, earlier: Resources) -> AbstractAsyncContextManager[Any]:
        """The context manager, not entered yet.

        Args:
            app: whose lifespan it is.
            earlier: what lifespans before this one yielded; it may take of it by annotation.

        Raises:
            UsageError: what it takes is not there, or it gives no async context manager.
        """
        taken = earlier.arguments(self._signature.task, self._signature.injected)
        manager = self._function(*((app,) if self.takes_app else ()), **taken)
        if not hasattr(manager, "__aenter__"):
            raise UsageError(
                f"the lifespan {self.name} gives {manager!r:.60}, and no async context manager: "
                f"write it as an async generator function that yields once"
            )
        found: AbstractAsyncContextManager[Any] = manager
        return found
