"""Read the whole frames of a piece of a segment, many at a time, and the gaps between them.

Frames that follow each other without a gap are found here. Anything else is left to
``taskq.log.format.frames``, like in every other reader of a log.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Self
from uuid import UUID

import numpy as np
import numpy.typing as npt

from taskq.arrow import arrays, problems, schema
from taskq.core import errors, model
from taskq.engine import Gap, Scanner, open_file
from taskq.log.format import codec
from taskq.log.format.salvage import salvage
from taskq.log.machine.system import system

#: From this number of frames on, one vectorised step for all frames is faster.
_IN_STEP_MIN: Final = 48
_NO_RECORD: Final = codec.PREFIX.size


def places(
    data: arrays.Bytes,
    starts: arrays.Ints,
    sizes: arrays.Ints,
    counts: arrays.Ints,
    lsns: arrays.Ints,
) -> tuple[arrays.Ints, arrays.Ints]:
    """Return (place, length) of each record, frame by frame.

    Args:
        data: buffer with the bodies of the frames and ``PAD_SIZE`` bytes after them.
        starts: places of the frames' bodies.
        sizes: bytes of the bodies.
        counts: number of records in each body.
        lsns: lsn of the first record in each body, for the error.

    Raises:
        FormatError: a record has an impossible length.
    """
    # A count that does not fit into the bytes must not cost its memory.
    room = np.minimum(counts, sizes // _NO_RECORD + 1)
    ends = np.cumsum(room)
    at = np.zeros(int(ends[-1]) if len(ends) else 0, np.int64)
    _walk_all(data, starts, room, ends - room, at)
    # After a wrong length, reported by the check below, a place may be outside the data.
    np.minimum(at, len(data) - arrays.PAD_SIZE, out=at)
    length = arrays.numbers_at(data, at, "<u4").astype(np.int64)
    least = arrays.FIXED_SIZES[data[at + 4]]
    limit = np.repeat(starts + sizes, room)
    wrong = (at + length > limit) | (length < least)
    if wrong.any() or not np.array_equal(room, counts):
        index = int(np.argmax(wrong))
        frame = int(np.searchsorted(ends, index, side="right"))
        lsn = int(lsns[frame] + index - (ends[frame] - room[frame]))
        raise errors.FormatError(
            f"record at lsn {lsn} has an impossible length of {int(length[index])} bytes"
        )
    return at, length


def _walk_all(
    data: arrays.Bytes,
    starts: arrays.Ints,
    counts: arrays.Ints,
    first: arrays.Ints,
    out: arrays.Ints,
) -> None:
    """Write the places of frame ``n`` to ``out[first[n]:]``; undefined after a wrong length."""
    order = np.argsort(-counts, kind="stable")
    last = len(data) - 8
    place, slot, left = starts[order], first[order], counts[order]
    # A frame without records has no slot in ``out``.
    active, step = int(np.searchsorted(-left, 0, side="left")), 0
    while active >= _IN_STEP_MIN:
        place, slot = place[:active], slot[:active]
        out[slot] = place
        place = np.minimum(place + arrays.numbers_at(data, place, "<u4"), last)
        slot = slot + 1
        step += 1
        active = int(np.searchsorted(-left, -step, side="left"))
    rest = (place[:active].tolist(), slot[:active].tolist(), (left[:active] - step).tolist())
    for at, begin, count in zip(*rest, strict=True):
        _walk_one(data, at, out[begin : begin + count])


def _walk_one(data: arrays.Bytes, at: int, out: arrays.Ints) -> None:
    """Write the places of one frame's records from ``at`` on."""
    length_at, view, last = codec.LENGTH.unpack_from, data.data, len(data) - 8
    places: list[int] = []
    for _ in range(len(out)):
        places.append(at)
        if at < last:
            at += length_at(view, at)[0]
    out[:] = places


#: Bytes that are read at a time, unless a frame is larger: the size of a processor's cache.
CHUNK_BYTES: Final = 2 * 1024 * 1024
#: Unit of a disk's read errors.
_BLOCK: Final = 4_096
_HEAD: Final = codec.SEGMENT_HEADER.size
_FRAME: Final = codec.FRAME_HEADER_SIZE
_SIZE_AT: Final = codec.LENGTH.size
#: A header without its own CRC, which follows it.
_CHECKED_SIZE: Final = _FRAME - codec.LENGTH.size


