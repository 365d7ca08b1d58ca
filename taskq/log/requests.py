"""Requests of callers to the storage thread, and their answers: the whole interface of a log.

A request is a tuple ``(op, port, future, operand)`` in the mailbox of the storage thread. A job's
life is three requests: ``ENQUEUE`` writes it, ``CLAIM`` gives it to a worker as a ``Delivery``, and
``SETTLE`` ends the attempt. ``log/decide`` turns a request into records, ``log/commit`` writes the
records of all waiting requests as one frame and sends the answers.

The operations come first, then their operands and answers in the same order.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from taskq.core import model, parsing, records
from taskq.core.errors import UsageError
from taskq.core.model import ATTEMPTS_MAX, PRIORITY_MAX
from taskq.core.parsing import check_name, whole
from taskq.core.records import PACKED, Flag
from taskq.core.values import NamedTuple, dataclass
from taskq.log.format import codec
from taskq.log.format.bodies import DECOMPRESSED_BYTES_MAX, decompress
from taskq.log.format.codec import FLAGS_AT
from taskq.log.format.options import enqueue_extras

if TYPE_CHECKING:
    from taskq.core import rates, sources
    from taskq.core.folds import claims, lanes


#: A tuple, since an object per request would cost as much as encoding a job.
Request = tuple[int, Any, Any, Any]
#: (port, future, value or error); without a future, a call on the port's side
Answer = tuple[Any, Any, Any]


class Trait(enum.IntFlag):
    """Properties of an operation, for any operand."""

    #: needs the agenda: jobs that wait and run
    AGENDA = 1
    #: needs the table of held keys
    KEYS = 2
    #: adds jobs, so it is refused first when the disk gets full
    GROWS = 4
    #: may wait for the writer lock without a limit, as no caller measures the time
    PATIENT = 8
    #: is answered before it is on disk: a power loss ends claims anyway, and compaction syncs at
    #: its end
    AT_ONCE = 16
    #: runs after the frame of its batch, so that it sees the batch's records
    AFTER = 32


class Op(enum.IntEnum):
    """The operations. Each comment has operand -> answer."""

    _value_: int
    traits: Trait

    def __new__(cls, traits: Trait) -> Self:
        op = int.__new__(cls, len(cls.__members__))
        op._value_, op.traits = len(cls.__members__), traits
        return op

    # -- enqueues
    #: (spec, body, extras) -> lsn, or Duplicate
    ENQUEUE = Trait.GROWS
    #: [(spec, body, extras), …] or Plain -> [lsn or Duplicate, …]; one transaction
    ENQUEUE_MANY = Trait.GROWS
    #: Run, which is its own future -> an lsn for each of its jobs
    ENQUEUE_RUN = Trait.GROWS
    #: Ingest -> as ENQUEUE_MANY: jobs, and the position of their source
    INGEST = Trait.AGENDA | Trait.GROWS
    #: bytes -> None if the disk has room for jobs of this size
    ROOM = Trait.GROWS | Trait.AT_ONCE
    # -- claims and their ends
    #: ClaimRequest -> [Delivery, …]
    CLAIM = Trait.AGENDA | Trait.PATIENT
    #: (Delivery, nanoseconds until the new deadline) -> None
    EXTEND = Trait.AGENDA | Trait.AT_ONCE
    #: [Settlement, …] -> [None or TaskqError, …]
    SETTLE = Trait.AGENDA
    #: SETTLE of settlements with children
    SETTLE_PARENTS = Trait.AGENDA | Trait.GROWS
    #: ([Settlement, …], on_error) -> no answer; retried while the disk is full
    SETTLE_NOWAIT = Trait.AGENDA | Trait.PATIENT
    #: ([Delivery, …], on_error): SETTLE_NOWAIT of successes without a result
    SUCCEED_NOWAIT = Trait.AGENDA | Trait.PATIENT
    #: Bundle -> Done
    TRANSACT = Trait.AGENDA
    #: lsn -> Cancel
    CANCEL = Trait.AGENDA
    # -- steps and flows
    #: finished NewStep -> Stepped; it may use the room that new jobs must leave
    STEP = Trait.AGENDA
    #: NewStep before its work -> Stepped; None if no signal has come
    ASK = Trait.AGENDA | Trait.GROWS
    #: (Delivery, packed waits) -> None
    WAIT = Trait.AGENDA | Trait.GROWS
    #: NewSignal -> whether it is new
    SIGNAL = Trait.AGENDA | Trait.GROWS
    #: Fork -> lsn
    FORK = Trait.AGENDA | Trait.GROWS
    # -- questions
    #: lsn -> Outcome, once the job is settled
    OUTCOME = Trait(0)
    #: (function of the sight, the needed traits AGENDA and KEYS) -> its result
    LOOK = Trait.AFTER
    #: function of the sight, the queues' and the engine's numbers -> its LogStats
    STATS = Trait.AFTER
    #: lsn, or None for the present end -> Extent, once the log is readable beyond it
    FOLLOW = Trait.AFTER | Trait.PATIENT
    # -- administration
    #: name of a queue -> whether it was running
    PAUSE = Trait.AGENDA
    #: name of a queue -> whether it was paused
    RESUME = Trait.AGENDA
    #: Withdrawal -> [lsn, …] of the cancelled jobs
    WITHDRAW = Trait.AGENDA
    #: Edit -> whether it changed anything; None: the job is not as the caller found it
    EDIT = Trait.AGENDA | Trait.KEYS | Trait.GROWS
    #: [Letter, …] -> [None or TaskqError, …]: make dead letters ready again
    REQUEUE = Trait.AGENDA | Trait.GROWS
    #: [lsn, …] -> [None or TaskqError, …]: remove dead letters
    PURGE = Trait.AGENDA
    #: operand Act -> None
    ACT = Trait(0)
    # -- schedules
    #: Turn -> answers to the jobs of the ticks; None if another process was faster
    TICK = Trait.AGENDA | Trait.GROWS
    #: [Enrolment, …] -> None
    ENROL = Trait.AGENDA
    #: Steer -> whether it changed anything
    STEER = Trait.AGENDA
    # -- compaction
    #: [Rewrite or Again, …] -> number of jobs to check again
    CARRY = Trait.AGENDA | Trait.KEYS | Trait.AT_ONCE
    #: range of lanes -> None
    TALLY = Trait.AGENDA | Trait.KEYS
    #: Floor -> None
    COMPACTED = Trait.AGENDA | Trait.KEYS
    #: first lsn of a segment -> whether it was removed
    DROP = Trait.AGENDA | Trait.KEYS
    # -- controls
    #: operand Change -> whether it changed anything
    CONTROL = Trait.AGENDA


def ops_that(trait: Trait) -> frozenset[int]:
    return frozenset(op for op in Op if op.traits & trait)


# -- enqueues --------------------------------------------------------------------------------------


class EnqueueSpec:
    """Options of an enqueue that a task fixes at decoration, encoded once.

    Attributes:
        queue: 1 to 255 UTF-8 bytes, no control characters.
        task: name of the task, "" for bytes without a task.
        priority: 0 to 9.
        attempts: most claims of the job before it is dead; 0 for no limit.
        flags: of ``Flag``.
    """

    __slots__ = (
        "_packed", "attempts", "flags", "lane_key", "priority", "queue", "route", "tail", "task",
    )  # fmt: skip

    def __init__(
        self,
        queue: str = "default",
        task: str = "",
        priority: int = model.PRIORITY_DEFAULT,
        attempts: int = model.ATTEMPTS_DEFAULT,
        flags: int = 0,
    ) -> None:
        priority, attempts = whole(priority, "priority"), whole(attempts, "attempts")
        if not 0 <= priority <= PRIORITY_MAX:
            raise UsageError(
                f"priority is {priority}, it must be 0 (last) to {PRIORITY_MAX} (first)"
            )
        if not 0 <= attempts <= ATTEMPTS_MAX:
            raise UsageError(f"attempts is {attempts}, it must be 0 (no limit) to {ATTEMPTS_MAX}")
        queue_bytes = check_name("queue name", queue)
        task_bytes = check_name("task name", task) if task else b""
        self.queue: str = queue
        self.task: str = task
        self.priority: int = priority
        self.attempts: int = attempts
        # A single attempt must not run twice, so its claim must be on disk before it runs.
        self.flags: int = int(flags | Flag.CHECKED | (Flag.DURABLE_CLAIM if attempts == 1 else 0))
        self.route: bytes = queue_bytes + task_bytes
        #: key of a lane besides its priority; see ``LaneQueues.lane``
        self.lane_key: bytes = bytes((len(queue_bytes), len(task_bytes))) + self.route
        #: the record from after its length to its body, for an enqueue without options
        self.tail: bytes = codec.enqueue_tail(
            priority, int(self.flags), attempts, len(queue_bytes), len(task_bytes), self.route, b""
        )
        self._packed: dict[int, EnqueueSpec] = {}

    def packed(self, flags: int) -> EnqueueSpec:
        """Return a spec for bodies stored with these flags; 0: stored as given."""
        if not flags:
            return self
        spec = self._packed.get(flags)
        if spec is None:
            spec = self._packed[flags] = EnqueueSpec(
                self.queue, self.task, self.priority, self.attempts, self.flags | flags
            )
        return spec


#: (options of the task, payload, options of this call)
Item = tuple[EnqueueSpec, bytes, model.Extras | None]


class Duplicate(NamedTuple):
    """Answer to an enqueue whose key another job holds."""

    #: lsn of the job that holds the key
    lsn: int


class Plain(NamedTuple):
    """Jobs of a transaction with one spec and without options."""

    spec: EnqueueSpec
    bodies: list[bytes]


class Act(NamedTuple):
    """Note of a request with its author, about these jobs, or about the log if there are none."""

    jobs: list[int]
    text: str


class Ingest(NamedTuple):
    """Jobs of a source, and its position after them; without jobs only the position moves.

    A move to an empty position, without jobs, forgets the source.
    """

    move: sources.Move
    items: list[Item] | Plain


# -- claims and their ends -------------------------------------------------------------------------


@dataclass(slots=True)
class ClaimRequest:
    """Parameters of a claim, kept while the claim waits.

    Attributes:
        count: most deliveries.
        queues: names, or None for all.
        tasks: names of its tasks, or None for any job, including jobs put as bytes.
        wait_until_ns: steady time at which it returns an empty list; None to wait for ever.
        limits: of tasks, by name; the same mapping until a limit changes.
        weights: shares of the queues; None: only priority and age count.
        lease_ns: time after which claims end unless extended; 0: when their owner dies.
    """

    count: int
    queues: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    wait_until_ns: int | None = None
    lease_ns: int = 0
    limits: Mapping[str, rates.Limit] | None = None
    weights: claims.Weights | None = None

    def is_over(self, steady_ns: int) -> bool:
        """Return whether its wait has ended."""
        return self.wait_until_ns is not None and self.wait_until_ns <= steady_ns


_ENQUEUED_HEAD: Final = struct.Struct("<IBBHIHBB")


class _DeliveryFields(NamedTuple):
    tag: parsing.Tag
    job: int
    token: int
    epoch: int
    attempt: int
    lane: lanes.Lane
    record: bytes


class Delivery(_DeliveryFields):
    """A claim of a job for a worker, with the token that its settlement needs.

    ``record`` is the job's whole enqueue record; its parts are decoded on demand. It is a tuple,
    since one is made per job, at a third of the cost of an object with attributes.
    """

    __slots__ = ()

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return self.tag.id(self.job)

    @property
    def queue(self) -> str:
        """Name of the job's queue."""
        return self.lane.queue

    @property
    def task(self) -> str:
        """Name of the job's task, "" for a job put as bytes."""
        return self.lane.task

    @property
    def priority(self) -> int:
        """Priority of the job, 0 to 9."""
        return self.lane.priority

    @property
    def attempts_max(self) -> int:
        """Return the most claims of the job; 0 for no limit."""
        attempts: int = _ENQUEUED_HEAD.unpack_from(self.record)[5]
        return attempts

    @property
    def payload(self) -> bytes:
        """Enqueued bytes.

        Raises:
            LogDamaged: they do not decompress.
            PayloadTooLarge: decompressed they are over DECOMPRESSED_BYTES_MAX.
            CompressionUnavailable: their compression is not installed here.
        """
        flags = self.record[FLAGS_AT] & PACKED
        if not flags:
            return self.stored_payload
        what = f"the payload of job {self.job_id}"
        return decompress(self.stored_payload, flags, DECOMPRESSED_BYTES_MAX, what)

    @property
    def payload_flags(self) -> int:
        """Return the flags of the stored payload; 0: stored as given."""
        return self.record[FLAGS_AT] & PACKED

    @property
    def stored_payload(self) -> bytes:
        """Payload in the form of its record."""
        record = self.record
        if not (record[6] or record[7]):  # the size of the options
            # The common record: the part before the body has one length in the whole lane.
            return record[self.lane.body_at : -4]
        return codec.enqueue_body(record)

    @property
    def extras(self) -> model.Extras:
        """Key, headers, due time and expiry from the record."""
        return enqueue_extras(self.record)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the job."""
        return self.extras.headers

    def __repr__(self) -> str:
        return f"<Delivery {self.job_id} {self.task or self.queue} attempt {self.attempt}>"


class Settlement(NamedTuple):
    """End of a delivery.

    ``kind`` is SUCCEEDED, RETRIED, DEAD, RELEASED or CANCELLED. ``body`` is the result or reason.
    ``delay_ns`` counts from the settling frame. ``children`` are enqueued in the same frame, or not
    at all. ``flags`` are the result's encoding (``bodies``). ``lines`` is the option with the
    attempt's log.
    """

    kind: records.Kind
    delivery: Delivery
    body: bytes | None = None
    delay_ns: int = 0
    cause: records.Cause = records.Cause.CALLER
    children: tuple[Item, ...] = ()
    flags: int = 0
    lines: bytes = b""


class Bundle(NamedTuple):
    """Requests of a transaction: all succeed, or none. Its settlements have no children.

    ``cancels`` are lsns of jobs.
    """

    settlements: tuple[Settlement, ...] = ()
    cancels: tuple[int, ...] = ()
    items: tuple[Item, ...] = ()


class Done(NamedTuple):
    """Result of a transaction: results of its cancels, and answers to its enqueues."""

    cancelled: list[Cancel]
    jobs: list[int | Duplicate]


class Outcome(NamedTuple):
    """A settled job: its state, and its result (SUCCEEDED, None if not kept) or reason (DEAD).

    ``flags`` are of the stored result; 0: stored as given.
    """

    state: model.State
    body: bytes | None
    flags: int = 0


# -- cancels and queues ----------------------------------------------------------------------------

#: A job to cancel, and the token of its claim.
Ask = tuple[int, int]

#: Most jobs withdrawn by one request: no batch may hold the lock for long.
WITHDRAWN_MAX: Final = 500


class Cancel(enum.IntEnum):
    """Result of a cancel; true unless it was too late."""

    #: the job is settled
    TOO_LATE = 0
    #: it waited, and has ended
    WITHDRAWN = 1
    #: it runs: its owner was asked to stop it, now or earlier, and it never runs again
    ASKED = 2


class Withdrawal(NamedTuple):
    """Waiting jobs to cancel, with the cause; with ``expired`` they expire instead."""

    jobs: list[int]
    cause: records.Cause = records.Cause.CALLER
    expired: bool = False


# -- dead letters ----------------------------------------------------------------------------------

#: Most dead letters that one request requeues or purges: 0.1 ms each, on a busy machine, ...
LETTERS_MAX: Final = 250
#: ... and most bytes of them, without the last one: no batch may hold the lock for long.
LETTERS_BYTES_MAX: Final = 256 * 1024


class Letter(NamedTuple):
    """A dead letter to requeue."""

    job: int
    #: its ENQUEUED record, without due time
    born: bytes
    enqueued_ns: int
    #: its packed attempts, and the packed log of the last attempt
    history: bytes = b""
    lines: bytes = b""

    @property
    def size(self) -> int:
        """Approximate bytes that it adds to the log."""
        kept = len(self.history) + len(self.lines)
        return codec.WHOLE.size + len(self.born) + kept + codec.BACK.size

    @property
    def has_options(self) -> bool:
        options_size: int = codec.PREFIX.unpack_from(self.born)[3]
        return options_size > 0


# -- schedules -------------------------------------------------------------------------------------

#: Most ticks in one request: no batch may hold the lock for long.
TICKS_MAX: Final = 200


class Turn(NamedTuple):
    """Due ticks of one schedule, in the order of their moments, and their jobs."""

    name: str
    #: the schedule's ``done_ns`` when it was read; if it changed, another process was faster
    seen_ns: int
    #: the schedule's new ``done_ns``
    done_ns: int
    #: moments of the ticks; empty if all due ticks are skipped
    moments: tuple[int, ...]
    items: tuple[Item, ...]


class Enrolment(NamedTuple):
    """A schedule of a starting worker's code, or ``added`` at run time."""

    name: str
    rule: bytes
    details: bytes
    added: bool = False


