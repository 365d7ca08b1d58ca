"""Walks over the log for jobs or records, which decode only the records they need."""

from __future__ import annotations

import re
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import merge, nlargest
from itertools import chain, groupby, islice
from typing import Final, Self

from taskq.core import kinds, model, records
from taskq.core.folds import agenda, jobtable, lanes
from taskq.core.values import NamedTuple
from taskq.core.views import JobView
from taskq.log.format import carried, codec, frames
from taskq.log.format.record import (
    BORN,
    ENDINGS,
    Record,
    carried_state,
    check_known,
    encoded,
    is_named,
    places,
    records_in,
)
from taskq.log.format.salvage import salvage
from taskq.log.journal.journal import Journal
from taskq.log.segments.identity import read_identity
from taskq.log.segments.segments import hop
from taskq.log.state.facets import Facets
from taskq.log.state.job_history import Story, job_view

_JOB: Final = struct.Struct("<Q")


#: Limit of an unlimited walk.
EVERY: Final = sys.maxsize


class JobFilter(NamedTuple):
    """Filter of jobs; None for any.

    Moments are enqueue times in log time: ``since_ns`` or later, before ``until_ns``. Only jobs
    with numbers below ``before`` fit.
    """

    states: frozenset[model.State] | None = None
    queue: str | None = None
    task: str | None = None
    limit: int = EVERY
    before: int = codec.LSN_MAX
    since_ns: int | None = None
    until_ns: int | None = None

    def fits(self, job: JobView) -> bool:
        return (
            (self.states is None or job.state in self.states)
            and self.queue in (None, job.queue)
            and self.task in (None, job.task)
            and self.fits_time(job.enqueued_ns)
        )

    def fits_birth(self, data: bytes, at: int, enqueued_ns: int) -> bool:
        """Check an ENQUEUED record at ``at`` against all fields except the state."""
        return self.fits_time(enqueued_ns) and is_named(
            data, at, encoded(self.queue), encoded(self.task)
        )

    def fits_carried(self, record: bytes) -> bool:
        return self.fits_birth(carried.born_in(record), 0, codec.WHOLE.unpack_from(record)[9])

    def fits_time(self, enqueued_ns: int) -> bool:
        return (self.since_ns is None or enqueued_ns >= self.since_ns) and (
            self.until_ns is None or enqueued_ns < self.until_ns
        )


def records_of(journal: Journal, jobs: list[int]) -> Iterator[Record]:
    """Yield every record about one of these jobs, and every step of the clock."""
    wanted = frozenset(jobs)
    for frame in frames.whole(journal.frames(journal.cursor_at(min(jobs)))):
        for record in records_in(frame):
            if record.job in wanted or record.type in kinds.STEPS:
                yield record
            else:
                check_known(record.type, record.lsn)


def entries(
    journal: Journal, start: frames.Cursor | None = None, *, salvages: bool = True
) -> Iterator[Record]:
    """Yield every record from a cursor on; of damaged frames the records with a valid CRC."""
    for base, item in journal.frames(start or journal.start()):
        if not isinstance(item, frames.Gap):
            yield from records_in(item, base)
            continue
        damaged = journal.files.damaged_frame(base, item) if salvages else None
        if damaged is not None:
            header, body, offset = damaged
            for lsn, at, record in salvage(body, item.first_lsn):
                location = base + offset + at
                yield Record(record, lsn, header.epoch, header.time_ns, location)


def jobs_ended(journal: Journal, cursor: frames.Cursor) -> Iterator[int]:
    for frame in frames.whole(journal.frames(cursor)):
        for _, at, _ in places(frame):
            if frame.data[at + codec.KIND_AT] in kinds.ENDS:
                yield _JOB.unpack_from(frame.data, at + codec.JOB_AT)[0]


# All jobs of the log with their attempts and ends, in one walk and bounded memory.
#
# A job is yielded at its end. Until then the walk keeps the locations of its records, 24 bytes
# each, and reads the records again for the view.

#: Last records of a job, and the job's state after them.
_ENDS: Final = {kind: kinds.after(model.State.RUNNING, kind) for kind in kinds.LAST}
_OVER: Final = frozenset(_ENDS.values())
#: Numbers kept per record: its lsn, time and location.
_PLACE: Final = 3
#: Segments opened before the walk begins.
_OPENED_MAX: Final = 30
_TIDY_MIN: Final = 4_096


