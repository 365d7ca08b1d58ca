"""Work that was done more than once: keys that ran on several devices.

A key keeps a job from being enqueued twice in one log. Nothing keeps two devices from doing the
same work, each in its own log, and this table is where it shows. A job counts once it was claimed;
those that never ran did no work.

=================  ======  =======================================================================
column             type    meaning
=================  ======  =======================================================================
queue, key         -       the key within its queue, as a log has it; key is binary
tasks              list    names of the tasks, in order, at most 20
devices            long    devices on which it ran: at least 2
jobs               long    jobs that ran
succeeded          long    those among them that succeeded
first_at, last_at  time    the first and the last of the jobs' first claims, by the devices' clocks
runs               list    the first run on each device: device, job_id, started_at and jobs (how
                           many ran there), the earliest first, at most 20
=================  ======  =======================================================================

A device that was reinstalled has two logs under one name, and counts as one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from taskq_plugins.spark.tables.moments import timestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TASKS_MAX: Final = 20
RUNS_MAX: Final = 20
DEVICES_MIN: Final = 2
_SHOWN: Final = (
    f"transform(slice(runs, 1, {RUNS_MAX}), one -> struct(one.device, one.job_id, "
    f"timestamp_micros(one.first_started_ns div 1000) as started_at, one.jobs))"
)


def duplicates(jobs: DataFrame) -> DataFrame:
    """One row per key that ran on two devices or more.

    Args:
        jobs: ``schemas.JOBS``.
    """
    ran = jobs.where(F.col("key").isNotNull() & F.col("first_started_ns").isNotNull())
    # By device first, so that no list is longer than there are devices.
    by_device = ran.groupBy("queue", "key", "device").agg(
        F.collect_set("task").alias("tasks"),
        F.count("*").alias("jobs"),
        F.sum(F.when(F.col("state") == "succeeded", 1).otherwise(0)).alias("succeeded"),
        F.max("first_started_ns").alias("last_ns"),
        F.min(F.struct("first_started_ns", "job_id")).alias("first"),
    )
    run = F.struct("first.first_started_ns", "device", F.col("first.job_id"), "jobs")
    by_key = (
        by_device.groupBy("queue", "key")
        .agg(
            F.array_distinct(F.flatten(F.collect_list("tasks"))).alias("tasks"),
            F.count("*").alias("devices"),
            F.sum("jobs").alias("jobs"),
            F.sum("succeeded").alias("succeeded"),
            F.max("last_ns").alias("last_ns"),
            F.sort_array(F.collect_list(run)).alias("runs"),
        )
        .where(F.col("devices") >= DEVICES_MIN)
    )
    return by_key.select(
        "queue",
        "key",
        F.slice(F.sort_array("tasks"), 1, TASKS_MAX).alias("tasks"),
        "devices",
        "jobs",
        "succeeded",
        timestamp("runs[0].first_started_ns").alias("first_at"),
        timestamp("last_ns").alias("last_at"),
        F.expr(_SHOWN).alias("runs"),
    )
