"""Places in the log."""

from __future__ import annotations

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
    """Where some of the frames start that this process wrote, one in every 16 KiB."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: list[tuple[int, int, int]] = []

    def note(self, first_lsn: int, segment: int, offset: int) -> None:
        """A frame starts here."""
        marks = self._marks
        if marks and marks[-1][1] == segment and offset - marks[-1][2] < _MARK_BYTES:
            return
        if len(marks) >= _MARKS_MAX:
            del marks[: _MARKS_MAX // 2]
        marks.append((first_lsn, segment, offset))

    def before(self, lsn: int) -> Cursor | None:
        """The nearest one at or before a record; None if the record is older than all."""
        number = bisect_right(self._marks, lsn, key=lambda mark: mark[0]) - 1
        if number < 0:
            return None
        first_lsn, segment, offset = self._marks[number]
        return Cursor(segment, offset, first_lsn)

    def clear(self) -> None:
        """Forget them: the files were changed."""
        self._marks.clear()
