"""Records of schedules, sources and rates."""

from __future__ import annotations

import struct
from typing import Final

from taskq.core.controls import CONTROL_NAME_BYTES_MAX
from taskq.core.errors import FormatError
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.lanes import pack_group, unpack_group
from taskq.core.model import NAME_BYTES_MAX
from taskq.core.rates import Times
from taskq.core.records import Kind, Option
from taskq.core.schedules import ScheduleState, TickRecord
from taskq.core.sources import SourceRecord, SourceState
from taskq.log.format import codec
from taskq.log.format.codec import CRC_SIZE, option
from taskq.log.format.options import each_option

_SIZE: Final = struct.Struct("<H")


# Ticks of schedules: the first process to decide writes a tick together with its jobs.
#
# A TICKED record holds the whole state of its schedule, so that compaction can write it again.

_IS_PAUSED: Final = 1
_GONE: Final = 2


def encode_ticked(ticked: TickRecord, lsn: int) -> bytes:
    state = ticked.state
    options = b""
    if ticked.has_rule and not ticked.is_gone:
        for tag, value in ((Option.RULE, state.rule), (Option.DETAILS, state.details)):
            options += option(tag, value)
    byte = (_IS_PAUSED if state.is_paused else 0) | (_GONE if ticked.is_gone else 0)
    return codec.encode(
        Kind.TICKED, 0, state.last_ns, state.done_ns, lsn=lsn, byte=byte, options=options,
        body=ticked.name.encode("utf-8", "surrogatepass"),
    )  # fmt: skip


def decode_ticked(record: bytes) -> TickRecord:
    _, _, byte, options_size, _, _, last_ns, done_ns = codec.TICK.unpack_from(record)
    name = record[codec.TICK.size + options_size : -CRC_SIZE]
    if len(name) > NAME_BYTES_MAX:
        raise FormatError(f"the name of a schedule has {len(name)} bytes")
    rule = details = b""
    for tag, value in each_option(record, codec.TICK.size, options_size):
        if tag == Option.RULE:
            rule = value
        elif tag == Option.DETAILS:
            details = value
    state = ScheduleState(last_ns, done_ns, bool(byte & _IS_PAUSED), rule, details)
    return TickRecord(
        name=name.decode("utf-8", "replace"),
        state=state,
        is_gone=bool(byte & _GONE),
        has_rule=bool(options_size),
    )


# Positions of sources: written together with the jobs that lead to them, and again by compaction.
# Controls have the same form: name, JSON, and time of the change.


def encode_moved(moved: SourceRecord, lsn: int, kind: Kind = Kind.INGESTED) -> bytes:
    name, state = moved.name.encode("utf-8", "surrogatepass"), moved.state
    body = _SIZE.pack(len(name)) + name + state.position
    return codec.encode(kind, 0, state.moved_ns, lsn=lsn, body=body)


def decode_moved(record: bytes) -> SourceRecord:
    body = record[codec.MOVED.size : -CRC_SIZE]
    size = _SIZE.unpack_from(body)[0] if len(body) >= _SIZE.size else CONTROL_NAME_BYTES_MAX + 1
    end = _SIZE.size + size
    if size > CONTROL_NAME_BYTES_MAX or end > len(body):
        raise FormatError("a record names no source or control")
    name = body[_SIZE.size : end].decode("utf-8", "surrogatepass")
    return SourceRecord(name, SourceState(body[end:], codec.MOVED.unpack_from(record)[6]))


# Claims that count against a rate, in the log and after compaction.
#
# A claim names its rate, so a fold knows the times of a group's claims without its task. Compaction
# rewrites the times (RATED), since it may remove the claims, or the jobs that name their group.

GroupKey = tuple[str, bytes]

_RATE: Final = struct.Struct("<Iq")
#: A whole option RATE.
_RATE_OPTION: Final = struct.Struct("<BHIq")
_I64: Final = struct.Struct("<q")
_PAIR: Final = struct.Struct("<qI")
_LEASE: Final = int(Option.LEASE)
_RATE_TAG: Final = int(Option.RATE)
#: Most times in one batch, unless one group has more, ...
_PAIRS_MAX: Final = 10_000
#: ... and most groups: no batch may hold the lock for long.
_GROUPS_MAX: Final = 1_000


def chunks_of(agenda: Agenda) -> list[list[GroupKey]]:
    """Return the groups with claim times, in chunks that each fit a batch."""
    chunks: list[list[GroupKey]] = []
    pairs = _PAIRS_MAX
    for key, times in agenda.groups.rows(agenda.moment):
        count = times.entries
        if pairs + count > _PAIRS_MAX or len(chunks[-1]) >= _GROUPS_MAX:
            chunks.append([])
            pairs = 0
        chunks[-1].append(key)
        pairs += count
    return chunks


def encode_rated(key: GroupKey, times: Times, shift_ns: int, lsn: int) -> bytes:
    packed = pack_group(key)
    body = _SIZE.pack(len(packed)) + packed
    body += b"".join(_PAIR.pack(moment + shift_ns, count) for moment, count in times.pairs())
    return codec.encode(Kind.RATED, 0, times.most, times.window_ns, lsn=lsn, body=body)


def decode_rated(record: bytes, shift_ns: int = 0) -> tuple[GroupKey, Times]:
    most, window_ns = codec.RATES.unpack_from(record)[6:]
    body = record[codec.RATES.size : -CRC_SIZE]
    try:
        start = _SIZE.size + _SIZE.unpack_from(body)[0]
        key = unpack_group(body[_SIZE.size : start])
        pairs = [(moment - shift_ns, count) for moment, count in _PAIR.iter_unpack(body[start:])]
        times = Times()
        times.replace(pairs, most, window_ns)
    except (struct.error, ValueError) as error:
        raise FormatError("a RATED record is shorter than its contents") from error
    except OverflowError as error:
        raise FormatError("a RATED record holds a moment that is none") from error
    return key, times
