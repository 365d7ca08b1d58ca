"""The newest jobs that fit, found from the end of the log backwards.

A list of the newest jobs seldom needs more than the last segment. Jobs that wait, run or are dead
letters are found in the agenda. Those that succeeded are among the others: their births are looked
for a window of the log at a time, and what does not hold the name that is wanted is passed over
unread. Few jobs are cancelled or expire: their ends are found by how such records begin, and what
only looks so is told from them by the story of the job. Where that would be many of other names,
the segments are read from the newest to the oldest, each from its start to its end, and what they
say of older jobs is kept until the segment comes where those began: 8 bytes for each.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, Final

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
    SUCCESS,
    after,
)
from taskq.core.model import LIVE_STATES, State
from taskq.core.records import TABLE
from taskq.core.values import NamedTuple
from taskq.core.views import JobView
from taskq.log.format import codec
from taskq.log.format.carried import born_in
from taskq.log.format.codec import JOB_AT, KIND_AT
from taskq.log.format.frames import Cursor, Frame, Gap
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
#: Records that a walk over births looks at in one step, at first and at most; bytes that it reads.
_WINDOW: Final = 4_096
_WINDOW_MAX: Final = 256 * 1024
_PIECE_BYTES: Final = 4 * 1024 * 1024
#: Names that are looked for at most; where a birth has its queue and task, their lengths first.
_NAMES_MAX: Final = 32
_KEY_AT: Final = codec.QUEUE_SIZE_AT
#: Jobs that are told at a time while most of them fit.
_TOLD: Final = 16
#: Jobs of other names that are told for nothing, where few ended so.
_OTHERS: Final = 64


class Wanted(NamedTuple):
    """Filter of jobs to list; None for any. ``before``: only those of lower numbers."""

    states: frozenset[State] | None
    queue: str | None
    task: str | None
    limit: int
    before: int = codec.LSN_MAX


def newest_jobs(
    journal: Journal, wanted: Wanted, now_ns: int, facets: Facets | None = None
) -> list[JobView]:
    states, facets = wanted.states, facets or Facets(journal)
    is_by_births = wanted.queue is None or not _has_edits(journal)
    jobs: list[int] = []
    if states is None:
        if wanted.task is None or not is_by_births:
            latest = _latest(journal, wanted, now_ns)
            if latest is not None:
                return latest
        if is_by_births:
            return _fitting(journal, _Births(journal, wanted), wanted, None, now_ns)
        jobs = list(_Backwards(journal, wanted, None).newest())
    else:
        if states & _KNOWN:
            jobs = _from_agenda(facets, wanted, states, now_ns)
        ended = states - _KNOWN
        if State.SUCCEEDED in ended and is_by_births:
            agenda = facets.need_agenda()
            lanes = [lane for lane in agenda.lanes if _is_of(lane, wanted)]
            if any(getattr(lane, state.name.lower()) for lane in lanes for state in ended):
                births = _Births(journal, wanted, agenda)
                jobs += [view.lsn for view in _fitting(journal, births, wanted, ended, now_ns)]
        elif ended and (few := _few(facets.need_agenda(), wanted, ended)) is None:
            jobs += _Backwards(journal, wanted, ended).newest()
        elif ended and few:
            rare = wanted._replace(limit=min(wanted.limit, few))
            views = _fitting(journal, _Ends(journal, rare, ended), rare, ended, now_ns)
            jobs += [view.lsn for view in views]
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


def _is_of(lane: Lane, wanted: Wanted) -> bool:
    return wanted.queue in (None, lane.queue) and wanted.task in (None, lane.task)


def _lane(agenda: Agenda, job: int) -> int:
    chunk = agenda.table.find(job)
    return -1 if chunk is None else chunk.lanes[agenda.table.index]


def _last(
    table: JobTable, wanted: Wanted, lanes: frozenset[int], states: frozenset[int] | None
) -> list[int]:
    fits = (
        chunk.ids[index]
        for chunk, index in table.below(wanted.before)
        if chunk.lanes[index] in lanes
        and (states is None or chunk.metas[index] & STATE_MASK in states)
    )
    return list(islice(fits, wanted.limit))


def _few(agenda: Agenda, wanted: Wanted, states: frozenset[State]) -> int | None:
    """Return how many jobs ended so, at most; None where many did that are not wanted."""
    names = [state.name.lower() for state in states]
    if SUCCESS in map(ENDING.get, states):
        return None
    few = others = 0
    for lane in agenda.lanes:
        ended = sum(getattr(lane, name) for name in names)
        few, others = (few + ended, others) if _is_of(lane, wanted) else (few, others + ended)
    return few if others <= _OTHERS else None


def _fitting(
    journal: Journal,
    births: _Births | _Ends,
    wanted: Wanted,
    states: frozenset[State] | None,
    now_ns: int,
) -> list[JobView]:
    views: list[JobView] = []
    jobs, count = births.newest(), max(wanted.limit, _TOLD)
    while len(views) < wanted.limit and (some := list(islice(jobs, count))):
        views += [
            view
            for view in tell_jobs(journal, some, now_ns)
            if (states is None or view.state in states)
            and wanted.queue in (None, view.queue)
            and wanted.task in (None, view.task)
        ]
    return views[: wanted.limit]


class _Births:
    """Walk over the births of jobs from the newest to the oldest, a window of the log at a time.

    Args:
        agenda: the jobs that it knows are left out: they wait, run or are dead letters.
    """

    def __init__(self, journal: Journal, wanted: Wanted, agenda: Agenda | None = None) -> None:
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
            yield from filter(self._is_wanted, jobs)

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
            yield from filter(self._is_wanted, reversed(jobs))
            until = first
            count = _WINDOW if jobs else min(count * 2, _WINDOW_MAX)

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

    def _is_wanted(self, job: int) -> bool:
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


class _Ends:
    """Find jobs that ended in these states by how the records begin that say so.

    Whatever else begins so is taken along: who tells of the jobs sees what became of them.
    """

    def __init__(self, journal: Journal, wanted: Wanted, states: frozenset[State]) -> None:
        self._journal = journal
        self._before = min(wanted.before, journal.next_lsn)
        files = journal.files.lsns
        begins = [b"%b(?=." % _byte(ENDING[state]) for state in states]
        if files and files[0] > 1:  # compaction may have written jobs again
            begins += [
                b"%b(?=%b" % (_byte(kind), _byte(state)) for kind in REPEATS for state in states
            ]
        # A kind comes first, which is found fastest. The highest bytes of flags and attempt are 0.
        self._begins = [
            re.compile(rb"%b.{5}\0.{3}\0(.{8}))" % begin, re.DOTALL) for begin in begins
        ]

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
