"""The package of the workers, found by name, since imports point from there to here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict

from taskq.calls.habits import option_instead
from taskq.core.errors import UsageError

if TYPE_CHECKING:
    import asyncio
    import os
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import TypeAlias

    from taskq.core.durations import Duration
    from taskq.log.decide.listeners import DeadLetter

if TYPE_CHECKING:
    #: Names of queues, or the weight of each.
    Queues: TypeAlias = Iterable[str] | Mapping[str, int]
    #: A function that hears of a death, or a task whose job does.
    DeathCall: TypeAlias = Callable[[DeadLetter], Any]


class WorkerOptions(TypedDict, total=False):
    """What ``app.worker`` takes besides concurrency and queues; see ``taskq.Worker``."""

    #: directories to claim from in place of the app's own, or the weight of each
    logs: Iterable[str | os.PathLike[str]] | Mapping[Any, int] | None
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
    #: whether it sends the log to the hub of the settings
    sync: bool
    #: called with a ``taskq_workers.JobFinished`` for each job that ended
    on_event: Callable[[Any], object] | None
    #: called with each ``DeadLetter`` that this process makes, besides the app's own hooks
    on_dead: DeathCall | None


class AppWorker(Protocol):
    """A worker of an app, as the app's program sees it: ``taskq.Worker``."""

    #: set once the log is open and the first claim waits
    started: asyncio.Event
    #: set once everything is settled
    stopped: asyncio.Event

    @property
    def running(self) -> int:
        """Return how many jobs run now."""

    async def start(self) -> None:
        """Open the log and claim; returns once it runs."""

    async def run(self) -> None:
        """Start, and return once stopped."""

    async def stop(self) -> None:
        """Drain: claim no more, let running jobs finish, cancel those that outlast the time."""

    def request_stop(self) -> None:
        """Begin to drain, and return at once."""

    def request_cancel(self) -> None:
        """Stop without waiting for running jobs. Returns at once."""

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
    from taskq import extras  # noqa: PLC0415 - many programs only enqueue

    try:
        workers = extras.workers()
        known = workers.Worker.__init__.__kwdefaults__
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"app.{method}() needs the package taskq_workers ({error}): "
            f"install all of taskq again: {extras.install_line()}"
        ) from error
    unknown = options.keys() - known.keys()
    if unknown:
        name = min(unknown)
        raise UsageError(f"app.{method}() has no option {name!r}: {option_instead(name, known)}")
    return workers
