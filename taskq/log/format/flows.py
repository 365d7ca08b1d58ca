"""Flows in the log: the options of their jobs.

``NEEDS`` is (count u32, policy u8), with the present count in a carried job's record, and 128 added
to the policy if the job is to be cancelled. ``FLOW`` is (jobs u32, ends u32, shape). For
``INPUTS``, ``UNLOCKS`` and ``SHAPE`` see ``Option`` and ``core.flows``.
"""

from __future__ import annotations

import struct
from typing import Final

from taskq.core.errors import FormatError, UsageError
from taskq.core.flows import FlowPart, Policy, needs_of
from taskq.core.folds.agenda import Agenda, apply_begun, apply_signal, apply_step
from taskq.core.folds.jobtable import META_FLOW
from taskq.core.folds.steps import Form, Signal
from taskq.core.kinds import ACT, SIGNAL, STEP
from taskq.core.records import PACKED, Flag, Option
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.codec import CRC_SIZE, FLAGS_AT, KIND_AT, option
from taskq.log.format.options import each_option, find_option

#: Bytes of all options of a record: their length is a u16.
OPTIONS_BYTES_MAX: Final = 2**16 - 1
_NEEDS: Final = struct.Struct("<IB")
_RUN: Final = struct.Struct("<QI")
_FLOW: Final = struct.Struct("<II")
_DOOMED: Final = 128
#: More jobs than any transaction has.
_JOBS_MAX: Final = 2**20
FLOW_FLAG: Final = int(Flag.FLOW)
_UNLOCKS: Final = int(Option.UNLOCKS)


class Root(NamedTuple):
    """Size and shape of a flow, kept by its first job."""

    jobs: int
    #: number of leading jobs that make up the flow's result
    ends: int
    shape: bytes


class Takes(NamedTuple):
    """Inputs and dependents of a job."""

    inputs: tuple[int, ...] = ()
    policy: Policy = Policy.CANCEL
    #: nesting of the inputs' results for the task; empty if it takes none
    shape: bytes = b""
    unlocks: tuple[int, ...] = ()
    root: Root | None = None


def encode_part(part: FlowPart, lsn: int) -> bytes:
    """Return the options of a flow's job for ``lsn``."""
    base = lsn - part.place
    parts: list[bytes] = []
    unlocks = [base + place for place in part.unlocks]
    if part.parent:
        unlocks.append(part.parent)
    if unlocks:
        parts.append(encode_unlocks(unlocks))
    if part.inputs:
        parts.append(encode_needs(needs_of(part.needs, part.policy)))
        runs = b"".join(_RUN.pack(base + first, count) for first, count in part.inputs)
        parts.append(option(Option.INPUTS, runs))
    if part.shape:
        parts.append(option(Option.SHAPE, part.shape))
    if part.jobs:
        parts.append(option(Option.FLOW, _FLOW.pack(part.jobs, part.ends) + part.result))
    return b"".join(parts)


def check_size(size: int) -> None:
    if size > OPTIONS_BYTES_MAX:
        raise UsageError(
            f"a job of the flow needs {size} bytes to name its inputs and its waiting jobs, the "
            f"limit is {OPTIONS_BYTES_MAX}: put a step between groups as large as these"
        )


def encode_needs(needs: int) -> bytes:
    doomed = _DOOMED if needs >> 40 else 0
    return option(Option.NEEDS, _NEEDS.pack(needs & 0xFFFFFFFF, needs >> 32 & 0x7F | doomed))


def encode_unlocks(jobs: list[int]) -> bytes:
    return option(Option.UNLOCKS, struct.pack(f"<{len(jobs)}Q", *jobs))


def decode_needs(value: bytes) -> int:
    if len(value) != _NEEDS.size:
        raise FormatError(f"option NEEDS has {len(value)} bytes: use a newer taskq")
    count, policy = _NEEDS.unpack(value)
    return needs_of(count, policy & 0x7F, doomed=bool(policy & _DOOMED))


