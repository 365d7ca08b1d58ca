"""Where one process stands in the log, and reading it from there."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from taskq.log import codec
from taskq.log.chain import find_losses
from taskq.log.cursor import Cursor, Marks
from taskq.log.files import SegmentFiles
from taskq.log.index import SegmentIndexes
from taskq.log.meters import Meters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.core.model import Damage
    from taskq.log.config import LogConfig
    from taskq.log.ports import Clock, Disk
    from taskq.log.segment import Frame, Gap


class Place:
    """The log's files, and where the log ends as far as this process knows.

    Attributes:
        next_lsn, epoch, time_ns: of the log's end, as of the last ``lock`` or ``refresh``.
        segment, offset: where the next frame goes.
        last_frame: offset of the segment's last frame, 0 if it has none.
        is_past: the end is one that the log had at a moment of the past.
        indexes: what finds single records.
        meters: what this process did so far.
    """

    def __init__(
        self, disk: Disk, clock: Clock, path: str, config: LogConfig, *, writable: bool
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.path = path
        self.config = config
        self.files = SegmentFiles(disk, path, writable=writable)
        self.next_lsn = self.offset = self.segment = self.epoch = self.time_ns = 0
        self.last_frame = 0
        self.is_past = False
        self._marks = Marks()
        self.meters = Meters()
        self.indexes = SegmentIndexes(self)

    @functools.cached_property
    def lost(self) -> tuple[Damage, ...]:
        """What the log lacks, and nothing says that it may; looked for when first asked for.

        That takes a look at each segment, which most who only read need not wait for.
        """
        return find_losses(self, 0)

    def start(self) -> Cursor:
        """The beginning of the log."""
        return self.files.cursor_at(0) or self.end()

    def end(self) -> Cursor:
        """The end of the log as of the last ``lock`` or ``refresh``."""
        return Cursor(self.segment, self.offset, self.next_lsn)

    def is_at_end(self, cursor: Cursor) -> bool:
        """Whether nothing stands behind the cursor."""
        return cursor.offset == self.offset and cursor.segment == self.segment

    def cursor_at(self, lsn: int) -> Cursor:
        """A cursor at or before the frame that holds ``lsn``."""
        return self._marks.before(lsn) or self.files.cursor_at(lsn) or self.end()

    def mark_before(self, lsn: int) -> Cursor | None:
        """A frame of this process at or before a record, and near it, if it knows of one."""
        return self._marks.before(lsn)

    def frames(self, cursor: Cursor) -> Iterator[tuple[int, Frame | Gap]]:
        """(location of the segment's first byte, frame or damage) from the cursor to the known end.

        The cursor is moved behind each item before it is given out.

        Raises:
            SegmentGone: compaction took the cursor's segment, or one behind it.
        """
        return self.files.frames(cursor, self.end())

    def next_location(self) -> int:
        """Where the first record of the next frame will stand."""
        return self.files.base(self.segment) + self.offset + codec.FRAME_HEADER_SIZE
