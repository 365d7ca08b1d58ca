"""The records of streams, and their filter."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, Protocol

from taskq.connection.blocking import off_loop
from taskq.core import errors, kinds, records
from taskq.core.parsing import Tag, checked_names
from taskq.log.format.frames import Frame
from taskq.log.format.record import Record, places
from taskq.log.machine.disk import LocalDisk
from taskq.log.read import follow, positions, reader, readers
from taskq.log.segments import bodystore, segments
from taskq.log.segments.identity import Identity

#: Jobs whose queue and task a stream remembers, for later records.
_NAMES_MAX: Final = 16_384
_KINDS: Final = {row.name: kind for kind, row in records.TABLE.items()}
_KIND_AT: Final = 4


class Named(Protocol):
    """A record for a filter, or a row made of one."""

    @property
    def type(self) -> int: ...
    @property
    def job(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def time_ns(self) -> int: ...


def hand_out(
    record: Record,
    tag: Tag,
    names: tuple[str, str],
    bodies: bodystore.BodyStore,
    limit: int | None = None,
) -> Record:
    """Add job id and names to a selected record, and unpack its bodies.

    Packed bodies over ``limit`` bytes are left out and noted in ``problem``; with 0 all are left
    out without a note.
    """
    record.job_id = tag.id(record.job) if record.job else ""
    record.queue, record.task = names
    record.unpack(None if limit == 0 else partial(bodies.unpack, limit=limit))
    return record


class Choice:
    """Filter of the records of a stream.

    Args:
        kinds, queues, tasks: names; None for all.
        since_ns, until_ns: records from then on, and before then; checked by ``names`` only.
        name_all: look up queue and task of every job, also without a filter by name.

    Raises:
        UsageError: an argument is no list of names, or a kind is unknown.
    """

    def __init__(
        self,
        kinds: Iterable[str] | None = None,
        queues: Iterable[str] | None = None,
        tasks: Iterable[str] | None = None,
        *,
        since_ns: int | None = None,
        until_ns: int | None = None,
        name_all: bool = False,
    ) -> None:
        self.since_ns: int | None = since_ns
        self.until_ns: int | None = until_ns
        wanted = _names("kinds", kinds)
        unknown = sorted((wanted or frozenset()) - _KINDS.keys())
        if unknown:
            raise errors.UsageError(
                f"there is no kind {unknown[0]!r}: the kinds are {', '.join(_KINDS)}"
            )
        self._kinds = None if wanted is None else frozenset(_KINDS[name] for name in wanted)
        self._queues = _names("queues", queues)
        self._tasks = _names("tasks", tasks)
        self._known: OrderedDict[int, tuple[str, str]] = OrderedDict()
        #: whether the filter needs a record's job, and whether its names are needed anyway
        self.is_by_name: bool = self._queues is not None or self._tasks is not None
        self.needs_names: bool = name_all or self.is_by_name

    def skips(self, kind: int) -> bool:
        """Return whether a record of this kind can be skipped without decoding."""
        return self._kinds is not None and kind not in self._kinds and kind not in kinds.BEGINNINGS

    def note(self, record: Named) -> None:
        """Remember the job that a record creates."""
        if record.type in kinds.BEGINNINGS:
            self.learn(record.job, record.queue, record.task)

    def learn(self, job: int, queue: str, task: str) -> None:
        """Remember a job's queue and task."""
        known = self._known
        known[job] = queue, task
        if len(known) > _NAMES_MAX:
            known.popitem(last=False)

    def lacks(self, record: Named) -> bool:
        """Return whether the filter needs the record's job, and the job is not known."""
        return (
            self.needs_names
            and record.type in kinds.OF_JOBS
            and record.job not in self._known
            and (self._kinds is None or record.type in self._kinds)
        )

    def fits(self, record: Named) -> tuple[str, str] | None:
        """Return (queue, task) of the record if it matches, else None.

        A record whose job is no longer known matches, too.
        """
        if self._kinds is not None and record.type not in self._kinds:
            return None
        names = record.queue, record.task
        if record.job:
            known = self._known.get(record.job)
            if known is None:
                return names
            if record.type in kinds.LAST:
                del self._known[record.job]
            names = known
        elif self._tasks is not None:
            return None
        queue, task = names
        if self._queues is not None and queue not in self._queues:
            return None
        if self._tasks is not None and task not in self._tasks:
            return None
        return names

    def names(self, record: Named, reader: reader.LogReader) -> tuple[str, str] | None:
        """Return (queue, task) like ``fits``, for records in order; look up unknown jobs."""
        if self.until_ns is not None and record.time_ns >= self.until_ns:
            return None
        self.note(record)
        if self.since_ns is not None and record.time_ns < self.since_ns:
            return None
        if self.lacks(record):
            view = reader.job(record.job, body_bytes_max=0)
            if view is not None:
                self.learn(record.job, view.queue, view.task)
        return self.fits(record)