def decode_unlocks(value: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(value) // 8}Q", value[: len(value) // 8 * 8])


def held_needs(meta: int, data: bytes, at: int, size: int) -> int | None:
    """Return the inputs that a new job with this meta and these options needs; None for none."""
    if not meta & META_FLOW:
        return None
    for tag, value in each_option(data, at, size):
        if tag == Option.NEEDS:
            return decode_needs(value)
    return None


def is_of_flow(record: bytes) -> bool:
    return bool(record[FLAGS_AT] & FLOW_FLAG)


def takes_of(record: bytes) -> Takes:
    if not is_of_flow(record):
        return Takes()
    options = codec.decode_born(record).options
    inputs: list[int] = []
    takes = Takes()
    for tag, value in each_option(options, 0, len(options)):
        if tag == Option.UNLOCKS:
            takes = takes._replace(unlocks=decode_unlocks(value))
        elif tag == Option.NEEDS:
            policy = decode_needs(value) >> 32 & 0x7F
            known = policy in Policy._value2member_map_
            takes = takes._replace(policy=Policy(policy) if known else Policy.CANCEL)
        elif tag == Option.INPUTS:
            for first, count in _RUN.iter_unpack(value[: len(value) // _RUN.size * _RUN.size]):
                if len(inputs) + count > _JOBS_MAX:
                    raise FormatError("a job has more inputs than a transaction has jobs")
                inputs += range(first, first + count)
        elif tag == Option.SHAPE:
            takes = takes._replace(shape=value)
        elif tag == Option.FLOW and len(value) >= _FLOW.size:
            jobs, ends = _FLOW.unpack_from(value)
            takes = takes._replace(root=Root(jobs, ends, value[_FLOW.size :]))
    return takes._replace(inputs=tuple(inputs))


_NUMBER: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_I64: Final = struct.Struct("<q")
#: Options of most steps, as plain numbers.
_STEP: Final = int(Option.STEP)
_BEGAN: Final = int(Option.BEGAN)
_STEP_OPTION: Final = struct.Struct("<BHI")
_BEGAN_OPTION: Final = struct.Struct("<BHq")
_CHECKED: Final = int(Flag.CHECKED)
_PLACED: Final = codec.LAYOUTS[STEP]
#: Offset of a step's place; offset of its token, or of a signal's number.
_PLACE_AT: Final = codec.JOB.size
_TOKEN_AT: Final = codec.JOB.size - _U64.size
#: Byte after a step's enqueued jobs, if they go on when the job is cancelled.
_DETACHED: Final = b"\1"
#: Offset of the size of a record's options.
_OPTIONS_SIZE_AT: Final = struct.calcsize("<IBB")
_U16: Final = struct.Struct("<H")


class Stepped(NamedTuple):
    """Content of a STEP_DONE or SIGNAL_SENT record besides job, attempt and token."""

    name: str
    #: number among the job's steps of this name, from 1; 0 for a signal
    number: int = 0
    form: int = Form.STEP
    #: number among all steps of the job, from 0
    place: int = 0
    #: of a step: the signal that it took; of a rewritten signal: its first record
    signal: int = 0
    once: str = ""
    began_ns: int = 0
    #: of a rewritten step: its end
    ended_ns: int = 0
    #: jobs that it enqueued: the first, and their number
    first: int = 0
    jobs: int = 0
    #: stored JSON
    body: bytes = b""
    #: flags of the stored body
    flags: int = 0
    #: whether its jobs go on if this job is cancelled
    is_detached: bool = False

    @property
    def title(self) -> str:
        """Return its name for people, such as ``page#3``."""
        return f"{self.name}#{self.number}" if self.number else self.name


def encode_step(step: Stepped, attempt: int, job: int, token: int, lsn: int) -> bytes:
    options = _named(step)
    if step.signal:
        options += option(Option.TAKES, _U64.pack(step.signal))
    if step.began_ns:
        options += _BEGAN_OPTION.pack(_BEGAN, _I64.size, step.began_ns)
    if step.jobs:
        detached = _DETACHED if step.is_detached else b""
        options += option(Option.INPUTS, _RUN.pack(step.first, step.jobs) + detached)
    fixed = _PLACED.pack(
        0, STEP, step.form, len(options), _CHECKED | step.flags, attempt, job, token, step.place
    )
    return codec.encode_checked(fixed[4:] + options, step.body, lsn)


def encode_signal(signal: Stepped, job: int, lsn: int) -> bytes:
    return codec.encode(
        SIGNAL, 0, job, signal.signal, lsn=lsn, options=_named(signal), body=signal.body
    )


def _named(step: Stepped) -> bytes:
    name = step.name.encode("utf-8", "surrogatepass")
    options = _STEP_OPTION.pack(_STEP, _NUMBER.size + len(name), step.number) + name
    if step.once:
        options += option(Option.ONCE, step.once.encode("utf-8", "surrogatepass"))
    return options


def decode_step(record: bytes) -> Stepped:
    length, kind, form, options_size, flags = codec.PREFIX.unpack_from(record)
    fixed = codec.FIXED_SIZES[kind]
    number = place = signal = began_ns = ended_ns = first = jobs = 0
    name = once = b""
    is_detached = False
    try:
        for tag, value in each_option(record, fixed, options_size):
            if tag == _STEP:
                number, name = _NUMBER.unpack_from(value)[0], value[_NUMBER.size :]
            elif tag == _BEGAN:
                (began_ns,) = _I64.unpack(value)
            elif tag == Option.ONCE:
                once = value
            elif tag == Option.TAKES:
                (signal,) = _U64.unpack(value)
            elif tag == Option.ENDED:
                (ended_ns,) = _I64.unpack(value)
            elif tag == Option.INPUTS:
                first, jobs = _RUN.unpack_from(value)
                is_detached = value[_RUN.size :] == _DETACHED
    except struct.error as error:
        raise FormatError(
            f"an option of a {'step' if kind == STEP else 'signal'} is cut short: use a newer taskq"
        ) from error
    if kind == STEP:
        (place,) = _NUMBER.unpack_from(record, _PLACE_AT)
    else:
        (signal,) = _U64.unpack_from(record, _TOKEN_AT)
    body = record[fixed + options_size : length - CRC_SIZE]
    return Stepped(
        name.decode("utf-8", "replace"), number, form, place, signal,
        once.decode("utf-8", "replace"), began_ns, ended_ns, first, jobs, body, flags & PACKED,
        is_detached,
    )  # fmt: skip


def job_of(record: bytes) -> int:
    job: int = _U64.unpack_from(record, codec.JOB_AT)[0]
    return job


def again(record: bytes, token: int | None, ended_ns: int, lsn: int) -> bytes:
    """Return the rewritten record for ``lsn``.

    ``token`` is the number of a signal, or a step's token; None keeps it. A step or an act without
    its time gets ``ended_ns``.
    """
    again = bytearray(record[:-CRC_SIZE])
    if token is not None:
        _U64.pack_into(again, _TOKEN_AT, token)
    kind, size = record[KIND_AT], codec.PREFIX.unpack_from(record)[3]
    fixed = codec.FIXED_SIZES[kind]
    if kind in (STEP, ACT) and not find_option(record, fixed, size, Option.ENDED):
        end = fixed + size
        again[end:end] = ended = option(Option.ENDED, _I64.pack(ended_ns))
        _U16.pack_into(again, _OPTIONS_SIZE_AT, size + len(ended))
    return codec.encode_checked(bytes(again[4:]), b"", lsn)


def fold_step(record: bytes, lsn: int, location: int, agenda: Agenda) -> None:
    kind = record[KIND_AT]
    if kind == ACT or (kind == STEP and not _U64.unpack_from(record, _TOKEN_AT)[0]):
        return  # no fold needs it, or its job has ended
    step, job = decode_step(record), job_of(record)
    once = step.once.encode("utf-8", "surrogatepass")
    if record[KIND_AT] == STEP:
        called = (step.first, step.jobs) if step.jobs and not step.is_detached else None
        title = step.name, step.number
        more = title, called, step.form
        apply_step(agenda, job, step.place, location, step.signal, once, *more)
    else:
        name = step.name.encode("utf-8", "surrogatepass")
        apply_signal(agenda, job, Signal(step.signal or lsn, name, once, location))


def awaits_option(packed: bytes) -> bytes:
    return option(Option.AWAITS, packed)


def fold_begun(record: bytes, agenda: Agenda) -> None:
    """Note in the agenda the waits that a running job begins."""
    size = codec.PREFIX.unpack_from(record)[3]
    packed = find_option(record, codec.JOB.size, size, Option.AWAITS)
    apply_begun(agenda, job_of(record), packed)