def each_job(journal: Journal, wanted: JobFilter, now_ns: int) -> Iterator[JobView]:
    """Yield the jobs that fit: finished jobs in the order of their ends, then others by number.

    Payloads and results are in stored form: compressed with ``payload_flags``, if any.
    """
    return _Walk(journal, wanted, now_ns).jobs()


class _Walk:
    def __init__(self, journal: Journal, wanted: JobFilter, now_ns: int) -> None:
        self._journal = journal
        self._now_ns = now_ns
        self._wanted = wanted
        segments = journal.files.lsns
        self._oldest = segments[0] if segments else 0
        self._second = segments[1] if len(segments) > 1 else 0
        self._births = _Newborns()
        #: jobs with more than one record so far: locations of their records
        self._open: dict[int, array[int]] = {}
        self._steps: list[tuple[int, int]] = []
        #: already yielded; compaction may repeat them later in the log
        self._yielded: set[int] = set()

    def jobs(self) -> Iterator[JobView]:
        files = self._journal.files
        for segment in files.lsns[:_OPENED_MAX]:
            files.descriptor(segment)  # an open file stays readable after compaction removes it
        for entry in entries(self._journal):
            kind = entry.type
            if kind == kinds.BIRTH:
                if self._wanted.fits_birth(entry.data, 0, entry.time_ns):
                    self._births.add(entry.lsn, entry.time_ns, entry.location)
            elif kind in kinds.OF_JOBS:
                job = entry.job
                state = self._add(entry, kind, job)
                if state in _OVER:
                    yield from self._views(job, self._open.pop(job), state)
            elif kind in kinds.STEPS:
                self._steps.append((entry.lsn, entry.step_ns))
            else:
                check_known(kind, entry.lsn)
        waiting = ((place[0], place) for place in self._births)
        others = ((job, self._open[job]) for job in sorted(self._open))
        for job, located in merge(waiting, others, key=lambda pair: pair[0]):
            yield from self._views(job, located, None)

    def _add(self, entry: Record, kind: int, job: int) -> model.State | None:
        places = self._open.get(job)
        if places is None:
            places = self._births.take(job)
            if places is None:
                return self._begin_carried(entry, kind, job) if kind in kinds.CARRYING else None
            self._open[job] = places
        if kind in kinds.EDITS and not self._is_of_queue(entry):
            del self._open[job]
            return None
        if kind not in kinds.REPEATS:
            places.extend((entry.lsn, entry.time_ns, entry.location))
        return _ENDS.get(kind)

    def _is_of_queue(self, entry: Record) -> bool:
        born = carried.born_in(entry.data)
        return is_named(born, 0, encoded(self._wanted.queue), encoded(self._wanted.task))

    def _begin_carried(self, entry: Record, kind: int, job: int) -> model.State | None:
        """Begin a rewritten job whose first segment is gone, or an edited job of this queue."""
        is_moved = kind in kinds.EDITS and self._wanted.queue is not None
        if not is_moved and (job >= self._oldest or job in self._yielded):
            return None  # already yielded, or filtered out
        record = entry.data
        if not self._wanted.fits_carried(record):
            return None
        self._open[job] = array("Q", (entry.lsn, entry.time_ns, entry.location))
        state = model.State(record[codec.STATE_AT]) if kind in kinds.REPEATS else None
        if state in _OVER and entry.lsn < self._second:
            self._yielded.add(job)
        return state

    def _views(self, job: int, places: array[int], over: model.State | None) -> Iterator[JobView]:
        states = self._wanted.states
        if over is model.State.ABSENT or (over is not None and states and over not in states):
            return
        story: Story | None = None
        read = self._journal.files.unchecked_record
        for at in range(0, len(places), _PLACE):
            lsn, time_ns, location = places[at : at + _PLACE]
            record = Record(read(location), lsn, 0, time_ns)
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
    """Locations of the enqueue records of jobs without another record so far."""

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


# Past jobs by their end, with the records of their enqueue, for a replay.
#
# The first of two walks finds the jobs that fit, with 9 bytes for each. The second reads their
# births in the order of the log, so payloads are not kept.


