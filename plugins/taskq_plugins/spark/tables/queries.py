"""Queries in Spark SQL, one for each table that is computed from others.

``spark.sql(QUERY, jobs=frame, …)`` replaces the names in braces by data frames. Moments are
computed from nanoseconds since 1970, so the session's time zone does not matter.

A rollup row is one hour (UTC, by the device's clock) of one task in one queue. It counts three
events, each in its own hour and in the log that wrote it: jobs enqueued, jobs settled, attempts
ended. Purged jobs are not counted. A percentile is exact, and interpolated like the default of
``numpy.percentile``. Compute a fleet's percentiles from ``attempts``, not from percentiles of
devices. Negative durations, after a clock was set back, are skipped.
"""

from __future__ import annotations

from typing import Final

#: Ends of jobs, as counts, and of attempts, with their hour since 1970.
EVENTS: Final = """
    SELECT device, queue, task, hour, what, count(*) AS events,
        CAST(NULL AS BIGINT) AS wait_ns, CAST(NULL AS BIGINT) AS run_ns
    FROM (
        SELECT device, queue, task, enqueued_ns div 3600000000000 AS hour, 'enqueued' AS what
        FROM {jobs} WHERE enqueued_ns IS NOT NULL AND enqueued_in = log_id
        UNION ALL
        SELECT device, queue, task, settled_ns div 3600000000000, state
        FROM {jobs} WHERE settled_ns IS NOT NULL AND settled_in = log_id)
    GROUP BY device, queue, task, hour, what
    UNION ALL
    SELECT device, queue, task, ended_ns div 3600000000000, concat('attempt ', outcome), 1,
        wait_ns, run_ns
    FROM {attempts} WHERE ended_ns IS NOT NULL
"""
ROLLUP_HOUR: Final = """
    WITH counted AS (
        SELECT device, queue, task, hour,
            sum(if(what = 'enqueued', events, 0)) AS enqueued,
            sum(if(what = 'succeeded', events, 0)) AS succeeded,
            sum(if(what = 'dead', events, 0)) AS dead,
            sum(if(what = 'cancelled', events, 0)) AS cancelled,
            sum(if(what = 'expired', events, 0)) AS expired,
            sum(if(what IN ('succeeded', 'dead', 'cancelled', 'expired'), events, 0)) AS settled,
            count_if(what = 'attempt succeeded') AS attempts_succeeded,
            count_if(what = 'attempt retried') AS attempts_retried,
            count_if(what = 'attempt dead') AS attempts_dead,
            count_if(what = 'attempt released') AS attempts_released,
            count_if(what = 'attempt lost') AS attempts_lost,
            count_if(what LIKE 'attempt %') AS attempts_ended,
            percentile(wait_ns, array(0.5, 0.95, 0.99, 1)) FILTER (WHERE wait_ns >= 0) AS waits,
            percentile(run_ns, array(0.5, 0.95, 0.99, 1)) FILTER (WHERE run_ns >= 0) AS runs
        FROM {events} GROUP BY device, queue, task, hour
    )
    SELECT device, queue, task, timestamp_micros(hour * 3600000000) AS hour,
        enqueued, succeeded, dead, cancelled, expired, settled, attempts_succeeded,
        attempts_retried, attempts_dead, attempts_released, attempts_lost, attempts_ended,
        (attempts_retried + attempts_dead + attempts_lost) / nullif(
            attempts_retried + attempts_dead + attempts_lost + attempts_succeeded, 0
        ) AS failure_rate,
        dead / nullif(dead + succeeded, 0) AS dead_rate,
        waits[0] / 1e9D AS wait_p50_seconds, waits[1] / 1e9D AS wait_p95_seconds,
        waits[2] / 1e9D AS wait_p99_seconds, waits[3] / 1e9D AS wait_max_seconds,
        runs[0] / 1e9D AS run_p50_seconds, runs[1] / 1e9D AS run_p95_seconds,
        runs[2] / 1e9D AS run_p99_seconds, runs[3] / 1e9D AS run_max_seconds,
        date_from_unix_date(CAST(hour div 24 AS INT)) AS date
    FROM counted WHERE greatest(enqueued, settled, attempts_ended) > 0
"""

