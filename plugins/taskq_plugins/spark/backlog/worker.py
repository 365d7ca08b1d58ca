"""``taskq worker APP --executor spark``: claim and settle here, run on Spark's executors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from taskq.engine import Settlement, kinds
from taskq.hooks import Inputs
from taskq_plugins.spark.backlog.execution import ChunkReport, JobChunk, run_chunks
from taskq_plugins.spark.errors import SparkError
from taskq_plugins.spark.session import MASTER_DEFAULT, spark_session
from taskq_workers.events import Hook, call_hook
from taskq_workers.pool import LogPart, Worker
from taskq_workers.slots.feed import ClaimPace, Feed
from taskq_workers.slots.outcomes import (
    release,
    settle_failure,
    settle_unreadable,
)
from taskq_workers.slots.settling import Settler, store_success
from taskq_workers.slots.shipping import RemoteJob, RemoteOutcome, settlement_of, ship

if TYPE_CHECKING:
    from pyspark import SparkContext

    from taskq import Delivery, TaskQ
    from taskq.engine import LoopPort
    from taskq_workers.process.running import WorkerOrder
    from taskq_workers.slots.feed import Runner

#: Payloads of a chunk of several jobs. A Spark message has at most 128 MiB; a single job has less.
SHIP_BYTES_MAX: Final = 64 << 20


async def open_payloads(
    app: TaskQ, chunk: list[Delivery]
) -> tuple[list[tuple[Delivery, bytes | None]], list[Settlement]]:
    """Return the jobs to send, and settlements of jobs that cannot be sent.

    A job comes with its payload if the record holds the payload in another form.
    """
    sent: list[tuple[Delivery, bytes | None]] = []
    settlements: list[Settlement] = []
    size_bytes = 0
    for delivery in chunk:
        payload = None
        if Inputs.needed(delivery):
            try:
                payload = await Inputs(app).payload(delivery)
            except Exception as error:  # noqa: BLE001 - a job must not stop its worker
                failed = settle_unreadable(delivery, error)
                task = app.tasks[delivery.task]
                settlements.append(failed or settle_failure(task, delivery, error))
                continue
            size_bytes += len(payload)
        if size_bytes > SHIP_BYTES_MAX and sent:
            settlements.append(release(delivery))
        else:
            sent.append((delivery, payload))
    return sent, settlements


#: Jobs of one chunk at most, and bytes of their records. An executor begins no further job of a
#: chunk after HOLD_SECONDS, so that a slow job does not keep the others from other workers.
CHUNK_JOBS_MAX: Final = 64
CHUNK_BYTES_MAX: Final = 8 << 20


def cut(waiting: deque[Delivery], chunks: int, alone: Callable[[Delivery], bool]) -> list[Delivery]:
    """Take a chunk of the first waiting jobs: about one of ``chunks`` equal parts."""
    length = min(CHUNK_JOBS_MAX, -(-len(waiting) // max(chunks, 1)))
    chunk = [waiting.popleft()]
    size_bytes = len(chunk[0].record)
    while waiting and len(chunk) < length and not (alone(chunk[0]) or alone(waiting[0])):
        size_bytes += len(waiting[0].record)
        if size_bytes > CHUNK_BYTES_MAX:
            break
        chunk.append(waiting.popleft())
    return chunk


#: Chunks at a time at most: each is a Spark job, and takes a thread of the driver.
CHUNKS_MAX: Final = 256
#: Executors come and go: count them again after this time.
_CORES_SECONDS: Final = 5.0
_DIED: Final = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "ExecutorLostFailure",
    "Executor heartbeat timed out",
    "ExecutorDeadException",
)
_numbers: Final = count(1)


class ExecutorLost(SparkError):
    """An executor, or its Python process, died while it ran jobs."""


class Cluster:
    """Runs chunks on the executors of one Spark context."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._group = f"taskq-backlog-{os.getpid()}-{next(_numbers)}"
        self._threads = ThreadPoolExecutor(CHUNKS_MAX, thread_name_prefix="taskq-spark")
        self._cores = context.defaultParallelism
        self._asked_at = monotonic()

    @property
    def cores(self) -> int:
        if monotonic() - self._asked_at > _CORES_SECONDS:
            self._asked_at = monotonic()
            with contextlib.suppress(Exception):  # Java ended: the next chunk fails for that reason
                self._cores = self._context.defaultParallelism
        return self._cores

    async def run(self, chunk: JobChunk) -> ChunkReport:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._collect, chunk)

    def cancel(self) -> None:
        with contextlib.suppress(Exception):  # Java ended, and its jobs with it
            self._context.cancelJobGroup(self._group)

    def close(self) -> None:
        self.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _collect(self, chunk: JobChunk) -> ChunkReport:
        context = self._context
        try:
            # A Spark job belongs to the group of the thread that starts it.
            context.setJobGroup(self._group, "taskq backlog", interruptOnCancel=True)
            partitions: Any = context.parallelize([chunk], 1)
            reports: list[ChunkReport] = partitions.mapPartitions(run_chunks).collect()
        except Exception as error:
            raise _meaning(error) from error
        return reports[0]


