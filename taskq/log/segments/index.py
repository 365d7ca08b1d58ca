"""Index of one segment: the records of each job, and entries near every record."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final

from taskq.core import errors, kinds
from taskq.core.values import NamedTuple
from taskq.log.format import codec, frames
from taskq.log.format.columns import column, joined, lower_halves, packed, rising, run_length, view
from taskq.log.format.record import check_known
from taskq.log.machine.ports import Disk, opened, write_all

#: Approximate bytes of the segment between two entries.
SPACING_BYTES: Final = 4_096
#: Bit in the offset of a damaged frame: the entry's record is valid alone, by its own CRC.
_ALONE: Final = 1 << 31
_HALF: Final = 2**32 - 1
_ABOVE_ALL: Final = 2**64


class Entry(NamedTuple):
    """A record and its frame, as offsets in the segment."""

    lsn: int
    offset: int
    frame: int
    #: the frame is damaged, and this record was salvaged from it
    alone: bool


class SegmentIndex:
    """Lookups in an index, in memory or in a file.

    Attributes:
        first_lsn, next_lsn: of the indexed part of the segment.
        offset: end of the indexed part of the segment.
        top_time_ns: the highest time of a frame.
        job_min, job_max: the lowest and the highest job of the pairs; 0 and 0 without pairs.
        last_frame: (offset, CRC-32 of its body) of the last whole frame, (0, 0) for none.
        clocks: (lsn, step_ns) of each step of the clock.
        salvaged: headers of damaged frames with salvaged records, by their offset.
        gaps: number of damaged parts.
    """

    def __init__(self, first_lsn: int) -> None:
        self.first_lsn: int = first_lsn
        self.next_lsn: int = first_lsn
        self.offset: int = codec.SEGMENT_HEADER.size
        self.top_time_ns: int = 0
        self.job_min: int = 0
        self.job_max: int = 0
        self.gaps: int = 0
        self.last_frame: tuple[int, int] = (0, 0)
        self.clocks: list[tuple[int, int]] = []
        self.salvaged: dict[int, codec.FrameHeader] = {}
        self.pairs: Sequence[int] = array("Q")
        self.lsns: Sequence[int] = array("Q")
        self.times: Sequence[int] = array("Q")
        self.places: Sequence[int] = array("Q")

    def job_places(self, job: int) -> list[int]:
        """Return the rising offsets of a job's records, without its ENQUEUED record."""
        if not self.job_min <= job <= self.job_max:
            return []
        low, matches = (job & _HALF) << 32, array("Q")
        for start, end in self._runs():
            at = _left(self.pairs, low, start, end)
            while at < end and (pair := self.pairs[at]) <= low | _HALF:
                matches.append(pair)
                at += 1
        return [pair & _HALF for pair in sorted(matches)]

    def at_lsn(self, lsn: int) -> Entry | None:
        return self._entry(_left(self.lsns, lsn + 1, 0, len(self.lsns)))

    def at_offset(self, offset: int) -> Entry | None:
        return self._entry(_left(self.places, (offset + 1) << 32, 0, len(self.places)))

    def before_time(self, time_ns: int) -> Entry | None:
        return self._entry(_left(self.times, time_ns, 0, len(self.times)))

    def _runs(self) -> Iterable[tuple[int, int]]:
        return ((0, len(self.pairs)),)

    def _entry(self, after: int) -> Entry | None:
        if not after:
            return None
        place = self.places[after - 1]
        frame = place & _HALF
        return Entry(self.lsns[after - 1], place >> 32, frame & ~_ALONE, frame >= _ALONE)


def _left(numbers: Sequence[int], value: int, start: int, end: int) -> int:
    """Do as ``bisect_left``, but read only one block of a column in a file."""
    if isinstance(numbers, _Column):
        return numbers.left(value)
    return bisect_left(numbers, value, start, end)


# Feeding. Most records of a busy log are in runs of one length: claims, settlements and enqueues of
# similar payloads. A run is indexed at once by slices with a step; record by record would cost ten
# times as much.

_SIZES: Final = codec.SIZES
_ABOUT_JOBS: Final = kinds.OF_JOBS - {kinds.BIRTH}
#: Role of a kind in a run: 0 none, 1 an enqueue, 2 a record about a job.
_CLASSES: Final = [1 if kind == kinds.BIRTH else 2 * (kind in _ABOUT_JOBS) for kind in range(256)]
_CHECKS: Final = ((), ((4, bytes((kinds.BIRTH,))),), ((4, bytes(sorted(_ABOUT_JOBS))),))
#: Cost of a run, in single records.
_RUN_COST: Final = 16
#: Pairs that are sorted together: a quarter of a millisecond's work.
_SORTED_PAIRS: Final = 4_096
#: One pair per this many is sampled to cut the runs into even parts of about 8 samples each.
_SAMPLE: Final = 512
_PART: Final = 8