class PastJob(NamedTuple):
    """A job and its end."""

    state: model.State
    #: its ENQUEUED record, or a record that repeats it
    record: Record


def past_jobs(journal: Journal, wanted: JobFilter) -> Iterator[PastJob]:
    """Yield the jobs that fit, as of the journal's known end, in the order of the log."""
    start = journal.start()
    if wanted.since_ns is not None:
        start = journal.indexes.cursor_at_time(wanted.since_ns)
    oldest = journal.files.lsns[0] if journal.files.lsns else 0
    settled = _Ends(wanted, oldest)
    for entry in _undamaged(journal, start):
        settled.look_at(entry)
    jobs, ends = settled.chosen()
    yielded: set[int] = set()
    for entry in _undamaged(journal, start) if jobs else ():
        if entry.type not in kinds.BEGINNINGS:
            continue
        job, is_first = entry.job, entry.type in kinds.BIRTHS
        # The first record counts, if the job's first segment still exists.
        if not is_first and (job >= oldest or job in yielded):
            continue
        place = bisect_left(jobs, job)
        if place == len(jobs) or jobs[place] != job:
            continue
        if not is_first:
            yielded.add(job)
        yield PastJob(model.State(ends[place]), entry)


class _Ends:
    """Final states of the jobs that fit."""

    def __init__(self, wanted: JobFilter, oldest: int) -> None:
        self._wanted = wanted
        self._oldest = oldest
        self._jobs = array("Q")
        self._ends = bytearray()
        #: jobs whose first segment is gone
        self._carried: dict[int, int] = {}

    def look_at(self, entry: Record) -> None:
        kind = entry.type
        if kind in kinds.BIRTHS:
            if self._wanted.fits_birth(entry.data, 0, entry.time_ns):
                self._jobs.append(entry.lsn)
                self._ends.append(BORN)
            return
        if kind in kinds.CARRYING and entry.job < self._oldest:
            record = entry.data
            if self._wanted.fits_carried(record):
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
        limit, wanted = self._wanted.limit, self._wanted.states
        jobs, ends = array("Q"), bytearray()
        old = sorted(self._carried.items())
        for job, end in chain(old, zip(self._jobs, self._ends, strict=True)):
            if len(jobs) == limit:
                break
            if wanted is None or end in wanted:
                jobs.append(job)
                ends.append(end)
        return jobs, ends


def _undamaged(journal: Journal, start: frames.Cursor) -> Iterator[Record]:
    """Yield the records from a cursor on; skip damage, and refuse unknown kinds."""
    start = frames.Cursor(start.segment, start.offset, start.next_lsn)
    for entry in entries(journal, start, salvages=False):
        check_known(entry.type, entry.lsn)
        yield entry


#: Bytes up to which a scan is used; beyond it jobs are looked up one by one, 1 ms each.
_WALK_BYTES: Final = 1024 * 1024
_WALK_BYTES_A_JOB: Final = 32 * 1024
#: States of jobs in the agenda.
_IN_AGENDA: Final = model.LIVE_STATES | {kinds.after(model.State.RUNNING, kinds.DEATH)}
#: Records in the first window of a walk over births, and in the largest; most bytes in one read.
_WINDOW: Final = 64
_WINDOW_MAX: Final = 256 * 1024
_PIECE_BYTES: Final = 4 * 1024 * 1024
#: Most names in a search; offset of a birth's queue and task, with their lengths in front.
_NAMES_MAX: Final = 32
_KEY_AT: Final = codec.QUEUE_SIZE_AT
#: Fewest stories read together, after the first.
_STORIES_MIN: Final = 16
#: Stories of jobs with other names that may be read in vain, if few ended so.
_OTHERS: Final = 64


def newest_jobs(
    journal: Journal, wanted: JobFilter, now_ns: int, facets: Facets | None = None
) -> list[JobView]:
    states = wanted.states
    if states is None:
        return _fitting(journal, _named(journal, wanted, None), wanted, now_ns)
    facets = facets or Facets(journal)
    views: list[JobView] = []
    if states & _IN_AGENDA:
        jobs = nlargest(wanted.limit, _from_agenda(facets, wanted, states, now_ns))
        # After the clock was set back a job may be ready for workers and not due by its records.
        views += [view for view in views_of_jobs(journal, jobs, now_ns) if wanted.fits(view)]
    if states - _IN_AGENDA:
        ended = wanted._replace(states=states - _IN_AGENDA)
        views += _ended(journal, ended, facets.need_agenda(), now_ns)
    return nlargest(wanted.limit, views, key=lambda view: view.lsn)


