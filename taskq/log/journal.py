"""One process's hold on the log's files: where it ends, append, sync, and reading back.

No thread, no requests, no jobs: bytes and positions. The storage thread drives it, simulations drive
it step by step.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from taskq.core.errors import FormatError, LogDamaged, LogError, LogFailed
from taskq.core.model import SECOND_NS
from taskq.log import codec
from taskq.log.config import LSN_SKIP, LogConfig
from taskq.log.identity import create_identity, read_identity, write_all
from taskq.log.lock import TailHint, WriterLock
from taskq.log.recovery import FAILED_FILE, mark_failed, save_failed_frames, set_aside
from taskq.log.segment import Frame, Gap, Scanner, segment_lsn, segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.log.ports import Clock, Disk

#: Wall time that moved this far against the steady clock has made a step.
STEP_NS: Final = 5 * SECOND_NS
_READ_AHEAD: Final = 16 * 1024
_DESCRIPTORS_MAX: Final = 32
#: Places in the log that are remembered, so that a recent job is found without a walk.
_MARKS_MAX: Final = 8_192
_MARK_BYTES: Final = 16 * 1024
_OFFSET_BITS: Final = 32
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1


class Cursor:
    """How far a reader of the log has come: an offset in a segment, and the lsn expected there."""

    __slots__ = ("next_lsn", "offset", "segment")

    def __init__(self, segment: int = 0, offset: int = 0, next_lsn: int = 0) -> None:
        self.segment = segment
        self.offset = offset
        self.next_lsn = next_lsn


class Journal:
    """The files of one log.

    Attributes:
        next_lsn, epoch, time_ns: of the log's end, as of the last ``lock`` or ``refresh``.
        segment, offset: where the next frame goes.
        durable_lsn: every record below it is known to be on disk.
        generation: rises when frames were moved, so that what was folded must be folded anew.
        recovered: what opening had to repair, in words; empty for a clean log.
    """

    def __init__(self, disk: Disk, clock: Clock, path: str, config: LogConfig, pid: int) -> None:
        self._set_up(disk, clock, path, config)
        disk.make_directory(f"{path}/log")
        self.boot = disk.boot_id()
        self.writer = WriterLock(disk, path, pid, config.lock_wait_seconds)

    def _set_up(self, disk: Disk, clock: Clock, path: str, config: LogConfig) -> None:
        self.disk = disk
        self.clock = clock
        self.path = path
        self.config = config
        self.recovered: list[str] = []
        self.generation = 0
        self.next_lsn = self.offset = self.segment = self.epoch = self.time_ns = 0
        self.durable_lsn = 0
        self._tail = -1
        self._segments: list[int] = []
        self._ordinals: dict[int, int] = {}
        self._descriptors: dict[int, int] = {}
        self._window = (-1, 0, b"")
        self._seeds: dict[int, int] = {}
        self._marks: list[tuple[int, int, int]] = []
        self._clock_base = clock.wall_ns() - clock.steady_ns()
        self._shift_ns = 0
        self._writable = True
        self.torn_bytes = 0

    # -- opening ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Find or make the log and put right what a crash left. The writer lock is held afterwards.

        Raises:
            LogError: another process keeps it, or a newer taskq wrote it.
        """
        hint = self.writer.acquire()
        if hint is not None and hint.boot == self.boot:
            self._shift_ns = hint.shift_ns
        identity = read_identity(self.disk, self.path)
        if identity is None:
            if any(segment_lsn(name) is not None for name in self.disk.names(f"{self.path}/log")):
                raise FormatError(
                    f"{self.path}: taskq.json is missing beside existing segments: restore it"
                )
            identity = create_identity(self.disk, self.path, self.clock.wall_ns())
        self.identity = identity
        self.tag = identity.tag
        if (hint is not None and hint.failed) or self._has_failed_marker():
            self.recovered += save_failed_frames(self)
            self._list_segments()
            self._find_end(None, lost=True)
            self.disk.remove(f"{self.path}/{FAILED_FILE}")
            self.disk.sync_directory(self.path)
        else:
            self._list_segments()
            self._locate(hint)

    @classmethod
    def for_reading(cls, disk: Disk, clock: Clock, path: str, config: LogConfig) -> Journal:
        """A journal that opens nothing for writing and stands at the last whole frame.

        Raises:
            LogError: there is no log.
        """
        journal = cls.__new__(cls)
        journal._set_up(disk, clock, path, config)
        identity = read_identity(disk, path)
        if identity is None:
            raise LogError(f"{path} is not a task log")
        journal.identity = identity
        journal.tag = identity.tag
        journal._writable = False
        journal._list_segments()
        usable = [lsn for lsn in journal._segments if journal._has_header(lsn)]
        if usable:
            journal.segment = usable[-1]
            journal._tail = journal._descriptor(journal.segment)
            journal._walk(None)
        return journal

    def _has_failed_marker(self) -> bool:
        return FAILED_FILE in self.disk.names(self.path)

    def lock(self) -> None:
        """Take the writer lock and learn where the log ends.

        Raises:
            LogFailed: an fsync failed since; the log must be opened again.
        """
        hint = self.writer.acquire()
        try:
            self._locate(hint)
        except BaseException:
            self.writer.release()
            raise

    def unlock(self) -> None:
        """Let the next writer in."""
        self.writer.release()

    def refresh(self) -> None:
        """Learn where the log ends without the lock; a frame that is being written is not seen."""
        hint = self.writer.peek()
        if hint is not None and not hint.failed and hint.boot == self.boot:
            self._adopt(hint)

    def has_grown(self) -> bool:
        """Whether another process wrote since the last ``lock`` or ``refresh``."""
        hint = self.writer.peek()
        return hint is not None and (hint.offset != self.offset or hint.segment != self.segment)

    def _locate(self, hint: TailHint | None) -> None:
        if hint is not None and hint.failed:
            raise LogFailed(self.path, "an fsync failed in one of its processes")
        if hint is not None and hint.boot == self.boot:
            if (
                hint.offset == self.offset
                and hint.segment == self.segment
                and self.disk.size(self._tail) == self.offset
            ):
                self.time_ns = hint.time_ns
                self._notice(hint)
                return
            self._adopt(hint)
            if self._tail >= 0 and self.disk.size(self._tail) == self.offset:
                return
        self._list_segments()
        self._find_end(hint, lost=hint is None or hint.boot != self.boot)

    def _notice(self, hint: TailHint) -> None:
        self.durable_lsn = max(self.durable_lsn, hint.durable_lsn)
        # A step that another process recorded is none to record again.
        self._clock_base += hint.shift_ns - self._shift_ns
        self._shift_ns = hint.shift_ns
        if hint.generation != self.generation:
            self.generation = hint.generation
            self._forget_files()

    def _adopt(self, hint: TailHint) -> None:
        self._notice(hint)
        if hint.segment != self.segment or self._tail < 0:
            if hint.segment not in self._ordinals:
                self._list_segments()
            if hint.segment not in self._ordinals:
                return
            self._tail = self._descriptor(hint.segment)
            self.segment = hint.segment
        self.offset, self.next_lsn = hint.offset, hint.next_lsn
        self.epoch, self.time_ns = hint.epoch, hint.time_ns

    # -- the end of the log -----------------------------------------------------------------------

    def _find_end(self, hint: TailHint | None, *, lost: bool) -> None:
        """Walk to the last whole frame, cut a torn tail, and begin a new epoch where that is due."""
        floor = hint.next_lsn if hint is not None else 0
        usable = [lsn for lsn in self._segments if self._has_header(lsn)]
        cut = False
        if usable:
            self.segment = usable[-1]
            self._tail = self._descriptor(self.segment)
            cut = self._walk(hint)
        fresh = not usable
        if lost or cut or fresh or self.next_lsn < floor:
            lsn = max(self.next_lsn, floor)
            self._begin_segment(1 if fresh and not lsn else lsn + LSN_SKIP, new_epoch=True)
            self._remove_empty(usable)
        self._write_hint()

    def _has_header(self, lsn: int) -> bool:
        descriptor = self._descriptor(lsn)
        data = self.disk.read(descriptor, codec.SEGMENT_HEADER.size, 0)
        header = codec.decode_segment_header(data, f"{self.path}/log/{segment_name(lsn)}")
        return header is not None and header.log_id == self.identity.log_id.bytes

    def _walk(self, hint: TailHint | None) -> bool:
        """Set position to behind the last whole frame; True if a torn tail was cut."""
        data = self.disk.read(self._tail, codec.SEGMENT_HEADER.size, 0)
        header = codec.SegmentHeader(*codec.SEGMENT_HEADER.unpack(data)[4:8])
        offset, self.next_lsn, self.epoch = len(data), header.first_lsn, header.epoch
        self.time_ns = max(self.time_ns, 0)
        size = self.disk.size(self._tail)
        if (
            hint is not None
            and hint.boot == self.boot
            and hint.segment == self.segment
            and hint.offset <= size
        ):
            offset, self.next_lsn, self.epoch = hint.offset, hint.next_lsn, hint.epoch
            self.time_ns = hint.time_ns
        torn: Gap | None = None
        for item in self._scanner(self.segment, size, self.next_lsn, sealed=False).frames(offset):
            if isinstance(item, Gap):
                torn = item if item.torn else None
                offset = item.resume
                self.next_lsn = item.next_lsn
            else:
                offset = item.end
                self.next_lsn = item.header.next_lsn
                self.epoch, self.time_ns = item.header.epoch, item.header.time_ns
                self.durable_lsn = max(self.durable_lsn, item.header.synced_through)
        self.offset = torn.offset if torn else offset
        self.torn_bytes = size - torn.offset if torn else 0
        if torn and self._writable:
            note = set_aside(self.disk, self.path, self._tail, self.segment, torn.offset, size)
            self.recovered.append(note)
            # What stands now must be on disk before anything is built on it.
            self.disk.sync(self._tail)
        return torn is not None

    def _begin_segment(self, first_lsn: int, *, new_epoch: bool) -> None:
        """Seal the present segment and open the next; everything before it is on disk first."""
        if self._tail >= 0:
            self.disk.sync(self._tail)
            self.durable_lsn = max(self.durable_lsn, self.next_lsn)
            self.writer.void_hint()
        if new_epoch:
            self.epoch = int.from_bytes(os.urandom(8), "little") or 1
        path = f"{self.path}/log/{segment_name(first_lsn)}"
        descriptor = self.disk.open(path, create=True)
        try:
            header = codec.SegmentHeader(
                first_lsn, self.epoch, self.identity.log_id.bytes, self.clock.wall_ns()
            )
            self.disk.truncate(descriptor, 0)
            write_all(self.disk, descriptor, codec.encode_segment_header(header), 0)
            self.disk.sync(descriptor)
            self.disk.sync_directory(f"{self.path}/log")
        finally:
            self.disk.close(descriptor)
        self._list_segments()
        self._tail = self._descriptor(first_lsn)
        self.segment, self.offset = first_lsn, codec.SEGMENT_HEADER.size
        self.next_lsn = first_lsn
        self._write_hint()

    def _remove_empty(self, segments: list[int]) -> None:
        """Drop segments that never got a frame, and files that never got a header."""
        for lsn in list(self._segments):
            if lsn == self.segment:
                continue
            size = self.disk.size(self._descriptor(lsn))
            if lsn not in segments or size == codec.SEGMENT_HEADER.size:
                if lsn not in segments and size > codec.SEGMENT_HEADER.size:
                    continue  # its header is damaged, its frames may not be
                self.disk.remove(f"{self.path}/log/{segment_name(lsn)}")
                self._segments.remove(lsn)

    def rotate_if_full(self) -> None:
        """Begin the next segment when this one is full; the lock is held."""
        if self.offset >= self.config.segment_bytes:
            self._begin_segment(self.next_lsn, new_epoch=False)

    # -- writing ----------------------------------------------------------------------------------

    def log_time(self) -> tuple[int, int]:
        """(time of the next frame, step of the clock to record before anything else, or 0)."""
        wall, steady = self.clock.wall_ns(), self.clock.steady_ns()
        step = wall - steady - self._clock_base
        if abs(step) <= STEP_NS:
            # This process saw no step; if the log's time lies ahead, one fell before it came.
            step = wall - self.time_ns
            if step >= -STEP_NS:
                return max(wall, self.time_ns), 0
        self._clock_base = wall - steady
        self._shift_ns += step
        return wall, step

    def append(self, body: bytes, count: int, time_ns: int) -> int:
        """Write one frame and move the end behind it; returns the offset of its body.

        Raises:
            OSError: the disk refused; what was written of the frame is cut off again.
        """
        seed = self._seed(self.segment)
        frame = codec.encode_frame(
            body, count, self.next_lsn, self.epoch, time_ns, self.durable_lsn, seed, self.offset
        )
        try:
            written = self.disk.write(self._tail, frame, self.offset)
            if written != len(frame):
                write_all(self.disk, self._tail, frame[written:], self.offset + written)
        except OSError:
            self.disk.truncate(self._tail, self.offset)
            raise
        self._mark()
        start = self.offset + codec.FRAME_HEADER_SIZE
        self.offset += len(frame)
        self.next_lsn += count
        self.time_ns = time_ns
        self._write_hint()
        return start

    def sync(self) -> None:
        """Make everything that this process knows of durable.

        Raises:
            OSError: it may be lost; ``fail`` must follow.
        """
        through = self.next_lsn
        self.disk.sync(self._tail)
        self.durable_lsn = max(self.durable_lsn, through)

    def fail(self, error: OSError) -> None:
        """After a failed fsync: nobody writes any more until the log is opened again."""
        hint = self.writer.acquire()
        try:
            mark_failed(self, error)
            if hint is not None:
                self.writer.write_hint(hint._replace(failed=1))
        finally:
            self.writer.release()

    def too_much_in_the_air(self) -> bool:
        """Whether so much is not synced that a loss could reach the ids after a restart."""
        return self.next_lsn - self.durable_lsn > LSN_SKIP // 2

    def _write_hint(self) -> None:
        self.writer.write_hint(
            TailHint(
                0,
                self.generation,
                self.boot,
                self.segment,
                self.offset,
                self.next_lsn,
                self.epoch,
                self.time_ns,
                self.durable_lsn,
                self._shift_ns,
            )
        )

    # -- reading ----------------------------------------------------------------------------------

    def start(self) -> Cursor:
        """The beginning of the log."""
        self._list_segments()
        if not self._segments:
            return self.end()
        first = self._segments[0]
        return Cursor(first, codec.SEGMENT_HEADER.size, first)

    def end(self) -> Cursor:
        """The end of the log as of the last ``lock`` or ``refresh``."""
        return Cursor(self.segment, self.offset, self.next_lsn)

    def is_at_end(self, cursor: Cursor) -> bool:
        """Whether nothing stands behind the cursor."""
        return cursor.offset == self.offset and cursor.segment == self.segment

    def frames(self, cursor: Cursor) -> Iterator[tuple[int, Frame | Gap]]:
        """(location of the segment's first byte, frame or damage) from the cursor to the known end.

        The cursor is moved behind each item before the next is read.
        """
        if cursor.segment not in self._ordinals:
            raise LogDamaged(f"{self.path}: segment {segment_name(cursor.segment)} is gone")
        while True:
            segment = cursor.segment
            last = segment == self.segment
            size = self.offset if last else self.disk.size(self._descriptor(segment))
            base = self._ordinals[segment] << _OFFSET_BITS
            scanner = self._scanner(segment, size, cursor.next_lsn, sealed=True)
            for item in scanner.frames(cursor.offset):
                if isinstance(item, Gap):
                    cursor.offset, cursor.next_lsn = item.resume, item.next_lsn
                else:
                    cursor.offset, cursor.next_lsn = item.end, item.header.next_lsn
                yield base, item
            cursor.offset = max(cursor.offset, size)
            if last:
                return
            following = self._following(segment)
            if following is None:
                return
            cursor.segment, cursor.offset = following, codec.SEGMENT_HEADER.size
            cursor.next_lsn = max(cursor.next_lsn, following)

    def damaged_frame(self, base: int, gap: Gap) -> tuple[codec.FrameHeader, bytes, int] | None:
        """(header, body, offset of the body) of the frame that a gap starts with.

        Where the header itself is damaged, one is put together from what must have been in it.
        """
        segment = self.segment_at(base)
        descriptor = self._descriptor(segment)
        data = self.disk.read(descriptor, min(gap.resume - gap.offset, codec.FRAME_BODY_MAX), gap.offset)
        if len(data) <= codec.FRAME_HEADER_SIZE:
            return None
        header = codec.decode_frame_header(data, 0, self._seed(segment), gap.offset)
        body = data[codec.FRAME_HEADER_SIZE :]
        if header is None:
            size = len(body)
            header = codec.FrameHeader(size, 1, gap.first_lsn, self.epoch, self.time_ns, 0, 0)
        return header, body[: header.body_size], gap.offset + codec.FRAME_HEADER_SIZE

    def segment_at(self, base: int) -> int:
        """First lsn of the segment whose first byte has this location."""
        return self._all[base >> _OFFSET_BITS]

    def record(self, location: int, lsn: int) -> bytes:
        """The record at a location, checked by its own CRC.

        Raises:
            LogDamaged: it does not read back as it was written.
        """
        record = self.unchecked_record(location)
        if not _is_whole(record, lsn):
            self._window = (-1, 0, b"")
            name = segment_name(self._all[location >> _OFFSET_BITS])
            offset = location & _OFFSET_MASK
            raise LogDamaged(f"{self.path}/log/{name}: record at offset {offset} does not read back")
        return record

    def unchecked_record(self, location: int) -> bytes:
        """The bytes of a record in a frame that was seen to be whole; fewer if the file is cut."""
        ordinal, offset = location >> _OFFSET_BITS, location & _OFFSET_MASK
        cached, start, data = self._window
        at = offset - start
        if cached == ordinal and 0 <= at and at + codec.ENQUEUED.size <= len(data):
            length = codec.LENGTH.unpack_from(data, at)[0]
            if at + length <= len(data):
                return data[at : at + length]
        descriptor = self._descriptor(self._all[ordinal])
        data = self.disk.read(descriptor, _READ_AHEAD, offset)
        self._window = (ordinal, offset, data)
        length = codec.LENGTH.unpack_from(data.ljust(4, b"\0"))[0]
        if _READ_AHEAD < length <= codec.FRAME_BODY_MAX:
            data = self.disk.read(descriptor, length, offset)
        return data[:length]

    def cursor_at(self, lsn: int) -> Cursor:
        """A cursor at or before the frame that holds ``lsn``."""
        number = bisect_right(self._marks, (lsn, self.segment, 2**62)) - 1
        if number >= 0:
            first_lsn, segment, offset = self._marks[number]
            return Cursor(segment, offset, first_lsn)
        self._list_segments()
        segment = max((s for s in self._segments if s <= lsn), default=self._segments[0])
        return Cursor(segment, codec.SEGMENT_HEADER.size, segment)

    def _mark(self) -> None:
        """Remember where the frame about to be written starts, now and then."""
        marks = self._marks
        if marks and marks[-1][1] == self.segment and self.offset - marks[-1][2] < _MARK_BYTES:
            return
        if len(marks) >= _MARKS_MAX:
            del marks[: _MARKS_MAX // 2]
        marks.append((self.next_lsn, self.segment, self.offset))

    def ordinal_base(self) -> int:
        """Location of the first byte of the segment that is written to."""
        return self._ordinals[self.segment] << _OFFSET_BITS

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        self._list_segments()
        return sum(self.disk.size(self._descriptor(lsn)) for lsn in self._segments)

    @property
    def descriptors(self) -> list[int]:
        """What a forked child has to close."""
        return [*self.writer.descriptors, *self._descriptors.values()]

    def close(self) -> None:
        """Close every file. The lock is given back if it was held."""
        self._forget_files()
        self.writer.close()

    # -- inside -----------------------------------------------------------------------------------

    def _scanner(self, segment: int, size: int, next_lsn: int, *, sealed: bool) -> Scanner:
        descriptor = self._descriptor(segment)
        disk = self.disk
        return Scanner(
            lambda count, offset: disk.read(descriptor, count, offset),
            self._seed(segment),
            size,
            next_lsn,
            sealed=sealed,
        )

    def _seed(self, segment: int) -> int:
        seed = self._seeds.get(segment)
        if seed is None:
            seed = self._seeds[segment] = codec.segment_seed(self.identity.log_id, segment)
        return seed

    def _list_segments(self) -> None:
        lsns = (segment_lsn(name) for name in self.disk.names(f"{self.path}/log"))
        self._segments = sorted(lsn for lsn in lsns if lsn is not None)
        for lsn in self._segments:
            if lsn not in self._ordinals:
                self._ordinals[lsn] = len(self._ordinals)
        self._all = list(self._ordinals)

    def _following(self, segment: int) -> int | None:
        later = [lsn for lsn in self._segments if segment < lsn <= self.segment]
        if not later and segment != self.segment:
            self._list_segments()
            later = [lsn for lsn in self._segments if segment < lsn <= self.segment]
        return min(later, default=None)

    def _descriptor(self, segment: int) -> int:
        descriptor = self._descriptors.get(segment)
        if descriptor is None:
            if len(self._descriptors) >= _DESCRIPTORS_MAX:
                oldest = next(lsn for lsn in self._descriptors if lsn != self.segment)
                self.disk.close(self._descriptors.pop(oldest))
            path = f"{self.path}/log/{segment_name(segment)}"
            try:
                descriptor = self.disk.open(path, write=self._writable)
            except OSError as error:
                raise LogError(f"{path}: cannot be opened ({error.strerror})") from error
            self._descriptors[segment] = descriptor
        return descriptor

    def _forget_files(self) -> None:
        for descriptor in self._descriptors.values():
            self.disk.close(descriptor)
        self._descriptors.clear()
        self._window = (-1, 0, b"")
        self._tail = -1
        self._marks.clear()


def _is_whole(record: bytes, lsn: int) -> bool:
    if len(record) < codec.ENQUEUED.size:
        return False
    return codec.crc32(record[:-4], lsn & 0xFFFFFFFF) == int.from_bytes(record[-4:], "little")
