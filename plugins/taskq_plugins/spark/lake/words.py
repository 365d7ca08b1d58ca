"""The tables and columns in words, as Delta's log tells them to whoever reads a table."""

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
    "breaks": "one row for each gap or fork of a log",
    "erased": "one row for each job that was erased: nothing that it brought along comes back",
}
_OF_ALL: Final = ("log_id", "branch", "job_id", "job", "is_over")
#: Columns of new tables that are never null.
NEVER_NULL: Final = {
    "records": ("device", "log_id", "branch", "kind"),
    "jobs": ("device", "state", *_OF_ALL),
    "attempts": ("device", *_OF_ALL),
}
COMMENTS: Final = {
    "device": "name of the log's directory",
    "log_id": "id of the log; a device that was installed anew has another",
    "branch": "how often the device was restored from a backup before",
    "epoch": "which opening of the log wrote it",
    "segment": "first lsn of the file of the log",
    "lsn": "number of the record in its log",
    "kind": "what the record says",
    "timestamp": "when it was written, by the device's clock",
    "ts_ns": "the same in nanoseconds since 1970",
    "job": "number of the job: the lsn of its first record",
    "job_id": "id of the job, as taskq show takes it",
    "state": "state as of the last record; lost: its log no longer tells of it",
    "attempt": "attempts so far",
    "attempts_max": "attempts at most",
    "enqueued_ns": "when it was enqueued, in nanoseconds since 1970",
    "due_ns": "not before this moment, in nanoseconds since 1970",
    "expires_ns": "not after this moment, in nanoseconds since 1970",
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
