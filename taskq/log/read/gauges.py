"""Measure a log beyond its counts: how long the oldest job waits, how fast and how jobs end."""

from __future__ import annotations

import struct
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskq.core.errors import TaskqError
from taskq.core.kinds import BIRTHS, ENDING, RETRY, REVIVALS
from taskq.core.model import SECOND_NS
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.codec import KIND_AT
from taskq.log.format.frames import Gap
from taskq.log.format.record import decode_record, places
from taskq.log.read.positions import count_behind, find_time
from taskq.log.segments.segments import hop
from taskq.log.state.story import tell

if TYPE_CHECKING:
    from taskq.core.folds.agenda import Agenda
    from taskq.core.views import QueueStats
    from taskq.log.format.frames import Cursor
    from taskq.log.journal.journal import Journal
    from taskq.log.segments.segments import Extent

#: Over so long a time the throughput is taken, from a sample a second.
WINDOW_NS: Final = 60 * SECOND_NS
_SAMPLE_NS: Final = SECOND_NS
_OFFSET_MASK: Final = 2**32 - 1


class Gauges:
    """Looks at the queues of one process's agenda."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        #: (steady time, jobs that ended so far by queue), the oldest first
        self._samples: deque[tuple[int, dict[str, int]]] = deque()
        #: job -> since when it is ready, of the jobs that were asked for last
        self._since: dict[int, int] = {}

    def sample(self, agenda: Agenda | None, now_ns: int) -> None:
        """Note how many jobs have ended; asked once a second."""
        if agenda is None:
            return
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= now_ns - WINDOW_NS:
            samples.popleft()
        samples.append((now_ns, _ended(agenda)))

    def queues(self, agenda: Agenda, now_ns: int) -> tuple[QueueStats, ...]:
        """Counts, ages and throughput per queue, by name, at a moment of wall time."""
        oldest = agenda.taking.oldest_ready()
        ready = {job for jobs in oldest.values() for job in jobs}
        self._since = {
            job: self._since.get(job) or self._ready_since(agenda.location(job), job)
            for job in ready
        }
        rates = self._rates(agenda)
        return tuple(
            replace(
                stats,
                oldest_ready_seconds=self._age(oldest.get(stats.queue, ()), now_ns),
                throughput_per_second=rates.get(stats.queue) if rates is not None else None,
            )
            for stats in agenda.queues.stats()
        )

    def _age(self, jobs: tuple[int, ...], now_ns: int) -> float | None:
        since = [self._since[job] for job in jobs if self._since[job]]
        return max((now_ns - min(since)) / SECOND_NS, 0.0) if since else None

    def _rates(self, agenda: Agenda) -> dict[str, float] | None:
        """Return jobs that ended per second; None before the first sample is a second old."""
        now_ns, now = self._journal.clock.steady_ns(), _ended(agenda)
        samples = self._samples
        if not samples or now_ns - samples[0][0] < _SAMPLE_NS:
            return None
        begin_ns = max(now_ns - WINDOW_NS, samples[0][0])
        at = sum(taken_ns <= begin_ns for taken_ns, _ in samples) - 1
        if samples[at][0] + _SAMPLE_NS <= begin_ns:
            # All that ended between this sample and the next did so within its first second: a
            # batch that came later would have taken another.
            at += 1
        before = samples[at][1] if at < len(samples) else now
        seconds = (now_ns - begin_ns) / SECOND_NS
        return {
            queue: max(count - before.get(queue, 0), 0) / seconds for queue, count in now.items()
        }

    def _ready_since(self, location: int, job: int) -> int:
        """Return when a ready job was enqueued, requeued or first due; 0 if that cannot be told."""
        files = self._journal.files
        try:
            frame_ns = self._frame_time(location, job)
            if not frame_ns:
                return 0
            record = decode_record(files.unchecked_record(location), job, 0, frame_ns)
        except (TaskqError, OSError, ValueError, struct.error):
            return 0
        if record.kind in REVIVALS:
            return frame_ns
        if record.carried is not None:
            return record.carried.ready_ns
        return max(frame_ns, record.extras.due_ns if record.extras is not None else 0)

    def _frame_time(self, location: int, job: int) -> int:
        """Time of the frame that a record stands in."""
        files, end = self._journal.files, self._journal.end()
        segment, offset = files.segment_at(location), location & _OFFSET_MASK
        size = end.offset if segment == end.segment else files.size(segment)
        near = self._journal.cursor_at(job)
        is_near = near.segment == segment and near.offset < offset
        start = near.offset if is_near else codec.SEGMENT_HEADER.size
        return next(
            (
                header.time_ns
                for at, header in hop(files, segment, start, size)
                if at + header.size > offset
            ),
            0,
        )


def _ended(agenda: Agenda) -> dict[str, int]:
    """Return how many jobs succeeded or died, by queue."""
    ended: dict[str, int] = {}
    for lane in agenda.lanes:
        ended[lane.queue] = ended.get(lane.queue, 0) + lane.succeeded + lane.dead
    return ended


def age_ns(journal: Journal, lsn: int) -> int:
    """Return nanoseconds since a job was enqueued; 0 if the log does not know it any more.

    Steps of the clock are no time that passed: a machine that booted in 1970 and then learnt the
    year has not made its jobs old.
    """
    # Not the wall clock: a step that it has just made is in no record yet.
    now_ns = journal._time.base_ns + journal.clock.steady_ns()
    view = tell(journal, lsn, now_ns)
    if view is None:
        return 0
    stepped_ns = sum(step for _, step in journal.indexes.steps_after(lsn))
    return max(now_ns - view.enqueued_ns - stepped_ns, 0)


MINUTES: Final = 60
_MINUTE_NS: Final = 60 * SECOND_NS
#: What is read at once for it: half a second of work.
_READ_BYTES_MAX: Final = 32 * 1024 * 1024
_COUNTED: Final[dict[int, str]] = {
    **{kind: str(state) for state, kind in ENDING.items()},
    RETRY: "retried",
    **dict.fromkeys(BIRTHS, "enqueued"),
}


class Minute(NamedTuple):
    """Count what happened in a minute, by outcome; jobs that came are "enqueued"."""

    begin_ns: int
    counts: dict[str, int]


class LastHour:
    """Count how attempts ended in each minute of the last hour; only what is new is read.

    Args:
        journal: of the log; it may look at a moment of the past.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._cursor: Cursor | None = None
        self._minutes: dict[int, Counter[str]] = {}
        self._first = self._looked = 0

    def minutes(self, now_ns: int, end: Extent) -> list[Minute]:
        """Return the minutes of the last hour, the oldest first.

        Of a log that writes more than 32 MiB in that time the first minutes are left out.
        """
        now = now_ns // _MINUTE_NS
        if self._cursor is None or now - self._looked >= MINUTES:  # all that is known is older
            self._minutes.clear()
            self._cursor = self._start(now, end)
        self._looked = now
        for _, frame in self.journal.frames(self._cursor):
            if isinstance(frame, Gap):
                continue
            kinds = (frame.data[at + KIND_AT] for _, at, _ in places(frame))
            counts = Counter(_COUNTED[kind] for kind in kinds if kind in _COUNTED)
            minute = frame.header.time_ns // _MINUTE_NS
            self._minutes.setdefault(minute, Counter()).update(counts)
        for minute in [minute for minute in self._minutes if minute <= now - MINUTES]:
            del self._minutes[minute]
        first = max(self._first, now - MINUTES + 1)
        return [
            Minute(minute * _MINUTE_NS, dict(self._minutes.get(minute, ())))
            for minute in range(first, now + 1)
        ]

    def _start(self, now: int, end: Extent) -> Cursor:
        count = MINUTES
        while True:
            self._first = now - count + 1
            cursor = find_time(self.journal.files, self._first * _MINUTE_NS, end)
            _, size = count_behind(self.journal.files, cursor, cursor.next_lsn, end)
            if size <= _READ_BYTES_MAX or count == 1:
                return cursor
            count //= 2
