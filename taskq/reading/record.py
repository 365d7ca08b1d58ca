"""Record: one entry of the log as streams hand it out, and the choice of which they do."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from datetime import datetime
from typing import Final
from uuid import UUID

from taskq.connection.blocking import off_loop
from taskq.core.durations import utc_moment
from taskq.core.errors import LogError, TaskqError, UsageError
from taskq.core.kinds import (
    BEGINNINGS,
    LAST,
    OF_JOBS,
    OF_LANES,
    SUCCESSES,
    WITH_CAUSE,
    WITH_OWNER,
    name_of,
)
from taskq.core.model import State
from taskq.core.records import PACKED, TABLE
from taskq.core.schedules import SCHEDULE_HEADER
from taskq.core.sources import SOURCE_HEADER
from taskq.core.values import NamedTuple, dataclass
from taskq.log.format.frames import Frame
from taskq.log.format.record import LogRecord, decode_record, places
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.follow import FrameReader, Onlooker
from taskq.log.read.positions import read_record
from taskq.log.read.reader import LogReader, open_journal
from taskq.log.read.readers import Position
from taskq.log.segments.bodystore import BodyStore
from taskq.log.segments.segments import Extent, SegmentFiles

#: Jobs whose queue and task a stream remembers, for later records.
_NAMES_MAX: Final = 16_384
_KINDS: Final = {row.name: kind for kind, row in TABLE.items()}
_KIND_AT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An entry of the log: an event of a job, or of the log itself.

    The meaning of a field depends on the kind; unused fields have their default. In the log only
    "enqueued", "edited" and "carried" records name a job's queue and task. A stream fills them in
    for later records of the latest 16 384 jobs, and always if it filters by queue or task; else
    both are "". Moments are nanoseconds of wall time.

    Attributes:
        lsn: position in the log: rising, not dense.
        epoch: number of the stretch of the log between two unclean starts.
        time_ns: when it was written.
        kind: "enqueued", "claimed", "succeeded", "retried", "dead", "released", "cancelled",
            "expired"; "carried" (compaction wrote the job again as it stands), "requeued",
            "edited" (the job waits otherwise), "purged", "extended",
            "cancel_asked"; of the log "clock", "paused", "resumed", "tallied", "compacted",
            "ticked", "ingested", "adopted", "owner". Skip unknown kinds: later versions may add
            some.
        job_id: the job's id, "" for entries of the log.
        queue, task: see above.
        priority: of the job, None if not in the record.
        attempt: attempts counted so far.
        attempts_max: of an enqueued job; 0 for no limit.
        owner: number of the process that claimed the job.
        cause: why a job died, was cancelled, expired, retried or released.
        due_ns: when it is due, 0 for at once; of ticked the latest tick.
        expires_ns: when it is given up unless it ran, 0 for never.
        key: its dedup key.
        headers: its headers; of ticked the name of the schedule, of ingested of the source.
        payload: the bytes that were enqueued; of ingested the position as JSON.
        result: the job's return value, None without one.
        reason: why an attempt failed.
        state: of a carried job.
        lease_ns: when the claim is over unless it is extended, 0 if with its process.
        step_ns: change of the clock.
        problem: why a payload or result is missing; "" if none is.
    """

    lsn: int
    epoch: int
    time_ns: int
    kind: str
    job_id: str = ""
    queue: str = ""
    task: str = ""
    priority: int | None = None
    attempt: int = 0
    attempts_max: int = 0
    owner: int = 0
    cause: str = ""
    due_ns: int = 0
    expires_ns: int = 0
    key: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    payload: bytes | None = None
    result: bytes | None = None
    reason: str = ""
    state: str = ""
    lease_ns: int = 0
    step_ns: int = 0
    problem: str = ""

    @property
    def time(self) -> datetime:
        """Return when it was written, in UTC, to the microsecond."""
        return utc_moment(self.time_ns)


