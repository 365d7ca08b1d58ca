"""The enqueue records of recent jobs, kept at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from taskq.log.files import SegmentFiles

#: Beyond, records are read back from their segment.
RECENT_BYTES_MAX: Final = 4 * 1024 * 1024


class Recent:
    """Records by job: all of the batch in the making, which are in no file yet, and some before it.

    Attributes:
        records: job -> enqueue record.
        size: at most so many bytes are in it.
    """

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self.records: dict[int, bytes] = {}
        self.size = 0

    def add(self, job: int, record: bytes) -> None:
        """Keep a record."""
        self.records[job] = record
        self.size += len(record)

    def record(self, job: int, location: int) -> bytes:
        """A job's enqueue record, from wherever it is.

        Raises:
            LogDamaged: it does not read back as it was written.
        """
        record = self.records.get(job)
        return record if record is not None else self._files.record(location, job)

    def trim(self) -> None:
        """Between two batches: start anew when there is too much."""
        if self.size <= RECENT_BYTES_MAX:
            return
        # What was claimed meanwhile is gone already: look at what there really is.
        self.size = sum(map(len, self.records.values()))
        if self.size > RECENT_BYTES_MAX // 2:
            self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.records.clear()
        self.size = 0
