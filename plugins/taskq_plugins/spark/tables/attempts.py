"""One row per attempt of a job: one delivery to a worker, as the Python fold tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OF_JOB: Final = ("device", "log_id", "job_id", "job", "queue", "task", "key", "is_over")
_COLUMNS: Final = (
    "device", "log_id", "job_id", "job", "queue", "task", "key",
    "one.number", "one.owner", "one.started_ns", "one.ended_ns",
    "timestamp_micros(one.started_ns div 1000) as started_at",
    "timestamp_micros(one.ended_ns div 1000) as ended_at",
    "one.outcome", "one.reason", "one.wait_ns", "one.run_ns", "is_over",
)  # fmt: skip


def attempts(jobs: DataFrame) -> DataFrame:
    """The attempts of these jobs, of each the latest hundred.

    ``wait_ns`` is the time from when a worker could have claimed the job until one did. It counts
    from the enqueue, or from when the job was due if that was later; behind an attempt that was
    retried or given back, from its end or from the end of its backoff; behind a requeue, from
    there. A job that compaction wrote again waits since the moment that its record tells. Of
    attempts that only such a record tells of, the backoff is not known: they count from the end of
    the attempt before, the first from the enqueue.

    ``run_ns`` is the time from claim to end. Neither contains what the device's clock was set by
    meanwhile, as far as the log says so: a clock that was set while no process had the log open
    looks as if time had passed. Both are at least 0, and null where they are not known: while the
    job runs, and where earlier attempts or their ends were lost or left out.

    Args:
        jobs: as ``schemas.JOBS``.

    Returns:
        Columns as ``schemas.ATTEMPTS``.
    """
    return jobs.selectExpr(*_OF_JOB, "explode(attempts) as one").selectExpr(*_COLUMNS)
