"""A sorted multimap of (key, value) numbers in flat arrays: 16 bytes a pair, no object for any.

Measured in pure Python against the alternatives: a heap of ints costs 55 bytes an entry, a dict of
buckets per second 46 and up when moments are far apart. Blocks of at most 2 * 1 024 pairs keep an
insertion's memmove under a microsecond.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BLOCK: Final = 1_024
#: Larger than any lsn.
NO_JOB: Final = 2**64 - 1
#: No moment is later.
LATEST: Final = 2**64 - 1


class SortedBlocks:
    """Pairs of unsigned 64-bit numbers in the order of their keys; equal keys keep their order."""

    __slots__ = ("_firsts", "_found", "_keys", "_swept", "_values", "size")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._keys: list[array[int]] = []
        self._values: list[array[int]] = []
        self._swept = 0
        #: the block in which the last pair was that was asked for
        self._found = 0
        self.size = 0

    def add(self, key: int, value: int) -> None:
        """Insert a pair."""
        self.size += 1
        if not self._keys:
            self._open_block(key, value)
            return
        last = self._keys[-1]
        if key >= last[-1]:
            if len(last) >= _BLOCK:
                self._open_block(key, value)
            else:
                last.append(key)
                self._values[-1].append(value)
            return
        number = max(bisect_right(self._firsts, key) - 1, 0)
        keys = self._keys[number]
        index = bisect_right(keys, key)
        keys.insert(index, key)
        self._values[number].insert(index, value)
        if not index:
            self._firsts[number] = key
        if len(keys) > 2 * _BLOCK:
            self._split(number)

    def has(self, key: int, value: int) -> bool:
        """Whether the pair is there.

        Quick for whoever asks in the order in which the pairs came, however many have the same key.
        """
        found = self._found
        for number in range(found, min(found + 2, len(self._keys))):
            if self._is_in(number, key, value):
                self._found = number
                return True
        firsts = self._firsts
        for number in range(max(bisect_left(firsts, key) - 1, 0), len(firsts)):
            if firsts[number] > key:
                break
            if self._is_in(number, key, value):
                self._found = number
                return True
        return False

    def _is_in(self, number: int, key: int, value: int) -> bool:
        """Whether the pair is in this block."""
        keys, values = self._keys[number], self._values[number]
        start, end = bisect_left(keys, key), bisect_right(keys, key)
        # Values of one key are mostly in order, but need not be.
        at = bisect_left(values, value, start, end)
        return (at < end and values[at] == value) or value in values[start:end]

    def blocks(self) -> Iterator[tuple[array[int], array[int]]]:
        """(keys, values) of each block; what is added meanwhile may or may not be seen."""
        return zip(list(self._keys), list(self._values), strict=True)

    def first_key(self) -> int | None:
        """The smallest key, None when empty."""
        return self._keys[0][0] if self._keys else None

    def pop_until(self, key: int, count: int) -> list[int]:
        """Remove and return the values of at most ``count`` pairs whose key is at most ``key``."""
        popped: list[int] = []
        for _, values in self._cut_until(key, count):
            popped += values
        return popped

    def pop_pairs_until(self, key: int, count: int) -> list[tuple[int, int]]:
        """Do as ``pop_until``, but return the pairs."""
        cut = self._cut_until(key, count)
        return [pair for keys, values in cut for pair in zip(keys, values, strict=True)]

    def __iter__(self) -> Iterator[int]:
        """The values, by key."""
        return chain.from_iterable(self._values)

    def remove(self, value: int) -> bool:
        """Take the first pair of that value out, looking through all; False if none has it."""
        for number, values in enumerate(self._values):
            try:
                index = values.index(value)
            except ValueError:
                continue
            self._replace(number, [at for at in range(len(values)) if at != index])
            return True
        return False

    def sweep(self, keep: Callable[[int], bool]) -> int:
        """Drop the pairs of the next block that are double or whose value ``keep`` refuses.

        One block a call, the first again after the last; returns how many pairs went.
        """
        if not self._keys:
            return 0
        number = self._swept if self._swept < len(self._keys) else 0
        keys, values = self._keys[number], self._values[number]
        kept = [
            at
            for at, value in enumerate(values)
            if keep(value) and not (at and values[at - 1] == value and keys[at - 1] == keys[at])
        ]
        dropped = len(keys) - len(kept)
        blocks = len(self._keys)
        if dropped:
            self._replace(number, kept)
        self._swept = number + 1 - (blocks - len(self._keys))
        return dropped

    def _cut_until(self, key: int, count: int) -> Iterator[tuple[array[int], array[int]]]:
        """Take out at most ``count`` pairs whose key is at most ``key``, a block's at a time."""
        while self._keys and count > 0:
            keys, values = self._keys[0], self._values[0]
            taken = min(bisect_right(keys, key), count)
            if not taken:
                return
            count -= taken
            self.size -= taken
            if taken == len(keys):
                self._close_block(0)
                yield keys, values
                continue
            cut = keys[:taken], values[:taken]
            del keys[:taken], values[:taken]
            self._firsts[0] = keys[0]
            yield cut

    def _replace(self, number: int, kept: list[int]) -> None:
        """Leave only the pairs at ``kept`` in a block; join it to the one before if both fit."""
        keys, values = self._keys[number], self._values[number]
        self.size -= len(keys) - len(kept)
        if not kept:
            self._close_block(number)
        elif number and len(self._keys[number - 1]) + len(kept) <= _BLOCK:
            self._keys[number - 1].extend(keys[at] for at in kept)
            self._values[number - 1].extend(values[at] for at in kept)
            self._close_block(number)
        else:
            self._keys[number] = array("Q", [keys[at] for at in kept])
            self._values[number] = array("Q", [values[at] for at in kept])
            self._firsts[number] = self._keys[number][0]

    def _close_block(self, number: int) -> None:
        del self._keys[number], self._values[number], self._firsts[number]

    def _open_block(self, key: int, value: int) -> None:
        self._firsts.append(key)
        self._keys.append(array("Q", (key,)))
        self._values.append(array("Q", (value,)))

    def _split(self, number: int) -> None:
        keys, values = self._keys[number], self._values[number]
        self._keys.insert(number + 1, keys[_BLOCK:])
        self._values.insert(number + 1, values[_BLOCK:])
        del keys[_BLOCK:], values[_BLOCK:]
        self._firsts.insert(number + 1, self._keys[number + 1][0])
