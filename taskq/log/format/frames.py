"""Read a segment: its whole frames in order, and a verdict on all other bytes."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from taskq.core.errors import FormatError
from taskq.core.values import NamedTuple
from taskq.log.format import codec

if TYPE_CHECKING:
    from uuid import UUID

#: Bytes per read from the disk.
READ_SIZE: Final = 256 * 1024
_SUFFIX: Final = ".log"
_NAME_DIGITS: Final = 20
_HEAD: Final = codec.FRAME_HEADER_SIZE
_MAGIC: Final = codec.FRAME_MAGIC_BYTES
#: Bytes of the first read of a search for a header, and of the largest read.
_NEAR_BYTES: Final = 32 * 1024
_WINDOW_BYTES: Final = 1024 * 1024
#: Bytes that a search covers: over three damaged frames of the largest size.
_SEARCH_BYTES: Final = 3 * codec.FRAME_BODY_MAX
_HOP_BYTES: Final = 16 * 1024


class Frame(NamedTuple):
    """A whole frame: its records are ``data[at:at + header.body_size]``."""

    data: bytes
    at: int
    header: codec.FrameHeader
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.header.size

    @property
    def first_lsn(self) -> int:
        return self.header.first_lsn

    @property
    def next_lsn(self) -> int:
        return self.header.next_lsn

    @property
    def body(self) -> bytes:
        return bytes(self.data[self.at : self.at + self.header.body_size])


class Gap(NamedTuple):
    """Bytes from ``offset`` to ``end`` that are no whole frame.

    ``torn``: an incomplete write, see ``Scanner``; then ``end`` is the end of the file.
    """

    offset: int
    end: int
    first_lsn: int
    next_lsn: int
    torn: bool

    @property
    def size(self) -> int:
        """Return its size in bytes."""
        return self.end - self.offset


def whole(items: Iterable[tuple[int, Frame | Gap]]) -> Iterator[Frame]:
    """Yield the frames of a walk, without its gaps."""
    return (item for _, item in items if isinstance(item, Frame))


def segment_name(first_lsn: int) -> str:
    """Return the file name of a segment."""
    return f"{first_lsn:0{_NAME_DIGITS}d}{_SUFFIX}"


def segment_lsn(name: str) -> int | None:
    """Return the first lsn in a segment's file name, None for any other name."""
    stem = name.removesuffix(_SUFFIX)
    if stem == name or len(stem) != _NAME_DIGITS or not (stem.isascii() and stem.isdecimal()):
        return None
    lsn = int(stem)
    return lsn if 0 < lsn < codec.LSN_MAX else None


