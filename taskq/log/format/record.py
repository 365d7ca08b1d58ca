"""A record as people and tools read it; the live log never builds one."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Final

from taskq.core.errors import FormatError
from taskq.core.kinds import (
    ADOPTIONS,
    BEGINNINGS,
    BIRTHS,
    CARRYING,
    ENDS,
    OF_JOBS,
    OF_STEPS,
    READY,
    REMOVALS,
    REVIVALS,
    SIGNAL,
    after,
)
from taskq.core.model import SETTLED_STATES, Extras, State
from taskq.core.records import PACKED, SKIPPABLE, TABLE, Body, Cause, Flag, Option
from taskq.core.schedules import TickRecord
from taskq.core.sources import SourceRecord
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.carried import Carried, decode_carried, find_moment
from taskq.log.format.codec import CRC_SIZE, KIND_AT, STATE_AT
from taskq.log.format.flows import Stepped, decode_step
from taskq.log.format.notes import (
    UploadProgress,
    decode_adopted,
    decode_moved,
    decode_rated,
    decode_ticked,
)
from taskq.log.format.options import decode_key_hash, enqueue_extras, find_option

if TYPE_CHECKING:
    from taskq.log.format.frames import Frame

#: Fields that every record has.
_PREFIX_FIELDS: Final = 5
_CHECKED: Final = int(Flag.CHECKED)
_JOB_FIELDS: Final = struct.Struct("<IQQ")
_JOB_FIELDS_AT: Final = codec.PREFIX.size


class LogRecord(NamedTuple):
    """Everything that a record says."""

    kind: int
    lsn: int
    epoch: int
    time_ns: int
    flags: int
    #: lsn of the job that it concerns, 0 for none
    job: int = 0
    #: lsn of the claim; of CLAIMED and OWNER the owner; of COMPACTED the first lsn that is kept
    token: int = 0
    attempt: int = 0
    cause: Cause = Cause.CALLER
    due_ns: int = 0
    queue: bytes = b""
    task: bytes = b""
    priority: int = 0
    attempts_max: int = 0
    extras: Extras | None = None
    key_hash: int = 0
    #: lsn of the job that it took its key over from
    replaces: int = 0
    #: when the claim ends, 0 if with its owner
    lease_ns: int = 0
    #: payload, result, reason or description; None without one
    body: bytes | None = None
    step_ns: int = 0
    #: of CARRIED, REQUEUED and EDITED: all of it; the fields above are the job's ENQUEUED record's
    carried: Carried | None = None
    #: of ADOPTED: all of it
    adopted: UploadProgress | None = None
    #: of RATED: (moment, claims), the oldest first; ``extras`` has the concurrency key
    rated: tuple[tuple[int, int], ...] = ()
    #: of TICKED: all of it
    ticked: TickRecord | None = None
    #: of INGESTED: all of it
    moved: SourceRecord | None = None
    #: of a record that ends an attempt: what that logged, packed
    lines: bytes = b""
    #: of a step or signal: all of it
    step: Stepped | None = None
    #: of a job that gave its slot back within its run: what it waits for, packed
    awaits: bytes = b""

    @property
    def body_flags(self) -> int:
        """Return how the body is stored, as flags; 0: as it was given."""
        return self._born_flags & PACKED

    @property
    def stores_result(self) -> bool:
        """Return whether the result of a new job is kept."""
        return not self._born_flags & Flag.DROP_RESULT

    @property
    def end(self) -> State | None:
        """Return the state in which its job has ended, None if it goes on, or without a job."""
        state = State(ENDINGS.get(self.kind, BORN))
        if self.carried is not None:
            state = self.carried.state
        return state if state in SETTLED_STATES else None

    @classmethod
    def tracing(cls, frame: Frame, mark: bytes, jobs: Container[int] = ()) -> Iterator[LogRecord]:
        """Yield the records that bring a job with these bytes in it, or end one of these jobs.

        Unreadable records are passed over.

        Raises:
            FormatError: the lengths of the records do not fit.
        """
        data = frame.data
        for lsn, at, length in places(frame):
            kind = data[at + KIND_AT]
            if kind in BEGINNINGS:
                is_wanted = data.find(mark, at, at + length) >= 0
            else:
                is_wanted = (
                    kind in ENDS and _JOB_FIELDS.unpack_from(data, at + _JOB_FIELDS_AT)[1] in jobs
                )
            if is_wanted:
                with contextlib.suppress(FormatError):
                    yield decode_record(data[at : at + length], lsn, 0, frame.header.time_ns)

    @property
    def _born_flags(self) -> int:
        if self.carried is not None:
            flags: int = codec.PREFIX.unpack_from(self.carried.born)[4]
            return flags
        return self.flags


def places(frame: Frame) -> Iterator[tuple[int, int, int]]:
    """(lsn, place in ``frame.data``, length) of each record.

    Raises:
        FormatError: a length that cannot be.
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