class RecordStretch(NamedTuple):
    """Records in one stretch of bytes.

    ``at`` and ``length`` are their places in ``data``, a buffer that is valid until the next
    ``RecordStretch`` and has ``PAD_SIZE`` extra bytes. ``base`` is the offset of ``data`` in the
    file; for several files it is an offset for each record.
    """

    data: arrays.Bytes
    base: int | arrays.Ints
    at: arrays.Ints
    length: arrays.Ints
    lsn: arrays.Ints
    epoch: arrays.Ints
    time_ns: arrays.Ints


def joined(stretches: Sequence[RecordStretch]) -> RecordStretch:
    """Return the records of several stretches, each with a buffer of its own, as one stretch."""
    sizes = [len(stretch.data) for stretch in stretches]
    counts = [len(stretch.at) for stretch in stretches]
    begins = np.cumsum([0, *sizes[:-1]])
    bases = np.array([stretch.base for stretch in stretches])
    data, at, *others = (
        np.concatenate(parts)
        for parts in zip(*((some.data, *some[2:]) for some in stretches), strict=True)
    )
    shifts = np.repeat(begins, counts)
    return RecordStretch(data, np.repeat(bases, counts) - shifts, at + shifts, *others)


class DamagedBytes(NamedTuple):
    """Damaged bytes, and the records in them that are whole by their own CRC, if any."""

    gap: Gap
    what: str
    salvaged: RecordStretch | None


