"""Every job of the log with all that became of it, in one walk and bounded memory.

A job is told when it ends, so of those that wait only the places of their records are held: 24
bytes for one that was never claimed, 24 more for each further record of the others. What stands
there is read again when the job's turn comes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from heapq import merge
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.model import State
from taskq.core.records import CARRYING_KINDS, JOB_KINDS, Kind
from taskq.core.transitions import after
from taskq.log import codec
from taskq.log.carrying import born_in
from taskq.log.codec import STATE_AT
from taskq.log.endings import encoded, is_named
from taskq.log.history import Story
from taskq.log.logrecord import decode_record
from taskq.log.walking import check_known, entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.core.model import JobView
    from taskq.log.journal import Journal
    from taskq.log.walking import Entry

_ENQUEUED: Final = int(Kind.ENQUEUED)
_CLOCK: Final = int(Kind.CLOCK)
_CARRIED: Final = int(Kind.CARRIED)
_CARRYING: Final = frozenset(map(int, CARRYING_KINDS))
_JOB_KINDS: Final = frozenset(map(int, JOB_KINDS))
#: Records after which no other concerns the job, and what they make of it.
_ENDS: Final = {
    int(Kind.SUCCEEDED): after(State.RUNNING, Kind.SUCCEEDED),
    int(Kind.CANCELLED): after(State.READY, Kind.CANCELLED),
    int(Kind.EXPIRED): after(State.READY, Kind.EXPIRED),
    int(Kind.PURGED): after(State.DEAD, Kind.PURGED),
}
_OVER: Final = frozenset(_ENDS.values())
#: Numbers that are held of each record: its lsn, time and location.
_PLACE: Final = 3
#: Segments that are opened before the walk begins.
_OPENED_MAX: Final = 30
_TIDY_MIN: Final = 4_096


class Chosen(NamedTuple):
    """Which jobs to tell; None for any. Moments are of their enqueue, as of the log's time."""

    states: frozenset[State] | None = None
    queue: str | None = None
    task: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None


def each_job(journal: Journal, chosen: Chosen, now_ns: int) -> Iterator[JobView]:
    """The jobs that fit: those that are over as they ended, then all others by their number.

    Payloads and results are as the log holds them: packed, where ``payload_flags`` say so.
    """
    return _Walk(journal, chosen, now_ns).jobs()


