"""Segments of a copied log, which grow by whole frames of the original."""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from taskq.core.errors import FormatError, LogDamaged, LogFailed
from taskq.core.values import NamedTuple
from taskq.log.config import LSN_SKIP, LogConfig
from taskq.log.format import codec
from taskq.log.format.frames import Frame, Gap, segment_name
from taskq.log.journal import recovery
from taskq.log.journal.journal import Journal
from taskq.log.machine.disk import SystemClock
from taskq.log.machine.ports import Disk, replace_file, write_all
from taskq.log.segments.identity import FILE, Identity
from taskq.log.segments.segments import SegmentFiles, hop, sweep_gone

_FRAME_HEAD = codec.FRAME_HEADER_SIZE


class Border(NamedTuple):
    """A position between two frames, with the header of the frame before it.

    Attributes:
        segment: first lsn of the segment; 0: no position.
        offset: end of a whole frame, or 0 if the copy has no byte of the segment.
        frame: offset of that frame, 0 without one.
        stem: the frame's header as bytes of the file.
    """

    segment: int = 0
    offset: int = 0
    frame: int = 0
    stem: bytes = b""

    @property
    def header(self) -> codec.FrameHeader | None:
        """Return the decoded stem; its CRC was checked by its reader, or is compared."""
        if len(self.stem) != _FRAME_HEAD:
            return None
        _, size, count, _, _, first, epoch, time_ns, synced, body_crc, crc = (
            codec.FRAME_HEADER.unpack(self.stem)
        )
        return codec.FrameHeader(size, count, first, epoch, time_ns, synced, body_crc, crc)

    @property
    def next_lsn(self) -> int:
        """Return the lsn after the frame, or the segment's first lsn without a frame."""
        header = self.header
        return self.segment if header is None else header.next_lsn

    @property
    def link(self) -> codec.Link:
        """Return the link by which the next segment names this end."""
        header = self.header
        return codec.NO_LINK if header is None else codec.Link(self.frame, header.crc)

    def as_list(self) -> list[Any]:
        """Return the fields for JSON."""
        return [self.segment, self.offset, self.frame, self.stem.hex()]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> Border:
        """Return the border from ``as_list``.

        Raises:
            ValueError: it is no border.
        """
        segment, offset, frame, stem = values
        border = cls(int(segment), int(offset), int(frame), bytes.fromhex(stem))
        header = border.header
        fits = header is not None and border.offset == border.frame + header.size
        if not (fits if border.stem else border.offset == border.frame == 0):
            raise ValueError(f"{values!r:.200} is no position")
        return border

    @classmethod
    def after(cls, segment: int, frame: Frame) -> Border:
        """Return the border after a frame."""
        return cls(segment, frame.end, frame.offset, frame.data[frame.at - _FRAME_HEAD : frame.at])


_HEAD: Final = codec.FRAME_HEADER_SIZE
_START: Final = codec.SEGMENT_HEADER.size
_PIECE_BYTES: Final = 1024 * 1024
_LITTLE_BYTES: Final = 4_096
#: Compared fields of a frame's header: all except reserved bytes and times.
_CHECKED: Final = struct.Struct("<IIIH2xQQ16xII")
_OFFSET: Final = struct.Struct("<Q")