class PieceReader:
    """Reads one piece. Use ``with``.

    Raises:
        SegmentMissing: the file does not exist.
        SegmentUnreadable: the file cannot be opened.
    """

    def __init__(self, piece: schema.Piece) -> None:
        self.piece = piece
        self._log_id = UUID(piece.log_id)
        self._seed = codec.segment_seed(self._log_id, piece.segment)
        self._next_lsn = piece.segment if piece.start <= _HEAD else 0
        try:
            self._descriptor = open_file(piece.path)
        except FileNotFoundError:
            raise problems.SegmentMissing(piece.path) from None
        except OSError as error:
            raise problems.SegmentUnreadable(piece.path, error.strerror or str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._descriptor)

    # -- reading ----------------------------------------------------------------------------------

    def items(self) -> Iterator[RecordStretch | DamagedBytes]:
        """Yield everything in the piece, in order.

        Raises:
            FormatError: a newer taskq wrote it.
            WrongSegment: the file holds another segment.
            SegmentUnreadable: the file cannot be read.
        """
        offset, end = self.piece.start, self.piece.end
        if offset >= end:
            return
        if offset <= _HEAD:
            damage = self._check_header()
            if damage is not None:
                yield damage
            offset = _HEAD
        # Thousands of small segments need only a small buffer each.
        chunk = np.zeros(min(CHUNK_BYTES, max(end - offset, 0)) + arrays.PAD_SIZE, np.uint8)
        wanted = CHUNK_BYTES
        while offset < end:
            asked = min(wanted, end - offset)
            if asked > len(chunk) - arrays.PAD_SIZE:
                chunk = np.zeros(asked + arrays.PAD_SIZE, np.uint8)
            filled = self._fill(chunk, asked, offset)
            records, size, needed = self._whole_frames(chunk, filled, offset)
            if records is not None:
                if len(records.at):  # without records it was a sync point alone
                    yield records
                offset, wanted = offset + size, CHUNK_BYTES
            elif filled == asked < needed <= end - offset:
                wanted = needed
            else:
                item, offset = self._strange(offset)
                wanted = CHUNK_BYTES
                if item is not None:
                    yield item

    def _fill(self, chunk: arrays.Bytes, count: int, offset: int) -> int:
        view = chunk.data[:count]
        done = 0
        while done < count:
            try:
                size = system.preadv(self._descriptor, view[done:], offset + done)
            except OSError:
                rest = self._read(count - done, offset + done)
                view[done : done + len(rest)] = rest
                return done + len(rest)
            if not size:
                break
            done += size
        return done

    def _read(self, count: int, offset: int) -> bytes:
        """Return bytes of the file; blocks with read errors are zeros, and so fail their CRC.

        Raises:
            SegmentUnreadable: no block can be read.
        """
        parts: list[bytes] = []
        by_block = False
        while count:
            size = min(count, _BLOCK - offset % _BLOCK) if by_block else count
            try:
                part = system.pread(self._descriptor, size, offset)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise problems.SegmentUnreadable(
                        self.piece.path, str(error.strerror)
                    ) from error
                if not by_block:
                    by_block = True
                    continue
                part = bytes(size)
            if not part:
                break
            parts.append(part)
            count -= len(part)
            offset += len(part)
        return b"".join(parts)

    # -- frames -----------------------------------------------------------------------------------

    def _whole_frames(
        self, data: arrays.Bytes, filled: int, base: int
    ) -> tuple[RecordStretch | None, int, int]:
        """Return (records of the frames at the start of the data, their bytes, bytes needed).

        Bytes needed is positive if the first frame is longer than the data.
        """
        view = data.data
        at = np.array(_chain(view, filled), np.int64)
        heads = arrays.heads(data, at, _FRAME).view(arrays.OF_FRAME)
        seeds = place_seeds(self._seed, base + at).tolist()
        good = self._fit(heads)
        places = at[:good].tolist()
        crcs = [
            codec.crc32(view[place : place + _CHECKED_SIZE], seed)
            for place, seed in zip(places, seeds, strict=False)
        ]
        good = _first(heads["crc"][:good] == np.array(crcs, np.uint32))
        ends = at[:good] + _FRAME + heads["size"][:good]
        whole = int(np.searchsorted(ends, filled, side="right"))
        crcs = [
            codec.crc32(view[place + _FRAME : end], seed)
            for place, end, seed in zip(places, ends[:whole].tolist(), seeds, strict=False)
        ]
        count = _first(heads["body_crc"][:whole] == np.array(crcs, np.uint32))
        if not count:
            missing = not whole and good
            short = _FRAME if filled < _FRAME else 0
            return None, 0, int(ends[0]) + 7 & ~7 if missing else short
        records = _found(data, base, at[:count], heads[:count])
        self._next_lsn = int(heads["first_lsn"][count - 1]) + int(heads["count"][count - 1])
        return records, min(int(ends[count - 1]) + 7 & ~7, filled), 0

    def _fit(self, heads: npt.NDArray[np.void]) -> int:
        first, count = heads["first_lsn"], heads["count"]
        fits = (heads["magic"] == codec.FRAME_MAGIC) & (heads["flags"] == 0)
        fits &= first < codec.LSN_MAX
        # A later value is used only if all earlier frames fit, so it cannot overflow.
        expected = np.empty(len(heads), np.uint64)
        expected[:1] = self._next_lsn
        expected[1:] = first[:-1] + count[:-1]
        return _first(fits & (first >= expected))

    def _strange(self, offset: int) -> tuple[RecordStretch | DamagedBytes | None, int]:
        if not self._next_lsn:
            self._learn_lsn()
        item = next(self._scanner(self.piece.end, self._next_lsn).frames(offset), None)
        if item is None:  # only frames that were already decoded
            return None, self.piece.end
        self._next_lsn = item.next_lsn
        if isinstance(item, Gap):
            return self._damage(item), item.end
        data, start = _padded(item.data), item.at - _FRAME
        heads = arrays.heads(data, np.array([start]), _FRAME).view(arrays.OF_FRAME)
        return _found(data, item.offset - start, np.array([start]), heads), item.end

    def _learn_lsn(self) -> None:
        """Find the first lsn of a piece that does not start with a frame."""
        self._next_lsn = self.piece.segment
        for item in self._scanner(self.piece.start, self.piece.segment).frames(_HEAD):
            self._next_lsn = item.next_lsn

    def _scanner(self, end: int, next_lsn: int) -> Scanner:
        return Scanner(self._read, self._seed, end, next_lsn, sealed=True)

    # -- damage -----------------------------------------------------------------------------------

    def _check_header(self) -> DamagedBytes | None:
        data = self._read(_HEAD, 0)
        header = codec.decode_segment_header(data, problems.shown(self.piece.path))
        segment = self.piece.segment
        if header is None:
            is_ours = data[:8] == codec.SEGMENT_MAGIC
            what = "the header is damaged" if is_ours else "this is no segment of a task log"
        elif header.first_lsn != segment or header.log_id != self._log_id.bytes:
            log_id = UUID(bytes=header.log_id)
            raise problems.WrongSegment(
                self.piece.path,
                f"segment {header.first_lsn} of log {log_id}",
                f"segment {segment} of log {self._log_id}",
            )
        else:
            return None
        return DamagedBytes(Gap(0, _HEAD, segment, segment, torn=False), what, None)

    def _opened(self) -> tuple[int, int]:
        """Return (epoch, time) from the segment's header, or from its first frame."""
        data = self._read(_HEAD + _FRAME, 0)
        header = codec.decode_segment_header(data, problems.shown(self.piece.path))
        if header is not None and header.first_lsn == self.piece.segment:
            return header.epoch, header.created_ns
        frame = codec.decode_frame_header(data, _HEAD, self._seed, _HEAD)
        return (frame.epoch, frame.time_ns) if frame is not None else (0, 0)

    def _damage(self, gap: Gap) -> DamagedBytes:
        data = self._read(min(gap.size, codec.FRAME_BODY_MAX), gap.offset)
        header = codec.decode_frame_header(data, 0, self._seed, gap.offset)
        body = data[_FRAME:]
        if header is None:
            what = "no whole frame starts here"
            epoch, time_ns = self._opened()
        else:
            what = f"the frame of {header.records} records is damaged"
            epoch, time_ns, body = header.epoch, header.time_ns, body[: header.body_size]
        records = list(salvage(body, gap.first_lsn))
        salvaged = None
        if records:
            count = len(records)
            salvaged = RecordStretch(
                _padded(body),
                gap.offset + _FRAME,
                np.array([at for _, at, _ in records], np.int64),
                np.array([len(record) for _, _, record in records], np.int64),
                np.array([lsn for lsn, _, _ in records], np.int64),
                np.full(count, epoch, np.uint64).view(np.int64),
                np.full(count, time_ns, np.int64),
            )
        return DamagedBytes(gap, what, salvaged)

    def error(self, damage: DamagedBytes) -> problems.SegmentDamaged:
        gap = damage.gap
        return problems.SegmentDamaged(
            self.piece.path, gap.offset, gap.end, gap.first_lsn, damage.what
        )


