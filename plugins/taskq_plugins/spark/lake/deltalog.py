"""Delta log of a table: commits of the protocol, checkpoints and properties.

A commit is complete and synced before it is visible. Files written by delta-rs are synced
afterwards.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from taskq_plugins.spark.lake import files
from taskq_plugins.spark.lake.errors import LakeConflict, LakeDiskError, LakeError
from taskq_plugins.spark.lake.files import publish, sync_directory, sync_file

DESCRIPTIONS: Final = {
    "records": "one row for each record of a log",
    "jobs": "one row for each job: its last state, times, arguments, result and attempts",
    "attempts": "one row for each attempt of a job",
    "rollup_hour": "jobs and attempts by device, queue, task and hour (UTC)",
    "failures": "one row for each kind of failure",
    "duplicates": "one row for each key that ran more than once",
    "device_lag": "one row for each log: how far it was read, and what waits in it",
    "breaks": "one row for each gap or fork of a log",
    "steps": "one row for each step, sleep or wait of a job that is done",
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
    "queue": "name of its queue",
    "task": "name of its task; null for a job that was put as bytes",
    "state": "state as of the last record; lost: its log no longer tells of it",
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
        "kind": "gap: records are missing; fork: the device was set back and went on otherwise",
        "is_declared": "by the device, to its hub; else it was found, and gone over",
        "branch": "of the records behind it; null: none was read, or not what the other branch had",
        "lsn": "the first that is missing; of a fork the first that both branches have otherwise",
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


DELTA_LOG: Final = "_delta_log"
#: Operation of a commit that rewrites the same rows.
OPTIMIZE: Final = "OPTIMIZE"
#: Key of a commit with only the logs that moved.
MOVED: Final = "moved"
#: In a table's log: where its last checkpoint is.
_LAST: Final = "_last_checkpoint"
#: Commits between two checkpoints: bounds how many a reader has to read.
_CHECKPOINT_EVERY: Final = 20
#: How long old versions stay readable. A small table is read for its changes.
_KEEP_HOURS: Final = {"failures": 7 * 24}
_KEEP_HOURS_ELSE: Final = 1
_KEPT: Final = "delta.deletedFileRetentionDuration"
#: The version of Delta's protocol that is written here.
_PROTOCOL: Final = 2
_T = TypeVar("_T")


def create(where: Path, schema: pa.Schema, *, dates: bool) -> None:
    where.mkdir(parents=True, exist_ok=True)
    if dates and files.DATE not in schema.names:
        schema = schema.append(pa.field(files.DATE, pa.date32()))
    described = pa.schema(_described(where.name, field) for field in schema)

    def make() -> None:
        DeltaTable.create(
            str(where),
            described,
            mode="ignore",
            partition_by=[files.DATE] if dates else [],
            description=DESCRIPTIONS.get(where.name),
            configuration=_configuration(where.name)
            | {"delta.dataSkippingStatsColumns": ",".join(files.indexed(schema))},
        )

    _durably(where, make)
    for directory in (where, where.parent):
        sync_directory(directory)


def append(where: Path, delta: DeltaTable, actions: Iterable[dict[str, Any]], beside: Path) -> None:
    """Make the next version of a table durable, and then seen.

    Args:
        where: the table's directory.
        delta: the table.
        actions: what the version says.
        beside: where its file is written first.
    """
    if delta.protocol().min_writer_version > _PROTOCOL:
        raise LakeError(
            f"{where}: somebody switched on features of Delta that are not written here: "
            f"fill a new lake with taskq pipeline run"
        )
    commit = where / DELTA_LOG / f"{delta.version() + 1:020}.json"
    lines = [json.dumps(action, separators=(",", ":")) + "\n" for action in actions]
    try:
        publish(commit, "".join(lines).encode(), beside)
    except FileExistsError as error:
        raise LakeConflict(where, f"there is a {commit.name} now") from error
    except OSError as error:
        raise LakeDiskError(where, error) from error


def keep_short(where: Path, delta: DeltaTable) -> None:
    if _KEPT not in delta.metadata().configuration:  # an earlier version made it
        wanted = _configuration(where.name)
        _durably(where, lambda: delta.alter.set_table_properties(wanted))
    last = 0
    with suppress(OSError, ValueError, KeyError, TypeError):
        last = int(json.loads((where / DELTA_LOG / _LAST).read_text())["version"])
    has_grown = delta.version() - last >= _CHECKPOINT_EVERY
    if has_grown:
        _durably(where, delta.create_checkpoint)
    # Commits with only moved logs are merged back to a commit with all logs.
    newest = next((commit for commit in commits(delta) if "batch" in commit), {})
    if "offsets" in newest or (has_grown and MOVED not in newest):
        delta.cleanup_metadata()


def vacuum(where: Path, delta: DeltaTable, keep_hours: int | None) -> int:
    """Remove files that no version of these hours names; None: of the hours that the table says."""

    def clean(*, dry_run: bool) -> list[str]:
        return delta.vacuum(
            keep_hours, dry_run=dry_run, enforce_retention_duration=False, full=True
        )

    if not clean(dry_run=True):
        return 0
    return len(_durably(where, lambda: clean(dry_run=False)))


def _durably(table: Path, act: Callable[[], _T]) -> _T:
    log = table / DELTA_LOG
    before = _names(log)
    try:
        done = act()
        after = _names(log)
        # Only the pointer to the last checkpoint is ever written anew.
        for name in after - before | after & {_LAST}:
            sync_file(log / name)
        sync_directory(log)
    except OSError as error:
        raise LakeDiskError(table, error) from error
    except DeltaError as error:
        raise LakeError(f"{table}: could not be written ({error})") from error
    return done


def _configuration(table: str) -> dict[str, str]:
    kept = f"interval {_KEEP_HOURS.get(table, _KEEP_HOURS_ELSE)} hours"
    return {
        "delta.checkpointInterval": str(_CHECKPOINT_EVERY),
        "delta.logRetentionDuration": kept,
        _KEPT: kept,
    }


def _described(table: str, field: pa.Field) -> pa.Field:
    comment = OF_TABLE.get(table, {}).get(field.name) or COMMENTS.get(field.name)
    if field.name in NEVER_NULL.get(table, ()):
        field = field.with_nullable(nullable=False)
    return field if comment is None else field.with_metadata({"comment": comment})


def commits(delta: DeltaTable) -> Iterator[dict[str, Any]]:
    given = 0
    for limit in (1, 50, None):
        some = delta.history(limit)
        yield from some[given:]
        if limit is None or len(some) < limit:
            return
        given = len(some)


def _names(directory: Path) -> set[str]:
    with suppress(FileNotFoundError):
        return {entry.name for entry in os.scandir(directory)}
    return set()
