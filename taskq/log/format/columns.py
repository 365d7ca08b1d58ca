"""Flat columns of numbers, and their bytes in files: little-endian on every machine."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Final

from taskq.log.format import codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

_IS_BIG: Final = sys.byteorder == "big"
#: Which half of a u64 in memory is the lower one.
_LOW: Final = 1 if _IS_BIG else 0


def column(code: str, data: Buffer) -> array[int]:
    """Return the numbers of an array type ("I", "Q", "q") that stand in a file as these bytes."""
    numbers: array[int] = array(code)
    numbers.frombytes(data)
    if _IS_BIG:
        numbers.byteswap()
    return numbers


def view(code: str, data: Buffer) -> Sequence[int]:
    """Return the same numbers where they stand, to be looked at once or twice."""
    if _IS_BIG:
        return column(code, data)
    return memoryview(data).cast("B").cast(code)  # type: ignore[call-overload, no-any-return]


def packed(numbers: array[int]) -> bytes:
    """Return the bytes of a column in a file."""
    if _IS_BIG:
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def lower_halves(words: array[int]) -> array[int]:
    """Return the low 32 bits of each u64."""
    return array("I", words.tobytes())[_LOW::2]


def upper_halves(words: array[int]) -> array[int]:
    """Return the high 32 bits of each u64."""
    return array("I", words.tobytes())[1 - _LOW :: 2]


def joined(lower: array[int], upper: array[int]) -> array[int]:
    """u64 numbers from their halves."""
    halves = array("I", bytes(8 * len(lower)))
    halves[_LOW::2] = lower
    halves[1 - _LOW :: 2] = upper
    return array("Q", halves.tobytes())


def plain_records(
    kind: int, attempts: Sequence[int], jobs: Sequence[int], last: Iterable[int]
) -> bytes:
    """Return the plain records of many jobs, one after the other; ``last`` are tokens or owners.

    For each what ``codec.JOB`` packs, with no byte, options or flags: four words of 8 bytes.
    """
    count, first = len(jobs), attempts[0]
    head = codec.PREFIX.pack(codec.JOB.size, kind, 0, 0, 0)
    words = array("Q", bytes(codec.JOB.size * count))
    words[0::4] = array("Q", (int.from_bytes(head[:8], "little"),)) * count
    if attempts.count(first) == count:
        words[1::4] = array("Q", (first << 32,)) * count
    else:
        words[1::4] = array("Q", [attempt << 32 for attempt in attempts])
    words[2::4] = array("Q", jobs)
    words[3::4] = array("Q", last)
    return packed(words)