class Scanner:
    """Frames of one segment: whole frames from an offset on, or headers from any place.

    A header is checked by its CRC, whose seed fits only its own place. So a search finds frames
    backwards or forwards by magic and CRC, and one or two reads judge the end of a large segment.

    A bad frame without a whole frame after it is a torn tail: an incomplete write. A bad frame
    before whole frames is also a torn tail after a power loss, unless a later frame declares it
    synced. A disk may write pages in any order, and no caller has an answer for these frames. An
    answer for a later frame would have needed a sync of all earlier ones. Any other bad frame is
    damage, and the frames after it stay, since a frame is only appended to whole ones.

    Args:
        read: ``(count, offset) -> bytes``.
        seed: of the segment.
        size: bytes of the file to read at most.
        next_lsn: a frame before this lsn was seen already and is skipped.
        sealed: a later segment exists, so no frame here can be torn.
        in_order: no power was lost since, so a frame after a bad one proves that it was whole once.
        name: of the file, in errors.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        seed: int,
        size: int,
        next_lsn: int,
        *,
        sealed: bool,
        in_order: bool = False,
        name: str = "",
    ) -> None:
        self._read = read
        self._name = name
        self._seed = seed
        self._size = size
        self._next_lsn = next_lsn
        self._in_order = in_order
        #: offset before which no frame is a torn tail
        self._whole_until = size if sealed else 0

    @classmethod
    def of_segment(
        cls, read: Callable[[int, int], bytes], log_id: UUID, lsn: int, size: int, *, name: str
    ) -> Scanner:
        """Return a scanner of a whole segment, by its first lsn."""
        return cls(read, codec.segment_seed(log_id, lsn), size, lsn, sealed=False, name=name)

    def frames(self, offset: int, next_lsn: int = 0) -> Iterator[Frame | Gap]:
        """Yield the whole frames from ``offset`` on, and gaps between them; a torn gap is the last.

        ``next_lsn`` raises the scanner's own, if more frames were seen since.
        """
        self._next_lsn = max(self._next_lsn, next_lsn)
        data, base = b"", offset
        while offset < self._size:
            at = offset - base
            header = codec.decode_frame_header(data, at, self._seed, offset)
            end = at + codec.FRAME_HEADER_SIZE + (header.body_size if header else 0)
            if header is None or end > len(data):
                wanted = max(READ_SIZE, end - at)
                if offset != base or len(data) < min(wanted, self._size - offset):
                    base, data = offset, self._read(min(wanted, self._size - offset), offset)
                    at = 0
                    header = codec.decode_frame_header(data, 0, self._seed, offset)
                    end = codec.FRAME_HEADER_SIZE + (header.body_size if header else 0)
                    if header is not None and end > len(data) and end <= self._size - offset:
                        data = self._read(end, offset)
            frame = self._whole(data, at, header, offset)
            if frame is None:
                gap = self._gap(offset, header)
                yield gap
                if gap.torn:
                    return
                offset, self._next_lsn = gap.end, gap.next_lsn
                continue
            if frame.header.first_lsn >= self._next_lsn:
                yield frame
                self._next_lsn = frame.header.next_lsn
            offset = frame.end

    def segment_header(self, log_id: UUID, lsn: int) -> codec.SegmentHeader | None:
        """Return the segment's header, rebuilt from its name and first frame if damaged.

        None if the file does not begin like that segment.

        Raises:
            FormatError: a newer taskq wrote it.
        """
        start = codec.SEGMENT_HEADER.size
        data = self._read(start + _HEAD, 0)
        header = codec.decode_segment_header(data, self._name)
        if header is not None and (header.first_lsn, header.log_id) == (lsn, log_id.bytes):
            return header
        frame = self._header(data, start, start)
        if frame is None:
            return None
        return codec.SegmentHeader(lsn, frame.epoch, log_id.bytes, frame.time_ns)

    def header_at(self, offset: int) -> codec.FrameHeader | None:
        """Return the header of the frame at ``offset``, None if it is not whole."""
        return self._header(self._read(_HEAD, offset), 0, offset)

    def hop(self, offset: int) -> Iterator[tuple[int, codec.FrameHeader]]:
        """Yield (offset, header) of each frame, up to the first bytes that are no whole header."""
        data, base = b"", offset
        while offset + _HEAD <= self._size:
            at = offset - base
            if at + _HEAD > len(data):
                data, base, at = self._read(_HOP_BYTES, offset), offset, 0
            header = self._header(data, at, offset)
            if header is None:
                return
            yield offset, header
            offset += header.size

    def last_before(self, offset: int, start: int) -> tuple[int, codec.FrameHeader] | None:
        """Return (offset, header) of the last frame starting in ``start`` to below ``offset``."""
        high, width = offset, _NEAR_BYTES
        lowest = max(start, offset - _SEARCH_BYTES)
        while high > lowest:
            low = max(lowest, high - width) & ~7
            data = self._read(high - low + _HEAD, low)
            at = data.rfind(_MAGIC, 0, high - low + 3)
            while at >= 0:
                header = self._header(data, at, low + at) if not (low + at) % 8 else None
                if header is not None and low + at >= start:
                    return low + at, header
                at = data.rfind(_MAGIC, 0, at + 3)
            high, width = low, min(width * 4, _WINDOW_BYTES)
        return None

    def first_from(self, offset: int, end: int) -> tuple[int, codec.FrameHeader] | None:
        """Return (offset, header) of the first frame that starts in ``offset`` to below ``end``."""
        width, end = _NEAR_BYTES, min(end, offset + _SEARCH_BYTES)
        while offset < end:
            header = next(self._headers(offset, min(end, offset + width)), None)
            if header is not None:
                return header
            offset, width = offset + width, min(width * 4, _WINDOW_BYTES)
        return None

    def _headers(self, low: int, high: int) -> Iterator[tuple[int, codec.FrameHeader]]:
        """Yield (offset, header) of frames starting in ``low`` to below ``high``, by one read."""
        data = self._read(high - low + _HEAD, low)
        at = data.find(_MAGIC)
        while 0 <= at < high - low:
            if not (low + at) % 8:
                header = self._header(data, at, low + at)
                if header is not None:
                    yield low + at, header
            at = data.find(_MAGIC, at + 1)

    def _header(self, data: bytes, at: int, offset: int) -> codec.FrameHeader | None:
        try:
            return codec.decode_frame_header(data, at, self._seed, offset)
        except FormatError as error:
            raise FormatError(f"{self._name}: {error}") from error

    def _whole(
        self, data: bytes, at: int, header: codec.FrameHeader | None, offset: int
    ) -> Frame | None:
        if header is None:
            return None
        start = at + codec.FRAME_HEADER_SIZE
        body = memoryview(data)[start : start + header.body_size]
        if not codec.body_is_whole(body, header, self._seed, offset):
            return None
        return Frame(data, start, header, offset)

    def _gap(self, offset: int, own: codec.FrameHeader | None) -> Gap:
        """Classify the bad bytes at ``offset`` by the frames after them.

        The gap ends after its own header's frame, or else at the next whole header: a bad frame
        after it is another gap.
        """
        first_lsn = self._next_lsn
        resume, next_lsn = (offset + own.size, own.next_lsn) if own is not None else (0, 0)
        is_damage = offset < self._whole_until
        for at, header in () if resume and is_damage else self._candidates(offset + 1):
            if not resume:
                resume, next_lsn = at, header.first_lsn
            if not is_damage and (self._in_order or header.synced_through > first_lsn):
                body = self._read(header.body_size, at + codec.FRAME_HEADER_SIZE)
                is_damage = codec.body_is_whole(body, header, self._seed, at)
                # Kept, so that a series of bad frames needs one search.
                self._whole_until = at if is_damage else 0
            if is_damage:
                break
        if not is_damage:
            return Gap(offset, self._size, first_lsn, first_lsn, torn=True)
        resume = min(resume or self._size, self._size)
        return Gap(offset, resume, first_lsn, max(next_lsn, first_lsn), torn=False)

    def _candidates(self, offset: int) -> Iterator[tuple[int, codec.FrameHeader]]:
        offset = (offset + 7) & ~7
        while offset < self._size:
            yield from self._headers(offset, offset + READ_SIZE)
            offset += READ_SIZE


# Positions in the log.

#: Most remembered positions, which locate a recent job without a walk.
_MARKS_MAX: Final = 8_192
_MARK_BYTES: Final = 16 * 1024


class Cursor:
    """Position of a reader: an offset in a segment, and the lsn expected there.

    Attributes:
        frame: offset of the whole frame before the position; -1 if unknown or missing.
    """

    __slots__ = ("frame", "next_lsn", "offset", "segment")

    def __init__(self, segment: int = 0, offset: int = 0, next_lsn: int = 0) -> None:
        self.segment: int = segment
        self.offset: int = offset
        self.next_lsn: int = next_lsn
        self.frame: int = -1


class Marks:
    """Starts of some frames that this process wrote, one per 16 KiB.

    Kept in columns of 24 bytes a mark; tuples took a megabyte in a busy worker.
    """

    __slots__ = ("_lsns", "_offsets", "_segments", "due_offset")

    def __init__(self) -> None:
        #: offset from which the next frame gets a mark
        self.due_offset: int = 0
        self._lsns, self._segments, self._offsets = array("Q"), array("Q"), array("Q")

    def note(self, first_lsn: int, segment: int, offset: int) -> None:
        lsns, segments, offsets = self._lsns, self._segments, self._offsets
        self.due_offset = offset + _MARK_BYTES
        if len(lsns) >= _MARKS_MAX:
            for column in (lsns, segments, offsets):
                del column[: _MARKS_MAX // 2]
        lsns.append(first_lsn)
        segments.append(segment)
        offsets.append(offset)

    def before(self, lsn: int) -> Cursor | None:
        """Return the nearest mark at or before a record; None if all marks are later."""
        number = bisect_right(self._lsns, lsn) - 1
        if number < 0:
            return None
        return Cursor(self._segments[number], self._offsets[number], self._lsns[number])

    def clear(self) -> None:
        self.due_offset = 0
        for column in (self._lsns, self._segments, self._offsets):
            del column[:]
