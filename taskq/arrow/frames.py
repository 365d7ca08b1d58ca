"""Whole frames of a piece of a segment, many at a time, and what stands between them.

Frames that follow each other as they should are found here; a verdict on anything else is left to
``taskq.log.format.frames``, which every reader of a log asks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from uuid import UUID

import numpy as np
import numpy.typing as npt

from taskq.arrow import layout
from taskq.arrow.layout import PAD_SIZE, Bytes, Ints
from taskq.arrow.places import places
from taskq.arrow.problems import (
    SegmentDamaged,
    SegmentMissing,
    SegmentUnreadable,
    WrongSegment,
    shown,
)
from taskq.core.model import TIME_NS_MAX
from taskq.engine import Gap, Scanner, open_file
from taskq.log.format import codec
from taskq.log.format.salvage import salvage

if TYPE_CHECKING:
    from taskq.arrow.schema import Piece

#: Bytes that are read at a time, unless a frame is larger: what the processor's cache holds.
CHUNK_BYTES: Final = 2 * 1024 * 1024
#: What a disk fails to give back, it fails in pieces of this size.
_BLOCK: Final = 4_096
_HEAD: Final = codec.SEGMENT_HEADER.size
_FRAME: Final = codec.FRAME_HEADER_SIZE
_SIZE_AT: Final = codec.LENGTH.size
#: A header without its own CRC, which stands behind.
_CHECKED_SIZE: Final = _FRAME - codec.LENGTH.size


class Found(NamedTuple):
    """Records that stand in one stretch of bytes.

    ``at`` and ``length`` are their places in ``data``, which is to be read until the next ``Found``
    is asked for, and has ``PAD_SIZE`` bytes behind it. ``base`` is the offset of ``data`` in the
    file.
    """

    data: Bytes
    base: int
    at: Ints
    length: Ints
    lsn: Ints
    epoch: Ints
    time_ns: Ints


class Damage(NamedTuple):
    """A gap, and the records in it that are whole by their own CRC, if there are any."""

    gap: Gap
    epoch: int
    time_ns: int
    what: str
    salvaged: Found | None


class PieceReader:
    """Reads one piece. Use ``with``.

    Raises:
        SegmentMissing: there is no such file.
        SegmentUnreadable: it cannot be opened.
    """

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self._log_id = UUID(piece.log_id)
        self._seed = codec.segment_seed(self._log_id, piece.segment)
        self._next_lsn = piece.segment if piece.start <= _HEAD else 0
        try:
            self._descriptor = open_file(piece.path)
        except FileNotFoundError:
            raise SegmentMissing(piece.path) from None
        except OSError as error:
            raise SegmentUnreadable(piece.path, error.strerror or str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._descriptor)

    # -- reading ----------------------------------------------------------------------------------

    def items(self) -> Iterator[Found | Damage]:
        """Yield everything in the piece, in its order.

        Raises:
            FormatError: a newer taskq wrote it.
            WrongSegment: it is whole, but another one.
            SegmentUnreadable: the disk refuses.
        """
        offset, end = self.piece.start, self.piece.end
        if offset >= end:
            return
        if offset <= _HEAD:
            damage = self._check_header()
            if damage is not None:
                yield damage
            offset = _HEAD
        # Of thousands of small segments each needs a small one.
        chunk = np.zeros(min(CHUNK_BYTES, max(end - offset, 0)) + PAD_SIZE, np.uint8)
        wanted = CHUNK_BYTES
        while offset < end:
            asked = min(wanted, end - offset)
            if asked > len(chunk) - PAD_SIZE:
                chunk = np.zeros(asked + PAD_SIZE, np.uint8)
            filled = self._fill(chunk, asked, offset)
            records, size, needed = self._whole_frames(chunk, filled, offset)
            if records is not None:
                if len(records.at):  # else it was a sync point alone
                    yield records
                offset, wanted = offset + size, CHUNK_BYTES
            elif filled == asked < needed <= end - offset:
                wanted = needed
            else:
                item, offset = self._strange(offset)
                wanted = CHUNK_BYTES
                if item is not None:
                    yield item

    def _fill(self, chunk: Bytes, count: int, offset: int) -> int:
        view = chunk.data[:count]
        done = 0
        while done < count:
            try:
                size = os.preadv(self._descriptor, [view[done:]], offset + done)
            except OSError:
                rest = self._read(count - done, offset + done)
                view[done : done + len(rest)] = rest
                return done + len(rest)
            if not size:
                break
            done += size
        return done

    def _read(self, count: int, offset: int) -> bytes:
        """Return what the disk gives back; blocks that it does not are zeros, and fail their CRC.

        Raises:
            SegmentUnreadable: it refuses altogether.
        """
        parts: list[bytes] = []
        by_block = False
        while count:
            size = min(count, _BLOCK - offset % _BLOCK) if by_block else count
            try:
                part = os.pread(self._descriptor, size, offset)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise SegmentUnreadable(self.piece.path, str(error.strerror)) from error
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

    def _whole_frames(self, data: Bytes, filled: int, base: int) -> tuple[Found | None, int, int]:
        """Return (records of the frames that the data begins with, their bytes, bytes needed).

        The last is not 0 if there are no such frames, since the first is longer than the data.
        """
        view = data.data
        at = np.array(_chain(view, filled), np.int64)
        heads = layout.heads(data, at, _FRAME).view(layout.OF_FRAME)
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
        # What comes after is only looked at where all before fits, and so does not overflow.
        expected = np.empty(len(heads), np.uint64)
        expected[:1] = self._next_lsn
        expected[1:] = first[:-1] + count[:-1]
        return _first(fits & (first >= expected))

    def _strange(self, offset: int) -> tuple[Found | Damage | None, int]:
        if not self._next_lsn:
            self._learn_lsn()
        item = next(self._scanner(self.piece.end, self._next_lsn).frames(offset), None)
        if item is None:  # nothing but frames that were seen already
            return None, self.piece.end
        if isinstance(item, Gap):
            self._next_lsn = item.next_lsn
            return self._damage(item), item.resume
        self._next_lsn = item.header.next_lsn
        data, start = _padded(item.data), item.at - _FRAME
        heads = layout.heads(data, np.array([start]), _FRAME).view(layout.OF_FRAME)
        return _found(data, item.offset - start, np.array([start]), heads), item.end

    def _learn_lsn(self) -> None:
        """Find out which record comes first, of a piece that starts with bytes that do not say."""
        self._next_lsn = self.piece.segment
        for item in self._scanner(self.piece.start, self.piece.segment).frames(_HEAD):
            self._next_lsn = item.next_lsn if isinstance(item, Gap) else item.header.next_lsn

    def _scanner(self, end: int, next_lsn: int) -> Scanner:
        return Scanner(self._read, self._seed, end, next_lsn, sealed=True)

    # -- damage -----------------------------------------------------------------------------------

    def _check_header(self) -> Damage | None:
        data = self._read(_HEAD, 0)
        header = codec.decode_segment_header(data, shown(self.piece.path))
        segment = self.piece.segment
        if header is None:
            is_ours = data[:8] == codec.SEGMENT_MAGIC
            what = "the header is damaged" if is_ours else "this is no segment of a task log"
        elif header.first_lsn != segment or header.log_id != self._log_id.bytes:
            whose = UUID(bytes=header.log_id)
            raise WrongSegment(
                self.piece.path,
                f"segment {header.first_lsn} of log {whose}",
                f"segment {segment} of log {self._log_id}",
            )
        else:
            return None
        return Damage(Gap(0, _HEAD, segment, segment, torn=False), 0, 0, what, None)

    def _opened(self) -> tuple[int, int]:
        """Return (epoch, time) that the segment's header, or else its first frame, tells."""
        data = self._read(_HEAD + _FRAME, 0)
        header = codec.decode_segment_header(data, shown(self.piece.path))
        if header is not None and header.first_lsn == self.piece.segment:
            return header.epoch, header.created_ns
        frame = codec.decode_frame_header(data, _HEAD, self._seed, _HEAD)
        return (frame.epoch, frame.time_ns) if frame is not None else (0, 0)

    def _damage(self, gap: Gap) -> Damage:
        data = self._read(min(gap.resume - gap.offset, codec.FRAME_BODY_MAX), gap.offset)
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
            salvaged = Found(
                _padded(body),
                gap.offset + _FRAME,
                np.array([at for _, at, _ in records], np.int64),
                np.array([len(record) for _, _, record in records], np.int64),
                np.array([lsn for lsn, _, _ in records], np.int64),
                np.full(count, epoch, np.uint64).view(np.int64),
                np.full(count, time_ns, np.int64),
            )
        return Damage(gap, epoch, time_ns, what, salvaged)

    def error(self, damage: Damage) -> SegmentDamaged:
        gap = damage.gap
        return SegmentDamaged(self.piece.path, gap.offset, gap.resume, gap.first_lsn, damage.what)

    def raw(self, gap: Gap, size_max: int) -> bytes:
        return self._read(min(gap.resume - gap.offset, size_max), gap.offset)


def _padded(data: bytes) -> Bytes:
    return np.frombuffer(data + bytes(PAD_SIZE), np.uint8)


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


def place_seeds(seed: int, offset: Ints) -> npt.NDArray[np.uint32]:
    state = np.full(len(offset), seed ^ 0xFFFFFFFF, np.uint32)
    for byte in offset.astype("<u8").view(np.uint8).reshape(-1, 8).T:
        state = _CRC_TABLE[(state ^ byte) & 0xFF] ^ (state >> np.uint32(8))
    return ~state


def _found(data: Bytes, base: int, at: Ints, heads: npt.NDArray[np.void]) -> Found:
    count = heads["count"].astype(np.int64)
    lsn = heads["first_lsn"].astype(np.int64)
    place, length = places(data, at + _FRAME, heads["size"].astype(np.int64), count, lsn)
    behind = np.cumsum(count)
    return Found(
        data,
        base,
        place,
        length,
        np.repeat(lsn - (behind - count), count) + np.arange(len(place)),
        np.repeat(heads["epoch"].view(np.int64), count),
        np.repeat(np.clip(heads["time_ns"], 0, TIME_NS_MAX), count),
    )