class Choice:
    """Filter of records that a stream hands out.

    Args:
        kinds, queues, tasks: names; None for all.
        name_all: find out queue and task of every job, also where no choice depends on it.

    Raises:
        UsageError: one is no list of names, or a kind is unknown.
    """

    def __init__(
        self,
        kinds: Iterable[str] | None = None,
        queues: Iterable[str] | None = None,
        tasks: Iterable[str] | None = None,
        *,
        name_all: bool = False,
    ) -> None:
        wanted = _names("kinds", kinds)
        unknown = sorted((wanted or frozenset()) - _KINDS.keys())
        if unknown:
            raise UsageError(f"there is no kind {unknown[0]!r}: the kinds are {', '.join(_KINDS)}")
        self._kinds = None if wanted is None else frozenset(_KINDS[name] for name in wanted)
        self._queues = _names("queues", queues)
        self._tasks = _names("tasks", tasks)
        self._known: OrderedDict[int, tuple[str, str]] = OrderedDict()
        #: whether the filter needs a record's job
        self.needs_names = name_all or self._queues is not None or self._tasks is not None

    def skips(self, kind: int) -> bool:
        """Return whether a record of this kind need not even be decoded."""
        return self._kinds is not None and kind not in self._kinds and kind not in BEGINNINGS

    def note(self, record: LogRecord) -> None:
        """Remember the job that a record brings."""
        if record.kind in BEGINNINGS:
            self.learn(record.job, _text(record.queue), _text(record.task))

    def learn(self, job: int, queue: str, task: str) -> None:
        """Remember a job's queue and task."""
        known = self._known
        known[job] = queue, task
        if len(known) > _NAMES_MAX:
            known.popitem(last=False)

    def lacks(self, record: LogRecord) -> bool:
        """Return whether the record fits depends on a job that is not known."""
        return (
            self.needs_names
            and record.kind in OF_JOBS
            and record.job not in self._known
            and (self._kinds is None or record.kind in self._kinds)
        )

    def fits(self, record: LogRecord) -> tuple[str, str] | None:
        """Return (queue, task) of the record if it is wanted, else None.

        One of a job that nothing is known of any more is, too: it is not for us to drop it.
        """
        if self._kinds is not None and record.kind not in self._kinds:
            return None
        names = _text(record.queue), _text(record.task)
        if record.job:
            known = self._known.get(record.job)
            if known is None:
                return names
            if record.kind in LAST:
                del self._known[record.job]
            names = known
        queue, task = names
        if self._queues is not None and queue not in self._queues:
            return None
        if self._tasks is not None and task not in self._tasks:
            return None
        return names


class Wanted(NamedTuple):
    """Filter of records that are written; None stands for all."""

    queue: str | None = None
    task: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None


class Chooser:
    """Chooses records, asked for each in the order of the log."""

    def __init__(self, reader: LogReader, wanted: Wanted) -> None:
        self._reader = reader
        self._wanted = wanted
        queues, tasks = (name and [name] for name in wanted[:2])
        self._choice = Choice(queues=queues, tasks=tasks)

    def names(self, record: LogRecord) -> tuple[str, str] | None:
        """Return queue and task of a record that fits, perhaps from its birth; else None."""
        wanted, choice = self._wanted, self._choice
        if wanted.until_ns is not None and record.time_ns >= wanted.until_ns:
            return None
        choice.note(record)
        if wanted.since_ns is not None and record.time_ns < wanted.since_ns:
            return None
        if choice.lacks(record):
            view = self._reader.job(record.job, body_bytes_max=0)
            if view is not None:
                choice.learn(record.job, view.queue, view.task)
        return choice.fits(record)


