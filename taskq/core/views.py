"""Views of jobs, queues, processes and files, for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from taskq.core.durations import utc_moment
from taskq.core.errors import command
from taskq.core.model import LINES_BYTES_MAX, STATES, TIME_NS_MAX, State
from taskq.core.parsing import parse_json
from taskq.core.values import NamedTuple, dataclass

if TYPE_CHECKING:
    from taskq.core.rates import Limit


def moment(moment_ns: int) -> str | None:
    """Return a moment in ISO 8601, UTC, to the microsecond; None for never."""
    if not 0 < moment_ns < TIME_NS_MAX:
        return None
    return utc_moment(moment_ns).isoformat()


def owner(number: int) -> str:
    """Return an owner's number as in its file names. As text: JSON readers may round numbers."""
    return f"{number:016x}"


def body_document(body: bytes | None) -> dict[str, Any] | None:
    """Return a payload or result as JSON, text or base64, named by ``encoding``.

    A body with NaN or infinity, which JSON lacks, becomes text.
    """
    if body is None:
        return None
    try:
        text = body.decode()
    except UnicodeDecodeError:
        import base64  # noqa: PLC0415 - most bodies are text

        return {"encoding": "base64", "data": base64.b64encode(body).decode()}
    try:
        data = parse_json(text, parse_constant=_finite, parse_float=_finite)
    except ValueError:
        return {"encoding": "text", "data": text}
    return {"encoding": "json", "data": data}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def job_head(job: JobView) -> dict[str, Any]:
    """Return a job's fields without its bodies and attempts: an entry of ``ls --json``."""
    return {
        "id": job.job_id,
        "state": str(job.state),
        "queue": job.queue,
        "task": job.task or None,
        "priority": job.priority,
        "attempt": job.attempt,
        "attempts_max": job.attempts_max or None,
        "enqueued_at": moment(job.enqueued_ns),
        "due_at": moment(job.due_ns),
        "expires_at": moment(job.expires_ns),
        "settled_at": moment(job.settled_ns),
        "key": None if job.key is None else job.key.decode(errors="backslashreplace"),
        "headers": job.headers,
        "reason": job.reason or None,
    }


def attempt_document(attempt: AttemptView) -> dict[str, Any]:
    """Return one attempt of a job as a JSON document."""
    return {
        "number": attempt.number,
        "owner": owner(attempt.owner),
        "started_at": moment(attempt.started_ns),
        "ended_at": moment(attempt.ended_ns),
        "outcome": attempt.outcome or None,
        "reason": attempt.reason or None,
        "error": attempt.error or None,
        "message": attempt.message or None,
        "fingerprint": attempt.fingerprint or None,
        "lines": attempt.lines or None,
    }


