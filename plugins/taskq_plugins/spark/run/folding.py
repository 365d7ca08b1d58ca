"""One micro-batch: what it changes in the base tables, in one commit.

Records are appended. Jobs and attempts come from a fold over the batch and the records of jobs that
were open before it (the table ``_open``), so a batch costs what is in it and what is open, whatever
the lake holds. What was written is read back from its files rather than kept in memory: the source
is decoded once, and a batch may be larger than the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset
from pyspark.sql import functions as F  # noqa: N812 - as all the world calls it

from taskq_plugins.spark.lake import OPEN, OVER, Change
from taskq_plugins.spark.lake.errors import CheckpointMismatch
from taskq_plugins.spark.lake.staging import PART_COLUMN
from taskq_plugins.spark.lake.store import OPEN_RECORDS, ORIGIN, POSITION
from taskq_plugins.spark.run.storage import read_staged, read_table, tune, write_table
from taskq_plugins.spark.run.tablenames import ATTEMPTS, JOBS, RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from taskq_plugins.spark.lake import Lake, LakeWriter, Manifest
    from taskq_plugins.spark.lake.manifest import Batch
    from taskq_plugins.spark.lake.staging import Staged

#: Replaced as a whole by each commit.
_REPLACED: Final = frozenset({OPEN})
_ALL: Final = frozenset({OPEN, OVER})
#: States that a carried record may bring a job in, and that nothing changes any more.
_OVER_STATES: Final = ("succeeded", "cancelled", "expired")
_JOB: Final = ("log_id", "job")
#: Files that the open records are written to.
_FILES: Final = 2
#: What is kept of a log's last record: how far its time has come.
_POSITION: Final = ("device", "segment", "offset", "epoch", "lsn", "timestamp", "ts_ns")


class Folds(NamedTuple):
    """The functions that make the base tables."""

    records: Callable[[DataFrame], DataFrame]
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
    records = write_table(writer, RECORDS, folds.records(rows))
    tune(spark, _rows(records) + manifest.table(OPEN_RECORDS).rows)
    told = _without_closed(spark, lake, manifest, records)
    if manifest.table(OPEN_RECORDS).schema:
        told = read_table(spark, lake, OPEN_RECORDS, manifest=manifest).unionByName(told)
    jobs = write_table(writer, JOBS, with_part(folds.jobs(told)), parts=True)
    jobs_now = read_staged(spark, lake, jobs)
    attempts = write_table(writer, ATTEMPTS, with_part(folds.attempts(jobs_now)), parts=True)
    still_open = read_staged(spark, lake, jobs, OPEN)
    kept = write_table(writer, OPEN_RECORDS, open_records(told, still_open))
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


def open_records(told: DataFrame, still_open: DataFrame) -> DataFrame:
    """The records that later batches need: those of open jobs and of clocks.

    Beside them two rows of each log that are no records: how far it was read, and from where.
    """
    is_clock = F.col("kind") == "clock"
    wanted = told.join(still_open.select(*_JOB), on=list(_JOB), how="left_semi")
    by_log = told.groupBy("log_id")
    last = by_log.agg(F.max_by(F.struct(*_POSITION), "lsn").alias("last"))
    first = by_log.agg(F.min_by(F.struct("device", "segment"), "segment").alias("first"))
    filled = last.select("log_id", "last.*", F.lit(POSITION).alias("kind"))
    filled = filled.unionByName(
        first.select("log_id", "first.*", F.lit(ORIGIN).alias("kind")), allowMissingColumns=True
    )
    clocks = told.where(is_clock)
    kept = wanted.unionByName(clocks).unionByName(filled, allowMissingColumns=True)
    return kept.select(*told.columns).coalesce(_FILES)


def _without_closed(
    spark: SparkSession, lake: Lake, manifest: Manifest, records: Staged
) -> DataFrame:
    """The batch's records, but for those that carry a job which the lake holds as over.

    Compaction writes finished jobs again that must be kept. Of one whose first records were read in
    an earlier batch that would make a second row; of one that was finished before the log's oldest
    segment that is left, it is the first that we hear.
    """
    rows = read_staged(spark, lake, records)
    closed = _closed(lake, manifest, records)
    if closed is None or not closed.num_rows:
        return rows
    known = spark.createDataFrame(closed)
    # A job without a number is in no such pair, and a left anti join keeps it.
    return rows.join(F.broadcast(known), on=list(_JOB), how="left_anti").select(*rows.columns)


def _closed(lake: Lake, manifest: Manifest, records: Staged) -> pa.Table | None:
    """Those jobs, as (log_id, job); None where there can be none.

    It costs two columns of the jobs that are over, in batches behind a compaction alone.
    """
    if not records.files or not manifest.table(JOBS).schema:
        return None
    paths = [str(lake.path / file.path) for file in records.files]
    carried = (pc.field("kind") == "carried") & pc.field("state").isin(_OVER_STATES)
    told = dataset.dataset(paths, format="parquet").to_table(columns=list(_JOB), filter=carried)
    if not told.num_rows:
        return None
    numbers = pc.min_max(told["job"])
    among = pc.field("log_id").isin(pc.unique(told["log_id"])) & (
        (pc.field("job") >= numbers["min"]) & (pc.field("job") <= numbers["max"])
    )
    over = lake.dataset(JOBS, OVER, manifest).to_table(columns=list(_JOB), filter=among)
    found = over.join(told, keys=list(_JOB), join_type="left semi")
    return found.group_by(list(_JOB)).aggregate([])


def _rows(staged: Staged, part: str | None = None) -> int:
    return sum(file.rows for file in staged.files if part in {None, file.part})
