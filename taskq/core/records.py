"""The table of kinds of records, with their flags and options.

Numbers never change, they only grow. Readers of records use ``core.kinds`` or a row of ``TABLE``. A
new kind is a new row here, and code only for a new effect.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Final

from taskq.core.model import State


class Kind(enum.IntEnum):
    """Type of a record. A fold may skip unknown types of 128 and above."""

    ENQUEUED = 1
    CLAIMED = 2
    SUCCEEDED = 3
    RETRIED = 4
    DEAD = 5
    RELEASED = 6
    CANCELLED = 7
    EXPIRED = 8
    CARRIED = 9
    REQUEUED = 10
    PURGED = 11
    EXTENDED = 12
    CLOCK = 32
    PAUSED = 33
    RESUMED = 34
    TALLIED = 35
    COMPACTED = 36
    CANCEL_ASKED = 38
    TICKED = 39
    INGESTED = 40
    RATED = 41
    EDITED = 42
    STEP_DONE = 43
    SIGNAL_SENT = 44
    WAIT_BEGUN = 45
    STEERED = 46
    OWNER = 128
    ACTED = 129


class Flag(enum.IntFlag):
    """Bits of a record's flags field."""

    #: the record ends in a CRC of its own
    CHECKED = 1
    #: keep no result
    DROP_RESULT = 2
    #: run only once the claim is on disk
    DURABLE_CLAIM = 4
    #: the key is held until the job is settled
    KEY_UNTIL_SETTLED = 8
    #: the body is compressed with zlib
    ZLIB = 16
    #: the body is compressed with zstd
    ZSTD = 32
    #: the job is part of a flow: its options name its inputs and its dependents
    FLOW = 128


class Option(enum.IntEnum):
    """Tags of the optional fields (tag u8, length u16, value)."""

    #: i64, relative: the moment shifts when the clock steps
    DUE = 1
    #: i64, wall time: eta
    DUE_WALL = 2
    #: i64, wall time: a date that was given as such
    EXPIRES = 3
    #: bytes, scoped to the queue
    KEY = 4
    #: i64 nanoseconds
    WINDOW = 5
    #: pairs of (length u16, UTF-8)
    HEADERS = 6
    #: bytes: part of the lane; limits hold for each
    CONCURRENCY_KEY = 7
    #: u64, on records that end a job and free its key (0: the job's record cannot be read); on
    #: EDITED, hash of its key in the queue that it left
    KEY_HASH = 8
    #: i64, relative: the claim is over by then
    LEASE = 9
    #: i64, relative: the key is held until then, even if the job ends earlier
    KEY_UNTIL = 10
    #: epoch u64, owner u64: the claim of a carried job
    CLAIM = 11
    #: i64: end of a carried job; also time of a carried step or act
    ENDED = 12
    #: i64 nanoseconds: retention of the job after its end
    KEEP = 13
    #: packed attempts of a carried job so far
    HISTORY = 14
    #: u64, on ENQUEUED: the job that gave up its key to this one
    REPLACES = 15
    #: i64, relative: the job expires then unless it has run; of a carried job, by the present clock
    EXPIRES_RELATIVE = 16
    #: number of inputs of a held job, and its policy if one fails
    NEEDS = 18
    #: u64 each: held jobs that wait for this job. On a record that ends it, always the first
    #: option: held jobs for which it counts as done; with the highest bit: jobs cancelled for it
    UNLOCKS = 19
    #: inputs of a held job: runs of (first job u64, count u32); of a step: the jobs that it
    #: enqueued, then a byte 1 if they survive a cancellation of the job
    INPUTS = 20
    #: on the first job of a flow: number of jobs u32, number of leading jobs that make up its
    #: result u32, the result's shape
    FLOW = 21
    #: nesting of the results of a held job's inputs, for its task
    SHAPE = 22
    #: on CLAIMED: the claim counts against a rate: claims u32, window i64 nanoseconds
    RATE = 23
    #: no value, on a carried running job: a request to cancel it
    CANCEL_WANTED = 26
    #: UTF-8: rule of a schedule
    RULE = 27
    #: JSON: details of a schedule for people
    DETAILS = 28
    #: zlib of UTF-8, on records that end an attempt: its latest logged lines
    LINES = 29
    #: number u32 of a step among steps of its name, 0 for a signal; then the name, UTF-8
    STEP = 30
    #: waits of a job without a slot (``folds.steps``); of a carried job, after a byte that says
    #: whether it waits now
    AWAITS = 31
    #: UTF-8: unique key of a signal, which counts once
    ONCE = 32
    #: u64, on a step: the signal taken
    TAKES = 33
    #: i64: when a step began
    BEGAN = 34