#: Failed attempts and dead jobs, each by its own reason. A call is poison if its jobs died in two
#: places. Two calls of a task are equal by key within a queue, or by payload, unless they have no
#: arguments: put(b""), and the two ways to call.
FAILED_ATTEMPTS: Final = """
    WITH dead AS (
        SELECT *, exists(attempts, one -> one.outcome = 'dead') AS died,
            exists(attempts, one -> one.outcome = 'dead' AND one.reason LIKE 'WorkerLost%')
                AS died_lost
        FROM {jobs} WHERE state = 'dead' AND continued_in IS NULL
    ), calls AS (
        SELECT log_id, job_id, task, places, explode(filter(array(
            CASE WHEN key IS NOT NULL THEN concat('key ', hex(key), ' ', queue) END,
            CASE WHEN payload NOT IN (X'', CAST('{{}}' AS BINARY), CAST('[]' AS BINARY),
                CAST('null' AS BINARY)) THEN concat('payload ', sha2(payload, 256)) END
        ), one -> one IS NOT NULL)) AS call FROM (
            SELECT log_id, job_id, task, queue, key, payload, CASE WHEN died THEN transform(
                filter(attempts, one -> one.outcome = 'dead'
                    OR (one.outcome = 'lost' AND died_lost)),
                one -> concat(device, ' ', coalesce(one.owner, '')))
            ELSE array(device) END AS places FROM dead)
    ), poison AS (
        SELECT task, call FROM (SELECT task, call, explode(places) AS place FROM calls)
        GROUP BY task, call HAVING count(DISTINCT place) >= 2
    ), poisoned AS (
        SELECT DISTINCT log_id, job_id FROM calls JOIN poison
        ON calls.call = poison.call AND calls.task <=> poison.task
    )
    SELECT log_id, job_id, device, queue, task, ended_ns AS at_ns, owner, true AS failed,
        false AS poison, coalesce(nullif(reason, ''), CASE WHEN outcome = 'lost'
            THEN :lost END, '') AS reason
    FROM {attempts} WHERE outcome IN ('retried', 'dead', 'lost')
    UNION ALL
    SELECT dead.log_id, dead.job_id, device, queue, task, settled_ns, NULL, false,
        poisoned.job_id IS NOT NULL, coalesce(reason, '')
    FROM dead LEFT JOIN poisoned ON dead.log_id = poisoned.log_id AND dead.job_id = poisoned.job_id
"""
FAILURES: Final = """
    SELECT task, pattern,
        count_if(failed) AS failed_attempts,
        count(DISTINCT log_id, job_id) AS jobs,
        count_if(NOT failed) AS dead_jobs,
        count(DISTINCT device) AS devices,
        count(DISTINCT CASE WHEN owner IS NOT NULL THEN struct(device, owner) END) AS workers,
        timestamp_micros(min(at_ns) div 1000) AS first_seen,
        timestamp_micros(max(at_ns) div 1000) AS last_seen,
        slice(array_sort(collect_set(queue)), 1, 20) AS queues,
        max_by(device, place) AS example_device,
        max_by(job_id, place) AS example_job_id,
        nullif(left(max_by(reason, place), 2000), '') AS example_reason,
        count_if(poison) AS poison_jobs,
        count_if(poison) > 0 AS poison,
        slice(array_sort(collect_list(job_id) FILTER (WHERE poison)), 1, 20) AS poison_job_ids
    FROM (
        SELECT *, struct(coalesce(at_ns, 0) AS at_ns, device, job_id, reason) AS place FROM {ends})
    GROUP BY task, pattern
"""

#: Keys that ran on two or more devices. Grouped by device first, so a list has one item per device.
DUPLICATES: Final = """
    WITH by_device AS (
        SELECT queue, key, device,
            collect_set(task) AS tasks,
            count(*) AS jobs,
            count_if(state = 'succeeded') AS succeeded,
            max(first_started_ns) AS last_ns,
            min(struct(first_started_ns AS ns, job_id)) AS first
        FROM {jobs}
        WHERE key IS NOT NULL AND first_started_ns IS NOT NULL AND continued_in IS NULL
        GROUP BY queue, key, device
    ), by_key AS (
        SELECT queue, key,
            slice(array_sort(array_distinct(flatten(collect_list(tasks)))), 1, 20) AS tasks,
            count(*) AS devices, sum(jobs) AS jobs, sum(succeeded) AS succeeded,
            max(last_ns) AS last_ns,
            array_sort(collect_list(struct(first.ns, device, first.job_id, jobs))) AS runs
        FROM by_device GROUP BY queue, key HAVING count(*) >= 2
    )
    SELECT queue, key, tasks, devices, jobs, succeeded,
        timestamp_micros(runs[0].ns div 1000) AS first_at,
        timestamp_micros(last_ns div 1000) AS last_at,
        transform(slice(runs, 1, 20), one -> struct(one.device AS device, one.job_id AS job_id,
            timestamp_micros(one.ns div 1000) AS started_at, one.jobs AS jobs)) AS runs
    FROM by_key
"""

