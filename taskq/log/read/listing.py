"""The newest jobs that fit, found from the end of the log backwards.

A list of the newest jobs seldom needs more than the last segment. Of a job's state only its last
record tells, so the segments are read from the newest to the oldest, each from its start to its
end, and what they say of older jobs is kept until the segment comes where those began: 8 bytes for
each. Jobs that wait, run or are dead letters are found in the agenda instead.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, Final

from taskq.core.folds.jobtable import STATE_MASK
from taskq.core.kinds import BEGINNINGS, BIRTH, CARRYING, DEATH, EDIT, EDITS, STEPS, after
from taskq.core.model import LIVE_STATES, State
from taskq.core.records import TABLE
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.carried import born_in
from taskq.log.format.codec import JOB_AT, KIND_AT
from taskq.log.format.frames import Cursor, Gap
from taskq.log.format.record import (
    BORN,
    ENDINGS,
    carried_state,
    check_known,
    encoded,
    is_named,
    places,
)
from taskq.log.read.positions import find_latest, find_lsn
from taskq.log.read.walks import records_of
from taskq.log.segments.identity import read_identity
from taskq.log.segments.segments import Extent, hop
from taskq.log.state.facets import Facets
from taskq.log.state.story import Story, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.core.folds.agenda import Agenda
    from taskq.core.folds.jobtable import JobTable
    from taskq.core.views import JobView
    from taskq.log.format.frames import Frame
    from taskq.log.journal.journal import Journal

_JOB: Final = struct.Struct("<Q")
#: A job and its state in one number.
_STATE_BITS: Final = 4
_STATE_MASK: Final = (1 << _STATE_BITS) - 1
#: When too many of the latest jobs are purged, so many times as many are looked at.
_MORE: Final = 4
#: What a walk may read before jobs are looked up one by one: that takes a millisecond each.
_WALK_BYTES: Final = 1024 * 1024
_WALK_BYTES_A_JOB: Final = 32 * 1024
#: States whose jobs the agenda knows.
_KNOWN: Final = LIVE_STATES | {after(State.RUNNING, DEATH)}


class Wanted(NamedTuple):
    """Which jobs to list; None for any. ``before``: only those of lower numbers."""

    states: frozenset[State] | None
    queue: str | None
    task: str | None
    limit: int
    before: int = codec.LSN_MAX


def newest_jobs(
    journal: Journal, wanted: Wanted, now_ns: int, facets: Facets | None = None
) -> list[JobView]:
    """The newest jobs that fit, newest first; ``facets`` are those of the journal, if there are."""
    states = wanted.states
    jobs: list[int] = []
    if states is None:
        latest = _latest(journal, wanted, now_ns)
        if latest is not None:
            return latest
        jobs = list(_Backwards(journal, wanted, None).newest())
    else:
        if states & _KNOWN:
            jobs = _from_agenda(facets or Facets(journal), wanted, states, now_ns)
        if states - _KNOWN:
            jobs += _Backwards(journal, wanted, states - _KNOWN).newest()
    views = tell_jobs(journal, nlargest(wanted.limit, jobs), now_ns)
    # After the clock was set back a job may be ready to the workers and not due to its records.
    return [view for view in views if states is None or view.state in states]


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
    """Return whether a walk from this job on reads more than to look each of so many up."""
    start, end = journal.cursor_at(job), journal.end()
    later = (lsn for lsn in journal.files.lsns if start.segment <= lsn < end.segment)
    size = sum(map(journal.files.size, later)) + end.offset - start.offset
    return size > _WALK_BYTES + jobs * _WALK_BYTES_A_JOB


def _until(journal: Journal, before: int) -> Extent:
    """Return the log up to the frame that holds this lsn; all of it where that is not found."""
    last, files = journal.end(), journal.files
    end = Extent(last.segment, last.offset, last.next_lsn)
    if before < end.lsn and files.lsns:
        at = find_lsn(files, before, end)
        size = end.offset if at.segment == end.segment else files.size(at.segment)
        for offset, header in hop(files, at.segment, at.offset, size):
            if header.first_lsn <= before < header.next_lsn:
                return Extent(at.segment, offset + header.size, header.next_lsn)
            break
    return end


def _latest(journal: Journal, wanted: Wanted, now_ns: int) -> list[JobView] | None:
    """Return the newest jobs, from as few frames as hold them; None if the whole log has too few.

    Those that compaction wrote again are older than all that began in segments that are left. Those
    that were moved to another queue count where they are: where there are any, all that came later
    than a page is looked through for them.
    """
    queue, task = encoded(wanted.queue), encoded(wanted.task)
    moves = queue is not None and _has_edits(journal)
    end = _until(journal, codec.LSN_MAX if moves else wanted.before)
    count = wanted.limit
    while True:
        jobs: list[int] = []
        moved: set[int] = set()

        def is_birth(
            lsn: int, record: bytes, jobs: list[int] = jobs, moved: set[int] = moved
        ) -> bool:
            kind = record[KIND_AT]
            if kind in EDITS and moves:
                moved.add(_JOB.unpack_from(record, JOB_AT)[0])
            fits = lsn < wanted.before and kind == BIRTH and is_named(record, 0, queue, task)
            if fits:
                jobs.append(lsn)
            return fits

        find_latest(journal.files, end, count, is_birth)
        if len(jobs) < count:
            return None
        if moved:
            moved.update(jobs)
            jobs = sorted((job for job in moved if jobs[-1] <= job < wanted.before), reverse=True)
        views = [
            view
            for view in tell_jobs(journal, jobs, now_ns)
            if wanted.queue in (None, view.queue) and wanted.task in (None, view.task)
        ]
        if len(views) >= wanted.limit:
            return views[: wanted.limit]
        count *= _MORE  # some were dead letters that are purged


def _has_edits(journal: Journal) -> bool:
    identity = read_identity(journal.disk, journal.path)
    return identity is not None and TABLE[EDIT].feature in identity.incompat


def _from_agenda(
    facets: Facets, wanted: Wanted, states: frozenset[State], now_ns: int
) -> list[int]:
    agenda = facets.need_agenda()
    agenda.see(now_ns)
    lanes = frozenset(
        lane.number
        for lane in agenda.lanes
        if wanted.queue in (None, lane.queue) and wanted.task in (None, lane.task)
    )
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


def _lane(agenda: Agenda, job: int) -> int:
    chunk = agenda.table.find(job)
    return -1 if chunk is None else chunk.lanes[agenda.table.index]


def _last(
    table: JobTable, wanted: Wanted, lanes: frozenset[int], states: frozenset[int] | None
) -> list[int]:
    """Return the last jobs of a table that are in these lanes and states."""
    fits = (
        chunk.ids[index]
        for chunk, index in table.below(wanted.before)
        if chunk.lanes[index] in lanes
        and (states is None or chunk.metas[index] & STATE_MASK in states)
    )
    return list(islice(fits, wanted.limit))


class _Backwards:
    """Walk over the segments from the newest to the oldest.

    Args:
        states: ended jobs in these states; None: all jobs, whatever became of them.
    """

    def __init__(self, journal: Journal, wanted: Wanted, states: frozenset[State] | None) -> None:
        self._journal = journal
        self._states = None if states is None else frozenset(map(int, states))
        self._limit, self._before = wanted.limit, wanted.before
        self._queue, self._task = encoded(wanted.queue), encoded(wanted.task)
        self._segment = end = journal.end().segment
        self._segments = [lsn for lsn in journal.files.lsns if lsn <= end]
        #: segment -> (job, state) pairs of later segments, one list for each, the latest first;
        #: -1 for jobs that began in segments that are gone
        self._later: dict[int, list[array[int]]] = {}
        self._carried: dict[int, int] = {}
        #: jobs that were edited, and whether they are of the queue since
        self._edited: dict[int, bool] = {}

    def newest(self) -> list[int]:
        """At most ``limit`` jobs, newest first."""
        newest: list[int] = []
        for number in range(len(self._segments) - 1, -1, -1):
            jobs, ends = self._read(number)
            newest += self._fitting(self._segments[number], jobs, ends)
            if len(newest) >= self._limit:
                return newest[: self._limit]
        jobs = array("Q", sorted(self._carried))
        newest += self._fitting(-1, jobs, bytearray(self._carried[job] for job in jobs))
        return newest[: self._limit]

    def _fitting(self, home: int, jobs: array[int], ends: bytearray) -> Iterator[int]:
        """Of the jobs that began in a segment those that fit, newest first."""
        for pairs in reversed(self._later.pop(home, [])):
            for pair in pairs:
                job = pair >> _STATE_BITS
                place = bisect_left(jobs, job)
                if place < len(jobs) and jobs[place] == job:
                    ends[place] = pair & _STATE_MASK
        for place in range(bisect_left(jobs, self._before) - 1, -1, -1):
            if ends[place] in self._states if self._states is not None else ends[place]:
                yield jobs[place]

    def _read(self, number: int) -> tuple[array[int], bytearray]:
        """Return the jobs that began in a segment, with their states as far as it tells."""
        segment = self._segment = self._segments[number]
        jobs, ends = array("Q"), bytearray()
        later: dict[int, array[int]] = {}
        edited: dict[int, bool] = {}
        for frame in self._frames(number):
            data = frame.data
            for lsn, at, length in places(frame):
                kind = data[at + KIND_AT]
                if kind == BIRTH:
                    if self._edited.get(lsn, is_named(data, at, self._queue, self._task)):
                        jobs.append(lsn)
                        ends.append(BORN)
                    continue
                if kind in CARRYING:
                    self._note_carried(data[at : at + length], edited, jobs, ends)
                if kind not in ENDINGS:
                    check_known(kind, lsn)
                    continue
                job = _JOB.unpack_from(data, at + JOB_AT)[0]
                if job < segment:
                    pairs = later.setdefault(self._home(job), array("Q"))
                    pairs.append(job << _STATE_BITS | ENDINGS[kind])
                else:
                    place = bisect_left(jobs, job)
                    if place < len(jobs) and jobs[place] == job:
                        ends[place] = ENDINGS[kind]
        self._edited = edited | self._edited
        for home, pairs in later.items():
            self._later.setdefault(home, []).append(pairs)
        return jobs, ends

    def _frames(self, number: int) -> Iterator[Frame]:
        segment = self._segments[number]
        end, following = self._journal.end(), codec.LSN_MAX
        if segment != end.segment:
            end = Cursor(segment, self._journal.files.size(segment), segment)
            # What a recovery that was cut short left behind is in the next segment, too.
            following = self._segments[number + 1]
        start = Cursor(segment, codec.SEGMENT_HEADER.size, segment)
        for _, item in self._journal.files.frames(start, end):
            if not isinstance(item, Gap) and item.header.first_lsn < following:
                yield item

    def _home(self, job: int) -> int:
        place = bisect_right(self._segments, job)
        return self._segments[place - 1] if place else -1

    def _note_edited(
        self, record: bytes, edited: dict[int, bool], jobs: array[int], ends: bytearray
    ) -> None:
        """A job may be of another queue since: the latest edit counts, in whichever segment."""
        job = _JOB.unpack_from(record, JOB_AT)[0]
        if job in self._edited:
            return
        fits = edited[job] = is_named(born_in(record), 0, self._queue, self._task)
        place = bisect_left(jobs, job)
        is_here = place < len(jobs) and jobs[place] == job
        if is_here and not fits:
            del jobs[place], ends[place]
        elif fits and not is_here and self._home(job) == self._segment:
            jobs.insert(place, job)
            ends.insert(place, BORN)

    def _note_carried(
        self, record: bytes, edited: dict[int, bool], jobs: array[int], ends: bytearray
    ) -> None:
        """A job that began in a segment which is gone stands here; or one waits otherwise."""
        if record[KIND_AT] in EDITS:
            self._note_edited(record, edited, jobs, ends)
        job = _JOB.unpack_from(record, JOB_AT)[0]
        if job < self._segments[0] and is_named(born_in(record), 0, self._queue, self._task):
            # The segments are read backwards: the first that is seen of a job is its latest.
            self._carried.setdefault(job, carried_state(record))
