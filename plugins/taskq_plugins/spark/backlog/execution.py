"""The executors' side: chunks of jobs come, each runs to an outcome, reports of them go back.

Sync functions run one after the other, async ones on one loop with a limit. Once a chunk has taken
``HOLD_SECONDS`` no further job of it begins: the rest goes back for others to run. Spark's task
never fails.
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
    #: the task log, which only executors on the driver's machine can reach
    data_dir: str
    #: how many async jobs run at a time
    concurrency: int
    jobs: tuple[Shipment, ...]
    #: modules to import besides, for the tasks in them
    include: tuple[str, ...] = ()


class ChunkReport(NamedTuple):
    """Results of a chunk's jobs. Jobs without one never began."""

    ended: tuple[RemoteOutcome, ...] = ()
    #: the partition was run before, by an executor that died over it
    lost: bool = False
    #: why no job could be run here at all
    problem: str = ""


HOLD_SECONDS: Final = 2.5
RESULT_BYTES_MAX: Final = 32 << 20


def run_chunks(chunks: Iterable[JobChunk]) -> Iterator[ChunkReport]:
    for chunk in chunks:
        yield ChunkReport(lost=True) if _ran_before() else run_chunk(chunk)


def run_chunk(chunk: JobChunk, clock: Callable[[], float] = monotonic) -> ChunkReport:
    try:
        app = _app(chunk.target, chunk.include, chunk.data_dir)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing runs the user's code
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
                # An executor has an older copy of the app: another may take the job in a while.
                what = f"an executor's copy of the app has no task {delivery.task!r}"
                self._end(remote_release(number, delivery, what))
                continue
            if task.is_async:
                waiting.append((number, delivery, task))
            elif not self._is_over():
                with contextlib.suppress(StopIteration):  # it waits for nothing
                    copy_context().run(self._run_one(number, delivery, task).send, None)
        if waiting and not self._is_over():
            with asyncio.Runner() as runner:
                runner.run(self._run_async(waiting))

    def _is_over(self) -> bool:
        return self._clock() >= self._until or self._room_bytes <= 0

    async def _run_async(self, waiting: deque[tuple[int, Shipped, Task[..., Any]]]) -> None:
        async def take_turns() -> None:
            while waiting and not self._is_over():
                # A task of its own for each job, as then its context and cancellation are its own.
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
            if task.batch:  # of one: an executor's jobs end each for itself
                args, kwargs = ([(*args, *kwargs.values())[0]],), {}
            called = True
            value = call(*args, **kwargs)
            if task.is_async:
                value = await value
            if task.batch:
                (value,) = apart(task, value, 1)
        except BaseException as error:  # noqa: BLE001 - no job may stop its executor
            seconds = self._clock() - since
            self._end(remote_failure(number, task, delivery, error, seconds, called=called))
        else:
            self._end(remote_success(number, task, job, value, self._clock() - since))

    def _end(self, ended: RemoteOutcome) -> None:
        self._room_bytes -= len(ended.body or b"")
        self._room_bytes -= sum(len(item[1]) for item, *_ in ended.children)
        self.ended.append(ended)
