"""What a compaction has done so far, segment by segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.model import CompactedSegment, CompactReport
from taskq.log.segment import segment_name

if TYPE_CHECKING:
    from taskq.log.journal import Journal


class Report:
    """What a compaction has done so far."""

    def __init__(self, *, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.carried = 0
        self._segments: list[CompactedSegment] = []

    @property
    def gone(self) -> int:
        """How many segments went."""
        return sum(one.removed for one in self._segments)

    def note(
        self,
        journal: Journal,
        segment: int,
        needed: int,
        reason: str,
        *,
        removed: bool,
        size: int | None = None,
    ) -> None:
        """Add a segment: ``needed`` bytes of its ``size``, which None asks the file for."""
        self._segments.append(
            CompactedSegment(
                segment=segment_name(segment),
                size=journal.files.size(segment) if size is None else size,
                needed=needed,
                reason=reason,
                removed=removed,
            )
        )

    def made(self) -> CompactReport:
        """As callers get it."""
        return CompactReport(
            segments=tuple(self._segments), carried=self.carried, dry_run=self.dry_run
        )
