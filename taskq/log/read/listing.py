"""The newest jobs that fit a filter.

Every list is made the same way: numbers of candidates, newest first, then their stories in bulk,
until enough of them fit. The candidates are

- waiting and running jobs and dead letters: out of the agenda;
- jobs by name: their births, read backwards in windows of the log; pieces without the name are
  skipped unread, and a job that an edit moved to another queue is found by its edit;
- jobs in a rare end (cancelled, expired): places that look like the record of such an end. Payloads
  may look like that too; the story decides.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import merge, nlargest
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, Self

from taskq.core.folds.agenda import Agenda
from taskq.core.folds.jobtable import STATE_MASK, JobTable
from taskq.core.folds.lanes import Lane
from taskq.core.kinds import (
    BEGINNINGS,
    BIRTH,
    CARRYING,
    DEATH,
    EDIT,
    EDITS,
    ENDING,
    REPEATS,
    STEPS,
    after,
)
from taskq.core.model import LIVE_STATES, State
from taskq.core.records import TABLE
from taskq.core.values import NamedTuple
from taskq.core.views import JobView
from taskq.log.format import codec
from taskq.log.format.carried import born_in
from taskq.log.format.codec import JOB_AT, KIND_AT
from taskq.log.format.frames import Cursor, Gap
from taskq.log.format.record import (
    encoded,
    is_named,
    places,
)
from taskq.log.read.walks import records_of
from taskq.log.segments.identity import read_identity
from taskq.log.segments.segments import hop
from taskq.log.state.facets import Facets
from taskq.log.state.story import Story, tell

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal

_JOB: Final = struct.Struct("<Q")
#: What a walk may read before jobs are looked up one by one: that takes a millisecond each.
_WALK_BYTES: Final = 1024 * 1024
_WALK_BYTES_A_JOB: Final = 32 * 1024
#: States whose jobs the agenda knows.
_IN_AGENDA: Final = LIVE_STATES | {after(State.RUNNING, DEATH)}
#: Records that a walk over births looks at in one step, at first and at most; bytes that it reads.
_WINDOW: Final = 64
_WINDOW_MAX: Final = 256 * 1024
_PIECE_BYTES: Final = 4 * 1024 * 1024
#: Names that are looked for at most; where a birth has its queue and task, their lengths first.
_NAMES_MAX: Final = 32
_KEY_AT: Final = codec.QUEUE_SIZE_AT
#: Stories that are read at a time, at least, after the first.
_TOLD: Final = 16
#: Jobs of other names whose stories are read for nothing, where few ended so.
_OTHERS: Final = 64


class JobFilter(NamedTuple):
    """Filter of jobs to list; None for any. ``before``: only jobs of lower numbers."""

    states: frozenset[State] | None
    queue: str | None
    task: str | None
    limit: int
    before: int = codec.LSN_MAX

    def fits(self, job: JobView) -> bool:
        return (
            (self.states is None or job.state in self.states)
            and self.queue in (None, job.queue)
            and self.task in (None, job.task)
        )


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
        # After the clock was set back a job may be ready to the workers and not due to its records.
        views += [view for view in tell_jobs(journal, jobs, now_ns) if view.state in states]
    if states - _IN_AGENDA:
        ended = wanted._replace(states=states - _IN_AGENDA)
        views += _ended(journal, ended, facets.need_agenda(), now_ns)
    return nlargest(wanted.limit, views, key=lambda view: view.lsn)


def _ended(journal: Journal, wanted: JobFilter, agenda: Agenda, now_ns: int) -> list[JobView]:
    """Return jobs that are over and no dead letters."""
    assert wanted.states is not None
    names = [state.name.lower() for state in wanted.states]
    counts = [(lane, sum(getattr(lane, name) for name in names)) for lane in agenda.lanes]
    most = sum(count for lane, count in counts if _is_of(lane, wanted))
    others = sum(count for lane, count in counts if not _is_of(lane, wanted))
    if not most:
        return []
    if State.SUCCEEDED in wanted.states:
        jobs = _named(journal, wanted, agenda)
    else:
        jobs = _Marks.of_ends(journal, wanted).newest()
        if others > _OTHERS:
            jobs = _common(jobs, _named(journal, wanted, agenda))
    return _fitting(journal, jobs, wanted._replace(limit=min(wanted.limit, most)), now_ns)


def _named(journal: Journal, wanted: JobFilter, agenda: Agenda | None) -> Iterator[int]:
    """Yield the jobs that may be of this queue and task, newest first, without the agenda's."""
    births = _Births(journal, wanted, agenda)
    if wanted.queue is None or not _has_edits(journal):
        return births.newest()
    moved = filter(births.is_wanted, _Marks.of_edits(journal, wanted).newest())
    jobs = merge(births.newest(), moved, reverse=True)
    return (job for job, _ in groupby(jobs))


