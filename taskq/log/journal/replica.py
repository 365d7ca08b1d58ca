"""The segments of a log as a copy of it has them: they grow by whole frames that came from there.

The copy's own caller decides what may come; here stands how bytes become frames on a disk.
"""

from __future__ import annotations

import binascii
import hashlib
import struct
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from taskq.core.errors import FormatError
from taskq.log.config import LSN_SKIP
from taskq.log.format import codec
from taskq.log.format.codec import SegmentHeader
from taskq.log.format.frames import Frame, Gap, segment_name
from taskq.log.journal.chain import compactions
from taskq.log.journal.recovery import failed_lsn, write_once_more
from taskq.log.machine.ports import Disk, replace_file, write_all
from taskq.log.segments.borders import Border
from taskq.log.segments.identity import FILE
from taskq.log.segments.segments import SegmentFiles, sweep_gone

_HEAD: Final = codec.FRAME_HEADER_SIZE
_START: Final = codec.SEGMENT_HEADER.size
_PIECE_BYTES: Final = 1024 * 1024
_LITTLE_BYTES: Final = 4_096
#: Of a frame's header what is looked at to believe it: all but what is reserved, and its times.
_CHECKED: Final = struct.Struct("<IIIH2xQQ16xII")
_OFFSET: Final = struct.Struct("<Q")


