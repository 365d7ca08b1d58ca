"""Spark as the crew sees it: chunks go in, reports come out, any number of times at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from taskq_plugins.spark.backlog.executing import Chunk, Report, run_chunks
from taskq_plugins.spark.errors import SparkError

if TYPE_CHECKING:
    from pyspark import SparkContext


#: Most Spark jobs at a time; each takes a thread of the driver.
WAVES_MAX: Final = 64
#: Executors come and go; their number is asked for so often.
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
    """An executor, or its Python process, died over its jobs."""


class Cluster:
    """Runs chunks on the executors of one Spark context.

    Attributes:
        waves: how many calls of ``run`` are under way.
    """

    def __init__(self, context: SparkContext) -> None:
        self.waves = 0
        self._context = context
        self._group = f"taskq-backlog-{os.getpid()}-{next(_numbers)}"
        self._threads = ThreadPoolExecutor(WAVES_MAX, thread_name_prefix="taskq-spark")
        self._cores = context.defaultParallelism
        self._asked_at = monotonic()

    @property
    def cores(self) -> int:
        if monotonic() - self._asked_at > _CORES_SECONDS:
            self._asked_at = monotonic()
            with contextlib.suppress(Exception):  # Java is gone: the next wave will tell
                self._cores = self._context.defaultParallelism
        return self._cores

    async def run(self, chunks: list[Chunk]) -> list[Report]:
        """Return the report of each chunk, each a partition of one Spark job.

        Raises:
            ExecutorLost: Spark gave up on the job, because an executor died.
            SparkError: Spark itself failed, or was stopped.
        """
        self.waves += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._collect, chunks)
        finally:
            self.waves -= 1

    def cancel(self) -> None:
        with contextlib.suppress(Exception):  # Java is gone, and with it what ran
            self._context.cancelJobGroup(self._group)

    def close(self) -> None:
        self.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _collect(self, chunks: list[Chunk]) -> list[Report]:
        context = self._context
        try:
            # Of this thread; a Spark job belongs to the group of the thread that starts it.
            context.setJobGroup(self._group, "taskq backlog", interruptOnCancel=True)
            partitions: Any = context.parallelize(chunks, len(chunks))
            reports: list[Report] = partitions.mapPartitions(run_chunks).collect()
        except Exception as error:
            raise _meaning(error) from error
        return reports


def _meaning(error: Exception) -> SparkError:
    said = str(error)
    java = getattr(error, "java_exception", None)
    with contextlib.suppress(Exception):
        said = str(java.toString()) if java is not None else said
    for sign in _DIED:
        if sign in said:
            return ExecutorLost(f"the executor that ran it died ({sign})")
    first = said.partition("\n")[0]
    return SparkError(f"Spark failed: {first:.300}. See taskq pipeline doctor")