class Replica(SegmentFiles):
    """Segment files of one log, for copying and comparing.

    The copying code decides which bytes to add; this class writes them as frames.
    """

    #: file that names the log, and folder of its segments
    IDENTITY = FILE
    LOG = "log"
    #: bytes before the first frame of a segment
    START = _START
    #: lsns that a new epoch skips
    LSN_SKIP = LSN_SKIP

    def __init__(
        self, disk: Disk, path: str, identity: Identity, *, writable: bool = False
    ) -> None:
        super().__init__(disk, path, writable=writable)
        self.identity = identity
        self.refresh()

    # -- present frames ---------------------------------------------------------------------------

    def has(self, at: Border) -> bool:
        """Return whether this very frame is at this very position."""
        return has(self._disk, self, at)

    def frames_of(self, segment: int) -> Iterator[Frame]:
        """Yield the whole frames of a segment."""
        scanner = self.scanner(segment, self.size(segment), segment, sealed=False)
        return (item for item in scanner.frames(_START) if not isinstance(item, Gap))

    def frames_after(self, at: Border) -> Iterator[tuple[Border, Frame]]:
        """Yield the whole frames after a border, or all frames, each with the border after it."""
        next_lsn, offset = at.next_lsn, max(at.offset, _START)
        for segment in [lsn for lsn in self.lsns if lsn >= at.segment]:
            scanner = self.scanner(segment, self.size(segment), next_lsn, sealed=True)
            for item in scanner.frames(offset):
                next_lsn = item.next_lsn
                if not (isinstance(item, Gap) or item.header.is_sync_point):
                    yield Border.after(segment, item), item
            offset = _START

    def is_whole(self, segment: int, size: int) -> bool:
        """Return whether a segment has only whole frames, up to that size."""
        scanner, end = self.scanner(segment, size, segment, sealed=False), 0
        for item in scanner.frames(_START):
            if isinstance(item, Gap):
                return False
            end = item.end
        return end == size and self.header(segment) is not None

    def end_before(self, at: Border, following: codec.SegmentHeader, stem: str) -> Border | None:
        """Return the end of a copy's last segment, according to the header of the next one.

        A header may have no link, after damage or a loss of the log. Then ``stem``, the last frame
        in the owner's log, must be the copy's last frame. None: another end, or it is missing here.
        """
        if following.link in (codec.NO_LINK, codec.LOST):
            return at if at.stem.hex() == stem else None
        end = border_after(self._disk, self, at.segment, following.link.offset)
        return end if end is not None and end.link == following.link else None

    @staticmethod
    def failed_lsn(disk: Disk, path: str) -> int | None:
        """Return the lsn surely on disk at a failed fsync; None if no failure is marked.

        Frames not declared synced are about to be moved.
        """
        return recovery.failed_lsn(disk, path)

    def compacted_below(self, segment: int) -> int:
        """Return the lsn of a segment's newest COMPACTED record, 0 if it has none."""
        floors = (
            below for frame in self.frames_of(segment) for _, below in recovery.compactions(frame)
        )
        return max(floors, default=0)

    # -- growing ----------------------------------------------------------------------------------

    def secured(self, segment: int, known: Border) -> Border:
        """Cut off the unreadable end of a segment; return its new end.

        ``known`` is present, and all frames before it were on disk.
        """
        disk, size, end = self._disk, self.size(segment), known
        scanner = self.scanner(segment, size, max(known.next_lsn, segment), sealed=False)
        for item in scanner.frames(max(known.offset, _START)):
            if isinstance(item, Gap):
                break
            end = Border.after(segment, item)
        descriptor = self.descriptor(segment)
        if size > end.offset:
            disk.truncate(descriptor, end.offset)
        elif size < end.offset:
            write_all(disk, descriptor, bytes(end.offset - size), size)
        # After a failed fsync readable pages may never be written.
        recovery.write_once_more(disk, descriptor, known.offset, end.offset)
        disk.sync(descriptor)
        return end

    def header_in(self, segment: int, data: bytes) -> codec.SegmentHeader | None:
        """Return a segment header of this log in ``data``; None if it has no such header."""
        try:
            header = codec.decode_segment_header(data, segment_name(segment))
        except FormatError:
            return None
        if header is None or (header.first_lsn, header.log_id) != (segment, self.owner(segment)):
            return None
        return header

    def whole(self, data: bytes, at: int, after: Border, epoch: int) -> tuple[Border, bool]:
        """Return the end of the whole frames in ``data``, and whether the rest may be a frame.

        One loop without an object per frame keeps a backlog of small frames fast.

        Args:
            data: bytes to write after a border.
            at: index in it of the first frame.
            after: that border.
            epoch: of the segment.
        """
        unpack, pack, view = _CHECKED.unpack_from, _OFFSET.pack, memoryview(data)
        crc32 = binascii.crc32  # the same as zlib's, and a quarter faster for small data
        base, next_lsn, seed = after.offset, after.next_lsn, self.seed(after.segment)
        known, body_max, lsn_max = codec.FRAME_MAGIC, codec.FRAME_BODY_MAX, codec.LSN_MAX
        end, last, is_well = len(data), -1, True
        while at + _HEAD <= end:
            magic, size, count, flags, first, of, body_crc, crc = unpack(data, at)
            place, body = crc32(pack(base + at), seed), at + _HEAD
            is_well = (
                crc32(data[at : body - 4], place) == crc
                and magic == known
                and of == epoch
                and not flags
                and size <= body_max
                and next_lsn <= first < lsn_max
            )
            stop = body + size
            if not is_well or stop > end:
                break
            # In one call, which lets other threads run; the codec's own keeps the GIL. Small data
            # is copied faster than it is viewed.
            part = data[body:stop] if size < _LITTLE_BYTES else view[body:stop]
            is_well = crc32(part, place) == body_crc
            following = (stop + 7) & ~7
            if not is_well or following > end:
                break
            next_lsn, last, at = first + count, at, following
        if last < 0:
            return after, is_well
        stem = data[last : last + _HEAD]
        return Border(after.segment, base + at, base + last, stem), is_well

    def add(self, data: bytes, after: Border) -> None:
        """Write bytes after a border, durably; a new segment gets its name last."""
        path = self.file_path(after.segment)
        if after.offset:
            descriptor = self.descriptor(after.segment)
            write_all(self._disk, descriptor, data, after.offset)
            self._disk.sync(descriptor)
        else:
            replace_file(self._disk, path, data)
            self.refresh()

    def let_go(self, segment: int) -> None:
        """Remove a segment from the copy, with its file."""
        self.remove(segment)
        sweep_gone(self._disk, f"{self.path}/log")
        self._disk.sync_directory(f"{self.path}/log")


