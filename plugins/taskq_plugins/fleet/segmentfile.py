"""Read one segment's file by its frames' headers: no body, unless somebody asks for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from taskq.arrow.problems import SegmentUnreadable, shown
from taskq.engine import Replica, Scanner, open_file

if TYPE_CHECKING:
    from taskq.engine import FrameHeader

#: Where the first frame stands.
START: Final = Replica.START


class SegmentFile:
    """An open segment. Use ``with``.

    Attributes:
        scanner: reads its frames, and their headers.
        size_bytes: of the file when it was opened.
        inode: of the file: a recovery may put another in its place.
        header: returns what its header says, or its name and first frame; None if neither reads.
        frame_at: returns the header of the frame that starts at an offset, None if none does.
        first_from: returns (offset, header) of the first frame from an offset to before another.
        last_before: likewise of the last one before an offset, from ``start`` on.
    """

    def __init__(self, path: str, log_id: str, first_lsn: int) -> None:
        self.path = path
        self.first_lsn = first_lsn
        try:
            self._descriptor = open_file(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SegmentUnreadable(path, error.strerror or str(error)) from error
        facts = os.fstat(self._descriptor)
        self.size_bytes, self.inode = facts.st_size, facts.st_ino
        self.modified_ns = facts.st_mtime_ns
        own = UUID(log_id)
        self.scanner = Scanner.of_segment(
            self.read, own, first_lsn, self.size_bytes, name=shown(path)
        )
        self.header = partial(self.scanner.segment_header, own, first_lsn)
        self.frame_at, self.first_from = self.scanner.header_at, self.scanner.first_from
        self.last_before = partial(self.scanner.last_before, start=START)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._descriptor)

    def read(self, count: int, offset: int) -> bytes:
        """Return at most ``count`` bytes; fewer at the end of the file.

        Raises:
            SegmentUnreadable: the disk does not give them.
        """
        try:
            return os.pread(self._descriptor, count, offset)
        except OSError as error:
            raise SegmentUnreadable(self.path, f"{error.strerror} at offset {offset}") from error

    def sync(self) -> bool:
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)
            return True
        return False

    def hop(self, offset: int, end: int) -> Iterator[tuple[int, FrameHeader]]:
        return takewhile(lambda frame: frame[0] + frame[1].size <= end, self.scanner.hop(offset))
