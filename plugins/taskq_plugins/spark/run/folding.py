"""One micro-batch: what it changes in the base tables, one commit a table.

Records are appended. Jobs and attempts come from a fold over the batch and the records of jobs that
were open before it (the table ``_open``), so a batch costs what is in it and what is open, whatever
the lake holds. What was written is read back from its files rather than kept in memory: the source
is decoded once, and a batch may be larger than the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as all the world calls it

from taskq_plugins.spark.lake import OPEN, OVER, Change
from taskq_plugins.spark.lake.errors import CheckpointMismatch
from taskq_plugins.spark.lake.files import DATE, PART_COLUMN
from taskq_plugins.spark.lake.store import OPEN_RECORDS
from taskq_plugins.spark.run.storage import read_files, read_staged, tune, write_table
from taskq_plugins.spark.run.tablenames import ATTEMPTS, JOBS, RECORDS
from taskq_plugins.spark.tables.going_on import keep_open

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from taskq_plugins.spark.lake import Batch, Lake, LakeWriter
    from taskq_plugins.spark.lake.files import Staged

#: Files that the open records are written to.
_FILES: Final = 2
#: The day of a row, UTC: that of the record, of the enqueue, and of the attempt's beginning.
_DAYS: Final = {
    RECORDS: "cast(timestamp as date)",
    JOBS: "cast(enqueued_at as date)",
    ATTEMPTS: "cast(coalesce(started_at, ended_at) as date)",
}


class Folds(NamedTuple):
    """The functions that make the base tables out of the records.

    Those are kept as the source gives them: it gives each once, and refuses a log that is there
    twice, so looking for copies (``tables.records``) would cost a sort of all payloads for nothing.
    """

    jobs: Callable[[DataFrame], DataFrame]
    attempts: Callable[[DataFrame], DataFrame]


class Folded(NamedTuple):
    """What a batch brought."""

    records: int
    jobs_over: int
    jobs_open: int


def fold_batch(
    spark: SparkSession, writer: LakeWriter, folds: Folds, rows: DataFrame, batch: Batch
) -> Folded | None:
    """Commit one micro-batch; None if the lake has it already.

    Whoever was killed between two tables' commits does all of it again, and the tables that have
    the batch pass it over.

    Raises:
        CheckpointMismatch: the lake has other records under that batch's number.
    """
    lake = writer.lake
    if _is_committed(lake, batch):
        return None
    before = lake.pinned(batch.number - 1)
    records = write_table(writer, RECORDS, _dated(RECORDS, rows))
    kept_rows = sum(file.rows for file in before.data_files(OPEN_RECORDS))
    tune(spark, _rows(records) + kept_rows)
    told = read_staged(spark, lake, RECORDS, records)
    if before.has(OPEN_RECORDS):
        told = read_files(spark, before, OPEN_RECORDS).unionByName(told)
    jobs = write_table(writer, JOBS, with_part(_dated(JOBS, folds.jobs(told))))
    jobs_now = read_staged(spark, lake, JOBS, jobs)
    attempts = write_table(writer, ATTEMPTS, with_part(_dated(ATTEMPTS, folds.attempts(jobs_now))))
    still_open = read_staged(spark, lake, JOBS, jobs, OPEN)
    kept = write_table(writer, OPEN_RECORDS, keep_open(told, still_open).coalesce(_FILES))
    # What jobs has, all have: it is last.
    staged = {RECORDS: records, ATTEMPTS: attempts, OPEN_RECORDS: kept, JOBS: jobs}
    for table, found in staged.items():
        writer.commit(table, _change(before, table, found), batch, dates=table in _DAYS)
    return Folded(_rows(records), _rows(jobs, OVER), _rows(jobs, OPEN))


def _change(before: Lake, table: str, staged: Staged) -> Change:
    """The new files in place of those whose rows were open; all of the open records are."""
    files = before.data_files(table)
    gone = tuple(file for file in files if table == OPEN_RECORDS or file.part == OPEN)
    return Change(staged.files, gone, staged.schema)


def _dated(table: str, frame: DataFrame) -> DataFrame:
    return frame.withColumn(DATE, F.expr(_DAYS[table]))


def _is_committed(lake: Lake, batch: Batch) -> bool:
    last = lake.batch()
    if last is None:
        return False
    if last.stream != batch.stream:
        raise CheckpointMismatch(lake.checkpoint, "is not the one that the tables were filled from")
    if batch.number > last.number:
        return False
    if batch.number == last.number and batch.offsets != last.offsets:
        raise CheckpointMismatch(
            lake.checkpoint, f"plans other records for batch {batch.number} than the tables hold"
        )
    return True


def with_part(frame: DataFrame) -> DataFrame:
    """With a column that says whether a row can still change."""
    part = F.when(F.col("is_over"), F.lit(OVER)).otherwise(F.lit(OPEN))
    return frame.withColumn(PART_COLUMN, part)


def _rows(staged: Staged, part: str | None = None) -> int:
    return sum(file.rows for file in staged.files if part in {None, file.part})
