"""What fails, by kind: one row for each fingerprint, which is a task and a normalised reason.

A failed attempt is one that was retried, died or was lost (its worker's process ended). Its kind is
that of its own reason; a dead job's kind is that of the job's reason. ``fingerprints`` tells how a
reason is normalised.

**Poison.** Calls are the same when task, queue and key are, or task and payload (payloads without
any argument aside: such a call brings nothing that could be at fault). A call is poison when its
jobs that are dead now were exhausted in two places or more, a place being one worker process of one
device. The places of a job are the workers that its attempts died at, before a requeue as well;
where the death was the loss of the worker, those too that it had cost before. A dead job whose
attempts are not known counts its device as one place. So a call that died once on each of two
devices is poison, one that died, was requeued, and died at another worker is, and one that failed
in turn at two workers but died once is not: restarts between attempts are common and say nothing of
the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from taskq.engine import FailureKind
from taskq_plugins.spark.tables.rollups import FAILED_OUTCOMES

if TYPE_CHECKING:
    import duckdb

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
#: What makes two calls of a task the same: the key within its queue, or the payload.
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
