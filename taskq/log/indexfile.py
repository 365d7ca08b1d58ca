"""The index of a sealed segment as its file tells it, a page at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.log import bloom, codec
from taskq.log.columns import column, view
from taskq.log.indexformat import (
    ENTRIES_A_PAGE,
    HASH_SIZE,
    HEADER_SIZE,
    PLACE_SIZE,
    PLACES_A_PAGE,
    STEP,
    IndexHeader,
    Offsets,
    decode_header,
)
from taskq.log.sparse import ENTRY_SIZE, Entries

if TYPE_CHECKING:
    from array import array

    from taskq.log.ports import Disk
    from taskq.log.sparse import Entry

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
        """Give the descriptor back."""
        self._disk.close(self._descriptor)

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
        found: list[int] = []
        for number in range(max(bisect_left(firsts, job) - 1, 0), len(firsts)):
            if firsts[number] > job:
                break
            page = self._page(number)
            count = len(page) // PLACE_SIZE
            data = memoryview(page)
            jobs = view("Q", data[: 8 * count])
            start, end = bisect_left(jobs, job), bisect_right(jobs, job)
            found += view("I", data[8 * count + 4 * start : 8 * count + 4 * end])
        return found

    def spilled(self) -> set[bytes]:
        """Hashes of the bodies that stand in files of their own."""
        size = self.header.counts.hashes * HASH_SIZE
        data = self._read(self._offsets.hashes, size, self.header.hashes_crc)
        return {data[at : at + HASH_SIZE] for at in range(0, size, HASH_SIZE)}

    def at_lsn(self, lsn: int) -> Entry | None:
        """The last entry at or before a record."""
        number = bisect_right(self._directory.lsns, lsn) - 1
        return self._entries(number).at_lsn(lsn) if number >= 0 else None

    def at_offset(self, offset: int) -> Entry | None:
        """The last entry at or before an offset."""
        number = bisect_right(self._directory.offsets, offset) - 1
        return self._entries(number).at_offset(offset) if number >= 0 else None

    def before_time(self, time_ns: int) -> Entry | None:
        """The last entry up to which all is older."""
        number = bisect_left(self._directory.times, time_ns) - 1
        return self._entries(number).before_time(time_ns) if number >= 0 else None

    # -- pages ------------------------------------------------------------------------------------

    def _entries(self, number: int) -> Entries:
        return Entries.of(self._page(self.header.counts.place_pages + number))

    def _filter_holds(self, key: int) -> bool:
        counts = self.header.counts
        if not counts.filter_pages:
            return False
        word = bloom.mixed(key)
        number = bloom.page_of(word, counts.filter_pages)
        page = self._page(counts.place_pages + counts.entry_pages + number)
        return bloom.page_holds(page, word)

    def _page(self, number: int) -> bytes:
        """A page by its number in the directory."""
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
        return offsets.filter + number * bloom.PAGE_SIZE, bloom.PAGE_SIZE

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
