"""Reading a segment: whole frames in order, and a verdict on whatever is not one.

A bad frame with no whole frame behind it is a torn tail: a write that was cut short. So is one with
whole frames behind it after a loss of power, unless one of those declares it synced: a disk may
write pages in any order, nobody was promised any of these frames, and whoever was promised one
behind them was promised all before it. Any other bad frame is damage, and what stands behind it
stays: a frame is only written behind whole ones. A frame is looked for behind a bad one by its
magic and its header's CRC, whose seed fits only its own place.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from taskq.core.values import NamedTuple
from taskq.log.format import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Bytes asked of the disk at a time.
READ_SIZE: Final = 256 * 1024
_SUFFIX: Final = ".log"
_NAME_DIGITS: Final = 20


class Frame(NamedTuple):
    """A whole frame: its records are ``data[at:at + header.body_size]``."""

    data: bytes
    at: int
    header: codec.FrameHeader
    offset: int

    @property
    def end(self) -> int:
        """Offset behind the frame."""
        return self.offset + self.header.size


class Gap(NamedTuple):
    """Bytes from ``offset`` to ``resume`` that are no whole frame.

    ``torn``: a write that was cut short, see above; ``resume`` is the end of the file then.
    """

    offset: int
    resume: int
    first_lsn: int
    next_lsn: int
    torn: bool


def segment_name(first_lsn: int) -> str:
    """File name of a segment."""
    return f"{first_lsn:0{_NAME_DIGITS}d}{_SUFFIX}"


def segment_lsn(name: str) -> int | None:
    """Return the first lsn that a file name says, None if it is no segment's."""
    stem = name.removesuffix(_SUFFIX)
    if stem == name or len(stem) != _NAME_DIGITS or not (stem.isascii() and stem.isdecimal()):
        return None
    lsn = int(stem)
    return lsn if 0 < lsn < codec.LSN_MAX else None


class Scanner:
    """The frames of one segment from an offset on.

    Args:
        read: ``(count, offset) -> bytes``.
        seed: of the segment.
        size: bytes of the file that may be looked at.
        next_lsn: a frame before this lsn was seen already and is passed over.
        sealed: a later segment exists, so nothing here can be torn.
        in_order: no power was lost since: what stands behind a bad frame shows it was whole once.
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
    ) -> None:
        self._read = read
        self._seed = seed
        self._size = size
        self._next_lsn = next_lsn
        self._in_order = in_order
        #: nothing before it is a torn tail
        self._whole_until = size if sealed else 0

    def frames(self, offset: int) -> Iterator[Frame | Gap]:
        """Every whole frame from ``offset`` on, and each gap in its place; a torn one ends it."""
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
                offset, self._next_lsn = gap.resume, gap.next_lsn
                continue
            if frame.header.first_lsn >= self._next_lsn:
                yield frame
                self._next_lsn = frame.header.next_lsn
            offset = frame.end

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
        """Return what the bad bytes at ``offset`` are, from the frames that stand behind them.

        It ends where its own header says, or else at the next whole header: a bad frame behind it
        is another gap.
        """
        first_lsn = self._next_lsn
        resume, next_lsn = (offset + own.size, own.next_lsn) if own is not None else (0, 0)
        is_damage = offset < self._whole_until
        for header, found in () if resume and is_damage else self._candidates(offset + 1):
            if not resume:
                resume, next_lsn = found, header.first_lsn
            if not is_damage and (self._in_order or header.synced_through > first_lsn):
                body = self._read(header.body_size, found + codec.FRAME_HEADER_SIZE)
                is_damage = codec.body_is_whole(body, header, self._seed, found)
                # Not looked for again from each of many bad frames.
                self._whole_until = found if is_damage else 0
            if is_damage:
                break
        if not is_damage:
            return Gap(offset, self._size, first_lsn, first_lsn, torn=True)
        resume = min(resume or self._size, self._size)
        return Gap(offset, resume, first_lsn, max(next_lsn, first_lsn), torn=False)

    def _candidates(self, offset: int) -> Iterator[tuple[codec.FrameHeader, int]]:
        offset = (offset + 7) & ~7
        while offset < self._size:
            window = self._read(READ_SIZE + codec.FRAME_HEADER_SIZE, offset)
            at = window.find(codec.FRAME_MAGIC_BYTES)
            while 0 <= at < READ_SIZE:
                if not (offset + at) % 8:
                    header = codec.decode_frame_header(window, at, self._seed, offset + at)
                    if header is not None:
                        yield header, offset + at
                at = window.find(codec.FRAME_MAGIC_BYTES, at + 1)
            offset += READ_SIZE


# Places in the log.

#: Places that are remembered, so that a recent job is found without a walk.
_MARKS_MAX: Final = 8_192
_MARK_BYTES: Final = 16 * 1024


class Cursor:
    """How far a reader of the log has come: an offset in a segment, and the lsn expected there.

    Attributes:
        frame: offset of the whole frame that ends there; -1 if there is none or it is not known.
    """

    __slots__ = ("frame", "next_lsn", "offset", "segment")

    def __init__(self, segment: int = 0, offset: int = 0, next_lsn: int = 0) -> None:
        self.segment = segment
        self.offset = offset
        self.next_lsn = next_lsn
        self.frame = -1


class Marks:
    """Where some of the frames start that this process wrote, one in every 16 KiB.

    Kept in columns of 24 bytes a mark; as tuples they were a megabyte of a worker that ran many.
    """

    __slots__ = ("_lsns", "_offsets", "_segments")

    def __init__(self) -> None:
        self._lsns, self._segments, self._offsets = array("Q"), array("Q"), array("Q")

    def note(self, first_lsn: int, segment: int, offset: int) -> None:
        """A frame starts here."""
        lsns, segments, offsets = self._lsns, self._segments, self._offsets
        if lsns and segments[-1] == segment and offset - offsets[-1] < _MARK_BYTES:
            return
        if len(lsns) >= _MARKS_MAX:
            for column in (lsns, segments, offsets):
                del column[: _MARKS_MAX // 2]
        lsns.append(first_lsn)
        segments.append(segment)
        offsets.append(offset)

    def before(self, lsn: int) -> Cursor | None:
        """Return the nearest one at or before a record; None if the record is older than all."""
        number = bisect_right(self._lsns, lsn) - 1
        if number < 0:
            return None
        return Cursor(self._segments[number], self._offsets[number], self._lsns[number])

    def clear(self) -> None:
        """Forget them: the files were changed."""
        for column in (self._lsns, self._segments, self._offsets):
            del column[:]
