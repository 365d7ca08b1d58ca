"""Lookups of single records, and of all records of a job, through the segments' indexes."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from taskq.core import kinds, records
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.frames import Cursor, Gap, segment_lsn
from taskq.log.segments import index as index_file
from taskq.log.segments.segments import Place, SegmentFiles, hop

Answer = TypeVar("Answer")


#: Most open index files, and most indexes of sealed segments in memory.
_OPEN_MAX: Final = 32
_BUILT_MAX: Final = 8
#: Bytes of a segment, frames, and records that are indexed in one step.
_STEP_BYTES: Final = 64 * 1024
_STEP_FRAMES: Final = 64
_STEP_RECORDS: Final = 256

#: Bytes of a frame that are read to find a record.
_WINDOW: Final = 16 * 1024
_CHECKED: Final = int(records.Flag.CHECKED)
#: Most checked frames in memory, ...
_BODIES_MAX: Final = 8
#: ... and largest size of each.
_BODY_BYTES_MAX: Final = 512 * 1024


class RecordFound(NamedTuple):
    """A record and its place."""

    lsn: int
    epoch: int
    time_ns: int
    #: as in ``SegmentFiles``
    location: int
    #: offset of its frame
    frame: int
    #: first lsn of that frame
    first_lsn: int
    record: bytes


class Lookup:
    """Reads records of the segments of one log."""

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._bodies: dict[tuple[int, int], bytes] = {}

    def forget(self) -> None:
        self._bodies.clear()

    def by_lsn(self, segment: int, index: index_file.SegmentIndex, lsn: int) -> RecordFound | None:
        entry = index.at_lsn(lsn)
        if entry is None:
            return None
        if entry.alone:
            return self._salvaged(segment, index, entry) if entry.lsn == lsn else None
        return self.from_entry(segment, entry, lsn, index.offset)

    def from_entry(
        self, segment: int, entry: index_file.Entry, lsn: int, end: int
    ) -> RecordFound | None:
        for frame, header in hop(self._files, segment, entry.frame, end):
            if header.next_lsn > lsn:
                if header.first_lsn > lsn:
                    return None
                return self._walk(segment, frame, header, entry, lsn, -1)
        return None

    def by_offset(
        self, segment: int, index: index_file.SegmentIndex, offset: int
    ) -> RecordFound | None:
        entry = index.at_offset(offset)
        if entry is None:
            return None
        if entry.alone:
            return self._salvaged(segment, index, entry) if entry.offset == offset else None
        for frame, header in hop(self._files, segment, entry.frame, index.offset):
            if frame + header.size > offset:
                return self._walk(segment, frame, header, entry, -1, offset)
        return None

    def _walk(
        self,
        segment: int,
        frame: int,
        header: codec.FrameHeader,
        entry: index_file.Entry,
        lsn: int,
        offset: int,
    ) -> RecordFound | None:
        start = frame + codec.FRAME_HEADER_SIZE
        at, number = start, header.first_lsn
        if frame == entry.frame:
            at, number = entry.offset, entry.lsn
        record = b""
        if (segment, frame) not in self._bodies:
            # Most large records have a CRC of their own, so the rest of the frame need not be read.
            size = min(_WINDOW, start + header.body_size - at)
            data = self._files._read(self._files.descriptor(segment), max(size, 0), at)
            place, next_number = _step(data, 0, number, lsn, offset - at)
            record = _checked(data, place, next_number)
            if record:
                at, number = at + place, next_number
        if not record:
            body = self._body(segment, frame, header)
            if body is None:
                return None
            place, number = _step(body, at - start, number, lsn, offset - start)
            at, record = start + place, _cut(body, place)
            if not record:
                return None
        location = self._files.base(segment) + at
        return RecordFound(
            number, header.epoch, header.time_ns, location, frame, header.first_lsn, record
        )

    def _body(self, segment: int, frame: int, header: codec.FrameHeader) -> bytes | None:
        """Return the records of a frame, None if they fail their CRC."""
        key = segment, frame
        body = self._bodies.pop(key, None)
        if body is None:
            files = self._files
            start = frame + codec.FRAME_HEADER_SIZE
            body = files._read(files.descriptor(segment), header.body_size, start)
            if not codec.body_is_whole(body, header, files.seed(segment), frame):
                return None
        if len(body) <= _BODY_BYTES_MAX:
            if len(self._bodies) >= _BODIES_MAX:
                del self._bodies[next(iter(self._bodies))]
            self._bodies[key] = body
        return body

    def _salvaged(
        self, segment: int, index: index_file.SegmentIndex, entry: index_file.Entry
    ) -> RecordFound | None:
        """Return a record of a damaged frame that is valid by its own CRC."""
        header = index.salvaged[entry.frame]
        location = self._files.base(segment) + entry.offset
        record = _checked(self._files.unchecked_record(location), 0, entry.lsn)
        if not record:
            return None
        return RecordFound(
            entry.lsn, header.epoch, header.time_ns, location, entry.frame, header.first_lsn, record
        )


class _Summary(NamedTuple):
    """Numbers about a sealed segment's index that stay in memory."""

    job_min: int
    job_max: int
    top_time_ns: int
    clocks: tuple[tuple[int, int], ...]


