"""Find a cursor in the log: by lsn, by time, or by a reader's position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from taskq.core.errors import LogError, ReaderFellBehind, ReaderMismatch
from taskq.log.format import codec, frames, record
from taskq.log.segments.segments import Extent, SegmentFiles, hop

if TYPE_CHECKING:
    from taskq.log.read.readers import ReaderPosition
_START: Final = codec.SEGMENT_HEADER.size


def find_lsn(files: SegmentFiles, lsn: int, end: Extent) -> frames.Cursor:
    """Return a cursor at the frame with a record, or at the first frame after it."""
    segment = max((first for first in files.lsns if first <= lsn), default=files.lsns[0])
    cursor = frames.Cursor(segment, _START, segment)
    for offset, header in hop(files, segment, _START, _size(files, segment, end)):
        cursor.offset, cursor.next_lsn = offset, header.first_lsn
        if header.next_lsn > lsn:
            break
        cursor.offset, cursor.next_lsn = offset + header.size, header.next_lsn
    return cursor


def find_time(files: SegmentFiles, time_ns: int, end: Extent) -> frames.Cursor:
    lsns = [lsn for lsn in files.lsns if lsn <= end.segment]
    # A segment's header has the time of the last frame before it.
    first = next((n for n, lsn in enumerate(lsns) if created_ns(files, lsn) >= time_ns), len(lsns))
    for segment in lsns[max(first - 1, 0) :]:
        for offset, header in hop(files, segment, _START, _size(files, segment, end)):
            if header.time_ns >= time_ns:
                return frames.Cursor(segment, offset, header.first_lsn)
    return frames.Cursor(end.segment, end.offset, end.lsn)


def find_position(
    files: SegmentFiles, path: str, reader: str, position: ReaderPosition, end: Extent
) -> frames.Cursor:
    """Return a cursor at the frame with a reader's next record, or at its future place.

    The search hops from frame header to frame header and reads no records. It ends at a damaged
    header, and then the reader meets the damage.

    Raises:
        ReaderFellBehind: compaction removed it.
        ReaderMismatch: the last record that the reader read is no longer in the log.
    """
    oldest = files.lsns[0]
    if position.segment < oldest and position.lsn < oldest:
        if not follows(files, oldest, position.time_ns):
            raise ReaderFellBehind(path, reader, position.lsn, oldest)
        return frames.Cursor(oldest, _START, oldest)
    if not position.offset:
        return find_lsn(files, position.lsn, end)
    if position.lsn == oldest:
        return frames.Cursor(oldest, _START, oldest)
    places = [(position.segment, position.offset)] if position.segment in files.lsns else []
    # A recovery after a failed fsync moves frames unchanged to a segment of their own.
    before = find_lsn(files, position.lsn - 1, end)
    places.append((before.segment, before.offset))
    for segment, offset in places:
        size = _size(files, segment, end)
        header = next((head for _, head in hop(files, segment, offset, size)), None)
        if header is not None and _fits(position, header):
            if header.next_lsn > position.lsn:
                return frames.Cursor(segment, offset, header.first_lsn)
            return frames.Cursor(segment, offset + header.size, header.next_lsn)
    where = f"{frames.segment_name(position.segment)}, offset {position.offset}"
    raise ReaderMismatch(path, reader, position.lsn, f"the record it read last is not at {where}")


def follows(files: SegmentFiles, segment: int, time_ns: int) -> bool:
    return time_ns > 0 and created_ns(files, segment) == time_ns


def count_after(
    files: SegmentFiles, cursor: frames.Cursor, lsn: int, end: Extent
) -> tuple[int, int]:
    """Return (records, bytes) from a cursor and a record of its frame up to the end.

    Lsns are dense except at the start of an epoch, so most segments need not be read.
    """
    records = size = 0
    lsns = [first for first in files.lsns if cursor.segment <= first <= end.segment]
    for number, segment in enumerate(lsns):
        start = cursor.offset if segment == cursor.segment else _START
        stop = _size(files, segment, end)
        first = max(lsn, segment)
        if segment == end.segment:
            last = end.lsn
        elif _epoch(files, segment) == _epoch(files, lsns[number + 1]):
            last = lsns[number + 1]
        else:
            ends = [header.next_lsn for _, header in hop(files, segment, start, stop)]
            last = ends[-1] if ends else first
        records += max(last - first, 0)
        size += max(stop - start, 0)
    return records, size


def created_ns(files: SegmentFiles, segment: int) -> int:
    """Return the time of the last frame before a segment, 0 if its header cannot be read."""
    try:
        header = files.header(segment)
    except LogError:  # it was removed meanwhile
        return 0
    return header.created_ns if header is not None else 0


def read_record(files: SegmentFiles, lsn: int, end: Extent) -> bytes | None:
    if not files.lsns or not files.lsns[0] <= lsn < end.lsn:
        return None
    cursor = find_lsn(files, lsn, end)
    frame = _frame_at(files, cursor.segment, cursor.offset, _size(files, cursor.segment, end))
    if frame is not None:
        for number, at, length in record.places(frame):
            if number == lsn:
                return frame.data[at : at + length]
    return None


def _fits(position: ReaderPosition, header: codec.FrameHeader) -> bool:
    return (header.epoch, header.time_ns) == (position.epoch, position.time_ns) and (
        header.first_lsn < position.lsn <= header.next_lsn
    )


def _size(files: SegmentFiles, segment: int, end: Extent) -> int:
    return end.offset if segment == end.segment else files.size(segment)


def _epoch(files: SegmentFiles, segment: int) -> int:
    header = files.header(segment)
    return header.epoch if header is not None else 0


def find_latest(
    files: SegmentFiles, end: Extent, count: int, wanted: Callable[[int, bytes], bool]
) -> tuple[frames.Cursor, int]:
    """Return (cursor, lsn) from which the log has the latest ``count`` wanted records.

    The search reads backwards from the end, so a few records need few reads in a large log.

    Args:
        files: the log's, refreshed.
        end: of the log.
        count: of records; all records, if there are fewer.
        wanted: called with (lsn, record).
    """
    counted, cursor, lsn = 0, frames.Cursor(end.segment, end.offset, end.lsn), end.lsn
    for segment in reversed([first for first in files.lsns if first <= end.segment]):
        if counted >= count:
            break
        size = end.offset if segment == end.segment else files.size(segment)
        for offset in reversed(_offsets(files, segment, size)):
            if counted >= count:
                break
            frame = _frame_at(files, segment, offset, size)
            if frame is None:
                files.is_damaged = True
                continue
            data = frame.data
            for number, at, length in reversed(list(record.places(frame))):
                if counted < count and wanted(number, data[at : at + length]):
                    counted += 1
                    cursor = frames.Cursor(segment, offset, frame.header.first_lsn)
                    lsn = number
    return cursor, lsn


def _offsets(files: SegmentFiles, segment: int, size: int) -> list[int]:
    offsets: list[int] = []
    reached = codec.SEGMENT_HEADER.size
    for offset, header in hop(files, segment, reached, size):
        offsets.append(offset)
        reached = offset + header.size
    if reached < size:
        # Damage, with more frames after it.
        files.is_damaged = True
        offsets += _frames_after(files, segment, reached, size)
    return offsets


def _frames_after(files: SegmentFiles, segment: int, offset: int, size: int) -> Iterator[int]:
    for item in files.scanner(segment, size, segment, sealed=True).frames(offset):
        if not isinstance(item, frames.Gap):
            yield item.offset


def _frame_at(files: SegmentFiles, segment: int, offset: int, size: int) -> frames.Frame | None:
    header = files.frame_header(segment, offset)
    if header is None:
        return None
    end = min(offset + header.size, size)
    item = next(files.scanner(segment, end, segment, sealed=True).frames(offset), None)
    return None if item is None or isinstance(item, frames.Gap) else item
