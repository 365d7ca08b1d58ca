"""Snapshots: a facet at an lsn, so that a log is not folded from its start when opened."""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from taskq.core.errors import LogError
from taskq.core.folds import agenda, dedup
from taskq.core.folds.freeze import (
    MISFITS,
    Frozen,
    Source,
    freeze_agenda,
    freeze_dedup,
    thaw_agenda,
    thaw_dedup,
)
from taskq.core.values import NamedTuple, dataclass
from taskq.log.format import codec
from taskq.log.format.columns import column, joined, lower_halves, packed, upper_halves
from taskq.log.format.frames import Cursor
from taskq.log.machine.ports import opened
from taskq.log.machine.threads import Reporter

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from taskq.log.machine.ports import Disk
    from taskq.log.segments import identity, segments


DIRECTORY: Final = "snapshot"
MAGIC: Final = b"taskqsnp"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sHHI16sQQQQ56sqQII")
_SEGMENT: Final = struct.Struct("<QQ")
_COLUMN: Final = struct.Struct("<8sQ")
_SEED: Final = struct.Struct("<16sQQ")
_CRC_SIZE: Final = 4
BLOCK_BYTES: Final = 1024 * 1024
_SUFFIX: Final = ".snap"
_NAME_DIGITS: Final = 20

# The files of snapshots: this comment is the specification of their format.
#
# A snapshot is a facet at an lsn; ``Contents`` explains when it is valid. Its file is
# ``snapshot/<lsn, 20 digits>.<facet>.snap``. All numbers are little-endian.
#
# ====== ===== ==========================================================
# offset bytes header
# ====== ===== ==========================================================
# 0      8     magic ``taskqsnp``
# 8      2     version of this format: 1
# 10     2     facet: 1 agenda, 2 dedup
# 12     4     version of the facet's frozen form
# 16     16    log id (UUID)
# 32     8     segment of the position
# 40     8     position: offset after the last folded frame
# 48     8     next lsn: lsn of the next record
# 56     8     offset of the last folded frame in the segment
# 64     56    header of that frame
# 120    8     wall time of its creation, nanoseconds
# 128    8     size of the contents
# 136    4     number of segments
# 140    4     0
# ====== ===== ==========================================================
#
# (first lsn u64, size u64) of each segment follow, then the CRC-32 of all bytes so far. Locations
# in the contents are (number in this list << 32 | offset). The size is 0 for a segment that was
# gone or comes after the position; for the position's own segment it is the position's offset.
#
# The contents follow in blocks of 1 MiB, the last one shorter, each with a CRC-32 after it. The CRC
# starts from the CRC-32 of (log id, next lsn u64, number of the block u64). They are columns: type
# ``B``, ``I``, ``Q`` or ``q`` in 8 bytes, count u64, then the numbers (u8, u32, u64, i64), in the
# order of ``core.folds.freeze``.


class Unusable(Exception):
    """The snapshot cannot be used; the message has the reason."""


class Outdated(Unusable):
    """A normal reason: the log has moved on since the snapshot, or is not yet as far."""


class Newer(Unusable):
    """A newer taskq wrote it, and may need it again."""


class Kind(NamedTuple):
    """The facet of a snapshot, and the version of its frozen form."""

    name: str
    code: int
    version: int


