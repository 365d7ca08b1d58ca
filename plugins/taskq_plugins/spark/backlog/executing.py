"""The executors' side: runs the jobs of a partition, each to an outcome; Spark's task never fails.

Sync functions run one after the other, async ones on one loop with a limit. Once a chunk has taken
``HOLD_SECONDS`` no further job of it begins: the rest goes back for others to run.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextvars import copy_context
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from taskq.context import JobContext, _current
from taskq.core.model import SECOND_NS
from taskq.core.records import Cause, Kind
from taskq.log.requests import Settlement
from taskq.serialization import encode_reason
from taskq_plugins.spark.backlog.shipment import Ended, Report, Shipped, Unpacker
from taskq_workers.loader import load_app
from taskq_workers.outcomes import (
    ELSEWHERE_SECONDS,
    settle_bad_result,
    settle_failure,
    settle_unreadable,
)
from taskq_workers.plans import limited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from taskq.app import TaskQ
    from taskq.log.requests import Delivery
    from taskq.packing import Loose
    from taskq.tasks import Task
    from taskq_plugins.spark.backlog.shipment import Chunk

#: After so long no further job of a chunk begins.
HOLD_SECONDS: Final = 2.5
#: Nor once its results are larger together.
RESULT_BYTES_MAX: Final = 32 << 20


def run_chunks(chunks: Iterable[Chunk]) -> Iterator[Report]:
    """Run one partition: what Spark calls."""
    for chunk in chunks:
        yield Report(lost=True) if _ran_before() else run_chunk(chunk)


def run_chunk(chunk: Chunk, clock: Callable[[], float] = monotonic) -> Report:
    """Run the jobs of a chunk, as far as its time goes."""
    try:
        app = _app(chunk.target, chunk.data_dir)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing runs the user's code
        return Report(problem=str(error))
    bench = _Bench(app, chunk, clock)
    bench.run()
    return Report(tuple(bench.ended))


@cache
def _app(target: str, data_dir: str) -> TaskQ:
    """The app, imported once in each Python process; Spark uses one for many chunks."""
    app = load_app(target)
    app.data_dir = data_dir
    return app


def _ran_before() -> bool:
    """Whether Spark runs this partition again, because its executor died.

    Then which jobs ran is not known, and the driver has to decide: it counts attempts.
    """
    if "pyspark.taskcontext" not in sys.modules:
        return False
    from pyspark import TaskContext  # noqa: PLC0415 - the driver's tests have none

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


class _Bench:
    """Runs the jobs of one chunk.

    Attributes:
        ended: those that are over.
    """

    def __init__(self, app: TaskQ, chunk: Chunk, clock: Callable[[], float]) -> None:
        self.ended: list[Ended] = []
        self._app = app
        self._chunk = chunk
        self._clock = clock
        self._until = clock() + HOLD_SECONDS
        self._room_bytes = RESULT_BYTES_MAX

    def run(self) -> None:
        """Sync jobs first, then all others together."""
        unpacker = Unpacker()
        waiting: deque[tuple[int, Shipped, Task[..., Any]]] = deque()
        for number, job in enumerate(self._chunk.jobs):
            delivery = unpacker.delivery(job)
            task = self._app._tasks.get(delivery.task)
            if task is None:
                self._end(number, _unknown(delivery), self._clock())
                continue
            if task.is_async:
                waiting.append((number, delivery, task))
            elif not self._is_over():
                copy_context().run(self._run_sync, number, delivery, task)
        if waiting and not self._is_over():
            with asyncio.Runner() as runner:
                runner.run(self._run_async(waiting))

    def _is_over(self) -> bool:
        return self._clock() >= self._until or self._room_bytes <= 0

    def _run_sync(self, number: int, delivery: Shipped, task: Task[..., Any]) -> None:
        since, called = self._clock(), False
        job = JobContext(delivery, self._app)
        _current.set(job)
        try:
            args, kwargs = task.decode(delivery.payload)
            called = True
            value = task.fn(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - no job may stop its executor
            self._failed(number, delivery, task, error, since, called=called)
        else:
            self._succeeded(number, job, task, value, since)

    async def _run_async(self, waiting: deque[tuple[int, Shipped, Task[..., Any]]]) -> None:
        async def take_turns() -> None:
            while waiting and not self._is_over():
                # A task of its own for each job, as then its context and cancellation are its own.
                await asyncio.create_task(self._run_one(*waiting.popleft()))

        await asyncio.gather(*(take_turns() for _ in range(self._chunk.concurrency)))

    async def _run_one(self, number: int, delivery: Shipped, task: Task[..., Any]) -> None:
        since, called = self._clock(), False
        job = JobContext(delivery, self._app)
        _current.set(job)
        call = task.fn if task.timeout is None else limited(task.fn, task.timeout)
        try:
            args, kwargs = task.decode(delivery.payload)
            called = True
            value = await call(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - as above
            self._failed(number, delivery, task, error, since, called=called)
        else:
            self._succeeded(number, job, task, value, since)

    def _failed(
        self,
        number: int,
        delivery: Shipped,
        task: Task[..., Any],
        error: BaseException,
        since: float,
        *,
        called: bool,
    ) -> None:
        settlement = None if called else settle_unreadable(delivery, error)
        self._end(number, settlement or settle_failure(task, delivery, error), since)

    def _succeeded(
        self, number: int, job: JobContext, task: Task[..., Any], value: object, since: float
    ) -> None:
        delivery, packer = job.delivery, self._app._connection.packer
        limit = packer.bodies.limit(task.result_packing(delivery.queue))
        try:
            body = task.encode_result(value, limit)
        except Exception as error:  # noqa: BLE001 - a result may raise what it likes when read
            self._end(number, settle_bad_result(task, delivery, value, error), since)
            return
        children = tuple(packer.loose(pending.call) for pending, *_ in job.children)
        self._end(number, Settlement(Kind.SUCCEEDED, delivery, body), since, children)

    def _end(
        self, number: int, settlement: Settlement, since: float, children: tuple[Loose, ...] = ()
    ) -> None:
        self._room_bytes -= len(settlement.body or b"")
        self._room_bytes -= sum(len(item[1]) for item, *_ in children)
        self.ended.append(
            Ended(
                number,
                int(settlement.kind),
                settlement.body,
                settlement.delay_ns,
                int(settlement.cause),
                children,
                self._clock() - since,
            )
        )


def _unknown(delivery: Delivery) -> Settlement:
    """An executor has an older copy of the app: another may take the job in a while."""
    reason = encode_reason(f"an executor's copy of the app has no task {delivery.task!r}")
    return Settlement(Kind.RELEASED, delivery, reason, ELSEWHERE_SECONDS * SECOND_NS)


def settlement_of(ended: Ended, delivery: Delivery) -> Settlement:
    """What the driver tells the log, but for children."""
    kind, cause = Kind(ended.kind), Cause(ended.cause)
    return Settlement(kind, delivery, ended.body, ended.delay_ns, cause)
