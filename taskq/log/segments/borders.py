"""A border of frames, by number and by content: what two copies of one log compare.

Numbers alone never decide. A directory that was copied back goes on in its old epoch until its next
start, and after a few jobs the lost branch and the new one may have the same sizes, segments and
lsns; only times and CRCs tell them apart. So a border carries the header of the frame before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.codec import LOST, NO_LINK, FrameHeader, Link, SegmentHeader

if TYPE_CHECKING:
    from taskq.log.format.frames import Frame

_HEAD = codec.FRAME_HEADER_SIZE


class Border(NamedTuple):
    """Mark a place to go on from, and what stands before it.

    Attributes:
        segment: first lsn of the segment; 0: nowhere.
        offset: behind a whole frame of it, or 0: nothing of the segment is there.
        frame: where that frame starts, 0 if there is none.
        stem: its header, as it stands in the file.
    """

    segment: int = 0
    offset: int = 0
    frame: int = 0
    stem: bytes = b""

    @property
    def header(self) -> FrameHeader | None:
        """Return what the stem says, whose CRC was checked by who read it, or is compared."""
        if len(self.stem) != _HEAD:
            return None
        _, size, count, _, _, first, epoch, time_ns, synced, body_crc, crc = (
            codec.FRAME_HEADER.unpack(self.stem)
        )
        return FrameHeader(size, count, first, epoch, time_ns, synced, body_crc, crc)

    @property
    def next_lsn(self) -> int:
        """Return the lsn behind the frame; the segment's own where there is none."""
        header = self.header
        return self.segment if header is None else header.next_lsn

    @property
    def link(self) -> Link:
        """Return how a segment names this as the end of the one before it."""
        header = self.header
        return NO_LINK if header is None else Link(self.frame, header.crc)

    def is_named_by(self, following: SegmentHeader) -> bool:
        """Return whether that segment names this as the end of the one before it."""
        return following.link == self.link

    def may_precede(self, following: SegmentHeader) -> bool:
        """Return whether that segment names no other end: none, but this one's time, or a loss."""
        header = self.header
        is_near = header is not None and following.created_ns == header.time_ns
        return following.link == LOST or (following.link == NO_LINK and is_near)

    def as_list(self) -> list[Any]:
        """Return the same for JSON."""
        return [self.segment, self.offset, self.frame, self.stem.hex()]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> Border:
        """Return what ``as_list`` made.

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
    def at_offset(cls, segment: int, offset: int, stem: bytes) -> Border:
        """Return the border at an offset, behind the frame with that header; b"": none.

        Raises:
            ValueError: no such frame ends there.
        """
        header = cls(segment, offset, 0, stem).header
        frame = 0 if header is None else offset - header.size
        return cls.from_list([segment, offset, frame, stem.hex()])

    @classmethod
    def behind(cls, segment: int, frame: Frame) -> Border:
        """Return the border behind a frame that was read."""
        return cls(segment, frame.end, frame.offset, frame.data[frame.at - _HEAD : frame.at])
