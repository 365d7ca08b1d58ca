"""The steps of a batch on Spark's executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from taskq_plugins.spark.run.reasons import failure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession


class Executors:
    """Runs each step as a task of Spark's, but for one that is alone.

    Attributes:
        batch_bytes: of a batch, at most; None: no limit.
    """

    batch_bytes = None

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def each(self, step: Callable[[Any], None], parts: Sequence[Any]) -> None:
        """Run the step for each part.

        Raises:
            PipelineFailed: one of them failed, or Spark did.
        """
        if len(parts) == 1:
            step(parts[0])
        elif parts:
            try:
                self._context.parallelize(parts, len(parts)).foreach(step)
            except (Py4JJavaError, PySparkException) as error:
                raise failure(str(error)) from error

    def cancel(self) -> None:
        """Stop what runs."""
        self._context.cancelAllJobs()
