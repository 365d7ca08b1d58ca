"""Walks over the log that decode only the records that matter to somebody."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge
from itertools import chain
from typing import TYPE_CHECKING, Final

from taskq.core.kinds import (
    BEGINNINGS,
    BIRTH,
    BIRTHS,
    CARRYING,
    EDITS,
    ENDS,
    LAST,
    OF_JOBS,
    REPEATS,
    STEPS,
    after,
)
from taskq.core.model import State
from taskq.core.values import NamedTuple
from taskq.core.views import JobView
from taskq.log.format import codec
from taskq.log.format.carried import born_in
from taskq.log.format.codec import JOB_AT, KIND_AT, STATE_AT
from taskq.log.format.frames import Cursor, Gap
from taskq.log.format.record import (
    BORN,
    ENDINGS,
    LogRecord,
    carried_state,
    check_known,
    decode_record,
    encoded,
    is_named,
    places,
)
from taskq.log.format.salvage import salvage
from taskq.log.state.story import Story

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal

_JOB: Final = struct.Struct("<Q")


def records_of(journal: Journal, jobs: list[int]) -> Iterator[LogRecord]:
    """Yield every record that concerns one of these jobs, and every step of the clock."""
    wanted = frozenset(jobs)
    job_at = _JOB.unpack_from
    for _, item in journal.frames(journal.cursor_at(min(jobs))):
        if isinstance(item, Gap):
            continue
        data, header = item.data, item.header
        for lsn, at, length in places(item):
            kind = data[at + KIND_AT]
            if kind == BIRTH:
                fits = lsn in wanted
            elif kind in OF_JOBS:
                fits = job_at(data, at + JOB_AT)[0] in wanted
            elif kind in STEPS:
                fits = True
            else:
                check_known(kind, lsn)
                continue
            if fits:
                yield decode_record(data[at : at + length], lsn, header.epoch, header.time_ns)


class Entry(NamedTuple):
    """A record in the log: ``data[at:at + length]``, at a location as of ``SegmentFiles``."""

    lsn: int
    epoch: int
    time_ns: int
    location: int
    data: bytes
    at: int
    length: int

    @property
    def kind(self) -> int:
        return self.data[self.at + KIND_AT]

    @property
    def job(self) -> int:
        if self.kind in BIRTHS:
            return self.lsn
        job: int = _JOB.unpack_from(self.data, self.at + JOB_AT)[0]
        return job

    def decode(self) -> LogRecord:
        record = self.data[self.at : self.at + self.length]
        return decode_record(record, self.lsn, self.epoch, self.time_ns)


def entries(
    journal: Journal, start: Cursor | None = None, *, salvages: bool = True
) -> Iterator[Entry]:
    """Yield every record from a place on; of damaged frames those whole by their own CRC."""
    for base, item in journal.frames(start or journal.start()):
        if not isinstance(item, Gap):
            header = item.header
            where = base + item.offset + codec.FRAME_HEADER_SIZE - item.at
            for lsn, at, length in places(item):
                yield Entry(lsn, header.epoch, header.time_ns, where + at, item.data, at, length)
            continue
        damaged = journal.files.damaged_frame(base, item) if salvages else None
        if damaged is not None:
            header, body, offset = damaged
            for lsn, at, record in salvage(body, item.first_lsn):
                location = base + offset + at
                yield Entry(lsn, header.epoch, header.time_ns, location, record, 0, len(record))


def jobs_ended(journal: Journal, cursor: Cursor) -> Iterator[int]:
    for _, item in journal.frames(cursor):
        if isinstance(item, Gap):
            continue
        for _, at, _ in places(item):
            if item.data[at + KIND_AT] in ENDS:
                yield _JOB.unpack_from(item.data, at + JOB_AT)[0]


# Every job of the log with all that became of it, in one walk and bounded memory.
#
# A job is told when it ends, so of those that wait only the places of their records are held: 24
# bytes for one that was never claimed, 24 more for each further record of the others. What stands
# there is read again when the job's turn comes.
#: Records after which no other concerns the job, and what they make of it.
_ENDS: Final = {kind: after(State.RUNNING, kind) for kind in LAST}
_OVER: Final = frozenset(_ENDS.values())
#: Numbers that are held of each record: its lsn, time and location.
_PLACE: Final = 3
#: Segments that are opened before the walk begins.
_OPENED_MAX: Final = 30
_TIDY_MIN: Final = 4_096


class Chosen(NamedTuple):
    """Say which jobs are meant; None for any. Moments are of their enqueue, in log time."""

    states: frozenset[State] | None = None
    queue: str | None = None
    task: str | None = None
    #: enqueued then or later
    since_ns: int | None = None
    #: enqueued before then
    until_ns: int | None = None
    limit: int | None = None

    def fits(self, data: bytes, at: int, enqueued_ns: int) -> bool:
        """Return whether the job of the ENQUEUED record at ``at`` is meant, whatever its state."""
        if self.since_ns is not None and enqueued_ns < self.since_ns:
            return False
        if self.until_ns is not None and enqueued_ns >= self.until_ns:
            return False
        return is_named(data, at, encoded(self.queue), encoded(self.task))

    def fits_carried(self, record: bytes) -> bool:
        return self.fits(born_in(record), 0, codec.WHOLE.unpack_from(record)[9])


def each_job(journal: Journal, chosen: Chosen, now_ns: int) -> Iterator[JobView]:
    """Return the jobs that fit: those that are over as they ended, then all others by their number.

    Payloads and results are as the log holds them: packed, where ``payload_flags`` say so.
    """
    return _Walk(journal, chosen, now_ns).jobs()


class _Walk:
    def __init__(self, journal: Journal, chosen: Chosen, now_ns: int) -> None:
        self._journal = journal
        self._now_ns = now_ns
        self._chosen = chosen
        segments = journal.files.lsns
        self._oldest = segments[0] if segments else 0
        self._second = segments[1] if len(segments) > 1 else 0
        self._births = _Newborns()
        #: jobs of which more than one record was seen: their places
        self._open: dict[int, array[int]] = {}
        self._steps: list[tuple[int, int]] = []
        #: told already, though compaction may be about to write them again
        self._told: set[int] = set()

    def jobs(self) -> Iterator[JobView]:
        files = self._journal.files
        for segment in files.lsns[:_OPENED_MAX]:
            files.descriptor(segment)  # compaction may take it; who has it open reads on
        for entry in entries(self._journal):
            kind = entry.kind
            if kind == BIRTH:
                if self._chosen.fits(entry.data, entry.at, entry.time_ns):
                    self._births.add(entry.lsn, entry.time_ns, entry.location)
            elif kind in OF_JOBS:
                job = entry.job
                state = self._add(entry, kind, job)
                if state in _OVER:
                    yield from self._tell(job, self._open.pop(job), state)
            elif kind in STEPS:
                self._steps.append((entry.lsn, entry.decode().step_ns))
            else:
                check_known(kind, entry.lsn)
        waiting = ((place[0], place) for place in self._births)
        others = ((job, self._open[job]) for job in sorted(self._open))
        for job, stands in merge(waiting, others, key=lambda pair: pair[0]):
            yield from self._tell(job, stands, None)

    def _add(self, entry: Entry, kind: int, job: int) -> State | None:
        places = self._open.get(job)
        if places is None:
            places = self._births.take(job)
            if places is None:
                return self._begin_carried(entry, kind, job) if kind in CARRYING else None
            self._open[job] = places
        if kind in EDITS and not self._is_of_queue(entry):
            del self._open[job]
            return None
        if kind not in REPEATS:
            places.extend((entry.lsn, entry.time_ns, entry.location))
        return _ENDS.get(kind)

    def _is_of_queue(self, entry: Entry) -> bool:
        born = born_in(entry.data[entry.at : entry.at + entry.length])
        return is_named(born, 0, encoded(self._chosen.queue), encoded(self._chosen.task))

    def _begin_carried(self, entry: Entry, kind: int, job: int) -> State | None:
        """A job that began in a segment which is gone was written again; or was moved here."""
        is_moved = kind in EDITS and self._chosen.queue is not None
        if not is_moved and (job >= self._oldest or job in self._told):
            return None  # it was told before, or is not wanted
        record = entry.data[entry.at : entry.at + entry.length]
        if not self._chosen.fits_carried(record):
            return None
        self._open[job] = array("Q", (entry.lsn, entry.time_ns, entry.location))
        state = State(record[STATE_AT]) if kind in REPEATS else None
        if state in _OVER and entry.lsn < self._second:
            self._told.add(job)
        return state

    def _tell(self, job: int, places: array[int], over: State | None) -> Iterator[JobView]:
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


class _Newborns:
    """Keep where the enqueue records of jobs stand of which nothing else was seen yet."""

    def __init__(self) -> None:
        self._columns = array("Q"), array("Q"), array("Q")
        self._is_taken = bytearray()
        self._taken = 0

    def add(self, job: int, time_ns: int, location: int) -> None:
        for column, value in zip(self._columns, (job, time_ns, location), strict=True):
            column.append(value)
        self._is_taken.append(0)

    def take(self, job: int) -> array[int] | None:
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


# Jobs of the past, chosen by what became of them, with what is needed to enqueue them again.
#
# Two walks: the first learns which jobs fit and takes 9 bytes for each, the second reads the chosen
# ones back in the order in which they were enqueued, so that their payloads need not be held.


class PastJob(NamedTuple):
    """A job, and what became of it."""

    state: State
    #: its ENQUEUED record, or one that carries it
    record: LogRecord


def past_jobs(journal: Journal, past: Chosen) -> Iterator[PastJob]:
    """Yield the jobs that fit, as of the journal's known end, in the order of the log."""
    start = journal.start()
    if past.since_ns is not None:
        start = journal.indexes.cursor_at_time(past.since_ns)
    oldest = journal.files.lsns[0] if journal.files.lsns else 0
    settled = _Ends(past, oldest)
    for entry in _undamaged(journal, start):
        settled.look_at(entry)
    jobs, ends = settled.chosen()
    yielded: set[int] = set()
    for entry in _undamaged(journal, start) if jobs else ():
        if entry.kind not in BEGINNINGS:
            continue
        job, is_first = entry.job, entry.kind in BIRTHS
        # Of one that began in a segment that is left, its first record is the one to tell.
        if not is_first and (job >= oldest or job in yielded):
            continue
        place = bisect_left(jobs, job)
        if place == len(jobs) or jobs[place] != job:
            continue
        if not is_first:
            yielded.add(job)
        yield PastJob(State(ends[place]), entry.decode())


