"""Claims that count against a rate: what says so in the log, and how compaction keeps it.

A claim says itself which rate it counts against, so whoever folds the log knows the times of a
group's claims without having its task. Compaction writes the times again (RATED): the claims may be
in a segment that goes, or their jobs, which say to which group they belong.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from taskq.core.errors import FormatError
from taskq.core.limits import pack_group, unpack_group
from taskq.core.rates import Times
from taskq.core.records import Flag, Kind, Option
from taskq.log import codec
from taskq.log.codec import CRC_SIZE
from taskq.log.options import each_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from taskq.core.agenda import Agenda, Taken
    from taskq.core.rates import Limit
    from taskq.log.batch import Batch

    GroupKey = tuple[str, bytes]

_RATE: Final = struct.Struct("<Iq")
#: The whole option.
_RATE_OPTION: Final = struct.Struct("<BHIq")
_I64: Final = struct.Struct("<q")
_SIZE: Final = struct.Struct("<H")
_PAIR: Final = struct.Struct("<qI")
_LEASE: Final = int(Option.LEASE)
_RATED: Final = int(Option.RATE)
#: Times that go into one batch, unless those of one group are more; ...
_PAIRS_MAX: Final = 10_000
#: ... and groups: no batch may hold the lock for long.
_GROUPS_MAX: Final = 1_000


def mark_rated(batch: Batch, taken: list[Taken], limits: Mapping[str, Limit] | None) -> None:
    """Let those of a batch's last claims that count against a rate say so."""
    if not limits:
        return
    parts = batch.parts
    for number, (_, _, _, lane, _) in enumerate(taken, len(parts) - len(taken)):
        limit = None if lane.group is None else lane.group.limit
        if limit is None or limit.rate is None:
            continue
        rate = limit.rate
        rated = _RATE_OPTION.pack(_RATED, _RATE.size, rate.count, rate.window_ns)
        claim = parts[number]
        size, kind, byte, options_size, flags = codec.PREFIX.unpack_from(claim)
        more = len(rated)
        head = codec.PREFIX.pack(size + more, kind, byte, options_size + more, flags)
        parts[number] = head + claim[codec.PREFIX.size :] + rated
        batch.size += more


def fold_claim(data: bytes, at: int, options_size: int, job: int, agenda: Agenda) -> None:
    """The options of a claim or an extension; ``at`` is where its record starts.

    Raises:
        FormatError: one of them has another length.
    """
    for tag, value in each_option(data, at + codec.JOB.size, options_size):
        if tag == _LEASE and len(value) == _I64.size:
            deadline_ns = _I64.unpack(value)[0]
            if deadline_ns and job in agenda.running:
                agenda.leases.apply_until(job, deadline_ns)
        elif tag == _RATED:
            if len(value) != _RATE.size:
                raise FormatError(f"option RATE has {len(value)} bytes: use a newer taskq")
            agenda.apply_rated(job, *_RATE.unpack(value))


def chunks_of(agenda: Agenda) -> list[list[GroupKey]]:
    """The groups whose times matter, in parts of which each fits a batch."""
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


def write_rated(batch: Batch, agenda: Agenda, keys: Iterable[GroupKey]) -> None:
    """Write down when the claims of these groups were made."""
    shift_ns = agenda.times.shift_ns
    for key in keys:
        times = agenda.groups.times(key, agenda.moment)
        if times is not None:
            batch.add(encode_rated(key, times, shift_ns, batch.lsn))


def encode_rated(key: GroupKey, times: Times, shift_ns: int, lsn: int) -> bytes:
    """A RATED record."""
    fixed = codec.RATED.pack(0, Kind.RATED, 0, 0, Flag.CHECKED, 0, times.most, times.window_ns)
    packed = pack_group(key)
    body = _SIZE.pack(len(packed)) + packed
    body += b"".join(_PAIR.pack(moment + shift_ns, count) for moment, count in times.pairs())
    return codec.encode_checked(fixed[4:], body, lsn)


def decode_rated(record: bytes, shift_ns: int = 0) -> tuple[GroupKey, Times]:
    """The group of a RATED record, and its times.

    Raises:
        FormatError: lengths do not fit.
    """
    most, window_ns = codec.RATED.unpack_from(record)[6:]
    body = record[codec.RATED.size : -CRC_SIZE]
    try:
        start = _SIZE.size + _SIZE.unpack_from(body)[0]
        key = unpack_group(body[_SIZE.size : start])
        pairs = [(moment - shift_ns, count) for moment, count in _PAIR.iter_unpack(body[start:])]
        times = Times()
        times.replace(pairs, most, window_ns)
    except (struct.error, ValueError) as error:
        raise FormatError("a RATED record is shorter than what it holds") from error
    except OverflowError as error:
        raise FormatError("a RATED record holds a moment that is none") from error
    return key, times


def fold_rated(record: bytes, agenda: Agenda) -> None:
    """The claims of a group were made at these times, whatever of them was seen here."""
    key, times = decode_rated(record, agenda.times.shift_ns)
    agenda.groups.restore(key, times, agenda.moment)
