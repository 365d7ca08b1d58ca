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

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Collection

    import duckdb

#: Outcomes that count as failures; a released attempt counts as nothing.
FAILED_OUTCOMES: Final = ("retried", "dead", "lost")
#: Whole hours since 1970; no time zone has a say in it.
_HOURS: Final = """
    CREATE OR REPLACE TEMP MACRO hour_of(ns) AS (ns - ((ns % $hour) + $hour) % $hour) // $hour
""".replace("$hour", str(3_600 * 1_000_000_000))
_COUNTS: Final = (
    *("enqueued", "succeeded", "dead", "cancelled", "expired", "settled"),
    *(f"attempts_{name}" for name in ("succeeded", "retried", "dead", "released", "lost", "ended")),
)
_SPREADS: Final = [
    f"{span}_{name}_seconds" for span in ("wait", "run") for name in ("p50", "p95", "p99", "max")
]
ROLLUP: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("device", "queue", "task")),
        ("hour", pa.timestamp("us", "UTC")),
        *((name, pa.int64()) for name in _COUNTS),
        *((name, pa.float64()) for name in ("failure_rate", "dead_rate", *_SPREADS)),
    ]
)
#: What counts in which hour; ``sign`` is -1 where something is taken back.
_EVENTS: Final = """
    SELECT device, queue, task, hour_of(enqueued_ns) AS hour, 'enqueued' AS what,
        NULL::BIGINT AS wait_ns, NULL::BIGINT AS run_ns, sign
    FROM new_jobs WHERE enqueued_ns IS NOT NULL
    UNION ALL
    SELECT device, queue, task, hour_of(settled_ns), state, NULL, NULL, sign
    FROM new_jobs WHERE settled_ns IS NOT NULL
    UNION ALL
    SELECT device, queue, task, hour_of(ended_ns), 'attempt ' || coalesce(outcome, ''),
        wait_ns, run_ns, sign
    FROM new_attempts WHERE ended_ns IS NOT NULL
"""
#: Counts are those of before and what changed; percentiles are of all attempts of an hour in which
#: any changed. Spans are in whole nanoseconds up to the interpolation, and seconds only then.
_ROLLUP: Final = r"""
    WITH before AS (SELECT * REPLACE (hour_of(epoch_ns(hour)) AS hour) FROM told),
    counted AS (
        SELECT device, queue, task, hour,
            coalesce(sum(COLUMNS(* EXCLUDE (device, queue, task, hour))), 0)::BIGINT AS '\0'
        FROM (
            SELECT device, queue, task, hour,
                sum(sign) FILTER (what = 'enqueued') AS enqueued,
                sum(sign) FILTER (what = 'succeeded') AS succeeded,
                sum(sign) FILTER (what = 'dead') AS dead,
                sum(sign) FILTER (what = 'cancelled') AS cancelled,
                sum(sign) FILTER (what = 'expired') AS expired,
                sum(sign) FILTER (what IN ('succeeded', 'dead', 'cancelled', 'expired')) AS settled,
                sum(sign) FILTER (what = 'attempt succeeded') AS attempts_succeeded,
                sum(sign) FILTER (what = 'attempt retried') AS attempts_retried,
                sum(sign) FILTER (what = 'attempt dead') AS attempts_dead,
                sum(sign) FILTER (what = 'attempt released') AS attempts_released,
                sum(sign) FILTER (what = 'attempt lost') AS attempts_lost,
                sum(sign) FILTER (what LIKE 'attempt %') AS attempts_ended
            FROM changes WHERE $hours IS NULL OR hour IN (SELECT unnest($hours)) GROUP BY ALL
            UNION ALL
            SELECT device, queue, task, hour, enqueued, succeeded, dead, cancelled, expired,
                settled, attempts_succeeded, attempts_retried, attempts_dead, attempts_released,
                attempts_lost, attempts_ended
            FROM before
        ) GROUP BY ALL HAVING greatest(sum(enqueued), sum(settled), sum(attempts_ended)) > 0
    ),
    moved AS (SELECT DISTINCT device, queue, task, hour FROM changes WHERE what LIKE 'attempt %'),
    spread AS (
        SELECT device, queue, task, hour,
            quantile_cont(wait_ns, 0.5) FILTER (wait_ns >= 0) / 1e9 AS wait_p50_seconds,
            quantile_cont(wait_ns, 0.95) FILTER (wait_ns >= 0) / 1e9 AS wait_p95_seconds,
            quantile_cont(wait_ns, 0.99) FILTER (wait_ns >= 0) / 1e9 AS wait_p99_seconds,
            max(wait_ns) FILTER (wait_ns >= 0) / 1e9 AS wait_max_seconds,
            quantile_cont(run_ns, 0.5) FILTER (run_ns >= 0) / 1e9 AS run_p50_seconds,
            quantile_cont(run_ns, 0.95) FILTER (run_ns >= 0) / 1e9 AS run_p95_seconds,
            quantile_cont(run_ns, 0.99) FILTER (run_ns >= 0) / 1e9 AS run_p99_seconds,
            max(run_ns) FILTER (run_ns >= 0) / 1e9 AS run_max_seconds
        FROM (SELECT *, hour_of(ended_ns) AS hour FROM attempts WHERE ended_ns IS NOT NULL)
        WHERE (device, queue, coalesce(task, ''), hour) IN (
            SELECT (device, queue, coalesce(task, ''), hour) FROM moved)
        GROUP BY ALL
        UNION ALL
        SELECT device, queue, task, hour, wait_p50_seconds, wait_p95_seconds, wait_p99_seconds,
            wait_max_seconds, run_p50_seconds, run_p95_seconds, run_p99_seconds, run_max_seconds
        FROM before WHERE (device, queue, coalesce(task, ''), hour) NOT IN (
            SELECT (device, queue, coalesce(task, ''), hour) FROM moved)
    )
    SELECT counted.* REPLACE (make_timestamptz(counted.hour * 3_600_000_000) AS hour),
        (attempts_retried + attempts_dead + attempts_lost) / nullif(
            attempts_retried + attempts_dead + attempts_lost + attempts_succeeded, 0
        ) AS failure_rate,
        dead / nullif(dead + succeeded, 0) AS dead_rate,
        spread.* EXCLUDE (device, queue, task, hour)
    FROM counted LEFT JOIN spread ON counted.device = spread.device
        AND counted.queue = spread.queue AND counted.hour = spread.hour
        AND counted.task IS NOT DISTINCT FROM spread.task
"""


