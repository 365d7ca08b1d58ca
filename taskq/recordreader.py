"""The wanted records of a log, one after the other, and the place to go on from."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from taskq.core.errors import LogError
from taskq.log.format.record import decode_record, places
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.follow import Onlooker
from taskq.log.read.positions import read_record
from taskq.log.read.reader import open_journal
from taskq.log.read.readers import Position
from taskq.log.segments.segments import SegmentFiles
from taskq.record import kind_at, make_record, takes_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from taskq.log.format.frames import Frame
    from taskq.log.format.record import LogRecord
    from taskq.log.read.follow import FrameReader
    from taskq.log.segments.bodystore import BodyStore
    from taskq.log.segments.segments import Extent
    from taskq.record import Choice, Record

#: Records that are looked at before the loop's other tasks get a turn: about a millisecond's.
_TURN_RECORDS: Final = 128
#: For so many jobs frames are hopped over; more are worth an index of the segment that grows.
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
        """Everything before it was handed out, or was not wanted."""
        return self._place._replace(lsn=self._lsn)

    async def next(self, extent: Extent) -> Record | None:
        """The next wanted record; None when there is none up to the extent.

        Raises:
            ReaderFellBehind: compaction removed it.
            LogDamaged: it does not read back.
            LogError: a file cannot be read, or holds what a newer taskq wrote.
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
                await asyncio.to_thread(self._look_up, record.job)
            names = self._choice.fits(record)
            if names is None:
                made = None
            else:
                making = record, self._tag, names, self._bodies, self._body_bytes_max
                if takes_time(record, self._bodies):
                    made = await asyncio.to_thread(make_record, *making)
                else:
                    made = make_record(*making)
            self._held = None
            self._pass(record.lsn)
            if made is not None:
                return made

    def close(self) -> None:
        """Close the files; from any thread. Legal twice."""
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
        """The frame's next record that is worth decoding; None at its end."""
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
        """Find the queue and task of a job that is older than what is remembered; on a thread."""
        try:
            if self._lookup is None:
                self._lookup = Onlooker(open_journal(self.frames.files.path))
            extent, journal = self._lookup.look(), self._lookup.journal
            self._lookups += 1
            data = None
            if self._lookups <= _HOPS_MAX:
                data = read_record(journal.files, job, extent)
            if data is None:
                found = next(journal.indexes.about(job), None)
                data = found.record if found is not None else None
        except LogError:  # what was there was removed just now
            return
        if data is not None:
            record = decode_record(data, job, 0, 0)
            if record.job == job:
                self._choice.note(record)


def open_files(path: str, log_id: UUID) -> SegmentFiles:
    """The segments of a log, for reading by one stream."""
    files = SegmentFiles(LocalDisk(), path, writable=False)
    files.log_id = log_id
    files.refresh()
    return files