class Header(NamedTuple):
    code: int
    version: int
    log_id: bytes
    segment: int
    offset: int
    next_lsn: int
    frame_offset: int
    #: copy of the header in the segment
    frame_header: bytes
    created_ns: int
    contents_size: int
    #: (first lsn, size) of segments, by their numbers in locations
    segments: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        blocks = -(-self.contents_size // BLOCK_BYTES)
        return self.contents_at + self.contents_size + _CRC_SIZE * blocks

    @property
    def contents_at(self) -> int:
        return HEADER.size + _SEGMENT.size * len(self.segments) + _CRC_SIZE

    def encode(self) -> bytes:
        fields = (*self[2:10], len(self.segments), 0)
        data = HEADER.pack(MAGIC, VERSION, self.code, self.version, *fields)
        data += b"".join(_SEGMENT.pack(*segment) for segment in self.segments)
        return data + codec.crc32(data).to_bytes(_CRC_SIZE, "little")

    def block_seed(self, number: int) -> int:
        return codec.crc32(_SEED.pack(self.log_id, self.next_lsn, number))


def snapshot_name(lsn: int, facet: str) -> str:
    return f"{lsn:0{_NAME_DIGITS}d}.{facet}{_SUFFIX}"


def snapshot_names(disk: Disk, path: str, facet: str) -> list[str]:
    names = disk.names(f"{path}/{DIRECTORY}")
    length = len(snapshot_name(0, facet))
    return [
        name
        for name in reversed(names)
        if name.endswith(f".{facet}{_SUFFIX}")
        and len(name) == length
        and name[:_NAME_DIGITS].isdecimal()
    ]


def read_header(disk: Disk, descriptor: int, kind: Kind, identity: identity.Identity) -> Header:
    """Return the header of an open file, after checks of size and CRC."""
    size = disk.size(descriptor)
    data = disk.read(descriptor, HEADER.size, 0)
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise Unusable("it does not begin as a snapshot")
    fields = HEADER.unpack(data)
    if fields[1] > VERSION:
        raise Newer(f"it has version {fields[1]}: a newer taskq wrote it")
    count = fields[12]
    rest = _SEGMENT.size * count + _CRC_SIZE
    if HEADER.size + rest > size:
        raise Unusable("its header is cut short, or damaged")
    table = disk.read(descriptor, rest, HEADER.size)
    crc = codec.crc32(table[:-_CRC_SIZE], codec.crc32(data))
    if len(table) != rest or crc != int.from_bytes(table[-_CRC_SIZE:], "little"):
        raise Unusable("its header does not read back as it was written")
    segments = tuple(_SEGMENT.iter_unpack(table[:-_CRC_SIZE]))
    header = Header._make((*fields[2:12], segments))
    if header.version > kind.version:
        raise Newer(f"its {kind.name} has version {header.version}: a newer taskq wrote it")
    if (header.code, header.version) != (kind.code, kind.version):
        raise Unusable(f"it holds version {header.version} of facet {header.code}")
    if header.log_id != identity.owner(header.segment).log_id.bytes:
        raise Unusable("it is of another log")
    if header.size != size:
        raise Unusable(f"it has {size} bytes instead of {header.size}")
    return header


def contents_size(frozen: Frozen) -> int:
    """Return the size of the contents, without the CRCs of the blocks."""
    return sum(
        _COLUMN.size + sum(len(part) * part.itemsize for part in parts)
        for _, parts in frozen.columns
    )


def file_parts(header: Header, frozen: Frozen) -> Iterator[bytes]:
    """Yield the bytes of the file, one block at a time; yielded blocks are not kept."""
    yield header.encode()
    block = bytearray()
    number = 0
    for piece in _pieces(frozen):
        block += piece
        while len(block) >= BLOCK_BYTES:
            yield _with_crc(bytes(block[:BLOCK_BYTES]), header, number)
            del block[:BLOCK_BYTES]
            number += 1
    if block:
        yield _with_crc(bytes(block), header, number)


def _pieces(frozen: Frozen) -> Iterator[bytes]:
    while frozen.columns:
        code, parts = frozen.columns.popleft()
        yield _COLUMN.pack(code.encode("ascii"), sum(map(len, parts)))
        parts.reverse()
        while parts:
            yield packed(parts.pop())


def _with_crc(block: bytes, header: Header, number: int) -> bytes:
    crc = codec.crc32(block, header.block_seed(number))
    return block + crc.to_bytes(_CRC_SIZE, "little")


class Contents:
    """The columns of an open file; each block is checked before use.

    A snapshot is never needed. It is skipped if it is damaged, incomplete, of another log, of a
    newer taskq, or does not fit the segments. Then the next older one is tried, and at last the log
    is folded from its start. The comment above specifies the files, ``upkeep.snapshots`` decides
    when they are written.

    **Why it is valid.** The header of the last folded frame is still at its place in the segment,
    so it is this log and not a copy that diverged. Every earlier segment has the same size, except
    the oldest ones, which compaction removes. After a failed fsync the next opener moves frames to
    another segment, from the last position that the failing process knew to be on disk. That
    position may be older than the snapshot's. Any segment that lost frames is shorter now, or has a
    new segment after it, so a snapshot with a record among the moved frames is refused. A snapshot
    is published only once the log before its position is on disk, so a power loss takes nothing of
    it. Frames moved while it was made are noticed (``Snapshots``).
    """

    def __init__(self, disk: Disk, descriptor: int, header: Header, numbers: list[int]) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._header = header
        #: number of each segment in this process, by its number in the file
        self._numbers = numbers
        self._is_same = numbers == list(range(len(numbers)))
        self._left = header.contents_size
        self._block = memoryview(b"")
        self._blocks = 0

    def take(self, code: str) -> array[int]:
        return column(code, self._bytes(self._open(code) * array(code).itemsize))

    def take_arrays(self, code: str) -> list[array[int]]:
        sizes = self.take("I")
        count = self._open(code)
        if count != sum(sizes):
            raise ValueError(f"arrays of {sum(sizes)} numbers have {count}")
        itemsize = array(code).itemsize
        return [column(code, self._bytes(size * itemsize)) for size in sizes]

    def take_locations(self) -> list[array[int]]:
        parts = self.take_arrays("Q")
        return parts if self._is_same else [self._renumbered(part) for part in parts]

    @property
    def left(self) -> int:
        return self._left + len(self._block)

    def end(self) -> None:
        """Check that no bytes are left."""
        if self.left:
            raise ValueError(f"{self.left} bytes are left")

    def _renumbered(self, locations: array[int]) -> array[int]:
        if not locations:
            return locations
        segments = upper_halves(locations)
        try:
            first = array("I", segments[:1])
            if segments == first * len(segments):  # the usual case, at half of the time
                segments = array("I", (self._numbers[first[0]],)) * len(segments)
            else:
                segments = array("I", map(self._numbers.__getitem__, segments))
        except IndexError:
            raise ValueError("a location is in no segment") from None
        return joined(lower_halves(locations), segments)

    def _open(self, code: str) -> int:
        name, count = _COLUMN.unpack(self._bytes(_COLUMN.size))
        if name.rstrip(b"\0") != code.encode("ascii"):
            raise ValueError(f"a column of {name!r} stands where one of {code!r} should")
        return int(count)

    def _bytes(self, count: int) -> Buffer:
        if count <= len(self._block):
            part, self._block = self._block[:count], self._block[count:]
            return part
        if count > len(self._block) + self._left:
            raise ValueError(f"{count} bytes are more than there are")
        parts: list[memoryview] = []
        while count:
            if not self._block:
                self._read_block()
            part, self._block = self._block[:count], self._block[count:]
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _read_block(self) -> None:
        number, header = self._blocks, self._header
        size = min(BLOCK_BYTES, self._left)
        at = header.contents_at + number * (BLOCK_BYTES + _CRC_SIZE)
        data = self._disk.read(self._descriptor, size + _CRC_SIZE, at)
        block = memoryview(data)[:size]
        crc = int.from_bytes(data[size:], "little")
        if len(data) != size + _CRC_SIZE or codec.crc32(block, header.block_seed(number)) != crc:
            raise Unusable(f"its block {number} does not read back as it was written")
        self._block = block
        self._blocks += 1
        self._left -= size


F = TypeVar("F", agenda.Agenda, dedup.Dedup)

_log: Final = Reporter("taskq")


@dataclass(frozen=True, slots=True)
class Form(Generic[F]):
    """Facet of a snapshot, with functions to make, freeze and thaw it."""

    kind: Kind
    make: Callable[[], F]
    freeze: Callable[[F], Frozen]
    thaw: Callable[[Source], F]


AGENDA: Final = Form(Kind("agenda", 1, 7), agenda.Agenda, freeze_agenda, thaw_agenda)
DEDUP: Final = Form(Kind("dedup", 2, 1), dedup.Dedup, freeze_dedup, thaw_dedup)


def check_fit(place: segments.Place, header: Header) -> None:
    files, end = place.files, place.end()
    if place.lost:
        raise Unusable("the log lacks segments: what they held is not to be claimed")
    if (header.segment, header.offset) > (end.segment, end.offset):
        raise Outdated("it is ahead of the log")
    files.refresh()
    there = [lsn for lsn in files.lsns if lsn <= header.segment]
    if not there or there[-1] != header.segment:
        raise Outdated("its segment is gone")
    sizes = {lsn: size for lsn, size in header.segments if size and lsn >= there[0]}
    if sorted(sizes) != there:
        raise Unusable("the segments before it differ from its own")
    try:
        changed = [lsn for lsn in there[:-1] if files.sealed_size(lsn) != sizes[lsn]]
        is_short = files.size(header.segment) < header.offset
        frame = read_frame_header(place, header.segment, header.frame_offset)
    except LogError as error:
        raise Outdated(str(error)) from error
    if changed or is_short or frame != header.frame_header:
        raise Unusable("the log before it is not what it was made of")


def read_frame_header(place: segments.Place, segment: int, offset: int) -> bytes:
    return place.disk.read(place.files.descriptor(segment), codec.FRAME_HEADER_SIZE, offset)


class Captured(NamedTuple):
    """A copy of a facet at a position, with the contents of its file."""

    header: Header
    frozen: Frozen


def capture(
    place: segments.Place, form: Form[F], facet: F, cursor: Cursor, now_ns: int
) -> Captured | None:
    """Copy a facet at a cursor; None if the cursor is not at the end of a whole frame.

    Raises:
        OverflowError: a number is too large.
    """
    if cursor.frame < 0:
        return None
    files = place.files
    files.refresh()
    segments = tuple((lsn, _size_before(files, lsn, cursor)) for lsn in files.numbered())
    frame = read_frame_header(place, cursor.segment, cursor.frame)
    decoded = codec.decode_frame_header(frame, 0, files.seed(cursor.segment), cursor.frame)
    if decoded is None or (cursor.frame + decoded.size, decoded.next_lsn) != (
        cursor.offset,
        cursor.next_lsn,
    ):
        return None
    frozen = form.freeze(facet)
    header = Header(
        form.kind.code, form.kind.version, files.owner(cursor.segment), cursor.segment,
        cursor.offset, cursor.next_lsn, cursor.frame, frame, now_ns, contents_size(frozen),
        segments,
    )  # fmt: skip
    return Captured(header, frozen)


def _size_before(files: segments.SegmentFiles, lsn: int, cursor: Cursor) -> int:
    if lsn > cursor.segment or lsn not in files.lsns:
        return 0
    if lsn == cursor.segment:
        return cursor.offset
    try:
        return files.sealed_size(lsn)
    except LogError:
        return 0  # compaction removed it just now


def load_newest(place: segments.Place, form: Form[F]) -> tuple[F, Cursor] | None:
    """Return (facet, its position) from the newest snapshot that fits; None without one."""
    names: list[str] = []
    try:
        names = snapshot_names(place.disk, place.path, form.kind.name)
    except OSError as error:
        _log.warning("%s: %s/ is passed over: %s", place.path, DIRECTORY, error)
    for name in names:
        try:
            return _load(place, form, f"{place.path}/{DIRECTORY}/{name}")
        except FileNotFoundError:
            continue  # a newer one replaced it
        except Outdated as error:
            _log.info("%s: %s/%s is passed over: %s", place.path, DIRECTORY, name, error)
        except (Unusable, OSError) as error:
            _log.warning("%s: %s/%s is passed over: %s", place.path, DIRECTORY, name, error)
        except Exception:  # noqa: BLE001 - with any error, the log itself can be folded
            _log.exception("%s: %s/%s is passed over", place.path, DIRECTORY, name)
    return None


def newest_cursor(place: segments.Place, form: Form[F]) -> Cursor | None:
    """Return the position of a facet's newest snapshot, by its header; None without one."""
    for name in snapshot_names(place.disk, place.path, form.kind.name):
        with contextlib.suppress(OSError, Unusable):
            path = f"{place.path}/{DIRECTORY}/{name}"
            with opened(place.disk, path, write=False) as descriptor:
                header = read_header(place.disk, descriptor, form.kind, place.files.identity)
            return Cursor(header.segment, header.offset, header.next_lsn)
    return None


def _load(place: segments.Place, form: Form[F], path: str) -> tuple[F, Cursor]:
    disk, files = place.disk, place.files
    with opened(disk, path, write=False) as descriptor:
        header = read_header(disk, descriptor, form.kind, files.identity)
        check_fit(place, header)
        numbers = files.number([lsn for lsn, _ in header.segments])
        contents = Contents(disk, descriptor, header, numbers)
        try:
            facet = form.thaw(contents)
            contents.end()
        except MISFITS as error:
            raise Unusable(f"its contents make no sense ({error})") from error
    cursor = Cursor(header.segment, header.offset, header.next_lsn)
    cursor.frame = header.frame_offset
    return facet, cursor
