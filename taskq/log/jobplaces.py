"""Where the records of each job stand in a segment: sorted runs, and a tail that is not sorted yet.

A pair is one number, the lower half of the job above the offset, in flat arrays: 8 bytes a record.
Jobs whose upper halves differ are kept in runs of their own (there are seldom two such groups).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.log.columns import column, joined, lower_halves, packed, upper_halves

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The tail is sorted when it is this long: about half a millisecond's work. Asking sorts it, too,
#: and what that leaves in shorter runs is joined up to this size.
_RUN: Final = 8_192
#: One in so many pairs is looked at to cut the runs into even parts, ...
_SAMPLE: Final = 512
#: ... of about so many samples each.
_PART: Final = 8
_HALF: Final = 2**32 - 1
_ABOVE_ALL: Final = 2**64


class _Run(NamedTuple):
    """Sorted pairs of jobs with the same upper half."""

    upper: int
    pairs: array[int]


class JobPlaces:
    """(job, offset) pairs, added in any order, found by job."""

    __slots__ = ("_jobs", "_offsets", "_runs", "job_max", "job_min", "size")

    def __init__(self) -> None:
        self.size = 0
        #: lowest and highest job; 0 and 0 when there is none
        self.job_min = self.job_max = 0
        self._jobs = array("Q")
        self._offsets = array("I")
        self._runs: list[_Run] = []

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
        for upper, pairs in self._runs:
            if upper != job >> 32 or pairs[-1] < low or pairs[0] > low | _HALF:
                continue
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
        groups: dict[int, list[array[int]]] = {}
        for upper, pairs in self._runs:
            groups.setdefault(upper, []).append(pairs)
        for upper in sorted(groups):
            for pairs in _merged(groups[upper]):
                same = array("I", (upper,)) * len(pairs)
                yield joined(upper_halves(pairs), same), lower_halves(pairs)

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
            last = runs[-1].pairs
            if len(last) > 2 * len(pairs) or len(last) + len(pairs) > _RUN:
                break
            pairs = array("Q", sorted(last + pairs))
            runs.pop()
        runs.append(_Run(upper, pairs))


def _rising(first: int, step: int, count: int) -> array[int]:
    """``first``, ``first + step`` and so on, as lanes of one number: three times as fast."""
    lanes = _steps(step, count) + first * int.from_bytes(b"\1\0\0\0" * count, "little")
    return column("I", lanes.to_bytes(4 * count, "little"))


@lru_cache(maxsize=16)
def _steps(step: int, count: int) -> int:
    return int.from_bytes(packed(array("I", range(0, step * count, step))), "little")


def _merged(runs: list[array[int]]) -> Iterator[array[int]]:
    """The pairs of sorted runs, sorted, in parts that are cut between two jobs."""
    samples = sorted(chain.from_iterable(run[::_SAMPLE] for run in runs))
    cuts = sorted({sample >> 32 << 32 for sample in samples[_PART::_PART]})
    starts = [0] * len(runs)
    for cut in (*cuts, _ABOVE_ALL):
        part: list[int] = []
        for number, run in enumerate(runs):
            start = starts[number]
            if start < len(run) and run[start] < cut:
                end = starts[number] = bisect_left(run, cut, start)
                part += run[start:end]
        if part:
            part.sort()
            yield array("Q", part)
