"""Single records of a segment, found by way of its index and checked with their frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from taskq.core.records import Flag
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.codec import FLAGS_AT
from taskq.log.segments.segments import hop

if TYPE_CHECKING:
    from taskq.log.segments.index_build import IndexBuilder
    from taskq.log.segments.index_file import SegmentIndex
    from taskq.log.segments.index_memory import Entry
    from taskq.log.segments.segments import SegmentFiles

if TYPE_CHECKING:
    #: What a segment's index is asked for, be it in memory or in a file.
    Index: TypeAlias = IndexBuilder | SegmentIndex

#: What is read of a frame to find one record.
_WINDOW: Final = 16 * 1024
_CHECKED: Final = int(Flag.CHECKED)
#: Frames that are kept in memory after they were checked, ...
_BODIES_MAX: Final = 8
#: ... if they are no larger.
_BODY_BYTES_MAX: Final = 512 * 1024


class RecordFound(NamedTuple):
    """A record, and where it stands."""

    lsn: int
    epoch: int
    time_ns: int
    #: as of ``SegmentFiles``
    location: int
    #: offset of its frame
    frame: int
    #: first lsn of that frame
    first_lsn: int
    record: bytes


class Lookup:
    """Reads records of the segments of one log."""

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._bodies: dict[tuple[int, int], bytes] = {}

    def forget(self) -> None:
        """Forget what was read, as it may not be true any more."""
        self._bodies.clear()

    def by_lsn(self, segment: int, index: Index, lsn: int) -> RecordFound | None:
        """Return the record of that number, None if it is not in the segment."""
        entry = index.at_lsn(lsn)
        if entry is None:
            return None
        if entry.alone:
            return self._salvaged(segment, index, entry) if entry.lsn == lsn else None
        return self.from_entry(segment, entry, lsn, index.offset)

    def from_entry(self, segment: int, entry: Entry, lsn: int, end: int) -> RecordFound | None:
        """Return the record of that number, which stands behind an entry and before ``end``."""
        for frame, header in hop(self._files, segment, entry.frame, end):
            if header.next_lsn > lsn:
                if header.first_lsn > lsn:
                    return None
                return self._walk(segment, frame, header, entry, lsn, -1)
        return None

    def by_offset(self, segment: int, index: Index, offset: int) -> RecordFound | None:
        """Return the record that starts at an offset, None if none does."""
        entry = index.at_offset(offset)
        if entry is None:
            return None
        if entry.alone:
            return self._salvaged(segment, index, entry) if entry.offset == offset else None
        for frame, header in hop(self._files, segment, entry.frame, index.offset):
            if frame + header.size > offset:
                return self._walk(segment, frame, header, entry, -1, offset)
        return None

    def _walk(
        self,
        segment: int,
        frame: int,
        header: codec.FrameHeader,
        entry: Entry,
        lsn: int,
        offset: int,
    ) -> RecordFound | None:
        """Return the record of a frame that has this number, or this offset."""
        start = frame + codec.FRAME_HEADER_SIZE
        at, number = start, header.first_lsn
        if frame == entry.frame:
            at, number = entry.offset, entry.lsn
        record = b""
        if (segment, frame) not in self._bodies:
            # Most of what is large has a CRC of its own: the rest of its frame need not be read.
            size = min(_WINDOW, start + header.body_size - at)
            data = self._files._read(self._files.descriptor(segment), max(size, 0), at)
            place, next_number = _step(data, 0, number, lsn, offset - at)
            record = _checked(data, place, next_number)
            if record:
                at, number = at + place, next_number
        if not record:
            body = self._body(segment, frame, header)
            if body is None:
                return None
            place, number = _step(body, at - start, number, lsn, offset - start)
            at, record = start + place, _cut(body, place)
            if not record:
                return None
        location = self._files.base(segment) + at
        return RecordFound(
            number, header.epoch, header.time_ns, location, frame, header.first_lsn, record
        )

    def _body(self, segment: int, frame: int, header: codec.FrameHeader) -> bytes | None:
        """Return the records of a frame, None if they do not read back as they were written."""
        key = segment, frame
        body = self._bodies.pop(key, None)
        if body is None:
            files = self._files
            start = frame + codec.FRAME_HEADER_SIZE
            body = files._read(files.descriptor(segment), header.body_size, start)
            if not codec.body_is_whole(body, header, files.seed(segment), frame):
                return None
        if len(body) <= _BODY_BYTES_MAX:
            if len(self._bodies) >= _BODIES_MAX:
                del self._bodies[next(iter(self._bodies))]
            self._bodies[key] = body
        return body

    def _salvaged(self, segment: int, index: Index, entry: Entry) -> RecordFound | None:
        """Return a record that stands alone in a damaged frame, by its own CRC."""
        header = index.salvaged[entry.frame]
        location = self._files.base(segment) + entry.offset
        record = _checked(self._files.unchecked_record(location), 0, entry.lsn)
        if not record:
            return None
        return RecordFound(
            entry.lsn, header.epoch, header.time_ns, location, entry.frame, header.first_lsn, record
        )


def _step(data: bytes, place: int, number: int, lsn: int, wanted: int) -> tuple[int, int]:
    """(place, lsn) of the record that has this number or stands at the wanted place.

    From the one at ``place`` on, whose lsn is ``number``; the place is -1 if it is not in the data.
    """
    length_at = codec.LENGTH.unpack_from
    last = len(data) - codec.PREFIX.size
    while 0 <= place <= last:
        if number == lsn or place == wanted:
            return place, number
        length = length_at(data, place)[0]
        if length < codec.PREFIX.size:
            break
        place += length
        number += 1
    return -1, 0


def _cut(data: bytes, place: int) -> bytes:
    """Return the record at a place, empty if it is not whole there."""
    if place < 0:
        return b""
    length = codec.LENGTH.unpack_from(data, place)[0]
    return data[place : place + length] if codec.PREFIX.size <= length <= len(data) - place else b""


def _checked(data: bytes, place: int, lsn: int) -> bytes:
    """Return the record at a place, empty if it is not whole by a CRC of its own."""
    record = _cut(data, place)
    if not record or not record[FLAGS_AT] & _CHECKED:
        return b""
    crc = codec.crc32(record[:-4], lsn & 0xFFFFFFFF)
    return record if crc == int.from_bytes(record[-4:], "little") else b""
