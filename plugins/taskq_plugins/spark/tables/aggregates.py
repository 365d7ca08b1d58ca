"""Aggregates by DuckDB: rollups by the hour, breaks, lag, duplicates, failures, steps.

A rollup row is one hour (UTC, by the device's clock) of one task in one queue. It counts three
events, each in its own hour: jobs enqueued, jobs settled, attempts ended. So a job that waits over
midnight counts in two rows. A row changes only with a job or an attempt of its hour. Purged jobs
are not counted.

A percentile is exact and lies at rank p * (n - 1) of the sorted values, interpolated like
``numpy.percentile``. Compute a fleet's percentiles from the values in ``attempts``, not from
percentiles of devices. Negative spans, left by a clock that was set back, are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from taskq.engine import FailureKind
from taskq_plugins.spark.source.resume import COMPACTION
from taskq_plugins.spark.source.snapshot import LogInventory

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: Outcomes that count as failures; a released attempt counts as nothing.
FAILED_OUTCOMES: Final = ("retried", "dead", "lost")
#: Whole hours since 1970; no time zone has a say in it.
_HOURS: Final = """
    CREATE OR REPLACE TEMP MACRO hour_of(ns) AS (ns - ((ns % $hour) + $hour) % $hour) // $hour
""".replace("$hour", str(3_600 * 1_000_000_000))
#: Events by hour.
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
    """Return the hours since 1970 with changed events.

    ``jobs`` and ``attempts`` hold added rows with ``sign`` 1 and removed rows with -1.
    """
    duck.execute(_HOURS)
    jobs.create_view("new_jobs")
    attempts.create_view("new_attempts")
    events = _EVENTS.format(jobs="new_jobs", attempts="new_attempts", sign="sign")
    net = f"SELECT * EXCLUDE sign FROM ({events}) GROUP BY ALL HAVING sum(sign) <> 0"  # noqa: S608
    return {hour for (hour,) in duck.sql(f"SELECT DISTINCT hour FROM ({net})").fetchall()}  # noqa: S608


def rollup_hour(duck: duckdb.DuckDBPyConnection, hours: Collection[int] | None = None) -> pa.Table:
    """Return one row per device, queue, task and hour with events.

    ``hours`` limits them to these hours since 1970. All jobs and attempts that touch the hours must
    be in the tables ``jobs`` and ``attempts``.
    """
    duck.execute(_HOURS)
    wanted = None if hours is None else sorted(hours)
    return duck.sql(_ROLLUP, params={"hours": wanted}).to_arrow_table()


def signed(rows: duckdb.DuckDBPyRelation, sign: int) -> duckdb.DuckDBPyRelation:
    return rows.project(f"*, {sign} AS sign")


_TEXT: Final = pa.string()
_LONG: Final = pa.int64()
BREAKS: Final = pa.schema(
    [
        ("device", _TEXT),
        ("log_id", _TEXT),
        ("kind", _TEXT),
        ("is_declared", pa.bool_()),
        ("branch", pa.int32()),
        ("lsn", _LONG),
        ("goes_on_lsn", _LONG),
        ("end_lsn", _LONG),
        ("cause", _TEXT),
    ]
)


def breaks(records: pa.Table, logs: Iterable[LogInventory]) -> pa.Table:
    """Return one row for each declared break, and for each found while reading.

    ``records`` are of kind "break"; ``logs`` bring the breaks from before the first read.
    """
    rows = [_found(record) for record in records.to_pylist()]
    known = {_key(row): row for row in rows}
    for standing in logs:
        for declared_break in standing.breaks:
            row: dict[str, Any] = {
                "device": standing.log.device,
                "log_id": standing.log.log_id,
                "kind": "fork" if declared_break.is_fork else "gap",
                "is_declared": True,
                "lsn": declared_break.lsn,
                "goes_on_lsn": None if declared_break.is_fork else declared_break.at.segment,
                "end_lsn": declared_break.end_lsn,
                "cause": declared_break.cause,
            }
            known.setdefault(_key(row), row)
    return pa.Table.from_pylist(list(known.values()), BREAKS)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    where = row["goes_on_lsn"] or row["lsn"]
    return (row["log_id"], row["kind"], where, None if row["is_declared"] else row["branch"])


def _found(row: dict[str, Any]) -> dict[str, Any]:
    declared = json.loads(row["value"])
    return {
        "device": row["device"],
        "log_id": row["log_id"],
        "kind": declared["what"],
        "is_declared": "end_lsn" in declared and declared.get("cause") != COMPACTION,
        "branch": row["branch"],
        "lsn": row["lsn"],
        "goes_on_lsn": declared.get("goes_on"),
        "end_lsn": declared.get("end_lsn"),
        "cause": declared.get("cause"),
    }


MISSING_MAX: Final = 20
_FILES_AT_ONCE: Final = 16
#: Differences of clocks that are no news: NTP keeps far closer, devices without it do not.
AHEAD_SECONDS_MAX: Final = 60
#: Expected maximal delay from a record to its arrival.
ARRIVAL_SECONDS_MAX: Final = 3_600
SECOND_NS: Final = 1_000_000_000
#: One row per segment file of every log on the hub, and one per gap: with ``is_missing`` only
#: device, log_id and segment (the first lsn that is not there) are known. The lsns and times are of
#: the whole frames that were read, null where none was.
SEGMENTS: Final = pa.schema(
    [
        ("device", _TEXT),
        ("log_id", _TEXT),
        ("segment", _LONG),
        ("size_bytes", _LONG),
        ("modified_ns", _LONG),
        ("last_record_ns", _LONG),
        ("is_missing", pa.bool_()),
    ]
)
_QUERY: Final = f"""
    WITH of_segments AS (
        SELECT device, log_id,
            max(last_record_ns) AS segment_record_ns,
            max(modified_ns) FILTER (NOT is_missing) AS last_arrival_ns,
            max(last_record_ns - modified_ns) FILTER (NOT is_missing) AS skew_ns,
            count(*) FILTER (NOT is_missing) AS segments,
            sum(size_bytes) FILTER (NOT is_missing) AS size_bytes,
            count(*) FILTER (is_missing) AS missing_segments,
            list_sort(list(segment) FILTER (is_missing))[:{MISSING_MAX}] AS missing_from
        FROM segments GROUP BY device, log_id
    ), logs AS (
        SELECT *, coalesce(segment_record_ns, ts_ns) AS last_record_ns
        FROM of_segments FULL JOIN waiting USING (device, log_id)
            FULL JOIN read USING (device, log_id)
    )
    SELECT device, log_id,
        count(*) OVER (PARTITION BY device) AS logs_of_device,
        row_number() OVER (PARTITION BY device ORDER BY last_arrival_ns DESC NULLS LAST,
            last_record_ns DESC NULLS LAST, log_id) = 1 AS is_current,
        make_timestamptz(last_record_ns // 1000) AS last_record_at,
        make_timestamptz(last_arrival_ns // 1000) AS last_arrival_at,
        ($now - last_record_ns) / {SECOND_NS} AS record_lag_seconds,
        ($now - last_arrival_ns) / {SECOND_NS} AS arrival_lag_seconds,
        skew_ns / {SECOND_NS} AS clock_skew_seconds,
        CASE WHEN skew_ns > {AHEAD_SECONDS_MAX * SECOND_NS} THEN 'ahead'
             WHEN skew_ns >= {-ARRIVAL_SECONDS_MAX * SECOND_NS} THEN 'ok'
             WHEN skew_ns IS NOT NULL THEN 'behind or late' END AS clock,
        coalesce(waiting, 0) AS waiting,
        coalesce(scheduled, 0) AS scheduled,
        coalesce(running, 0) AS running,
        coalesce(dead, 0) AS dead,
        make_timestamptz(oldest_ns // 1000) AS oldest_waiting_at,
        ($now - oldest_ns) / {SECOND_NS} AS oldest_waiting_seconds,
        coalesce(segments, 0) AS segments,
        coalesce(size_bytes, 0)::BIGINT AS size_bytes,
        coalesce(missing_segments, 0) AS missing_segments,
        coalesce(missing_from, []) AS missing_from
    FROM logs
"""  # noqa: S608 - numbers of our own


#: Jobs by log, and since when the first waits, to the microsecond.
_COUNTED: Final = """
    CREATE TEMP TABLE waiting AS
    SELECT device, log_id,
        coalesce(sum(sign) FILTER (state = 'ready'), 0)::BIGINT AS waiting,
        coalesce(sum(sign) FILTER (state = 'scheduled'), 0)::BIGINT AS scheduled,
        coalesce(sum(sign) FILTER (state = 'running'), 0)::BIGINT AS running,
        coalesce(sum(sign) FILTER (state = 'dead'), 0)::BIGINT AS dead,
        min(at_ns) FILTER (state = 'ready' AND sign > 0) AS oldest_ns,
        min(at_ns) FILTER (state = 'ready' AND sign < 0) AS gone_ns
    FROM (
        SELECT device, log_id, state, enqueued_ns // 1000 * 1000 AS at_ns,
            sum(sign)::BIGINT AS sign
        FROM new_jobs GROUP BY ALL HAVING sum(sign) <> 0
    ) GROUP BY ALL
"""
#: ... added to what was told before: as long as the first is there, it is the first.
_GROWN: Final = """
    CREATE OR REPLACE TEMP TABLE waiting AS
    SELECT device, log_id,
        coalesce(old.waiting, 0) + coalesce(new.waiting, 0) AS waiting,
        coalesce(old.scheduled, 0) + coalesce(new.scheduled, 0) AS scheduled,
        coalesce(old.running, 0) + coalesce(new.running, 0) AS running,
        coalesce(old.dead, 0) + coalesce(new.dead, 0) AS dead,
        epoch_ns(oldest_waiting_at) AS told_ns,
        coalesce(gone_ns > told_ns, true) OR old.waiting + new.waiting = 0 AS is_known,
        CASE WHEN old.waiting + new.waiting = 0 OR NOT is_known THEN NULL
            ELSE least(told_ns, new.oldest_ns) END AS oldest_ns
    FROM told AS old FULL JOIN waiting AS new USING (device, log_id)
"""
_FOUND: Final = """
    UPDATE waiting SET oldest_ns = least(waiting.oldest_ns, found.at_ns) FROM (
        SELECT device, log_id, min(enqueued_ns) // 1000 * 1000 AS at_ns FROM looked_at
        WHERE state = 'ready' GROUP BY device, log_id
    ) AS found
    WHERE NOT is_known AND found.device = waiting.device AND found.log_id = waiting.log_id
"""


def count_jobs(
    duck: duckdb.DuckDBPyConnection,
    jobs: duckdb.DuckDBPyRelation,
    old: pa.Table | None,
    files: Sequence[tuple[int, str]],
) -> None:
    """Make the table ``waiting`` for ``device_lag`` from all jobs, or from changes.

    Args:
        duck: with ``device_lag``'s tables.
        jobs: added rows with ``sign`` 1, removed rows with -1.
        old: the table before these changes; None: ``jobs`` are all.
        files: files with waiting jobs, and the earliest enqueue in each. They are read in this
            order where the first job of a log is gone.
    """
    jobs.create_view("new_jobs")
    duck.execute(_COUNTED)
    if old is None:
        return
    duck.register("told", old)
    duck.execute(_GROWN)
    ordered = sorted(files)
    for at in range(0, len(ordered), _FILES_AT_ONCE):
        if not duck.sql("FROM waiting WHERE NOT is_known LIMIT 1").fetchall():
            return
        paths = [path for _, path in ordered[at : at + _FILES_AT_ONCE]]
        duck.read_parquet(paths, hive_partitioning=False).create_view("looked_at")
        duck.execute(_FOUND)
        behind = ordered[at + _FILES_AT_ONCE :][:1]
        if behind:
            duck.execute("UPDATE waiting SET is_known = true WHERE oldest_ns <= ?", [behind[0][0]])


def device_lag(duck: duckdb.DuckDBPyConnection, as_of_ns: int) -> pa.Table:
    """Return one row per task log of the fleet (columns: see lake/words.py).

    Args:
        duck: with the tables ``waiting`` (of ``count_jobs``), ``read`` (the last record of a
            log) and ``segments`` (as ``SEGMENTS``: files on the hub, and the gaps between them).
        as_of_ns: the hub's time when it was looked at, in nanoseconds.
    """
    return duck.sql(_QUERY, params={"now": as_of_ns}).to_arrow_table()


TASKS_MAX: Final = 20
RUNS_MAX: Final = 20
DEVICES_MIN: Final = 2
#: By device first, so that no list is longer than there are devices.
_DUPLICATES_QUERY: Final = f"""
    WITH by_device AS (
        SELECT queue, key, device,
            list_distinct(list(task)) AS tasks,
            count(*) AS jobs,
            count(*) FILTER (state = 'succeeded') AS succeeded,
            max(first_started_ns) AS last_ns,
            min({{'ns': first_started_ns, 'job_id': job_id}}) AS first
        FROM jobs WHERE key IS NOT NULL AND first_started_ns IS NOT NULL
        GROUP BY queue, key, device
    ), by_key AS (
        SELECT queue, key,
            list_sort(list_distinct(flatten(list(tasks))))[:{TASKS_MAX}] AS tasks,
            count(*) AS devices,
            sum(jobs)::BIGINT AS jobs,
            sum(succeeded)::BIGINT AS succeeded,
            max(last_ns) AS last_ns,
            list_sort(list({{'ns': first.ns, 'device': device, 'job_id': first.job_id,
                             'jobs': jobs}})) AS runs
        FROM by_device GROUP BY queue, key HAVING count(*) >= {DEVICES_MIN}
    )
    SELECT queue, key, tasks, devices, jobs, succeeded,
        make_timestamptz(runs[1].ns // 1000) AS first_at,
        make_timestamptz(last_ns // 1000) AS last_at,
        list_transform(runs[:{RUNS_MAX}], lambda one: {{
            'device': one.device, 'job_id': one.job_id,
            'started_at': make_timestamptz(one.ns // 1000), 'jobs': one.jobs}}) AS runs
    FROM by_key
"""  # noqa: S608 - numbers of our own


def duplicates(duck: duckdb.DuckDBPyConnection) -> pa.Table:
    """Return one row per key that ran on two devices or more.

    Args:
        duck: with the table ``jobs``.
    """
    return duck.sql(_DUPLICATES_QUERY).to_arrow_table()


QUEUES_MAX: Final = 20
POISON_JOBS_MAX: Final = 20
EXAMPLE_CHARACTERS_MAX: Final = 2_000
#: Places (worker processes) at which a poisonous call was exhausted, at least.
POISON_PLACES_MIN: Final = 2
#: Payloads of calls without arguments: of put(b""), and of the two ways to call.
_NO_ARGUMENTS: Final = "(''::BLOB, '{}'::BLOB, '[]'::BLOB, 'null'::BLOB)"
_OUTCOMES: Final = ", ".join(f"'{name}'" for name in FAILED_OUTCOMES)
_DIED: Final = "len(list_filter(attempts, lambda one: one.outcome = 'dead')) > 0"
_DIED_LOST: Final = """
    len(list_filter(attempts,
        lambda one: one.outcome = 'dead' AND one.reason LIKE 'WorkerLost%')) > 0
"""
#: Two calls of a task are equal by key within a queue, or by payload.
_CALLS: Final = f"""
    list_filter([
        CASE WHEN key IS NOT NULL THEN 'key ' || hex(key) || ' ' || queue END,
        CASE WHEN payload NOT IN {_NO_ARGUMENTS} THEN 'payload ' || sha256(payload) END
    ], lambda one: one IS NOT NULL)
"""
_PLACES: Final = f"""
    CASE WHEN {_DIED} THEN list_transform(
        list_filter(attempts, lambda one: one.outcome = 'dead'
                    OR (one.outcome = 'lost' AND {_DIED_LOST})),
        lambda one: device || ' ' || coalesce(one.owner, ''))
    ELSE [device] END
"""
#: The failed attempts, and the dead jobs, each by its own reason.
_SEEN: Final = f"""
    CREATE TEMP TABLE seen AS
    WITH calls AS (
        SELECT log_id, job_id, task, places, unnest(calls) AS call FROM (
            SELECT log_id, job_id, task, {_PLACES} AS places, {_CALLS} AS calls
            FROM jobs WHERE state = 'dead')
    ), poison AS (
        SELECT task, call FROM (SELECT task, call, unnest(places) AS place FROM calls)
        GROUP BY task, call HAVING count(DISTINCT place) >= {POISON_PLACES_MIN}
    ), poisoned AS (
        SELECT DISTINCT log_id, job_id FROM calls JOIN poison
        ON calls.call = poison.call AND calls.task IS NOT DISTINCT FROM poison.task
    )
    SELECT log_id, job_id, device, queue, task, ended_ns AS at_ns, owner, true AS failed,
        false AS poison, coalesce(nullif(reason, ''),
            CASE WHEN outcome = 'lost' THEN $lost END) AS reason
    FROM attempts WHERE outcome IN ({_OUTCOMES})
    UNION ALL
    SELECT log_id, job_id, device, queue, task, settled_ns, NULL, false,
        (log_id, job_id) IN (SELECT (log_id, job_id) FROM poisoned), reason
    FROM jobs WHERE state = 'dead'
"""  # noqa: S608 - words and numbers of our own
_KINDS: Final = f"""
    SELECT task, pattern,
        count(*) FILTER (failed) AS failed_attempts,
        count(DISTINCT (log_id, job_id)) AS jobs,
        count(*) FILTER (NOT failed) AS dead_jobs,
        count(DISTINCT device) AS devices,
        count(DISTINCT (device, owner)) FILTER (owner IS NOT NULL) AS workers,
        make_timestamptz(min(at_ns) // 1000) AS first_seen,
        make_timestamptz(max(at_ns) // 1000) AS last_seen,
        list_sort(list_distinct(list(queue)))[:{QUEUES_MAX}] AS queues,
        arg_max(device, place) AS example_device,
        arg_max(job_id, place) AS example_job_id,
        nullif(arg_max(coalesce(reason, ''), place)[:{EXAMPLE_CHARACTERS_MAX}], '')
            AS example_reason,
        count(*) FILTER (poison) AS poison_jobs,
        count(*) FILTER (poison) > 0 AS poison,
        coalesce(list_sort(list(job_id) FILTER (poison))[:{POISON_JOBS_MAX}], []) AS poison_job_ids
    FROM (
        SELECT seen.*, patterns.pattern,
            (coalesce(at_ns, 0), device, job_id, coalesce(seen.reason, '')) AS place
        FROM seen JOIN patterns ON coalesce(seen.reason, '') = patterns.reason)
    GROUP BY task, pattern
"""  # noqa: S608 - likewise


def failures(duck: duckdb.DuckDBPyConnection) -> pa.Table:
    """Return one row per kind of failure (columns: see lake/words.py).

    Args:
        duck: with the tables ``jobs`` and ``attempts``.
    """
    duck.execute(_SEEN, {"lost": FailureKind.pattern_of("", lost=True)})
    try:
        reasons = duck.sql(
            "SELECT DISTINCT coalesce(reason, '') AS reason FROM seen"
        ).to_arrow_table()
        patterns = map(FailureKind.pattern_of, reasons["reason"].to_pylist())
        duck.register("patterns", reasons.append_column("pattern", pa.array(patterns, pa.string())))
        kinds = duck.sql(_KINDS).to_arrow_table()
    finally:
        duck.execute("DROP TABLE seen")
        duck.unregister("patterns")
    names = map(FailureKind, kinds["task"].to_pylist(), kinds["pattern"].to_pylist())
    fingerprints = pa.array((kind.fingerprint for kind in names), pa.string())
    return kinds.add_column(0, "fingerprint", fingerprints)


#: Identity of a step.
KNOWN_BY: Final = ("log_id", "branch", "job", "place")
_STEPS_QUERY: Final = """
    SELECT device, log_id, branch, job_id, job, place,
        split_part(step, '#', 1) AS name, split_part(step, '#', 2)::INTEGER AS number,
        state AS form, attempt,
        make_timestamptz(began_ns // 1000) AS began_at,
        make_timestamptz(ts_ns // 1000) AS ended_at,
        began_ns, ts_ns AS ended_ns,
        CASE WHEN began_ns IS NOT NULL THEN greatest(ts_ns - began_ns, 0) END AS took_ns,
        CASE WHEN value[:12] = '{"left out":'::BLOB
            THEN (decode(value) ->> '$."left out".size')::BIGINT
            ELSE octet_length(value) END AS size_bytes,
        make_timestamptz(ts_ns // 1000)::DATE AS date
    FROM new_records WHERE place IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY log_id, branch, job, place ORDER BY lsn) = 1
"""


def steps(duck: duckdb.DuckDBPyConnection, known: pa.Table | None = None) -> pa.Table:
    """Return one row per step that is done.

    Args:
        duck: with the table ``new_records``.
        known: steps that have rows already, by ``KNOWN_BY``: none of these is returned.
    """
    rows = duck.sql(_STEPS_QUERY)
    if known is not None:
        duck.register("known_steps", known)
        rows = duck.sql("FROM rows ANTI JOIN known_steps USING (log_id, branch, job, place)")
    return rows.to_arrow_table()
