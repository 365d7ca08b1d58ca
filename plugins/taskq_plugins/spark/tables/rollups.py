"""Counts, rates and spreads of each device by the hour.

A row is one hour (UTC, by the device's own clock) of one task in one queue. It tells of three
things, each in the hour in which it happened: jobs enqueued, jobs settled, attempts ended. So a job
that waits over midnight counts in two rows, and a row changes only when a job or an attempt does
that counts in its hour. Jobs that were purged are gone from here as well.

=======================  ======  ==================================================================
column                   type    meaning
=======================  ======  ==================================================================
device                   string
queue, task              string  task is null for jobs that were put as bytes
hour                     time    its start
enqueued                 long    jobs enqueued in the hour
succeeded, dead,         long    jobs settled in the hour that are in that state now
cancelled, expired
settled                  long    the sum of the four
attempts_succeeded,      long    attempts that ended in the hour, by outcome: lost ones ended with
attempts_retried,                their worker's process, released ones were given back and do not
attempts_dead,                   count as attempts
attempts_released,
attempts_lost
attempts_ended           long    all that ended in the hour
failure_rate             double  of attempts: (retried + died + lost) / (these + succeeded); null
                                 when there were none
dead_rate                double  of jobs: dead / (dead + succeeded); null when there were none
wait_p50_seconds,        double  of the attempts that ended in the hour (released ones too): how
wait_p95_seconds,                long each waited from when it could run until it was claimed;
wait_p99_seconds,                null when none is known
wait_max_seconds
run_p50_seconds, ...     double  likewise from the claim to the end
=======================  ======  ==================================================================

A percentile lies at rank p * (n - 1) of the sorted values, between two ranks in proportion: as
``numpy.percentile`` and Spark's ``percentile`` have it. It is exact; those of a fleet are to be
taken of the raw values in ``attempts``, not of its devices' percentiles. Negative spans, which a
clock that was set back leaves, are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from taskq_plugins.spark.tables.moments import HOUR_NS, SECOND_NS, hour_number

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyspark.sql import Column, DataFrame

JOB_STATES: Final = ("succeeded", "dead", "cancelled", "expired")
ATTEMPT_OUTCOMES: Final = ("succeeded", "retried", "dead", "released", "lost")
#: Outcomes that count as failures; a released attempt counts as nothing.
FAILED_OUTCOMES: Final = ("retried", "dead", "lost")
SPANS: Final = ("wait", "run")
PERCENTILES: Final = (50, 95, 99)
_NAMES: Final = ("device", "queue", "task")
_COUNTS: Final = (
    "enqueued",
    *JOB_STATES,
    "attempts_ended",
    *(f"attempts_{name}" for name in ATTEMPT_OUTCOMES),
)


def rollup_hour(
    jobs: DataFrame, attempts: DataFrame, hours: Collection[int] | None = None
) -> DataFrame:
    """One row per device, queue, task and hour in which anything happened.

    Args:
        jobs: ``schemas.JOBS``.
        attempts: ``schemas.ATTEMPTS``.
        hours: only these, as numbers of hours since 1970; all if None. Given all jobs and attempts
            that touch these hours, the rows are those of the whole table.
    """
    # One pass: each thing that happened is a row with a 1 where it counts, then all are added.
    events = _union(
        [
            _events(jobs, "enqueued_ns", hours, {"enqueued": F.lit(1)}),
            _events(jobs, "settled_ns", hours, {s: _one("state", s) for s in JOB_STATES}),
            _events(
                attempts,
                "ended_ns",
                hours,
                {"attempts_ended": F.lit(1)}
                | {f"attempts_{name}": _one("outcome", name) for name in ATTEMPT_OUTCOMES},
                {name: _span(name) for name in SPANS},
            ),
        ]
    )
    sums = [F.sum(name).alias(name) for name in _COUNTS]
    # Sorted lists took a quarter of the time of Spark's percentile() over 2 M values, and less
    # memory: that one counts each distinct value in a hash map of objects.
    values = [F.sort_array(F.collect_list(name)).alias(name) for name in SPANS]
    grouped = events.groupBy(*_NAMES, "hour").agg(*sums, *values)
    return grouped.select(
        *_NAMES,
        F.timestamp_seconds(F.col("hour") * F.lit(3_600)).alias("hour"),
        "enqueued",
        *JOB_STATES,
        _added(JOB_STATES).alias("settled"),
        *(f"attempts_{name}" for name in ATTEMPT_OUTCOMES),
        "attempts_ended",
        _rate([f"attempts_{name}" for name in FAILED_OUTCOMES], "attempts_succeeded").alias(
            "failure_rate"
        ),
        _rate(["dead"], "succeeded").alias("dead_rate"),
        *(column for name in SPANS for column in _spread(name)),
    )


def _events(
    rows: DataFrame,
    moment: str,
    hours: Collection[int] | None,
    counts: dict[str, Column],
    spans: dict[str, Column] | None = None,
) -> DataFrame:
    chosen = rows.where(F.col(moment).isNotNull())
    if hours is not None:
        # The range alone is what Parquet's statistics can pass over files by.
        first, last = min(hours, default=0), max(hours, default=-1)
        chosen = chosen.where(
            (F.col(moment) >= first * HOUR_NS) & (F.col(moment) < (last + 1) * HOUR_NS)
        )
        chosen = chosen.where(hour_number(moment).isin(sorted(hours)))
    return chosen.select(
        *_NAMES,
        hour_number(moment).alias("hour"),
        *(counts.get(name, F.lit(0)).cast("long").alias(name) for name in _COUNTS),
        *((spans or {}).get(name, F.lit(None)).cast("long").alias(name) for name in SPANS),
    )


def _one(column: str, value: str) -> Column:
    return F.when(F.col(column) == value, 1).otherwise(0)


def _span(name: str) -> Column:
    """A span without the negative ones."""
    column = F.col(f"{name}_ns")
    return F.when(column >= 0, column)


def _rate(bad: list[str], good: str) -> Column:
    total = _added([*bad, good])
    return F.when(total > 0, _added(bad) / total)


def _added(names: Iterable[str]) -> Column:
    first, *others = (F.col(name) for name in names)
    for other in others:
        first += other
    return first


def _spread(name: str) -> list[Column]:
    columns = [
        (_at_rank(name, percent) / SECOND_NS).alias(f"{name}_p{percent}_seconds")
        for percent in PERCENTILES
    ]
    longest = F.get(name, F.size(name) - 1) / SECOND_NS
    return [*columns, longest.alias(f"{name}_max_seconds")]


def _at_rank(name: str, percent: int) -> Column:
    """A percentile of a sorted list, null of an empty one."""
    # In whole numbers, so that a rank that is whole is not missed by the rounding of p.
    scaled = (F.size(name) - 1) * F.lit(percent)
    below = F.floor(scaled / 100).cast("int")
    low = F.get(name, below)
    high = F.coalesce(F.get(name, below + 1), low)
    return low + (high - low) * ((scaled % 100) / 100)


def _union(parts: list[DataFrame]) -> DataFrame:
    first, *others = parts
    for other in others:
        first = first.unionByName(other)
    return first
