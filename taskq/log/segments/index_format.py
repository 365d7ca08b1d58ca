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

**Filter**: pages of 4 096 bytes, as ``taskq.log.segments.index_format`` says, over the jobs of the
places and the hashes of dedup keys that jobs took (``taskq.core.folds.dedup.key_hash``). Jobs whose
own record is in the segment are left out: their numbers tell that they may have others here, too.

**Hashes**: SHA-256, 32 bytes each, sorted, of bodies that stand in files of their own.

**Steps** of the clock: (lsn u64, step i64) each.

**Directory**: the steps' section is checked together with it. Columns, one number for each page: of
the pages of places, first job u64; of the pages of entries, first lsn u64, first time i64, first
offset u32; then the CRC-32 (u32) of each page of places, of entries and of the filter.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.columns import column, packed
from taskq.log.segments import index_memory

if TYPE_CHECKING:
    from array import array


# Bloom filters over 64-bit keys, in pages: one page answers for a key.
#
# With H(x, c) the lower half of ``x * c`` exclusive-or its upper half, for 32-bit x and c, a key's
# lower half l and upper half u become ``f = H(l, 0x9E3779B1) ^ H(u, 0x85EBCA77)``, and that two
# numbers: ``H(f, 0xC2B2AE3D) * pages >> 32`` is the key's page, and of ``H(f, 0x27D4EB2F)``, bits 0
# to 14 are ``a``, bits 15 to 29 with bit 0 set are ``b``: the key's bits in the page are ``(a + i *
# b) mod 32768`` for i = 0 to 3. Bit n is bit ``7 - n % 8`` of byte ``n // 8``. Eleven bits a key
# and four of them set: 0.9 % of the keys that are not in it seem to be.
#
# Building sets one byte for each bit, and packs pages by way of ``int(..., 2)``; the keys are mixed
# as lanes of one large number. Key by key it took five times as long.

PAGE_SIZE: Final = 4_096
#: Keys that are added in one step.
STEP_KEYS: Final = 4_096
_PAGE_BITS: Final = 8 * PAGE_SIZE
_BITS_A_KEY: Final = 11
_BITS_SET: Final = 4
_LOWER: Final = 0x9E37_79B1
_UPPER: Final = 0x85EB_CA77
_PAGE_FACTOR: Final = 0xC2B2_AE3D
_PLACE_FACTOR: Final = 0x27D4_EB2F
_HALF: Final = 2**32 - 1
_PLACE: Final = _PAGE_BITS - 1
_PLACE_BITS: Final = 15
_ONE: Final = ord("1")


def pages_for(keys: int) -> int:
    """Return how many pages a filter of so many keys has."""
    return -(-keys * _BITS_A_KEY // _PAGE_BITS)


def mixed(key: int) -> int:
    """Return a key's 64 bits: the upper half chooses its page, the lower one its places there."""
    return _mix(key, _HALF)


def page_of(word: int, pages: int) -> int:
    """Return the page of a mixed key."""
    return (word >> 32) * pages >> 32


def page_holds(page: bytes, word: int) -> bool:
    """Return whether a mixed key seems to be in its page."""
    place, step = word & _PLACE, (word >> _PLACE_BITS & _PLACE) | 1
    for _ in range(_BITS_SET):
        if not page[place >> 3] & 0x80 >> (place & 7):
            return False
        place = place + step & _PLACE
    return True


class BloomBuilder:
    """A filter being filled. Takes 11 bytes a key until it is packed."""

    def __init__(self, keys: int) -> None:
        self.pages = pages_for(keys)
        self._bits = bytearray(b"0") * (self.pages * _PAGE_BITS)

    def add(self, keys: array[int]) -> None:
        """Add keys (u64), at most ``STEP_KEYS`` at a time for a step of about a millisecond."""
        bits, size = self._bits, 8 * len(keys)
        halves, places = _lanes(_HALF, len(keys)), _lanes(_PLACE, len(keys))
        words = _mix(int.from_bytes(packed(keys), "little"), halves)
        start = (words >> 32 & halves) * self.pages >> 32 & halves
        start <<= _PLACE_BITS
        place, step = words & places, (words >> _PLACE_BITS & places) | _lanes(1, len(keys))
        for _ in range(_BITS_SET):
            for bit in column("Q", (start + place).to_bytes(size, "little")):
                bits[bit] = _ONE
            place = place + step & places

    def page(self, number: int) -> bytes:
        """Return a page as it stands in a file."""
        start = number * _PAGE_BITS
        return int(self._bits[start : start + _PAGE_BITS], 2).to_bytes(PAGE_SIZE, "big")


def _mix(keys: int, halves: int) -> int:
    """Mix keys, one in each lane of 64 bits; ``halves`` has the lower 32 bits of each lane set.

    No product of two halves leaves its lane.
    """
    folded = _fold((keys & halves) * _LOWER, halves)
    uppers = keys >> 32 & halves
    if uppers:
        folded ^= _fold(uppers * _UPPER, halves)
    return _fold(folded * _PAGE_FACTOR, halves) << 32 | _fold(folded * _PLACE_FACTOR, halves)


def _fold(products: int, halves: int) -> int:
    return (products ^ products >> 32) & halves


def _lanes(value: int, count: int) -> int:
    """Return the value in each of so many lanes of 64 bits."""
    return int.from_bytes(value.to_bytes(8, "little") * count, "little")


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
    """Number of entries in each section."""

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
        """Return bytes of each section, in their order in the file."""
        pages = (self.place_pages, self.entry_pages, self.filter_pages)
        directory = sum(n * size for n, size in zip(pages, _DIRECTORY_SIZES, strict=True))
        return (
            self.places * PLACE_SIZE,
            self.entries * index_memory.ENTRY_SIZE,
            self.filter_pages * PAGE_SIZE,
            self.hashes * HASH_SIZE,
            self.steps * STEP.size,
            directory,
        )


class Offsets(NamedTuple):
    """Places at which the sections begin."""

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
    """Content of the header."""

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
    """Return the first bytes of the file."""
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
