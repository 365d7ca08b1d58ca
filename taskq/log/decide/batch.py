"""One frame in the making."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.log.format.codec import FRAME_HEADER_SIZE
from taskq.log.format.notes import UploadProgress, encode_adopted

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal


class Batch:
    """The records of the next frame, and where each will stand.

    Attributes:
        lsn: of the next record.
        size: bytes so far.
        payload_size: those among them that callers gave as payloads of jobs.
        where: location of the frame's first body byte; ``where + size`` is the next record's.
        interest: which sleepers must be woken for it.
        features: what a taskq must know to read it; see ``identity``.
        adopted: how far uploads have come with it, by their ids; ``close`` adds the records.
    """

    __slots__ = (
        "adopted",
        "epoch",
        "features",
        "first_lsn",
        "interest",
        "lsn",
        "parts",
        "payload_size",
        "size",
        "time_ns",
        "where",
    )

    def __init__(self, journal: Journal, time_ns: int) -> None:
        self.parts: list[bytes] = []
        self.lsn = self.first_lsn = journal.next_lsn
        self.epoch = journal.epoch
        self.time_ns = time_ns
        self.size = self.payload_size = 0
        self.where = journal.base + journal.offset + FRAME_HEADER_SIZE
        self.interest = 0
        self.features: tuple[str, ...] = ()
        self.adopted: dict[bytes, UploadProgress] = {}

    def add(self, record: bytes) -> int:
        """Append a record; returns its lsn."""
        lsn = self.lsn
        self.parts.append(record)
        self.size += len(record)
        self.lsn = lsn + 1
        return lsn

    def close(self) -> None:
        """Add what must stand at the end of the frame."""
        for adopted in self.adopted.values():
            self.add(encode_adopted(adopted, self.lsn))

    @property
    def count(self) -> int:
        """Records so far."""
        return self.lsn - self.first_lsn
