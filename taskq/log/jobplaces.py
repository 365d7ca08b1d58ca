"""Where the records of each job stand in a segment: sorted runs, and a tail that is not sorted yet.

A pair is one number, the lower half of the job above the offset. Jobs whose upper halves differ are
kept in runs of their own (there are seldom two such groups). A worker indexes each segment that it
fills, of half a million records and more: long runs are compressed, to a fifth or less of 8 bytes a
record.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final

from taskq.log.columns import column, joined, lower_halves, packed, upper_halves

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The tail is sorted when it is this long: a quarter of a millisecond's work. Asking sorts it, too,
#: and what that leaves in shorter runs is joined up to this size.
_RUN: Final = 4_096
#: One in so many pairs is looked at to cut the runs into even parts, ...
_SAMPLE: Final = 512
#: ... of about so many samples each.
_PART: Final = 8
#: Runs from this length on are compressed.
_PACKED_MIN: Final = _RUN // 2
#: Bytes of two pairs: mostly the claim and the end of a job.
_PLANES: Final = 16
_HALF: Final = 2**32 - 1
_ABOVE_ALL: Final = 2**64


class _Run:
    """Sorted pairs of jobs with the same upper half.

    Attributes:
        upper: that half.
        first, last, size: the lowest pair, the highest, and how many there are.
        samples: one in ``_SAMPLE`` pairs.

    Args:
        store: holds the compressed pairs of all runs. One large block leaves no holes behind when
            it is freed, as many of some KiB do.
    """

    __slots__ = ("_end", "_pairs", "_start", "_store", "first", "last", "samples", "size", "upper")

    def __init__(self, upper: int, pairs: array[int], store: bytearray) -> None:
        self.upper = upper
        self.first, self.last, self.size = pairs[0], pairs[-1], len(pairs)
        self.samples = pairs[::_SAMPLE]
        self._pairs: array[int] | None = pairs
        self._store = store
        self._start = self._end = len(store)
        if self.size >= _PACKED_MIN:
            data = pairs.tobytes()
            # All first bytes, all second ones and so on: most of them are like their neighbours.
            planes = b"".join(data[number::_PLANES] for number in range(_PLANES))
            store += zlib.compress(planes, 1)
            self._pairs, self._end = None, len(store)

    def pairs(self) -> array[int]:
        """All of them."""
        if self._pairs is not None:
            return self._pairs
        planes = zlib.decompress(self._store[self._start : self._end])
        data, start = bytearray(len(planes)), 0
        for number in range(_PLANES):
            end = start + len(range(number, len(data), _PLANES))
            data[number::_PLANES] = planes[start:end]
            start = end
        return array("Q", bytes(data))


class JobPlaces:
    """(job, offset) pairs, added in any order, found by job."""

    __slots__ = ("_jobs", "_offsets", "_opened", "_packed", "_runs", "job_max", "job_min", "size")

    def __init__(self) -> None:
        self.size = 0
        #: lowest and highest job; 0 and 0 when there is none
        self.job_min = self.job_max = 0
        self._jobs = array("Q")
        self._offsets = array("I")
        self._runs: list[_Run] = []
        self._packed = bytearray()
        #: the run that was asked last, and its pairs
        self._opened: tuple[_Run | None, array[int]] = (None, array("Q"))

    def add(self, job: int, offset: int) -> None:
        """A record that concerns a job."""
        self._jobs.append(job)
        self._offsets.append(offset)
        if len(self._jobs) >= _RUN:
            self._sort_tail()

    def extend(self, jobs: array[int], offset: int, length: int) -> None:
        """Records of one length, one after the other from ``offset`` on."""
        self._jobs += jobs
        self._offsets += _rising(offset, length, len(jobs))
        if len(self._jobs) >= _RUN:
            self._sort_tail()

    def of(self, job: int) -> list[int]:
        """Offsets of the job's records, rising."""
        self._sort_tail()
        low = (job & _HALF) << 32
        found: list[int] = []
        for run in self._runs:
            if run.upper != job >> 32 or run.last < low or run.first > low | _HALF:
                continue
            pairs = self._pairs_of(run)
            for number in range(bisect_left(pairs, low), len(pairs)):
                if pairs[number] > low | _HALF:
                    break
                found.append(pairs[number] & _HALF)
        return sorted(found)

    def may_hold(self, job: int) -> bool:
        """Whether the job lies between the lowest and the highest."""
        self._sort_tail()
        return self.job_min <= job <= self.job_max

    def parts(self) -> Iterator[tuple[array[int], array[int]]]:
        """(jobs, offsets) of all pairs, sorted, some thousands at a time; no job is in two parts.

        Nothing may be added meanwhile.
        """
        self._sort_tail()
        groups: dict[int, list[_Run]] = {}
        for run in self._runs:
            groups.setdefault(run.upper, []).append(run)
        for upper in sorted(groups):
            for pairs in _merged(groups[upper]):
                same = array("I", (upper,)) * len(pairs)
                yield joined(upper_halves(pairs), same), lower_halves(pairs)

    def _pairs_of(self, run: _Run) -> array[int]:
        if self._opened[0] is not run:
            self._opened = run, run.pairs()
        return self._opened[1]

    def _sort_tail(self) -> None:
        if not self._jobs:
            return
        jobs, offsets = self._jobs, self._offsets
        self._jobs, self._offsets = array("Q"), array("I")
        self.size += len(jobs)
        lower, upper = lower_halves(jobs), upper_halves(jobs)
        if upper == upper[:1] * len(upper):
            self._add_run(upper[0], array("Q", sorted(joined(offsets, lower))))
            return
        groups: dict[int, list[int]] = {}
        for job, offset in zip(jobs, offsets, strict=True):
            groups.setdefault(job >> 32, []).append((job & _HALF) << 32 | offset)
        for key, pairs in groups.items():
            self._add_run(key, array("Q", sorted(pairs)))

    def _add_run(self, upper: int, pairs: array[int]) -> None:
        runs = self._runs
        lowest, highest = (upper << 32 | pairs[number] >> 32 for number in (0, -1))
        self.job_min = min(lowest, self.job_min) if runs else lowest
        self.job_max = max(highest, self.job_max)
        while runs and runs[-1].upper == upper:
            last = runs[-1]
            if last.size > 2 * len(pairs) or last.size + len(pairs) > _RUN:
                break
            pairs = array("Q", sorted(last.pairs() + pairs))
            runs.pop()
        runs.append(_Run(upper, pairs, self._packed))