class Steer(NamedTuple):
    """Wish for a schedule: "pause", "resume", "reset" or "forget"."""

    name: str
    action: str


# -- compaction ------------------------------------------------------------------------------------

#: Most lanes whose totals go into one batch.
TALLIES_MAX: Final = 1_000


class Order(NamedTuple):
    """A compaction that a caller asked for."""

    #: retention in place of the log's own; None: the log's own
    keep_seconds: float | None
    dry_run: bool
    port: Any
    future: Any


class Rewrite(NamedTuple):
    """A job to rewrite, as it was found.

    ``location`` is of the record with the job's ENQUEUED record, whose segment is about to go.
    ``state`` is ABSENT for a forgotten job that only holds a key.
    """

    job: int
    location: int
    state: model.State
    born: bytes
    enqueued_ns: int
    attempt: int = 0
    #: of a scheduled job: due time, in shifted time unless ``due_is_wall``
    due_ns: int = 0
    due_is_wall: bool = False
    #: of a job that no worker has claimed: its relative expiry, in shifted time; in wall time for
    #: an ended job
    expires_ns: int = 0
    ended_ns: int = 0
    history: bytes = b""
    body: bytes | None = None
    flags: int = 0
    #: packed log of its last attempt
    lines: bytes = b""


class Edit(NamedTuple):
    """A waiting job, and changes of its waiting; None for no change."""

    item: Rewrite
    priority: int | None = None
    queue: bytes | None = None
    #: a moment and True if it is wall time, else nanoseconds from now; 0: at once
    due: tuple[int, bool] | None = None


class Floor(NamedTuple):
    """Report of compaction that a segment is no longer needed.

    ``lsn`` is the first lsn that is kept.
    """

    lsn: int