#: A row for each log. A clock is fast if a record is a minute later than its segment's arrival. If
#: a record arrives after more than an hour, the clock is slow or the record is late.
DEVICE_LAG: Final = """
    WITH of_segments AS (
        SELECT device, log_id,
            max(last_record_ns) AS segment_record_ns,
            max(modified_ns) AS last_arrival_ns,
            max(last_record_ns - modified_ns) AS skew_ns,
            count(*) AS segments,
            sum(size_bytes) AS size_bytes,
            count(gap_from) AS missing_segments,
            slice(array_sort(collect_list(gap_from)), 1, 20) AS missing_from
        FROM {segments} GROUP BY device, log_id
    ), waits AS (
        SELECT device, log_id,
            count_if(state = 'ready') AS waiting, count_if(state = 'scheduled') AS scheduled,
            count_if(state = 'running') AS running, count_if(state = 'dead') AS dead,
            min(enqueued_ns) FILTER (WHERE state = 'ready') AS oldest_ns
        FROM {jobs} WHERE NOT is_over AND continued_in IS NULL GROUP BY device, log_id
    ), logs AS (
        SELECT *, coalesce(segment_record_ns, ts_ns) AS last_record_ns
        FROM of_segments FULL JOIN waits USING (device, log_id)
            FULL JOIN {read} USING (device, log_id)
    )
    SELECT device, log_id,
        count(*) OVER (PARTITION BY device) AS logs_of_device,
        row_number() OVER (PARTITION BY device ORDER BY last_arrival_ns DESC NULLS LAST,
            last_record_ns DESC NULLS LAST, log_id) = 1 AS is_current,
        timestamp_micros(last_record_ns div 1000) AS last_record_at,
        timestamp_micros(last_arrival_ns div 1000) AS last_arrival_at,
        (:now - last_record_ns) / 1e9D AS record_lag_seconds,
        (:now - last_arrival_ns) / 1e9D AS arrival_lag_seconds,
        skew_ns / 1e9D AS clock_skew_seconds,
        CASE WHEN skew_ns > 60000000000 THEN 'ahead'
             WHEN skew_ns >= -3600000000000 THEN 'ok'
             WHEN skew_ns IS NOT NULL THEN 'behind or late' END AS clock,
        coalesce(waiting, 0) AS waiting,
        coalesce(scheduled, 0) AS scheduled,
        coalesce(running, 0) AS running,
        coalesce(dead, 0) AS dead,
        timestamp_micros(oldest_ns div 1000) AS oldest_waiting_at,
        (:now - oldest_ns) / 1e9D AS oldest_waiting_seconds,
        coalesce(segments, 0) AS segments,
        coalesce(size_bytes, 0) AS size_bytes,
        coalesce(missing_segments, 0) AS missing_segments,
        coalesce(missing_from, array()) AS missing_from
    FROM logs
"""

#: Breaks from read records, and declared breaks before the first read.
BREAKS: Final = """
    WITH found AS (
        SELECT device, log_id, lsn, from_json(CAST(value AS STRING),
            'what STRING, next_lsn BIGINT, end_lsn BIGINT, cause STRING') AS it FROM {found}
    ), read AS (
        SELECT device, log_id, it.what AS kind,
            it.end_lsn IS NOT NULL AND coalesce(it.cause <> :compaction, true) AS is_declared,
            lsn, it.next_lsn, it.end_lsn, it.cause
        FROM found
    )
    SELECT DISTINCT * FROM read
    UNION ALL
    SELECT device, log_id, kind, true, lsn, next_lsn, end_lsn, cause FROM {declared} AS declared
    WHERE NOT EXISTS (
        SELECT 1 FROM read WHERE read.log_id = declared.log_id AND read.kind = declared.kind
        AND coalesce(read.next_lsn, read.lsn) = coalesce(declared.next_lsn, declared.lsn))
"""

#: The first record of each step.
STEPS: Final = """
    SELECT device, log_id, job_id, job, place,
        split_part(step, '#', 1) AS name, CAST(split_part(step, '#', 2) AS INT) AS number,
        state AS form, attempt,
        timestamp_micros(began_ns div 1000) AS began_at,
        timestamp_micros(ts_ns div 1000) AS ended_at,
        began_ns, ts_ns AS ended_ns,
        CASE WHEN began_ns IS NOT NULL THEN greatest(ts_ns - began_ns, 0) END AS took_ns,
        CASE WHEN substring(value, 1, 12) = CAST('{{"left out":' AS BINARY)
            THEN from_json(CAST(value AS STRING), '`left out` STRUCT<size: BIGINT>').`left out`.size
            ELSE CAST(octet_length(value) AS BIGINT) END AS size_bytes,
        date_from_unix_date(CAST(ts_ns div 86400000000000 AS INT)) AS date
    FROM (
        SELECT *, row_number() OVER (PARTITION BY log_id, job, place ORDER BY lsn) AS turn
        FROM {records} WHERE place IS NOT NULL)
    WHERE turn = 1
"""
NEW_STEPS: Final = """
    SELECT * FROM {steps} AS new WHERE NOT EXISTS (
        SELECT 1 FROM {known} AS known
        WHERE known.log_id = new.log_id AND known.job = new.job AND known.place = new.place)
"""

#: First records of a child log: records of its parents before it, as far back as ``records`` goes,
#: and kept records of their open jobs. A job with a row of kind "finished" stays finished,
#: unless its parent continued it after the child's beginning.
HEIRS: Final = """
    SELECT spans.child, spans.home, every.* FROM {every} AS every JOIN {spans} AS spans
    ON every.log_id = spans.parent AND every.lsn >= spans.first AND every.lsn < spans.next
    UNION ALL
    SELECT spans.child, spans.home, kept.* FROM {kept} AS kept JOIN {spans} AS spans
    ON kept.log_id = spans.parent AND spans.next = spans.begins
        AND (kept.lsn < spans.begins OR kept.kind = 'finished')
    WHERE kept.kind <> 'finished' OR NOT EXISTS (
        SELECT 1 FROM {every} AS later WHERE later.log_id = kept.log_id AND later.job = kept.job
        AND later.lsn >= spans.begins)
"""
