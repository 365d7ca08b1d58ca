"""Descriptions of the lake's tables, and of columns with unclear names."""

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
    "breaks": "one row for each gap of a log, and for skipped records",
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
    "ts_ns": "nanoseconds since 1970, by the device's clock, as all columns _ns that are no spans",
    "job": "number of the job: the lsn of its first record",
    "task": "name of its task; null for a job that was put as bytes",
    "state": "state as of the last record; lost: neither its log nor a child has it any more",
    "continued_in": "the log that goes on with an unfinished job, for example after a restore",
    "enqueued_in": "the log in which it was enqueued: this log or a parent",
    "due_ns": "not before this moment, in nanoseconds since 1970",
    "expires_ns": "of an unclaimed job: it expires then, in nanoseconds since 1970",
    "key": "of several jobs with one key in one queue, one runs at a time",
    "payload": "arguments as they were given, mostly JSON",
    "value": "payload, result or reason of the record",
    "is_over": "nothing can change the row any more",
    "replay_of": "id of the job that this one runs again",
    "wait_ns": "from when it could be claimed until it was, in nanoseconds",
    "run_ns": "from claim to end, in nanoseconds",
}
#: Columns with another description in one table.
OF_TABLE: Final = {
    "rollup_hour": {
        "hour": "its start, by the device's clock",
        "attempts_released": "attempts given back in the hour, which do not count as such",
        "attempts_lost": "attempts that ended in the hour with their worker's process",
        "failure_rate": "of attempts: (retried + dead + lost) / (these + succeeded)",
        "dead_rate": "of jobs: dead / (dead + succeeded)",
    },
    "failures": {
        "fingerprint": "16 hex digits of task and pattern, the same in every lake",
        "pattern": "the normalised reason",
        "dead_jobs": "jobs that are dead of this kind now",
        "example_reason": "of the one seen last, at most 2 000 characters",
        "poison_jobs": "jobs among dead_jobs whose call is poison",
    },
    "duplicates": {
        "first_at": "the first of the jobs' first claims, by the devices' clocks",
        "runs": "the first run on each device, and how many ran there; the earliest 20",
    },
    "device_lag": {
        "is_current": "whether it is the one of the device's logs that arrived last",
        "last_arrival_at": "when a segment of it was last written on the hub, by the hub's clock",
        "clock_skew_seconds": "least lead of the device's clock over the hub's",
        "clock": "ahead, ok, behind or late; null: not known",
        "missing_from": "the first lsn of each gap between segments, in order, at most 20",
    },
    "breaks": {
        "kind": "gap: records are missing; damaged: they did not read, and were skipped",
        "is_declared": "by the device, to its hub; else it was found, and gone over",
        "end_lsn": "after the last record when it was declared, or that compaction wrote before",
        "cause": "in the device's words, or that compaction took it",
    },
    "steps": {
        "number": "which call of this name it is, from 1",
        "form": "step, sleep, event, timeout (of an event that never came) or call (of jobs)",
        "size_bytes": "of its value as JSON; null where records have no values",
    },
}