def _ended(
    journal: Journal, wanted: JobFilter, agenda: agenda.Agenda, now_ns: int
) -> list[JobView]:
    """Return ended jobs, without dead letters."""
    assert wanted.states is not None
    names = [state.name.lower() for state in wanted.states]
    counts = [(lane, sum(getattr(lane, name) for name in names)) for lane in agenda.lanes]
    most = sum(count for lane, count in counts if _is_of(lane, wanted))
    others = sum(count for lane, count in counts if not _is_of(lane, wanted))
    if not most:
        return []
    if model.State.SUCCEEDED in wanted.states:
        jobs = _named(journal, wanted, agenda)
    else:
        jobs = _Marks.of_ends(journal, wanted).newest()
        if others > _OTHERS:
            jobs = _common(jobs, _named(journal, wanted, agenda))
    return _fitting(journal, jobs, wanted._replace(limit=min(wanted.limit, most)), now_ns)


def _named(journal: Journal, wanted: JobFilter, agenda: agenda.Agenda | None) -> Iterator[int]:
    """Yield jobs that may be of this queue and task, newest first, without the agenda's jobs."""
    births = _Births(journal, wanted, agenda)
    if wanted.queue is None or not _has_edits(journal):
        return births.newest()
    moved = filter(births.is_wanted, _Marks.of_edits(journal, wanted).newest())
    jobs = merge(births.newest(), moved, reverse=True)
    return (job for job, _ in groupby(jobs))


def _common(jobs: Iterator[int], others: Iterator[int]) -> Iterator[int]:
    """Yield the numbers that occur in both of two falling sequences."""
    other = next(others, 0)
    for job in jobs:
        while other > job:
            other = next(others, 0)
        if other == job:
            yield job


def _fitting(
    journal: Journal, jobs: Iterator[int], wanted: JobFilter, now_ns: int
) -> list[JobView]:
    views: list[JobView] = []
    count = wanted.limit
    while len(views) < wanted.limit and (some := list(islice(jobs, count))):
        views += [view for view in views_of_jobs(journal, some, now_ns) if wanted.fits(view)]
        count = max(count, _STORIES_MIN)
    return views[: wanted.limit]


def views_of_jobs(journal: Journal, jobs: list[int], now_ns: int) -> list[JobView]:
    """Return the views of these jobs, in their order.

    One scan from the first job reads all of them, or indexes if the scan would be long.
    """
    if not jobs:
        return []
    if _is_far(journal, min(jobs), len(jobs)):
        views = (job_view(journal, job, now_ns) for job in jobs)
        return [view for view in views if view is not None]
    stories: dict[int, Story] = {}
    for record in records_of(journal, jobs):
        if record.type in kinds.STEPS:
            for story in stories.values():
                story.clock_stepped(record.lsn, record.step_ns)
        elif record.job not in stories:
            if record.type in kinds.BEGINNINGS:
                stories[record.job] = Story(journal.tag, record)
        else:
            stories[record.job].add(record)
    known = [stories[job] for job in jobs if job in stories]
    return [story.view(now_ns) for story in known if story.state is not model.State.ABSENT]


def _is_far(journal: Journal, job: int, jobs: int) -> bool:
    start, end = journal.cursor_at(job), journal.end()
    later = (lsn for lsn in journal.files.lsns if start.segment <= lsn < end.segment)
    size = sum(map(journal.files.size, later)) + end.offset - start.offset
    return size > _WALK_BYTES + jobs * _WALK_BYTES_A_JOB


def _has_edits(journal: Journal) -> bool:
    identity = read_identity(journal.disk, journal.path)
    return identity is not None and records.TABLE[kinds.EDIT].feature in identity.incompat