class Cause(enum.IntEnum):
    """Cause of a release, or of a job's death; streams show its name in lower case."""

    #: a call of the program
    CALLER = 0
    #: the worker is shutting down
    DRAIN = 1
    #: the task postponed the job; no attempt is burnt
    SNOOZE = 2
    #: the owner's process is gone; the attempt counts
    OWNER_LOST = 3
    #: the task's function raised on its last attempt
    EXHAUSTED = 4
    #: rejected for good: Discard, arguments that do not validate, an unknown signature
    REJECTED = 5
    #: the claim's deadline passed; the attempt counts
    LEASE_OVER = 6
    #: another job took over the key
    REPLACED = 7
    #: its queue was cancelled as a whole; no longer written
    PURGE = 8
    #: the inputs of a held job are done
    INPUTS = 9
    #: an input of a held job failed
    UPSTREAM = 10
    #: it was cancelled while it ran
    ASKED = 11
    #: a condition of the task does not hold; no attempt is burnt
    CONDITION = 12
    #: its queue backs off after network failures; no attempt is burnt
    BREAKER = 13
    #: it waits for a time, a signal or other jobs, and then resumes; no attempt is burnt
    WAITS = 14

    def __str__(self) -> str:
        return self.name.lower()


#: Flags of a compressed payload or result.
PACKED: Final = int(Flag.ZLIB | Flag.ZSTD)
#: Flags below this number: the body is not compressed, and the job is in no flow.
PACKED_MIN: Final = int(Flag.ZLIB)
#: Lowest type that a reader may skip if unknown.
SKIPPABLE: Final = 128


class Layout:
    """Fixed fields of a record, after the common head of all records.

    Attributes:
        formats: of each field, in the syntax of ``struct``.
        names: of the fields, separated by spaces.
        struct: packs the common head and the fields.
    """

    def __init__(self, formats: str, names: str) -> None:
        self.formats = formats
        self.names = names
        self.struct: Final = struct.Struct("<IBBHI" + formats)


#: Records about an existing job ...
JOB: Final = Layout("IQQ", "attempt job token")
#: ... a claim, whose token is its own lsn ...
CLAIM: Final = Layout("IQQ", "attempt job owner")
#: ... records after which the job waits again ...
BACK: Final = Layout("IQQq", "attempt job token due_ns")
#: ... and records with the whole job.
WHOLE: Final = Layout("IQQqq", "attempt job token due_ns enqueued_ns")
BORN: Final = Layout("HBB", "attempts_max queue_size task_size")
#: Fields of a step, with its place among the job's steps; of a signal, with the lsn of its first
#: record.
PLACED: Final = Layout("IQQI", "attempt job token place")
SIGNAL: Final = Layout("IQQ", "attempt job signal")
ACT: Final = Layout("IQQ", "attempt job zero")
NAME: Final = Layout("I", "zero")
TALLY: Final = Layout("IQQQQ", "zero succeeded dead cancelled expired")
STEP: Final = Layout("Iq", "zero step_ns")
MARK: Final = Layout("IQ", "zero token")
OWNER: Final = Layout("IQ", "zero owner")
TICK: Final = Layout("Iqq", "zero last_ns done_ns")
RATES: Final = Layout("Iqq", "zero most window_ns")
MOVED: Final = Layout("Iq", "zero moved_ns")


class Body(enum.Enum):
    """Content of a record after its options; the value is its text in the specification."""

    NONE = ""
    PAYLOAD = "queue, task (before the options); payload"
    RESULT = "result"
    REASON = "reason"
    JOB = "the job's ENQUEUED record (its CRC seeded with the job's number); its result or reason"
    QUEUE = "name of the queue"
    LANE = "length of queue u8, length of task u8, queue, task"
    SCHEDULE = "name of the schedule"
    SOURCE = "length u16 of the source's name, the name; JSON of its position, none if forgotten"
    CONTROL = "length u16 of the control's name, the name; JSON of its fields, none if taken away"
    TIMES = (
        "length u16 of (length of task u8, task, concurrency key), these; (moment i64, claims u32)"
    )
    OWNER = "an object of JSON"
    VALUE = "JSON of the value"
    ACT = "name of a person or program, colon, space, and what was asked for"


