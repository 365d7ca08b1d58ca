"""The index of a sealed segment as its file tells it, a page at a time."""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.columns import column, packed, view
from taskq.log.format.frames import segment_lsn, segment_name
from taskq.log.machine.ports import write_all
from taskq.log.segments import index_format
from taskq.log.segments.index_format import (
    ENTRIES_A_PAGE,
    HASH_SIZE,
    HEADER_SIZE,
    PLACE_SIZE,
    PLACES_A_PAGE,
    STEP,
    BloomBuilder,
    Counts,
    IndexHeader,
    Offsets,
    decode_header,
    encode_header,
)
from taskq.log.segments.index_memory import ENTRY_SIZE, Entries

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from taskq.log.machine.ports import Disk
    from taskq.log.segments.index_build import IndexBuilder
    from taskq.log.segments.index_memory import Entry

#: Pages that are kept in memory: 1.5 MB, of all indexes together.
PAGES_MAX: Final = 256


class IndexDamaged(Exception):
    """The file does not read back as it was written: it must be written anew."""


class _Directory(NamedTuple):
    """The first of each page, and the pages' CRCs."""

    jobs: array[int]
    lsns: array[int]
    times: array[int]
    offsets: array[int]
    crcs: array[int]


class SegmentIndex:
    """A file that is whole as far as its header and directory tell; pages are checked as read.

    Attributes:
        header: what it says of its segment.
        clocks: (lsn, step) of each step of the clock.

    Args:
        disk: read through it.
        path: of the file.
        pages: read lately, shared with other indexes.

    Raises:
        IndexDamaged: it is not.
        OSError: there is none, or it cannot be read.
    """

    def __init__(self, disk: Disk, path: str, pages: dict[tuple[str, int], bytes]) -> None:
        self._disk = disk
        self._path = path
        self._pages = pages
        self._descriptor = disk.open(path, write=False)
        try:
            self.header = self._read_header()
            self._offsets = Offsets.of(self.header.counts)
            size = sum(self.header.counts.sizes()[-2:])
            tail = self._read(self._offsets.steps, size, self.header.directory_crc)
        except BaseException:
            self.close()
            raise
        steps_size = self.header.counts.steps * STEP.size
        self.clocks: list[tuple[int, int]] = list(STEP.iter_unpack(tail[:steps_size]))
        self._directory = _directory(self.header, tail[steps_size:])

    def _read_header(self) -> IndexHeader:
        data = self._disk.read(self._descriptor, HEADER_SIZE, 0)
        header = decode_header(data, self._disk.size(self._descriptor))
        if header is None:
            raise IndexDamaged(self._path)
        return header

    def close(self) -> None:
        """Give the descriptor back: who asks then gets an OSError, and no bytes of another file."""
        self._disk.close(self._descriptor)
        self._descriptor = -1

    # -- what the header says ---------------------------------------------------------------------

    @property
    def first_lsn(self) -> int:
        """Of the segment."""
        return self.header.first_lsn

    @property
    def next_lsn(self) -> int:
        """After the last record."""
        return self.header.next_lsn

    @property
    def top_time_ns(self) -> int:
        """The highest time of a frame."""
        return self.header.top_time_ns

    @property
    def offset(self) -> int:
        """Up to where the segment is indexed: all of it."""
        return self.header.segment_size

    @property
    def job_range(self) -> tuple[int, int]:
        """The lowest and the highest job that a record is about."""
        return self.header.job_min, self.header.job_max

    @property
    def salvaged(self) -> dict[int, codec.FrameHeader]:
        """None: a segment with damage has no file."""
        return {}

    # -- lookups, all of which raise IndexDamaged or OSError --------------------------------------

    def may_hold(self, job: int) -> bool:
        """False if no record but its own is about the job.

        True for 1 % of such jobs, too, and for all whose own record is in the segment.
        """
        header = self.header
        if not header.job_min <= job <= header.job_max:
            return False
        return header.first_lsn <= job < header.next_lsn or self._filter_holds(job)

    def may_hold_key(self, hashed: int) -> bool:
        """False if no job took a key of this hash; True for 1 % of such hashes, too."""
        return self._filter_holds(hashed)

    def job_places(self, job: int) -> list[int]:
        """Offsets of the records that are about the job, its own left out."""
        firsts = self._directory.jobs
        places: list[int] = []
        for number in range(max(bisect_left(firsts, job) - 1, 0), len(firsts)):
            if firsts[number] > job:
                break
            page = self._page(number)
            count = len(page) // PLACE_SIZE
            data = memoryview(page)
            jobs = view("Q", data[: 8 * count])
            start, end = bisect_left(jobs, job), bisect_right(jobs, job)
            places += view("I", data[8 * count + 4 * start : 8 * count + 4 * end])
        return places

    def spilled(self) -> set[bytes]:
        """Hashes of the bodies that stand in files of their own."""
        size = self.header.counts.hashes * HASH_SIZE
        data = self._read(self._offsets.hashes, size, self.header.hashes_crc)
        return {data[at : at + HASH_SIZE] for at in range(0, size, HASH_SIZE)}

    def at_lsn(self, lsn: int) -> Entry | None:
        """Return the last entry at or before a record."""
        number = bisect_right(self._directory.lsns, lsn) - 1
        return self._entries(number).at_lsn(lsn) if number >= 0 else None

    def at_offset(self, offset: int) -> Entry | None:
        """Return the last entry at or before an offset."""
        number = bisect_right(self._directory.offsets, offset) - 1
        return self._entries(number).at_offset(offset) if number >= 0 else None

    def before_time(self, time_ns: int) -> Entry | None:
        """Return the last entry up to which all is older."""
        number = bisect_left(self._directory.times, time_ns) - 1
        return self._entries(number).before_time(time_ns) if number >= 0 else None

    # -- pages ------------------------------------------------------------------------------------

    def _entries(self, number: int) -> Entries:
        return Entries.of(self._page(self.header.counts.place_pages + number))

    def _filter_holds(self, key: int) -> bool:
        counts = self.header.counts
        if not counts.filter_pages:
            return False
        word = index_format.mixed(key)
        number = index_format.page_of(word, counts.filter_pages)
        page = self._page(counts.place_pages + counts.entry_pages + number)
        return index_format.page_holds(page, word)

    def _page(self, number: int) -> bytes:
        """Return a page by its number in the directory."""
        pages, key = self._pages, (self._path, number)
        page = pages.pop(key, None)
        if page is None:
            offset, size = self._span(number)
            page = self._read(offset, size, self._directory.crcs[number])
            if len(pages) >= PAGES_MAX:
                del pages[next(iter(pages))]
        pages[key] = page  # the latest used is the last to go
        return page

    def _span(self, number: int) -> tuple[int, int]:
        """(offset, size) of a page by its number in the directory."""
        counts, offsets = self.header.counts, self._offsets
        for start, pages, count, items, item_size in (
            (offsets.places, counts.place_pages, counts.places, PLACES_A_PAGE, PLACE_SIZE),
            (offsets.entries, counts.entry_pages, counts.entries, ENTRIES_A_PAGE, ENTRY_SIZE),
        ):
            if number < pages:
                first = number * items
                return start + first * item_size, min(items, count - first) * item_size
            number -= pages
        return offsets.filter + number * index_format.PAGE_SIZE, index_format.PAGE_SIZE

    def _read(self, offset: int, size: int, crc: int) -> bytes:
        data = self._disk.read(self._descriptor, size, offset)
        if len(data) != size or codec.crc32(data) != crc:
            raise IndexDamaged(self._path)
        return data


