"""A few places of a segment, from which every other record is a short walk away."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.log.columns import packed, view

if TYPE_CHECKING:
    from collections.abc import Sequence

#: About so many bytes of segment lie between two entries.
SPACING_BYTES: Final = 4_096
#: Set in the offset of a frame that is damaged: its record stands alone, by its own CRC.
_ALONE: Final = 1 << 31
#: Bytes of an entry: lsn u64, time i64, offset of the record u32, offset of its frame u32.
ENTRY_SIZE: Final = 24


class Entry(NamedTuple):
    """A record, and the frame that holds it: offsets in the segment."""

    lsn: int
    #: the highest time of a frame up to this one
    time_ns: int
    offset: int
    frame: int
    #: the frame is damaged, and this record was salvaged from it
    alone: bool


class Entries:
    """Entries in the order of the log, in columns, as a page of a file has them.

    Times are running maxima, so that they rise although the clock may be set back.
    """

    __slots__ = ("_frames", "_lsns", "_offsets", "_times")

    def __init__(
        self,
        lsns: Sequence[int],
        times: Sequence[int],
        offsets: Sequence[int],
        frames: Sequence[int],
    ) -> None:
        self._lsns = lsns
        self._times = times
        self._offsets = offsets
        self._frames = frames

    @classmethod
    def of(cls, page: bytes) -> Entries:
        """What ``Sparse.page`` has packed."""
        data = memoryview(page)
        count = len(data) // ENTRY_SIZE
        return cls(
            view("Q", data[: 8 * count]),
            view("q", data[8 * count : 16 * count]),
            view("I", data[16 * count : 20 * count]),
            view("I", data[20 * count :]),
        )

    def __len__(self) -> int:
        return len(self._lsns)

    def __getitem__(self, number: int) -> Entry:
        frame = self._frames[number]
        return Entry(
            self._lsns[number],
            self._times[number],
            self._offsets[number],
            frame & ~_ALONE,
            frame >= _ALONE,
        )

    def at_lsn(self, lsn: int) -> Entry | None:
        """The last entry at or before a record; None if it is before all."""
        return self._entry(bisect_right(self._lsns, lsn) - 1)

    def at_offset(self, offset: int) -> Entry | None:
        """The last entry at or before an offset; None if it is before all."""
        return self._entry(bisect_right(self._offsets, offset) - 1)

    def before_time(self, time_ns: int) -> Entry | None:
        """The last entry up to which all is older; None if the first is not."""
        return self._entry(bisect_left(self._times, time_ns) - 1)

    def _entry(self, number: int) -> Entry | None:
        return self[number] if number >= 0 else None


class Sparse(Entries):
    """Entries that more are added to."""

    __slots__ = ("_columns",)

    def __init__(self) -> None:
        self._columns = array("Q"), array("q"), array("I"), array("I")
        super().__init__(*self._columns)

    def add(self, lsn: int, time_ns: int, offset: int, frame: int, *, alone: bool) -> None:
        """Add the next entry."""
        values = (lsn, time_ns, offset, frame | _ALONE if alone else frame)
        for numbers, value in zip(self._columns, values, strict=True):
            numbers.append(value)

    def page(self, start: int, end: int) -> bytes:
        """Entries ``start`` up to ``end`` as they stand in a file: column after column."""
        return b"".join(packed(numbers[start:end]) for numbers in self._columns)
