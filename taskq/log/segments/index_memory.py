"""Where the records of each job stand in a segment: sorted runs, and a tail that is not sorted yet.

A pair is one number, the lower half of the job above the offset. Jobs whose upper halves differ are
kept in runs of their own (there are seldom two such groups). A worker indexes each segment that it
fills, of half a million records and more: long runs are compressed, to a fifth or less of 8 bytes a
record.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final

from taskq.core.values import NamedTuple
from taskq.log.format.columns import column, joined, lower_halves, packed, upper_halves, view

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        """Return all of them."""
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
        places: list[int] = []
        for run in self._runs:
            if run.upper != job >> 32 or run.last < low or run.first > low | _HALF:
                continue
            pairs = self._pairs_of(run)
            for number in range(bisect_left(pairs, low), len(pairs)):
                if pairs[number] > low | _HALF:
                    break
                places.append(pairs[number] & _HALF)
        return sorted(places)

    def may_hold(self, job: int) -> bool:
        """Return whether the job lies between the lowest and the highest."""
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
    """Yield the pairs of sorted runs, sorted, in parts that are cut between two jobs."""
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


# A few places of a segment, from which every other record is a short walk away.

#: About so many bytes of segment lie between two entries.
SPACING_BYTES: Final = 4_096
#: Set in the offset of a frame that is damaged: its record stands alone, by its own CRC.
_ALONE: Final = 1 << 31
#: Bytes of an entry: lsn u64, time i64, offset of the record u32, offset of its frame u32.
ENTRY_SIZE: Final = 24


class Entry(NamedTuple):
    """A record, and the frame that holds it: offsets in the segment."""

    lsn: int
    #: the highest time of a frame up to this one
    time_ns: int
    offset: int
    frame: int
    #: the frame is damaged, and this record was salvaged from it
    alone: bool


class Entries:
    """Entries in the order of the log, in columns, as a page of a file has them.

    Times are running maxima, so that they rise although the clock may be set back.
    """

    __slots__ = ("_frames", "_lsns", "_offsets", "_times")

    def __init__(
        self,
        lsns: Sequence[int],
        times: Sequence[int],
        offsets: Sequence[int],
        frames: Sequence[int],
    ) -> None:
        self._lsns = lsns
        self._times = times
        self._offsets = offsets
        self._frames = frames

    @classmethod
    def of(cls, page: bytes) -> Entries:
        """Return what ``Sparse.page`` has packed."""
        data = memoryview(page)
        count = len(data) // ENTRY_SIZE
        return cls(
            view("Q", data[: 8 * count]),
            view("q", data[8 * count : 16 * count]),
            view("I", data[16 * count : 20 * count]),
            view("I", data[20 * count :]),
        )

    def __len__(self) -> int:
        return len(self._lsns)

    def __getitem__(self, number: int) -> Entry:
        frame = self._frames[number]
        return Entry(
            self._lsns[number],
            self._times[number],
            self._offsets[number],
            frame & ~_ALONE,
            frame >= _ALONE,
        )

    def at_lsn(self, lsn: int) -> Entry | None:
        """Return the last entry at or before a record; None if it is before all."""
        return self._entry(bisect_right(self._lsns, lsn) - 1)

    def at_offset(self, offset: int) -> Entry | None:
        """Return the last entry at or before an offset; None if it is before all."""
        return self._entry(bisect_right(self._offsets, offset) - 1)

    def before_time(self, time_ns: int) -> Entry | None:
        """Return the last entry up to which all is older; None if the first is not."""
        return self._entry(bisect_left(self._times, time_ns) - 1)

    def _entry(self, number: int) -> Entry | None:
        return self[number] if number >= 0 else None


class Sparse(Entries):
    """Entries that more are added to."""

    __slots__ = ("_columns",)

    def __init__(self) -> None:
        self._columns = array("Q"), array("q"), array("I"), array("I")
        super().__init__(*self._columns)

    def add(self, lsn: int, time_ns: int, offset: int, frame: int, *, alone: bool) -> None:
        """Add the next entry."""
        values = (lsn, time_ns, offset, frame | _ALONE if alone else frame)
        for numbers, value in zip(self._columns, values, strict=True):
            numbers.append(value)

    def page(self, start: int, end: int) -> bytes:
        """Entries ``start`` up to ``end`` as they stand in a file: column after column."""
        return b"".join(packed(numbers[start:end]) for numbers in self._columns)