class Replica(SegmentFiles):
    """The segments of one log for who compares, copies, and knows nothing of jobs.

    Args:
        disk: of this machine.
        path: of the directory.
        log_id: of the log.
        writable: whether it may grow here.
    """

    #: the file that names the log, and the folder of its segments
    IDENTITY = FILE
    LOG = "log"
    #: bytes before the first frame of a segment, and of the largest body of one
    START = _START
    BODY_BYTES_MAX = codec.FRAME_BODY_MAX
    #: bytes of the smallest record, and lsns that a new epoch leaves out
    RECORD_BYTES_MIN = codec.PREFIX.size
    LSN_SKIP = LSN_SKIP

    def __init__(self, disk: Disk, path: str, log_id: UUID, *, writable: bool = False) -> None:
        super().__init__(disk, path, writable=writable)
        self.log_id = log_id
        self.refresh()

    # -- what stands there ------------------------------------------------------------------------

    def stands(self, at: Border) -> bool:
        """Return whether that very frame stands at that very place."""
        return stands(self._disk, self, at)

    def frames_of(self, segment: int) -> Iterator[Frame]:
        """Yield the whole frames of a segment."""
        scanner = self.scanner(segment, self.size(segment), segment, sealed=False)
        return (item for item in scanner.frames(_START) if not isinstance(item, Gap))

    def frames_behind(self, at: Border) -> Iterator[tuple[Border, Frame]]:
        """Yield the whole frames behind a border, or all, each with the border behind it."""
        next_lsn, offset = at.next_lsn, max(at.offset, _START)
        for segment in [lsn for lsn in self.lsns if lsn >= at.segment]:
            scanner = self.scanner(segment, self.size(segment), next_lsn, sealed=True)
            for item in scanner.frames(offset):
                if isinstance(item, Gap):
                    next_lsn = item.next_lsn
                    continue
                next_lsn = item.header.next_lsn
                if not item.header.is_sync_point:
                    yield Border.behind(segment, item), item
            offset = _START

    def digest(self, end: Border) -> str:
        """Return the SHA-256 of a segment up to there, in hex."""
        return self.sha256(self._disk, self.descriptor(end.segment), end.offset)

    @staticmethod
    def sha256(disk: Disk, descriptor: int, size: int) -> str:
        """Return the SHA-256 of a file's beginning, in hex."""
        digest = hashlib.sha256()
        for at in range(0, size, _PIECE_BYTES):
            digest.update(disk.read(descriptor, min(_PIECE_BYTES, size - at), at))
        return digest.hexdigest()

    @staticmethod
    def failed_lsn(disk: Disk, path: str) -> int | None:
        """Return what was on disk for sure when an fsync failed; None: it is not marked so.

        Frames that nothing declares synced are about to be moved then.
        """
        return failed_lsn(disk, path)

    def compacted_below(self, segment: int) -> int:
        """Return what the newest COMPACTED record of a segment says, 0 if it has none."""
        floors = (below for frame in self.frames_of(segment) for _, below in compactions(frame))
        return max(floors, default=0)

    # -- growing ----------------------------------------------------------------------------------

    def secured(self, segment: int, known: Border) -> Border:
        """Return where a segment ends, once all that does not read back is cut off.

        ``known`` stands there, and all before it was on disk.
        """
        disk, size, end = self._disk, self.size(segment), known
        scanner = self.scanner(segment, size, max(known.next_lsn, segment), sealed=False)
        for item in scanner.frames(max(known.offset, _START)):
            if isinstance(item, Gap):
                break
            end = Border.behind(segment, item)
        descriptor = self.descriptor(segment)
        if size > end.offset:
            disk.truncate(descriptor, end.offset)
        elif size < end.offset:
            write_all(disk, descriptor, bytes(end.offset - size), size)
        # A failed fsync leaves pages that read back and are written by nobody.
        write_once_more(disk, descriptor, known.offset, end.offset)
        disk.sync(descriptor)
        return end

    def header_in(self, segment: int, data: bytes) -> SegmentHeader | None:
        """Return the header that a segment of this log is to begin with; None if it is no such."""
        try:
            header = codec.decode_segment_header(data, segment_name(segment))
        except FormatError:
            return None
        if header is None or (header.first_lsn, header.log_id) != (segment, self.log_id.bytes):
            return None
        return header

    def whole(self, data: bytes, at: int, behind: Border, epoch: int) -> tuple[Border, bool]:
        """Return where the whole frames that begin there end, and whether what follows may be one.

        One loop and no object a frame: a backlog of small ones is as fast as this is.

        Args:
            data: what is to stand behind a border.
            at: where in it the first of them begins.
            behind: that border.
            epoch: of the segment.
        """
        unpack, pack, view = _CHECKED.unpack_from, _OFFSET.pack, memoryview(data)
        crc32 = binascii.crc32  # the same as zlib's, and a quarter faster with what is small
        base, next_lsn, seed = behind.offset, behind.next_lsn, self.seed(behind.segment)
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
            # In one call, which lets others run meanwhile; the codec's own keeps the GIL. What is
            # small is copied faster than it is viewed.
            part = data[body:stop] if size < _LITTLE_BYTES else view[body:stop]
            is_well = crc32(part, place) == body_crc
            following = (stop + 7) & ~7
            if not is_well or following > end:
                break
            next_lsn, last, at = first + count, at, following
        if last < 0:
            return behind, is_well
        stem = data[last : last + _HEAD]
        return Border(behind.segment, base + at, base + last, stem), is_well

    def add(self, data: bytes, behind: Border, *, syncs: bool = True) -> None:
        """Write what stands behind a border, durably; a new segment gets its name with it.

        Without ``syncs`` what goes into a segment that is there is on disk behind ``sync``.
        """
        path = self.file_path(behind.segment)
        if behind.offset:
            descriptor = self.descriptor(behind.segment)
            write_all(self._disk, descriptor, data, behind.offset)
            if syncs:
                self._disk.sync(descriptor)
        else:
            replace_file(self._disk, path, data)
            self.refresh()

    def sync(self, segment: int) -> None:
        """Have all of a segment be on disk."""
        self._disk.sync(self.descriptor(segment))

    def let_go(self, segment: int) -> None:
        """Take a segment out of the copy, and remove its file."""
        self.remove(segment)
        sweep_gone(self._disk, f"{self.path}/log")
        self._disk.sync_directory(f"{self.path}/log")


def stands(disk: Disk, files: SegmentFiles, at: Border) -> bool:
    if at.segment not in files.lsns:
        return False
    header = at.header
    if header is None:
        return not at.offset
    descriptor = files.descriptor(at.segment)
    # The zeros behind a body say nothing: a loss of power may have taken them.
    is_there = disk.size(descriptor) >= at.frame + _HEAD + header.body_size
    return is_there and disk.read(descriptor, _HEAD, at.frame) == at.stem


def border_behind(disk: Disk, files: SegmentFiles, segment: int, frame: int) -> Border | None:
    header = files.frame_header(segment, frame) if frame >= _START else None
    if header is None:
        return None
    stem = disk.read(files.descriptor(segment), _HEAD, frame)
    return Border(segment, frame + header.size, frame, stem)
