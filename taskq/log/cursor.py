"""Places in the log."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

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
        """The nearest one at or before a record; None if the record is older than all."""
        number = bisect_right(self._lsns, lsn) - 1
        if number < 0:
            return None
        return Cursor(self._segments[number], self._offsets[number], self._lsns[number])

    def clear(self) -> None:
        """Forget them: the files were changed."""
        for column in (self._lsns, self._segments, self._offsets):
            del column[:]
