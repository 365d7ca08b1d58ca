"""How far each device is behind, as one looks from the hub.

A row is one task log. Times in ``*_at`` with "record" or "waiting" in their names are by the
device's clock, times of arrival by the hub's, which is trusted.

======================  ======  ====================================================================
column                  type    meaning
======================  ======  ====================================================================
device, log_id          string
logs_of_device          long    logs under this device's name; of a reinstalled one 2 or more
is_current              bool    whether it is the one of these that arrived last
last_record_at          time    newest record: of the segments, or else that was read; null: none
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

import pyarrow as pa

from taskq_plugins.spark.tables.moments import SECOND_NS, at_moments

if TYPE_CHECKING:
    import duckdb

MISSING_MAX: Final = 20
#: Differences of clocks that are no news: NTP keeps far closer, devices without it do not.
AHEAD_SECONDS_MAX: Final = 60
#: How long a record may take to arrive before it is told.
ARRIVAL_SECONDS_MAX: Final = 3_600
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
#: How far each log was read: its last record.
READ: Final = pa.schema([("device", _TEXT), ("log_id", _TEXT), ("lsn", _LONG), ("ts_ns", _LONG)])
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
    ), of_jobs AS (
        SELECT device, log_id,
            count(*) FILTER (state = 'ready') AS waiting,
            count(*) FILTER (state = 'scheduled') AS scheduled,
            count(*) FILTER (state = 'running') AS running,
            count(*) FILTER (state = 'dead') AS dead,
            min(enqueued_ns) FILTER (state = 'ready') AS oldest_ns
        FROM jobs GROUP BY device, log_id
    ), logs AS (
        SELECT *, coalesce(segment_record_ns, ts_ns) AS last_record_ns
        FROM of_segments FULL JOIN of_jobs USING (device, log_id)
            FULL JOIN read USING (device, log_id)
    )
    SELECT device, log_id,
        count(*) OVER (PARTITION BY device) AS logs_of_device,
        row_number() OVER (PARTITION BY device ORDER BY last_arrival_ns DESC NULLS LAST,
            last_record_ns DESC NULLS LAST, log_id) = 1 AS is_current,
        last_record_ns AS last_record_at,
        last_arrival_ns AS last_arrival_at,
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
        oldest_ns AS oldest_waiting_at,
        ($now - oldest_ns) / {SECOND_NS} AS oldest_waiting_seconds,
        coalesce(segments, 0) AS segments,
        coalesce(size_bytes, 0)::BIGINT AS size_bytes,
        coalesce(missing_segments, 0) AS missing_segments,
        coalesce(missing_from, []) AS missing_from
    FROM logs
"""  # noqa: S608 - numbers of our own


def device_lag(duck: duckdb.DuckDBPyConnection, as_of_ns: int) -> pa.Table:
    """One row per task log of the fleet (columns: see the module's docstring).

    Args:
        duck: with the tables ``jobs`` (those that are not over), ``read`` (as ``READ``) and
            ``segments`` (as ``SEGMENTS``: the segment files on the hub, and the gaps between them).
        as_of_ns: the hub's time when it was looked at, in nanoseconds.
    """
    found = duck.sql(_QUERY, params={"now": as_of_ns}).to_arrow_table()
    return at_moments(found, ("last_record_at", "last_arrival_at", "oldest_waiting_at"))
