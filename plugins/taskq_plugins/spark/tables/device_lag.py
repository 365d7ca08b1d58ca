"""How far each device is behind, as one looks from the hub.

A row is one task log. Times in ``*_at`` with "record" or "waiting" in their names are by the
device's clock, times of arrival by the hub's, which is trusted.

**Clock skew.** A record cannot arrive before it is written. So for each segment the device's clock
is ahead of the hub's by at least (time of its last record - time of its arrival), and the largest
such difference over its segments is the best that the hub can know. Above 60 s the device's clock
is ahead, that is certain. Down to an hour below it is "ok": a device that has little to do and is
heard of now and then looks like this. Below that the clock is behind, or all that the device sent
took so long to arrive; the two cannot be told apart from here ("behind or late").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    import duckdb

MISSING_MAX: Final = 20
_FILES_AT_ONCE: Final = 16
#: Differences of clocks that are no news: NTP keeps far closer, devices without it do not.
AHEAD_SECONDS_MAX: Final = 60
#: How long a record may take to arrive before it is told.
ARRIVAL_SECONDS_MAX: Final = 3_600
SECOND_NS: Final = 1_000_000_000
_TEXT: Final = pa.string()
_LONG: Final = pa.int64()
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
    """Make the table ``waiting`` for ``device_lag``: of all jobs, or of what was told and changed.

    Args:
        duck: where ``device_lag`` is asked.
        jobs: rows that came, of ``sign`` 1, and rows that went, of -1.
        old: the table as it was before these; None: they are all.
        files: those that hold jobs which wait, with when the first in each was enqueued at the
            earliest; they are read, in this order, where the first of a log is gone.
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