def make_record(
    record: LogRecord, tag: str, names: tuple[str, str], bodies: BodyStore, limit: int | None = None
) -> Record:
    """Return the public record; slow if ``takes_time``.

    Packed bodies over ``limit`` bytes are left out and noted in ``problem``; 0: all, silently.
    """
    kind, extras, carried = record.kind, record.extras, record.carried
    is_birth = kind in BEGINNINGS
    what = f"what lsn {record.lsn} holds of {tag}-{record.job}"
    payload = result = None
    reason = problem = ""
    due_ns = record.due_ns if extras is None else extras.due_ns
    headers = extras.headers if extras is not None else {}
    if record.ticked is not None:
        due_ns, headers = record.ticked.state.last_ns, {SCHEDULE_HEADER: record.ticked.name}
    if record.moved is not None:
        headers, payload = {SOURCE_HEADER: record.moved.name}, record.moved.state.position
    if is_birth:
        stored = record.body or b""
        payload, problem = _unpacked(stored, record.body_flags, bodies, what, limit)
    elif kind in SUCCESSES:
        result, problem = _unpacked(record.body, record.body_flags, bodies, what, limit)
    elif record.body is not None and kind in OF_JOBS:
        reason = _text(record.body)
    expires_ns = extras.expires_ns if extras is not None else 0
    if carried is not None:
        due_ns, expires_ns = carried.due_ns, carried.expires_ns or expires_ns
        if carried.state is State.SUCCEEDED:
            flags = carried.flags & PACKED
            result, lost = _unpacked(carried.body, flags, bodies, what, limit)
            problem = problem or lost
        elif carried.body is not None:
            reason = _text(carried.body)
    return Record(
        lsn=record.lsn,
        epoch=record.epoch,
        time_ns=record.time_ns,
        kind=name_of(kind),
        job_id=f"{tag}-{record.job}" if record.job else "",
        queue=names[0],
        task=names[1],
        priority=record.priority if is_birth or kind in OF_LANES else None,
        attempt=record.attempt,
        attempts_max=record.attempts_max,
        owner=record.token if kind in WITH_OWNER else 0,
        cause=record.cause.name.lower() if kind in WITH_CAUSE else "",
        due_ns=due_ns,
        expires_ns=expires_ns,
        key=extras.key if extras is not None else None,
        headers=headers,
        payload=payload,
        result=result,
        reason=reason,
        state=carried.state.name.lower() if carried is not None else "",
        lease_ns=record.lease_ns if carried is None else carried.lease_ns,
        step_ns=record.step_ns,
        problem=problem,
    )


def takes_time(record: LogRecord, bodies: BodyStore) -> bool:
    """Return whether unpacking what the record holds is no work for an event loop."""
    flags = record.body_flags
    if flags and not bodies.is_quick(record.body or b"", flags):
        return True
    carried = record.carried
    return carried is not None and not bodies.is_quick(carried.body or b"", carried.flags & PACKED)


def kind_at(data: bytes, at: int) -> int:
    return data[at + _KIND_AT]


def _unpacked(
    stored: bytes | None, flags: int, bodies: BodyStore, what: str, limit: int | None
) -> tuple[bytes | None, str]:
    if stored is None or not flags:
        return stored, ""
    if limit == 0:
        return None, ""
    try:
        return bodies.unpack(stored, flags, what, limit), ""
    except TaskqError as error:
        return None, str(error)


def _names(what: str, names: Iterable[str] | None) -> frozenset[str] | None:
    if isinstance(names, str):
        raise UsageError(f"{what} is {names!r}: give a list of names")
    return None if names is None else frozenset(names)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# The wanted records of a log, one after the other, and the place to go on from.

#: Records that are looked at before the loop's other tasks get a turn: about a millisecond's.
_TURN_RECORDS: Final = 128
#: Lookups by hopping over frames; more are worth an index of the growing segment.
_HOPS_MAX: Final = 64


