"""Descriptions of the lake's tables and their columns, which Delta's readers show."""

from __future__ import annotations

from typing import Final

DESCRIPTIONS: Final = {
    "records": "one row for each record of a log",
    "jobs": "one row for each job: its last state, times, arguments, result and attempts",
    "attempts": "one row for each attempt of a job",
    "rollup_hour": "jobs and attempts by device, queue, task and hour (UTC)",
    "failures": "one row for each kind of failure",
    "duplicates": "one row for each key that ran more than once",
    "device_lag": "one row for each log: how far it was read, and what waits in it",
    "breaks": "one row for each gap of a log, and for what was skipped",
    "steps": "one row for each step, sleep or wait of a job that is done",
    "erased": "one row for each job that was erased: nothing that it brought along comes back",
}
_OF_ALL: Final = ("log_id", "job_id", "job", "is_over")
#: Columns of new tables that are never null.
NEVER_NULL: Final = {
    "records": ("device", "log_id", "kind", "batch"),
    "jobs": ("device", "state", *_OF_ALL),
    "attempts": ("device", *_OF_ALL),
}
COMMENTS: Final = {
    "device": "name of the log's directory",
    "log_id": "id of the log; a device that was restored or installed anew has another",
    "batch": "number of the batch of the pipeline that brought it",
    "epoch": "which opening of the log wrote it",
    "segment": "first lsn of the file of the log",
    "lsn": "number of the record in its log",
    "kind": "what the record says",
    "timestamp": "when it was written, by the device's clock",
    "ts_ns": "the same in nanoseconds since 1970",
    "job": "number of the job: the lsn of its first record",
    "job_id": "id of the job, as taskq show takes it",
    "queue": "name of its queue",
    "task": "name of its task; null for a job that was put as bytes",
    "state": "state as of the last record; lost: neither its log nor a child tells of it any more",
    "continued_in": "the log that goes on with an unfinished job, as one that was restored does",
    "enqueued_in": "the log in which it was enqueued: this one, or one that it went on with",
    "settled_in": "the log in which it ended",
    "attempt": "attempts so far",
    "attempts_max": "attempts at most",
    "enqueued_ns": "when it was enqueued, in nanoseconds since 1970",
    "due_ns": "not before this moment, in nanoseconds since 1970",
    "expires_ns": "of one that no worker has claimed: it expires then, in nanoseconds since 1970",
    "settled_ns": "when it ended, in nanoseconds since 1970",
    "key": "of several jobs with one key in one queue, one runs at a time",
    "payload": "arguments as they were given, mostly JSON",
    "value": "payload, result or reason of the record",
    "result": "what the task returned",
    "reason": "why it failed last",
    "is_over": "nothing can change the row any more",
    "replay_of": "id of the job that this one runs again",
    "number": "which attempt of the job",
    "owner": "which worker process",
    "outcome": "how the attempt ended",
    "wait_ns": "from when it could be claimed until it was, in nanoseconds",
    "run_ns": "from claim to end, in nanoseconds",
    "date": "day (UTC) that the table is partitioned by",
}
_SETTLED: Final = ("succeeded", "dead", "cancelled", "expired")
_SPANS: Final = {
    "wait": "from when it could run until the claim",
    "run": "from the claim to the end",
}
_RANKS: Final = {"p50": "median", "p95": "95th percentile", "p99": "99th percentile", "max": "most"}
#: Columns with another description in one table.
OF_TABLE: Final[dict[str, dict[str, str]]] = {
    "rollup_hour": {
        "hour": "its start, by the device's clock",
        "enqueued": "jobs enqueued in the hour",
        **{state: f"jobs settled in the hour that are {state} now" for state in _SETTLED},
        "settled": "the sum of succeeded, dead, cancelled and expired",
        "attempts_succeeded": "attempts that ended in the hour and succeeded",
        "attempts_retried": "attempts that ended in the hour and were retried",
        "attempts_dead": "attempts that ended in the hour and were the last",
        "attempts_released": "attempts given back in the hour, which do not count as such",
        "attempts_lost": "attempts that ended in the hour with their worker's process",
        "attempts_ended": "all that ended in the hour",
        "failure_rate": "of attempts: (retried + dead + lost) / (these + succeeded)",
        "dead_rate": "of jobs: dead / (dead + succeeded)",
        **{
            f"{span}_{rank}_seconds": f"{rank_words} of the attempts that ended: {span_words}"
            for span, span_words in _SPANS.items()
            for rank, rank_words in _RANKS.items()
        },
    },
    "failures": {
        "fingerprint": "16 hex digits of task and pattern, the same in every lake",
        "pattern": "the normalised reason",
        "failed_attempts": "failed attempts of this kind",
        "jobs": "jobs with such an attempt, or dead of this kind",
        "dead_jobs": "jobs that are dead of this kind now",
        "devices": "devices of these jobs",
        "workers": "worker processes (device and owner) of these attempts",
        "first_seen": "the first of the ends of these attempts and jobs, by the device's clock",
        "last_seen": "the last of them",
        "queues": "names of their queues, in order, at most 20",
        "example_device": "of the one seen last",
        "example_job_id": "of the one seen last",
        "example_reason": "of the one seen last, at most 2 000 characters",
        "poison_jobs": "jobs among dead_jobs whose call is poison",
        "poison": "whether there are any",
        "poison_job_ids": "their ids, in order, at most 20",
    },
    "duplicates": {
        "tasks": "names of the tasks, in order, at most 20",
        "devices": "devices on which it ran: at least 2",
        "jobs": "jobs that ran",
        "succeeded": "those among them that succeeded",
        "first_at": "the first of the jobs' first claims, by the devices' clocks",
        "last_at": "the last of these",
        "runs": "the first run on each device, and how many ran there; the earliest 20",
    },
    "device_lag": {
        "logs_of_device": "logs under this device's name; of a reinstalled one 2 or more",
        "is_current": "whether it is the one of these that arrived last",
        "last_record_at": "newest record, by the device's clock",
        "last_arrival_at": "when a segment of it was last written on the hub, by the hub's clock",
        "record_lag_seconds": "from the newest record until now; negative: it is in the future",
        "arrival_lag_seconds": "from the last arrival until now",
        "clock_skew_seconds": "so much the device's clock is ahead of the hub's, at least",
        "clock": "ahead, ok, behind or late; null: not known",
        **{state: f"jobs that are {state}" for state in ("scheduled", "running", "dead")},
        "waiting": "jobs that are ready",
        "oldest_waiting_at": "when the oldest of the jobs that are ready was enqueued",
        "oldest_waiting_seconds": "from then until now",
        "segments": "segment files here",
        "size_bytes": "bytes of them",
        "missing_segments": "gaps between them",
        "missing_from": "the first lsn of each gap, in order, at most 20",
    },
    "breaks": {
        "kind": "gap: records are missing; damaged: they did not read, and were skipped",
        "is_declared": "by the device, to its hub; else it was found, and gone over",
        "lsn": "the first that is missing",
        "goes_on_lsn": "the first lsn behind a gap",
        "end_lsn": "behind the last record when it was declared, or that compaction wrote before",
        "cause": "in the device's words, or that compaction took it",
    },
    "steps": {
        "place": "which of the job's steps it is, from 0",
        "name": "the step's name",
        "number": "which call of this name it is, from 1",
        "form": "step, sleep, event, timeout (of an event that never came) or call (of jobs)",
        "attempt": "in which it was done",
        "began_at": "null where it is not told",
        "ended_at": "by the device's clock",
        "began_ns": "when it began, in nanoseconds since 1970",
        "ended_ns": "when it ended, in nanoseconds since 1970",
        "took_ns": "between them; at least 0",
        "size_bytes": "of its value as JSON; null where records have no values",
    },
}
