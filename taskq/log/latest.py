"""The end of the log: where its latest records begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.log.codec import SEGMENT_HEADER
from taskq.log.cursor import Cursor
from taskq.log.locate import hop
from taskq.log.logrecord import places
from taskq.log.segment import Gap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskq.log.files import SegmentFiles
    from taskq.log.locate import Extent
    from taskq.log.segment import Frame


def find_latest(
    files: SegmentFiles, end: Extent, count: int, wanted: Callable[[int, bytes], bool]
) -> tuple[Cursor, int]:
    """(cursor, lsn): from there on the log holds the latest ``count`` records that are wanted.

    Read from its end backwards, so that a few take little of even a large log.

    Args:
        files: the log's, refreshed.
        end: where it ends.
        count: of records; all there are, if they are fewer.
        wanted: told (lsn, record).
    """
    found, cursor, lsn = 0, Cursor(end.segment, end.offset, end.lsn), end.lsn
    for segment in reversed([one for one in files.lsns if one <= end.segment]):
        size = end.offset if segment == end.segment else files.size(segment)
        for offset in reversed(_offsets(files, segment, size)):
            if found >= count:
                return cursor, lsn
            frame = _frame_at(files, segment, offset, size)
            if frame is None:
                continue
            data = frame.data
            for number, at, length in reversed(list(places(frame))):
                if found < count and wanted(number, data[at : at + length]):
                    found += 1
                    cursor = Cursor(segment, offset, frame.header.first_lsn)
                    lsn = number
    return cursor, lsn


def _offsets(files: SegmentFiles, segment: int, size: int) -> list[int]:
    """Where the frames of a segment start."""
    offsets: list[int] = []
    reached = SEGMENT_HEADER.size
    for offset, header in hop(files, segment, reached, size):
        offsets.append(offset)
        reached = offset + header.size
    if reached < size:
        # There is damage, and more behind it.
        offsets += _behind(files, segment, reached, size)
    return offsets


def _behind(files: SegmentFiles, segment: int, offset: int, size: int) -> Iterator[int]:
    for item in files.scanner(segment, size, segment, sealed=True).frames(offset):
        if not isinstance(item, Gap):
            yield item.offset


def _frame_at(files: SegmentFiles, segment: int, offset: int, size: int) -> Frame | None:
    """The frame that starts there, None if it is damaged."""
    header = next((one for _, one in hop(files, segment, offset, size)), None)
    if header is None:
        return None
    end = min(offset + header.size, size)
    item = next(files.scanner(segment, end, segment, sealed=True).frames(offset), None)
    return None if item is None or isinstance(item, Gap) else item
