"""A log as who sends it elsewhere reads it: whole frames, never beyond what is durable."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from taskq.core.errors import LogDamaged, LogError, LogFailed
from taskq.log.format import codec
from taskq.log.format.codec import NO_LINK
from taskq.log.format.frames import segment_name
from taskq.log.journal.lock import find_hint
from taskq.log.journal.recovery import is_marked_failed, walk_to_end
from taskq.log.journal.replica import border_behind, stands
from taskq.log.machine.ports import Disk
from taskq.log.segments.borders import Border
from taskq.log.segments.identity import read_identity
from taskq.log.segments.segments import SegmentFiles, hop

_HEAD: Final = codec.FRAME_HEADER_SIZE
_START: Final = codec.SEGMENT_HEADER.size

_HASHED_BYTES: Final = 1024 * 1024
#: What a frame begins with: its magic, and the size of its body.
_SIZE: Final = struct.Struct("<II")


class DurableLog:
    """The durable part of a log as it stands now. Close it.

    A sync point that ends the log is left out until something follows it: it says nothing new, and
    a recovery may take it back.

    Attributes:
        identity: of the log.
        next_lsn: of the next record, as far as this look goes.
        end: where it ends; nowhere if it holds nothing.
        segments: first lsns of those that hold something, rising.
        pin: all below this lsn was safe at the hub.

    Raises:
        LogFailed: an fsync failed, and the log was not opened since: frames are about to be moved.
        LogError: it cannot be read.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        identity = read_identity(disk, path)
        if identity is None:
            raise LogError(f"{path} is not a task log")
        self.identity, self._disk, self._path = identity, disk, path
        self.pin = 0
        #: sealed segments and their ends, by the SHA-256 that a copy knows them by
        self._offered: dict[str, tuple[int, int]] = {}
        self._files = SegmentFiles(disk, path, writable=False)
        self._files.log_id = identity.log_id
        #: the last one, which is written to, and the lsn of the next record
        self._segment = self.next_lsn = 0
        try:
            self.end, self.segments = self._look()
        except Exception:
            self.close()
            raise

    def _look(self) -> tuple[Border, list[int]]:
        files, last_frame = self._files, 0
        hint, never_had_one, home = find_hint(self._disk, self._path, self._disk.boot_id())
        files.refresh()
        usable = (lsn for lsn in reversed(files.lsns) if files.header(lsn) is not None)
        if last := next(usable, 0):
            in_order = never_had_one if hint is None else hint.boot == home[0]
            known, walk = walk_to_end(
                files, last, None if hint is None or hint.failed else hint, home, in_order=in_order
            )
            self._segment, self.next_lsn = last, walk.next_lsn
            last_frame = walk.last_offset or known.last_frame
            # Whole frames that were seen before this are durable behind it, whoever wrote them.
            self._disk.sync(files.descriptor(last))
        if is_marked_failed(self._disk, self._path):
            raise LogFailed(self._path, "an fsync failed in one of its processes")
        older = [
            lsn
            for lsn in files.lsns
            if lsn < last and files.size(lsn) > _START and files.header(lsn) is not None
        ]
        end = self._last_record(last, last_frame)
        if end.segment:
            return end, [*older, last]
        return self._end_of_sealed(older[-1], last) if older else end, older

    def close(self) -> None:
        """Give the files back."""
        self._files.forget()

    # -- what the verdict asks --------------------------------------------------------------------

    def stands(self, at: Border) -> bool:
        """Return whether that frame stands at that place."""
        return stands(self._disk, self._files, at)

    def follows(self, at: Border) -> bool:
        """Return whether the log begins right behind it: its oldest segment names that end."""
        if not self.begins_behind(at) or not self.segments:
            return False
        header = self._files.header(self.segments[0])
        return header is not None and header.link == at.link != NO_LINK

    def begins_behind(self, at: Border) -> bool:
        """Return whether the log has no segment that old."""
        return not self.segments or self.segments[0] > at.segment

    def begins_before(self, segment: int) -> bool:
        """Return whether the log has an older segment."""
        return bool(self.segments) and self.segments[0] < segment

    def is_moved(self, at: Border) -> bool:
        """Return whether the same frame stands in a later segment, its body equal by CRC."""
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

    # -- what is sent -----------------------------------------------------------------------------

    def next_segment(self, segment: int) -> int:
        """Return the segment behind one, 0 if there is none."""
        return next((lsn for lsn in self.segments if lsn > segment), 0)

    def is_sealed(self, segment: int) -> bool:
        """Return whether nothing is written to it any more."""
        return segment < self._segment

    def end_of(self, segment: int) -> Border:
        """Return where a segment ends.

        Raises:
            LogDamaged: it holds no whole frame.
        """
        if segment == self.end.segment:
            return self.end
        return self._end_of_sealed(segment, self.next_segment(segment))

    def borders(self, segment: int) -> list[Border]:
        """Return the positions behind each frame of a segment, rising."""
        end = self.end_of(segment).offset
        places = (
            border_behind(self._disk, self._files, segment, offset)
            for offset, _ in hop(self._files, segment, _START, end)
        )
        return [place for place in places if place is not None and place.offset <= end]

    def part(self, behind: Border, bytes_max: int) -> tuple[bytes, Border]:
        """The frames behind a position, and where they end: so many bytes, but at least one frame.

        Raises:
            LogDamaged: the next frame is not whole.
        """
        segment, first = behind.segment, max(behind.offset, _START)
        end = min(self.end_of(segment).offset, max(behind.offset + bytes_max, first))
        data, last, at = self._read(segment, behind.offset, end), -1, first - behind.offset
        unpack, end = _SIZE.unpack_from, len(data)
        while at + _HEAD <= end:
            # By their sizes alone: the hub checks each, and the last one is checked below.
            magic, size = unpack(data, at)
            following = (at + _HEAD + size + 7) & ~7  # as frame_size has it
            if magic != codec.FRAME_MAGIC or following > end:
                break
            last, at = at, following
        if last < 0:  # one that is larger
            position = border_behind(self._disk, self._files, segment, first)
        else:
            position = border_behind(self._disk, self._files, segment, behind.offset + last)
            if position is None and last > first - behind.offset:
                return self.part(behind, last)
        if position is None:
            raise LogDamaged(
                f"{self._files.file_path(segment)}: behind offset {behind.offset} nothing reads "
                f"back, so it cannot be sent"
            )
        if last < 0:
            return self._read(segment, behind.offset, position.offset), position
        return data[: position.offset - behind.offset], position

    def offered(self, lacks: Iterable[tuple[int, int, str]]) -> list[str]:
        """Return the SHA-256 of each sealed segment that is here; ``segment_part`` reads them.

        ``lacks`` are (segment, bytes, SHA-256).
        """
        for segment, size, name in lacks:
            is_here = segment in self.segments and self.is_sealed(segment)
            if is_here and self.end_of(segment).offset == size:
                self._offered[name] = segment, size
        return list(self._offered)

    def segment_part(self, name: str, offset: int, bytes_max: int) -> tuple[bytes, bool]:
        """Return bytes of an offered segment, and whether it ends with them."""
        segment, size = self._offered[name]
        data = self._read(segment, offset, min(offset + bytes_max, size))
        return data, offset + len(data) >= size

    def bytes_behind(self, at: Border) -> int:
        """Return bytes of the log behind a position of it."""
        ends = {lsn: self._files.size(lsn) for lsn in self.segments if lsn >= at.segment}
        if self.end.segment in ends:
            ends[self.end.segment] = self.end.offset
        return sum(ends.values()) - min(at.offset, ends.get(at.segment, 0))

    def digest(self, end: Border) -> bytes:
        """Return the SHA-256 of a segment up to there."""
        import hashlib  # noqa: PLC0415 - it brings OpenSSL along, and few logs are copied

        hashed = hashlib.sha256()
        for offset in range(0, end.offset, _HASHED_BYTES):
            hashed.update(self._read(end.segment, offset, min(offset + _HASHED_BYTES, end.offset)))
        return hashed.digest()

    def _read(self, segment: int, start: int, end: int) -> bytes:
        data = self._disk.read(self._files.descriptor(segment), end - start, start)
        # The zeros behind the last frame are no part of it, and may be missing.
        return data.ljust(end - start, b"\0")

    def _last_record(self, segment: int, frame: int) -> Border:
        end, scanner = 0, self._files.scanner(segment, 0, 0, sealed=True) if segment else None
        while scanner is not None and frame:
            border = border_behind(self._disk, self._files, segment, frame)
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
            border = border_behind(self._disk, self._files, segment, header.link.offset)
            if border is not None and border.link == header.link:
                return border
        frames = hop(self._files, segment, _START, self._files.size(segment))
        border = border_behind(
            self._disk, self._files, segment, max((offset for offset, _ in frames), default=0)
        )
        if border is None:
            raise LogDamaged(f"{segment_name(segment)} holds no whole frame")
        return border