def _common(jobs: Iterator[int], others: Iterator[int]) -> Iterator[int]:
    """Yield the numbers in both of two falling sequences."""
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
        views += [view for view in tell_jobs(journal, some, now_ns) if wanted.fits(view)]
        count = max(count, _TOLD)
    return views[: wanted.limit]


def tell_jobs(journal: Journal, jobs: list[int], now_ns: int) -> list[JobView]:
    """Return everything the log says of these jobs, in their order.

    From one walk over all since the first of them, or by the indexes where that is much to read.
    """
    if not jobs:
        return []
    if _is_far(journal, min(jobs), len(jobs)):
        views = (tell(journal, job, now_ns) for job in jobs)
        return [view for view in views if view is not None]
    stories: dict[int, Story] = {}
    for record in records_of(journal, jobs):
        if record.kind in STEPS:
            for story in stories.values():
                story.clock_stepped(record.lsn, record.step_ns)
        elif record.job not in stories:
            if record.kind in BEGINNINGS:
                stories[record.job] = Story(journal.tag, record)
        else:
            stories[record.job].add(record)
    known = [stories[job] for job in jobs if job in stories]
    return [story.view(now_ns) for story in known if story.state is not State.ABSENT]


def _is_far(journal: Journal, job: int, jobs: int) -> bool:
    start, end = journal.cursor_at(job), journal.end()
    later = (lsn for lsn in journal.files.lsns if start.segment <= lsn < end.segment)
    size = sum(map(journal.files.size, later)) + end.offset - start.offset
    return size > _WALK_BYTES + jobs * _WALK_BYTES_A_JOB


def _has_edits(journal: Journal) -> bool:
    identity = read_identity(journal.disk, journal.path)
    return identity is not None and TABLE[EDIT].feature in identity.incompat


def _from_agenda(
    facets: Facets, wanted: JobFilter, states: frozenset[State], now_ns: int
) -> list[int]:
    agenda = facets.need_agenda()
    agenda.see(now_ns)
    lanes = frozenset(lane.number for lane in agenda.lanes if _is_of(lane, wanted))
    live = frozenset(map(int, states & LIVE_STATES))
    jobs: list[int] = []
    if live == {int(State.RUNNING)}:  # few, among a million that wait
        fits = (job for job in agenda.running if job < wanted.before)
        jobs = nlargest(wanted.limit, (job for job in fits if _lane(agenda, job) in lanes))
    elif live:
        jobs = _last(agenda.table, wanted, lanes, live)
    if State.DEAD in states:
        jobs += _last(agenda.dead, wanted, lanes, None)
    return jobs


def _is_of(lane: Lane, wanted: JobFilter) -> bool:
    return wanted.queue in (None, lane.queue) and wanted.task in (None, lane.task)


def _lane(agenda: Agenda, job: int) -> int:
    chunk = agenda.table.find(job)
    return -1 if chunk is None else chunk.lanes[agenda.table.index]


