"""The jobs that are out on executors: claimed for their cores, sent in chunks, settled at last."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from taskq.engine import kinds
from taskq.hooks import Inputs
from taskq_plugins.spark.backlog.cluster import WAVES_MAX, ExecutorLost
from taskq_plugins.spark.backlog.costs import Costs, cut
from taskq_plugins.spark.backlog.executing import Chunk, Report
from taskq_plugins.spark.backlog.opening import open_payloads
from taskq_plugins.spark.errors import SparkError
from taskq_workers.events import Hook, tell
from taskq_workers.slots.feed import Feed
from taskq_workers.slots.outcomes import release, settle_failure
from taskq_workers.slots.pace import Pace
from taskq_workers.slots.settling import Settler
from taskq_workers.slots.shipping import Ended, Sent, settlement_of, ship
from taskq_workers.slots.storing import stored_success

if TYPE_CHECKING:
    from taskq import Delivery, TaskQ
    from taskq.engine import LoopPort, Settlement
    from taskq_workers.process.elsewhere import Order

_log: Final = logging.getLogger("taskq.worker")

#: Chunks for each core: one runs, and one waits, so that no core idles between two.
CHUNKS_PER_CORE: Final = 2
#: A batch of chunks is at most this part of all that may be out.
_WAVE_PARTS: Final = 16
#: How many jobs that were lost with their executor are remembered, to be run alone.
SUSPECTS_MAX: Final = 100_000


class Executors(Protocol):
    """What runs chunks; see ``Cluster``."""

    @property
    def cores(self) -> int: ...

    async def run(self, chunks: list[Chunk]) -> list[Report]: ...

    def cancel(self) -> None: ...


class _Unpaced(Pace):
    """Never claims ahead: the crew itself says how many jobs it can use."""

    def _resize(self, size: int) -> None:
        del size


class SparkCrew:
    """Keeps executors busy with the jobs of one app; what ``Slots`` are here.

    Attributes:
        gone: set once nothing is out any more, after ``leave``.
    """

    def __init__(
        self,
        app: TaskQ,
        port: LoopPort,
        executors: Executors,
        order: Order,
        *,
        queues: frozenset[str] | None,
        tasks: Callable[[], frozenset[str]],
        stop: Callable[[BaseException | None], None],
        burst_clock: Callable[[], int] | None,
    ) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self.gone = asyncio.Event()
        self._app = app
        self._executors = executors
        self._order = order
        self._hook: Hook | None = order.on_event
        self._stop = stop
        self._costs = Costs()
        #: what each batch has out, and how many chunks that is
        self._out: dict[asyncio.Task[None], tuple[list[list[Delivery]], int]] = {}
        self._storing: set[asyncio.Task[None]] = set()
        self._suspects: OrderedDict[int, None] = OrderedDict()
        self._leaving = self._interrupted = False
        self.feed = Feed(
            loop,
            port,
            self,
            concurrency=1,
            queues=queues,
            tasks=tasks,
            burst_clock=burst_clock,
            pace=_Unpaced(1),
        )
        self.settler = Settler(loop, port, self.feed.finished, lambda error, _: stop(error))

    # What the feed calls.

    def free(self) -> int:
        return self._room() * self._costs.chunk_jobs()

    def wake(self) -> None:
        room = self._room()
        limit = self._chunks_max()
        while self.feed.buffer and room > 0:
            width = min(room, max(-(-limit // _WAVE_PARTS), 1))
            chunks = cut(self.feed.buffer, width, self._costs, self._runs_alone, room)
            wave = self._loop.create_task(self._send(chunks), name="taskq-wave")
            self._out[wave] = chunks, len(chunks)
            wave.add_done_callback(self._on_returned)
            room = self._room()
        self._loop.call_soon(self.feed.refill)

    def quiet(self) -> bool:
        settler = self.settler
        return not (self._out or self._storing or settler.outcomes or settler.refused)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        self.settler.give_back(deliveries)

    def ran_dry(self) -> None:
        self._stop(None)

    def came_empty(self) -> None: ...
    def fail(self, error: BaseException) -> None:
        self._stop(error)

    # What the worker calls.

    def running(self) -> int:
        return sum(len(chunk) for chunks, _ in self._out.values() for chunk in chunks)

    def held(self) -> list[tuple[Delivery, float | None]]:
        batches = (chunks for chunks, _ in self._out.values())
        return [(job, None) for chunks in batches for chunk in chunks for job in chunk]

    def leave(self) -> None:
        self._leaving = True
        self.feed.close()
        self._check_gone()

    def interrupt(self) -> None:
        self._interrupted = True
        if self._out:
            self._executors.cancel()

    def abandon(self) -> None:
        """Release what did not even end when cancelled; what comes back later is ignored."""
        _log.warning("%d jobs did not end when cancelled: released", self.running())
        out, self._out = self._out, {}
        for chunks, _ in out.values():
            self._give_all_back(chunks)
        self._check_gone()

    # Batches of chunks.

    def _chunks_max(self) -> int:
        # A job that is slow would keep those that wait behind it from other workers.
        return self._executors.cores * (1 if self._costs.is_slow else CHUNKS_PER_CORE)

    def _room(self) -> int:
        if self._leaving or len(self._out) >= WAVES_MAX:
            return 0
        return self._chunks_max() - sum(count for _, count in self._out.values())

    def _runs_alone(self, delivery: Delivery) -> bool:
        return delivery.job in self._suspects

    async def _send(self, chunks: list[list[Delivery]]) -> None:
        payloads: dict[int, bytes] = {}
        for chunk in chunks:
            if any(map(Inputs.needed, chunk)):
                opened, settlements = await open_payloads(self._app, chunk)
                payloads |= opened
                for settlement in settlements:
                    self._put(settlement, 0.0)
        sent = [chunk for chunk in chunks if chunk]
        if self._interrupted:
            self._give_all_back(sent)
        elif sent:
            await self._await_reports(sent, [self._packed(chunk, payloads) for chunk in sent])

    async def _await_reports(self, sent: list[list[Delivery]], packed: list[Chunk]) -> None:
        wave = asyncio.current_task()
        try:
            reports = await self._executors.run(packed)
        except SparkError as error:
            if wave in self._out:
                self._on_error(sent, error)
            return
        if wave in self._out:
            for chunk, report in zip(sent, reports, strict=True):
                self._take(chunk, report)

    def _on_error(self, sent: list[list[Delivery]], error: SparkError) -> None:
        if self._interrupted:
            self._give_all_back(sent)
        elif isinstance(error, ExecutorLost):
            for chunk in sent:
                self._lost(chunk, error)
        else:
            for chunk in sent:
                for delivery in chunk:
                    # Jobs that it ran when it failed have begun, and nobody knows which.
                    if delivery.attempts_max == 1:
                        self._put(self._failure(delivery, error), 0.0)
                    else:
                        self._put(release(delivery), 0.0)
            self.fail(error)

    def _failure(self, delivery: Delivery, error: SparkError) -> Settlement:
        return settle_failure(self._app.tasks[delivery.task], delivery, error)

    def _give_all_back(self, chunks: Iterable[list[Delivery]]) -> None:
        for chunk in chunks:
            self.give_back(chunk)

    def _packed(self, chunk: list[Delivery], payloads: Mapping[int, bytes]) -> Chunk:
        jobs = tuple(ship(delivery, payloads.get(delivery.job)) for delivery in chunk)
        order = self._order
        return Chunk(
            order.target,
            str(self._app.data_dir),
            order.concurrency,
            jobs,
            tuple(self._app.hooks.included),
        )

    def _on_returned(self, wave: asyncio.Task[None]) -> None:
        chunks, _ = self._out.pop(wave, ([], 0))
        error = None if wave.cancelled() else wave.exception()
        if error is not None:
            # A mistake of ours, not the jobs' failure: say so, and let others have them.
            _log.error("a batch failed", exc_info=error)
            self._give_all_back(chunks)
            self.fail(SparkError(f"a batch failed: {type(error).__name__}: {error}"))
        if self.feed.buffer and not self._leaving:
            self.wake()
        else:
            self.feed.refill()
            self.feed.rested()  # its outcomes were handed on while it still counted as out
        self._check_gone()

    # Outcomes.

    def _take(self, chunk: list[Delivery], report: Report) -> None:
        if report.problem:
            self.give_back(chunk)
            self.fail(
                SparkError(
                    f"executors cannot import {self._order.target}: {report.problem}. "
                    f"Give what they lack with --py-files"
                )
            )
            return
        if report.lost:
            self._lost(chunk, ExecutorLost("the executor that ran it died"))
            return
        left = dict(enumerate(chunk))
        costs = []
        for ended in report.ended:
            delivery = left.pop(ended.number)
            self._suspects.pop(delivery.job, None)
            self._end(delivery, ended)
            costs.append((delivery.task, self._seconds(delivery, ended), len(delivery.record)))
        self._costs.learn(costs)
        self.give_back(left.values())

    def _seconds(self, delivery: Delivery, ended: Ended) -> float:
        task = self._app.tasks[delivery.task]
        return ended.seconds / (self._order.concurrency if task.is_async else 1)

    def _end(self, delivery: Delivery, ended: Ended) -> None:
        task = self._app.tasks[delivery.task]
        settlement = settlement_of(ended, delivery)
        stores = settlement.kind is kinds.SUCCESS and (ended.children or task.packs_results)
        if not stores:
            self._put(settlement, ended.seconds)
            return
        storing = self._loop.create_task(self._store(delivery, ended), name="taskq-store")
        self._storing.add(storing)
        storing.add_done_callback(self._on_stored)

    async def _store(self, delivery: Delivery, ended: Ended) -> None:
        task, connection = self._app.tasks[delivery.task], self._app.connection
        try:
            settlement = await stored_success(
                connection, task, delivery, ended.body, list(ended.children)
            )
        except Exception as error:  # noqa: BLE001 - no job may stop its worker
            settlement = settle_failure(task, delivery, error)
        if settlement.children:
            self.settler.parents[delivery] = Sent(delivery, self._app)
        self._put(settlement, ended.seconds)

    def _on_stored(self, storing: asyncio.Task[None]) -> None:
        self._storing.discard(storing)
        self.feed.rested()
        self._check_gone()

    def _lost(self, chunk: list[Delivery], error: ExecutorLost) -> None:
        """Nobody knows which jobs ran: those that may, run again alone; attempts are kept.

        One that was alone has failed by that. So has one that may run only once, as it may have.
        """
        _log.warning("an executor died over %d jobs: %s", len(chunk), error)
        for delivery in chunk:
            if len(chunk) == 1 or delivery.attempts_max == 1:
                self._suspects.pop(delivery.job, None)
                self._put(self._failure(delivery, error), 0.0)
                continue
            self._suspects[delivery.job] = None
            if len(self._suspects) > SUSPECTS_MAX:
                self._suspects.popitem(last=False)
            self._put(release(delivery), 0.0)

    def _put(self, settlement: Settlement, seconds: float) -> None:
        self.settler.add(settlement)
        if self._hook is not None:
            tell(self._hook, settlement, seconds)

    def _check_gone(self) -> None:
        if self._leaving and not self._out and not self._storing:
            self.gone.set()
