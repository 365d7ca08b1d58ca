"""A sorted multimap of (key, value) numbers in flat arrays: 16 bytes a pair, no object for any.

Measured in pure Python against the alternatives: a heap of ints costs 55 bytes an entry, a dict of
buckets per second 46 and up when moments are far apart. Blocks of at most 2 * 1 024 pairs keep an
insertion's memmove under a microsecond.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

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
        """Return whether the pair is there.

        Quick for whoever asks in the order in which the pairs came, however many have the same key.
        """
        nearest = self._found
        for number in range(nearest, min(nearest + 2, len(self._keys))):
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
        keys, values = self._keys[number], self._values[number]
        start, end = bisect_left(keys, key), bisect_right(keys, key)
        # Values of one key are mostly in order, but need not be.
        at = bisect_left(values, value, start, end)
        return (at < end and values[at] == value) or value in values[start:end]

    def blocks(self) -> Iterator[tuple[array[int], array[int]]]:
        """(keys, values) of each block; what is added meanwhile may or may not be seen."""
        return zip(list(self._keys), list(self._values), strict=True)

    def first_key(self) -> int | None:
        return self._keys[0][0] if self._keys else None

    def between(self, after: int, until: int) -> Iterator[array[int]]:
        """Tell the values of the pairs whose key is over ``after`` and at most ``until``."""
        for number in range(max(bisect_right(self._firsts, after) - 1, 0), len(self._firsts)):
            if self._firsts[number] > until:
                return
            keys = self._keys[number]
            yield self._values[number][bisect_right(keys, after) : bisect_right(keys, until)]

    def pop_until(self, key: int, count: int) -> list[int]:
        """Remove and return the values of at most ``count`` pairs whose key is at most ``key``."""
        popped: list[int] = []
        for _, values in self._cut_until(key, count):
            popped += values
        return popped

    def pop_pairs_until(self, key: int, count: int) -> list[tuple[int, int]]:
        cut = self._cut_until(key, count)
        return [pair for keys, values in cut for pair in zip(keys, values, strict=True)]

    def __iter__(self) -> Iterator[int]:
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

    def remove_pair(self, key: int, value: int) -> bool:
        for number in range(max(bisect_left(self._firsts, key) - 1, 0), len(self._firsts)):
            if self._firsts[number] > key:
                break
            keys, values = self._keys[number], self._values[number]
            start, end = bisect_left(keys, key), bisect_right(keys, key)
            if value in values[start:end]:
                index = values.index(value, start, end)
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


# Ready jobs of a lane that were not ready at once, or not the first time, and since when they are.
#
# By id, 16 bytes each. Their moments are in no order, for an old job may come back late; so each
# block knows the earliest of its own, and a look for jobs that have waited long passes over blocks
# that hold none.

#: In place of a block's earliest moment: it must be looked for.
_UNKNOWN: Final = -1


class Returned(SortedBlocks):
    """Job -> moment since when it is ready, both unsigned 64-bit numbers; each job once."""

    __slots__ = ("_lows",)

    def __init__(self) -> None:
        super().__init__()
        self._lows: list[int] = []

    @classmethod
    def of(cls, pairs: SortedBlocks) -> Returned:
        """Return the same pairs; the given ones must not be used any more."""
        returned = cls()
        returned._firsts, returned._keys = pairs._firsts, pairs._keys
        returned._values, returned.size = pairs._values, pairs.size
        returned._lows = [_UNKNOWN] * len(pairs._keys)
        return returned

    def put(self, job: int, moment: int) -> bool:
        """The job is ready since then, whatever was said before; whether it is new here."""
        keys = self._keys
        if not keys or job > keys[-1][-1]:
            self.add(job, moment)
            self._lows[-1] = min(self._lows[-1], moment)
            return True
        number, at = self._find(job)
        if at >= 0:
            self._values[number][at] = moment
            self._lows[number] = _UNKNOWN
            return False
        self.add(job, moment)
        number = max(bisect_right(self._firsts, job) - 1, 0)
        self._lows[number] = min(self._lows[number], moment)  # unknown stays unknown
        return True

    def put_run(self, jobs: list[int], moments: list[int]) -> int:
        """Do as ``put`` for jobs of rising ids; returns how many are new here."""
        if self._keys and jobs[0] <= self._keys[-1][-1]:
            return sum(map(self.put, jobs, moments))
        most = _BLOCK
        for start in range(0, len(jobs), most):
            ids, values = jobs[start : start + most], moments[start : start + most]
            if self._keys and len(self._keys[-1]) + len(ids) <= most:
                self._keys[-1].extend(ids)
                self._values[-1].extend(values)
                self._lows[-1] = min(self._lows[-1], *values)  # unknown stays unknown
            else:
                self._firsts.append(ids[0])
                self._keys.append(array("Q", ids))
                self._values.append(array("Q", values))
                self._lows.append(min(values))
        self.size += len(jobs)
        return len(jobs)

    def discard(self, job: int) -> bool:
        number, at = self._find(job)
        if at < 0:
            return False
        self._cut(number, at, at + 1)
        return True

    def since(self, job: int) -> int | None:
        """Return the moment since when the job is ready; None if it is not here."""
        number, at = self._find(job)
        return None if at < 0 else self._values[number][at]

    def low(self) -> int | None:
        """Return the earliest moment of all; None when empty."""
        return min(map(self._low, range(len(self._keys))), default=None)

    def ids(self) -> Iterator[int]:
        return chain.from_iterable(self._keys)

    def within(self, moment: int) -> Iterator[int]:
        """Yield the jobs that are ready since ``moment`` or longer, by id."""
        for number in range(len(self._keys)):
            if self._low(number) <= moment:
                keys, values = self._keys[number], self._values[number]
                yield from (keys[at] for at, value in enumerate(values) if value <= moment)

    def pop_ids(self, job: int, count: int) -> list[int]:
        popped: list[int] = []
        while self._keys and len(popped) < count:
            keys = self._keys[0]
            end = min(bisect_right(keys, job), count - len(popped))
            if not end:
                break
            popped += keys[:end]
            self._cut(0, 0, end)
        return popped

    def pop_within(self, moment: int, job: int, count: int) -> list[int]:
        """Do as ``pop_ids`` for those that are ready since ``moment`` or longer."""
        popped: list[int] = []
        number = 0
        while number < len(self._keys) and self._firsts[number] <= job and len(popped) < count:
            if self._low(number) > moment:
                number += 1
                continue
            keys, values = self._keys[number], self._values[number]
            end = bisect_right(keys, job)
            chosen = [at for at in range(end) if values[at] <= moment][: count - len(popped)]
            popped += [keys[at] for at in chosen]
            before = len(self._keys)
            for at in reversed(chosen):
                self._cut(number, at, at + 1)
            number += 1 - (before - len(self._keys))
        return popped

    def _find(self, job: int) -> tuple[int, int]:
        number = bisect_right(self._firsts, job) - 1
        if number < 0:
            return 0, -1
        keys = self._keys[number]
        at = bisect_left(keys, job)
        return number, at if at < len(keys) and keys[at] == job else -1

    def _low(self, number: int) -> int:
        low = self._lows[number]
        if low == _UNKNOWN:
            low = self._lows[number] = min(self._values[number])
        return low

    def _cut(self, number: int, start: int, end: int) -> None:
        keys, values = self._keys[number], self._values[number]
        self.size -= end - start
        if end - start == len(keys):
            self._close_block(number)
            return
        if self._lows[number] != _UNKNOWN and self._lows[number] in values[start:end]:
            self._lows[number] = _UNKNOWN
        del keys[start:end], values[start:end]
        self._firsts[number] = keys[0]

    def _close_block(self, number: int) -> None:
        super()._close_block(number)
        del self._lows[number]

    def _open_block(self, key: int, value: int) -> None:
        super()._open_block(key, value)
        self._lows.append(value)

    def _split(self, number: int) -> None:
        super()._split(number)
        self._lows[number] = _UNKNOWN
        self._lows.insert(number + 1, _UNKNOWN)
