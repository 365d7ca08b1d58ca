"""A border of frames, by number and by content: what hub and device compare.

Numbers alone never decide. A directory that was copied back goes on in its old epoch until its next
start, and after a few jobs the lost branch and the new one may have the same sizes, segments and
lsns; only times and CRCs tell them apart. So a position carries the header of the frame before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq.log.format import codec

if TYPE_CHECKING:
    from taskq.engine import Disk, SegmentFiles

#: Where the first frame of a segment stands.
START: Final = codec.SEGMENT_HEADER.size
HEAD: Final = codec.FRAME_HEADER_SIZE


class Position(NamedTuple):
    """Where one may go on, and what stands before it.

    Attributes:
        segment: first lsn of the segment; 0: nowhere.
        offset: behind a whole frame of it, or 0: nothing of the segment is there.
        frame: where that frame starts, 0 if there is none.
        stem: its header, as it stands in the file.
    """

    segment: int
    offset: int = 0
    frame: int = 0
    stem: bytes = b""

    @property
    def header(self) -> codec.FrameHeader | None:
        """What the stem says; its CRC was checked by who read it, or is compared as it is."""
        if len(self.stem) != HEAD:
            return None
        _, size, count, _, _, first, epoch, time_ns, synced, body_crc, crc = (
            codec.FRAME_HEADER.unpack(self.stem)
        )
        return codec.FrameHeader(size, count, first, epoch, time_ns, synced, body_crc, crc)

    @property
    def next_lsn(self) -> int:
        """The lsn behind the frame; the segment's own where there is none."""
        header = self.header
        return self.segment if header is None else header.next_lsn

    @property
    def link(self) -> codec.Link:
        """Return how a segment names this as the end of the one before it."""
        header = self.header
        return codec.NO_LINK if header is None else codec.Link(self.frame, header.crc)

    def as_list(self) -> list[Any]:
        """Return the same for JSON."""
        return [self.segment, self.offset, self.frame, self.stem.hex()]

    @classmethod
    def from_list(cls, values: list[Any]) -> Position:
        """Return what ``as_list`` made.

        Raises:
            ValueError: it is no position.
        """
        segment, offset, frame, stem = values
        found = cls(int(segment), int(offset), int(frame), bytes.fromhex(stem))
        header = found.header
        fits = header is not None and found.offset == found.frame + header.size
        if not (fits if found.stem else found.offset == found.frame == 0):
            raise ValueError(f"{values!r:.200} is no position")
        return found


NOWHERE: Final = Position(0)


def position_behind(disk: Disk, files: SegmentFiles, segment: int, frame: int) -> Position | None:
    """Return the position behind the frame that starts there; None if there is none."""
    header = files.frame_header(segment, frame) if frame >= START else None
    if header is None:
        return None
    stem = disk.read(files.descriptor(segment), HEAD, frame)
    return Position(segment, frame + header.size, frame, stem)


def stands(disk: Disk, files: SegmentFiles, at: Position) -> bool:
    """Return whether these files have that very frame at that very place."""
    if at.segment not in files.lsns:
        return False
    header = at.header
    if header is None:
        return not at.offset
    descriptor = files.descriptor(at.segment)
    # The zeros behind a body say nothing: a loss of power may have taken them.
    is_there = disk.size(descriptor) >= at.frame + HEAD + header.body_size
    return is_there and disk.read(descriptor, HEAD, at.frame) == at.stem
