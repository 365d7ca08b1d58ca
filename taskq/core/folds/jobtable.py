"""The unsettled jobs by id, in flat arrays: 24 bytes a job and no object per job."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from taskq.core.kinds import READY
from taskq.core.model import State

CHUNK: Final = 4_096
#: Youngest chunks, which are never tidied, however empty.
_YOUNG: Final = 4
#: Shortest run worth finding; fewer jobs are faster one by one.
RUN_MIN: Final = 8
#: ``meta`` of a job: its state in the low bits, then flags, then the attempts counted so far.
STATE_MASK: Final = 0b111
META_EXPIRES: Final = 1 << 3
META_KEYED: Final = 1 << 4
META_DURABLE_CLAIM: Final = 1 << 5
#: It was not ready at its enqueue, or was returned: its entry is outside the lane's fresh jobs.
META_BACK: Final = 1 << 6
#: It is part of a flow. The bit is above the bits of the attempts.
META_FLOW: Final = 1 << 24
#: It has steps or signals, or waited within a run.
META_STEPS: Final = 1 << 25
FRESH_MASK: Final = STATE_MASK | META_BACK
ATTEMPT_SHIFT: Final = 8
ATTEMPT_UNIT: Final = 1 << ATTEMPT_SHIFT
ATTEMPT_MASK: Final = 0xFFFF << ATTEMPT_SHIFT


class Chunk:
    """Columns of up to 4 096 jobs; a row with meta 0 is of a settled job, until it is tidied."""

    __slots__ = ("ids", "lanes", "live", "locations", "metas", "used")

    def __init__(self, capacity: int) -> None:
        self.ids: array[int] = array("Q", bytes(8 * capacity))
        self.locations: array[int] = array("Q", bytes(8 * capacity))
        self.lanes: array[int] = array("I", bytes(4 * capacity))
        self.metas: array[int] = array("I", bytes(4 * capacity))
        self.used: int = 0
        self.live: int = 0

    def columns(self) -> tuple[array[int], ...]:
        return self.ids, self.locations, self.lanes, self.metas


class JobTable:
    """Columns (id, location, lane, meta) of every unsettled job, sorted by id.

    After ``find`` returned a chunk, ``index`` is the job's row in its columns.

    Ids only grow, so a new job is appended and a lookup is two bisections. A lookup starts where
    the last one ended: claims and settles walk the table in order, and then it costs one
    comparison.
    """

    __slots__ = ("_chunks", "_firsts", "_hint", "_last", "_old", "index", "live")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._chunks: list[Chunk] = []
        self._last = self._hint = Chunk(0)
        #: first id of the oldest young chunk
        self._old = 0
        self.index: int = 0
        self.live: int = 0

    def add(self, job: int, location: int, lane: int, meta: int) -> None:
        chunk = self._last
        used = chunk.used
        if used == len(chunk.ids):
            chunk = self._open_chunk(job)
            used = 0
        chunk.ids[used] = job
        chunk.locations[used] = location
        chunk.lanes[used] = lane
        chunk.metas[used] = meta
        chunk.used = used + 1
        chunk.live += 1
        self.live += 1

    def extend(
        self,
        first: int,
        locations: Sequence[int],
        lanes: array[int] | int,
        metas: array[int] | int,
    ) -> None:
        """Append jobs with ids from ``first`` on, one per location, at once.

        A lane or meta given as a number applies to all of them.
        """
        done = 0
        while done < len(locations):
            chunk = self._last
            used = chunk.used
            if used == len(chunk.ids):
                chunk = self._open_chunk(first + done)
                used = 0
            count = min(len(chunk.ids) - used, len(locations) - done)
            end = used + count
            chunk.ids[used:end] = array("Q", range(first + done, first + done + count))
            chunk.locations[used:end] = array("Q", locations[done : done + count])
            for column, given in ((chunk.lanes, lanes), (chunk.metas, metas)):
                if isinstance(given, int):
                    column[used:end] = array("I", (given,)) * count
                else:
                    column[used:end] = given[done : done + count]
            chunk.used = end
            chunk.live += count
            done += count
        self.live += done

    def insert(self, job: int, location: int, lane: int, meta: int) -> None:
        """Insert a job at the place of its id, over a settled job with the same id."""
        last = self._last
        if not last.used or job > last.ids[last.used - 1]:
            self.add(job, location, lane, meta)
            return
        number = max(bisect_right(self._firsts, job) - 1, 0)
        chunk = self._chunks[number]
        at = bisect_left(chunk.ids, job, 0, chunk.used)
        if at == chunk.used or chunk.ids[at] != job:
            room = len(chunk.ids) > chunk.used
            for column in chunk.columns():
                column.insert(at, 0)
                if room:
                    column.pop()
            chunk.used += 1
            if not at:
                self._firsts[number] = job
        if not chunk.metas[at]:
            chunk.live += 1
            self.live += 1
        chunk.ids[at], chunk.locations[at] = job, location
        chunk.lanes[at], chunk.metas[at] = lane, meta
        if chunk.used > 2 * CHUNK:
            self._split(number)

    def insert_run(self, jobs: list[int], locations: list[int], lane: int, meta: int) -> None:
        """Insert jobs of rising ids; at once if no job of the table lies between them."""
        last = self._last
        above = not last.used or jobs[0] > last.ids[last.used - 1]
        number = bisect_right(self._firsts, jobs[0])
        before = self._chunks[number - 1] if number else last
        if (
            above
            or (number and before.ids[before.used - 1] >= jobs[0])
            or (number < len(self._firsts) and self._firsts[number] <= jobs[-1])
        ):
            for job, location in zip(jobs, locations, strict=True):
                self.insert(job, location, lane, meta)
            return
        self.live += len(jobs)
        if number and before.used + len(jobs) <= CHUNK:
            # Runs of a few jobs must not leave one chunk each.
            _append(before, jobs, locations, lane, meta)
            return
        chunks = [Chunk(0) for _ in range(0, len(jobs), CHUNK)]
        for start, chunk in zip(range(0, len(jobs), CHUNK), chunks, strict=True):
            end = start + CHUNK
            _append(chunk, jobs[start:end], locations[start:end], lane, meta)
        self._chunks[number:number] = chunks
        self._firsts[number:number] = [chunk.ids[0] for chunk in chunks]

    def is_free(self, first: int, last: int) -> bool:
        """Return whether the table has no row with an id from ``first`` to ``last``."""
        number = bisect_right(self._firsts, last) - 1
        if number < 0:
            return True
        chunk = self._chunks[number]
        at = bisect_right(chunk.ids, last, 0, chunk.used) - 1
        return at < 0 or chunk.ids[at] < first

    def find(self, job: int) -> Chunk | None:
        """Return the chunk of an unsettled job and set ``index``; None if there is no such job."""
        chunk = self._hint
        index = self.index + 1
        if index < chunk.used and chunk.ids[index] == job:
            self.index = index
            return chunk if chunk.metas[index] else None
        number = bisect_right(self._firsts, job) - 1
        if number < 0:
            return None
        chunk = self._chunks[number]
        index = bisect_left(chunk.ids, job, 0, chunk.used)
        if index == chunk.used or chunk.ids[index] != job:
            return None
        self._hint = chunk
        self.index = index
        return chunk if chunk.metas[index] else None

    def find_run(self, jobs: Sequence[int], number: int) -> tuple[Chunk, int, int] | None:
        """Return (chunk, index, count) of adjacent rows with the jobs from ``number`` on.

        They have the same lane and meta. None if the first job is settled or unknown.
        """
        chunk = self.find(jobs[number])
        if chunk is None:
            return None
        start = self.index
        end = start + min(len(jobs) - number, chunk.used - start)
        wanted = array("Q", jobs[number : number + end - start])
        count = _alike(chunk.ids[start:end], wanted)
        for column in (chunk.metas, chunk.lanes):
            same = array("I", (column[start],)) * count
            count = _alike(column[start : start + count], same)
        self.index = start + count - 1
        return chunk, start, count

    def state(self, job: int) -> State:
        """Return a job's state; ABSENT for a settled or unknown job."""
        chunk = self.find(job)
        return State.ABSENT if chunk is None else State(chunk.metas[self.index] & STATE_MASK)

    def is_fresh(self, job: int) -> bool:
        chunk = self.find(job)
        return chunk is not None and chunk.metas[self.index] & FRESH_MASK == READY

    def remove(self, chunk: Chunk, index: int) -> None:
        """Remove a job that ``find`` has just found."""
        chunk.metas[index] = 0
        chunk.live -= 1
        self.live -= 1
        if chunk is not self._last:
            self._leave(chunk)

    def remove_run(self, chunk: Chunk, index: int, count: int) -> None:
        """Remove jobs that ``find_run`` has just found."""
        chunk.metas[index : index + count] = array("I", bytes(4 * count))
        chunk.live -= count
        self.live -= count
        if chunk is not self._last:
            self._leave(chunk)

    def _leave(self, chunk: Chunk) -> None:
        if not chunk.live:
            self._drop(bisect_right(self._firsts, chunk.ids[0]) - 1)
        elif chunk.live * 4 < chunk.used and chunk.ids[0] < self._old and chunk.used > CHUNK // 16:
            self._tidy(chunk)

    def rows(self, job: int, count: int) -> list[tuple[int, int, int]]:
        """Return (id, location, meta) of up to ``count`` jobs from an id on."""
        rows: list[tuple[int, int, int]] = []
        number = max(bisect_right(self._firsts, job) - 1, 0)
        for chunk in self._chunks[number:]:
            start = bisect_left(chunk.ids, job, 0, chunk.used)
            columns = (chunk.ids, chunk.locations, chunk.metas)
            cut = zip(*(column[start : chunk.used] for column in columns), strict=True)
            rows += [row for row in cut if row[2]]
            if len(rows) >= count:
                break
        return rows[:count]

    def __iter__(self) -> Iterator[tuple[Chunk, int]]:
        return self.since(0)

    def since(self, job: int) -> Iterator[tuple[Chunk, int]]:
        for chunk in self._chunks[max(bisect_right(self._firsts, job) - 1, 0) :]:
            metas = chunk.metas
            for index in range(bisect_left(chunk.ids, job, 0, chunk.used), chunk.used):
                if metas[index]:
                    yield chunk, index

    def below(self, job: int) -> Iterator[tuple[Chunk, int]]:
        for number in range(bisect_left(self._firsts, job) - 1, -1, -1):
            chunk = self._chunks[number]
            for index in range(bisect_left(chunk.ids, job, 0, chunk.used) - 1, -1, -1):
                if chunk.metas[index]:
                    yield chunk, index

    def free_below(self, job: int) -> int:
        """Return the lowest id from which all ids up to ``job`` are of jobs in this table."""
        for chunk, index in self.below(job):
            if chunk.ids[index] != job - 1:
                break
            job -= 1
        return job

    def _open_chunk(self, job: int) -> Chunk:
        full = self._last
        if full.used and not full.live:
            # The last chunk has only settled jobs: reuse it.
            full.used = 0
            self._firsts[-1] = job
            return full
        self._last = Chunk(CHUNK)
        self._firsts.append(job)
        self._chunks.append(self._last)
        if len(self._chunks) > _YOUNG:
            # One straggler must not keep a whole chunk: an old chunk is rewritten once three
            # quarters of it are gone. A young chunk is likely to empty by itself.
            self._old = self._firsts[-_YOUNG]
            grown = self._chunks[-_YOUNG - 1]
            if grown.live * 4 < grown.used:
                self._tidy(grown)
        return self._last

    def _tidy(self, chunk: Chunk) -> None:
        number = bisect_right(self._firsts, chunk.ids[0]) - 1
        parts = [chunk]
        if number and self._chunks[number - 1].live + chunk.live <= CHUNK // 4:
            number -= 1
            parts.insert(0, self._chunks[number])
        merged = Chunk(sum(part.live for part in parts))
        for part in parts:
            _copy_live(part, merged)
        self._chunks[number : number + len(parts)] = [merged]
        self._firsts[number : number + len(parts)] = [merged.ids[0]]
        self._hint = Chunk(0)

    def _split(self, number: int) -> None:
        chunk = self._chunks[number]
        lower, upper = Chunk(0), Chunk(0)
        for part, start, end in ((lower, 0, CHUNK), (upper, CHUNK, chunk.used)):
            for column, whole in zip(part.columns(), chunk.columns(), strict=True):
                column.extend(whole[start:end])
            part.used = end - start
            part.live = part.used - part.metas.count(0)
        # A half without live jobs would never be dropped or tidied.
        is_last = chunk is self._last
        halves = [half for half in (lower, upper) if half.live or (is_last and half is upper)]
        self._chunks[number : number + 1] = halves
        self._firsts[number : number + 1] = [half.ids[0] for half in halves]
        self._hint = Chunk(0)
        if is_last:
            self._last = upper

    def _drop(self, number: int) -> None:
        del self._chunks[number], self._firsts[number]
        self._hint = Chunk(0)


def _alike(column: array[int], other: array[int]) -> int:
    """Return the length of the common beginning of two columns of equal length."""
    if column == other:
        return len(column)
    return next(at for at, pair in enumerate(zip(column, other, strict=True)) if pair[0] != pair[1])


def _append(chunk: Chunk, jobs: list[int], locations: list[int], lane: int, meta: int) -> None:
    count = len(jobs)
    values = (jobs, locations, array("I", (lane,)) * count, array("I", (meta,)) * count)
    for column, value in zip(chunk.columns(), values, strict=True):
        del column[chunk.used :]
        column.extend(value)
    chunk.used += count
    chunk.live += count


def _copy_live(source: Chunk, target: Chunk) -> None:
    for index in range(source.used):
        if source.metas[index]:
            at = target.used
            target.ids[at] = source.ids[index]
            target.locations[at] = source.locations[index]
            target.lanes[at] = source.lanes[index]
            target.metas[at] = source.metas[index]
            target.used = at + 1
            target.live += 1
