"""What jobs have done in steps, sleeps and waits that they do not repeat.

A step that is done stays so: compaction writes it again, and it counts as it was told first. Steps
that a job did before its log was restored stand under the branch that they were done in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: What names a step.
KNOWN_BY: Final = ("log_id", "branch", "job", "place")
_QUERY: Final = """
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
    rows = duck.sql(_QUERY)
    if known is not None:
        duck.register("known_steps", known)
        rows = duck.sql("FROM rows ANTI JOIN known_steps USING (log_id, branch, job, place)")
    return rows.to_arrow_table()
