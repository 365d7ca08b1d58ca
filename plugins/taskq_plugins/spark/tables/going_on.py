"""Jobs batch by batch: what must be kept of the records for the batches to come.

However a log's records are cut into batches, folding one after the other with what was kept of
those before gives the rows that folding all at once gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from taskq.core.records import CARRYING_KINDS, Kind
from taskq_plugins.spark.tables.jobs import BEGINS, CONCERNING, TOLD, jobs
from taskq_plugins.spark.tables.stories import told, told_any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: ``kind`` of the row that says how far a log was read: ``segment`` is the first that was ever
#: seen of it, ``lsn`` and ``ts_ns`` are of the last record.
POSITION: Final = "position"

_KEY: Final = ["log_id", "job"]
#: What the position tells of the last record.
_LAST: Final = ("device", "epoch", "lsn", "timestamp", "ts_ns")
_CARRIED: Final = told(Kind.CARRIED)
_CARRYING: Final = told_any(CARRYING_KINDS)


class Folded(NamedTuple):
    """What a batch makes of the tables; nothing of it is worked out yet.

    Attributes:
        jobs_over: rows of jobs that nothing changes any more, for good.
        jobs_open: rows that stand until the next batch, which tells all of them anew.
        open_records: for the next batch.
    """

    jobs_over: DataFrame
    jobs_open: DataFrame
    open_records: DataFrame


def fold_batch(open_records: DataFrame | None, batch: DataFrame) -> Folded:
    """Fold the records of a batch, and those that the batch before it left.

    Args:
        open_records: as the batch before returned them; None for the first.
        batch: the next records of each log, columns DETAILS. Both are read several times: let them
            be files, or persisted.
    """
    told_records = batch if open_records is None else open_records.unionByName(batch)
    told_jobs = jobs(told_records)
    return Folded(
        told_jobs.where("is_over"),
        told_jobs.where("not is_over"),
        keep_open(told_records, told_jobs.where("not is_over")),
    )


def keep_open(records: DataFrame, jobs_open: DataFrame) -> DataFrame:
    """The rows that the next batches need of these records.

    They are: of jobs that are not over, the record that brought them and all that happened since;
    the records of the clock; one row of kind "position" for each log; and one of kind "told" for
    each job that began with a record that carries it and is over or purged, as long as compaction
    may write it again. That a job which began with its own ENQUEUED record was told needs no row:
    its number says that it belongs to what was read.

    Args:
        records: what was folded: the rows kept before, and the batch.
        jobs_open: log_id and job of the jobs that are not over.

    Returns:
        The same columns.
    """
    open_jobs = jobs_open.select(*_KEY)
    logs = records.groupBy("log_id").agg(
        F.min("segment").alias("first_segment"),
        F.expr(f"max(if(kind = {told(Kind.COMPACTED)}, token, 0))").alias("floor"),
        F.expr(f"max_by(struct({', '.join(_LAST)}), if(ts_ns is null, null, lsn))").alias("last"),
    )
    ordinary = records.where(f"kind in ({CONCERNING}) and kind <> {_CARRIED}")
    # Of the records that carry a job the first may have brought it; none behind tells anything.
    carried = (
        records.where(BEGINS)
        .where(f"kind in ({_CARRYING})")
        .join(F.broadcast(logs.select("log_id", "first_segment", "floor")), "log_id")
        .where("job < first_segment")
    )
    order = Window.partitionBy(*_KEY).orderBy("lsn")
    bringing = carried.where(f"kind = {_CARRIED}").withColumn("turn", F.row_number().over(order))
    of_jobs = ordinary.unionByName(bringing.where("turn = 1").select(*records.columns))
    parts = [
        of_jobs.join(open_jobs, _KEY, "left_semi"),
        records.where(f"kind = {told(Kind.CLOCK)}"),
        _told_rows(records, carried, logs).join(open_jobs, _KEY, "left_anti"),
        logs.selectExpr(
            "log_id", "first_segment as segment", "last.*", f"'{POSITION}' as kind"
        ),
    ]  # fmt: skip
    kept = parts[0]
    for part in parts[1:]:
        kept = kept.unionByName(part, allowMissingColumns=True)
    return kept.select(*records.columns)


def _told_rows(records: DataFrame, carried: DataFrame, logs: DataFrame) -> DataFrame:
    """Jobs that were told and may be written again: not those that a compaction passed since."""
    seen = carried.select(*_KEY, "lsn", "floor")
    kept = records.where(f"kind = '{TOLD}'").select(*_KEY, "lsn")
    before = kept.join(F.broadcast(logs.select("log_id", "floor")), "log_id")
    last = (
        seen.unionByName(before)
        .groupBy(*_KEY)
        .agg(F.max("lsn").alias("lsn"), F.max("floor").alias("floor"))
    )
    return last.where("lsn >= floor").selectExpr(*_KEY, "lsn", f"'{TOLD}' as kind")
