"""The segment files of one log: their list, and reads of frames and single records."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from taskq.core import errors, views
from taskq.core.values import NamedTuple
from taskq.log.format import carried, codec, columns
from taskq.log.format.frames import Cursor, Frame, Gap, Scanner, segment_lsn, segment_name
from taskq.log.machine.ports import Disk, opened, write_all, write_file

if TYPE_CHECKING:
    from taskq.log.machine.meters import Meters
    from taskq.log.segments.identity import Identity

# Segments that have left the log, before their files are removed.

#: Suffix of such a segment.
GONE: Final = ".gone"
#: Suffix of an empty file whose name is an lsn: compaction removed the segments before it. A
#: COMPACTED record has the same lsn, but the file name needs no search.
FLOOR: Final = ".floor"


def sweep_gone(disk: Disk, directory: str) -> None:
    """Remove the files of such segments, even of a killed process; no lock is needed."""
    names = disk.names(directory)
    for name in [file for file in names if file.endswith(FLOOR)][:-1]:
        disk.remove(f"{directory}/{name}")
    for name in names:
        if name.endswith(GONE):
            with contextlib.suppress(PermissionError):  # another program has it open: later
                disk.remove(f"{directory}/{name.removesuffix('.log' + GONE)}.idx")
                disk.remove(f"{directory}/{name}")


_READ_AHEAD: Final = 16 * 1024
_READ_AHEAD_MAX: Final = 256 * 1024
#: Records in one search of a window.
_READ_MANY: Final = 256
#: Piece size in which a file is read around bad blocks of a disk.
_BLOCK: Final = 4_096
_DESCRIPTORS_MAX: Final = 32
OFFSET_BITS: Final = 32
_OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1


class SegmentGone(errors.LogError):
    """Compaction removed the segment: folds begin anew, lookups search again.

    It is no ``LogDamaged``, for which a claim would end the job with the unreadable record.
    """


class Walk(NamedTuple):
    """Result of a walk to the last whole frame."""

    #: end of that frame
    offset: int
    next_lsn: int
    #: its header, None if there was no frame
    last: codec.FrameHeader | None
    #: highest lsn that a frame declares synced
    synced_through: int
    #: number of damaged parts before the end
    gaps: int
    is_torn: bool
    #: offset of the last frame, 0 if there was none
    last_offset: int


class SegmentFiles:
    """Segments by their first lsn, opened when needed.

    A location is one number: the segment's ordinal in this process, and an offset in the file.
    """

    def __init__(self, disk: Disk, path: str, *, writable: bool) -> None:
        self._disk = disk
        self.path = path
        self._writable = writable
        self._identity: Identity
        self.lsns: list[int] = []
        #: compaction removed segments before this lsn, according to the directory
        self.floor: int = 0
        #: the segment that is written to, which is never closed to make room
        self.pinned = -1
        self._by_ordinal: list[int] = []
        self._ordinals: dict[int, int] = {}
        self._descriptors: dict[int, int] = {}
        self._seeds: dict[int, int] = {}
        self._sealed_sizes: dict[int, int] = {}
        self._window = (-1, 0, b"")
        #: reading found damage
        self.is_damaged: bool = False
        #: called when segments may be removed: open files keep the disk from freeing their bytes
        self.when_fewer: Callable[[], None] = _do_nothing

    @property
    def identity(self) -> Identity:
        """Identity of the directory's log; some segments may belong to its parents."""
        return self._identity

    @identity.setter
    def identity(self, identity: Identity) -> None:
        self._identity = identity
        self._seeds.clear()

    # -- list of segments -------------------------------------------------------------------------

    def refresh(self) -> list[str]:
        """List the segments again; return the names of all files in their folder."""
        names = self._disk.names(f"{self.path}/log")
        self.lsns = sorted(lsn for name in names if (lsn := segment_lsn(name)) is not None)
        floors = (name.removesuffix(FLOOR) for name in names if name.endswith(FLOOR))
        self.floor = max((int(stem) for stem in floors if stem.isdecimal()), default=0)
        self.number(self.lsns)
        if self._writable:  # a reader may finish a removed segment
            for lsn in self._descriptors.keys() - {*self.lsns, self.pinned}:
                self._disk.close(self._descriptors.pop(lsn))
            self.when_fewer()
        return names

    def __contains__(self, lsn: int) -> bool:
        return lsn in self._ordinals

    def after(self, lsn: int, last: int) -> int | None:
        """Return the next segment, up to ``last``."""
        later = [first for first in self.lsns if lsn < first <= last]
        if not later and lsn != last:
            self.refresh()
            later = [first for first in self.lsns if lsn < first <= last]
        return min(later, default=None)

    def header(self, lsn: int) -> codec.SegmentHeader | None:
        """Return the segment's header, rebuilt from its name and first frame if damaged.

        None if the file does not begin like this segment.

        Raises:
            FormatError: a newer taskq wrote it.
        """
        return self._scanned(lsn).segment_header(self.identity.owner(lsn).log_id, lsn)

    def frame_header(self, lsn: int, offset: int) -> codec.FrameHeader | None:
        """Return the header of the frame at ``offset``, None if it is not whole."""
        return self._scanned(lsn).header_at(offset)

    def _scanned(self, lsn: int) -> Scanner:
        return self.scanner(lsn, 0, 0, sealed=True)

    def has_damaged_header(self, lsn: int) -> bool:
        """Return whether the file has bytes after an invalid header."""
        data = self._read(self.descriptor(lsn), codec.SEGMENT_HEADER.size + 1, 0)
        if len(data) <= codec.SEGMENT_HEADER.size:
            return False
        header = codec.decode_segment_header(data, self.file_path(lsn))
        return header is None or header[0] != lsn or header.log_id != self.owner(lsn)

    def owner(self, lsn: int) -> bytes:
        """Return the id of the log that wrote the segment: this log or a parent."""
        return self.identity.owner(lsn).log_id.bytes

    def bound(self, lsn: int) -> int:
        """Return an lsn above every record that the segment can have."""
        return lsn + self.size(lsn) // codec.PREFIX.size

    def file_path(self, lsn: int) -> str:
        """Return the path of a segment's file."""
        return f"{self.path}/log/{segment_name(lsn)}"

    def create(self, lsn: int, epoch: int, time_ns: int, link: codec.Link) -> None:
        """Make a segment without frames, durably; an old file of that name is emptied."""
        header = codec.SegmentHeader(lsn, epoch, self.owner(lsn), time_ns, link)
        write_file(self._disk, self.file_path(lsn), codec.encode_segment_header(header))
        self._disk.sync_directory(f"{self.path}/log")
        self.refresh()

    def relink(self, lsn: int, link: codec.Link) -> None:
        """Change a segment's link to the end before it, durably."""
        header = self.header(lsn)
        if header is None or header.link == link:
            return
        data = codec.encode_segment_header(header._replace(link=link))
        descriptor = self.descriptor(lsn)
        write_all(self._disk, descriptor, data, 0)
        self._disk.sync(descriptor)

    def remove_empty(self, last: int) -> None:
        """Remove segments without frames, except the last segment."""
        for lsn in list(self.lsns):
            # A segment with a damaged header stays if it has more bytes.
            if lsn != last and self.size(lsn) <= codec.SEGMENT_HEADER.size:
                # On Windows an open file keeps its name, which the next segment may need.
                self._disk.close(self._descriptors.pop(lsn))
                self._window = (-1, 0, b"")
                self._disk.remove(self.file_path(lsn))
                self.lsns.remove(lsn)

    def remove(self, lsn: int) -> None:
        """Remove a segment from the log, if it exists; ``sweep_gone`` removes its file.

        A rename takes a moment; removing a large file took 45 ms under the writer lock.
        """
        descriptor = self._descriptors.pop(lsn, None)
        if descriptor is not None:
            self._disk.close(descriptor)
        self._window = (-1, 0, b"")
        path = self.file_path(lsn)
        following = min((first for first in self.lsns if first > lsn), default=None)
        if following is not None:
            with contextlib.suppress(OSError):  # on a full disk the log's record suffices
                floor = f"{self.path}/log/{following:020d}{FLOOR}"
                self._disk.close(self._disk.open(floor, create=True))
        with contextlib.suppress(FileNotFoundError):
            self._disk.rename(path, path + GONE, waits=False)
        if lsn in self.lsns:
            self.lsns.remove(lsn)
        self.when_fewer()

    def size(self, lsn: int) -> int:
        return self._disk.size(self.descriptor(lsn))

    def sealed_size(self, lsn: int) -> int:
        """Return the size of a segment that no longer grows; looked up once."""
        size = self._sealed_sizes.get(lsn)
        if size is None:
            size = self._sealed_sizes[lsn] = self.size(lsn)
        return size

    def total_size(self) -> int:
        """Return the size of all segments."""
        self.refresh()
        total = 0
        for lsn in self.lsns:
            with contextlib.suppress(SegmentGone):  # another process compacts the log
                total += self.size(lsn)
        return total

    # -- descriptors ------------------------------------------------------------------------------

    def descriptor(self, lsn: int) -> int:
        """Return an open descriptor of a segment.

        Raises:
            SegmentGone: the segment was removed.
            LogError: it cannot be opened.
        """
        descriptor = self._descriptors.pop(lsn, None)
        if descriptor is None:
            if len(self._descriptors) >= _DESCRIPTORS_MAX:
                oldest = next(first for first in self._descriptors if first != self.pinned)
                self._disk.close(self._descriptors.pop(oldest))
            try:
                descriptor = self._disk.open(self.file_path(lsn), write=self._writable)
            except FileNotFoundError as error:
                raise self._gone(lsn) from error
            except OSError as error:
                raise errors.refusal(self.file_path(lsn), error) from error
        # The latest used is closed last.
        self._descriptors[lsn] = descriptor
        return descriptor

    @contextlib.contextmanager
    def looked_at(self) -> Iterator[SegmentFiles]:
        """Return the same files for one pass over all of them: read-only, with fewer calls.

        Write nothing meanwhile, since each size is looked up once. The sizes of sealed segments
        stay known.
        """
        files = SegmentFiles(self._disk, self.path, writable=False)
        files.identity, files.lsns, files.floor = self.identity, list(self.lsns), self.floor
        try:
            yield files
            sizes = files._sealed_sizes.items()
            self._sealed_sizes.update((lsn, size) for lsn, size in sizes if lsn < self.pinned)
        finally:
            files.forget()

    def sorted_out(self) -> tuple[list[int], list[int]]:
        """Return (segments with a header, highest possible lsns of other segments), in order."""
        with self.looked_at() as looked:
            usable = [lsn for lsn in self.lsns if looked.header(lsn) is not None]
            others = sorted(set(self.lsns).difference(usable))
            return usable, [looked.bound(lsn) for lsn in others if looked.size(lsn)]

    def close_others(self) -> None:
        """Close all but the growing segment: a removed file frees its bytes only when closed."""
        for lsn in self._descriptors.keys() - {self.pinned}:
            self._disk.close(self._descriptors.pop(lsn))

    def forget(self) -> None:
        """Close every file, and drop cached bytes, which may be outdated."""
        for descriptor in self._descriptors.values():
            self._disk.close(descriptor)
        self._descriptors.clear()
        self._sealed_sizes.clear()
        self._window = (-1, 0, b"")

    # -- reading ----------------------------------------------------------------------------------

    def cursor_at(self, lsn: int) -> Cursor | None:
        """Return the start of the segment with ``lsn``, or of the first; None without segments."""
        self.refresh()
        if not self.lsns:
            return None
        segment = max((first for first in self.lsns if first <= lsn), default=self.lsns[0])
        return Cursor(segment, codec.SEGMENT_HEADER.size, segment)

    def walk(self, lsn: int, size: int, offset: int, next_lsn: int, *, in_order: bool) -> Walk:
        """Return the end of a last segment's whole frames; ``in_order`` as for ``Scanner``."""
        last, synced_through, last_offset, gaps = None, 0, 0, 0
        scanner = self.scanner(lsn, size, next_lsn, sealed=False, in_order=in_order)
        for item in scanner.frames(offset):
            if not isinstance(item, Gap):
                offset, last, next_lsn = item.end, item.header, item.header.next_lsn
                last_offset = item.offset
                synced_through = max(synced_through, last.synced_through)
            elif item.torn:
                return Walk(item.offset, next_lsn, last, synced_through, gaps, True, last_offset)
            else:
                offset, next_lsn, gaps = item.end, item.next_lsn, gaps + 1
        return Walk(offset, next_lsn, last, synced_through, gaps, False, last_offset)

    def frames(self, cursor: Cursor, end: Cursor) -> Iterator[tuple[int, Frame | Gap]]:
        """Do as ``Journal.frames``."""
        if cursor.segment > end.segment:
            raise self._gone(end.segment)
        while end.segment:  # 0 for an empty log
            segment = cursor.segment
            if segment not in self:
                raise self._gone(segment)
            last = segment == end.segment
            size = end.offset if last else self.size(segment)
            base = self.base(segment)
            if cursor.offset == codec.SEGMENT_HEADER.size and self.has_damaged_header(segment):
                yield base, Gap(0, cursor.offset, segment, segment, torn=False)
            for item in self.scanner(segment, size, cursor.next_lsn, sealed=True).frames(
                cursor.offset
            ):
                cursor.offset, cursor.next_lsn = item.end, item.next_lsn
                if isinstance(item, Gap):
                    self.is_damaged = True
                    cursor.frame = -1
                    yield base, item
                    continue
                cursor.frame = item.offset
                if not item.header.is_sync_point:
                    yield base, item
            if cursor.offset < size:
                cursor.offset, cursor.frame = size, -1
            following = None if last else self._successor(segment, end.segment)
            if following is None:
                return
            cursor.segment, cursor.offset = following, codec.SEGMENT_HEADER.size
            cursor.next_lsn = max(cursor.next_lsn, following)
            cursor.frame = -1

    def _successor(self, segment: int, last: int) -> int | None:
        """Return the segment after a finished one.

        Segments are removed from the oldest on: while this one is listed, all later ones are.
        """
        following = self.after(segment, last)
        if segment not in self.lsns:
            raise self._gone(segment)
        return following

    def _gone(self, segment: int) -> SegmentGone:
        return SegmentGone(f"{self.path}: {segment_name(segment)} is gone")

    def numbered(self) -> list[int]:
        """Return the segments by their ordinals in locations, including removed ones."""
        return list(self._by_ordinal)

    def number(self, lsns: list[int]) -> list[int]:
        """Return the ordinals of segments in locations; missing segments get one, too."""
        for lsn in lsns:
            if lsn not in self._ordinals:
                self._ordinals[lsn] = len(self._by_ordinal)
                self._by_ordinal.append(lsn)
        return [self._ordinals[lsn] for lsn in lsns]

    def base(self, lsn: int) -> int:
        """Return the location of a segment's first byte."""
        return self._ordinals[lsn] << OFFSET_BITS

    def segment_at(self, location: int) -> int:
        """Return the segment of a location, by its first lsn."""
        return self._by_ordinal[location >> OFFSET_BITS]

    def seed(self, lsn: int) -> int:
        """Return the segment's part of its frames' CRC seed."""
        seed = self._seeds.get(lsn)
        if seed is None:
            seed = self._seeds[lsn] = codec.segment_seed(self.identity.owner(lsn).log_id, lsn)
        return seed

    def scanner(
        self, lsn: int, size: int, next_lsn: int, *, sealed: bool, in_order: bool = False
    ) -> Scanner:
        """Return a scanner of a segment's frames."""
        # An unreadable tail is not torn: no process may cut it.
        read = self._read if sealed else self._disk.read
        self.descriptor(lsn)
        return Scanner(
            # Opened for each read: other files may have been opened between two reads.
            lambda count, offset: read(self.descriptor(lsn), count, offset),
            self.seed(lsn),
            size,
            next_lsn,
            sealed=sealed,
            in_order=in_order,
            name=self.file_path(lsn),
        )

    def _read(self, descriptor: int, count: int, offset: int) -> bytes:
        """Read from the disk; unreadable blocks become zeros, and fail their CRC."""
        try:
            return self._disk.read(descriptor, count, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        end = min(offset + count, self._disk.size(descriptor))
        parts: list[bytes] = []
        while offset < end:
            size = min(_BLOCK - offset % _BLOCK, end - offset)
            try:
                parts.append(self._disk.read(descriptor, size, offset).ljust(size, b"\0"))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                parts.append(bytes(size))
            offset += size
        return b"".join(parts)

    def damaged_frame(self, location: int, gap: Gap) -> tuple[codec.FrameHeader, bytes, int] | None:
        """Return (header, body, offset of the body) of the frame at the start of a gap.

        A damaged header is rebuilt from its known fields.
        """
        lsn = self.segment_at(location)
        size = min(gap.size, codec.FRAME_BODY_MAX)
        data = self._read(self.descriptor(lsn), size, gap.offset)
        if len(data) <= codec.FRAME_HEADER_SIZE:
            return None
        header = codec.decode_frame_header(data, 0, self.seed(lsn), gap.offset)
        body = data[codec.FRAME_HEADER_SIZE :]
        if header is None:
            opened = self.header(lsn)
            epoch, time_ns = (opened.epoch, opened.created_ns) if opened is not None else (0, 0)
            header = codec.FrameHeader(len(body), 1, gap.first_lsn, epoch, time_ns, 0, 0)
        return header, body[: header.body_size], gap.offset + codec.FRAME_HEADER_SIZE

    def damage(self, location: int, gap: Gap, salvaged: int) -> views.Damage:
        """Return the damage of a gap with this number of salvaged records."""
        return views.Damage(
            segment=segment_name(self.segment_at(location)), offset=gap.offset, size=gap.size,
            first_lsn=gap.first_lsn, next_lsn=gap.next_lsn, salvaged=salvaged,
        )  # fmt: skip

    def record(self, location: int, lsn: int) -> bytes:
        """Return the ENQUEUED record of a job, checked by its own CRC.

        It is at the location, or within a record there that carries it.

        Raises:
            LogDamaged: it fails its CRC.
        """
        record = self.unchecked_record(location)
        if carried.is_carrying(record):
            with contextlib.suppress(errors.FormatError):
                record = carried.born_in(record)
        if not _is_whole(record, lsn):
            self._window = (-1, 0, b"")
            path = self.file_path(self.segment_at(location))
            offset = location & _OFFSET_MASK
            raise errors.LogDamaged(f"{path}: the record at offset {offset} does not read back")
        return record

    def records(self, locations: Sequence[int], lsns: Sequence[int]) -> list[bytes]:
        """Do as ``record`` for many records, most of them adjacent.

        A backlog is read like this: one call per job would cost as much as the rest of a claim.
        """
        records: list[bytes] = []
        while (done := len(records)) < len(lsns):
            ordinal, start, data = self._window
            part = slice(done, done + _READ_MANY)
            first = (ordinal << OFFSET_BITS) + start
            run = columns.whole_records(data, first, locations[part], lsns[part])
            # In another window, or carried, or damaged.
            records += run or [self.record(locations[done], lsns[done])]
        return records

    def unchecked_record(self, location: int, most: int = codec.FRAME_BODY_MAX) -> bytes:
        """Return a record of a whole frame, or its first ``most`` bytes.

        The result is shorter if the file was cut.
        """
        ordinal, offset = location >> OFFSET_BITS, location & _OFFSET_MASK
        cached, start, data = self._window
        at = offset - start
        if cached == ordinal and at >= 0 and at + codec.BORN.size <= len(data):
            length = min(codec.LENGTH.unpack_from(data, at)[0], most)
            if at + length <= len(data):
                return data[at : at + length]
        descriptor = self.descriptor(self._by_ordinal[ordinal])
        # A reader that continues after its last read is likely to read much.
        is_sequential = cached == ordinal and 0 < at <= len(data)
        ahead = min(2 * len(data), _READ_AHEAD_MAX) if is_sequential else _READ_AHEAD
        data = self._read(descriptor, max(ahead, _READ_AHEAD), offset)
        self._window = (ordinal, offset, data)
        length = min(codec.LENGTH.unpack_from(data.ljust(4, b"\0"))[0], most)
        if len(data) < length <= codec.FRAME_BODY_MAX:
            data = self._read(descriptor, length, offset)
        return data[:length]


def _do_nothing() -> None: ...


def _is_whole(record: bytes, lsn: int) -> bool:
    is_long = len(record) >= codec.BORN.size
    return is_long and codec.crc32(record, lsn & 0xFFFFFFFF) == codec.CRC_OF_WHOLE


def write_segment(
    disk: Disk,
    path: str,
    header: codec.SegmentHeader,
    frames: Iterable[tuple[codec.FrameHeader, bytes]],
) -> tuple[int, codec.Link]:
    """Write a segment of frames and their bodies, durably; return their count and its end."""
    count = offset = 0
    end = codec.NO_LINK
    with opened(disk, path, create=True) as descriptor:
        disk.truncate(descriptor, 0)
        for count, (data, end) in enumerate(encode_segment(header, frames)):  # noqa: B007 - how many
            write_all(disk, descriptor, data, offset)
            offset += len(data)
        disk.sync(descriptor)
    return count, end


def encode_segment(
    header: codec.SegmentHeader, frames: Iterable[tuple[codec.FrameHeader, bytes]]
) -> Iterator[tuple[bytes, codec.Link]]:
    """Yield the header and each frame, with the link to it as the segment's end."""
    seed = codec.segment_seed(UUID(bytes=header.log_id), header.first_lsn)
    offset = codec.SEGMENT_HEADER.size
    yield codec.encode_segment_header(header), codec.NO_LINK
    for head, body in frames:
        data = codec.encode_frame(
            body, head.records, head.first_lsn, head.epoch, head.time_ns, head.synced_through,
            seed, offset,
        )  # fmt: skip
        crc = codec.LENGTH.unpack_from(data, codec.FRAME_HEADER_SIZE - codec.CRC_SIZE)[0]
        yield data, codec.Link(offset, crc)
        offset += len(data)


class Extent(NamedTuple):
    """The end of the readable log.

    ``offset`` of ``segment`` ends its last whole frame; records from ``lsn`` on do not count yet.
    """

    segment: int
    offset: int
    lsn: int


def hop(
    files: SegmentFiles, segment: int, offset: int, size: int
) -> Iterator[tuple[int, codec.FrameHeader]]:
    return files.scanner(segment, size, 0, sealed=True).hop(offset)


class Place(Protocol):
    """The log's files, and its end as one process knows it: its ``Journal``.

    Attributes:
        segment, offset, next_lsn: of the end.
        meters: counters of this process.
    """

    disk: Disk
    path: str
    files: SegmentFiles
    segment: int
    offset: int
    next_lsn: int
    meters: Meters

    @property
    def lost(self) -> tuple[views.Damage, ...]: ...
    def start(self) -> Cursor: ...
    def end(self) -> Cursor: ...
    def mark_before(self, lsn: int) -> Cursor | None:
        """Return a nearby frame of this process at or before a record, if there is one."""

    def frames(self, cursor: Cursor) -> Iterator[tuple[int, Frame | Gap]]:
        """Yield (location of the segment's first byte, frame or damage) from the cursor on."""