def _last(
    table: JobTable, wanted: JobFilter, lanes: frozenset[int], states: frozenset[int] | None
) -> list[int]:
    fits = (
        chunk.ids[index]
        for chunk, index in table.below(wanted.before)
        if chunk.lanes[index] in lanes
        and (states is None or chunk.metas[index] & STATE_MASK in states)
    )
    return list(islice(fits, wanted.limit))


class _Births:
    """Walk over the births of jobs from the newest to the oldest, a window of the log at a time.

    Args:
        agenda: the jobs that it knows are left out: they wait, run or are dead letters.
    """

    def __init__(self, journal: Journal, wanted: JobFilter, agenda: Agenda | None = None) -> None:
        self._journal, self._agenda = journal, agenda
        self._before = min(wanted.before, journal.next_lsn)
        self._queue, self._task = encoded(wanted.queue), encoded(wanted.task)
        end = journal.end().segment
        self._segments = [lsn for lsn in journal.files.lsns if lsn <= end]
        #: one of them stands in every birth that is wanted; none: nothing is known of that
        self._names = {self._task or self._queue or b""} - {b""}
        if agenda is not None:
            lanes = (lane for lane in agenda.lanes if _is_of(lane, wanted))
            names = {lane.key[: lane.body_at - _KEY_AT] for lane in lanes}
            self._names = names if len(names) <= _NAMES_MAX else self._names

    def newest(self) -> Iterator[int]:
        """Yield the jobs, newest first; last those that compaction wrote again."""
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
        """Yield the jobs that records of these numbers bring, in their order."""
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
        for _, item in files.frames(start, Cursor(segment, size, until)):
            if isinstance(item, Gap) or not self._is_named(item.data, item.at):
                continue
            for lsn, at, length in places(item):
                if first <= lsn < until:
                    job, data, place = born(item.data, at, length, lsn)
                    if job and is_named(data, place, self._queue, self._task):
                        yield job

    def _may_name(self, segment: int, start: int, stop: int) -> bool:
        """Return whether these bytes of a segment hold a name that is wanted."""
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
    return (lsn if data[at + KIND_AT] == BIRTH else 0), data, at


def _carried(data: bytes, at: int, length: int, _lsn: int) -> tuple[int, bytes, int]:
    """Return the same of a record that holds a job's birth once more."""
    if data[at + KIND_AT] not in CARRYING:
        return 0, data, at
    record = data[at : at + length]
    return _JOB.unpack_from(record, JOB_AT)[0], born_in(record), 0


class _Marks:
    """Find jobs by records of some kinds, without reading the frames.

    Args:
        begins: pairs of a kind and the state that follows it; None for any.
    """

    def __init__(
        self, journal: Journal, wanted: JobFilter, begins: list[tuple[int, int | None]]
    ) -> None:
        self._journal = journal
        self._before = min(wanted.before, journal.next_lsn)
        # A kind comes first, which is found fastest. The highest bytes of flags and attempt are 0.
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
        return cls(journal, wanted, [(kind, None) for kind in EDITS])

    @classmethod
    def of_ends(cls, journal: Journal, wanted: JobFilter) -> Self:
        states = wanted.states or ()
        begins: list[tuple[int, int | None]] = [(ENDING[state], None) for state in states]
        files = journal.files.lsns
        if files and files[0] > 1:  # compaction may have written jobs again
            begins += [(kind, state) for kind in REPEATS for state in states]
        return cls(journal, wanted, begins)

    def newest(self) -> Iterator[int]:
        end, before, jobs = self._journal.end(), self._before, set[int]()
        for segment in reversed([lsn for lsn in self._journal.files.lsns if lsn <= end.segment]):
            jobs.update(job for job in self._ended(segment) if 0 < job < before)
            here = sorted((job for job in jobs if job >= segment), reverse=True)
            yield from here  # whatever ended before that segment began before it, too
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