class _Walk:
    def __init__(self, journal: Journal, chosen: Chosen, now_ns: int) -> None:
        self._journal = journal
        self._now_ns = now_ns
        self._chosen = chosen
        self._queue = encoded(chosen.queue)
        self._task = encoded(chosen.task)
        segments = journal.files.lsns
        self._oldest = segments[0] if segments else 0
        self._second = segments[1] if len(segments) > 1 else 0
        self._births = _Births()
        #: jobs of which more than one record was seen: their places
        self._open: dict[int, array[int]] = {}
        self._steps: list[tuple[int, int]] = []
        #: told already, though compaction may be about to write them again
        self._told: set[int] = set()

    def jobs(self) -> Iterator[JobView]:
        """See ``each_job``."""
        files = self._journal.files
        for segment in files.lsns[:_OPENED_MAX]:
            files.descriptor(segment)  # compaction may take it; who has it open reads on
        for entry in entries(self._journal):
            kind = entry.kind
            if kind == _ENQUEUED:
                if self._fits(entry.data, entry.at, entry.time_ns):
                    self._births.add(entry.lsn, entry.time_ns, entry.location)
            elif kind in _JOB_KINDS:
                job = entry.job
                state = self._add(entry, kind, job)
                if state in _OVER:
                    yield from self._tell(job, self._open.pop(job), state)
            elif kind == _CLOCK:
                self._steps.append((entry.lsn, entry.decode().step_ns))
            else:
                check_known(kind, entry.lsn)
        waiting = ((place[0], place) for place in self._births)
        others = ((job, self._open[job]) for job in sorted(self._open))
        for job, places in merge(waiting, others, key=lambda one: one[0]):
            yield from self._tell(job, places, None)

    def _add(self, entry: Entry, kind: int, job: int) -> State | None:
        """Take in a record that concerns a job; returns its state if it is over."""
        places = self._open.get(job)
        if places is None:
            places = self._births.take(job)
            if places is None:
                return self._begin_carried(entry, kind, job) if kind in _CARRYING else None
            self._open[job] = places
        if kind != _CARRIED:
            places.extend((entry.lsn, entry.time_ns, entry.location))
        return _ENDS.get(kind)

    def _begin_carried(self, entry: Entry, kind: int, job: int) -> State | None:
        """A job that began in a segment which is gone was written again."""
        if job >= self._oldest or job in self._told:
            return None  # it was told before, or is not wanted
        record = entry.data[entry.at : entry.at + entry.length]
        if not self._fits(born_in(record), 0, codec.CARRIED.unpack_from(record)[9]):
            return None
        self._open[job] = array("Q", (entry.lsn, entry.time_ns, entry.location))
        state = State(record[STATE_AT]) if kind == _CARRIED else None
        if state in _OVER and entry.lsn < self._second:
            self._told.add(job)
        return state

    def _tell(self, job: int, places: array[int], over: State | None) -> Iterator[JobView]:
        """The job, if it is wanted."""
        states = self._chosen.states
        if over is State.ABSENT or (over is not None and states and over not in states):
            return
        story: Story | None = None
        read = self._journal.files.unchecked_record
        for at in range(0, len(places), _PLACE):
            lsn, time_ns, location = places[at : at + _PLACE]
            record = decode_record(read(location), lsn, 0, time_ns)
            if story is None:
                story = Story(self._journal.tag, record)
            else:
                story.add(record)
        assert story is not None, f"job {job} has no records"
        moved = story.moved_between()
        if moved is not None:
            for step in self._steps[bisect_left(self._steps, (moved[0], 0)) :]:
                story.clock_stepped(*step)
        view = story.view(self._now_ns)
        if states is None or view.state in states:
            yield view

    def _fits(self, data: bytes, at: int, enqueued_ns: int) -> bool:
        chosen = self._chosen
        if chosen.since_ns is not None and enqueued_ns < chosen.since_ns:
            return False
        if chosen.until_ns is not None and enqueued_ns >= chosen.until_ns:
            return False
        return is_named(data, at, self._queue, self._task)


class _Births:
    """Where the enqueue records of jobs stand of which nothing else was seen yet."""

    def __init__(self) -> None:
        self._columns = array("Q"), array("Q"), array("Q")
        self._is_taken = bytearray()
        self._taken = 0

    def add(self, job: int, time_ns: int, location: int) -> None:
        """A job with a higher number than any before."""
        for column, value in zip(self._columns, (job, time_ns, location), strict=True):
            column.append(value)
        self._is_taken.append(0)

    def take(self, job: int) -> array[int] | None:
        """Its place; from now on it is somebody else's."""
        jobs, times, locations = self._columns
        index = bisect_left(jobs, job)
        if index == len(jobs) or jobs[index] != job or self._is_taken[index]:
            return None
        place = array("Q", (job, times[index], locations[index]))
        self._is_taken[index] = 1
        self._taken += 1
        if self._taken >= _TIDY_MIN and 2 * self._taken > len(jobs):
            self._tidy()
        return place

    def __iter__(self) -> Iterator[array[int]]:
        """The places of those that are left, by job."""
        for index, (job, time_ns, location) in enumerate(zip(*self._columns, strict=True)):
            if not self._is_taken[index]:
                yield array("Q", (job, time_ns, location))

    def _tidy(self) -> None:
        taken = self._is_taken
        jobs, times, locations = (
            array("Q", (value for value, gone in zip(column, taken, strict=True) if not gone))
            for column in self._columns
        )
        self._columns = jobs, times, locations
        self._is_taken = bytearray(len(jobs))
        self._taken = 0
