"""Jobs of the past, chosen by what became of them, with what is needed to enqueue them again.

Two walks: the first learns which jobs fit and takes 9 bytes for each, the second reads the chosen
ones back in the order in which they were enqueued, so that their payloads need not be held.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.model import SETTLED_STATES, State
from taskq.core.records import CARRYING_KINDS, Kind
from taskq.log import codec
from taskq.log.carrying import born_in
from taskq.log.codec import JOB_AT, KIND_AT
from taskq.log.cursor import Cursor
from taskq.log.endings import BORN, ENDINGS, carried_state, is_named
from taskq.log.logrecord import decode_record, places
from taskq.log.segment import Gap
from taskq.log.walking import check_known

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.log.journal import Journal
    from taskq.log.logrecord import LogRecord
    from taskq.log.segment import Frame

_JOB: Final = struct.Struct("<Q")
_ENQUEUED: Final = int(Kind.ENQUEUED)
_CARRYING: Final = frozenset(map(int, CARRYING_KINDS))


class Past(NamedTuple):
    """Which jobs; None for any. Moments are nanoseconds of log time."""

    states: frozenset[State] = SETTLED_STATES
    queue: str | None = None
    task: str | None = None
    #: enqueued then or later
    since_ns: int | None = None
    #: enqueued before then
    until_ns: int | None = None
    limit: int | None = None


class PastJob(NamedTuple):
    """A job, and what became of it."""

    state: State
    #: its ENQUEUED record, or one that carries it
    record: LogRecord


def past_jobs(journal: Journal, past: Past) -> Iterator[PastJob]:
    """The jobs that fit, as of the journal's known end, in the order of the log."""
    start = journal.start()
    if past.since_ns is not None:
        start = journal.indexes.cursor_at_time(past.since_ns)
    oldest = journal.files.lsns[0] if journal.files.lsns else 0
    survey = _Survey(past, oldest)
    for frame, lsn, at, length in _records(journal, start):
        survey.look_at(frame, lsn, at, length)
    jobs, ends = survey.chosen()
    told: set[int] = set()
    for frame, lsn, at, length in _records(journal, start) if jobs else ():
        job = _born(frame, lsn, at)
        # Of one that began in a segment that is left, its first record is the one to tell.
        if job is None or (job != lsn and (job >= oldest or job in told)):
            continue
        place = bisect_left(jobs, job)
        if place == len(jobs) or jobs[place] != job:
            continue
        if job != lsn:
            told.add(job)
        header, data = frame.header, frame.data[at : at + length]
        record = decode_record(data, lsn, header.epoch, header.time_ns)
        yield PastJob(State(ends[place]), record)


class _Survey:
    """What became of the jobs that fit."""

    def __init__(self, past: Past, oldest: int) -> None:
        self._past = past
        self._oldest = oldest
        self._queue = None if past.queue is None else past.queue.encode("utf-8", "surrogatepass")
        self._task = None if past.task is None else past.task.encode("utf-8", "surrogatepass")
        self._jobs = array("Q")
        self._ends = bytearray()
        #: jobs that began in segments that are gone
        self._carried: dict[int, int] = {}

    def look_at(self, frame: Frame, lsn: int, at: int, length: int) -> None:
        """Take the next record in."""
        data = frame.data
        kind = data[at + KIND_AT]
        if kind == _ENQUEUED:
            if self._fits(data, at, frame.header.time_ns):
                self._jobs.append(lsn)
                self._ends.append(BORN)
            return
        job = _born(frame, lsn, at)
        if job is not None:
            if job < self._oldest:
                record = data[at : at + length]
                if self._fits(born_in(record), 0, codec.CARRIED.unpack_from(record)[9]):
                    self._carried[job] = carried_state(record)
                return
            end = ENDINGS.get(kind)
        else:
            end = ENDINGS.get(kind)
            job = _JOB.unpack_from(data, at + JOB_AT)[0] if end is not None else 0
        if end is None:
            return
        if job in self._carried:
            self._carried[job] = end
            return
        place = bisect_left(self._jobs, job)
        if place < len(self._jobs) and self._jobs[place] == job:
            self._ends[place] = end

    def chosen(self) -> tuple[array[int], bytearray]:
        """(jobs, their states), the oldest first."""
        limit = self._past.limit
        wanted = frozenset(map(int, self._past.states))
        jobs, ends = array("Q"), bytearray()
        old = sorted(self._carried.items())
        for job, end in chain(old, zip(self._jobs, self._ends, strict=True)):
            if len(jobs) == limit:
                break
            if end in wanted:
                jobs.append(job)
                ends.append(end)
        return jobs, ends

    def _fits(self, data: bytes, at: int, enqueued_ns: int) -> bool:
        past = self._past
        if past.since_ns is not None and enqueued_ns < past.since_ns:
            return False
        if past.until_ns is not None and enqueued_ns >= past.until_ns:
            return False
        return is_named(data, at, self._queue, self._task)


def _records(journal: Journal, start: Cursor) -> Iterator[tuple[Frame, int, int, int]]:
    """(frame, lsn, place in its data, length) of every record; damage is passed over."""
    cursor = Cursor(start.segment, start.offset, start.next_lsn)
    for _, item in journal.frames(cursor):
        if not isinstance(item, Gap):
            for lsn, at, length in places(item):
                check_known(item.data[at + KIND_AT], lsn)
                yield item, lsn, at, length


def _born(frame: Frame, lsn: int, at: int) -> int | None:
    """The job whose ENQUEUED record this is, or carries."""
    kind = frame.data[at + KIND_AT]
    if kind == _ENQUEUED:
        return lsn
    if kind in _CARRYING:
        job: int = _JOB.unpack_from(frame.data, at + JOB_AT)[0]
        return job
    return None
