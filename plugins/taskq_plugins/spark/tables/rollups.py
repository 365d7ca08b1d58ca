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
``numpy.percentile`` has it. It is exact; those of a fleet are to be
taken of the raw values in ``attempts``, not of its devices' percentiles. Negative spans, which a
clock that was set back leaves, are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq_plugins.spark.tables.moments import HOUR_NS, at_hours, whole_hours

if TYPE_CHECKING:
    from collections.abc import Collection

    import duckdb
    import pyarrow as pa

JOB_STATES: Final = ("succeeded", "dead", "cancelled", "expired")
ATTEMPT_OUTCOMES: Final = ("succeeded", "retried", "dead", "released", "lost")
#: Outcomes that count as failures; a released attempt counts as nothing.
FAILED_OUTCOMES: Final = ("retried", "dead", "lost")
SPANS: Final = ("wait", "run")
PERCENTILES: Final = (50, 95, 99)
_EVENTS: Final = """
    SELECT device, queue, task, enqueued_ns AS ns, 'enqueued' AS what, NULL::BIGINT AS wait_ns,
        NULL::BIGINT AS run_ns FROM jobs
    UNION ALL
    SELECT device, queue, task, settled_ns, state, NULL, NULL FROM jobs
    UNION ALL
    SELECT device, queue, task, ended_ns, 'attempt ' || coalesce(outcome, ''), wait_ns, run_ns
    FROM attempts
"""


def rollup_hour(duck: duckdb.DuckDBPyConnection, hours: Collection[int] | None = None) -> pa.Table:
    """One row per device, queue, task and hour in which anything happened.

    Args:
        duck: with the tables ``jobs`` and ``attempts``.
        hours: only these, as numbers of hours since 1970; all if None. Given all jobs and attempts
            that touch these hours, the rows are those of the whole table.
    """
    settled = ", ".join(f"'{name}'" for name in JOB_STATES)
    failed = " + ".join(f"attempts_{name}" for name in FAILED_OUTCOMES)
    columns = [
        _count("enqueued", "= 'enqueued'"),
        *(_count(name, f"= '{name}'") for name in JOB_STATES),
        _count("settled", f"IN ({settled})"),
        *(_count(f"attempts_{name}", f"= 'attempt {name}'") for name in ATTEMPT_OUTCOMES),
        _count("attempts_ended", "LIKE 'attempt %'"),
        f"{_rate(failed, 'attempts_succeeded')} AS failure_rate",
        f"{_rate('dead', 'succeeded')} AS dead_rate",
        *(one for name in SPANS for one in _spread(name)),
    ]
    within = "ns IS NOT NULL"
    if hours is not None:
        # The range alone is what Parquet's statistics can pass over files by.
        first, last = min(hours, default=0), max(hours, default=-1)
        within = f"ns >= {first * HOUR_NS} AND ns < {(last + 1) * HOUR_NS}"
        if len(hours) < last - first + 1:
            within += f" AND {whole_hours('ns')} IN ({', '.join(map(str, sorted(hours)))})"
    # Numbers and names of our own, and no text of anybody else.
    found = duck.sql(
        f"SELECT device, queue, task, {whole_hours('ns')} AS hour, {', '.join(columns)} "  # noqa: S608
        f"FROM ({_EVENTS}) WHERE {within} GROUP BY ALL"
    )
    return at_hours(found.to_arrow_table(), "hour")


def _count(name: str, what: str) -> str:
    return f"count(*) FILTER (what {what}) AS {name}"


def _rate(bad: str, good: str) -> str:
    """A rate of columns before it; null of nothing."""
    return f"({bad}) / nullif({bad} + {good}, 0)"


def _spread(name: str) -> list[str]:
    # In whole nanoseconds up to the interpolation, and seconds only then.
    known = f"FILTER ({name}_ns >= 0) / 1e9 AS {name}"
    spans = [
        f"quantile_cont({name}_ns, {percent / 100}) {known}_p{percent}_seconds"
        for percent in PERCENTILES
    ]
    return [*spans, f"max({name}_ns) {known}_max_seconds"]
