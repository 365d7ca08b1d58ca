"""Everything that a log can tell of one job, found through the indexes of its segments.

Each sealed segment has an index beside it, written by upkeep; where one is missing or damaged, and
for the segment that grows, the index is made in memory when it is first asked for. Finished jobs
cost no memory: what is kept of an index that is not in use are a few numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, TypeVar

from taskq.core.kinds import BIRTH, OF_JOBS
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.codec import JOB_AT, KIND_AT
from taskq.log.format.frames import Cursor, Gap
from taskq.log.segments.index_build import IndexBuilder
from taskq.log.segments.index_file import (
    IndexDamaged,
    SegmentIndex,
    index_name,
    remove_strays,
    save_steps,
)
from taskq.log.segments.index_memory import Entry
from taskq.log.segments.lookup import Lookup, RecordFound
from taskq.log.segments.segments import hop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskq.log.segments.lookup import Index
    from taskq.log.segments.place import Place

if TYPE_CHECKING:
    Answer = TypeVar("Answer")

#: Index files that are open at a time, and indexes of sealed segments that are held in memory.
_OPEN_MAX: Final = 32
_BUILT_MAX: Final = 8
#: What is indexed in one step: so many bytes of segment, or frames.
_STEP_BYTES: Final = 64 * 1024
_STEP_FRAMES: Final = 64
_STEP_RECORDS: Final = 256


class _Summary(NamedTuple):
    """Part of a sealed segment's index that is kept in memory."""

    job_min: int
    job_max: int
    top_time_ns: int
    clocks: tuple[tuple[int, int], ...]