def _from_agenda(
    facets: Facets, wanted: JobFilter, states: frozenset[model.State], now_ns: int
) -> list[int]:
    agenda = facets.need_agenda()
    agenda.see(now_ns)
    lanes = frozenset(lane.number for lane in agenda.lanes if _is_of(lane, wanted))
    live = frozenset(map(int, states & model.LIVE_STATES))
    jobs: list[int] = []
    if live == {int(model.State.RUNNING)}:  # few, even if a million jobs wait
        fits = (job for job in agenda.running if job < wanted.before)
        jobs = nlargest(wanted.limit, (job for job in fits if _lane(agenda, job) in lanes))
    elif live:
        jobs = _last(agenda.table, wanted, lanes, live)
    if model.State.DEAD in states:
        jobs += _last(agenda.dead, wanted, lanes, None)
    return jobs


def _is_of(lane: lanes.Lane, wanted: JobFilter) -> bool:
    return wanted.queue in (None, lane.queue) and wanted.task in (None, lane.task)


def _lane(agenda: agenda.Agenda, job: int) -> int:
    chunk = agenda.table.find(job)
    return -1 if chunk is None else chunk.lanes[agenda.table.index]


def _last(
    table: jobtable.JobTable,
    wanted: JobFilter,
    lanes: frozenset[int],
    states: frozenset[int] | None,
) -> list[int]:
    fits = (
        chunk.ids[index]
        for chunk, index in table.below(wanted.before)
        if chunk.lanes[index] in lanes
        and (states is None or chunk.metas[index] & jobtable.STATE_MASK in states)
    )
    return list(islice(fits, wanted.limit))


class _Births:
    """Walk over births of jobs from the newest to the oldest, one window of the log at a time.

    Args:
        agenda: its jobs are left out: they wait, run or are dead letters.
    """

    def __init__(
        self, journal: Journal, wanted: JobFilter, agenda: agenda.Agenda | None = None
    ) -> None:
        self._journal, self._agenda = journal, agenda
        self._before = min(wanted.before, journal.next_lsn)
        self._queue, self._task = encoded(wanted.queue), encoded(wanted.task)
        end = journal.end().segment
        self._segments = [lsn for lsn in journal.files.lsns if lsn <= end]
        #: every birth that fits contains one of these names; empty: no filter by name
        self._names = {self._task or self._queue or b""} - {b""}
        if agenda is not None:
            lanes = (lane for lane in agenda.lanes if _is_of(lane, wanted))
            names = {lane.key[: lane.body_at - _KEY_AT] for lane in lanes}
            self._names = names if len(names) <= _NAMES_MAX else self._names

    def newest(self) -> Iterator[int]:
        """Yield the jobs, newest first; jobs carried by compaction come last."""
        if not self._segments:
            return
        oldest = self._segments[0]
        yield from self._windows(self._before, _birth)
        if oldest > 1:
            carried = set(self._windows(self._journal.next_lsn, _carried))
            jobs = sorted((job for job in carried if job < min(oldest, self._before)), reverse=True)
            yield from filter(self.is_wanted, jobs)

    def _windows(
        self, until: int, born: Callable[[bytes, int, int, int], tuple[int, bytes, int]]
    ) -> Iterator[int]:
        count = _WINDOW
        while until > self._segments[0]:
            if self._agenda is not None and born is _birth:
                until = self._agenda.table.free_below(until)
            home = bisect_left(self._segments, until) - 1
            if home < 0:
                return
            first = max(self._segments[home], until - count)
            jobs = list(self._window(home, first, until, born))
            yield from filter(self.is_wanted, reversed(jobs))
            until, count = first, min(count * 2, _WINDOW_MAX)

    def _window(
        self,
        home: int,
        first: int,
        until: int,
        born: Callable[[bytes, int, int, int], tuple[int, bytes, int]],
    ) -> Iterator[int]:
        """Yield the jobs of the births among records with these numbers, in order."""
        journal, segment = self._journal, self._segments[home]
        files, end = journal.files, journal.end()
        start, last = journal.indexes.cursor_at(first), journal.indexes.cursor_at(until - 1)
        if start.segment != segment:
            return
        size = end.offset if segment == end.segment else files.size(segment)
        if last.segment == segment:
            size = next(
                (at + head.size for at, head in hop(files, segment, last.offset, size)), size
            )
        if not self._may_name(segment, start.offset, size):
            return
        for frame in frames.whole(files.frames(start, frames.Cursor(segment, size, until))):
            if not self._is_named(frame.data, frame.at):
                continue
            for lsn, at, length in places(frame):
                if first <= lsn < until:
                    job, data, place = born(frame.data, at, length, lsn)
                    if job and is_named(data, place, self._queue, self._task):
                        yield job

    def _may_name(self, segment: int, start: int, stop: int) -> bool:
        """Return whether these bytes of a segment contain a wanted name."""
        files = self._journal.files
        overlap = max(map(len, self._names), default=0)
        pieces = (
            files._read(files.descriptor(segment), min(_PIECE_BYTES + overlap, stop - at), at)
            for at in range(start, stop, _PIECE_BYTES)
        )
        return not self._names or any(map(self._is_named, pieces))

    def _is_named(self, data: bytes, start: int = 0) -> bool:
        return not self._names or any(data.find(name, start) >= 0 for name in self._names)

    def is_wanted(self, job: int) -> bool:
        agenda = self._agenda
        return agenda is None or (agenda.table.find(job) is None and agenda.dead.find(job) is None)


