"""Everything that a log can tell of one job, found through the indexes of its segments."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from taskq.core.records import JOB_KINDS, Kind
from taskq.log import codec
from taskq.log.cursor import Cursor
from taskq.log.indexset import IndexSet
from taskq.log.locate import hop
from taskq.log.lookup import Found, Lookup
from taskq.log.sparse import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.log.place import Place

_KIND_AT: Final = 4
_JOB_AT: Final = 16
_ENQUEUED: Final = int(Kind.ENQUEUED)
_JOB_KINDS: Final = frozenset(map(int, JOB_KINDS))


class SegmentIndexes(IndexSet):
    """Lookups in one log, each up to its end as this process knows it."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._lookup = Lookup(place.files)

    def forget(self) -> None:
        """Close the files; what was read of them may not be true any more."""
        super().forget()
        self._lookup.forget()

    def find(self, lsn: int) -> Found | None:
        """The record of that number, None if it is not in the log."""
        segments = self._segments()
        home = bisect_right(segments, lsn) - 1
        if home < 0 or lsn >= self._place.next_lsn:
            return None
        segment = segments[home]
        mark = self._place.mark_before(lsn)
        if mark is not None and mark.segment == segment:
            # It is near to a frame that this process wrote: no index is needed.
            at = mark.offset + codec.FRAME_HEADER_SIZE
            entry = Entry(mark.next_lsn, 0, at, mark.offset, alone=False)
            return self._lookup.from_entry(segment, entry, lsn, self._end_of(segment))
        return self._ask(segment, lambda index: self._lookup.by_lsn(segment, index, lsn))

    def about(self, job: int) -> Iterator[Found]:
        """Every record that concerns a job, in the order of the log, none twice.

        The first is its ENQUEUED record, or where that is gone one that carries it; nothing, if
        there is no such job.
        """
        segments = self._segments()
        home = bisect_right(segments, job) - 1
        if home >= 0:
            born = self.find(job)
            if born is None or born.record[_KIND_AT] != _ENQUEUED:
                return
            yield born
        latest = job
        for segment in segments[max(home, 0) :]:
            for offset in self._places(segment, job):
                found = self._at(segment, offset)
                if found is None or found.lsn <= latest or not _concerns(found.record, job):
                    continue
                latest = found.lsn
                yield found

    def steps_after(self, lsn: int, end_lsn: int = codec.LSN_MAX) -> Iterator[tuple[int, int]]:
        """(lsn, step) of each step of the clock behind a record, and before another."""
        segments = self._segments()
        for segment in segments[max(bisect_right(segments, lsn) - 1, 0) :]:
            if segment > end_lsn:
                return
            for step in self._summary(segment).clocks:
                if lsn < step[0] < end_lsn:
                    yield step

    def lsn_at(self, time_ns: int) -> int:
        """The first record of that time or later; the next lsn of the log if there is none yet."""
        found = self._frame_at(time_ns)
        return found[2].first_lsn if found is not None else self._place.next_lsn

    def cursor_at(self, lsn: int) -> Cursor:
        """At the frame that holds a record, or else the first behind where it would stand."""
        segments = self._segments()
        home = max(bisect_right(segments, lsn) - 1, 0)
        for segment in segments[home:]:
            start = _frame_of(self._entry_at(segment, lsn))
            for frame, header in hop(self._files, segment, start, self._end_of(segment)):
                if header.next_lsn > lsn:
                    return Cursor(segment, frame, header.first_lsn)
        return self._place.end()

    def cursor_at_time(self, time_ns: int) -> Cursor:
        """At the first frame of that time or later; at the end if there is none yet."""
        found = self._frame_at(time_ns)
        if found is None:
            return self._place.end()
        segment, frame, header = found
        return Cursor(segment, frame, header.first_lsn)

    def may_hold_key(self, segment: int, hashed: int) -> bool:
        """False if no job of the segment took a key of this hash."""
        return self._ask(segment, lambda index: index.may_hold_key(hashed))

    def spilled(self, segment: int) -> set[bytes]:
        """Hashes of the bodies that records of the segment have in files of their own."""
        return self._ask(segment, lambda index: index.spilled())

    # -- steps of a lookup ------------------------------------------------------------------------

    def _places(self, segment: int, job: int) -> list[int]:
        if segment != self._place.segment:
            summary = self._summary(segment)
            if not summary.job_min <= job <= summary.job_max:
                return []
        return self._ask(
            segment, lambda index: index.job_places(job) if index.may_hold(job) else []
        )

    def _at(self, segment: int, offset: int) -> Found | None:
        return self._ask(segment, lambda index: self._lookup.by_offset(segment, index, offset))

    def _entry_at(self, segment: int, lsn: int) -> Entry | None:
        return self._ask(segment, lambda index: index.at_lsn(lsn))

    def _entry_before(self, segment: int, time_ns: int) -> Entry | None:
        return self._ask(segment, lambda index: index.before_time(time_ns))

    def _frame_at(self, time_ns: int) -> tuple[int, int, codec.FrameHeader] | None:
        """(segment, offset, header) of the first frame of that time or later."""
        for segment in self._segments():
            if self._summary(segment).top_time_ns < time_ns:
                continue
            start = _frame_of(self._entry_before(segment, time_ns))
            for frame, header in hop(self._files, segment, start, self._end_of(segment)):
                if header.time_ns >= time_ns:
                    return segment, frame, header
        return None


def _frame_of(entry: Entry | None) -> int:
    """Where to begin to look: at the entry's frame, or at the first."""
    return codec.SEGMENT_HEADER.size if entry is None or entry.alone else entry.frame


def _concerns(record: bytes, job: int) -> bool:
    """Whether that is what stands there: a segment is not as it was indexed if it is not."""
    number = int.from_bytes(record[_JOB_AT : _JOB_AT + 8], "little")
    return record[_KIND_AT] in _JOB_KINDS and number == job