def _rising(first: int, step: int, count: int) -> array[int]:
    """``first``, ``first + step`` and so on, as lanes of one number: three times as fast."""
    lanes = _steps(step, count) + first * int.from_bytes(b"\1\0\0\0" * count, "little")
    return column("I", lanes.to_bytes(4 * count, "little"))


@lru_cache(maxsize=16)
def _steps(step: int, count: int) -> int:
    return int.from_bytes(packed(array("I", range(0, step * count, step))), "little")


def _merged(runs: list[_Run]) -> Iterator[array[int]]:
    """The pairs of sorted runs, sorted, in parts that are cut between two jobs."""
    samples = sorted(chain.from_iterable(run.samples for run in runs))
    cuts = sorted({sample >> 32 << 32 for sample in samples[_PART::_PART]})
    waiting = sorted(runs, key=lambda run: run.first, reverse=True)
    #: of each run that was begun, its pairs and how many of them were taken
    begun: list[tuple[array[int], int]] = []
    for cut in (*cuts, _ABOVE_ALL):
        while waiting and waiting[-1].first < cut:
            begun.append((waiting.pop().pairs(), 0))
        part: list[int] = []
        left: list[tuple[array[int], int]] = []
        for pairs, start in begun:
            end = bisect_left(pairs, cut, start)
            part += pairs[start:end]
            if end < len(pairs):
                left.append((pairs, end))
        begun = left
        if part:
            part.sort()
            yield array("Q", part)