def _padded(data: bytes) -> arrays.Bytes:
    return np.frombuffer(data + bytes(arrays.PAD_SIZE), np.uint8)


def _chain(view: memoryview, filled: int) -> list[int]:
    size_at, size_max = codec.LENGTH.unpack_from, codec.FRAME_BODY_MAX
    starts: list[int] = []
    at, last = 0, filled - _FRAME
    while at <= last:
        size = size_at(view, at + _SIZE_AT)[0]
        if size > size_max:
            break
        starts.append(at)
        at += _FRAME + size + 7 & ~7
    return starts


def _first(good: npt.NDArray[np.bool_]) -> int:
    return len(good) if good.all() else int(np.argmin(good))


def _crc_table() -> npt.NDArray[np.uint32]:
    ones = 0xFFFFFFFF
    return np.array([codec.crc32(bytes([byte]), ones) ^ ones for byte in range(256)], np.uint32)


_CRC_TABLE: Final = _crc_table()
#: Below this number of frames, seeds are computed one by one.
_SEEDS_MIN: Final = 32


def place_seeds(seed: int, offset: arrays.Ints) -> npt.NDArray[np.uint32]:
    if len(offset) < _SEEDS_MIN:
        seeds = (codec.crc32(place.to_bytes(8, "little"), seed) for place in offset.tolist())
        return np.fromiter(seeds, np.uint32, len(offset))
    state = np.full(len(offset), seed ^ 0xFFFFFFFF, np.uint32)
    for byte in offset.astype("<u8").view(np.uint8).reshape(-1, 8).T:
        state = _CRC_TABLE[(state ^ byte) & 0xFF] ^ (state >> np.uint32(8))
    return ~state


def _found(
    data: arrays.Bytes, base: int, at: arrays.Ints, heads: npt.NDArray[np.void]
) -> RecordStretch:
    count = heads["count"].astype(np.int64)
    lsn = heads["first_lsn"].astype(np.int64)
    place, length = places(data, at + _FRAME, heads["size"].astype(np.int64), count, lsn)
    totals = np.cumsum(count)
    return RecordStretch(
        data,
        base,
        place,
        length,
        np.repeat(lsn - (totals - count), count) + np.arange(len(place)),
        np.repeat(heads["epoch"].view(np.int64), count),
        np.repeat(np.clip(heads["time_ns"], 0, model.TIME_NS_MAX), count),
    )