class _Ends:
    """Keep what became of the jobs that fit."""

    def __init__(self, past: Chosen, oldest: int) -> None:
        self._past = past
        self._oldest = oldest
        self._jobs = array("Q")
        self._ends = bytearray()
        #: jobs that began in segments that are gone
        self._carried: dict[int, int] = {}

    def look_at(self, entry: Entry) -> None:
        kind = entry.kind
        if kind in BIRTHS:
            if self._past.fits(entry.data, entry.at, entry.time_ns):
                self._jobs.append(entry.lsn)
                self._ends.append(BORN)
            return
        if kind in CARRYING and entry.job < self._oldest:
            record = entry.data[entry.at : entry.at + entry.length]
            if self._past.fits_carried(record):
                self._carried[entry.job] = carried_state(record)
            return
        end = ENDINGS.get(kind)
        if end is None:
            return
        job = entry.job
        if job in self._carried:
            self._carried[job] = end
            return
        place = bisect_left(self._jobs, job)
        if place < len(self._jobs) and self._jobs[place] == job:
            self._ends[place] = end

    def chosen(self) -> tuple[array[int], bytearray]:
        limit, wanted = self._past.limit, self._past.states
        jobs, ends = array("Q"), bytearray()
        old = sorted(self._carried.items())
        for job, end in chain(old, zip(self._jobs, self._ends, strict=True)):
            if len(jobs) == limit:
                break
            if wanted is None or end in wanted:
                jobs.append(job)
                ends.append(end)
        return jobs, ends


def _undamaged(journal: Journal, start: Cursor) -> Iterator[Entry]:
    """Yield the records from a place on; damage is passed over, and what is unknown refused."""
    start = Cursor(start.segment, start.offset, start.next_lsn)
    for entry in entries(journal, start, salvages=False):
        check_known(entry.kind, entry.lsn)
        yield entry