def has(disk: Disk, files: SegmentFiles, at: Border) -> bool:
    if at.segment not in files.lsns:
        return False
    header = at.header
    if header is None:
        return not at.offset
    descriptor = files.descriptor(at.segment)
    # The zeros after a body do not count: a power loss may have removed them.
    is_there = disk.size(descriptor) >= at.frame + _HEAD + header.body_size
    return is_there and disk.read(descriptor, _HEAD, at.frame) == at.stem


def border_after(disk: Disk, files: SegmentFiles, segment: int, frame: int) -> Border | None:
    header = files.frame_header(segment, frame) if frame >= _START else None
    if header is None:
        return None
    stem = disk.read(files.descriptor(segment), _HEAD, frame)
    return Border(segment, frame + header.size, frame, stem)


#: Start of a frame: its magic, and the size of its body.
_SIZE: Final = struct.Struct("<II")


class DurableLog:
    """The present durable part of a log. Close it after use.

    A final sync point is left out until a frame follows it: it has no records, and a recovery may
    remove it.

    Attributes:
        identity: of the log.
        next_lsn: of the next record.
        end: end of the log; no position if it is empty.
        segments: first lsns of segments with frames, rising.
        pin: all records below this lsn were safe at the hub.

    Raises:
        LogFailed: an fsync failed, and the log was not opened since: frames are about to be moved.
        LogError: it cannot be read.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.pin: int = 0
        self._journal = Journal(disk, SystemClock(), path, LogConfig(), None)
        self._files = self._journal.files
        try:
            self.end: Border
            self.segments: list[int]
            self.end, self.segments = self._look()
        except Exception:
            self.close()
            raise

    def _look(self) -> tuple[Border, list[int]]:
        files, journal = self._files, self._journal
        journal.open_for_reading()
        self.identity: Identity = journal.identity
        #: the last segment, which may still grow, and the lsn of the next record
        last = self._segment = journal.segment
        self.next_lsn: int = journal.next_lsn
        if last:
            # Whole frames seen before this sync are durable after it.
            self._disk.sync(files.descriptor(last))
        if recovery.is_marked_failed(self._disk, self._path):
            raise LogFailed(self._path, "an fsync failed in one of its processes")
        older = [
            lsn
            for lsn in files.lsns
            if lsn < last and files.size(lsn) > _START and files.header(lsn) is not None
        ]
        end = self._last_record(last, journal.last_frame)
        if end.segment:
            return end, [*older, last]
        return self._end_of_sealed(older[-1], last) if older else end, older

    def close(self) -> None:
        """Close the files."""
        self._journal.close()

    # -- checks for the verdict -------------------------------------------------------------------

    def has(self, at: Border) -> bool:
        """Return whether this frame is at this position."""
        return has(self._disk, self._files, at)

    def follows(self, at: Border) -> bool:
        """Return whether the log begins right after it: its oldest segment links to this end."""
        if not self.begins_after(at) or not self.segments:
            return False
        header = self._files.header(self.segments[0])
        return header is not None and header.link == at.link != codec.NO_LINK

    def begins_after(self, at: Border) -> bool:
        """Return whether the log has no segment as old as this one."""
        return not self.segments or self.segments[0] > at.segment

    def begins_before(self, segment: int) -> bool:
        """Return whether the log has a segment older than this one."""
        return bool(self.segments) and self.segments[0] < segment

    def is_moved(self, at: Border) -> bool:
        """Return whether the same frame is in a later segment, with an equal body by CRC."""
        wanted = at.header
        if wanted is None or at.segment not in self.segments:
            return False
        later = [lsn for lsn in self.segments if at.segment < lsn <= wanted.first_lsn]
        for segment in reversed(later):
            size = self._files.size(segment)
            for offset, header in hop(self._files, segment, _START, size):
                if header[:5] == wanted[:5] and header.records:
                    body = self._disk.read(
                        self._files.descriptor(segment), header.body_size, offset + _HEAD
                    )
                    seed = self._files.seed(at.segment)
                    return codec.body_is_whole(body, wanted, seed, at.frame)
        return False

    # -- bytes to send ----------------------------------------------------------------------------

    def next_segment(self, segment: int) -> int:
        """Return the segment after another, 0 after the last."""
        return next((lsn for lsn in self.segments if lsn > segment), 0)

    def is_sealed(self, segment: int) -> bool:
        """Return whether the segment no longer grows."""
        return segment < self._segment

    def end_of(self, segment: int) -> Border:
        """Return the end of a segment.

        Raises:
            LogDamaged: it has no whole frame.
        """
        if segment == self.end.segment:
            return self.end
        return self._end_of_sealed(segment, self.next_segment(segment))

    def borders(self, segment: int) -> list[Border]:
        """Return the positions after each frame of a segment, rising."""
        end = self.end_of(segment).offset
        places = (
            border_after(self._disk, self._files, segment, offset)
            for offset, _ in hop(self._files, segment, _START, end)
        )
        return [place for place in places if place is not None and place.offset <= end]

    def part(self, after: Border, bytes_max: int) -> tuple[bytes, Border]:
        """Return the frames after a position, and their end: up to a size, but at least one frame.

        Raises:
            LogDamaged: the next frame is not whole.
        """
        segment, first = after.segment, max(after.offset, _START)
        end = min(self.end_of(segment).offset, max(after.offset + bytes_max, first))
        data, last, at = self._read(segment, after.offset, end), -1, first - after.offset
        unpack, end = _SIZE.unpack_from, len(data)
        while at + _HEAD <= end:
            # By sizes alone: the hub checks each frame, and the last one is checked below.
            magic, size = unpack(data, at)
            following = (at + _HEAD + size + 7) & ~7  # like frame_size
            if magic != codec.FRAME_MAGIC or following > end:
                break
            last, at = at, following
        if last < 0:  # a frame larger than ``bytes_max``
            position = border_after(self._disk, self._files, segment, first)
        else:
            position = border_after(self._disk, self._files, segment, after.offset + last)
            if position is None and last > first - after.offset:
                return self.part(after, last)
        if position is None:
            raise LogDamaged(
                f"{self._files.file_path(segment)}: after offset {after.offset} nothing reads "
                f"back, so it cannot be sent"
            )
        if last < 0:
            return self._read(segment, after.offset, position.offset), position
        return data[: position.offset - after.offset], position

    def offered(self, lacks: Iterable[tuple[int, int]]) -> list[int]:
        """Return the lacking segments that are here, sealed and of that size."""
        return [
            segment
            for segment, size in lacks
            if segment in self.segments
            and self.is_sealed(segment)
            and self.end_of(segment).offset == size
        ]

    def segment_part(self, segment: int, offset: int, bytes_max: int) -> bytes:
        """Return bytes of an offered segment."""
        return self._read(segment, offset, min(offset + bytes_max, self.end_of(segment).offset))

    def bytes_after(self, at: Border) -> int:
        """Return the number of bytes of the log after a position."""
        ends = {lsn: self._files.size(lsn) for lsn in self.segments if lsn >= at.segment}
        if self.end.segment in ends:
            ends[self.end.segment] = self.end.offset
        return sum(ends.values()) - min(at.offset, ends.get(at.segment, 0))

    def _read(self, segment: int, start: int, end: int) -> bytes:
        data = self._disk.read(self._files.descriptor(segment), end - start, start)
        # The zeros after the last frame may be missing.
        return data.ljust(end - start, b"\0")

    def _last_record(self, segment: int, frame: int) -> Border:
        end, scanner = 0, self._files.scanner(segment, 0, 0, sealed=True) if segment else None
        while scanner is not None and frame:
            border = border_after(self._disk, self._files, segment, frame)
            header = None if border is None else border.header
            if (
                border is not None
                and header is not None
                and border.offset == (end or border.offset)
            ):
                if header.records:
                    return border
                end = frame
            before = scanner.last_before(frame, _START)
            frame = 0 if before is None else before[0]
        return Border()

    def _end_of_sealed(self, segment: int, following: int) -> Border:
        header = self._files.header(following) if following else None
        if header is not None and header.link.offset:
            border = border_after(self._disk, self._files, segment, header.link.offset)
            if border is not None and border.link == header.link:
                return border
        frames = hop(self._files, segment, _START, self._files.size(segment))
        border = border_after(
            self._disk, self._files, segment, max((offset for offset, _ in frames), default=0)
        )
        if border is None:
            raise LogDamaged(f"{segment_name(segment)} holds no whole frame")
        return border
