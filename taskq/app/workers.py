"""The package of the workers, found by name, since imports point from there to here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from taskq.calls.habits import option_instead
from taskq.core.errors import UsageError
from taskq.core.values import TypedDict

if TYPE_CHECKING:
    import asyncio

    from taskq.core.durations import Duration
    from taskq.log.decide.listeners import DeadLetter

if TYPE_CHECKING:
    #: Names of queues, or the weight of each.
    Queues: TypeAlias = Iterable[str] | Mapping[str, int]
    #: A function that hears of a death, or a task whose job does.
    DeathCall: TypeAlias = Callable[[DeadLetter], Any]


class WorkerOptions(TypedDict, total=False):
    """Options of ``app.worker`` besides concurrency and queues; see ``taskq.Worker``."""

    logs: Iterable[str | os.PathLike[str]] | Mapping[Any, int] | None
    burst: bool
    max_jobs: int | None
    drain_timeout: Duration
    thread_limit: int | None
    process_limit: int | None
    max_jobs_per_child: int | None
    max_rss_per_child: int | str | None
    target: str
    schedules: bool
    warns: bool
    sync: bool
    on_event: Callable[[Any], object] | None
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