def check_known(kind: int, lsn: int) -> None:
    """Let nobody pass over a record that may matter.

    Raises:
        FormatError: the type is unknown and may not be skipped.
    """
    if kind < SKIPPABLE and kind not in TABLE:
        raise FormatError(f"record type {kind} at lsn {lsn} is unknown: a newer taskq wrote it")


def decode_record(data: bytes, lsn: int, epoch: int, time_ns: int) -> LogRecord:
    """Return one record from exactly its bytes.

    Raises:
        FormatError: the type is unknown and may not be skipped.
    """
    length, kind, byte, options_size, flags = codec.PREFIX.unpack_from(data)
    if kind not in TABLE:
        check_known(kind, lsn)
        return LogRecord(kind, lsn, epoch, time_ns, flags)
    if kind in BIRTHS:
        born = codec.decode_born(data)
        return LogRecord(
            kind, lsn, epoch, time_ns, flags, job=lsn, queue=born.queue, task=born.task,
            priority=byte, attempts_max=born.attempts_max, extras=enqueue_extras(data),
            body=born.body,
            replaces=find_moment(born.options, 0, options_size, Option.REPLACES),
        )  # fmt: skip
    if kind in CARRYING:
        carried = decode_carried(data)
        inner = decode_record(carried.born, carried.job, epoch, carried.enqueued_ns)
        return inner._replace(
            kind=kind, lsn=lsn, epoch=epoch, time_ns=time_ns, flags=flags, carried=carried,
            attempt=carried.attempt, token=carried.token, lines=carried.lines,
        )  # fmt: skip
    fixed = codec.FIXED_SIZES[kind]
    end = length - CRC_SIZE if flags & _CHECKED else length
    if kind not in OF_JOBS:
        return _decode_other(data, LogRecord(kind, lsn, epoch, time_ns, flags), data[fixed:end])
    body = data[fixed + options_size : end] if flags & _CHECKED else None
    attempt, job, token = _JOB_FIELDS.unpack_from(data, _JOB_FIELDS_AT)
    if kind in OF_STEPS:
        step = decode_step(data)
        token = 0 if kind == SIGNAL else token
        return LogRecord(
            kind, lsn, epoch, time_ns, flags, job=job, token=token, attempt=attempt, step=step,
            body=step.body,
        )  # fmt: skip
    due = codec.BACK.unpack_from(data)[8] if fixed == codec.BACK.size else 0
    return LogRecord(
        kind, lsn, epoch, time_ns, flags, job=job, token=token, attempt=attempt,
        cause=Cause(byte) if byte in Cause._value2member_map_ else Cause.CALLER, due_ns=due,
        key_hash=decode_key_hash(data, fixed, options_size), body=body,
        lease_ns=find_moment(data, fixed, options_size, Option.LEASE),
        lines=find_option(data, fixed, options_size, Option.LINES) if options_size else b"",
        awaits=find_option(data, fixed, options_size, Option.AWAITS) if due else b"",
    )  # fmt: skip


#: Names of the fixed fields of records without a single job.
_FIELDS: Final = {"step_ns": "step_ns", "token": "token", "owner": "token"}


def _decode_other(data: bytes, record: LogRecord, body: bytes) -> LogRecord:
    row = TABLE[record.kind]
    values = codec.LAYOUTS[record.kind].unpack_from(data)[_PREFIX_FIELDS:]
    fields = zip(row.layout.names.split(), values, strict=True)
    record = record._replace(**{_FIELDS[name]: value for name, value in fields if name in _FIELDS})
    match row.body:
        case Body.QUEUE:
            return record._replace(queue=body)
        case Body.LANE:
            split = 2 + body[0]
            return record._replace(queue=body[2:split], task=body[split:], priority=data[5])
        case Body.SCHEDULE | Body.SOURCE:
            is_tick = row.body is Body.SCHEDULE
            return record._replace(
                ticked=decode_ticked(data) if is_tick else None,
                moved=None if is_tick else decode_moved(data),
            )
        case Body.TIMES:
            (task, key), times = decode_rated(data)
            name = task.encode("utf-8", "surrogatepass")
            extras = Extras(concurrency_key=key)
            return record._replace(task=name, extras=extras, rated=tuple(times.pairs()))
        case Body.NONE if record.kind in ADOPTIONS:
            return record._replace(adopted=decode_adopted(data))
    return record._replace(body=None if row.body is Body.NONE else body)


# The effect of single records on a job's state, for walks over many jobs without a fold.

#: The state of a job of which nothing is known but that it was enqueued, as a plain number.
BORN: Final = READY
#: States by the kinds that end or revive a job: the former state does not matter.
ENDINGS: Final = {kind: int(after(State.ABSENT, kind)) for kind in ENDS | REVIVALS | REMOVALS}


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
