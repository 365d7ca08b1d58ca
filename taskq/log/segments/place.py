"""What those who read the log's files ask of where it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from taskq.core.views import Damage
    from taskq.log.format.frames import Cursor, Frame, Gap
    from taskq.log.machine.meters import Meters
    from taskq.log.machine.ports import Disk
    from taskq.log.segments.segments import SegmentFiles


class Place(Protocol):
    """The log's files, and where the log ends as far as one process knows: its ``Journal``.

    Attributes:
        segment, offset, next_lsn: of the end.
        meters: what this process did so far.
    """

    disk: Disk
    path: str
    files: SegmentFiles
    segment: int
    offset: int
    next_lsn: int
    meters: Meters

    @property
    def lost(self) -> tuple[Damage, ...]: ...
    def start(self) -> Cursor: ...
    def end(self) -> Cursor: ...
    def mark_before(self, lsn: int) -> Cursor | None:
        """Return a frame of this process at or before a record, and near it, if it knows of one."""

    def frames(self, cursor: Cursor) -> Iterator[tuple[int, Frame | Gap]]:
        """(location of the segment's first byte, frame or damage) from the cursor to the end."""
