"""One segment's file, read by its frames' headers: no body, unless somebody asks for it.

A header is checked by its CRC, whose seed fits only its own place. So a frame can be looked for
from anywhere in the file, backwards or forwards, and a large segment is cut, or its end judged,
with one or two reads.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from taskq.engine import Scanner, open_file
from taskq.errors import FormatError
from taskq.log.format import codec
from taskq_plugins.fleet.problems import SegmentUnreadable, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where the first frame stands.
START: Final = codec.SEGMENT_HEADER.size
#: Bytes that a search for a frame reads at first, and at most at a time.
_NEAR_BYTES: Final = 32 * 1024
_WINDOW_BYTES: Final = 1024 * 1024
#: How far a search goes: over three frames of the largest size that are all damaged.
_SEARCH_BYTES: Final = 3 * codec.FRAME_BODY_MAX
_HOP_BYTES: Final = 16 * 1024
_MAGIC: Final = codec.FRAME_MAGIC_BYTES
_HEAD: Final = codec.FRAME_HEADER_SIZE


class SegmentFile:
    """An open segment. Close it, or use ``with``.

    Attributes:
        size_bytes: of the file when it was opened.
        inode: of the file: a recovery may put another in its place.
    """

    def __init__(self, path: str, log_id: str, first_lsn: int) -> None:
        self.path = path
        self.first_lsn = first_lsn
        self._log_id = UUID(log_id)
        self.seed = codec.segment_seed(self._log_id, first_lsn)
        try:
            self._descriptor = open_file(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SegmentUnreadable(path, error.strerror or str(error)) from error
        facts = os.fstat(self._descriptor)
        self.size_bytes, self.inode = facts.st_size, facts.st_ino
        self.modified_ns = facts.st_mtime_ns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back."""
        os.close(self._descriptor)

    def read(self, count: int, offset: int) -> bytes:
        """At most ``count`` bytes; fewer at the end of the file.

        Raises:
            SegmentUnreadable: the disk does not give them.
        """
        try:
            return os.pread(self._descriptor, count, offset)
        except OSError as error:
            raise SegmentUnreadable(self.path, f"{error.strerror} at offset {offset}") from error

    def sync(self) -> bool:
        """Put everything that was written to the file on disk; False when that is not sure."""
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)
            return True
        return False

    def header(self) -> codec.SegmentHeader | None:
        """Return what its header says, or its name and first frame; None if neither reads.

        Raises:
            FormatError: a newer taskq wrote it.
        """
        data = self.read(START + _HEAD, 0)
        header = codec.decode_segment_header(data, shown(self.path))
        if header is not None and header.first_lsn == self.first_lsn:
            return header if header.log_id == self._log_id.bytes else None
        frame = self._decode(data, START, START)
        if frame is None:
            return None
        return codec.SegmentHeader(self.first_lsn, frame.epoch, self._log_id.bytes, frame.time_ns)

    def frame_at(self, offset: int) -> codec.FrameHeader | None:
        """Return the header that stands there; None if there is none."""
        return self._decode(self.read(_HEAD, offset), 0, offset)

    def hop(self, offset: int, end: int) -> Iterator[tuple[int, codec.FrameHeader]]:
        """(offset, header) of each frame that ends by ``end``, up to what is no header."""
        data, base = b"", offset
        while offset + _HEAD <= end:
            at = offset - base
            if at + _HEAD > len(data):
                data, base, at = self.read(_HOP_BYTES, offset), offset, 0
            header = self._decode(data, at, offset)
            if header is None or offset + header.size > end:
                return
            yield offset, header
            offset += header.size

    def last_before(self, offset: int, start: int = START) -> tuple[int, codec.FrameHeader] | None:
        """(offset, header) of the last frame that starts in ``start`` to before ``offset``."""
        high, width = offset, _NEAR_BYTES
        lowest = max(start, offset - _SEARCH_BYTES)
        while high > lowest:
            low = max(lowest, high - width) & ~7
            data = self.read(high - low + _HEAD, low)
            at = data.rfind(_MAGIC, 0, high - low + 3)
            while at >= 0:
                header = self._decode(data, at, low + at) if not (low + at) % 8 else None
                if header is not None and low + at >= start:
                    return low + at, header
                at = data.rfind(_MAGIC, 0, at + 3)
            high, width = low, min(width * 4, _WINDOW_BYTES)
        return None

    def first_from(self, offset: int, end: int) -> tuple[int, codec.FrameHeader] | None:
        """(offset, header) of the first frame that starts from ``offset`` to before ``end``."""
        low, width = offset, _NEAR_BYTES
        highest = min(end, offset + _SEARCH_BYTES)
        while low < highest:
            high = min(highest, low + width)
            data = self.read(high - low + _HEAD, low)
            at = data.find(_MAGIC, 0, high - low + 3)
            while at >= 0:
                header = self._decode(data, at, low + at) if not (low + at) % 8 else None
                if header is not None:
                    return low + at, header
                at = data.find(_MAGIC, at + 1, high - low + 3)
            low, width = high, min(width * 4, _WINDOW_BYTES)
        return None

    def scanner(self, next_lsn: int, *, sealed: bool) -> Scanner:
        """Return a reader of whole frames, bodies and all."""
        return Scanner(self.read, self.seed, self.size_bytes, next_lsn, sealed=sealed)

    def _decode(self, data: bytes, at: int, offset: int) -> codec.FrameHeader | None:
        try:
            return codec.decode_frame_header(data, at, self.seed, offset)
        except FormatError as error:
            raise FormatError(f"{shown(self.path)}: {error}") from error