def _directory(header: IndexHeader, data: bytes) -> _Directory:
    counts = header.counts
    pages = counts.place_pages + counts.entry_pages + counts.filter_pages
    columns: list[array[int]] = []
    start = 0
    for code, count, size in (
        ("Q", counts.place_pages, 8),
        ("Q", counts.entry_pages, 8),
        ("q", counts.entry_pages, 8),
        ("I", counts.entry_pages, 4),
        ("I", pages, 4),
    ):
        columns.append(column(code, data[start : start + count * size]))
        start += count * size
    return _Directory(*columns)


# Writing the index of a sealed segment beside it, in steps of a millisecond or two.

_SUFFIX: Final = ".idx"
_TEMPORARY: Final = ".tmp"
#: Bytes that are handed to the disk at a time.
_WRITE: Final = 64 * 1024
_PAGES_A_STEP: Final = 8
#: Bytes that are synced at a time: no step waits long for the disk.
_SYNC: Final = 1024 * 1024


def index_name(first_lsn: int) -> str:
    """File name of the index of a segment."""
    return segment_name(first_lsn).removesuffix(".log") + _SUFFIX


def remove_strays(disk: Disk, directory: str) -> None:
    """Remove the indexes of segments that are gone, and what was left of writing them."""
    names = disk.names(directory)
    segments = {segment_lsn(name) for name in names}
    for name in names:
        stem, dot, _ = name.partition(_SUFFIX)
        if dot and segment_lsn(f"{stem}.log") not in segments:
            disk.remove(f"{directory}/{name}")


def save_steps(
    disk: Disk, directory: str, builder: IndexBuilder, log_id: bytes, segment_size: int
) -> Generator[None, None, int]:
    """Write the index of a segment that was fed to its end, in steps; returns the file's size.

    It takes its name when it is whole on disk. Several processes may do this at a time: each writes
    a file of its own, of the same bytes.

    Raises:
        OSError: the disk refused; nothing is left of the file.
    """
    name = index_name(builder.first_lsn)
    temporary = f"{directory}/{name}.{os.urandom(4).hex()}{_TEMPORARY}"
    try:
        descriptor = disk.open(temporary, create=True)
        try:
            yield from _Writer(disk, descriptor).write(builder, log_id, segment_size)
            disk.sync(descriptor)
            size = disk.size(descriptor)
        finally:
            disk.close(descriptor)
        yield
        disk.rename(temporary, f"{directory}/{name}")
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        raise
    # What a crash left of another try. A living process that loses its file here finds the name
    # taken by one of the same bytes.
    for other in disk.names(directory):
        if other.startswith(f"{name}.") and other.endswith(_TEMPORARY):
            disk.remove(f"{directory}/{other}")
    disk.sync_directory(directory)
    return size