class SegmentIndexes:
    """Indexes of one log, up to its end in this process, and lookups in them.

    Each sealed segment has an index file, written by upkeep. If it is missing or damaged, and for
    the growing segment, the index is built in memory at its first use. Finished jobs cost no
    memory: only a few numbers stay of an unused index.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._files = place.files
        self._lookup = Lookup(place.files)
        self._open: dict[int, index_file.IndexFile] = {}
        self._built: dict[int, index_file.IndexBuilder] = {}
        self._summaries: dict[int, _Summary] = {}
        self._blocks: dict[tuple[str, int], Sequence[int]] = {}
        #: segments whose file is usable; whose file failed; with damage, which get no file
        self._saved: set[int] = set()
        self._distrusted: set[int] = set()
        self._damaged: set[int] = set()
        self._files.when_fewer = self._close_gone

    def forget(self) -> None:
        for index in self._open.values():
            index.close()
        self._open.clear()
        self._built.clear()
        self._summaries.clear()
        self._saved.clear()
        self._distrusted.clear()
        self._damaged.clear()
        self._blocks.clear()
        self._lookup.forget()

    def find(self, lsn: int) -> RecordFound | None:
        segments = self._segments()
        home = bisect_right(segments, lsn) - 1
        if home < 0 or lsn >= self._place.next_lsn:
            return None
        segment = segments[home]
        mark = self._place.mark_before(lsn)
        if mark is not None and mark.segment == segment:
            # It is near a frame that this process wrote, so no index is needed.
            at = mark.offset + codec.FRAME_HEADER_SIZE
            entry = index_file.Entry(mark.next_lsn, at, mark.offset, alone=False)
            return self._lookup.from_entry(segment, entry, lsn, self._end_of(segment))
        return self._ask(segment, lambda index: self._lookup.by_lsn(segment, index, lsn))

    def about(self, job: int) -> Iterator[RecordFound]:
        """Yield every record about a job, in the order of the log, each once.

        The first one is its ENQUEUED record, or a later record that carries it. An unknown job has
        none.
        """
        segments = self._segments()
        home = bisect_right(segments, job) - 1
        if home >= 0:
            born = self.find(job)
            if born is None or born.record[codec.KIND_AT] != kinds.BIRTH:
                return
            yield born
        latest = job
        for segment in segments[max(home, 0) :]:
            for offset in self._places(segment, job):
                record = self._ask(
                    segment, functools.partial(self._lookup.by_offset, segment, offset=offset)
                )
                if record is None or record.lsn <= latest or not _concerns(record.record, job):
                    continue
                latest = record.lsn
                yield record

    def steps_after(self, lsn: int, end_lsn: int = codec.LSN_MAX) -> Iterator[tuple[int, int]]:
        segments = self._segments()
        for segment in segments[max(bisect_right(segments, lsn) - 1, 0) :]:
            if segment > end_lsn:
                return
            for step in self._summary(segment).clocks:
                if lsn < step[0] < end_lsn:
                    yield step

    def lsn_at(self, time_ns: int) -> int:
        place = self._frame_at(time_ns)
        return place[2].first_lsn if place is not None else self._place.next_lsn

    def cursor_at(self, lsn: int) -> Cursor:
        """Return the cursor at the frame with a record, or at the next frame."""
        segments = self._segments()
        home = max(bisect_right(segments, lsn) - 1, 0)
        for segment in segments[home:]:
            start = _frame_of(self._entry_at(segment, lsn))
            for frame, header in hop(self._files, segment, start, self._end_of(segment)):
                if header.next_lsn > lsn:
                    return Cursor(segment, frame, header.first_lsn)
        return self._place.end()

    def cursor_at_time(self, time_ns: int) -> Cursor:
        place = self._frame_at(time_ns)
        if place is None:
            return self._place.end()
        segment, frame, header = place
        return Cursor(segment, frame, header.first_lsn)

    # -- steps of a lookup ------------------------------------------------------------------------

    def _places(self, segment: int, job: int) -> list[int]:
        if segment != self._place.segment:
            summary = self._summary(segment)
            if not summary.job_min <= job <= summary.job_max:
                return []
        return self._ask(segment, lambda index: index.job_places(job))

    def _entry_at(self, segment: int, lsn: int) -> index_file.Entry | None:
        return self._ask(segment, lambda index: index.at_lsn(lsn))

    def _frame_at(self, time_ns: int) -> tuple[int, int, codec.FrameHeader] | None:
        for segment in self._segments():
            if self._summary(segment).top_time_ns < time_ns:
                continue
            start = _frame_of(self._ask(segment, lambda index: index.before_time(time_ns)))
            for frame, header in hop(self._files, segment, start, self._end_of(segment)):
                if header.time_ns >= time_ns:
                    return segment, frame, header
        return None

    # -- upkeep -----------------------------------------------------------------------------------

    def upkeep_steps(self) -> Iterator[None]:
        """Write missing indexes, and remove the indexes of removed segments."""
        for segment in self._segments()[:-1]:
            if self._lacks_file(segment):
                yield from self.save_steps(segment)
            yield
        self._remove_orphans()

    def _remove_orphans(self) -> None:
        disk, directory = self._place.disk, f"{self._place.path}/log"
        names = disk.names(directory)
        segments = {segment_lsn(name) for name in names}
        for name in names:
            stem, dot, _ = name.partition(index_file.SUFFIX)
            if dot and segment_lsn(f"{stem}.log") not in segments:
                disk.remove(f"{directory}/{name}")

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
            OSError: the disk refused; the file was removed.
            LogError: the segment is gone.
        """
        if segment not in self._segments()[:-1]:
            return
        end = self._end_of(segment)
        builder = self._builder(segment, end)
        yield from self._feed_steps(builder, end)
        if builder.gaps:
            self._damaged.add(segment)
        if self._built.get(segment) is not builder or builder.gaps:
            return
        directory = f"{self._place.path}/log"
        log_id = self._files.owner(segment)
        size = yield from index_file.save_steps(self._place.disk, directory, builder, log_id)
        self._place.meters.upkeep_bytes += size
        if self._built.get(segment) is builder:
            del self._built[segment]
            self._distrusted.discard(segment)
            self._saved.add(segment)

    # -- one segment ------------------------------------------------------------------------------

    def _segments(self) -> list[int]:
        lsns = self._files.lsns
        if not lsns:
            self._files.refresh()
            lsns = self._files.lsns
        return lsns[: bisect_right(lsns, self._place.segment)]

    def _end_of(self, segment: int) -> int:
        place = self._place
        return place.offset if segment == place.segment else self._files.size(segment)

    def _ask(self, segment: int, question: Callable[[index_file.SegmentIndex], Answer]) -> Answer:
        index = self._index(segment)
        try:
            return question(index)
        except (index_file.IndexDamaged, OSError):
            if not isinstance(index, index_file.IndexFile):
                raise
        self._drop_file(segment)
        self._saved.discard(segment)
        self._distrusted.add(segment)
        return question(self._index(segment))

    def _index(self, segment: int) -> index_file.SegmentIndex:
        if segment == self._place.segment:
            return self._in_memory(segment, self._place.offset)
        index = self._open.pop(segment, None)
        if index is None and segment not in self._distrusted:
            index = self._open_file(segment)
        if index is None:
            builder = self._in_memory(segment, self._files.size(segment))
            builder.sort()
            self._summaries[segment] = _summary(builder)
            return builder
        self._built.pop(segment, None)
        self._keep_open(segment, index)
        return index

    def _in_memory(self, segment: int, end: int) -> index_file.IndexBuilder:
        builder = self._builder(segment, end)
        for _ in self._feed_steps(builder, end):
            pass
        return builder

    def _summary(self, segment: int) -> _Summary:
        if segment == self._place.segment:
            return _summary(self._index(segment))
        if segment not in self._summaries:
            self._index(segment)
        return self._summaries[segment]

    # -- files ------------------------------------------------------------------------------------

    def _open_file(self, segment: int) -> index_file.IndexFile | None:
        path = f"{self._place.path}/log/{index_file.index_name(segment)}"
        try:
            index = index_file.IndexFile(self._place.disk, path, self._blocks)
        except (index_file.IndexDamaged, OSError):
            return None
        if self._fits(segment, index):
            return index
        index.close()
        return None

    def _fits(self, segment: int, index: index_file.IndexFile) -> bool:
        size = self._files.size(segment)
        names = (self._files.owner(segment), segment, size)
        if (index.log_id, index.first_lsn, index.offset) != names:
            return False
        offset, crc = index.last_frame
        if not offset:
            return True
        last = next(hop(self._files, segment, offset, size), None)
        return last is not None and last[1].body_crc == crc

    def _keep_open(self, segment: int, index: index_file.IndexFile) -> None:
        self._saved.add(segment)
        if segment not in self._summaries:
            self._summaries[segment] = _summary(index)
        self._open[segment] = index  # the latest used is closed last
        if len(self._open) > _OPEN_MAX:
            self._drop_file(next(iter(self._open)))

    def _close_gone(self) -> None:
        for segment in self._open.keys() - set(self._files.lsns):
            self._drop_file(segment)

    def _drop_file(self, segment: int) -> None:
        index = self._open.pop(segment, None)
        if index is not None:
            index.close()

    # -- in memory --------------------------------------------------------------------------------

    def _builder(self, segment: int, end: int) -> index_file.IndexBuilder:
        builder = self._built.pop(segment, None)
        if builder is None or builder.offset > end:  # the end of the log was cut off
            builder = index_file.IndexBuilder(segment)
        self._built[segment] = builder  # the latest used is dropped last
        if len(self._built) > _BUILT_MAX:
            del self._built[next(other for other in self._built if other != self._place.segment)]
        return builder

    def _feed_steps(self, builder: index_file.IndexBuilder, end: int) -> Iterator[None]:
        if builder.offset >= end:
            return
        segment = builder.first_lsn
        cursor = Cursor(segment, builder.offset, builder.next_lsn)
        frames, begin = 0, builder.offset
        for base, item in self._files.frames(cursor, Cursor(segment, end, 0)):
            if isinstance(item, Gap):
                builder.feed_damaged(item, self._files.damaged_frame(base, item))
            else:
                while not builder.feed(item, _STEP_RECORDS):
                    yield
            frames += 1
            if frames >= _STEP_FRAMES or builder.offset - begin >= _STEP_BYTES:
                frames, begin = 0, builder.offset
                yield
        builder.offset = max(builder.offset, end)


