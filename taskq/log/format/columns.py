"""Flat columns of numbers, and their bytes in files: little-endian on every machine."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import taskq._native as native
from taskq.core.kinds import BIRTH
from taskq.log.format import codec

if TYPE_CHECKING:
    from typing_extensions import Buffer

_IS_BIG: Final = sys.byteorder == "big"
#: Index of the lower half of a u64 in memory.
_LOW: Final = 1 if _IS_BIG else 0
_BIRTH: Final = int(BIRTH)
_ONE_BYTE: Final = [bytes((value,)) for value in range(256)].__getitem__
_WINDOW_FIRST: Final = 32
_WINDOW_LAST: Final = 4_096


def column(code: str, data: Buffer) -> array[int]:
    """Return the numbers of an array type ("I", "Q", "q") from their bytes in a file."""
    numbers: array[int] = array(code)
    numbers.frombytes(data)
    if _IS_BIG:
        numbers.byteswap()
    return numbers


def view(code: str, data: Buffer) -> Sequence[int]:
    """Return the same numbers without a copy, for one or two reads."""
    if _IS_BIG:
        return column(code, data)
    return memoryview(data).cast("B").cast(code)  # type: ignore[call-overload, no-any-return]


def packed(numbers: array[int]) -> bytes:
    if _IS_BIG:
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def lower_halves(words: array[int]) -> array[int]:
    return array("I", words.tobytes())[_LOW::2]


def upper_halves(words: array[int]) -> array[int]:
    return array("I", words.tobytes())[1 - _LOW :: 2]


def joined(lower: array[int], upper: array[int]) -> array[int]:
    halves = array("I", bytes(8 * len(lower)))
    halves[_LOW::2] = lower
    halves[1 - _LOW :: 2] = upper
    return array("Q", halves.tobytes())


def run_length(
    data: bytes, at: int, end: int, length: int, checks: tuple[tuple[int, bytes], ...]
) -> int:
    """Return the number of records of this length at the start of ``data[at:end]``, up to 4 096.

    A check is the offset of a byte in a record, and its possible values.
    """
    size = length.to_bytes(4, "little")
    limit = min(_WINDOW_LAST, (end - at) // length)
    window = min(_WINDOW_FIRST, limit)
    while True:
        equal = window
        for byte, allowed in (*enumerate(map(_ONE_BYTE, size)), *checks):
            values = data[at + byte : at + window * length : length]
            if values[0] not in allowed:
                return 0
            if values[:1] * window != values:
                equal = min(equal, window - len(values.lstrip(allowed)))
        if equal < window or window == limit:
            return equal
        window = limit


def rising(first: int, step: int, count: int) -> array[int]:
    """Return ``first``, ``first + step`` and so on, added as one number: three times as fast."""
    lanes = _steps(step, count) + first * int.from_bytes(b"\1\0\0\0" * count, "little")
    return column("I", lanes.to_bytes(4 * count, "little"))


@lru_cache(maxsize=16)
def _steps(step: int, count: int) -> int:
    return int.from_bytes(packed(array("I", range(0, step * count, step))), "little")


def plain_records(
    kind: int, attempts: Sequence[int], jobs: Sequence[int], last: Sequence[int] | int
) -> bytes:
    """Return many jobs' plain records, one after the other; ``last``: tokens, or the owner.

    Each is packed like ``codec.JOB`` without byte, options and flags: four words of 8 bytes.
    """
    head = codec.PREFIX.pack(codec.JOB.size, kind, 0, 0, 0)[:8]
    if native.is_on:
        records: bytes | None = native.plain.plain_records(head, attempts, jobs, last)
        if records is not None:
            return records
    count, first = len(jobs), attempts[0]
    words = array("Q", bytes(codec.JOB.size * count))
    words[0::4] = array("Q", (int.from_bytes(head, "little"),)) * count
    if attempts.count(first) == count:
        words[1::4] = array("Q", (first << 32,)) * count
    else:
        words[1::4] = array("Q", [attempt << 32 for attempt in attempts])
    words[2::4] = array("Q", jobs)
    words[3::4] = array("Q", (last,)) * count if isinstance(last, int) else array("Q", last)
    return packed(words)


def whole_records(
    data: bytes, first: int, locations: Sequence[int], jobs: Sequence[int]
) -> list[bytes]:
    """Return the enqueue records of jobs, up to the first that is not whole in ``data``.

    ``first`` is the location of the first byte of ``data``.
    """
    least, whole = codec.BORN.size, codec.CRC_OF_WHOLE
    if native.is_on:
        read: list[bytes] | None = native.plain.whole_records(
            data, first, _BIRTH, least, whole, locations, jobs
        )
        if read is not None:
            return read
    unpack, crc32, kind_at = codec.LENGTH.unpack_from, codec.crc32, codec.KIND_AT
    last = len(data) - least
    records: list[bytes] = []
    for location, lsn in zip(locations, jobs, strict=True):
        start = location - first
        if not 0 <= start <= last or data[start + kind_at] != _BIRTH:
            break
        size = unpack(data, start)[0]
        record = data[start : start + size]
        if crc32(record, lsn & 0xFFFFFFFF) != whole or size < least or len(record) < size:
            break
        records.append(record)
    return records
