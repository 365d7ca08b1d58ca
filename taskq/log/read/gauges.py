"""Measures of a log besides its counts: age of the oldest job, throughput, ends of attempts."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskq.core import errors, kinds, model, views
from taskq.core.values import NamedTuple
from taskq.log.format import codec, frames
from taskq.log.format.record import Record, places, records_in
from taskq.log.machine.owners import owner_of
from taskq.log.read.positions import count_after, find_time
from taskq.log.segments.segments import Extent
from taskq.log.state.job_history import job_view

if TYPE_CHECKING:
    from taskq.core.folds.agenda import Agenda
    from taskq.log.journal.journal import Journal

#: Time over which throughput is averaged, from one sample a second.
WINDOW_NS: Final = 60 * model.SECOND_NS
_SAMPLE_NS: Final = model.SECOND_NS
_OFFSET_MASK: Final = 2**32 - 1


class Gauges:
    """Measures of the queues in one process's agenda."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        #: (steady time, ended jobs so far by queue), the oldest first
        self._samples: deque[tuple[int, dict[str, int]]] = deque()
        #: job -> moment since when it is ready, for the jobs of the last call
        self._since: dict[int, int] = {}

    def sample(self, agenda: Agenda | None, now_ns: int) -> None:
        """Note the number of ended jobs; called once a second."""
        if agenda is None:
            return
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= now_ns - WINDOW_NS:
            samples.popleft()
        samples.append((now_ns, _ended(agenda)))

    def queues(self, agenda: Agenda, now_ns: int) -> tuple[views.QueueStats, ...]:
        """Return counts, ages and throughput per queue, by name, at a moment of wall time."""
        oldest = agenda.order.oldest_ready()
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
        return max((now_ns - min(since)) / model.SECOND_NS, 0.0) if since else None

    def _rates(self, agenda: Agenda) -> dict[str, float] | None:
        """Return ended jobs per second; None until the first sample is a second old."""
        now_ns, now = self._journal.clock.steady_ns(), _ended(agenda)
        samples = self._samples
        if not samples or now_ns - samples[0][0] < _SAMPLE_NS:
            return None
        begin_ns = max(now_ns - WINDOW_NS, samples[0][0])
        at = sum(taken_ns <= begin_ns for taken_ns, _ in samples) - 1
        if samples[at][0] + _SAMPLE_NS <= begin_ns:
            # Samples are at most one second apart while jobs end: later ends made another sample.
            at += 1
        before = samples[at][1] if at < len(samples) else now
        seconds = (now_ns - begin_ns) / model.SECOND_NS
        return {
            queue: max(count - before.get(queue, 0), 0) / seconds for queue, count in now.items()
        }

    def _ready_since(self, location: int, job: int) -> int:
        """Return when a ready job was enqueued, requeued or due; 0 if unknown."""
        files = self._journal.files
        try:
            frame_ns = self._frame_time(location)
            if not frame_ns:
                return 0
            record = Record(files.unchecked_record(location), job, 0, frame_ns)
            record.decode()
        except (errors.TaskqError, OSError, ValueError, struct.error):
            return 0
        if record.type in kinds.REVIVALS:
            return frame_ns
        return record.carried.ready_ns if record.carried else max(frame_ns, record.due_ns)

    def _frame_time(self, location: int) -> int:
        files, end = self._journal.files, self._journal.end()
        segment, offset = files.segment_at(location), location & _OFFSET_MASK
        size = end.offset if segment == end.segment else files.size(segment)
        scanner = files.scanner(segment, size, 0, sealed=True)
        frame = scanner.last_before(offset, codec.SEGMENT_HEADER.size)
        is_there = frame is not None and frame[0] + frame[1].size > offset
        return frame[1].time_ns if frame is not None and is_there else 0


def _ended(agenda: Agenda) -> dict[str, int]:
    """Return the number of succeeded and dead jobs, by queue."""
    ended: dict[str, int] = {}
    for lane in agenda.lanes:
        ended[lane.queue] = ended.get(lane.queue, 0) + lane.succeeded + lane.dead
    return ended


def age_ns(journal: Journal, lsn: int) -> int:
    """Return nanoseconds since a job's enqueue; 0 if the log no longer knows the job.

    Steps of the clock do not count as age: a machine that booted in 1970 and then got the right
    year has no old jobs.
    """
    # The wall clock may just have stepped, without a record yet.
    now_ns = journal.clock_base_ns + journal.clock.steady_ns()
    view = job_view(journal, lsn, now_ns)
    if view is None:
        return 0
    stepped_ns = sum(step for _, step in journal.indexes.steps_after(lsn))
    return max(now_ns - view.enqueued_ns - stepped_ns, 0)


