"""One micro-batch: what it changes in the base tables, in one commit.

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
from taskq_plugins.spark.lake.staging import PART_COLUMN
from taskq_plugins.spark.lake.store import OPEN_RECORDS
from taskq_plugins.spark.run.storage import read_staged, read_table, tune, write_table
from taskq_plugins.spark.run.tablenames import ATTEMPTS, JOBS, RECORDS
from taskq_plugins.spark.tables.going_on import keep_open

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from taskq_plugins.spark.lake import Lake, LakeWriter, Manifest
    from taskq_plugins.spark.lake.manifest import Batch
    from taskq_plugins.spark.lake.staging import Staged

#: Replaced as a whole by each commit.
_REPLACED: Final = frozenset({OPEN})
_ALL: Final = frozenset({OPEN, OVER})
#: Files that the open records are written to.
_FILES: Final = 2


class Folds(NamedTuple):
    """The functions that make the base tables out of the records.

    Those are kept as the source gives them: it gives each once, and refuses a log that is there
    twice, so looking for copies (``tables.records``) would cost a sort of all payloads for nothing.
    """

    jobs: Callable[[DataFrame], DataFrame]
    attempts: Callable[[DataFrame], DataFrame]


class Folded(NamedTuple):
    """What a batch brought."""

    manifest: Manifest
    records: int
    jobs_over: int
    jobs_open: int


def fold_batch(
    spark: SparkSession, writer: LakeWriter, folds: Folds, rows: DataFrame, batch: Batch
) -> Folded | None:
    """Commit one micro-batch; None if the lake has it already.

    Raises:
        CheckpointMismatch: the lake has other records under that batch's number.
    """
    lake = writer.lake
    manifest = lake.manifest()
    if _is_committed(lake, manifest, batch):
        return None
    records = write_table(writer, RECORDS, rows)
    tune(spark, _rows(records) + manifest.table(OPEN_RECORDS).rows)
    told = read_staged(spark, lake, records)
    if manifest.table(OPEN_RECORDS).schema:
        told = read_table(spark, lake, OPEN_RECORDS, manifest=manifest).unionByName(told)
    jobs = write_table(writer, JOBS, with_part(folds.jobs(told)), parts=True)
    jobs_now = read_staged(spark, lake, jobs)
    attempts = write_table(writer, ATTEMPTS, with_part(folds.attempts(jobs_now)), parts=True)
    still_open = read_staged(spark, lake, jobs, OPEN)
    kept = write_table(writer, OPEN_RECORDS, keep_open(told, still_open).coalesce(_FILES))
    changes = {
        RECORDS: Change(records.files, schema=records.schema),
        JOBS: Change(jobs.files, _REPLACED, schema=jobs.schema),
        ATTEMPTS: Change(attempts.files, _REPLACED, schema=attempts.schema),
        OPEN_RECORDS: Change(kept.files, _ALL, schema=kept.schema),
    }
    after = writer.commit(changes, batch=batch)
    return Folded(after, _rows(records), _rows(jobs, OVER), _rows(jobs, OPEN))


def _is_committed(lake: Lake, manifest: Manifest, batch: Batch) -> bool:
    last = manifest.batch
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
