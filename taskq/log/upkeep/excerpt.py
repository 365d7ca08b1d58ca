"""The last records of a log as a log of their own, for others to look at: its bodies left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from taskq.core.kinds import BIRTH, CARRYING, OF_JOBS, kinds_that
from taskq.core.model import State
from taskq.core.records import PACKED, Body, Flag
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.carried import decode_carried, encode_carried
from taskq.log.format.codec import KIND_AT, NO_LINK, Link, SegmentHeader
from taskq.log.format.frames import Frame, segment_name
from taskq.log.format.options import without_body, without_secret_headers
from taskq.log.format.record import places
from taskq.log.read.reader import everything
from taskq.text import hidden

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal

_OF_JOBS: Final = OF_JOBS - CARRYING
_WITH_REASON: Final = kinds_that(lambda row: row.body is Body.REASON)
_WITH_RESULT: Final = kinds_that(lambda row: row.body is Body.RESULT)
#: A record that every fold passes over, in place of one that tells of a job from before.
_LEFT_OUT: Final = codec.PREFIX.pack(codec.PREFIX.size, 255, 0, 0, 0)


class Excerpt(NamedTuple):
    """A segment of an excerpt."""

    #: of its file
    name: str
    data: bytes


def excerpt(
    journal: Journal, since_ns: int, *, bodies: bool, hides: bool = False
) -> Iterator[Excerpt]:
    """Yield the frames from a moment on, as segments that verify clean and that every reader takes.

    Lsns, epochs and times are those of the log, and so are job ids. What is told of jobs from
    before the moment is left out: they have no beginning there.

    Args:
        journal: the log, open for reading.
        since_ns: frames before it are left out.
        bodies: whether payloads and results are in it. Reasons of failures are, in any case.
        hides: leave what names call secret out of headers and reasons.
    """
    known: set[int] = set()
    segment: _Segment | None = None
    link = NO_LINK
    for base, item in everything(journal):
        if not isinstance(item, Frame) or item.header.time_ns < since_ns:
            continue
        source = journal.files.segment_at(base)
        if segment is None or segment.source != source:
            if segment is not None:
                link = segment.link()
                yield segment.whole()
            first_lsn = item.header.first_lsn if segment is None else source
            segment = _Segment(journal, source, first_lsn, item, link)
        segment.add(item, _records(item, known, bodies=bodies, hides=hides))
    if segment is not None:
        yield segment.whole()


class _Segment:
    """An in the making."""

    def __init__(
        self, journal: Journal, source: int, first_lsn: int, frame: Frame, link: Link
    ) -> None:
        self.source = source
        self._lsn = first_lsn
        self._seed = codec.segment_seed(journal.identity.log_id, first_lsn)
        header = frame.header
        log_id = journal.identity.log_id.bytes
        head = SegmentHeader(first_lsn, header.epoch, log_id, header.time_ns, link)
        self._data = bytearray(codec.encode_segment_header(head))
        self._last = 0

    def add(self, frame: Frame, records: list[bytes]) -> None:
        header, self._last = frame.header, len(self._data)
        self._data += codec.encode_frame(
            b"".join(records), header.records, header.first_lsn, header.epoch, header.time_ns,
            header.synced_through, self._seed, self._last,
        )  # fmt: skip

    def link(self) -> Link:
        crc = codec.LENGTH.unpack_from(self._data, self._last + codec.FRAME_HEADER_SIZE - 4)[0]
        return Link(self._last, crc)

    def whole(self) -> Excerpt:
        return Excerpt(segment_name(self._lsn), bytes(self._data))


def _records(frame: Frame, known: set[int], *, bodies: bool, hides: bool) -> list[bytes]:
    records = []
    for lsn, at, length in places(frame):
        record = frame.data[at : at + length]
        kind = record[KIND_AT]
        if kind == BIRTH:
            known.add(lsn)
        elif kind in CARRYING:
            known.add(decode_carried(record).job)
        elif kind in _OF_JOBS and codec.JOB.unpack_from(record)[6] not in known:
            records.append(_LEFT_OUT)
            continue
        record = record if bodies else _bare(record, kind, lsn)
        records.append(_discreet(record, kind, lsn) if hides else record)
    return records


def _discreet(record: bytes, kind: int, lsn: int) -> bytes:
    if kind == BIRTH:
        parts = codec.decode_born(record)
        options = without_secret_headers(parts.options)
        return codec.encode_born(parts._replace(options=options), lsn)
    if kind in CARRYING:
        carried = decode_carried(record)
        body = carried.body
        if body is not None and carried.state is State.DEAD:
            body = hidden(body.decode(errors="replace")).encode()
        born = _discreet(carried.born, BIRTH, carried.job)
        return encode_carried(kind, carried._replace(born=born, body=body), lsn)
    length, _, _, size, flags = codec.PREFIX.unpack_from(record)
    if kind in _WITH_REASON and flags & Flag.CHECKED:
        at = codec.FIXED_SIZES[kind] + size
        reason = record[at : length - codec.CRC_SIZE].decode(errors="replace")
        return codec.encode_checked(record[codec.LENGTH.size : at], hidden(reason).encode(), lsn)
    return record


def _bare(record: bytes, kind: int, lsn: int) -> bytes:
    if kind == BIRTH:
        return without_body(record, lsn)
    if kind in _WITH_RESULT:
        _, _, cause, size, _, attempt, job, token = codec.JOB.unpack_from(record)
        options = record[codec.JOB.size : codec.JOB.size + size]
        return codec.encode_job(kind, cause, attempt, job, token, None, lsn, options)
    if kind in CARRYING:
        carried = decode_carried(record)
        body = None if carried.state is State.SUCCEEDED else carried.body
        bare = carried._replace(
            born=_bare(carried.born, BIRTH, carried.job),
            body=body,
            flags=carried.flags & ~PACKED,
        )
        return encode_carried(kind, bare, lsn)
    return record