class SegmentIndexes:
    """The indexes of one log, up to its end as this process knows it, and lookups in them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._files = place.files
        self._lookup = Lookup(place.files)
        self._open: dict[int, SegmentIndex] = {}
        self._built: dict[int, IndexBuilder] = {}
        self._growing: IndexBuilder | None = None
        self._summaries: dict[int, _Summary] = {}
        self._pages: dict[tuple[str, int], bytes] = {}
        #: segments whose file is of use; whose file failed; that have damage, and get no file
        self._saved: set[int] = set()
        self._distrusted: set[int] = set()
        self._damaged: set[int] = set()
        self._files.when_fewer = self._close_gone

    def forget(self) -> None:
        """Close the files; what was read of them may not be true any more."""
        for index in self._open.values():
            index.close()
        self._open.clear()
        self._built.clear()
        self._growing = None
        self._summaries.clear()
        self._saved.clear()
        self._distrusted.clear()
        self._damaged.clear()
        self._pages.clear()
        self._lookup.forget()

    def find(self, lsn: int) -> RecordFound | None:
        """Return the record of that number, None if it is not in the log."""
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

    def about(self, job: int) -> Iterator[RecordFound]:
        """Yield every record that concerns a job, in the order of the log, none twice.

        The first is its ENQUEUED record, or where that is gone one that carries it; nothing, if
        there is no such job.
        """
        segments = self._segments()
        home = bisect_right(segments, job) - 1
        if home >= 0:
            born = self.find(job)
            if born is None or born.record[KIND_AT] != BIRTH:
                return
            yield born
        latest = job
        for segment in segments[max(home, 0) :]:
            for offset in self._places(segment, job):
                record = self._at(segment, offset)
                if record is None or record.lsn <= latest or not _concerns(record.record, job):
                    continue
                latest = record.lsn
                yield record

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
        place = self._frame_at(time_ns)
        return place[2].first_lsn if place is not None else self._place.next_lsn

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
        place = self._frame_at(time_ns)
        if place is None:
            return self._place.end()
        segment, frame, header = place
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

    def _at(self, segment: int, offset: int) -> RecordFound | None:
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

    # -- upkeep -----------------------------------------------------------------------------------

    def upkeep_steps(self) -> Iterator[None]:
        """Write the indexes that are missing, remove those of segments that are gone.

        Raises:
            OSError: the disk refused.
            LogError: a segment is gone.
        """
        for segment in self._segments()[:-1]:
            if self._lacks_file(segment):
                yield from self.save_steps(segment)
            yield
        remove_strays(self._place.disk, f"{self._place.path}/log")

    def missing(self) -> list[int]:
        """Sealed segments that have no index file of use. Damaged segments get none."""
        return [segment for segment in self._segments()[:-1] if self._lacks_file(segment)]

    def is_damaged(self, segment: int) -> bool:
        """Return whether bytes of the segment did not read back when it was indexed.

        A segment with damage has no file, so that a new process reads it anew.
        """
        index = self._index(segment)
        return isinstance(index, IndexBuilder) and index.gaps > 0

    def _lacks_file(self, segment: int) -> bool:
        if segment in self._saved or segment in self._damaged:
            return False
        if segment not in self._distrusted:
            index = self._open_file(segment)
            if index is not None:
                self._keep_open(segment, index)
                return False
        return True

    def save_steps(self, segment: int) -> Iterator[None]:
        """Index a sealed segment and write the file, in steps of a millisecond or two.

        Raises:
            OSError: the disk refused; nothing is left of the file.
            LogError: the segment is gone.
        """
        if segment not in self._segments()[:-1]:
            return
        builder = self._builder(segment)
        end = self._end_of(segment)
        yield from self._feed_steps(builder, end)
        if builder.gaps:
            self._damaged.add(segment)
        if self._built.get(segment) is not builder or builder.gaps:
            return
        directory = f"{self._place.path}/log"
        log_id = self._files.log_id.bytes
        size = yield from save_steps(self._place.disk, directory, builder, log_id, end)
        self._place.meters.upkeep_bytes += size
        if self._built.get(segment) is builder:
            del self._built[segment]
            self._distrusted.discard(segment)
            self._saved.add(segment)

    # -- one segment ------------------------------------------------------------------------------

    def _segments(self) -> list[int]:
        """Return the segments up to the known end."""
        lsns = self._files.lsns
        if not lsns:
            self._files.refresh()
            lsns = self._files.lsns
        return lsns[: bisect_right(lsns, self._place.segment)]

    def _end_of(self, segment: int) -> int:
        place = self._place
        return place.offset if segment == place.segment else self._files.size(segment)

    def _ask(self, segment: int, question: Callable[[Index], Answer]) -> Answer:
        """Ask the index of a segment; a file that fails is replaced by one in memory."""
        index = self._index(segment)
        try:
            return question(index)
        except (IndexDamaged, OSError):
            if not isinstance(index, SegmentIndex):
                raise
        self._drop_file(segment)
        self._saved.discard(segment)
        self._distrusted.add(segment)
        return question(self._in_memory(segment))

    def _index(self, segment: int) -> Index:
        if segment == self._place.segment:
            builder = self._grown()
            self._feed(builder, self._place.offset)
            return builder
        index = self._open.pop(segment, None)
        if index is None and not (segment in self._built and segment in self._distrusted):
            index = self._open_file(segment)
        if index is None:
            return self._in_memory(segment)
        self._built.pop(segment, None)
        self._keep_open(segment, index)
        return index

    def _in_memory(self, segment: int) -> IndexBuilder:
        builder = self._builder(segment)
        self._feed(builder, self._files.size(segment))
        self._summaries[segment] = _summary(builder)
        return builder

    def _summary(self, segment: int) -> _Summary:
        if segment == self._place.segment:
            return _summary(self._index(segment))
        if segment not in self._summaries:
            self._index(segment)
        return self._summaries[segment]

    # -- files ------------------------------------------------------------------------------------

    def _open_file(self, segment: int) -> SegmentIndex | None:
        """Return the segment's index file, None if it is of no use."""
        path = f"{self._place.path}/log/{index_name(segment)}"
        try:
            index = SegmentIndex(self._place.disk, path, self._pages)
        except (IndexDamaged, OSError):
            return None
        if self._fits(segment, index):
            return index
        index.close()
        return None

    def _fits(self, segment: int, index: SegmentIndex) -> bool:
        header = index.header
        size = self._files.size(segment)
        names = (self._files.log_id.bytes, segment, size)
        if (header.log_id, header.first_lsn, header.segment_size) != names:
            return False
        offset, crc = header.last_frame
        if not offset:
            return True
        last = next(hop(self._files, segment, offset, size), None)
        return last is not None and last[1].body_crc == crc

    def _keep_open(self, segment: int, index: SegmentIndex) -> None:
        self._saved.add(segment)
        if segment not in self._summaries:
            self._summaries[segment] = _summary(index)
        self._open[segment] = index  # the latest used is the last to be closed
        if len(self._open) > _OPEN_MAX:
            self._drop_file(next(iter(self._open)))

    def _close_gone(self) -> None:
        """Close the files of segments that are not there any more."""
        for segment in self._open.keys() - set(self._files.lsns):
            self._drop_file(segment)

    def _drop_file(self, segment: int) -> None:
        index = self._open.pop(segment, None)
        if index is not None:
            index.close()

    # -- in memory --------------------------------------------------------------------------------

    def _grown(self) -> IndexBuilder:
        """Return the builder of the segment that grows; not fed yet."""
        place, builder = self._place, self._growing
        if builder is not None and builder.first_lsn != place.segment:
            if builder.first_lsn < place.segment:
                self._keep_built(builder)
            builder = None
        if builder is not None and builder.offset > place.offset:
            builder = None
        if builder is None:
            builder = self._built.pop(place.segment, None) or IndexBuilder(place.segment)
        if builder.offset > place.offset:
            builder = IndexBuilder(place.segment)
        self._growing = builder
        return builder

    def _builder(self, segment: int) -> IndexBuilder:
        """Return the builder of a sealed segment; not fed yet."""
        growing = self._growing
        if growing is not None and growing.first_lsn == segment:
            self._growing = None
            self._keep_built(growing)
        builder = self._built.pop(segment, None) or IndexBuilder(segment)
        self._keep_built(builder)
        return builder

    def _keep_built(self, builder: IndexBuilder) -> None:
        self._built[builder.first_lsn] = builder
        if len(self._built) > _BUILT_MAX:
            del self._built[next(iter(self._built))]

    def _feed(self, builder: IndexBuilder, end: int) -> None:
        for _ in self._feed_steps(builder, end):
            pass

    def _feed_steps(self, builder: IndexBuilder, end: int) -> Iterator[None]:
        """Feed a builder up to an offset of its segment; others may feed it between two steps."""
        if builder.offset >= end:
            return
        segment = builder.first_lsn
        cursor = Cursor(segment, builder.offset, builder.next_lsn)
        frames, seen = 0, builder.offset
        for base, item in self._files.frames(cursor, Cursor(segment, end, 0)):
            if isinstance(item, Gap):
                builder.feed_damaged(item, self._files.damaged_frame(base, item))
            else:
                while not builder.feed(item, _STEP_RECORDS):
                    yield
            frames += 1
            if frames >= _STEP_FRAMES or builder.offset - seen >= _STEP_BYTES:
                frames, seen = 0, builder.offset
                yield
        builder.offset = max(builder.offset, end)


def _summary(index: Index) -> _Summary:
    return _Summary(*index.job_range, index.top_time_ns, tuple(index.clocks))


def _frame_of(entry: Entry | None) -> int:
    """Return where to begin to look: at the entry's frame, or at the first."""
    return codec.SEGMENT_HEADER.size if entry is None or entry.alone else entry.frame


def _concerns(record: bytes, job: int) -> bool:
    """Return whether that is what stands there: a segment is not as it was indexed if it is not."""
    number = int.from_bytes(record[JOB_AT : JOB_AT + 8], "little")
    return record[KIND_AT] in OF_JOBS and number == job
