"""How far each device is behind, as one looks from the hub.

A row is one task log. Times in ``*_at`` with "record" or "waiting" in their names are by the
device's clock, times of arrival by the hub's, which is trusted.

======================  ======  ====================================================================
column                  type    meaning
======================  ======  ====================================================================
device, log_id          string
logs_of_device          long    logs under this device's name; of a reinstalled one 2 or more
is_current              bool    whether it is the one of these that arrived last
last_record_at          time    newest record: of the segments, or else of the jobs; null: none read
last_arrival_at         time    when a segment of it was last written on the hub; null: no segment
record_lag_seconds      double  from the newest record to ``as_of``; negative: it is in the future
arrival_lag_seconds     double  from the last arrival to ``as_of``
clock_skew_seconds      double  see below
clock                   string  ahead, ok, behind or late; null: not known
waiting, scheduled,     long    jobs in the states ready, scheduled, running and dead
running, dead
oldest_waiting_at       time    when the oldest of the jobs that are ready was enqueued
oldest_waiting_seconds  double  from then to ``as_of``
segments                long    segment files here
size_bytes              long    bytes of them
missing_segments        long    gaps between them
missing_from            list    the first lsn of each gap, in order, at most 20
======================  ======  ====================================================================

**Clock skew.** A record cannot arrive before it is written. So for each segment the device's clock
is ahead of the hub's by at least (time of its last record - time of its arrival), and the largest
such difference over its segments is the best that the hub can know. Above 60 s the device's clock
is ahead, that is certain. Down to an hour below it is "ok": a device that has little to do and is
heard of now and then looks like this. Below that the clock is behind, or all that the device sent
took so long to arrive; the two cannot be told apart from here ("behind or late").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from taskq_plugins.spark.tables.moments import SECOND_NS, timestamp

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MISSING_MAX: Final = 20
#: Differences of clocks that are no news: NTP keeps far closer, devices without it do not.
AHEAD_SECONDS_MAX: Final = 60
#: How long a record may take to arrive before it is told.
ARRIVAL_SECONDS_MAX: Final = 3_600
_LOG: Final = ("device", "log_id")
_BACKLOG: Final = {
    "waiting": "ready",
    "scheduled": "scheduled",
    "running": "running",
    "dead": "dead",
}


def device_lag(jobs: DataFrame, segments: DataFrame, as_of_ns: int) -> DataFrame:
    """One row per task log of the fleet (columns: see the module's docstring).

    Args:
        jobs: ``schemas.JOBS``.
        segments: ``schemas.SEGMENTS``: the segment files on the hub, and the gaps between them.
        as_of_ns: the hub's time when it was looked at, in nanoseconds.
    """
    logs = _segments(segments).join(_jobs(jobs), list(_LOG), "full_outer")
    record_ns = F.coalesce("segment_record_ns", "job_record_ns")
    logs = logs.withColumn("last_record_ns", record_ns)
    device = Window.partitionBy("device")
    newest = device.orderBy(
        F.desc_nulls_last("last_arrival_ns"), F.desc_nulls_last("last_record_ns"), "log_id"
    )
    return logs.select(
        *_LOG,
        F.count("*").over(device).alias("logs_of_device"),
        (F.row_number().over(newest) == 1).alias("is_current"),
        timestamp("last_record_ns").alias("last_record_at"),
        timestamp("last_arrival_ns").alias("last_arrival_at"),
        _seconds_since("last_record_ns", as_of_ns).alias("record_lag_seconds"),
        _seconds_since("last_arrival_ns", as_of_ns).alias("arrival_lag_seconds"),
        (F.col("skew_ns") / SECOND_NS).alias("clock_skew_seconds"),
        _clock(F.col("skew_ns")).alias("clock"),
        *(F.coalesce(name, F.lit(0)).cast("long").alias(name) for name in _BACKLOG),
        timestamp("oldest_ns").alias("oldest_waiting_at"),
        _seconds_since("oldest_ns", as_of_ns).alias("oldest_waiting_seconds"),
        *(
            F.coalesce(name, F.lit(0)).cast("long").alias(name)
            for name in ("segments", "size_bytes", "missing_segments")
        ),
        F.coalesce("missing_from", F.expr("cast(array() as array<bigint>)")).alias("missing_from"),
    )


def _segments(segments: DataFrame) -> DataFrame:
    here = ~F.coalesce("is_missing", F.lit(False))
    gaps = F.when(~here, F.col("segment"))
    return segments.groupBy(*_LOG).agg(
        F.max("last_record_ns").alias("segment_record_ns"),
        F.max(F.when(here, F.col("modified_ns"))).alias("last_arrival_ns"),
        F.max(F.when(here, F.col("last_record_ns") - F.col("modified_ns"))).alias("skew_ns"),
        F.sum(here.cast("long")).alias("segments"),
        F.sum(F.when(here, F.col("size_bytes"))).alias("size_bytes"),
        F.count(gaps).alias("missing_segments"),
        F.slice(F.sort_array(F.collect_list(gaps)), 1, MISSING_MAX).alias("missing_from"),
    )


def _jobs(jobs: DataFrame) -> DataFrame:
    ended = F.expr("array_max(transform(attempts, one -> greatest(one.started_ns, one.ended_ns)))")
    return jobs.groupBy(*_LOG).agg(
        F.max(F.greatest("enqueued_ns", "settled_ns", ended)).alias("job_record_ns"),
        *(
            F.sum((F.col("state") == state).cast("long")).alias(name)
            for name, state in _BACKLOG.items()
        ),
        F.min(F.when(F.col("state") == "ready", F.col("enqueued_ns"))).alias("oldest_ns"),
    )


def _clock(skew_ns: Column) -> Column:
    return (
        F.when(skew_ns > AHEAD_SECONDS_MAX * SECOND_NS, "ahead")
        .when(skew_ns >= -ARRIVAL_SECONDS_MAX * SECOND_NS, "ok")
        .when(skew_ns.isNotNull(), "behind or late")
    )


def _seconds_since(name: str, as_of_ns: int) -> Column:
    return (F.lit(as_of_ns) - F.col(name)) / SECOND_NS