def _moment_or_none(time_ns: int) -> datetime | None:
    return utc_moment(time_ns) if 0 < time_ns < TIME_NS_MAX else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An attempt of a job. Times are nanoseconds of wall time."""

    number: int
    owner: int
    started_ns: int
    #: 0 while it runs
    ended_ns: int = 0
    #: "succeeded", "retried", "dead", "released", "lost", … or "" while it runs
    outcome: str = ""
    reason: str = ""
    #: its logged lines, compressed; see ``lines``
    stored_lines: bytes = field(default=b"", repr=False)
    #: name of the job's task
    task: str = field(default="", compare=False)
    #: the owner's process, if the caller asked for it; else 0 and ""
    pid: int = field(default=0, compare=False)
    worker: str = field(default="", compare=False)
    host: str = field(default="", compare=False)

    @property
    def started_at(self) -> datetime:
        """Return its start, in UTC."""
        return utc_moment(self.started_ns)

    @property
    def ended_at(self) -> datetime | None:
        """Return its end, in UTC; None while it runs."""
        return utc_moment(self.ended_ns) if self.ended_ns else None

    @property
    def error(self) -> str:
        """Class of the error, with its module unless that is builtins; "" without an error."""
        return self._failure[0]

    @property
    def message(self) -> str:
        """Return the error's message, on one line."""
        return self._failure[1]

    @property
    def lines(self) -> str:
        """Return its latest logged lines; "" unless its task has ``keep_log``."""
        if not self.stored_lines:
            return ""
        import zlib  # noqa: PLC0415 - few tasks keep lines

        unpacker = zlib.decompressobj()
        try:
            return unpacker.decompress(self.stored_lines, LINES_BYTES_MAX).decode(errors="replace")
        except zlib.error:
            return ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON document, with the process if the caller asked for it."""
        process = {"pid": self.pid, "worker": self.worker, "host": self.host}
        return attempt_document(self) | {name: value or None for name, value in process.items()}

    @property
    def fingerprint(self) -> str:
        """Return a short name shared by failures of the same kind; "" unless the attempt failed.

        Sixteen hex digits computed from task, class and message, without numbers, ids, addresses
        and the like. The pipeline's table ``failures`` has the same digits.
        """
        return self._failure[2]

    @property
    def _failure(self) -> tuple[str, str, str]:
        # Takes a few milliseconds to import, only needed for failures.
        from taskq.core.fingerprints import failure_of  # noqa: PLC0415

        return failure_of(self.task, self.outcome, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job in the log. Times are nanoseconds of wall time, 0 for never."""

    lsn: int
    job_id: str
    queue: str
    #: "" for a job that was put as bytes
    task: str
    priority: int
    state: State
    #: attempts counted so far
    attempt: int
    #: 0: no limit
    attempts_max: int
    enqueued_ns: int
    due_ns: int = 0
    expires_ns: int = 0
    settled_ns: int = 0
    key: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    payload: bytes = b""
    #: storage of the payload, as flags of its record; 0: as given
    payload_flags: int = 0
    #: None unless the job succeeded and keeps a result
    result: bytes | None = None
    #: False for a job that was enqueued with store_result=False
    stores_result: bool = True
    #: like ``payload_flags``
    result_flags: int = 0
    #: the reason if payload or result are left out here
    problem: str = ""
    #: the reason of its death, or of its last failed attempt
    reason: str = ""
    attempts: tuple[AttemptView, ...] = ()

    @property
    def enqueued_at(self) -> datetime:
        """Return the time of its enqueue, in UTC."""
        return utc_moment(self.enqueued_ns)

    @property
    def due_at(self) -> datetime | None:
        """Return its due time, in UTC; None for at once, and while it waits for other jobs."""
        return _moment_or_none(self.due_ns)

    @property
    def expires_at(self) -> datetime | None:
        """Return its expiry, in UTC; None for never, and once a worker has claimed it."""
        return _moment_or_none(self.expires_ns)

    @property
    def settled_at(self) -> datetime | None:
        """Return its end, in UTC; None before that."""
        return _moment_or_none(self.settled_ns)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """Arguments of the call by name, as JSON values; None for other payloads.

        ``"*"`` and ``"**"`` hold the values of ``*args`` and ``**kwargs``.
        """
        try:
            values = parse_json(self.payload) if self.task and self.payload is not None else None
        except ValueError:
            return None
        return values if isinstance(values, dict) else None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON document: the output of ``taskq show --json`` without progress and flow."""
        return {
            **job_head(self),
            "payload": body_document(self.payload),
            "result": body_document(self.result),
            "problem": self.problem or None,
            "attempts": [attempt.as_dict() for attempt in self.attempts],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """Counts, age and throughput of one queue."""

    queue: str
    scheduled: int = 0
    ready: int = 0
    running: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0
    #: its jobs wait until it is resumed
    paused: bool = False
    #: time since the oldest ready job was enqueued, or was due; None without one, or if not asked
    #: for
    oldest_ready_seconds: float | None = None
    #: jobs that succeeded or died per second, over the last minute, as seen by the answering
    #: process; None before its first second
    throughput_per_second: float | None = None

    def __add__(self, more: QueueStats) -> QueueStats:
        waits = (self.oldest_ready_seconds, more.oldest_ready_seconds)
        rates = (self.throughput_per_second, more.throughput_per_second)
        known = [rate for rate in rates if rate is not None]
        return replace(
            self,
            paused=self.paused or more.paused,
            oldest_ready_seconds=max((wait for wait in waits if wait is not None), default=None),
            throughput_per_second=sum(known) if known else None,
            **{name: getattr(self, name) + getattr(more, name) for name in STATES},
        )


class Waiting(NamedTuple):
    """Counts of waiting jobs: ready ones, due ones of paused queues, and not yet due ones."""

    ready: int = 0
    paused: int = 0
    later: int = 0

    def plus(self, other: Waiting) -> Waiting:
        """Return the sums."""
        return Waiting(*map(int.__add__, self, other))

    def text(self) -> str:
        """Return the counts in words: "2 wait, 1 waits in a paused queue"; "" for none."""
        words = (
            (self.ready, "wait"),
            (self.paused, "wait in a paused queue"),
            (self.later, "are due later"),
        )
        single = {"wait": "waits", "are": "is"}
        parts = []
        for count, text in words:
            verb, gap, rest = text.partition(" ")
            if count:
                parts.append(f"{count:,} {single[verb] if count == 1 else verb}{gap}{rest}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution with exact mean and max; the percentiles are off by at most an eighth."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counts of the engine of one process since it opened the log."""

    #: frames appended, and their records
    batches: int
    records: int
    #: records per batch
    batch_records: Spread
    #: (upper bound of records, number of batches), by size; sizes without batches are left out
    batch_histogram: tuple[tuple[int, int], ...]
    appended_bytes: int
    #: payload bytes of enqueued jobs
    payload_bytes: int
    #: bytes written outside the segments: indexes, snapshots
    upkeep_bytes: int
    #: time of fsyncs of segments
    sync_seconds: Spread
    #: fsyncs that took over a second
    slow_syncs: int
    #: waits for the writer lock, including uncontended ones
    lock_wait_seconds: Spread
    #: longest time the lock was held, without waits for fsync
    lock_hold_seconds_max: float
    #: records read to follow the log: of other processes, and from before the open
    caught_up_records: int
    #: seconds to open the log, with recovery, without the wait for the lock
    open_seconds: float
    #: free on the disk at the last look; None before that
    free_bytes: int | None
    #: enqueues are refused until there is more room
    is_disk_short: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """Counts of a whole log."""

    queues: tuple[QueueStats, ...]
    #: number of segment files, and their bytes
    segments: int
    size: int
    next_lsn: int
    #: counts of the answering process; None when the log was only read
    engine: EngineStats | None = None

    def __str__(self) -> str:
        rows = [("queue", *STATES)]
        rows += [(q.queue, *(str(getattr(q, name)) for name in STATES)) for q in self.queues]
        first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
        cells = ([row[0].ljust(first), *map(str.rjust, row[1:], others)] for row in rows)
        return "\n".join("  ".join(row) for row in cells)

    def __add__(self, more: LogStats) -> LogStats:
        """Return the sums of two logs; ``next_lsn`` is the larger one."""
        queues = {stats.queue: stats for stats in self.queues}
        for stats in more.queues:
            queues[stats.queue] = queues[stats.queue] + stats if stats.queue in queues else stats
        return LogStats(
            queues=tuple(queues[name] for name in sorted(queues)),
            segments=self.segments + more.segments,
            size=self.size + more.size,
            next_lsn=max(self.next_lsn, more.next_lsn),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as a JSON document, without the engine."""
        return {
            "segments": self.segments,
            "size_bytes": self.size,
            "next_lsn": self.next_lsn,
            "queues": [asdict(queue) for queue in self.queues],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Jobs that a worker does not run for now, with the reason. None: of any queue, of any task."""

    queues: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    #: their queue backs off; else a condition of their task does not hold
    is_breaker: bool
    #: all slots run jobs that wait for others: the worker runs nothing before one of them ends
    is_stuck: bool = False
    #: the reason for people, without a full stop
    text: str
    #: wall time
    since_ns: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON document."""
        return {
            "kind": "stuck" if self.is_stuck else "breaker" if self.is_breaker else "condition",
            "text": self.text,
            "since": moment(self.since_ns),
            "queues": None if self.queues is None else sorted(self.queues),
            "tasks": None if self.tasks is None else sorted(self.tasks),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Claims of one worker, None for any; jobs held back; limits of its tasks."""

    queues: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    #: jobs that it runs at a time, 0 if the number is not fixed
    slots: int = 0
    holds: tuple[Hold, ...] = ()
    limits: Mapping[str, Limit] | None = None
    #: process to end on a stop request; 0: a program with other work, which no stop request ends
    stops: int = 0

    def takes(self, queue: str, task: str) -> bool:
        """Return whether such a claim would take a job of this queue and task ("" for none)."""
        return (self.queues is None or queue in self.queues) and (
            self.tasks is None or task in self.tasks
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the claims as a JSON document."""
        return {
            "queues": None if self.queues is None else sorted(self.queues),
            "tasks": None if self.tasks is None else sorted(self.tasks),
            "slots": self.slots or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentView:
    """A file of the log: bytes, and the wall time of its beginning; 0 if it is empty."""

    name: str
    size: int
    begun_ns: int

    def as_dict(self) -> dict[str, Any]:
        return {"segment": self.name, "size_bytes": self.size, "begun_at": moment(self.begun_ns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """A limit of a task, or of one of its concurrency keys, and its use."""

    task: str
    #: b"" for none
    key: bytes
    #: jobs that may run at a time, 0 for any number
    concurrency: int
    running: int
    #: in the form that users write, "" for none
    rate: str
    #: jobs that may start now under both limits
    room: int
    #: ready jobs
    waiting: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON document."""
        return asdict(self) | {"key": self.key.decode(errors="backslashreplace")}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerView:
    """A process that has the log open, or had it open when it died."""

    owner: int
    pid: int
    host: str
    name: str
    started_ns: int
    alive: bool
    #: jobs it holds now
    running: int = 0
    #: claims of its workers; empty for a process that only enqueues
    serves: tuple[Serving, ...] = ()
    #: versions of taskq and of Python; "" if the process was too old to report them
    version: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON document."""
        return {
            "owner": owner(self.owner),
            "pid": self.pid,
            "host": self.host,
            "name": self.name or None,
            "version": self.version or None,
            "alive": self.alive,
            "started_at": moment(self.started_ns),
            "running": self.running,
            "serves": [serving.as_dict() for serving in self.serves],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes that were once durable and can no longer be read.

    The records from ``first_lsn`` up to, not including, ``next_lsn`` are damaged. ``salvaged`` of
    them could still be read, by their own CRCs. With ``size`` 0 the bytes are missing: they
    followed ``offset`` of the segment, or preceded the segment if that is 0.
    """

    segment: str
    offset: int
    size: int
    first_lsn: int
    next_lsn: int
    salvaged: int = 0
    #: lsns in this range without a record: they were skipped when an epoch began
    skipped: int = 0

    @property
    def lost(self) -> int:
        """Upper bound of the records lost there."""
        return max(self.next_lsn - self.first_lsn - self.skipped - self.salvaged, 0)

    def explain(self, directory: str, again: str = "") -> str:
        """Return what is lost and what to do, in words for people.

        ``again`` is the command that brings the records back, if there is one.
        """
        where = f"after offset {self.offset} of" if self.offset else "before"
        most = "up to " if self.skipped else ""
        accept = f"or go on without them in a new log: {command(directory, 'repair')} --to NEW"
        cure = f"Have them sent again: {again}" if again else ""
        cure = cure or f"Bring the segments back from a backup, {accept}"
        return (
            f"{most}{self.lost} records are lost, of lsns {self.first_lsn} to {self.next_lsn - 1}, "
            f"and up to as many jobs: they were {where} {self.segment}. {cure}; the "
            f"known jobs are listed by: {command(directory, 'verify')}"
        )

    def as_dict(self) -> dict[str, str | int]:
        """Return the fields as a JSON document."""
        return {
            "segment": self.segment,
            "offset": self.offset,
            "size_bytes": self.size,
            "first_lsn": self.first_lsn,
            "next_lsn": self.next_lsn,
            "salvaged": self.salvaged,
        }


class ProgressView(NamedTuple):
    """Latest progress report of a running job."""

    #: 0 to 1
    fraction: float
    message: str
    #: wall time in nanoseconds
    at_ns: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON document."""
        return {"fraction": self.fraction, "message": self.message, "at": moment(self.at_ns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Findings of a full read of a log."""

    segments: int
    frames: int
    records: int
    damage: tuple[Damage, ...]
    #: bytes after the last whole frame: a short write, which the next writer sets aside
    torn_bytes: int = 0
    #: ids of jobs with damaged records, as far as they are known
    jobs: tuple[str, ...] = ()
    #: (first lsn, next lsn) of records whose loss a repair accepted: no damage
    accepted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedSegment:
    """A segment that was removed, could be removed, or stays."""

    segment: str
    #: bytes of the file
    size: int
    #: bytes of its needed records, which are written again first
    needed: int
    #: why it may be removed, or why it stays
    reason: str
    removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """Outcome of a compaction, or of its dry run."""

    segments: tuple[CompactedSegment, ...]
    #: jobs that were written again
    carried: int = 0
    #: whether nothing was changed
    dry_run: bool = False

    @property
    def freed(self) -> int:
        """Bytes of the removed segments, less the bytes written again."""
        return sum(segment.size - segment.needed for segment in self.segments if segment.removed)
