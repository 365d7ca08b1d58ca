"""Walks over the log that decode only the records that matter to somebody."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.errors import FormatError
from taskq.core.records import JOB_KINDS, Kind
from taskq.log import codec
from taskq.log.codec import JOB_AT, KIND_AT
from taskq.log.logrecord import decode_record, places
from taskq.log.salvage import salvage
from taskq.log.segment import Gap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.log.journal import Journal
    from taskq.log.logrecord import LogRecord

_JOB: Final = struct.Struct("<Q")
_ENQUEUED: Final = int(Kind.ENQUEUED)
_CLOCK: Final = int(Kind.CLOCK)
_JOB_KINDS: Final = frozenset(map(int, JOB_KINDS))
_SKIPPABLE: Final = 128


def records_of(journal: Journal, jobs: list[int]) -> Iterator[LogRecord]:
    """Every record that concerns one of these jobs, and every step of the clock."""
    wanted = frozenset(jobs)
    job_at = _JOB.unpack_from
    for _, item in journal.frames(journal.cursor_at(min(jobs))):
        if isinstance(item, Gap):
            continue
        data, header = item.data, item.header
        for lsn, at, length in places(item):
            kind = data[at + KIND_AT]
            if kind == _ENQUEUED:
                fits = lsn in wanted
            elif kind in _JOB_KINDS:
                fits = job_at(data, at + JOB_AT)[0] in wanted
            elif kind == _CLOCK:
                fits = True
            else:
                check_known(kind, lsn)
                continue
            if fits:
                yield decode_record(data[at : at + length], lsn, header.epoch, header.time_ns)


def check_known(kind: int, lsn: int) -> None:
    """Let nobody pass over a record that may matter.

    Raises:
        FormatError: the type is unknown and may not be skipped.
    """
    if kind not in codec.FIXED_SIZES and kind < _SKIPPABLE:
        raise FormatError(f"record type {kind} at lsn {lsn} is unknown: a newer taskq wrote it")


class Entry(NamedTuple):
    """A record in the log: ``data[at:at + length]``, at a location as of ``SegmentFiles``."""

    lsn: int
    epoch: int
    time_ns: int
    location: int
    data: bytes
    at: int
    length: int

    @property
    def kind(self) -> int:
        """Its type."""
        return self.data[self.at + KIND_AT]

    @property
    def job(self) -> int:
        """The job that it concerns, of one of JOB_KINDS."""
        job: int = _JOB.unpack_from(self.data, self.at + JOB_AT)[0]
        return job

    def decode(self) -> LogRecord:
        """All that it says."""
        record = self.data[self.at : self.at + self.length]
        return decode_record(record, self.lsn, self.epoch, self.time_ns)


def entries(journal: Journal) -> Iterator[Entry]:
    """Every record of the log; of damaged frames those that are whole by their own CRC."""
    for base, item in journal.frames(journal.start()):
        if not isinstance(item, Gap):
            header = item.header
            where = base + item.offset + codec.FRAME_HEADER_SIZE - item.at
            for lsn, at, length in places(item):
                yield Entry(lsn, header.epoch, header.time_ns, where + at, item.data, at, length)
            continue
        found = journal.files.damaged_frame(base, item)
        if found is not None:
            header, body, start = found
            for lsn, at, record in salvage(body, item.first_lsn):
                location = base + start + at
                yield Entry(lsn, header.epoch, header.time_ns, location, record, 0, len(record))
