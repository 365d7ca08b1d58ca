"""The format of ``log/<first lsn, 20 digits>.idx``: this docstring is its specification.

The index of a sealed segment: everything in it can be had from the segment, so a file that is
missing, damaged, of another log or of a segment of another size is written anew. All numbers are
little-endian; a column is a plain run of numbers.

====== ===== ==========================================================
offset bytes header
====== ===== ==========================================================
0      8     magic ``taskqidx``
8      2     version: 1
10     2     size of this header: 208
12     4     0
16     16    log id (UUID)
32     8     first lsn of the segment
40     8     lsn after its last record
48     8     size of the segment that it was built for
56     8     time of its first frame, nanoseconds
64     8     time of its last frame
72     8     highest time of its frames (a clock may be set back)
80     8     epoch of its first frame
88     8     epoch of its last frame
96     8     lowest job of the places
104    8     highest job of the places
112    4     offset of the last frame, 0 for none
116    4     CRC-32 of the body of that frame, as its header has it
120    4     n: entries
124    4     p: places
128    4     b: pages of the filter
132    4     h: hashes of spilled bodies
136    4     c: steps of the clock
140    4     distinct keys of the filter
144    48    offsets in this file of the six sections, in the order below
192    4     CRC-32 of the hashes
196    4     CRC-32 of the directory
200    4     CRC-32 of bytes 0 to 199
204    4     0
====== ===== ==========================================================

**Places**, sorted by job, then offset: the offset in the segment of each record that concerns a job
and is not its ENQUEUED record (whose number the job has). Pages of 512, the last one shorter: a
column of jobs u64, then one of offsets u32.

**Entries**: the first record of the segment, and each that starts 4 096 bytes or more behind the
one before. Pages of 256, the last one shorter: columns of lsn u64, the highest time of a frame so
far i64, offset of the record u32, offset of its frame u32.

**Filter**: pages of 4 096 bytes, as ``taskq.log.bloom`` says, over the jobs of the places and the
hashes of dedup keys that jobs took (``taskq.core.dedup.key_hash``). Jobs whose own record is in the
segment are left out: their numbers tell that they may have others here, too.

**Hashes**: SHA-256, 32 bytes each, sorted, of bodies that stand in files of their own.

**Steps** of the clock: (lsn u64, step i64) each.

**Directory**: the steps' section is checked together with it. Columns, one number for each page: of
the pages of places, first job u64; of the pages of entries, first lsn u64, first time i64, first
offset u32; then the CRC-32 (u32) of each page of places, of entries and of the filter.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from taskq.log import bloom, codec, sparse

MAGIC: Final = b"taskqidx"
VERSION: Final = 1
PLACES_A_PAGE: Final = 512
PLACE_SIZE: Final = 12
ENTRIES_A_PAGE: Final = 256
HASH_SIZE: Final = 32
STEP: Final = struct.Struct("<Qq")
_HEADER: Final = struct.Struct("<8sHHI16sQQQqqqQQQQ8I6QIIII")
HEADER_SIZE: Final = _HEADER.size
_CRC_AT: Final = 200
#: Bytes of the directory for a page of places, of entries and of the filter.
_DIRECTORY_SIZES: Final = (8 + 4, 8 + 8 + 4 + 4, 4)


class Counts(NamedTuple):
    """How much there is in each section."""

    entries: int
    places: int
    filter_pages: int
    hashes: int
    steps: int
    keys: int

    @property
    def place_pages(self) -> int:
        """Pages of places."""
        return -(-self.places // PLACES_A_PAGE)

    @property
    def entry_pages(self) -> int:
        """Pages of entries."""
        return -(-self.entries // ENTRIES_A_PAGE)

    def sizes(self) -> tuple[int, ...]:
        """Bytes of each section, in their order in the file."""
        pages = (self.place_pages, self.entry_pages, self.filter_pages)
        directory = sum(n * size for n, size in zip(pages, _DIRECTORY_SIZES, strict=True))
        return (
            self.places * PLACE_SIZE,
            self.entries * sparse.ENTRY_SIZE,
            self.filter_pages * bloom.PAGE_SIZE,
            self.hashes * HASH_SIZE,
            self.steps * STEP.size,
            directory,
        )


class Offsets(NamedTuple):
    """Where the sections begin."""

    places: int
    entries: int
    filter: int
    hashes: int
    steps: int
    directory: int

    @classmethod
    def of(cls, counts: Counts) -> Offsets:
        """As the sections follow one another behind the header."""
        offsets = [HEADER_SIZE]
        for size in counts.sizes()[:-1]:
            offsets.append(offsets[-1] + size)
        return cls(*offsets)


class IndexHeader(NamedTuple):
    """What the header says."""

    log_id: bytes
    first_lsn: int
    next_lsn: int
    segment_size: int
    first_time_ns: int
    last_time_ns: int
    top_time_ns: int
    first_epoch: int
    last_epoch: int
    job_min: int
    job_max: int
    last_frame: tuple[int, int]
    counts: Counts
    hashes_crc: int
    directory_crc: int


def encode_header(header: IndexHeader) -> bytes:
    """The first bytes of the file."""
    start = (MAGIC, VERSION, HEADER_SIZE, 0, *header[:11], *header.last_frame, *header.counts)
    fields = (*start, *Offsets.of(header.counts), header.hashes_crc, header.directory_crc)
    plain = _HEADER.pack(*fields, 0, 0)
    return _HEADER.pack(*fields, codec.crc32(plain[:_CRC_AT]), 0)


def decode_header(data: bytes, file_size: int) -> IndexHeader | None:
    """None when the bytes are no whole header of this version, or not of a file of that size."""
    if len(data) < HEADER_SIZE or data[:8] != MAGIC:
        return None
    fields = _HEADER.unpack_from(data)
    if fields[1:3] != (VERSION, HEADER_SIZE) or fields[-2] != codec.crc32(data[:_CRC_AT]):
        return None
    counts = Counts(*fields[17:23])
    offsets = Offsets.of(counts)
    if fields[23:29] != offsets or file_size != offsets.directory + counts.sizes()[-1]:
        return None
    last_frame = (fields[15], fields[16])
    return IndexHeader._make((*fields[4:15], last_frame, counts, *fields[29:31]))
