"""Work that was done more than once: keys that ran on several devices.

A key keeps a job from being enqueued twice in one log. Nothing keeps two devices from doing the
same work, each in its own log, and this table is where it shows. A job counts once it was claimed;
those that never ran did no work.

A device that was reinstalled has two logs under one name, and counts as one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

TASKS_MAX: Final = 20
RUNS_MAX: Final = 20
DEVICES_MIN: Final = 2
#: By device first, so that no list is longer than there are devices.
_QUERY: Final = f"""
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
    return duck.sql(_QUERY).to_arrow_table()
