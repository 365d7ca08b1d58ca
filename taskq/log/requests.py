"""Requests of callers to the storage thread, and their answers: the whole interface of a log.

A request is a tuple ``(op, port, future, operand)`` in the mailbox of the storage thread. A job's
life is three of them: ``ENQUEUE`` writes it, ``CLAIM`` gives it to a worker as a ``Delivery``, and
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


#: One tuple: an object for each job would cost as much as encoding it.
Request = tuple[int, Any, Any, Any]
#: (port, future, value or error); with no future, a call for the port's side
Answer = tuple[Any, Any, Any]


class Trait(enum.IntFlag):
    """Properties of an operation, for any operand."""

    #: needs the agenda: jobs that wait and run
    AGENDA = 1
    #: needs the table of held keys
    KEYS = 2
    #: adds jobs: refused first when the disk gets full
    GROWS = 4
    #: may wait for the writer lock without a limit: no caller counts the time
    PATIENT = 8
    #: is answered before the disk has it: a power loss ends claims anyway, and a compaction
    #: syncs at its end
    AT_ONCE = 16
    #: is done after the frame of its batch, so that it sees the records of the batch
    AFTER = 32


class Op(enum.IntEnum):
    """The operations. A comment has the operand -> the answer."""

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
    #: (Delivery, nanoseconds until the claim ends) -> None
    EXTEND = Trait.AGENDA | Trait.AT_ONCE
    #: [Settlement, …] -> [None or TaskqError, …]
    SETTLE = Trait.AGENDA
    #: SETTLE of settlements with children
    SETTLE_PARENTS = Trait.AGENDA | Trait.GROWS
    #: ([Settlement, …], on_error) -> no answer; tried again while the disk is full
    SETTLE_NOWAIT = Trait.AGENDA | Trait.PATIENT
    #: ([Delivery, …], on_error): SETTLE_NOWAIT of successes without a result
    SUCCEED_NOWAIT = Trait.AGENDA | Trait.PATIENT
    #: Bundle -> Done
    TRANSACT = Trait.AGENDA
    #: lsn -> Cancel
    CANCEL = Trait.AGENDA
    # -- steps and flows
    #: NewStep that is done -> Stepped; it may use the room that new jobs must leave
    STEP = Trait.AGENDA
    #: NewStep before its work -> Stepped; None: no signal has come
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
    #: lsn, or None for the log's end now -> Extent, once the log is readable beyond it
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
    #: [Letter, …] -> [None or TaskqError, …]: dead letters are ready again
    REQUEUE = Trait.AGENDA | Trait.GROWS
    #: [lsn, …] -> [None or TaskqError, …]: dead letters are forgotten
    PURGE = Trait.AGENDA
    #: operand Act -> None
    ACT = Trait(0)
    # -- schedules
    #: Turn -> answers to the jobs of the ticks; None: another process was faster
    TICK = Trait.AGENDA | Trait.GROWS
    #: [Enrolment, …] -> None
    ENROL = Trait.AGENDA
    #: Steer -> whether it is new
    STEER = Trait.AGENDA
    # -- compaction
    #: [Rewrite or Again, …] -> the number of jobs to look at again
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
    """The options of an enqueue that a task fixes at decoration, encoded once.

    Attributes:
        queue: 1 to 255 UTF-8 bytes, no control characters.
        task: name of the task, "" for bytes that no task owns.
        priority: 0 to 9.
        attempts: how often the job may be claimed before it is dead; 0 for no limit.
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
        # A single attempt must not run twice, so its claim has to be on disk before it runs.
        self.flags: int = int(flags | Flag.CHECKED | (Flag.DURABLE_CLAIM if attempts == 1 else 0))
        self.route: bytes = queue_bytes + task_bytes
        #: key of a lane besides its priority; see ``Queues.lane``
        self.lane_key: bytes = bytes((len(queue_bytes), len(task_bytes))) + self.route
        #: everything of the record between its length and its body, when it has no options
        self.tail: bytes = codec.enqueue_tail(
            priority, int(self.flags), attempts, len(queue_bytes), len(task_bytes), self.route, b""
        )
        self._packed: dict[int, EnqueueSpec] = {}

    def packed(self, flags: int) -> EnqueueSpec:
        """Return the same for bodies that are stored as these flags say; 0: as they were given."""
        if not flags:
            return self
        spec = self._packed.get(flags)
        if spec is None:
            spec = self._packed[flags] = EnqueueSpec(
                self.queue, self.task, self.priority, self.attempts, self.flags | flags
            )
        return spec


#: (what its task fixes, payload, what this call adds)
Item = tuple[EnqueueSpec, bytes, model.Extras | None]


