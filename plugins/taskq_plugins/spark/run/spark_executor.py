"""The steps of a batch on Spark's executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from taskq_plugins.spark.run.errors import failure
from taskq_plugins.spark.run.executor import give_back_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkExecutor:
    """Runs each step as a Spark task; a single step runs in this process.

    ``steps`` is four for each core, so that a free core takes another.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self.steps = 4 * self._context.defaultParallelism

    def each(self, step: Callable[[Any], None], parts: Sequence[Any]) -> None:
        if len(parts) == 1:
            step(parts[0])
        elif parts:
            give_back_memory()  # memory of the plan, before the tasks need it
            try:
                self._context.parallelize(parts, len(parts)).foreach(partial(_alone, step))
            except (Py4JJavaError, PySparkException) as error:
                raise failure(str(error)) from error

    def cancel(self) -> None:
        self._context.cancelAllJobs()


def _alone(step: Callable[[Any], None], part: Any) -> None:
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    step(part)
    give_back_memory()
