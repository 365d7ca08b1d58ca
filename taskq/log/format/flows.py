"""Flows in the log: the options of their jobs.

``NEEDS`` is (count u32, policy u8), of a carried job as it stands then, with 128 in the policy of
one that is to be cancelled; ``FLOW`` is (jobs u32, ends u32, shape); for ``INPUTS``, ``UNLOCKS``
and ``SHAPE`` see ``Option`` and ``core.shapes``.
"""

from __future__ import annotations

import struct
from typing import Final

from taskq.core.errors import FormatError, UsageError
from taskq.core.flows import FlowPart, Policy, needs_of
from taskq.core.folds.jobtable import META_FLOW
from taskq.core.records import Flag, Option
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.codec import FLAGS_AT, option
from taskq.log.format.options import each_option

#: All options of a record together: their length is a u16.
OPTIONS_BYTES_MAX: Final = 2**16 - 1
_NEEDS: Final = struct.Struct("<IB")
_RUN: Final = struct.Struct("<QI")
_FLOW: Final = struct.Struct("<II")
_DOOMED: Final = 128
#: More than any transaction holds.
_JOBS_MAX: Final = 2**20
FLOW_FLAG: Final = int(Flag.FLOW)
_UNLOCKS: Final = int(Option.UNLOCKS)


class Root(NamedTuple):
    """Hold what the first job of a flow says of all of it."""

    jobs: int
    #: so many of the first jobs make up the flow's result
    ends: int
    shape: bytes


class Takes(NamedTuple):
    """Whom a job waits or waited for, and who waits for it."""

    inputs: tuple[int, ...] = ()
    policy: Policy = Policy.CANCEL
    #: how the inputs' results are handed over; empty if they are not
    shape: bytes = b""
    unlocks: tuple[int, ...] = ()
    root: Root | None = None


def encode_part(part: FlowPart, lsn: int) -> bytes:
    """Return the options of a flow's job that is written at ``lsn``."""
    base = lsn - part.index
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
    """Refuse a job whose options would be so large.

    Raises:
        UsageError: a record cannot hold them.
    """
    if size > OPTIONS_BYTES_MAX:
        raise UsageError(
            f"a job of the flow needs {size} bytes to name its inputs and who waits for it, the "
            f"limit is {OPTIONS_BYTES_MAX}: put a step between groups as large as these"
        )


def encode_needs(needs: int) -> bytes:
    doomed = _DOOMED if needs >> 40 else 0
    return option(Option.NEEDS, _NEEDS.pack(needs & 0xFFFFFFFF, needs >> 32 & 0x7F | doomed))


def encode_unlocks(jobs: list[int]) -> bytes:
    return option(Option.UNLOCKS, struct.pack(f"<{len(jobs)}Q", *jobs))


def decode_needs(value: bytes) -> int:
    """Return what a held job waits for, as ``Flows`` has it.

    Raises:
        FormatError: the option has another length.
    """
    if len(value) != _NEEDS.size:
        raise FormatError(f"option NEEDS has {len(value)} bytes: use a newer taskq")
    count, policy = _NEEDS.unpack(value)
    return needs_of(count, policy & 0x7F, doomed=bool(policy & _DOOMED))


def decode_unlocks(value: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(value) // 8}Q", value[: len(value) // 8 * 8])


def held_needs(meta: int, data: bytes, at: int, size: int) -> int | None:
    """Return what a job with this meta and these options waits for at first; None for nothing."""
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
