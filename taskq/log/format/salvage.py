"""Salvage a damaged frame: find the records whose own CRC fits."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Final

from taskq.core.records import Flag
from taskq.log.format import codec
from taskq.log.format.codec import CRC_SIZE

#: Records skipped by their lengths before a search by CRC.
_HOPS_MAX: Final = 1_024
#: Most record heads whose CRCs are tried in one body; real bodies have few false heads.
_GUESSES_MAX: Final = 2**16
#: Distance between the prefixes of a body whose CRCs are kept.
_STEP: Final = 256
_CHECKED: Final = int(Flag.CHECKED)
_WORD: Final = 0xFFFFFFFF
#: Powers of two in a record's size.
_POWERS: Final = codec.FRAME_BODY_MAX.bit_length()
#: Head of a record: length up to 48 MiB, a type, a byte, size of options, flags with bit 1.
_HEAD: Final = re.compile(
    b"(?=...[\x00-\x02][%b]...[%b])"
    % (
        b"".join(re.escape(bytes([kind])) for kind in codec.FIXED_SIZES),
        b"".join(re.escape(bytes([low])) for low in range(_CHECKED, 256, 2)),
    ),
    re.DOTALL,
)


def salvage(data: bytes, lsn: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (lsn, index, record) of each record in a damaged body whose own CRC fits.

    Records follow one another by their lengths. After a bad length the next record is found by its
    CRC alone. For bytes that look like the head of a record, the lsn that fits their CRC is
    computed, and must be possible there. All CRCs are derived from the CRCs of the body's prefixes,
    so a try costs the same for every length of a record. A CRC is linear, which gives the CRC of
    any part (zlib's ``crc32_combine``), and its seed.

    Args:
        data: the body, or the bytes in its place.
        lsn: of its first record.
    """
    at = 0
    seeds: _Seeds | None = None
    while at < len(data):
        size = _whole_size(data, at, lsn)
        if size:
            yield lsn, at, data[at : at + size]
            at, lsn = at + size, lsn + 1
            continue
        place = _hop(data, at, lsn)
        if place is None:
            seeds = seeds or _Seeds(data)
            place = seeds.next_whole(at, lsn)
        if place is None:
            return
        at, lsn = place


def _size_at(data: bytes, at: int) -> int:
    if at + codec.PREFIX.size > len(data):
        return 0
    length, kind, _, _, _ = codec.PREFIX.unpack_from(data, at)
    fixed = codec.SIZES[kind]
    return length if kind and fixed <= length <= len(data) - at else 0


def _may_be_checked(data: bytes, at: int, size: int) -> bool:
    _, kind, _, _, flags = codec.PREFIX.unpack_from(data, at)
    fixed = codec.FIXED_SIZES.get(kind)
    return fixed is not None and flags & _CHECKED != 0 and size >= fixed + CRC_SIZE


def _whole_size(data: bytes, at: int, lsn: int) -> int:
    """Return the size of the record with that lsn at ``at``, 0 without a fitting CRC."""
    size = _size_at(data, at)
    if not size or not _may_be_checked(data, at, size):
        return 0
    end = at + size - CRC_SIZE
    crc = codec.crc32(memoryview(data)[at:end], lsn & _WORD)
    return size if crc == codec.LENGTH.unpack_from(data, end)[0] else 0


def _hop(data: bytes, at: int, lsn: int) -> tuple[int, int] | None:
    for _ in range(_HOPS_MAX):
        size = _size_at(data, at)
        if not size:
            return None
        at, lsn = at + size, lsn + 1
        if _whole_size(data, at, lsn):
            return at, lsn
    return None


class _Seeds:
    """Finds the lsn that fits the CRC of a part of a body."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._view = memoryview(data)
        self._guesses = 0
        self._crcs = [0]
        for at in range(0, len(data), _STEP):
            self._crcs.append(codec.crc32(self._view[at : at + _STEP], self._crcs[-1]))

    def next_whole(self, at: int, lsn: int) -> tuple[int, int] | None:
        """Return (index, lsn) of the first whole record after ``at``, the index of ``lsn``."""
        data = self._data
        for match in _HEAD.finditer(data, at + 1):
            place = match.start()
            size = _size_at(data, place)
            if size and _may_be_checked(data, place, size):
                self._guesses += 1
                if self._guesses > _GUESSES_MAX:
                    return None
                # Each lost record took at least the size of a prefix.
                lost = self._seed(place, size - CRC_SIZE) - lsn & _WORD
                if lost <= (place - at) // codec.PREFIX.size:
                    return place, lsn + lost
        return None

    def _seed(self, at: int, size: int) -> int:
        end = at + size
        crc = codec.LENGTH.unpack_from(self._data, end)[0]
        return self._crc_before(at) ^ _taken_back(self._crc_before(end) ^ crc, size)

    def _crc_before(self, at: int) -> int:
        known = at // _STEP
        return codec.crc32(self._view[known * _STEP : at], self._crcs[known])


def _taken_back(crc: int, zeros: int) -> int:
    """Return the state of a CRC before ``zeros`` zero bytes."""
    for power, (low, second, third, high) in enumerate(_steps_back()):
        if zeros >> power & 1:
            crc = (
                low[crc & 0xFF]
                ^ second[crc >> 8 & 0xFF]
                ^ third[crc >> 16 & 0xFF]
                ^ high[crc >> 24]
            )
    return crc


@functools.cache
def _steps_back() -> list[list[list[int]]]:
    """Return, by power of two, the state that many zero bytes earlier for each byte of a state."""
    # A state moves by table[low byte] ^ rest, and the words of the table differ in their high
    # bytes.
    table = [codec.crc32(bytes([low]), _WORD) ^ _WORD for low in range(256)]
    low_of = {word >> 24: low for low, word in enumerate(table)}

    def back(word: int) -> int:
        low = low_of[word >> 24]
        return (word ^ table[low]) << 8 & _WORD | low

    columns = [back(1 << bit) for bit in range(32)]
    steps = [_by_byte(columns)]
    for _ in range(_POWERS):
        low, second, third, high = steps[-1]
        columns = [
            low[column & 0xFF]
            ^ second[column >> 8 & 0xFF]
            ^ third[column >> 16 & 0xFF]
            ^ high[column >> 24]
            for column in columns
        ]
        steps.append(_by_byte(columns))
    return steps


def _by_byte(columns: list[int]) -> list[list[int]]:
    """Return the sums of a matrix's columns, selected by the bits of each of four bytes."""
    sums = []
    for first in range(0, 32, 8):
        chosen = [0]
        for column in columns[first : first + 8]:
            chosen += [number ^ column for number in chosen]
        sums.append(chosen)
    return sums
