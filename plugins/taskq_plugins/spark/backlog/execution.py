"""The executors' side: run the jobs of a chunk and return a report with their outcomes.

Sync functions run one after the other, async functions on one loop with a limit. After
``HOLD_SECONDS`` no further job of a chunk begins, and the rest is returned for other executors.
Spark's task never fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq import JobContext
from taskq.hooks import running_job
from taskq_workers.runs.loader import load_app
from taskq_workers.runs.timeouts import limits_of, with_limits
from taskq_workers.slots.batches import apart
from taskq_workers.slots.shipping import (
    RemoteOutcome,
    Shipment,
    Shipped,
    Unpacker,
    remote_failure,
    remote_release,
    remote_success,
)

if TYPE_CHECKING:
    from taskq import Task, TaskQ


class JobChunk(NamedTuple):
    """The jobs of one partition."""

    #: ``module:app`` to import
    target: str
    #: the task log; only executors on the driver's machine can reach it
    data_dir: str
    #: limit of async jobs at a time
    concurrency: int
    jobs: tuple[Shipment, ...]
    #: further modules with tasks to import
    include: tuple[str, ...] = ()


class ChunkReport(NamedTuple):
    """Results of a chunk's jobs. Jobs without a result never began."""

    ended: tuple[RemoteOutcome, ...] = ()
    #: whether an earlier executor died while it ran this partition
    lost: bool = False
    #: reason why no job could run here
    problem: str = ""


HOLD_SECONDS: Final = 2.5
RESULT_BYTES_MAX: Final = 32 << 20


def run_chunks(chunks: Iterable[JobChunk]) -> Iterator[ChunkReport]:
    for chunk in chunks:
        yield ChunkReport(lost=True) if _ran_before() else run_chunk(chunk)


def run_chunk(chunk: JobChunk, clock: Callable[[], float] = monotonic) -> ChunkReport:
    try:
        app = _app(chunk.target, chunk.include, chunk.data_dir)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the import runs user code
        return ChunkReport(problem=str(error))
    bench = _Bench(app, chunk, clock)
    bench.run()
    return ChunkReport(tuple(bench.ended))


@cache
def _app(target: str, include: tuple[str, ...], data_dir: str) -> TaskQ:
    """Return the app, imported once in each Python process; Spark uses one for many chunks."""
    app = load_app(target, include)
    app.data_dir = data_dir
    return app


def _ran_before() -> bool:
    """Return whether Spark runs this partition again, because its executor died.

    Then it is unknown which jobs ran, and the driver must decide, since it counts attempts.
    """
    if "pyspark.taskcontext" not in sys.modules:
        return False
    from pyspark import TaskContext  # noqa: PLC0415 - the driver's tests run without pyspark

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


class _Bench:
    """Runs the jobs of one chunk.

    Attributes:
        ended: finished jobs.
    """

    def __init__(self, app: TaskQ, chunk: JobChunk, clock: Callable[[], float]) -> None:
        self.ended: list[RemoteOutcome] = []
        self._app = app
        self._chunk = chunk
        self._clock = clock
        self._until = clock() + HOLD_SECONDS
        self._room_bytes = RESULT_BYTES_MAX

    def run(self) -> None:
        unpacker = Unpacker()
        waiting: deque[tuple[int, Shipped, Task[..., Any]]] = deque()
        for number, job in enumerate(self._chunk.jobs):
            delivery = unpacker.delivery(job)
            task = self._app.tasks.get(delivery.task)
            if task is None:
                # This executor has an older copy of the app; another one may run the job later.
                what = f"an executor's copy of the app has no task {delivery.task!r}"
                self._end(remote_release(number, delivery, what))
                continue
            if task.is_async:
                waiting.append((number, delivery, task))
            elif not self._is_over():
                with contextlib.suppress(StopIteration):  # the coroutine never waits
                    copy_context().run(self._run_one(number, delivery, task).send, None)
        if waiting and not self._is_over():
            with asyncio.Runner() as runner:
                runner.run(self._run_async(waiting))

    def _is_over(self) -> bool:
        return self._clock() >= self._until or self._room_bytes <= 0

    async def _run_async(self, waiting: deque[tuple[int, Shipped, Task[..., Any]]]) -> None:
        async def take_turns() -> None:
            while waiting and not self._is_over():
                # Each job has an asyncio task, for a context and cancellation of its own.
                await asyncio.create_task(self._run_one(*waiting.popleft()))

        await asyncio.gather(*(take_turns() for _ in range(self._chunk.concurrency)))

    async def _run_one(self, number: int, delivery: Shipped, task: Task[..., Any]) -> None:
        since, called = self._clock(), False
        job = JobContext(delivery, self._app)
        running_job.set(job)
        limits = limits_of(task) if task.is_async else None
        call = task.fn if limits is None else with_limits(task.fn, limits)
        try:
            args, kwargs = task.decode(delivery.payload)
            if task.batch:  # a batch of one, since each job here ends by itself
                args, kwargs = ([(*args, *kwargs.values())[0]],), {}
            called = True
            value = call(*args, **kwargs)
            if task.is_async:
                value = await value
            if task.batch:
                (value,) = apart(task, value, 1)
        except BaseException as error:  # noqa: BLE001 - a job must not stop its executor
            seconds = self._clock() - since
            self._end(remote_failure(number, task, delivery, error, seconds, called=called))
        else:
            self._end(remote_success(number, task, job, value, self._clock() - since))

    def _end(self, ended: RemoteOutcome) -> None:
        self._room_bytes -= len(ended.body or b"")
        self._room_bytes -= sum(len(item[1]) for item, *_ in ended.children)
        self.ended.append(ended)