class _Writer:
    """A file being written."""

    def __init__(self, disk: Disk, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._at = HEADER_SIZE
        self._parts: list[bytes] = []
        self._waiting = self._unsynced = 0
        #: of the pages written so far
        self._crcs = array("I")

    def write(self, builder: IndexBuilder, log_id: bytes, segment_size: int) -> Iterator[None]:
        strangers, first_jobs = array("Q"), array("Q")
        yield from self._write_places(builder, strangers, first_jobs)
        yield from self._write_entries(builder)
        keys = strangers + builder.keys
        yield from self._write_filter(keys)
        hashes = b"".join(sorted(builder.spilled()))
        self._add(hashes)
        tail = b"".join(STEP.pack(*step) for step in builder.clocks)
        tail += self._directory(builder, first_jobs)
        self._add(tail)
        self._flush()
        counts = Counts(
            len(builder.entries), builder.places.size, index_format.pages_for(len(keys)),
            len(hashes) // 32, len(builder.clocks), len(keys),
        )  # fmt: skip
        header = IndexHeader(
            log_id, builder.first_lsn, builder.next_lsn, segment_size, builder.first_time_ns,
            builder.last_time_ns, builder.top_time_ns, builder.first_epoch, builder.last_epoch,
            *builder.job_range, builder.last_frame, counts, codec.crc32(hashes), codec.crc32(tail),
        )  # fmt: skip
        write_all(self._disk, self._descriptor, encode_header(header), 0)

    def _write_places(
        self, builder: IndexBuilder, strangers: array[int], first_jobs: array[int]
    ) -> Iterator[None]:
        jobs, offsets = array("Q"), array("I")
        for more_jobs, more_offsets in builder.places.parts():
            start = bisect_left(more_jobs, builder.first_lsn)
            end = bisect_left(more_jobs, builder.next_lsn)
            strangers.extend(dict.fromkeys(more_jobs[:start] + more_jobs[end:]))
            jobs += more_jobs
            offsets += more_offsets
            whole = len(jobs) // PLACES_A_PAGE * PLACES_A_PAGE
            for start in range(0, whole, PLACES_A_PAGE):
                self._add_places(jobs, offsets, start, first_jobs)
            del jobs[:whole], offsets[:whole]
            yield
        if jobs:
            self._add_places(jobs, offsets, 0, first_jobs)

    def _add_places(
        self, jobs: array[int], offsets: array[int], start: int, first_jobs: array[int]
    ) -> None:
        end = start + PLACES_A_PAGE
        first_jobs.append(jobs[start])
        self._add_page(packed(jobs[start:end]) + packed(offsets[start:end]))

    def _write_entries(self, builder: IndexBuilder) -> Iterator[None]:
        entries = builder.entries
        for number, start in enumerate(range(0, len(entries), ENTRIES_A_PAGE)):
            self._add_page(entries.page(start, start + ENTRIES_A_PAGE))
            if not number % _PAGES_A_STEP:
                yield

    def _write_filter(self, keys: array[int]) -> Iterator[None]:
        bits = BloomBuilder(len(keys))
        for start in range(0, len(keys), index_format.STEP_KEYS):
            bits.add(keys[start : start + index_format.STEP_KEYS])
            yield
        for number in range(bits.pages):
            self._add_page(bits.page(number))
            if not number % _PAGES_A_STEP:
                yield

    def _directory(self, builder: IndexBuilder, first_jobs: array[int]) -> bytes:
        entries = builder.entries
        firsts = [entries[number] for number in range(0, len(entries), ENTRIES_A_PAGE)]
        columns = (
            first_jobs,
            array("Q", [entry.lsn for entry in firsts]),
            array("q", [entry.time_ns for entry in firsts]),
            array("I", [entry.offset for entry in firsts]),
            self._crcs,
        )
        return b"".join(map(packed, columns))

    def _add_page(self, page: bytes) -> None:
        self._crcs.append(codec.crc32(page))
        self._add(page)

    def _add(self, data: bytes) -> None:
        self._parts.append(data)
        self._waiting += len(data)
        if self._waiting >= _WRITE:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._parts)
        write_all(self._disk, self._descriptor, data, self._at)
        self._at += len(data)
        self._parts.clear()
        self._waiting = 0
        self._unsynced += len(data)
        if self._unsynced >= _SYNC:
            self._disk.sync(self._descriptor)
            self._unsynced = 0