class Row:
    """A kind of record.

    Attributes:
        kind: its type.
        name: its name in events, streams and the pipeline.
        says: meaning of the record, for the specification.
        layout: its fixed fields.
        body: its content after its options.
        byte: content of its sixth byte.
        moves: state before -> states after; the second counts if it has a due time in the future.
        options: its possible options.
        feature: incompatible feature to name in ``taskq.json`` before the first such record.
    """

    def __init__(
        self,
        kind: int,
        name: str,
        says: str,
        layout: Layout,
        body: Body = Body.NONE,
        byte: str = "0",
        moves: Mapping[State, tuple[State, ...]] | None = None,
        options: tuple[Option, ...] = (),
        feature: str = "",
    ) -> None:
        self.kind: int = kind
        self.name: str = name
        self.says: str = says
        self.layout: Layout = layout
        self.body: Body = body
        self.byte: str = byte
        self.moves: Mapping[State, tuple[State, ...]] | dict[State, tuple[State, ...]] = moves or {}
        self.options: tuple[Option, ...] = options
        self.feature: str = feature


_WAITING: Final = (State.READY, State.SCHEDULED)
#: Feature of logs with steps, waits within a run, or signals.
STEPS_FEATURE: Final = "steps-1"
_OF_ENDS: Final = (Option.UNLOCKS, Option.KEY_HASH, Option.LINES)
_OF_WHOLE: Final = (
    Option.LEASE, Option.KEY_UNTIL, Option.ENDED, Option.DUE_WALL, Option.EXPIRES_RELATIVE,
    Option.CLAIM, Option.HISTORY, Option.CANCEL_WANTED, Option.NEEDS, Option.LINES,
    Option.AWAITS,
)  # fmt: skip
_ROWS: Final = (
    Row(
        Kind.ENQUEUED, "enqueued", "a job came into being", BORN, Body.PAYLOAD, "priority",
        {State.ABSENT: _WAITING},
        (
            Option.DUE, Option.DUE_WALL, Option.EXPIRES, Option.EXPIRES_RELATIVE, Option.KEY,
            Option.WINDOW, Option.CONCURRENCY_KEY, Option.KEEP, Option.HEADERS, Option.REPLACES,
            Option.UNLOCKS, Option.NEEDS, Option.INPUTS, Option.SHAPE, Option.FLOW,
        ),
    ),
    Row(
        Kind.CLAIMED, "claimed", "a worker took it; counts an attempt", CLAIM,
        moves={State.READY: (State.RUNNING,)}, options=(Option.LEASE, Option.RATE),
    ),
    Row(
        Kind.SUCCEEDED, "succeeded", "it ran to its end", JOB, Body.RESULT,
        moves={State.RUNNING: (State.SUCCEEDED,)}, options=_OF_ENDS,
    ),
    Row(
        Kind.RETRIED, "retried", "it failed, and is due again later", BACK, Body.REASON, "cause",
        {State.RUNNING: _WAITING}, (Option.LINES,),
    ),
    Row(
        Kind.DEAD, "dead", "it failed for good", JOB, Body.REASON, "cause",
        {State.RUNNING: (State.DEAD,)}, _OF_ENDS,
    ),
    Row(
        Kind.RELEASED, "released", "it was given back, or its wait is over, by the cause; the "
        "attempt count shows whether an attempt was used up", BACK, Body.REASON, "cause",
        {State.RUNNING: _WAITING, State.SCHEDULED: _WAITING},
        (Option.LINES, Option.AWAITS, Option.NEEDS),
    ),
    Row(
        Kind.CANCELLED, "cancelled", "it was withdrawn before it ran (token 0), or stopped "
        "while it ran; see the cause", JOB, Body.REASON, "cause",
        dict.fromkeys((*_WAITING, State.RUNNING), (State.CANCELLED,)), _OF_ENDS,
    ),
    Row(
        Kind.EXPIRED, "expired", "its time had passed before it ran; the token is 0", JOB,
        Body.REASON, "cause", dict.fromkeys(_WAITING, (State.EXPIRED,)), _OF_ENDS,
    ),
    Row(
        Kind.CARRIED, "carried", "current state of the job, rewritten by compaction; for a ready "
        "job, due is the start of its wait, 0: its enqueue", WHOLE, Body.JOB, "state",
        options=_OF_WHOLE,
    ),
    Row(
        Kind.REQUEUED, "requeued", "a dead letter is ready again, as if new", WHOLE, Body.JOB,
        "state", {State.DEAD: (State.READY,)}, (*_OF_WHOLE, Option.UNLOCKS),
    ),
    Row(
        Kind.EDITED, "edited", "a waiting job got other options, another queue or time: its "
        "ENQUEUED record has them; all of its earlier attempts are in it",
        WHOLE, Body.JOB, "state", dict.fromkeys(_WAITING, _WAITING),
        (*_OF_WHOLE, Option.KEY_HASH), "edits-1",
    ),
    Row(
        Kind.PURGED, "purged", "a dead letter is forgotten; the token is 0", JOB,
        moves={State.DEAD: (State.ABSENT,)}, options=(Option.UNLOCKS, Option.KEY_HASH),
    ),
    Row(
        Kind.EXTENDED, "extended", "the deadline of a claim was moved", JOB,
        options=(Option.LEASE,),
    ),
    Row(
        Kind.CANCEL_ASKED, "cancel_asked", "a cancel of the running job was requested: its owner "
        "stops it, and it never runs again", JOB,
    ),
    Row(
        Kind.STEP_DONE, "stepped", "a step of the job ended and is not repeated; its name and "
        "number are an option", PLACED, Body.VALUE, "0 step, 1 sleep, 2 event, 3 event that timed "
        "out, 4 jobs, 5 which of them failed, 6 failed try of a step, 7 which wait came first, 8 "
        "version of the code, 9 step that may undo, 10 why such steps run", options=(
            Option.STEP, Option.ONCE, Option.TAKES, Option.BEGAN, Option.ENDED, Option.INPUTS,
        ), feature=STEPS_FEATURE,
    ),
    Row(
        Kind.SIGNAL_SENT, "signalled", "a signal for the job; rewritten, it names its first "
        "record", SIGNAL, Body.VALUE, options=(Option.STEP, Option.ONCE),
        feature=STEPS_FEATURE,
    ),
    Row(
        Kind.WAIT_BEGUN, "wait_begun", "the job begins waits within its run, which goes on: "
        "their timeouts start here", JOB, options=(Option.AWAITS,), feature=STEPS_FEATURE,
    ),
    Row(
        Kind.PAUSED, "paused", "the queue's jobs wait until it is resumed", NAME, Body.QUEUE,
    ),
    Row(Kind.RESUMED, "resumed", "the queue's jobs may be claimed again", NAME, Body.QUEUE),
    Row(
        Kind.TALLIED, "tallied", "numbers of ended jobs of a lane, by outcome", TALLY, Body.LANE,
        "priority",
    ),
    Row(
        Kind.COMPACTED, "compacted", "all needed records of segments before the lsn in token "
        "were rewritten: these segments may be gone", MARK,
    ),
    Row(
        Kind.CLOCK, "clock", "wall time made a step, in nanoseconds; relative times shift by it; "
        "always with its CRC", STEP,
    ),
    Row(
        Kind.TICKED, "ticked", "position of a schedule in wall time, in the frame of the jobs of "
        "its ticks; always with its CRC", TICK, Body.SCHEDULE, "1 paused, 2 forgotten",
        options=(Option.RULE, Option.DETAILS),
    ),
    Row(
        Kind.INGESTED, "ingested", "position of a source, in the frame of the jobs up to it, "
        "and its time; always with its CRC", MOVED, Body.SOURCE,
    ),
    Row(
        Kind.STEERED, "steered", "a control changed: pause and limits of a task, slots of workers, "
        "or an alert that began or is over; and its time; always with its CRC", MOVED, Body.CONTROL,
    ),
    Row(
        Kind.RATED, "rated", "times of the claims of a group that count against a rate, the oldest "
        "first, relative; always with its CRC", RATES, Body.TIMES,
    ),
    Row(
        Kind.OWNER, "owner", "description of an owner, for later readers of the log", OWNER,
        Body.OWNER,
    ),
    Row(
        Kind.ACTED, "acted", "an action on a job, or on the log (job 0), and its actor, for "
        "audits", ACT, Body.ACT, options=(Option.ENDED,),
    ),
)  # fmt: skip
TABLE: Final[dict[int, Row]] = {int(row.kind): row for row in _ROWS}