def _meaning(error: Exception) -> SparkError:
    text = str(error)
    java = getattr(error, "java_exception", None)
    with contextlib.suppress(Exception):
        text = str(java.toString()) if java is not None else text
    for sign in _DIED:
        if sign in text:
            return ExecutorLost(f"the executor that ran it died ({sign})")
    first = text.partition("\n")[0]
    return SparkError(f"Spark failed: {first:.300}")


_log: Final = logging.getLogger("taskq.worker")

#: Chunks for each core: one runs and one waits, so that no core is idle in between.
CHUNKS_PER_CORE: Final = 2
#: Remembered jobs that were lost with their executor and must run alone, at most.
SUSPECTS_MAX: Final = 100_000


class _Unpaced(ClaimPace):
    """Never claims ahead: the crew asks only for jobs that it can run."""

    def _resize(self, size: int) -> None:
        del size


class SparkCrew:
    """Keeps executors busy with the jobs of one app, in place of ``Slots``.

    Attributes:
        gone: set after ``leave``, once no chunk is running.
    """

    def __init__(
        self,
        app: TaskQ,
        port: LoopPort,
        executors: Cluster,
        order: WorkerOrder,
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
        #: running chunks
        self._out: dict[asyncio.Task[None], list[Delivery]] = {}
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

    # For the feed.

    def free(self) -> int:
        return self._room() * CHUNK_JOBS_MAX

    def wake(self) -> None:
        while self.feed.buffer and (room := self._room()) > 0:
            chunk = cut(self.feed.buffer, room, self._runs_alone)
            sending = self._loop.create_task(self._send(chunk), name="taskq-chunk")
            self._out[sending] = chunk
            sending.add_done_callback(self._on_returned)
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

    # For the worker.

    def running(self) -> int:
        return sum(map(len, self._out.values()))

    def held(self) -> list[tuple[Delivery, float | None]]:
        return [(job, None) for chunk in self._out.values() for job in chunk]

    def leave(self) -> None:
        self._leaving = True
        self.feed.close()
        self._check_gone()

    def interrupt(self) -> None:
        self._interrupted = True
        if self._out:
            self._executors.cancel()

    def abandon(self) -> None:
        """Release jobs that did not end after their cancellation; ignore their later reports."""
        _log.warning("%d jobs did not end when cancelled: released", self.running())
        out, self._out = self._out, {}
        for chunk in out.values():
            self.give_back(chunk)
        self._check_gone()

    # Chunks.

    def _room(self) -> int:
        limit = min(self._executors.cores * CHUNKS_PER_CORE, CHUNKS_MAX)
        return 0 if self._leaving else limit - len(self._out)

    def _runs_alone(self, delivery: Delivery) -> bool:
        return delivery.job in self._suspects

    async def _send(self, chunk: list[Delivery]) -> None:
        sent, settlements = await open_payloads(self._app, chunk)
        for settlement in settlements:
            self._put(settlement, 0.0)
        chunk[:] = [delivery for delivery, _ in sent]
        if self._interrupted:
            self.give_back(chunk)
        if self._interrupted or not chunk:
            return
        sending, order = asyncio.current_task(), self._order
        packed = JobChunk(
            order.target,
            str(self._app.data_dir),
            order.concurrency,
            tuple(ship(delivery, payload) for delivery, payload in sent),
            tuple(self._app.hooks.included),
        )
        try:
            report = await self._executors.run(packed)
        except SparkError as error:
            if sending in self._out:
                self._on_error(chunk, error)
        else:
            if sending in self._out:
                self._take(chunk, report)

    def _on_error(self, chunk: list[Delivery], error: SparkError) -> None:
        if self._interrupted:
            self.give_back(chunk)
        elif isinstance(error, ExecutorLost):
            self._lost(chunk, error)
        else:
            for delivery in chunk:
                # Some jobs of the failed chunk have begun, but it is unknown which.
                is_last = delivery.attempts_max == 1
                self._put(self._failure(delivery, error) if is_last else release(delivery), 0.0)
            self.fail(error)

    def _failure(self, delivery: Delivery, error: SparkError) -> Settlement:
        return settle_failure(self._app.tasks[delivery.task], delivery, error)

    def _on_returned(self, sending: asyncio.Task[None]) -> None:
        chunk = self._out.pop(sending, [])
        error = None if sending.cancelled() else sending.exception()
        if error is not None:
            # A bug in taskq, not a failure of the jobs: log it and release them.
            _log.error("a chunk failed", exc_info=error)
            self.give_back(chunk)
            self.fail(SparkError(f"a chunk failed: {type(error).__name__}: {error}"))
        if self.feed.buffer and not self._leaving:
            self.wake()
        else:
            self.feed.refill()
            self.feed.rested()  # its outcomes were stored while the chunk still counted
        self._check_gone()

    # Outcomes.

    def _take(self, chunk: list[Delivery], report: ChunkReport) -> None:
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
        for ended in report.ended:
            delivery = left.pop(ended.number)
            self._suspects.pop(delivery.job, None)
            self._end(delivery, ended)
        self.give_back(left.values())

    def _end(self, delivery: Delivery, ended: RemoteOutcome) -> None:
        task = self._app.tasks[delivery.task]
        settlement = settlement_of(ended, delivery)
        stores = settlement.kind is kinds.SUCCESS and (ended.children or task.packs_results)
        if not stores:
            self._put(settlement, ended.seconds)
            return
        storing = self._loop.create_task(self._store(delivery, ended), name="taskq-store")
        self._storing.add(storing)
        storing.add_done_callback(self._on_stored)

    async def _store(self, delivery: Delivery, ended: RemoteOutcome) -> None:
        task, connection = self._app.tasks[delivery.task], self._app.connection
        try:
            settlement = await store_success(
                connection, task, delivery, ended.body, list(ended.children)
            )
        except Exception as error:  # noqa: BLE001 - a job must not stop its worker
            settlement = settle_failure(task, delivery, error)
        if settlement.children:
            self.settler.parents[delivery] = RemoteJob(delivery, self._app)
        self._put(settlement, ended.seconds)

    def _on_stored(self, storing: asyncio.Task[None]) -> None:
        self._storing.discard(storing)
        self.feed.rested()
        self._check_gone()

    def _lost(self, chunk: list[Delivery], error: ExecutorLost) -> None:
        """Run the chunk's jobs again, each alone, since it is unknown which ran; keep attempts.

        A job that ran alone has failed, and so has a job with a single attempt.
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
            call_hook(self._hook, settlement, seconds)

    def _check_gone(self) -> None:
        if self._leaving and not self._out and not self._storing:
            self.gone.set()


#: Spark's own retry would count no attempt, so after a lost executor it only reports the loss. A
#: cancelled Python process must end well within a worker's time for cancelled jobs. Java has
#: little to do: a chunk costs 44 ms of a core without its second compiler, and 158 ms with it.
_CONF: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.task.killTimeout": "200ms",
    "spark.scheduler.mode": "FAIR",
    "spark.task.maxFailures": "2",
}


class SparkWorker(Worker):
    """Runs an app's jobs on executors until it is stopped; otherwise like any ``Worker``.

    Jobs run at least once: when this process dies, its jobs are claimed again at once, while an
    executor may continue for a moment. If executors are on other machines, tasks reach the log only
    through ``current_job().enqueue``. ``timeout`` works only for async tasks.

    Args:
        app: the app with the tasks; executors import it by ``order.target``.
        executors: the cluster to run them on.
        order: further options of the worker.
        where: text for people that names the executors.
    """

    #: executors are separate processes and open no resources for their jobs
    lends = False

    def __init__(self, app: TaskQ, executors: Cluster, order: WorkerOrder, where: str) -> None:
        super().__init__(
            app,
            concurrency=executors.cores,
            queues=order.queues,
            burst=order.burst,
            drain_timeout=order.drain_timeout,
            warns=order.warns,
            on_event=order.on_event,
        )
        self.executor = where
        self._executors = executors
        self._order = order

    def _make_runner(self, parts: Sequence[LogPart]) -> Runner:
        store = parts[0].app.store()
        return SparkCrew(
            self.app,
            store.port(),
            self._executors,
            self._order,
            queues=self.queues,
            tasks=self._task_names,
            stop=self._on_end,
            burst_clock=store.steady_ns if self.burst else None,
        )


@contextlib.contextmanager
def spark_executor(app: TaskQ, order: WorkerOrder) -> Iterator[SparkWorker]:
    master = order.master or MASTER_DEFAULT
    with spark_session(f"taskq worker {order.target}", master=master, conf=_CONF) as session:
        context = session.sparkContext
        for path in order.files:
            context.addPyFile(path)
        cluster = Cluster(context)
        where = f"spark, master {context.master}; jobs run at least once"
        try:
            yield SparkWorker(app, cluster, order, where)
        finally:
            cluster.close()