MINUTES: Final = 60
_MINUTE_NS: Final = 60 * model.SECOND_NS
#: Most bytes read for the last hour (half a second of work), and for the processes of a day.
_READ_BYTES_MAX: Final = 32 * 1024 * 1024
#: Jobs whose names are cached, and most frames read to find names of other jobs.
_NAMES_MAX: Final = 100_000
_LOOK_UPS_MAX: Final = 200
#: Latest attempts of a task whose durations are kept.
_TIMES_MAX: Final = 1_000
_COUNTED: Final[dict[int, str]] = {
    **{kind: str(state) for state, kind in kinds.ENDING.items()},
    kinds.RETRY: "retried",
    **dict.fromkeys(kinds.BIRTHS, "enqueued"),
}
#: Job, and owner or token.
_TWO: Final = struct.Struct("<QQ")


class Minute(NamedTuple):
    """Counts of a minute by outcome; new jobs are "enqueued".

    ``waiting`` and ``running`` are the changes of these counts during the minute.
    """

    begin_ns: int
    counts: dict[str, int]
    waiting: int = 0
    running: int = 0


class LanePace(NamedTuple):
    """Attempts of one queue and task in the last hour.

    Attributes:
        counts: jobs enqueued, and attempts by outcome.
        minutes: ended attempts by minute, the oldest first.
        took_ns: durations of the latest attempts, the shortest first.
        failed: time and job of the last failed attempt; (0, 0) for none.
    """

    counts: dict[str, int]
    minutes: tuple[int, ...]
    took_ns: tuple[int, ...]
    failed: tuple[int, int] = (0, 0)