class RecordReader:
    """The records that a choice wants. For one event loop.

    A call of ``next`` that is cancelled loses nothing.

    Args:
        frames: where they come from.
        choice: which are wanted.
        tag: what the log's job ids start with.
        bodies: unpacks payloads and results.
        position: records before its lsn are passed over.
        from_ns: so are those before the first frame of that time or later.
        body_bytes_max: see ``make_record``.
    """

    def __init__(
        self,
        frames: FrameReader,
        choice: Choice,
        tag: str,
        bodies: BodyStore,
        position: Position,
        from_ns: int = 0,
        body_bytes_max: int | None = None,
    ) -> None:
        self.frames = frames
        self._choice = choice
        self._tag = tag
        self._bodies = bodies
        self._body_bytes_max = body_bytes_max
        self._lsn = position.lsn
        self._place = position
        self._from_ns = from_ns
        self._frame: Frame | None = None
        #: the frame that the place names
        self._placed: Frame | None = None
        self._places: Iterator[tuple[int, int, int]] = iter(())
        #: a record that is not handed out yet
        self._held: LogRecord | None = None
        self._looked_at = 0
        self._lookup: Onlooker | None = None
        self._lookups = 0

    @property
    def position(self) -> Position:
        return self._place._replace(lsn=self._lsn)

    async def next(self, extent: Extent) -> Record | None:
        """Return the next record that fits; None at the extent.

        Raises:
            ReaderFellBehind: compaction removed it.
            LogDamaged: it does not read back.
            LogError: a file cannot be read, or a newer taskq wrote it.
        """
        while True:
            record = self._held or self._decode_next()
            if record is None:
                if not await self._enter_frame(extent):
                    return None
                continue
            self._held = record
            self._looked_at += 1
            if not self._looked_at % _TURN_RECORDS:
                await asyncio.sleep(0)
            if self._choice.lacks(record):
                await off_loop(self._look_up, record.job)
            names = self._choice.fits(record)
            if names is None:
                made = None
            else:
                making = record, self._tag, names, self._bodies, self._body_bytes_max
                if takes_time(record, self._bodies):
                    made = await off_loop(make_record, *making)
                else:
                    made = make_record(*making)
            self._held = None
            self._pass(record.lsn)
            if made is not None:
                return made

    def close(self) -> None:
        self.frames.close()
        if self._lookup is not None:
            self._lookup.close()

    async def _enter_frame(self, extent: Extent) -> bool:
        frame = await self.frames.next(extent)
        if frame is None:
            return False
        if frame.header.time_ns < self._from_ns:
            return True
        self._from_ns = 0
        self._frame = frame
        self._places = places(frame)
        return True

    def _decode_next(self) -> LogRecord | None:
        """Return the frame's next record that is worth decoding; None at its end."""
        frame = self._frame
        if frame is None:
            return None
        header = frame.header
        for lsn, at, length in self._places:
            if lsn < self._lsn:
                continue
            if self._choice.skips(kind_at(frame.data, at)):
                self._looked_at += 1
                self._pass(lsn)
                continue
            data = frame.data[at : at + length]
            record = decode_record(data, lsn, header.epoch, header.time_ns)
            self._choice.note(record)
            return record
        self._frame = None
        return None

    def _pass(self, lsn: int) -> None:
        self._lsn = lsn + 1
        frame = self._frame
        if frame is not self._placed and frame is not None:
            header, segment = frame.header, self.frames.cursor.segment
            self._place = Position(segment, lsn, frame.offset, header.epoch, header.time_ns)
            self._placed = frame

    def _look_up(self, job: int) -> None:
        """Find the queue and task of a job that is no longer remembered; on a thread."""
        try:
            if self._lookup is None:
                self._lookup = Onlooker(open_journal(self.frames.files.path))
            extent, journal = self._lookup.look(), self._lookup.journal
            self._lookups += 1
            data = None
            if self._lookups <= _HOPS_MAX:
                data = read_record(journal.files, job, extent)
            if data is None:
                entry = next(journal.indexes.about(job), None)
                data = entry.record if entry is not None else None
        except LogError:  # the segment was removed just now
            return
        if data is not None:
            record = decode_record(data, job, 0, 0)
            if record.job == job:
                self._choice.note(record)


def open_files(path: str, log_id: UUID) -> SegmentFiles:
    files = SegmentFiles(LocalDisk(), path, writable=False)
    files.log_id = log_id
    files.refresh()
    return files