class Duplicate(NamedTuple):
    """The answer to an enqueue whose key was taken."""

    #: lsn of the job that holds the key
    lsn: int


class Plain(NamedTuple):
    """Jobs of a transaction that are of one spec and have no options."""

    spec: EnqueueSpec
    bodies: list[bytes]


class Act(NamedTuple):
    """A note of who asked for what: of these jobs, of the log with none."""

    jobs: list[int]
    text: str


class Ingest(NamedTuple):
    """Jobs of a source, and where that stands with them; no jobs move it alone.

    A move to an empty position, without jobs, forgets the source.
    """

    move: sources.Move
    items: list[Item] | Plain


# -- claims and their ends -------------------------------------------------------------------------


@dataclass(slots=True)
class ClaimRequest:
    """Wishes of a claimer. Lives as long as the claim waits.

    Attributes:
        count: most deliveries.
        queues: names, or None for all.
        tasks: names of the tasks it knows, or None for any job, also those put as bytes.
        wait_until_ns: steady time to give up at with an empty list; None to wait for ever.
        limits: of tasks, by their names; always the same mapping until one of them changes.
        weights: how the queues share the claims; None: by priority and age alone.
        lease_ns: time after which the claims end, unless extended; 0: with their owner.
    """

    count: int
    queues: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    wait_until_ns: int | None = None
    lease_ns: int = 0
    limits: Mapping[str, rates.Limit] | None = None
    weights: claims.Weights | None = None

    def is_over(self, steady_ns: int) -> bool:
        """Return whether it waits no longer."""
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
    """A claim of a job: what a worker runs, and the token that its settlement must show.

    ``record`` is the job's whole enqueue record; its parts are decoded when asked for. A tuple,
    since one is made for every job: that costs a third of an object with attributes.
    """

    __slots__ = ()

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self.tag.id(self.job)

    @property
    def queue(self) -> str:
        """Name of the job's queue."""
        return self.lane.queue

    @property
    def task(self) -> str:
        """Name of the job's task, "" for one put as bytes."""
        return self.lane.task

    @property
    def priority(self) -> int:
        """0 to 9."""
        return self.lane.priority

    @property
    def attempts_max(self) -> int:
        """Return how often the job may be claimed; 0 for no limit."""
        attempts: int = _ENQUEUED_HEAD.unpack_from(self.record)[5]
        return attempts

    @property
    def payload(self) -> bytes:
        """The enqueued bytes.

        Raises:
            LogDamaged: they do not decompress.
            PayloadTooLarge: decompressed they are over DECOMPRESSED_BYTES_MAX.
            CompressionUnavailable: they are compressed in a way that is not installed here.
        """
        flags = self.record[FLAGS_AT] & PACKED
        if not flags:
            return self.stored_payload
        what = f"the payload of job {self.job_id}"
        return decompress(self.stored_payload, flags, DECOMPRESSED_BYTES_MAX, what)

    @property
    def payload_flags(self) -> int:
        """Return how the payload is stored, as flags of its record; 0: as it was given."""
        return self.record[FLAGS_AT] & PACKED

    @property
    def stored_payload(self) -> bytes:
        """The payload as its record holds it."""
        record = self.record
        if not (record[6] or record[7]):  # the size of the options
            # The common record: what stands before the body is as long as in all of its lane.
            return record[self.lane.body_at : -4]
        return codec.enqueue_body(record)

    @property
    def extras(self) -> model.Extras:
        """Key, headers, due time and expiry as they stand in the record."""
        return enqueue_extras(self.record)

    @property
    def headers(self) -> dict[str, str]:
        """The job's headers."""
        return self.extras.headers

    def __repr__(self) -> str:
        return f"<Delivery {self.job_id} {self.task or self.queue} attempt {self.attempt}>"