def _summary(index: index_file.SegmentIndex) -> _Summary:
    return _Summary(index.job_min, index.job_max, index.top_time_ns, tuple(index.clocks))


def _frame_of(entry: index_file.Entry | None) -> int:
    return codec.SEGMENT_HEADER.size if entry is None or entry.alone else entry.frame


def _concerns(record: bytes, job: int) -> bool:
    number = int.from_bytes(record[codec.JOB_AT : codec.JOB_AT + 8], "little")
    return record[codec.KIND_AT] in kinds.OF_JOBS and number == job


def _step(data: bytes, place: int, number: int, lsn: int, wanted: int) -> tuple[int, int]:
    """Return (index, lsn) of the record with this number, or at the wanted index.

    The search begins at ``place``, whose record has lsn ``number``. The index is -1 if the record
    is not in the data.
    """
    length_at = codec.LENGTH.unpack_from
    last = len(data) - codec.PREFIX.size
    while 0 <= place <= last:
        if number == lsn or place == wanted:
            return place, number
        length = length_at(data, place)[0]
        if length < codec.PREFIX.size:
            break
        place += length
        number += 1
    return -1, 0


def _cut(data: bytes, place: int) -> bytes:
    if place < 0:
        return b""
    length = codec.LENGTH.unpack_from(data, place)[0]
    return data[place : place + length] if codec.PREFIX.size <= length <= len(data) - place else b""


def _checked(data: bytes, place: int, lsn: int) -> bytes:
    record = _cut(data, place)
    if not record or not record[codec.FLAGS_AT] & _CHECKED:
        return b""
    crc = codec.crc32(record[:-4], lsn & 0xFFFFFFFF)
    return record if crc == int.from_bytes(record[-4:], "little") else b""