class LastHour:
    """Ends of attempts in each minute of the last hour; each call reads only new records.

    Args:
        journal: of the log; its end may be in the past.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._cursor: frames.Cursor | None = None
        #: by minute, then by lengths and names of queue and task; b"" if the names are unknown
        self._minutes: dict[int, dict[bytes, Counter[str]]] = {}
        #: by minute: changes of the numbers of waiting and of running jobs
        self._changes: dict[int, list[int]] = {}
        self._first = self._looked = self._look_ups = 0
        self._names: dict[int, bytes] = {}
        #: job -> (start of its attempt, owner)
        self._running: dict[int, tuple[int, int]] = {}
        #: (minute, duration in nanoseconds) of attempts
        self._took: dict[bytes, deque[tuple[int, int]]] = {}
        self._failed: dict[bytes, tuple[int, int]] = {}
        #: by minute and owner: ended attempts; by owner: time of its last record
        self._work: dict[int, Counter[int]] = {}
        self._seen: dict[int, int] = {}
        self._introduced: dict[int, views.OwnerView] = {}

    def look(self, now_ns: int, end: Extent) -> None:
        """Read the new records.

        If an hour has more than 32 MiB of records, its first minutes are left out.
        """
        now = now_ns // _MINUTE_NS
        if self._cursor is None or now - self._looked >= MINUTES:  # every count is too old
            for known in (self._minutes, self._work, self._changes, self._names, self._running):
                known.clear()
            self._cursor = self._start(now, MINUTES, end)
        self._looked, self._look_ups = now, 0
        for frame in frames.whole(self.journal.frames(self._cursor)):
            self._take(frame)
        for counted in (self._minutes, self._work, self._changes):
            for minute in [minute for minute in counted if minute <= now - MINUTES]:
                del counted[minute]

    def minutes(self) -> list[Minute]:
        minutes = []
        for number in self._shown():
            counts = sum(self._minutes.get(number, {}).values(), Counter[str]())
            change = self._changes.get(number, (0, 0))
            minutes.append(Minute(number * _MINUTE_NS, dict(counts), *change))
        return minutes

    def paces(self) -> dict[tuple[str, str], LanePace]:
        names = {name for minute in self._minutes.values() for name in minute if name}
        return {_split(name): self._pace(name) for name in names}

    def work(self) -> dict[int, tuple[int, ...]]:
        """Return the numbers of attempts that each owner ended, by minute, the oldest first."""
        owners = {owner for minute in self._work.values() for owner in minute}
        return {
            owner: tuple(self._work.get(minute, Counter[int]())[owner] for minute in self._shown())
            for owner in owners
        }

    def gone(self, now_ns: int, end: Extent, alive: set[int]) -> list[tuple[views.OwnerView, int]]:
        """Return today's ended processes, each with the time of its last record.

        Only the latest 32 MiB of the log are read.
        """
        start = self._start(now_ns // _MINUTE_NS, 24 * MINUTES, end)
        for frame in frames.whole(self.journal.frames(start)):
            for view in introductions(frame):
                self._introduced[view.owner] = view
                self._seen.setdefault(view.owner, frame.header.time_ns)
        gone = (view for owner, view in self._introduced.items() if owner not in alive)
        views = [(view, self._seen.get(view.owner, 0)) for view in gone]
        return sorted(views, key=lambda pair: -max(pair[1], pair[0].started_ns))

    def _shown(self) -> range:
        return range(max(self._first, self._looked - MINUTES + 1), self._looked + 1)

    def _pace(self, name: bytes) -> LanePace:
        minutes = [self._minutes.get(minute, {}).get(name, Counter()) for minute in self._shown()]
        first = self._looked - MINUTES
        took = sorted(span for minute, span in self._took.get(name, ()) if minute > first)
        counts = sum(minutes, Counter[str]())
        ended = tuple(minute.total() - minute["enqueued"] for minute in minutes)
        return LanePace(dict(counts), ended, tuple(took), self._failed.get(name, (0, 0)))

    def _take(self, frame: frames.Frame) -> None:
        data, now_ns = frame.data, frame.header.time_ns
        minute = now_ns // _MINUTE_NS
        counts = self._minutes.setdefault(minute, {})
        change = self._changes.setdefault(minute, [0, 0])
        for lsn, at, _ in places(frame):
            kind = data[at + codec.KIND_AT]
            if kind in kinds.BIRTHS:
                name = _named(data, at)
                if len(self._names) < _NAMES_MAX:
                    self._names[lsn] = name
                change[0] += 1
            elif kind in kinds.CLAIMS:
                job, owner = _TWO.unpack_from(data, at + codec.JOB_AT)
                self._running[job] = now_ns, owner
                self._seen[owner] = now_ns
                change[0] -= 1
                change[1] += 1
                continue
            elif kind in _ENDING:
                job, token = _TWO.unpack_from(data, at + codec.JOB_AT)
                name = self._ended(job, kind, now_ns)
                change[1 if token else 0] -= 1
                change[0] += kind in kinds.RETURNS
            else:
                change[0] += kind in kinds.REVIVALS
                continue
            if kind in _COUNTED:
                counted = counts.get(name)
                if counted is None:
                    counted = counts[name] = Counter()
                counted[_COUNTED[kind]] += 1

    def _ended(self, job: int, kind: int, now_ns: int) -> bytes:
        """Note the end of an attempt, or of a job; return the names of its queue and task."""
        name, minute = self._names.get(job) or self._name(job), now_ns // _MINUTE_NS
        started_ns, owner = self._running.pop(job, (0, 0))
        if started_ns:
            took = self._took.setdefault(name, deque(maxlen=_TIMES_MAX))
            took.append((minute, now_ns - started_ns))
            self._work.setdefault(minute, Counter())[owner] += 1
            self._seen[owner] = now_ns
        if kind == kinds.RETRY or kind in kinds.DEATHS:
            self._failed[name] = now_ns, job
        elif kind in kinds.ENDS:
            self._names.pop(job, None)
        return name

    def _name(self, job: int) -> bytes:
        self._look_ups += 1
        if self._look_ups <= _LOOK_UPS_MAX:
            if len(self._names) > 2 * _NAMES_MAX:
                self._names.clear()
            for lsn, data, at in births_beside(self.journal, job):
                self._names[lsn] = _named(data, at)
        return self._names.get(job, b"")

    def _start(self, now: int, count: int, end: Extent) -> frames.Cursor:
        while True:
            first = now - count + 1
            cursor = find_time(self.journal.files, first * _MINUTE_NS, end)
            _, size = count_after(self.journal.files, cursor, cursor.next_lsn, end)
            if size <= _READ_BYTES_MAX or count == 1:
                self._first = first if count <= MINUTES else self._first
                return cursor
            count //= 2


#: Kinds that end an attempt, or a job.
_ENDING: Final = kinds.ENDS | kinds.RETURNS


def births_beside(journal: Journal, job: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield (lsn, data, index) of the births in the frame of a job's birth."""
    if job >= journal.files.lsns[0]:
        frame = next((item for _, item in journal.frames(journal.indexes.cursor_at(job))), None)
        if isinstance(frame, frames.Frame):
            for lsn, at, _ in places(frame):
                if frame.data[at + codec.KIND_AT] in kinds.BIRTHS:
                    yield lsn, frame.data, at


def _named(data: bytes, at: int) -> bytes:
    """Return the names of a birth's queue and task, with their lengths in front."""
    start = at + codec.QUEUE_SIZE_AT
    return data[start : start + 2 + data[start] + data[start + 1]]


def _split(name: bytes) -> tuple[str, str]:
    """Return the queue and the task in such bytes."""
    middle = 2 + name[0]
    return name[2:middle].decode(errors="replace"), name[middle:].decode(errors="replace")


#: Beginning of an OWNER record up to its owner: searched for, since few other bytes match it.
_INTRODUCED: Final = codec.encode_owner(0, b"", 0)[codec.KIND_AT : codec.MARK.size - 8]


def introductions(frame: frames.Frame) -> Iterator[views.OwnerView]:
    end = frame.at + frame.header.body_size
    if frame.data.find(_INTRODUCED, frame.at, end) >= 0:
        for record in records_in(frame):
            if record.type in kinds.INTRODUCTIONS:
                yield owner_of(record.token, record.body or b"")