class Settlement(NamedTuple):
    """End of a delivery.

    ``kind`` is SUCCEEDED, RETRIED, DEAD, RELEASED or CANCELLED. ``body`` is the result or reason.
    ``delay_ns`` is counted from the settling frame. ``children`` are enqueued in the same frame, or
    not at all. ``flags`` are the result's encoding (``bodies``). ``lines`` is the option with
    the attempt's log.
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
    """Requests of a transaction: all happen, or none. Its settlements have no children.

    ``cancels`` are lsns of jobs.
    """

    settlements: tuple[Settlement, ...] = ()
    cancels: tuple[int, ...] = ()
    items: tuple[Item, ...] = ()


class Done(NamedTuple):
    """Result of a transaction: jobs that it was to cancel, and answers to its enqueues."""

    cancelled: list[Cancel]
    jobs: list[int | Duplicate]


class Outcome(NamedTuple):
    """A settled job: its state, and its result (SUCCEEDED, None if not kept) or reason (DEAD).

    ``flags`` are how the result is stored; 0: unchanged.
    """

    state: model.State
    body: bytes | None
    flags: int = 0


# -- cancels and queues ----------------------------------------------------------------------------

#: A job that is to be cancelled, and the token of its claim.
Ask = tuple[int, int]

#: Most jobs that one request withdraws: no batch may hold the lock for long.
WITHDRAWN_MAX: Final = 500


class Cancel(enum.IntEnum):
    """Result of asking for the end of a job; true unless it was too late."""

    #: the job is settled
    TOO_LATE = 0
    #: it waited, and is over
    WITHDRAWN = 1
    #: it runs: its owner was asked to stop it, now or before, and it never runs again
    ASKED = 2


class Withdrawal(NamedTuple):
    """Waiting jobs to be cancelled, and why; or ``expired``, as if their time had passed."""

    jobs: list[int]
    cause: records.Cause = records.Cause.CALLER
    expired: bool = False


# -- dead letters ----------------------------------------------------------------------------------

#: Most dead letters that one request requeues or purges: 0.1 ms each, on a busy machine, ...
LETTERS_MAX: Final = 250
#: ... and most bytes of them together, the last one excepted: no batch may hold the lock for long.
LETTERS_BYTES_MAX: Final = 256 * 1024


class Letter(NamedTuple):
    """A dead letter as it is to be written again."""

    job: int
    #: its ENQUEUED record, without due time
    born: bytes
    enqueued_ns: int
    #: its attempts, and the log of the last one, packed
    history: bytes = b""
    lines: bytes = b""

    @property
    def size(self) -> int:
        """About how many bytes it adds to the log."""
        kept = len(self.history) + len(self.lines)
        return codec.WHOLE.size + len(self.born) + kept + codec.BACK.size

    @property
    def has_options(self) -> bool:
        options_size: int = codec.PREFIX.unpack_from(self.born)[3]
        return options_size > 0


# -- schedules -------------------------------------------------------------------------------------

#: Ticks that one request writes at most: no batch may hold the lock for long.
TICKS_MAX: Final = 200


class Turn(NamedTuple):
    """Ticks of one schedule that are due, in the order of their moments, and their jobs."""

    name: str
    #: up to where it was done with when it was looked at; if that changed, another was faster
    seen_ns: int
    #: up to where it is done with after this
    done_ns: int
    #: the ticks' moments; empty if all due ticks are skipped
    moments: tuple[int, ...]
    items: tuple[Item, ...]


class Enrolment(NamedTuple):
    """A schedule as a worker that starts knows it, or ``added`` by anybody at run time."""

    name: str
    rule: bytes
    details: bytes
    added: bool = False


class Steer(NamedTuple):
    """Wish for a schedule: "pause", "resume", "reset" or "forget"."""

    name: str
    action: str


# -- compaction ------------------------------------------------------------------------------------

#: Lanes whose totals go into one batch.
TALLIES_MAX: Final = 1_000


class Order(NamedTuple):
    """A compaction that somebody asked for."""

    #: instead of the log's own; None: that one
    keep_seconds: float | None
    dry_run: bool
    port: Any
    future: Any


class Rewrite(NamedTuple):
    """A job to be written again, as it was found.

    ``location`` is where the record stands that is about to go, with the job's ENQUEUED record;
    ``state`` is ABSENT for a job that is settled and forgotten, whose key alone is still held.
    """

    job: int
    location: int
    state: model.State
    born: bytes
    enqueued_ns: int
    attempt: int = 0
    #: of a scheduled job: when it is due, in shifted time unless ``due_is_wall``
    due_ns: int = 0
    due_is_wall: bool = False
    #: of a job that no worker has claimed: when it expires, if that shifts: in shifted time, but
    #: wall time for a job that is over
    expires_ns: int = 0
    ended_ns: int = 0
    history: bytes = b""
    body: bytes | None = None
    flags: int = 0
    #: the log of its last attempt, packed
    lines: bytes = b""


class Edit(NamedTuple):
    """A waiting job, and how somebody wants it to wait; None: as it does."""

    item: Rewrite
    priority: int | None = None
    queue: bytes | None = None
    #: a moment and True if it is wall time, else nanoseconds from now; 0: at once
    due: tuple[int, bool] | None = None


class Floor(NamedTuple):
    """Report of compaction when it is done with a segment.

    ``lsn`` is the first that is kept.
    """

    lsn: int
