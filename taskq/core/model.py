"""The words of the project as types: states, limits, and what a caller hands to the log."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskq.core.flows import FlowPart
    from taskq.core.rates import Limit

SECOND_NS: Final = 1_000_000_000
#: A call with a time limit outlasts it by so much at most, while the log itself does not answer.
LATE_SECONDS_MAX: Final = 0.5

#: Longest queue name, task name and dedup key, in UTF-8 bytes.
NAME_BYTES_MAX: Final = 255
KEY_BYTES_MAX: Final = 1_024
#: All headers of a job together, in encoded bytes.
HEADERS_BYTES_MAX: Final = 32 * 1_024
#: Largest payload or result kept inline.
PAYLOAD_BYTES_MAX: Final = 1024 * 1024
#: Largest transaction: it must fit one frame.
TRANSACTION_BYTES_MAX: Final = 8 * 1024 * 1024
#: Longest reason kept with a retry or a dead letter; longer ones lose their middle.
REASON_BYTES_MAX: Final = 8 * 1024
PRIORITY_MAX: Final = 9
PRIORITY_DEFAULT: Final = 5
#: Attempts are counted in 16 bits; 0 as a maximum means no limit.
ATTEMPTS_MAX: Final = 65_535
ATTEMPTS_DEFAULT: Final = 5
#: A log forgets nothing by time, so moments are bounded to keep their sums in 63 bits.
TIME_NS_MAX: Final = 2**62
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(time_ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_ns // 1_000)


def _moment_or_none(time_ns: int) -> datetime | None:
    return _moment(time_ns) if 0 < time_ns < TIME_NS_MAX else None


class State(enum.IntEnum):
    """Where a job is in its life."""

    #: not (or no longer) a job of this log
    ABSENT = 0
    #: waits for its time: delay, eta or backoff
    SCHEDULED = 1
    #: may be claimed now
    READY = 2
    #: claimed by a living owner
    RUNNING = 3
    #: settled well; its result is kept unless the task said otherwise
    SUCCEEDED = 4
    #: used up its attempts or was rejected; kept with its reason
    DEAD = 5
    #: withdrawn before it ran, or stopped while it did
    CANCELLED = 6
    #: its ``expires`` passed before it ran
    EXPIRED = 7

    def __str__(self) -> str:
        """Its name, as people and ``--json`` have it."""
        return self.name.lower()

    def __format__(self, how: str) -> str:
        return format(str(self), how)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        """By its name, wherever pydantic writes or reads it."""
        from pydantic_core import core_schema  # noqa: PLC0415 - slow to import

        names = {str(state): state for state in cls}
        return core_schema.no_info_before_validator_function(
            lambda given: names.get(given, given) if isinstance(given, str) else given,
            core_schema.enum_schema(cls, list(cls)),
            serialization=core_schema.plain_serializer_function_ser_schema(str, when_used="json"),
        )


LIVE_STATES: Final = frozenset({State.SCHEDULED, State.READY, State.RUNNING})
WAITING_STATES: Final = frozenset({State.SCHEDULED, State.READY})
SETTLED_STATES: Final = frozenset(State) - LIVE_STATES - {State.ABSENT}


class Durability(enum.StrEnum):
    """What an awaited answer survives."""

    #: a power loss
    FSYNC = "fsync"
    #: a process crash now, a power loss after at most ``interval_seconds``
    INTERVAL = "interval"
    #: a process crash
    OS = "os"


class Conflict(enum.StrEnum):
    """What an enqueue does when its key is held."""

    #: nothing new is enqueued; the answer is the job that holds the key
    FIRST = "first"
    #: it takes the key over, unless the holder runs; one that waits is cancelled
    REPLACE = "replace"
    #: it is refused with ``DuplicateKey``
    RAISE = "raise"


@dataclass(slots=True, kw_only=True)
class Extras:
    """The rarer options of one enqueue; an enqueue without any passes None instead.

    ``due_ns`` is a delay from the frame's time unless ``due_is_wall``, then a moment of wall time.
    ``expires_ns`` likewise with ``expires_is_wall``. ``window_ns`` of 0: the key holds until the
    job is settled; with ``until_settled`` it holds until both, window and job, are over.
    ``keep_ns`` counts from the job's end; 0: it is kept as its queue or log says. ``flow`` is what
    the job has to do with others of its transaction; such a job has neither key nor due time.
    """

    due_ns: int = 0
    due_is_wall: bool = False
    expires_ns: int = 0
    expires_is_wall: bool = False
    key: bytes | None = None
    window_ns: int = 0
    until_settled: bool = False
    on_conflict: Conflict = Conflict.FIRST
    headers: dict[str, str] = field(default_factory=dict)
    keep_ns: int = 0
    concurrency_key: bytes = b""
    flow: FlowPart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One delivery of a job, as the log tells it. Times are nanoseconds of wall time."""

    number: int
    owner: int
    started_ns: int
    #: 0 while it runs
    ended_ns: int = 0
    #: "succeeded", "retried", "died", "released", "lost", … or "" while it runs
    outcome: str = ""
    reason: str = ""
    #: of the job
    task: str = field(default="", compare=False)
    #: the owner's process, where somebody asked who that was; else 0 and ""
    pid: int = field(default=0, compare=False)
    worker: str = field(default="", compare=False)
    host: str = field(default="", compare=False)

    @property
    def started(self) -> datetime:
        """When it began, in UTC."""
        return _moment(self.started_ns)

    @property
    def ended(self) -> datetime | None:
        """When it ended, in UTC; None while it runs."""
        return _moment(self.ended_ns) if self.ended_ns else None

    @property
    def error(self) -> str:
        """The class of the error, with its module unless everybody knows it; "" without one."""
        return self._failure[0]

    @property
    def message(self) -> str:
        """What the error said, on one line."""
        return self._failure[1]

    def as_dict(self) -> dict[str, Any]:
        """The same as a document of JSON."""
        from taskq.core.documents import (  # noqa: PLC0415 - it knows this class
            attempt_document,
            process_document,
        )

        return attempt_document(self) | process_document(self)

    @property
    def fingerprint(self) -> str:
        """What this failure has in common with others of its kind; "" unless it failed.

        Sixteen hex digits of task, class and message, numbers, ids, addresses and the like left
        out: the same as in the pipeline's table ``failures``.
        """
        return self._failure[2]

    @property
    def _failure(self) -> tuple[str, str, str]:
        # A few milliseconds to import, for whoever looks at failures.
        from taskq.core.fingerprints import failure_of  # noqa: PLC0415

        return failure_of(self.task, self.outcome, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """Everything the log says of one job. Times are nanoseconds of wall time, 0 for never."""

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
    #: how the payload is stored, as flags of its record; 0: as it was given
    payload_flags: int = 0
    #: None unless the job succeeded and keeps a result
    result: bytes | None = None
    #: False for a job that was enqueued with store_result=False
    keeps_result: bool = True
    #: as ``payload_flags``
    result_flags: int = 0
    #: why payload or result are left out here
    problem: str = ""
    #: why it is dead, or why its last attempt failed
    reason: str = ""
    attempts: tuple[AttemptView, ...] = ()

    @property
    def enqueued_at(self) -> datetime:
        """When it was enqueued, in UTC."""
        return _moment(self.enqueued_ns)

    @property
    def due_at(self) -> datetime | None:
        """When it is due, in UTC; None for at once, and while it waits for other jobs."""
        return _moment_or_none(self.due_ns)

    @property
    def expires_at(self) -> datetime | None:
        """When it expires unless it ran by then, in UTC; None for never."""
        return _moment_or_none(self.expires_ns)

    @property
    def settled_at(self) -> datetime | None:
        """When it ended, in UTC; None before that."""
        return _moment_or_none(self.settled_ns)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments of the call by their names, as JSON has them; None for other payloads.

        ``"*"`` and ``"**"`` hold what goes to ``*args`` and ``**kwargs``.
        """
        from taskq.core.parsing import parse_json  # noqa: PLC0415 - few ask

        try:
            values = parse_json(self.payload) if self.task and self.payload is not None else None
        except ValueError:
            return None
        return values if isinstance(values, dict) else None

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON: what ``taskq show --json`` prints, but for progress and flow."""
        from taskq.core.documents import job_document  # noqa: PLC0415 - it knows this class

        return job_document(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """Counts of one queue, now, and how it fares."""

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
    #: since the oldest ready job was enqueued, or first due; None without one, or if not asked for
    oldest_ready_seconds: float | None = None
    #: jobs that succeeded or died, over the last minute, as the answering process saw it; None when
    #: it has not looked for a second yet
    throughput_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution: mean and max are exact, the others at most an eighth beside the truth."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """What the engine of one process did since it opened the log."""

    #: frames it appended, and the records in them
    batches: int
    records: int
    #: records of a batch
    batch_records: Spread
    #: (most records, how many batches), by size; sizes that never came are left out
    batch_histogram: tuple[tuple[int, int], ...]
    #: all that it appended to the log
    appended_bytes: int
    #: of the jobs it enqueued
    payload_bytes: int
    #: written beside the log: indexes, snapshots
    upkeep_bytes: int
    #: fsyncs of segments
    sync_seconds: Spread
    #: those of over a second
    slow_syncs: int
    #: to get the writer lock, uncontended ones included
    lock_wait_seconds: Spread
    #: the longest time it held the lock, waits for fsync excluded
    lock_hold_seconds_max: float
    #: records it read from the log to follow it: those of others, and from before it opened it
    caught_up_records: int
    #: what opening took, recovery included, the wait for the lock excluded
    open_seconds: float
    #: on the disk, when last looked at; None before that
    free_bytes: int | None
    #: enqueues are refused until there is more room
    is_disk_short: bool

    @property
    def write_amplification(self) -> float | None:
        """Bytes written for each byte of payload; None before the first payload."""
        if not self.payload_bytes:
            return None
        return (self.appended_bytes + self.upkeep_bytes) / self.payload_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """Counts of a whole log."""

    queues: tuple[QueueStats, ...]
    segments: int
    #: bytes in all segments
    size: int
    #: the lsn that the next record gets
    next_lsn: int
    #: of the answering process; None when the log was only read
    engine: EngineStats | None = None
    #: that were published and are not adopted as a whole
    uploads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Jobs that a worker keeps back for now, and why. None: of any queue, of any task."""

    queues: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    #: their queue backs off; else a condition that they need does not hold
    is_breaker: bool
    #: for people, without an end
    text: str
    #: wall time
    since_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What one worker claims, None: any; what it does not for now; the limits of its tasks."""

    queues: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    #: jobs that it runs at a time, 0 if that is not fixed
    slots: int = 0
    holds: tuple[Hold, ...] = ()
    limits: Mapping[str, Limit] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerView:
    """One process that has the log open, or had it when it died."""

    owner: int
    pid: int
    host: str
    name: str
    started_ns: int
    alive: bool
    #: jobs it holds now
    running: int = 0
    #: what its workers claim; empty for a process that only enqueues
    serves: tuple[Serving, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes that were once durable and no longer read back.

    ``first_lsn`` up to, not including, ``next_lsn`` are concerned; ``salvaged`` of those records
    were read all the same, each by its own CRC. With ``size`` 0 the bytes are not there at all:
    they stood behind ``offset`` of the segment, or before all of it where that is 0.
    """

    segment: str
    offset: int
    size: int
    first_lsn: int
    next_lsn: int
    salvaged: int = 0
    #: so many of these lsns nobody ever had: they were left out when an epoch began
    skipped: int = 0

    @property
    def lost(self) -> int:
        """Most records that are lost there."""
        return max(self.next_lsn - self.first_lsn - self.skipped - self.salvaged, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a full read of a log found."""

    segments: int
    frames: int
    records: int
    damage: tuple[Damage, ...]
    #: bytes after the last whole frame: a write that was cut short; the next writer sets them aside
    torn_bytes: int = 0
    #: ids of jobs whose records are among the damaged ones, as far as they can be told
    jobs: tuple[str, ...] = ()
    #: what is wrong with files beside the log that records name
    files: tuple[str, ...] = ()
    #: (first lsn, next lsn) of what is missing, as a repair accepted: no damage
    accepted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedSegment:
    """A segment that was removed, or could be, or why it stays."""

    segment: str
    size: int
    #: bytes of its records that are needed still, and are written again before it goes
    needed: int
    #: why it may go, or why it stays
    reason: str
    removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """What a compaction did, or would do."""

    segments: tuple[CompactedSegment, ...]
    #: jobs that were written again
    carried: int = 0
    #: whether nothing was changed
    dry_run: bool = False

    @property
    def freed(self) -> int:
        """Bytes of the segments that went, less what was written again."""
        return sum(one.size - one.needed for one in self.segments if one.removed)
