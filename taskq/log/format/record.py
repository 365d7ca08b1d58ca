"""Record: one entry of the log, for streams, tools and commands; the live log builds none."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Container, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from taskq.core import kinds, views
from taskq.core.controls import CONTROL_HEADER
from taskq.core.durations import utc_moment
from taskq.core.errors import FormatError, TaskqError
from taskq.core.model import SETTLED_STATES, Extras, State
from taskq.core.records import PACKED, SKIPPABLE, TABLE, Body, Cause, Flag, Option
from taskq.core.schedules import SCHEDULE_HEADER, TickRecord
from taskq.core.sources import SOURCE_HEADER, SourceRecord
from taskq.log.format import codec, notes
from taskq.log.format.carried import Carried, decode_carried, find_moment
from taskq.log.format.codec import CRC_SIZE, KIND_AT, STATE_AT
from taskq.log.format.flows import Stepped, decode_step
from taskq.log.format.options import enqueue_extras, find_option

if TYPE_CHECKING:
    from taskq.log.format.frames import Frame

_CHECKED: Final = int(Flag.CHECKED)
_JOB: Final = struct.Struct("<Q")
_JOB_FIELDS: Final = struct.Struct("<IQQ")
_JOB_FIELDS_AT: Final = codec.PREFIX.size
_CAUSES: Final = {int(cause): str(cause) for cause in Cause}
#: Decompresses a stored body, from its bytes, its flags and its name in errors.
Unpack = Callable[[bytes, int, str], bytes]


class Record:
    """An entry of the log: an event of a job, or of the log itself.

    The meaning of a field depends on the kind; unused fields have their default. In the log only
    "enqueued", "edited" and "carried" records name a job's queue and task. A stream fills them in
    for later records of the latest 16 384 jobs, and for all jobs if it filters by queue or task.
    Otherwise both are "". Moments are nanoseconds of wall time. Its bytes are decoded when a field
    is read.

    Attributes:
        lsn: position in the log: rising, not dense.
        epoch: number of the stretch of the log between two unclean starts.
        time_ns: time of writing.
        job_id: the job's id, "" for entries of the log.
        queue, task: see above.
        priority: of the job, None if not in the record.
        attempt: attempts counted so far.
        attempts_max: of an enqueued job; 0 for no limit.
        cause: why a job died, was cancelled, expired, retried or released.
        due_ns: due time, 0 for at once; of ticked the latest tick.
        expires_ns: expiry of a job that has not run, 0 for never.
        payload: the enqueued bytes; of ingested and steered the JSON.
        result: the job's return value, None without one.
        lease_ns: deadline of the claim unless extended, 0 if it lasts as long as its process.
        step_ns: change of the clock.
        problem: why a payload or result is missing; "" if neither is.
    """

    lsn: int
    epoch: int
    time_ns: int
    job_id: str
    queue: str
    task: str
    priority: int | None
    attempt: int
    attempts_max: int
    cause: str
    due_ns: int
    expires_ns: int
    payload: bytes | None
    result: bytes | None
    lease_ns: int
    step_ns: int
    problem: str

    # Fields for the engine, in stored form.

    #: its exact bytes, and their location as in ``SegmentFiles``; 0 if not needed
    data: bytes
    location: int
    flags: int
    #: lsn of the claim; of CLAIMED and OWNER the owner; of COMPACTED the first kept lsn
    token: int
    extras: Extras | None
    #: payload, result, reason or description, stored form; None without one
    body: bytes | None
    #: content of CARRIED, REQUEUED and EDITED; the fields above are the job's ENQUEUED record's
    carried: Carried | None
    ticked: TickRecord | None
    #: content of INGESTED and STEERED
    moved: SourceRecord | None
    #: packed log lines of the attempt that the record ends
    lines: bytes
    #: content of a step or signal
    step: Stepped | None
    #: packed waits of a job that gave its slot back within its run
    awaits: bytes

    __slots__ = tuple(__annotations__)

    def __init__(self, data: bytes, lsn: int, epoch: int, time_ns: int, location: int = 0) -> None:
        self.data, self.location = data, location
        self.lsn, self.epoch, self.time_ns = lsn, epoch, time_ns

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in _DECODED:
                raise AttributeError(name)
            self.decode()
            return getattr(self, name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        mine, others = (
            (it.lsn, it.epoch, it.time_ns, it.data, it.job_id, it.queue, it.task)
            for it in (self, other)
        )
        return mine == others

    def __hash__(self) -> int:
        return hash((self.lsn, self.data))

    def __repr__(self) -> str:
        return f"<Record {self.lsn}: {self.kind} {self.job_id or self.job or ''}>"

    @property
    def type(self) -> int:
        """Number of its kind: ``core.records.Kind``, or a kind of a later version."""
        return self.data[KIND_AT]

    @property
    def kind(self) -> str:
        """Return its kind as a word.

        "enqueued", "claimed", "succeeded", "retried", "dead", "released", "cancelled", "expired";
        "carried" (compaction rewrote the job's present state), "requeued", "edited" (the job's
        waiting was changed), "purged", "extended", "cancel_asked"; of the log "clock", "paused",
        "resumed", "tallied", "compacted", "ticked", "ingested", "steered", "owner"; "acted" (an
        operator's request, named in ``reason``), of a job or of the log. Skip unknown kinds: later
        versions may add some.
        """
        return kinds.name_of(self.type)

    @property
    def job(self) -> int:
        """Number of its job, 0 for none."""
        kind = self.type
        if kind in kinds.BIRTHS:
            return self.lsn
        if kind not in kinds.OF_JOBS:
            return 0
        job: int = _JOB.unpack_from(self.data, codec.JOB_AT)[0]
        return job

    @property
    def time(self) -> datetime:
        """Return the time of writing, in UTC, to the microsecond."""
        return utc_moment(self.time_ns)

    @property
    def owner(self) -> int:
        """Number of the process that claimed the job."""
        return self.token if self.type in kinds.WITH_OWNER else 0

    @property
    def key(self) -> bytes | None:
        """Dedup key of the job."""
        return None if self.extras is None else self.extras.key

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the job; for ticked, ingested, steered the schedule, source or control."""
        if self.ticked is not None:
            return {SCHEDULE_HEADER: self.ticked.name}
        if self.moved is not None:
            is_control = self.type in kinds.CONTROLS
            return {CONTROL_HEADER if is_control else SOURCE_HEADER: self.moved.name}
        return {} if self.extras is None else self.extras.headers

    @property
    def reason(self) -> str:
        """Return the reason of a failed attempt."""
        body = self.body if self.carried is None else self.carried.body
        if self.carried is None:
            is_reason = self.type in _WITH_REASON
        else:
            is_reason = self.carried.state is not State.SUCCEEDED
        return body.decode("utf-8", "replace") if body and is_reason else ""

    @property
    def acted_ns(self) -> int:
        """Return the original time of an act that compaction rewrote; else 0."""
        if self.type != kinds.ACT:
            return 0
        size = codec.PREFIX.unpack_from(self.data)[3]
        return find_moment(self.data, codec.FIXED_SIZES[kinds.ACT], size, Option.ENDED)

    @property
    def state(self) -> str:
        """State of a carried job."""
        return "" if self.carried is None else self.carried.state.name.lower()

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON document: a line of ``taskq tail --json`` and ``taskq export --records``.

        Epoch and owner are text, since JSON readers may round such numbers.
        """
        return {
            "lsn": self.lsn,
            "epoch": views.owner(self.epoch),
            "time": views.moment(self.time_ns),
            "kind": self.kind,
            "id": self.job_id or None,
            "queue": self.queue or None,
            "task": self.task or None,
            "priority": self.priority,
            "attempt": self.attempt,
            "attempts_max": self.attempts_max or None,
            "owner": views.owner(self.owner) if self.owner else None,
            "cause": self.cause or None,
            "due_at": views.moment(self.due_ns),
            "expires_at": views.moment(self.expires_ns),
            "lease_until": views.moment(self.lease_ns),
            "key": None if self.key is None else self.key.decode(errors="backslashreplace"),
            "headers": self.headers,
            "payload": views.body_document(self.payload),
            "result": views.body_document(self.result),
            "reason": self.reason or None,
            "state": self.state or None,
            "problem": self.problem or None,
        }

    @property
    def body_flags(self) -> int:
        """Return the flags of the stored body; 0: stored as given."""
        return self._born_flags & PACKED

    @property
    def stores_result(self) -> bool:
        """Return whether the result of a new job is kept."""
        return not self._born_flags & Flag.DROP_RESULT

    @property
    def _born_flags(self) -> int:
        if self.carried is None:
            return self.flags
        flags: int = codec.PREFIX.unpack_from(self.carried.born)[4]
        return flags

    def unpack(self, unpack: Unpack | None) -> None:
        """Unpack payload and result, or note the problem; None leaves out packed bodies."""
        flags = self.body_flags
        if self.type in kinds.BEGINNINGS:
            self.payload = self._unpacked(self.body or b"", flags, unpack)
            if self.carried is not None and self.carried.state is State.SUCCEEDED:
                stored = self.carried.flags & PACKED
                self.result = self._unpacked(self.carried.body, stored, unpack)
        elif self.type in kinds.SUCCESSES:
            self.result = self._unpacked(self.body, flags, unpack)

    def _unpacked(self, stored: bytes | None, flags: int, unpack: Unpack | None) -> bytes | None:
        if stored is None or not flags:
            return stored
        if unpack is None:
            return None
        try:
            return unpack(stored, flags, f"what lsn {self.lsn} holds of {self.job_id}")
        except TaskqError as error:
            self.problem = self.problem or str(error)
            return None

    @property
    def packed(self) -> list[tuple[bytes, int]]:
        """Return its packed bodies in stored form, with their flags."""
        bodies = [(self.body, self.body_flags)]
        if self.carried is not None:
            bodies.append((self.carried.body, self.carried.flags & PACKED))
        return [(body, flags) for body, flags in bodies if body is not None and flags]

    @property
    def end(self) -> State | None:
        """Return the final state of its job, None if the job goes on, or without a job."""
        state = State(ENDINGS.get(self.type, BORN))
        if self.carried is not None:
            state = self.carried.state
        return state if state in SETTLED_STATES else None

    @classmethod
    def tracing(cls, frame: Frame, mark: bytes, jobs: Container[int] = ()) -> Iterator[Record]:
        """Yield records that create a job, or move a source, and contain these bytes.

        Records that end one of these ``jobs`` are included. Unreadable records are skipped.

        Raises:
            FormatError: the lengths of the records do not fit.
        """
        for lsn, at, length in places(frame):
            record = cls(frame.data[at : at + length], lsn, 0, frame.header.time_ns)
            if record.type in kinds.BEGINNINGS or record.type in kinds.SOURCES:
                is_wanted = mark in record.data
            else:
                is_wanted = record.type in kinds.ENDS and record.job in jobs
            if is_wanted:
                with contextlib.suppress(FormatError):
                    record.decode()
                    yield record

    def decode(self) -> None:
        """Decode all fields; reading a field does so, too.

        Raises:
            FormatError: the type is unknown and may not be skipped, or the bytes do not fit.
        """
        data = self.data
        length, kind, byte, options_size, self.flags = codec.PREFIX.unpack_from(data)
        self.token = self.attempt = self.attempts_max = 0
        self.due_ns = self.expires_ns = self.lease_ns = self.step_ns = 0
        self.job_id = self.queue = self.task = self.cause = self.problem = ""
        self.priority = self.extras = self.body = self.payload = self.result = None
        self.carried = self.ticked = self.moved = self.step = None
        self.lines = self.awaits = b""
        if kind not in TABLE:
            check_known(kind, self.lsn)
        elif kind in kinds.BIRTHS:
            self._decode_birth(data)
        elif kind in kinds.CARRYING:
            self._decode_carried(data)
        elif kind in kinds.OF_STEPS:
            self.attempt, _, token = _JOB_FIELDS.unpack_from(data, _JOB_FIELDS_AT)
            self.token = 0 if kind == kinds.SIGNAL else token
            self.step = decode_step(data)
            self.body = self.step.body
        elif kind in kinds.OF_JOBS:
            self._decode_event(data, length, byte, options_size)
        else:
            self._decode_other(data)

    def _decode_event(self, data: bytes, length: int, byte: int, options_size: int) -> None:
        kind, fixed = self.type, codec.FIXED_SIZES[self.type]
        self.attempt, _, self.token = _JOB_FIELDS.unpack_from(data, _JOB_FIELDS_AT)
        if self.flags & _CHECKED:
            self.body = data[fixed + options_size : length - CRC_SIZE]
        if kind in kinds.WITH_CAUSE:
            self.cause = _CAUSES.get(byte, _CAUSES[Cause.CALLER])
        if fixed == codec.BACK.size:
            self.due_ns = codec.BACK.unpack_from(data)[8]
        if options_size:
            self.lease_ns = find_moment(data, fixed, options_size, Option.LEASE)
            self.lines = find_option(data, fixed, options_size, Option.LINES)
            if self.due_ns:
                self.awaits = find_option(data, fixed, options_size, Option.AWAITS)

    def _decode_birth(self, data: bytes) -> None:
        born = codec.decode_born(data)
        self.queue, self.task = _text(born.queue), _text(born.task)
        self.priority, self.attempts_max, self.body = born.priority, born.attempts_max, born.body
        self.extras = enqueue_extras(data)
        self.due_ns, self.expires_ns = self.extras.due_ns, self.extras.expires_ns

    def _decode_carried(self, data: bytes) -> None:
        carried = self.carried = decode_carried(data)
        self._decode_birth(carried.born)
        self.attempt, self.token, self.lines = carried.attempt, carried.token, carried.lines
        self.due_ns, self.lease_ns = carried.due_ns, carried.lease_ns
        self.expires_ns = carried.expires_ns or self.expires_ns

    def _decode_other(self, data: bytes) -> None:
        row, fixed = TABLE[self.type], codec.FIXED_SIZES[self.type]
        end = len(data) - CRC_SIZE if self.flags & _CHECKED else len(data)
        body = data[fixed:end]
        values = codec.LAYOUTS[self.type].unpack_from(data)[_PREFIX_FIELDS:]
        fields = dict(zip(row.layout.names.split(), values, strict=True))
        self.step_ns = fields.get("step_ns", 0)
        self.token = fields.get("token", fields.get("owner", 0))
        match row.body:
            case Body.QUEUE:
                self.queue = _text(body)
            case Body.LANE:
                split = 2 + body[0]
                self.queue, self.task = _text(body[2:split]), _text(body[split:])
                self.priority = data[5]
            case Body.SCHEDULE:
                self.ticked = notes.decode_ticked(data)
                self.due_ns = self.ticked.state.last_ns
            case Body.SOURCE | Body.CONTROL:
                self.moved = notes.decode_moved(data)
                self.payload = self.moved.state.position
            case Body.TIMES:
                (self.task, key), _ = notes.decode_rated(data)
                self.extras = Extras(concurrency_key=key)
            case Body.NONE:
                pass
            case _:
                self.body = body


_DECODED: Final = frozenset(Record.__slots__) - {"lsn", "epoch", "time_ns", "data", "location"}
#: Kinds whose body is a reason.
_WITH_REASON: Final = kinds.OF_JOBS - kinds.SUCCESSES
#: Fields that every record has.
_PREFIX_FIELDS: Final = 5


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def places(frame: Frame) -> Iterator[tuple[int, int, int]]:
    """Yield (lsn, index in ``frame.data``, length) of each record.

    Raises:
        FormatError: a length is impossible.
    """
    at, end = frame.at, frame.at + frame.header.body_size
    for lsn in range(frame.header.first_lsn, frame.header.next_lsn):
        length = kind = 0
        if at + codec.PREFIX.size <= end:
            length, kind, _, _, _ = codec.PREFIX.unpack_from(frame.data, at)
        if length < codec.SIZES[kind] or at + length > end:
            raise FormatError(f"record at lsn {lsn} has an impossible length of {length} bytes")
        yield lsn, at, length
        at += length


def records_in(frame: Frame, base: int = 0) -> Iterator[Record]:
    """Yield the records of a frame; ``base`` is the location of its segment's first byte."""
    header, data = frame.header, frame.data
    where = base + frame.offset + codec.FRAME_HEADER_SIZE - frame.at
    for lsn, at, length in places(frame):
        yield Record(data[at : at + length], lsn, header.epoch, header.time_ns, where + at)


def check_known(kind: int, lsn: int) -> None:
    if kind < SKIPPABLE and kind not in TABLE:
        raise FormatError(f"record type {kind} at lsn {lsn} is unknown: a newer taskq wrote it")


# Effects of single records on a job's state, for walks over many jobs without a fold.

#: State of a job after its enqueue, before any other record, as a plain number.
BORN: Final = kinds.READY
#: States after kinds that end or revive a job, for every state before.
ENDINGS: Final = {
    kind: int(kinds.after(State.ABSENT, kind))
    for kind in kinds.ENDS | kinds.REVIVALS | kinds.REMOVALS
}


def carried_state(record: bytes) -> int:
    return ENDINGS.get(record[KIND_AT], record[STATE_AT])


def is_named(data: bytes, at: int, queue: bytes | None, task: bytes | None) -> bool:
    if queue is None and task is None:
        return True
    start = at + codec.BORN.size
    middle = start + data[at + 14]
    return (queue is None or data[start:middle] == queue) and (
        task is None or data[middle : middle + data[at + 15]] == task
    )


def encoded(name: str | None) -> bytes | None:
    return None if name is None else name.encode("utf-8", "surrogatepass")
