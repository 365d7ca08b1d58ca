"""One log of a worker: the app over it, its feed and gates, and what runs beside its jobs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from anyio import CancelScope

from taskq.engine import Weights
from taskq.errors import TaskqError, UsageError
from taskq_workers.services.plugins import find_plugin
from taskq_workers.services.scheduler import Scheduler
from taskq_workers.slots.outcomes import release

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from taskq import TaskQ
    from taskq.engine import Settlement, Store
    from taskq.views import Serving
    from taskq_workers.gates.gates import Gates
    from taskq_workers.slots.hands import FeedHost, Runner
    from taskq_workers.slots.slots import Slots

#: Logs that one worker has at most: each has a thread, and its own files open.
LOGS_MAX: Final = 1_024


class Service(Protocol):
    """A part beside the jobs: a scheduler, the gates, a listener for cancels."""

    async def run(self, store: Store, *, task_status: TaskStatus[None]) -> None:
        """Do its work until it is cancelled.

        What it raises before it called ``task_status.started()`` keeps the worker from starting;
        what it raises later stops the worker, after its drain. It may end by itself.
        """


class LogPart:
    """Serve one log of a worker, until the worker ends or the log is left.

    Attributes:
        app: the app over the log.
        weight: the log's share of the turns.
        store: once it is open; None again when it is left.
        host: whoever stands for the slots before its feed.
        services: what claims or makes work; ended as the worker drains.
        beside: what watches until the last job is settled.
    """

    def __init__(self, app: TaskQ, weight: int = 1, *, ticks: bool, syncs: bool) -> None:
        self.app = app
        self.weight = weight
        self.store: Store | None = None
        self.host: FeedHost | None = None
        self.gates: Gates | None = None
        self.services: list[Service] = [Scheduler(app)] if ticks else []
        self.beside: list[Service] = [_syncing(app)] if syncs else []
        self._scopes: list[CancelScope] = []

    def serve(self, worker: object, serving: Serving | None) -> None:
        """Let people who ask why a job does not run know what the worker claims of this log."""
        if self.store is not None:
            self.store.serve(worker, serving)

    async def run(self, part: Service, *, task_status: TaskStatus[None]) -> None:
        assert self.store is not None
        with CancelScope() as scope:
            self._scopes.append(scope)
            await part.run(self.store, task_status=task_status)

    def leave(self) -> None:
        self.store = None
        for scope in self._scopes:
            scope.cancel()


def parts_of(
    app: TaskQ,
    logs: Iterable[str | os.PathLike[str]] | Mapping[Any, int] | None,
    *,
    ticks: bool,
    syncs: bool,
) -> list[LogPart]:
    """Return the logs of a worker: those that were named, else those of its app.

    Args:
        app: whose worker.
        logs: directories, or their weights.
        ticks: whether it ticks the app's schedules, in each log.
        syncs: whether it sends each log to the hub of the settings.

    Raises:
        UsageError: there is none, one is named twice, or a weight is out of its range.
    """
    if logs is None:
        return [LogPart(log, ticks=ticks, syncs=syncs) for log in app.logs()]
    if len(app.logs()) > 1:
        raise UsageError("the app has shards, and its workers work all of them: leave logs out")
    weights = logs if isinstance(logs, Mapping) else None
    paths = [os.fspath(log) for log in logs]
    if isinstance(logs, str) or not paths or len(paths) > LOGS_MAX:
        raise UsageError(f"logs takes 1 to {LOGS_MAX} directories, or weights by directory")
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise UsageError("logs names a directory twice: give it one weight")
    shares = [1] * len(paths)
    if weights is not None:
        shares = [Weights.checked(weights[log], f"the weight of log {str(log)!r}") for log in logs]
    both = zip(paths, shares, strict=True)
    return [LogPart(app.over(path), share, ticks=ticks, syncs=syncs) for path, share in both]


def _syncing(app: TaskQ) -> Service:
    """Return what sends the log to a hub, as its package brings it."""
    service: Service = find_plugin("taskq.services", "sync", "hub")(app)
    return service


class Stranded:
    """Remains of a loop that was closed under the worker, for each of its logs."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._left: list[Settlement] = []

    def of(self, app: TaskQ) -> list[Settlement]:
        """Settle what ended of this log, release what runs or waits."""
        runner, tag = self._runner, app.connection.tag
        left = [delivery for delivery, _ in runner.held() if delivery.tag == tag]
        self._left += runner.settler.surrender()
        self._left += [release(delivery) for delivery in left + runner.feed.surrender()]
        mine = [end for end in self._left if end.delivery.tag == tag]
        self._left = [end for end in self._left if end.delivery.tag != tag]
        return mine


def surrender(slots: Slots, parts: Iterable[LogPart]) -> None:
    """Release what no slot has begun; from another thread, while the loop stands still."""
    stores = {part.app.connection.tag: part.store for part in parts}
    for settlement in slots.surrender():
        store = stores.get(settlement.delivery.tag)
        if store is not None:
            with contextlib.suppress(TaskqError):
                store.thread_port.settle([settlement])