def take_changes(
    duck: duckdb.DuckDBPyConnection,
    jobs: duckdb.DuckDBPyRelation,
    attempts: duckdb.DuckDBPyRelation,
) -> set[int]:
    """Take what changed for ``rollup_hour``: the hours since 1970 whose rows are others now.

    Args:
        duck: where ``rollup_hour`` is asked.
        jobs: rows that came, of ``sign`` 1, and rows that went, of -1; many a row is among both.
        attempts: likewise.
    """
    _take(duck, jobs, attempts)
    duck.execute("""
        CREATE TEMP TABLE net AS SELECT * REPLACE (sum(sign)::BIGINT AS sign)
        FROM events GROUP BY ALL HAVING sum(sign) <> 0
    """)
    duck.table("net").create_view("changes")
    return {hour for (hour,) in duck.sql("SELECT DISTINCT hour FROM changes").fetchall()}


def _take(
    duck: duckdb.DuckDBPyConnection,
    jobs: duckdb.DuckDBPyRelation,
    attempts: duckdb.DuckDBPyRelation,
) -> None:
    duck.execute(_HOURS)
    jobs.create_view("new_jobs")
    attempts.create_view("new_attempts")
    duck.sql(_EVENTS).create_view("events")


def rollup_hour(
    duck: duckdb.DuckDBPyConnection,
    hours: Collection[int] | None = None,
    old: pa.Table | None = None,
) -> pa.Table:
    """Return one row per device, queue, task and hour in which anything happened.

    Args:
        duck: with the tables ``jobs`` and ``attempts``; with ``old`` the attempts alone, those that
            ended in the hours that ``take_changes`` gave.
        hours: only these, as numbers of hours since 1970; all if None. Given all jobs and attempts
            that touch these hours, the rows are those of the whole table.
        old: the rows before what ``take_changes`` took.
    """
    if old is None:
        _take(duck, signed(duck.table("jobs"), 1), signed(duck.table("attempts"), 1))
        duck.table("events").create_view("changes")
        old = ROLLUP.empty_table()
    duck.register("told", old)
    wanted = None if hours is None else sorted(hours)
    return duck.sql(_ROLLUP, params={"hours": wanted}).to_arrow_table()


def signed(rows: duckdb.DuckDBPyRelation, sign: int) -> duckdb.DuckDBPyRelation:
    """Return the rows as such that came, or went."""
    return rows.project(f"*, {sign} AS sign")
