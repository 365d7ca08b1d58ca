"""Indexing a segment, frame by frame; what was indexed so far can be asked at any time.

Most of a busy log are runs of records of one length: claims and settlements without a body, and
plain enqueues of like payloads. Those are taken a run at a time by slices with a step, where a look
at each record would cost ten times as much.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Final

from taskq.core.errors import FormatError
from taskq.core.kinds import BIRTH, CARRYING, OF_JOBS, STEPS
from taskq.core.records import Flag
from taskq.log.format import codec
from taskq.log.format.codec import CRC_SIZE, FLAGS_AT, JOB_AT
from taskq.log.format.columns import column
from taskq.log.format.keys import key_hash_of
from taskq.log.format.record import check_known
from taskq.log.segments.index_memory import SPACING_BYTES, Entry, JobPlaces, Sparse

if TYPE_CHECKING:
    from taskq.log.format.frames import Frame, Gap

#: A spilled body: SHA-256, then the size as u64.
SPILLED_SIZE: Final = 40
HASH_SIZE: Final = 32
_SPILLED: Final = int(Flag.SPILLED)
_SIZES: Final = codec.SIZES
#: Kinds of which only the job matters.
_PLAIN: Final = OF_JOBS - CARRYING
#: What a record is to a run: 0 none, 1 an enqueue without options, 2 one of ``_PLAIN``.
_CLASSES: Final = [1 if kind == BIRTH else 2 * (kind in _PLAIN) for kind in range(256)]
_NO_OPTIONS: Final = ((6, b"\0"), (7, b"\0"))
_UNSPILLED: Final = bytes(value for value in range(256) if not value & _SPILLED)
_CHECKS: Final = (
    (),
    ((4, bytes((BIRTH,))), (FLAGS_AT, _UNSPILLED), *_NO_OPTIONS),
    ((4, bytes(sorted(_PLAIN))), (FLAGS_AT, _UNSPILLED)),
)
_ONE_BYTE: Final = [bytes((value,)) for value in range(256)].__getitem__
_WINDOW_FIRST: Final = 32
_WINDOW_LAST: Final = 4_096
#: What a run costs, in records that are looked at one by one.
_RUN_COST: Final = 16


class IndexBuilder:
    """The index of a segment as far as it was fed.

    Attributes:
        first_lsn: of the segment.
        next_lsn, offset: of what may be fed next.
        first_time_ns, last_time_ns, top_time_ns: of the first and last frame, and the highest.
        first_epoch, last_epoch: of the first and last frame.
        last_frame: (offset, CRC-32 of its body) of the last whole frame, (0, 0) for none.
        gaps: bad stretches that were met.
        salvaged: headers of damaged frames that something was salvaged from, by their offset.
        clocks: (lsn, step) of each step of the clock.
        entries, places, keys: see ``index_format``; keys are hashes, in the order taken.
    """

    def __init__(self, first_lsn: int) -> None:
        self.first_lsn = self.next_lsn = first_lsn
        self.offset = codec.SEGMENT_HEADER.size
        self.first_time_ns = self.last_time_ns = self.top_time_ns = 0
        self.first_epoch = self.last_epoch = 0
        self.last_frame = (0, 0)
        self.gaps = 0
        self.salvaged: dict[int, codec.FrameHeader] = {}
        self.clocks: list[tuple[int, int]] = []
        self.entries = Sparse()
        self.places = JobPlaces()
        self.keys = array("Q")
        self._spilled: set[bytes] = set()
        #: the first record at or behind this offset gets an entry
        self._entry_at = 0
        #: how many bytes and records of the frame at ``offset`` are indexed already
        self._inside = (0, 0)

    # -- being fed --------------------------------------------------------------------------------

    def feed(self, frame: Frame, records: int = sys.maxsize) -> bool:
        """Index the next whole frame, or go on with it; one that was fed before is passed over.

        Returns:
            Whether all of the frame is indexed; else it is to be fed again.

        Raises:
            FormatError: a type that is unknown and may not be skipped, or lengths that do not fit.
        """
        data, at, header, offset = frame
        if offset < self.offset:
            return True
        self._note(header)
        self.last_frame = (offset, header.body_crc)
        done, count = self._inside
        end = at + header.body_size
        start = offset + codec.FRAME_HEADER_SIZE - at
        lsn = header.first_lsn + count
        stop, next_lsn = self._feed(data, at + done, end, lsn, start, offset, records)
        if stop < end:
            self._inside = stop - at, next_lsn - header.first_lsn
            return False
        self._inside = (0, 0)
        self.offset, self.next_lsn = frame.end, header.next_lsn
        return True

    def feed_damaged(
        self, gap: Gap, readable: tuple[codec.FrameHeader, bytes, int] | None = None
    ) -> None:
        """Pass over bad bytes, indexing what can be salvaged.

        Args:
            gap: the bytes.
            readable: what ``SegmentFiles.damaged_frame`` tells of them.
        """
        if gap.offset < self.offset:
            return
        self.gaps += 1
        if readable is not None:
            header, body, offset = readable
            from taskq.log.format.salvage import salvage  # noqa: PLC0415 - little is damaged

            for lsn, at, record in salvage(body, gap.first_lsn):
                if gap.offset not in self.salvaged:
                    self.salvaged[gap.offset] = header
                    self._note(header)
                top = self.top_time_ns
                self.entries.add(lsn, top, offset + at, gap.offset, alone=True)
                self._entry_at = codec.FRAME_BODY_MAX * 1_024
                self._feed(record, 0, len(record), lsn, offset + at, gap.offset)
        self._entry_at = 0
        self.offset, self.next_lsn = gap.resume, gap.next_lsn

    def _note(self, header: codec.FrameHeader) -> None:
        if not self.first_epoch:
            self.first_epoch, self.first_time_ns = header.epoch, header.time_ns
            self.top_time_ns = header.time_ns
        self.last_epoch, self.last_time_ns = header.epoch, header.time_ns
        self.top_time_ns = max(self.top_time_ns, header.time_ns)

    def _feed(
        self,
        data: bytes,
        at: int,
        end: int,
        lsn: int,
        start: int,
        frame: int,
        left: int = sys.maxsize,
    ) -> tuple[int, int]:
        """Index about ``left`` records of ``data[at:end]``; ``start + at`` is the offset of each.

        Returns:
            Where the next record stands, and its lsn.
        """
        unpack = codec.PREFIX.unpack_from
        entry_at = self._entry_at - start
        last_length = last_class = 0
        while at < end and left > 0:
            length, kind, _, options_size, flags = unpack(data, at)
            if length < _SIZES[kind] or at + length > end:
                raise FormatError(f"record at lsn {lsn} has an impossible length of {length} bytes")
            run = _CLASSES[kind]
            plain = not flags & _SPILLED and (run == 2 or not options_size)  # noqa: PLR2004
            if length == last_length and run == last_class and run and plain:
                count = _run_length(data, at, end, length, _CHECKS[run])
                if count:
                    self._feed_run(data, at, start, length, count, run)
                    self._enter_run(lsn, start + at, length, count, frame)
                    entry_at = self._entry_at - start
                    at += length * count
                    lsn += count
                    left -= _RUN_COST
                    last_length = 0
                    continue
            if at >= entry_at:
                self._enter(lsn, start + at, frame)
                entry_at = self._entry_at - start
            last_length, last_class = length, run
            if run == 1:
                if not plain:
                    self._feed_enqueued(data, at, length, options_size, flags)
            elif run:
                self.places.add(int.from_bytes(data[at + 16 : at + 24], "little"), start + at)
                if flags & _SPILLED:
                    body = at + _SIZES[kind] + options_size
                    self._feed_spilled(data, body, at + length - CRC_SIZE)
            else:
                self._feed_other(data, at, length, kind, options_size, flags, lsn, start)
            at += length
            lsn += 1
            left -= 1
        return at, lsn

    def _feed_other(
        self,
        data: bytes,
        at: int,
        length: int,
        kind: int,
        options_size: int,
        flags: int,
        lsn: int,
        start: int,
    ) -> None:
        if kind in CARRYING:
            self.places.add(int.from_bytes(data[at + 16 : at + 24], "little"), start + at)
            born = at + codec.WHOLE.size + options_size
            born_length, _, _, size, born_flags = codec.PREFIX.unpack_from(data, born)
            end = at + length - CRC_SIZE
            if born_length < codec.BORN.size or born + born_length > end:
                raise FormatError(f"record at lsn {lsn} carries one of {born_length} bytes")
            self._feed_enqueued(data, born, born_length, size, born_flags)
            if flags & _SPILLED:
                self._feed_spilled(data, born + born_length, end)
        elif kind in STEPS:
            self.clocks.append((lsn, codec.STEP.unpack_from(data, at)[6]))
        else:
            check_known(kind, lsn)

    def _feed_enqueued(
        self, data: bytes, at: int, length: int, options_size: int, flags: int
    ) -> None:
        """The key and the spilled payload of an ENQUEUED record."""
        if flags & _SPILLED:
            body = at + codec.BORN.size + data[at + 14] + data[at + 15] + options_size
            self._feed_spilled(data, body, at + length - CRC_SIZE)
        if options_size:
            hashed = key_hash_of(data, at)
            if hashed:
                self.keys.append(hashed)

    def _feed_spilled(self, data: bytes, at: int, end: int) -> None:
        if end - at == SPILLED_SIZE:
            self._spilled.add(data[at : at + HASH_SIZE])

    def _feed_run(
        self, data: bytes, at: int, start: int, length: int, count: int, run: int
    ) -> None:
        if run == 1:
            return
        stop = at + length * count
        if length % 8:
            gathered = bytearray(8 * count)
            for byte in range(8):
                gathered[byte::8] = data[at + JOB_AT + byte : stop : length]
            jobs = column("Q", gathered)
        else:
            jobs = column("Q", data[at:stop])[JOB_AT // 8 :: length // 8]
        self.places.extend(jobs, start + at, length)

    def _enter(self, lsn: int, offset: int, frame: int) -> None:
        self.entries.add(lsn, self.top_time_ns, offset, frame, alone=False)
        self._entry_at = offset + SPACING_BYTES

    def _enter_run(self, lsn: int, offset: int, length: int, count: int, frame: int) -> None:
        """The entries of records of one length, from ``offset`` on."""
        number = max(0, -((offset - self._entry_at) // length))
        while number < count:
            self._enter(lsn + number, offset + number * length, frame)
            number = -((offset - self._entry_at) // length)

    # -- being asked ------------------------------------------------------------------------------

    @property
    def job_range(self) -> tuple[int, int]:
        """The lowest and the highest job that a record is about."""
        self.places.may_hold(0)
        return self.places.job_min, self.places.job_max

    def may_hold(self, job: int) -> bool:
        """False if no record but its own is about the job."""
        return self.places.may_hold(job)

    def may_hold_key(self, hashed: int) -> bool:
        """False if no job took a key of this hash."""
        return hashed in self.keys

    def job_places(self, job: int) -> list[int]:
        """Offsets of the records that are about the job, its own left out."""
        return self.places.of(job)

    def spilled(self) -> set[bytes]:
        """Hashes of the bodies that stand in files of their own."""
        return set(self._spilled)

    def at_lsn(self, lsn: int) -> Entry | None:
        """Return the last entry at or before a record."""
        return self.entries.at_lsn(lsn)

    def at_offset(self, offset: int) -> Entry | None:
        """Return the last entry at or before an offset."""
        return self.entries.at_offset(offset)

    def before_time(self, time_ns: int) -> Entry | None:
        """Return the last entry up to which all is older."""
        return self.entries.before_time(time_ns)


def _run_length(
    data: bytes, at: int, end: int, length: int, checks: tuple[tuple[int, bytes], ...]
) -> int:
    """Return how many records of this length follow one another in ``data[at:end]``, at most 4 096.

    The checks say where in a record a byte stands, and what it may be.
    """
    size = length.to_bytes(4, "little")
    limit = min(_WINDOW_LAST, (end - at) // length)
    window = min(_WINDOW_FIRST, limit)
    while True:
        equal = window
        for byte, allowed in (*enumerate(map(_ONE_BYTE, size)), *checks):
            values = data[at + byte : at + window * length : length]
            if values[0] not in allowed:
                return 0
            if values[:1] * window != values:
                equal = min(equal, window - len(values.lstrip(allowed)))
        if equal < window or window == limit:
            return equal
        window = limit