class IndexBuilder(SegmentIndex):
    """Index that grows with its segment's frames; lookups work at any time."""

    def __init__(self, first_lsn: int) -> None:
        super().__init__(first_lsn)
        self.pairs: array[int] = array("Q")
        self.lsns: array[int] = array("Q")
        self.times: array[int] = array("Q")
        self.places: array[int] = array("Q")
        self.offset: int
        self.next_lsn: int
        self.gaps: int
        self.top_time_ns: int
        self.job_min: int
        self.job_max: int
        self.last_frame: tuple[int, int]
        #: pairs not sorted yet
        self._jobs, self._offsets = array("Q"), array("I")
        #: ends of the runs of sorted pairs
        self._ends: list[int] = []
        #: offset from which the next record gets an entry
        self._entry_at = 0
        #: indexed bytes and records of the frame at ``offset``
        self._inside = (0, 0)

    def feed(self, frame: frames.Frame, records: int = sys.maxsize) -> bool:
        """Index the next whole frame, or more of it; an indexed frame is skipped.

        Returns:
            Whether the whole frame is indexed. If not, feed it again.
        """
        data, at, header, offset = frame
        if offset < self.offset:
            return True
        self.top_time_ns = max(self.top_time_ns, header.time_ns)
        self.last_frame = (offset, header.body_crc)
        done, count = self._inside
        end = at + header.body_size
        start = offset + codec.FRAME_HEADER_SIZE - at
        lsn = header.first_lsn + count
        stop, next_lsn = self._feed(data, at + done, end, lsn, start, offset, records)
        if stop < end:
            self._inside = stop - at, next_lsn - header.first_lsn
            return False
        self._inside = (0, 0)
        self.offset, self.next_lsn = frame.end, header.next_lsn
        return True

    def feed_damaged(
        self, gap: frames.Gap, readable: tuple[codec.FrameHeader, bytes, int] | None = None
    ) -> None:
        """Skip bad bytes; ``readable`` is the result of ``damaged_frame`` for them."""
        if gap.offset < self.offset:
            return
        self.gaps += 1
        if readable is not None:
            header, body, offset = readable
            from taskq.log.format.salvage import salvage  # noqa: PLC0415 - damage is rare

            for lsn, at, record in salvage(body, gap.first_lsn):
                self.salvaged[gap.offset] = header
                self.top_time_ns = max(self.top_time_ns, header.time_ns)
                self._enter(lsn, offset + at, gap.offset | _ALONE)
                self._entry_at = codec.FRAME_BODY_MAX * 1_024
                self._feed(record, 0, len(record), lsn, offset + at, gap.offset)
        self._entry_at = 0
        self.offset, self.next_lsn = gap.end, gap.next_lsn

    def sort(self) -> None:
        """Sort the newest pairs; ``job_min`` and ``job_max`` are of sorted pairs."""
        jobs, offsets = self._jobs, self._offsets
        if not jobs:
            return
        self._jobs, self._offsets = array("Q"), array("I")
        low, high = min(jobs), max(jobs)
        self.job_min = min(low, self.job_min) if self.pairs else low
        self.job_max = max(high, self.job_max)
        self.pairs.extend(sorted(joined(offsets, lower_halves(jobs))))
        self._ends.append(len(self.pairs))

    def sorted_parts(self) -> Iterator[array[int]]:
        """Yield all pairs in order, some thousands at a time; add none meanwhile."""
        self.sort()
        pairs = self.pairs
        cuts = sorted(pairs[::_SAMPLE])[_PART::_PART]
        runs = [list(run) for run in self._runs()]
        for cut in (*cuts, _ABOVE_ALL):
            part: list[int] = []
            for run in runs:
                stop = bisect_left(pairs, cut, *run)
                part += pairs[run[0] : stop]
                run[0] = stop
            part.sort()
            yield array("Q", part)

    def job_places(self, job: int) -> list[int]:
        """Return the rising offsets of a job's records, without its ENQUEUED record."""
        matches = super().job_places(job)
        if job in self._jobs:
            tail = zip(self._jobs, self._offsets, strict=True)
            matches += [offset for other, offset in tail if other == job]
        return matches

    def _runs(self) -> Iterable[tuple[int, int]]:
        return zip((0, *self._ends), self._ends, strict=False)

    def _feed(
        self, data: bytes, at: int, end: int, lsn: int, start: int, frame: int,
        left: int = sys.maxsize,
    ) -> tuple[int, int]:  # fmt: skip
        """Index about ``left`` records of ``data[at:end]``; ``start + at`` is the offset of each.

        Returns:
            (index, lsn) of the next record.
        """
        unpack = codec.PREFIX.unpack_from
        entry_at = self._entry_at - start
        last_length = last_class = 0
        while at < end and left > 0:
            length, kind, *_ = unpack(data, at)
            if length < _SIZES[kind] or at + length > end:
                raise errors.FormatError(
                    f"record at lsn {lsn} has an impossible length of {length} bytes"
                )
            run = _CLASSES[kind]
            if length == last_length and run == last_class and run:
                count = run_length(data, at, end, length, _CHECKS[run])
                if count:
                    if run > 1:
                        self._add_run(data, at, start, length, count)
                    self._enter_run(lsn, start + at, length, count, frame)
                    entry_at = self._entry_at - start
                    at += length * count
                    lsn += count
                    left -= _RUN_COST
                    last_length = 0
                    continue
            if at >= entry_at:
                self._enter(lsn, start + at, frame)
                entry_at = self._entry_at - start
            last_length, last_class = length, run
            if run > 1:
                self._add(
                    int.from_bytes(data[at + codec.JOB_AT : at + codec.JOB_AT + 8], "little"),
                    start + at,
                )
            elif run != 1:
                self._feed_other(data, at, kind, lsn)
            at += length
            lsn += 1
            left -= 1
        return at, lsn

    def _feed_other(self, data: bytes, at: int, kind: int, lsn: int) -> None:
        if kind in kinds.STEPS:
            self.clocks.append((lsn, codec.STEP.unpack_from(data, at)[6]))
        else:
            check_known(kind, lsn)

    def _add(self, job: int, offset: int) -> None:
        self._jobs.append(job)
        self._offsets.append(offset)
        if len(self._jobs) >= _SORTED_PAIRS:
            self.sort()

    def _add_run(self, data: bytes, at: int, start: int, length: int, count: int) -> None:
        stop = at + length * count
        if length % 8:
            gathered = bytearray(8 * count)
            for byte in range(8):
                gathered[byte::8] = data[at + codec.JOB_AT + byte : stop : length]
            self._jobs += column("Q", gathered)
        else:
            self._jobs += column("Q", data[at:stop])[codec.JOB_AT // 8 :: length // 8]
        self._offsets += rising(start + at, length, count)
        if len(self._jobs) >= _SORTED_PAIRS:
            self.sort()

    def _enter(self, lsn: int, offset: int, frame: int) -> None:
        self.lsns.append(lsn)
        self.times.append(max(self.top_time_ns, 0))
        self.places.append(offset << 32 | frame)
        self._entry_at = offset + SPACING_BYTES

    def _enter_run(self, lsn: int, offset: int, length: int, count: int, frame: int) -> None:
        number = max(0, -((offset - self._entry_at) // length))
        while number < count:
            self._enter(lsn + number, offset + number * length, frame)
            number = -((offset - self._entry_at) // length)


# Files.

SUFFIX: Final = ".idx"
_TEMPORARY: Final = ".tmp"
_MAGIC: Final = b"taskqidx"
_HEAD: Final = struct.Struct("<8s16s8QqIIII")
_HEAD_CRC_AT: Final = _HEAD.size - codec.CRC_SIZE
_CLOCK_STEP: Final = struct.Struct("<Qq")
_BLOCK: Final = 512
#: Most blocks in memory, of all indexes: 1 MiB.
_BLOCKS_MAX: Final = 256
#: Bytes per sync, so that no step waits long for the disk.
_SYNC: Final = 1024 * 1024


class IndexDamaged(Exception):
    """The file is damaged: it must be written anew."""


class _Head(NamedTuple):
    """Fields of the head, in order; ``last_crc`` and later fields have 4 bytes.

    ``pairs`` and ``entries`` are counts of numbers in a column, ``crc`` is of the earlier fields.
    """

    magic: bytes
    log_id: bytes
    first_lsn: int
    next_lsn: int
    offset: int
    job_min: int
    job_max: int
    pairs: int
    entries: int
    last_frame: int
    top_time_ns: int
    last_crc: int
    clocks: int
    tail_crc: int
    crc: int


class IndexFile(SegmentIndex):
    """An index in a file. Every method but ``close`` may raise ``IndexDamaged`` or ``OSError``.

    ``blocks`` caches blocks of numbers, of this and other indexes.

    The index of a growing segment is in memory (``IndexBuilder``). The index of a sealed segment is
    a file ``log/<first lsn, 20 digits>.idx`` (``IndexFile``), which is never needed: a file that is
    missing, damaged, of another log or of another segment is rebuilt from the segment.

    The file is a head, blocks, and a tail; all numbers are little-endian. ``_Head`` has the fields
    of the head. Then come four sorted columns of u64, one after the other, in blocks of 512 numbers
    (the last block of a column is shorter):

    - pairs: the lower 32 bits of a job, above the offset u32 of a record about it in the segment. A
      job's own ENQUEUED record is left out, since its lsn is the job's number. Jobs with the same
      lower bits share an entry; the record itself has the whole number.
    - lsns, times, places: the first record of the segment, and then each record that starts 4 096
      bytes or more after the last entry. A time is the highest of a frame so far; a place is the
      offset of the record above the offset of its frame.

    Tail: (lsn u64, step i64) of each step of the clock; the first number u64 of each block; the
    CRC-32 of each block. A block is read and checked at its first use. The file is read, not
    mapped: a mapped file that another program cuts ends the process.
    """

    def __init__(self, disk: Disk, path: str, blocks: dict[tuple[str, int], Sequence[int]]) -> None:
        self._disk, self._path, self._blocks = disk, path, blocks
        self._descriptor = disk.open(path, write=False)
        # A damaged segment has no index file.
        self.salvaged: dict[int, codec.FrameHeader] = {}
        self.gaps: int = 0
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor: later reads fail instead of reading another file."""
        self._disk.close(self._descriptor)
        self._descriptor = -1

    def _load(self) -> None:
        data = self._disk.read(self._descriptor, _HEAD.size, 0)
        if len(data) < _HEAD.size or data[:8] != _MAGIC:
            raise IndexDamaged(self._path)
        head = _Head._make(_HEAD.unpack(data))
        if head.crc != codec.crc32(data[:_HEAD_CRC_AT]):
            raise IndexDamaged(self._path)
        counts = (head.pairs, head.entries, head.entries, head.entries)
        at, blocks = _HEAD.size + 8 * sum(counts), sum(-(-count // _BLOCK) for count in counts)
        start = head.clocks * _CLOCK_STEP.size
        size = self._disk.size(self._descriptor) - at
        if size != start + 12 * blocks:
            raise IndexDamaged(self._path)
        tail = self.read(at, size, head.tail_crc)
        self.log_id: bytes = head.log_id
        self.first_lsn: int = head.first_lsn
        self.next_lsn: int = head.next_lsn
        self.offset: int = head.offset
        self.job_min: int = head.job_min
        self.job_max: int = head.job_max
        self.top_time_ns: int = head.top_time_ns
        self.last_frame: tuple[int, int] = head.last_frame, head.last_crc
        self.clocks: list[tuple[int, int]] = list(_CLOCK_STEP.iter_unpack(tail[:start]))
        firsts = column("Q", tail[start : start + 8 * blocks])
        crcs = column("I", tail[start + 8 * blocks :])
        number = start = 0
        columns: list[_Column] = []
        for count in counts:
            stop = number - (-count // _BLOCK)
            columns.append(
                _Column(self, number, start, count, firsts[number:stop], crcs[number:stop])
            )
            number, start = stop, start + count
        self.pairs: Sequence[int] = columns[0]
        self.lsns: Sequence[int] = columns[1]
        self.times: Sequence[int] = columns[2]
        self.places: Sequence[int] = columns[3]

    def block(self, number: int, start: int, count: int, crc: int) -> Sequence[int]:
        blocks, key = self._blocks, (self._path, number)
        block = blocks.pop(key, None)
        if block is None:
            block = view("Q", self.read(_HEAD.size + 8 * start, 8 * count, crc))
            if len(blocks) >= _BLOCKS_MAX:
                del blocks[next(iter(blocks))]
        blocks[key] = block  # the latest used is dropped last
        return block

    def read(self, offset: int, size: int, crc: int) -> bytes:
        data = self._disk.read(self._descriptor, size, offset)
        if len(data) != size or codec.crc32(data) != crc:
            raise IndexDamaged(self._path)
        return data


class _Column(Sequence[int]):
    """Sorted numbers of a file, read one block at a time."""

    def __init__(
        self, file: IndexFile, number: int, start: int, count: int, firsts: array[int],
        crcs: array[int],
    ) -> None:  # fmt: skip
        self._file = file
        self._number, self._start, self._count = number, start, count
        self._firsts, self._crcs = firsts, crcs

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> int:  # type: ignore[override]
        number, place = divmod(at, _BLOCK)
        return self._block(number)[place]

    def left(self, value: int) -> int:
        """Return the index of the first number that is not below ``value``."""
        number = bisect_left(self._firsts, value) - 1
        return number * _BLOCK + bisect_left(self._block(number), value) if number >= 0 else 0

    def _block(self, number: int) -> Sequence[int]:
        start = number * _BLOCK
        count = min(_BLOCK, self._count - start)
        return self._file.block(
            self._number + number, self._start + start, count, self._crcs[number]
        )


def index_name(first_lsn: int) -> str:
    return frames.segment_name(first_lsn).removesuffix(".log") + SUFFIX


def save_steps(
    disk: Disk, directory: str, builder: IndexBuilder, log_id: bytes
) -> Generator[None, None, int]:
    """Write the index of a whole segment, in steps; return the file's size.

    The file gets its name when it is whole on disk. Several processes may do this at a time: each
    writes a file of its own, with the same bytes.

    Raises:
        OSError: the disk refused; the file was removed.
    """
    name = index_name(builder.first_lsn)
    temporary = f"{directory}/{name}.{os.urandom(4).hex()}{_TEMPORARY}"
    try:
        with opened(disk, temporary, create=True) as descriptor:
            yield from _Writer(disk, descriptor).write(builder, log_id)
            disk.sync(descriptor)
            size = disk.size(descriptor)
        yield
        disk.rename(temporary, f"{directory}/{name}")
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        raise
    # Remove temporary files of crashed processes. A living process that loses its file here finds a
    # file with the same bytes under the final name.
    for other in disk.names(directory):
        if other.startswith(f"{name}.") and other.endswith(_TEMPORARY):
            disk.remove(f"{directory}/{other}")
    disk.sync_directory(directory)
    return size


class _Writer:
    def __init__(self, disk: Disk, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._at = self._synced = _HEAD.size
        self._firsts, self._crcs = array("Q"), array("I")

    def write(self, builder: IndexBuilder, log_id: bytes) -> Iterator[None]:
        columns = [builder.sorted_parts(), *map(_parts, (builder.lsns, builder.times))]
        for parts in (*columns, _parts(builder.places)):
            waiting = array("Q")
            for part in parts:
                waiting += part
                whole = len(waiting) // _BLOCK * _BLOCK
                self._add_blocks(waiting[:whole])
                del waiting[:whole]
                yield
            self._add_blocks(waiting)
        tail = b"".join(_CLOCK_STEP.pack(*clock) for clock in builder.clocks)
        tail += packed(self._firsts) + packed(self._crcs)
        self._add(tail)
        head = _Head(
            _MAGIC, log_id, builder.first_lsn, builder.next_lsn, builder.offset, builder.job_min,
            builder.job_max, len(builder.pairs), len(builder.lsns), builder.last_frame[0],
            builder.top_time_ns, builder.last_frame[1], len(builder.clocks), codec.crc32(tail), 0,
        )  # fmt: skip
        crc = codec.crc32(_HEAD.pack(*head)[:_HEAD_CRC_AT])
        write_all(self._disk, self._descriptor, _HEAD.pack(*head._replace(crc=crc)), 0)

    def _add_blocks(self, numbers: array[int]) -> None:
        data = packed(numbers)
        self._firsts += numbers[::_BLOCK]
        for at in range(0, len(data), 8 * _BLOCK):
            self._crcs.append(codec.crc32(data[at : at + 8 * _BLOCK]))
        self._add(data)

    def _add(self, data: bytes) -> None:
        write_all(self._disk, self._descriptor, data, self._at)
        self._at += len(data)
        if self._at - self._synced >= _SYNC:
            self._disk.sync(self._descriptor)
            self._synced = self._at


def _parts(numbers: array[int]) -> Iterator[array[int]]:
    for start in range(0, len(numbers), 8 * _BLOCK):
        yield numbers[start : start + 8 * _BLOCK]
