"""Single records of a segment, found by way of its index and checked with their frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.log import codec
from taskq.log.locate import hop

if TYPE_CHECKING:
    from taskq.log.files import SegmentFiles
    from taskq.log.indexbuild import IndexBuilder
    from taskq.log.indexfile import SegmentIndex
    from taskq.log.sparse import Entry

    #: What a segment's index is asked for, be it in memory or in a file.
    Index = IndexBuilder | SegmentIndex

#: Frames that are kept in memory after they were checked, ...
_BODIES_MAX: Final = 8
#: ... if they are no larger.
_BODY_BYTES_MAX: Final = 512 * 1024


class Found(NamedTuple):
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
        """What was read may not be true any more."""
        self._bodies.clear()

    def by_lsn(self, segment: int, index: Index, lsn: int) -> Found | None:
        """The record of that number, None if it is not in the segment."""
        entry = index.at_lsn(lsn)
        if entry is None:
            return None
        if entry.alone:
            return self._salvaged(segment, index, entry) if entry.lsn == lsn else None
        return self.from_entry(segment, entry, lsn, index.offset)

    def from_entry(self, segment: int, entry: Entry, lsn: int, end: int) -> Found | None:
        """The record of that number, which stands behind an entry and before ``end``."""
        for frame, header in hop(self._files, segment, entry.frame, end):
            if header.next_lsn > lsn:
                if header.first_lsn > lsn:
                    return None
                return self._walk(segment, frame, header, entry, lsn, -1)
        return None

    def by_offset(self, segment: int, index: Index, offset: int) -> Found | None:
        """The record that starts at an offset, None if none does."""
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
    ) -> Found | None:
        """The record of a frame that has this number, or this offset."""
        body = self._body(segment, frame, header)
        if body is None:
            return None
        start = frame + codec.FRAME_HEADER_SIZE
        at, number = 0, header.first_lsn
        if frame == entry.frame:
            at, number = entry.offset - start, entry.lsn
        wanted = offset - start
        length_at = codec.LENGTH.unpack_from
        while 0 <= at <= len(body) - codec.PREFIX.size:
            length = length_at(body, at)[0]
            if number == lsn or at == wanted:
                location = self._files.base(segment) + start + at
                record = body[at : at + length]
                if len(record) < max(length, codec.PREFIX.size):
                    return None
                return Found(
                    number, header.epoch, header.time_ns, location, frame, header.first_lsn, record
                )
            at += max(length, 1)
            number += 1
        return None

    def _body(self, segment: int, frame: int, header: codec.FrameHeader) -> bytes | None:
        """The records of a frame, None if they do not read back as they were written."""
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

    def _salvaged(self, segment: int, index: Index, entry: Entry) -> Found | None:
        """A record that stands alone in a damaged frame, by its own CRC."""
        header = index.salvaged[entry.frame]
        location = self._files.base(segment) + entry.offset
        record = self._files.unchecked_record(location)
        crc = codec.crc32(record[:-4], entry.lsn & 0xFFFFFFFF)
        if len(record) <= codec.PREFIX.size or crc != int.from_bytes(record[-4:], "little"):
            return None
        return Found(
            entry.lsn, header.epoch, header.time_ns, location, entry.frame, header.first_lsn, record
        )
