"""Jobs batch by batch: what must be kept of the records for the batches to come.

A batch is folded together with what was kept of those before it::

    told = kept.unionByName(batch)
    told_jobs = jobs(told)              # rows with is_over stand for good, the others until then
    kept = keep_open(told, told_jobs.where("not is_over"))

However a log's records are cut into batches, that gives the rows that folding all at once gives.
Nothing is worked out twice if each of these is in files, or persisted, before the next is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from taskq.core.records import CARRYING_KINDS, Kind
from taskq_plugins.spark.tables.jobs import BEGINS, CONCERNING, TOLD, WAS_READ, stretches
from taskq_plugins.spark.tables.stories import told, told_any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: ``kind`` of a row that stands for a stretch of a log that was read: from the beginning of
#: ``segment`` up to ``lsn``, whose record was of ``ts_ns``.
POSITION: Final = "position"

_KEY: Final = ["log_id", "job"]
_CARRIED: Final = told(Kind.CARRIED)
_CARRYING: Final = told_any(CARRYING_KINDS)


def keep_open(records: DataFrame, jobs_open: DataFrame) -> DataFrame:
    """The rows that the next batches need of these records.

    They are: of jobs that are not over, the record that brought them and all that happened since;
    the records of the clock; one row of kind "position" for each stretch of a log that was read;
    and one of kind "told" for each job that began with a record that carries it and is over or
    purged, as long as compaction may write it again. That a job which began with its own ENQUEUED
    record was told needs no row: its number lies in what was read.

    Args:
        records: what was folded: the rows kept before, and the batch.
        jobs_open: log_id and job of the jobs that are not over.

    Returns:
        The same columns.
    """
    open_jobs = jobs_open.select(*_KEY)
    read = stretches(records)
    logs = read.groupBy("log_id").agg(
        F.expr("collect_list(struct(segment, last_lsn))").alias("segments")
    )
    ordinary = records.where(f"kind in ({CONCERNING}) and kind <> {_CARRIED}")
    # Of the records that carry a job the first may have brought it; none behind tells anything.
    carried = (
        records.where(f"({BEGINS}) and kind in ({_CARRYING})")
        .join(F.broadcast(logs), "log_id")
        .where(f"not ({WAS_READ})")
    )
    order = Window.partitionBy(*_KEY).orderBy("lsn")
    bringing = carried.where(f"kind = {_CARRIED}").withColumn("turn", F.row_number().over(order))
    of_jobs = ordinary.unionByName(bringing.where("turn = 1").select(*records.columns))
    parts = [
        of_jobs.join(open_jobs, _KEY, "left_semi"),
        records.where(f"kind = {told(Kind.CLOCK)}"),
        _told_rows(records, carried).join(open_jobs, _KEY, "left_anti"),
        _positions(read),
    ]
    kept = parts[0]
    for part in parts[1:]:
        kept = kept.unionByName(part, allowMissingColumns=True)
    return kept.select(*records.columns)


def _told_rows(records: DataFrame, carried: DataFrame) -> DataFrame:
    """Jobs that were told and may be written again: not those that a compaction passed since."""
    told_before = records.where(f"kind = '{TOLD}'").select(*_KEY, "lsn")
    last = (
        told_before.unionByName(carried.select(*_KEY, "lsn"))
        .groupBy(*_KEY)
        .agg(F.max("lsn").alias("lsn"))
    )
    floors = (
        records.where(f"kind = {told(Kind.COMPACTED)}")
        .groupBy("log_id")
        .agg(F.max("token").alias("floor"))
    )
    return (
        last.join(F.broadcast(floors), "log_id", "left")
        .where("floor is null or lsn >= floor")
        .selectExpr(*_KEY, "lsn", f"'{TOLD}' as kind")
    )


def _positions(read: DataFrame) -> DataFrame:
    """One row for each stretch of a log that was read without a gap."""
    before = Window.partitionBy("log_id").orderBy("segment")
    until = F.max("last_lsn").over(before.rowsBetween(Window.unboundedPreceding, -1))
    is_new = F.when(F.col("segment") <= until + 1, 0).otherwise(1)
    numbered = read.withColumn("is_new", is_new).withColumn("stretch", F.sum("is_new").over(before))
    merged = numbered.groupBy("log_id", "stretch").agg(
        F.min("segment").alias("segment"),
        F.max("last_lsn").alias("lsn"),
        F.max_by("last", "last_lsn").alias("last"),
    )
    return merged.selectExpr("log_id", "segment", "lsn", "last.*", f"'{POSITION}' as kind")
