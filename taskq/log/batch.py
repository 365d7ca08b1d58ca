"""One frame in the making."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.log.adopted import Adopted, encode_adopted
from taskq.log.identity import RECORDS_2, RECORDS_3, RECORDS_4

if TYPE_CHECKING:
    from taskq.log.journal import Journal


class Batch:
    """The records of the next frame, and where each will stand.

    Attributes:
        lsn: of the next record.
        size: bytes so far.
        payload_size: those among them that callers gave as payloads of jobs.
        where: location of the frame's first body byte; ``where + size`` is the next record's.
        interest: which sleepers must be woken for it.
        is_newer: it holds a kind, flag or option that the first taskq could not read.
        is_latest: it holds one that came with ``records-4``.
        adopted: how far uploads have come with it, by their ids; ``close`` adds the records.
    """

    __slots__ = (
        "adopted",
        "epoch",
        "first_lsn",
        "interest",
        "is_latest",
        "is_newer",
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
        self.where = journal.next_location()
        self.interest = 0
        self.is_newer = self.is_latest = False
        self.adopted: dict[bytes, Adopted] = {}

    def add(self, record: bytes) -> int:
        """Append a record; returns its lsn."""
        lsn = self.lsn
        self.parts.append(record)
        self.size += len(record)
        self.lsn = lsn + 1
        return lsn

    def add_newer(self, record: bytes) -> int:
        """Append a record that the first taskq could not read; returns its lsn."""
        self.is_newer = True
        return self.add(record)

    def add_latest(self, record: bytes) -> int:
        """Append a record that came with ``records-4``; returns its lsn."""
        self.is_latest = True
        return self.add(record)

    def close(self) -> None:
        """Add what must stand at the end of the frame."""
        for adopted in self.adopted.values():
            self.add(encode_adopted(adopted, self.lsn))

    @property
    def features(self) -> tuple[str, ...]:
        """What a reader of the frame must know."""
        if not (self.is_newer or self.adopted or self.is_latest):
            return ()
        wanted = (RECORDS_2, self.is_newer), (RECORDS_3, self.adopted), (RECORDS_4, self.is_latest)
        return tuple(name for name, is_wanted in wanted if is_wanted)

    @property
    def count(self) -> int:
        """Records so far."""
        return self.lsn - self.first_lsn
