"""Counts, rates and spreads of each device by the hour.

A row is one hour (UTC, by the device's own clock) of one task in one queue. It tells of three
things, each in the hour in which it happened: jobs enqueued, jobs settled, attempts ended. So a job
that waits over midnight counts in two rows, and a row changes only when a job or an attempt does
that counts in its hour. Jobs that were purged are gone from here as well.

A percentile lies at rank p * (n - 1) of the sorted values, between two ranks in proportion: as
``numpy.percentile`` has it. It is exact; those of a fleet are to be
taken of the raw values in ``attempts``, not of its devices' percentiles. Negative spans, which a
clock that was set back leaves, are left out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: Outcomes that count as failures; a released attempt counts as nothing.
FAILED_OUTCOMES: Final = ("retried", "dead", "lost")
#: Whole hours since 1970; no time zone has a say in it.
_HOURS: Final = """
    CREATE OR REPLACE TEMP MACRO hour_of(ns) AS (ns - ((ns % $hour) + $hour) % $hour) // $hour
""".replace("$hour", str(3_600 * 1_000_000_000))
#: What counts in which hour.
_EVENTS: Final = """
    SELECT device, queue, task, hour_of(enqueued_ns) AS hour, 'enqueued' AS what,
        NULL::BIGINT AS wait_ns, NULL::BIGINT AS run_ns, {sign} AS sign
    FROM {jobs} WHERE enqueued_ns IS NOT NULL
    UNION ALL
    SELECT device, queue, task, hour_of(settled_ns), state, NULL, NULL, {sign}
    FROM {jobs} WHERE settled_ns IS NOT NULL
    UNION ALL
    SELECT device, queue, task, hour_of(ended_ns), 'attempt ' || coalesce(outcome, ''),
        wait_ns, run_ns, {sign}
    FROM {attempts} WHERE ended_ns IS NOT NULL
"""
#: Spans are in whole nanoseconds up to the interpolation, and seconds only then.
_ROLLUP: Final = f"""
    WITH counted AS (
        SELECT device, queue, task, make_timestamptz(hour * 3_600_000_000) AS hour,
            count(*) FILTER (what = 'enqueued') AS enqueued,
            count(*) FILTER (what = 'succeeded') AS succeeded,
            count(*) FILTER (what = 'dead') AS dead,
            count(*) FILTER (what = 'cancelled') AS cancelled,
            count(*) FILTER (what = 'expired') AS expired,
            count(*) FILTER (what IN ('succeeded', 'dead', 'cancelled', 'expired')) AS settled,
            count(*) FILTER (what = 'attempt succeeded') AS attempts_succeeded,
            count(*) FILTER (what = 'attempt retried') AS attempts_retried,
            count(*) FILTER (what = 'attempt dead') AS attempts_dead,
            count(*) FILTER (what = 'attempt released') AS attempts_released,
            count(*) FILTER (what = 'attempt lost') AS attempts_lost,
            count(*) FILTER (what LIKE 'attempt %') AS attempts_ended,
            quantile_cont(wait_ns, [0.5, 0.95, 0.99, 1]) FILTER (wait_ns >= 0) AS waits,
            quantile_cont(run_ns, [0.5, 0.95, 0.99, 1]) FILTER (run_ns >= 0) AS runs
        FROM ({_EVENTS.format(jobs="jobs", attempts="attempts", sign=1)})
        WHERE $hours IS NULL OR hour IN (SELECT unnest($hours))
        GROUP BY device, queue, task, hour
        HAVING greatest(enqueued, settled, attempts_ended) > 0
    )
    SELECT * EXCLUDE (waits, runs),
        (attempts_retried + attempts_dead + attempts_lost) / nullif(
            attempts_retried + attempts_dead + attempts_lost + attempts_succeeded, 0
        ) AS failure_rate,
        dead / nullif(dead + succeeded, 0) AS dead_rate,
        waits[1] / 1e9 AS wait_p50_seconds, waits[2] / 1e9 AS wait_p95_seconds,
        waits[3] / 1e9 AS wait_p99_seconds, waits[4] / 1e9 AS wait_max_seconds,
        runs[1] / 1e9 AS run_p50_seconds, runs[2] / 1e9 AS run_p95_seconds,
        runs[3] / 1e9 AS run_p99_seconds, runs[4] / 1e9 AS run_max_seconds
    FROM counted
"""  # noqa: S608 - words of our own


def changed_hours(
    duck: duckdb.DuckDBPyConnection,
    jobs: duckdb.DuckDBPyRelation,
    attempts: duckdb.DuckDBPyRelation,
) -> set[int]:
    """Return the hours since 1970 in which other things happened than was told.

    Args:
        duck: where it is asked.
        jobs: rows that came, of ``sign`` 1, and rows that went, of -1; many a row is among both.
        attempts: likewise.
    """
    duck.execute(_HOURS)
    jobs.create_view("new_jobs")
    attempts.create_view("new_attempts")
    events = _EVENTS.format(jobs="new_jobs", attempts="new_attempts", sign="sign")
    net = f"SELECT * EXCLUDE sign FROM ({events}) GROUP BY ALL HAVING sum(sign) <> 0"  # noqa: S608
    return {hour for (hour,) in duck.sql(f"SELECT DISTINCT hour FROM ({net})").fetchall()}  # noqa: S608


def rollup_hour(duck: duckdb.DuckDBPyConnection, hours: Collection[int] | None = None) -> pa.Table:
    """Return one row per device, queue, task and hour in which anything happened.

    Args:
        duck: with the tables ``jobs`` and ``attempts``.
        hours: only these, as numbers of hours since 1970; all if None. Given all jobs and attempts
            that touch these hours, the rows are those of the whole table.
    """
    duck.execute(_HOURS)
    wanted = None if hours is None else sorted(hours)
    return duck.sql(_ROLLUP, params={"hours": wanted}).to_arrow_table()


def signed(rows: duckdb.DuckDBPyRelation, sign: int) -> duckdb.DuckDBPyRelation:
    return rows.project(f"*, {sign} AS sign")