def _birth(data: bytes, at: int, _length: int, lsn: int) -> tuple[int, bytes, int]:
    return (lsn if data[at + codec.KIND_AT] == kinds.BIRTH else 0), data, at


def _carried(data: bytes, at: int, length: int, _lsn: int) -> tuple[int, bytes, int]:
    """Return the same for a record that repeats a job's birth."""
    if data[at + codec.KIND_AT] not in kinds.CARRYING:
        return 0, data, at
    record = data[at : at + length]
    return _JOB.unpack_from(record, codec.JOB_AT)[0], carried.born_in(record), 0


class _Marks:
    """Find jobs by records of some kinds, without decoding the frames.

    Args:
        begins: pairs of a kind and the state after it; None for any.
    """

    def __init__(
        self, journal: Journal, wanted: JobFilter, begins: list[tuple[int, int | None]]
    ) -> None:
        self._journal = journal
        self._before = min(wanted.before, journal.next_lsn)
        # The kind comes first, as it is found fastest. The highest bytes of flags and attempt are
        # 0.
        self._begins = [
            re.compile(
                rb"%b(?=%b.{5}\0.{3}\0(.{8}))"
                % (_byte(kind), b"." if state is None else _byte(state)),
                re.DOTALL,
            )
            for kind, state in begins
        ]

    @classmethod
    def of_edits(cls, journal: Journal, wanted: JobFilter) -> Self:
        return cls(journal, wanted, [(kind, None) for kind in kinds.EDITS])

    @classmethod
    def of_ends(cls, journal: Journal, wanted: JobFilter) -> Self:
        states = wanted.states or ()
        begins: list[tuple[int, int | None]] = [(kinds.ENDING[state], None) for state in states]
        files = journal.files.lsns
        if files and files[0] > 1:  # compaction may have rewritten jobs
            begins += [(kind, state) for kind in kinds.REPEATS for state in states]
        return cls(journal, wanted, begins)

    def newest(self) -> Iterator[int]:
        end, before, jobs = self._journal.end(), self._before, set[int]()
        for segment in reversed([lsn for lsn in self._journal.files.lsns if lsn <= end.segment]):
            jobs.update(job for job in self._ended(segment) if 0 < job < before)
            here = sorted((job for job in jobs if job >= segment), reverse=True)
            yield from here  # a job that ended before this segment also began before it
            jobs.difference_update(here)
            before = min(before, segment)
        yield from sorted(jobs, reverse=True)

    def _ended(self, segment: int) -> Iterator[int]:
        files, end = self._journal.files, self._journal.end()
        size = end.offset if segment == end.segment else files.size(segment)
        descriptor = files.descriptor(segment)
        for at in range(0, size, _PIECE_BYTES):
            data = files._read(
                descriptor, min(_PIECE_BYTES + codec.FRAME_HEADER.size, size - at), at
            )
            for begin in self._begins:
                for match in begin.finditer(data):
                    yield _JOB.unpack(match[1])[0]


def _byte(value: int) -> bytes:
    return b"\\x%02x" % value