def kind_at(data: bytes, at: int) -> int:
    return data[at + _KIND_AT]


def _names(what: str, names: Iterable[str] | None) -> frozenset[str] | None:
    return None if names is None else checked_names(what, names)


# The matching records of a log in order, and the position of the reader.

#: Records read before the loop's other tasks get a turn: about a millisecond of work.
_TURN_RECORDS: Final = 128
#: Lookups by hopping over frames; for more lookups an index of the last segment is built.
_HOPS_MAX: Final = 64


class RecordReader:
    """Reads the records that match a filter. For one event loop.

    A call of ``next`` that is cancelled loses nothing.

    Args:
        frames: source of the frames.
        choice: the filter.
        tag: the prefix of the log's job ids.
        bodies: unpacks payloads and results.
        position: records before its lsn are skipped.
        from_ns: records before the first frame of that time or later are skipped.
        body_bytes_max: see ``hand_out``.
    """

    def __init__(
        self,
        frames: follow.FrameReader,
        choice: Choice,
        tag: Tag,
        bodies: bodystore.BodyStore,
        position: readers.ReaderPosition,
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
        #: the frame of the current place
        self._placed: Frame | None = None
        self._places: Iterator[tuple[int, int, int]] = iter(())
        #: a record that was not returned yet
        self._held: Record | None = None
        self._looked_at = 0
        self._lookup: follow.Onlooker | None = None
        self._lookups = 0

    @property
    def position(self) -> readers.ReaderPosition:
        return self._place._replace(lsn=self._lsn)

    async def next(self, extent: segments.Extent) -> Record | None:
        """Return the next matching record; None at the extent."""
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
            names, made = self._choice.fits(record), None
            if names is not None:
                making = record, self._tag, names, self._bodies, self._body_bytes_max
                # A large body is unpacked on a thread.
                is_quick = all(self._bodies.is_quick(*body) for body in record.packed)
                made = hand_out(*making) if is_quick else await off_loop(hand_out, *making)
            self._held = None
            self._pass(record.lsn)
            if made is not None:
                return made

    def close(self) -> None:
        self.frames.close()
        if self._lookup is not None:
            self._lookup.close()

    async def _enter_frame(self, extent: segments.Extent) -> bool:
        frame = await self.frames.next(extent)
        if frame is None:
            return False
        if frame.header.time_ns < self._from_ns:
            return True
        self._from_ns = 0
        self._frame = frame
        self._places = places(frame)
        return True

    def _decode_next(self) -> Record | None:
        """Return the frame's next record that needs decoding; None at its end."""
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
            record = Record(frame.data[at : at + length], lsn, header.epoch, header.time_ns)
            self._choice.note(record)
            return record
        self._frame = None
        return None

    def _pass(self, lsn: int) -> None:
        self._lsn = lsn + 1
        frame = self._frame
        if frame is not self._placed and frame is not None:
            header, segment = frame.header, self.frames.cursor.segment
            self._place = readers.ReaderPosition(
                segment, lsn, frame.offset, header.epoch, header.time_ns
            )
            self._placed = frame

    def _look_up(self, job: int) -> None:
        """Find the queue and task of a forgotten job; on a thread."""
        try:
            if self._lookup is None:
                self._lookup = follow.Onlooker(reader.open_journal(self.frames.files.path))
            extent, journal = self._lookup.look(), self._lookup.journal
            self._lookups += 1
            data = None
            if self._lookups <= _HOPS_MAX:
                data = positions.read_record(journal.files, job, extent)
            if data is None:
                entry = next(journal.indexes.about(job), None)
                data = entry.record if entry is not None else None
        except errors.LogError:  # the segment has just been removed
            return
        if data is not None:
            record = Record(data, job, 0, 0)
            if record.job == job:
                self._choice.note(record)


def open_files(path: str, identity: Identity) -> segments.SegmentFiles:
    files = segments.SegmentFiles(LocalDisk(), path, writable=False)
    files.identity = identity
    files.refresh()
    return files
