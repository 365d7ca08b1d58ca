"""The stream: from the logs to the lake until all is read that was there at the start."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from taskq.errors import TaskqError
from taskq_plugins.spark.run.batch import commit_batch, fold_all, fold_share, is_committed
from taskq_plugins.spark.run.checkpoint import batch_of, check
from taskq_plugins.spark.run.inprocess import Summary, end_run
from taskq_plugins.spark.run.interrupting import interruptible
from taskq_plugins.spark.run.reasons import failure
from taskq_plugins.spark.run.storage import prepare, write_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from taskq_plugins.spark.lake import Batch, Lake, LakeWriter
    from taskq_plugins.spark.run.batch import Folded, Share
    from taskq_plugins.spark.run.inprocess import Listener, RunOptions

#: How often the main thread looks up from waiting, so that Ctrl-C is answered soon.
_LOOK_SECONDS: Final = 1
_REST_SECONDS: Final = 60


def run(
    spark: SparkSession, writer: LakeWriter, options: RunOptions, listener: Listener
) -> Summary:
    """Read what is new, fold it into the tables, and refresh the derived ones.

    Raises:
        CheckpointMismatch: checkpoint and tables do not belong together.
        LakeError: the lake, or Spark, failed.
        TaskqError: a log cannot be read as asked.
    """
    started = time.monotonic()
    lake = writer.lake
    check(lake)
    prepare(spark)
    sink = _Sink(spark, writer, listener, drops=options.drops_payloads)
    with interruptible(spark.sparkContext.cancelAllJobs) as asked:
        _follow(spark, lake, options, sink, asked)
        refreshed = [] if asked.is_set() else end_run(writer, options, listener)
    return Summary(sink.batches, sink.records, tuple(refreshed), time.monotonic() - started)


def fold_batch(
    spark: SparkSession,
    writer: LakeWriter,
    rows: DataFrame,
    batch: Batch,
    *,
    drops: bool,
) -> Folded | None:
    """Commit one micro-batch; None if the lake has it already.

    The rows are written by Spark, in one job; a batch of one share is folded here, a larger one in
    a second job.

    Raises:
        LakeError: the lake failed, or has other records under that batch's number.
    """
    if is_committed(writer.lake, batch):
        return None
    records = write_records(writer, rows)

    def run_shares(shares: Sequence[Share]) -> None:
        if len(shares) == 1:
            fold_all(shares)
        else:
            spark.sparkContext.parallelize(shares, len(shares)).foreach(fold_share)

    return commit_batch(writer, records, batch, run_shares, drops=drops)


class _Stopped(Exception):
    """What Spark is told of a batch that failed, or was not to run; the run knows why."""


class _Sink:
    """What each micro-batch is given to; it lives in the thread that Spark calls back."""

    def __init__(
        self, spark: SparkSession, writer: LakeWriter, listener: Listener, *, drops: bool = False
    ) -> None:
        self._spark = spark
        self._writer = writer
        self._listener = listener
        self._drops = drops
        self.batches = self.records = 0
        self.error: BaseException | None = None
        self._stopped = threading.Event()
        self._works = threading.Lock()

    def stop(self) -> None:
        """Take no further batch."""
        self._stopped.set()

    def rest(self) -> None:
        """Wait for the batch that is at work: it needs the writer, and an interpreter that lives.

        Nobody else waits for it when Java is gone, and what it has begun it can mostly finish.
        """
        if self._works.acquire(timeout=_REST_SECONDS):
            self._works.release()

    def __call__(self, rows: DataFrame, number: int) -> None:
        with self._works:
            if self._stopped.is_set():
                # Of a batch whose function returns Spark notes that it ran.
                raise _Stopped
            self._take(rows, number)

    def _take(self, rows: DataFrame, number: int) -> None:
        began = time.monotonic()
        try:
            batch = batch_of(self._writer.lake, number)
            folded = fold_batch(self._spark, self._writer, rows, batch, drops=self._drops)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run tells it
            self.error = error
            # Spark looks through the text by a regular expression that a long one is too much for.
            raise _Stopped from None
        if folded is not None:
            self.batches += 1
            self.records += folded.records
            self._listener.on_batch(number, folded, time.monotonic() - began)


def _follow(
    spark: SparkSession, lake: Lake, options: RunOptions, sink: _Sink, asked: threading.Event
) -> None:
    """Run the stream until it has come to what was the end when it started."""
    query = (
        spark.readStream.format("taskq")
        .options(**options.of_source())
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(lake.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        while not asked.is_set() and not query.awaitTermination(_LOOK_SECONDS):
            pass
    except PySparkException as error:
        raise _reason(sink, error) from error
    finally:
        _stop(query, sink)


def _stop(query: StreamingQuery, sink: _Sink) -> None:
    sink.stop()
    try:
        if query.isActive:
            query.stop()
    finally:
        sink.rest()


def _reason(sink: _Sink, error: PySparkException) -> TaskqError:
    """Return what went wrong, without Spark's wrapping."""
    if isinstance(sink.error, TaskqError):
        return sink.error
    return failure(str(sink.error or error))
