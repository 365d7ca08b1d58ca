"""Ready jobs of a lane that were not ready at once, or not the first time, and since when they are.

By id, 16 bytes each. Their moments are in no order, for an old job may come back late; so each
block knows the earliest of its own, and a look for jobs that have waited long passes over blocks
that hold none.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import chain
from typing import TYPE_CHECKING, Final

from taskq.core import blocks
from taskq.core.blocks import SortedBlocks

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        """The same pairs; the given ones must not be used any more."""
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
        most = blocks._BLOCK
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
        """Take a job out; False if it is not here."""
        number, at = self._find(job)
        if at < 0:
            return False
        self._cut(number, at, at + 1)
        return True

    def since(self, job: int) -> int | None:
        """The moment since when the job is ready; None if it is not here."""
        number, at = self._find(job)
        return None if at < 0 else self._values[number][at]

    def low(self) -> int | None:
        """The earliest moment of all; None when empty."""
        return min(map(self._low, range(len(self._keys))), default=None)

    def ids(self) -> Iterator[int]:
        """All jobs, by id."""
        return chain.from_iterable(self._keys)

    def within(self, moment: int) -> Iterator[int]:
        """The jobs that are ready since ``moment`` or longer, by id."""
        for number in range(len(self._keys)):
            if self._low(number) <= moment:
                keys, values = self._keys[number], self._values[number]
                yield from (keys[at] for at, value in enumerate(values) if value <= moment)

    def pop_ids(self, job: int, count: int) -> list[int]:
        """Remove and return at most ``count`` jobs of an id up to ``job``, by id."""
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
            found = [at for at in range(end) if values[at] <= moment][: count - len(popped)]
            popped += [keys[at] for at in found]
            before = len(self._keys)
            for at in reversed(found):
                self._cut(number, at, at + 1)
            number += 1 - (before - len(self._keys))
        return popped

    def _find(self, job: int) -> tuple[int, int]:
        """(block, place in it) of a job, the place -1 if it is not here."""
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
        """Remove part of a block."""
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
