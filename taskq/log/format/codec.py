"""The format of the log; a comment in it is the specification, and tests pin its bytes."""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final

import taskq._native as native
from taskq.core import records
from taskq.core.errors import FormatError
from taskq.core.model import TIME_NS_MAX
from taskq.core.records import TABLE, Flag, Kind
from taskq.core.values import NamedTuple

if TYPE_CHECKING:
    from uuid import UUID

    from typing_extensions import Buffer

FORMAT_VERSION: Final = 1
SEGMENT_MAGIC: Final = b"taskqlog"
SEGMENT_HEADER: Final = struct.Struct("<8sHHIQQ16sqII")
FRAME_MAGIC: Final = 0xF3514B54
FRAME_MAGIC_BYTES: Final = FRAME_MAGIC.to_bytes(4, "little")
FRAME_HEADER: Final = struct.Struct("<IIIHHQQqQII")
FRAME_HEADER_SIZE: Final = FRAME_HEADER.size
FRAME_BODY_MAX: Final = 34 * 1024 * 1024
LSN_MAX: Final = 2**63

# The specification of the format.
#
# All numbers are little-endian. Constants never change, they only grow.
#
# **Segment** (file ``log/<first lsn, 20 digits>.log``): a header of 64 bytes, then frames.
#
# ====== ===== ==========================================================
# offset bytes segment header
# ====== ===== ==========================================================
# 0      8     magic ``taskqlog``
# 8      2     version: 1; the CRC has the same offset in every version
# 10     2     size of this header: 64
# 12     4     offset of the last frame in the previous segment; 0: no previous
#              segment; 1: its end was lost before this segment was made
# 16     8     first lsn: no record of the segment has a lower lsn
# 24     8     epoch of its first frame
# 32     16    log id (UUID)
# 48     8     log time of its creation: the time of the last frame before it
# 56     4     CRC-32 of bytes 0 to 55, started from bytes 60 to 63
# 60     4     CRC of the last frame's header (its bytes 52 to 55), or 0
# ====== ===== ==========================================================
#
# So each segment names the end of the previous segment, and a lost or cut segment differs from a
# compacted one: only the first segment of a log may name a missing segment, and only if a COMPACTED
# record allows the removal of all earlier ones. A segment without frames does not count; the next
# segment names the same end. In a repaired copy, headers name the segments of the copy.
#
# **Frame**: one group commit, one append, the unit of atomicity. It starts at a multiple of 8.
#
# ====== ===== ==========================================================
# offset bytes frame header
# ====== ===== ==========================================================
# 0      4     magic 0xF3_51_4B_54 (``TKQ`` and 0xF3)
# 4      4     size of the body, without header and padding; at most 34 MiB
# 8      4     number of records; 0: a sync point, without a body
# 12     2     flags, 0
# 14     2     0
# 16     8     lsn of the first record; the others follow one by one
# 24     8     epoch
# 32     8     wall time of all its records, nanoseconds; a time out of range
#              (before 1970, or too late for a date) is read as the nearest
# 40     8     synced through: every record below this lsn was on disk when
#              the frame was written
# 48     4     CRC-32 of the body
# 52     4     CRC-32 of bytes 0 to 51
# ====== ===== ==========================================================
#
# The body follows, then zeros up to a multiple of 8. Both CRCs start from a seed: the CRC-32 of
# (log id, first lsn of the segment u64, offset of the frame u64). So the copy of a frame within a
# payload, or at another offset, is never taken for a frame.
#
# A **sync point** declares all earlier frames whole and on disk. It takes no lsn (its first lsn is
# the next record's), and has the time of the frame before it. A writer appends a sync point when it
# closes, or was idle for a second. So an idle log's last frame differs from an incomplete write.
#
# **Record**: ``length u32`` (whole record), ``type u8``, one byte of its type, ``options length
# u16``, ``flags u32``, then the fixed fields of its type, its options, its body, and with flag 1 a
# CRC-32 over the bytes before it, seeded with the low 32 bits of its lsn. The CRC serves to salvage
# the record from a damaged frame, and to check a job before a worker runs it.
#
# ============ ==== ================================================================================
# type         size what it says; its byte, its fixed fields and its body
# ============ ==== ================================================================================
# ENQUEUED     16   a job came into being; byte: priority; attempts_max u16, queue_size u8,
#                   task_size u8; body: queue, task (before the options); payload
# CLAIMED      32   a worker took it; counts an attempt; byte: 0; attempt u32, job u64, owner u64
# SUCCEEDED    32   it ran to its end; byte: 0; attempt u32, job u64, token u64; body: result
# RETRIED      40   it failed, and is due again later; byte: cause; attempt u32, job u64, token u64,
#                   due_ns i64; body: reason
# DEAD         32   it failed for good; byte: cause; attempt u32, job u64, token u64; body: reason
# RELEASED     40   it was given back, or its wait is over, by the cause; the attempt count shows
#                   whether an attempt was used up; byte: cause; attempt u32, job u64, token u64,
#                   due_ns i64; body: reason
# CANCELLED    32   it was withdrawn before it ran (token 0), or stopped while it ran; see the
#                   cause; byte: cause; attempt u32, job u64, token u64; body: reason
# EXPIRED      32   its time had passed before it ran; the token is 0; byte: cause; attempt u32, job
#                   u64, token u64; body: reason
# CARRIED      48   current state of the job, rewritten by compaction; for a ready job, due is the
#                   start of its wait, 0: its enqueue; byte: state; attempt u32, job u64, token u64,
#                   due_ns i64, enqueued_ns i64; body: the job's ENQUEUED record (its CRC seeded
#                   with the job's number); its result or reason
# REQUEUED     48   a dead letter is ready again, as if new; byte: state; attempt u32, job u64,
#                   token u64, due_ns i64, enqueued_ns i64; body: the job's ENQUEUED record (its CRC
#                   seeded with the job's number); its result or reason
# EDITED       48   a waiting job got other options, another queue or time: its ENQUEUED record has
#                   them; all of its earlier attempts are in it; byte: state; attempt u32, job u64,
#                   token u64, due_ns i64, enqueued_ns i64; body: the job's ENQUEUED record (its CRC
#                   seeded with the job's number); its result or reason
# PURGED       32   a dead letter is forgotten; the token is 0; byte: 0; attempt u32, job u64, token
#                   u64
# EXTENDED     32   the deadline of a claim was moved; byte: 0; attempt u32, job u64, token u64
# CANCEL_ASKED 32   a cancel of the running job was requested: its owner stops it, and it never runs
#                   again; byte: 0; attempt u32, job u64, token u64
# STEPPED      36   a step of the job ended and is not repeated; its name and number are an option;
#                   byte: 0 step, 1 sleep, 2 event, 3 event that timed out, 4 jobs, 5 which of them
#                   failed, 6 failed try of a step, 7 which wait came first, 8 version of the code,
#                   9 step that may undo, 10 why such steps run; attempt u32, job u64, token u64,
#                   place u32; body: JSON of the value
# SIGNALLED    32   a signal for the job; rewritten, it names its first record; byte: 0; attempt
#                   u32, job u64, signal u64; body: JSON of the value
# WAIT_BEGUN   32   the job begins waits within its run, which goes on: their timeouts start here;
#                   byte: 0; attempt u32, job u64, token u64
# PAUSED       16   the queue's jobs wait until it is resumed; byte: 0; zero u32; body: name of the
#                   queue
# RESUMED      16   the queue's jobs may be claimed again; byte: 0; zero u32; body: name of the
#                   queue
# TALLIED      48   numbers of ended jobs of a lane, by outcome; byte: priority; zero u32, succeeded
#                   u64, dead u64, cancelled u64, expired u64; body: length of queue u8, length of
#                   task u8, queue, task
# COMPACTED    24   all needed records of segments before the lsn in token were rewritten: these
#                   segments may be gone; byte: 0; zero u32, token u64
# CLOCK        24   wall time made a step, in nanoseconds; relative times shift by it; always with
#                   its CRC; byte: 0; zero u32, step_ns i64
# TICKED       32   position of a schedule in wall time, in the frame of the jobs of its ticks;
#                   always with its CRC; byte: 1 paused, 2 forgotten; zero u32, last_ns i64, done_ns
#                   i64; body: name of the schedule
# INGESTED     24   position of a source, in the frame of the jobs up to it, and its time; always
#                   with its CRC; byte: 0; zero u32, moved_ns i64; body: length u16 of the source's
#                   name, the name; JSON of its position, none if forgotten
# STEERED      24   a control changed: pause and limits of a task, slots of workers, or an alert
#                   that began or is over; and its time; always with its CRC; byte: 0; zero u32,
#                   moved_ns i64; body: length u16 of the control's name, the name; JSON of its
#                   fields, none if taken away
# RATED        32   times of the claims of a group that count against a rate, the oldest first,
#                   relative; always with its CRC; byte: 0; zero u32, most i64, window_ns i64; body:
#                   length u16 of (length of task u8, task, concurrency key), these; (moment i64,
#                   claims u32)
# OWNER        24   description of an owner, for later readers of the log; byte: 0; zero u32, owner
#                   u64; body: an object of JSON
# ACTED        32   an action on a job, or on the log (job 0), and its actor, for audits; byte: 0;
#                   attempt u32, job u64, zero u64; body: name of a person or program, colon, space,
#                   and what was asked for
# ============ ==== ================================================================================
#
# A job's number is the lsn of its ENQUEUED record; a token is the lsn of the claim. Attempt is the
# count after the record. An option is ``tag u8, length u16, value``; unknown tags are skipped. A
# relative moment moves with every later CLOCK record. The moments of a carried job are in its
# CARRIED record (due in the fixed fields, or an option DUE_WALL; EXPIRES_RELATIVE). The dead of
# TALLIED are neither requeued nor purged; folds ignore their number and count the letters. A new
# kind or option that an older taskq must not skip is written only after ``taskq.json`` names an
# incompatible feature for it.
#
# A payload or result may be stored compressed: with flag 16 as its original size u64 and a zlib
# stream (RFC 1950), with flag 32 as its original size u64 and a zstd frame (RFC 8878).
#
# Flag 128 is on jobs of flows: ``taskq.log.format.flows`` specifies their options. A record that
# ends such a job begins its options with UNLOCKS.

#: Fixed fields of each kind; see ``core.records``.
BORN: Final = records.BORN.struct
BORN_TAIL: Final = struct.Struct("<" + BORN.format[2:])
JOB: Final = records.JOB.struct
BACK: Final = records.BACK.struct
WHOLE: Final = records.WHOLE.struct
NAME: Final = records.NAME.struct
TALLY: Final = records.TALLY.struct
STEP: Final = records.STEP.struct
MARK: Final = records.MARK.struct
TICK: Final = records.TICK.struct
RATES: Final = records.RATES.struct
MOVED: Final = records.MOVED.struct
LENGTH: Final = struct.Struct("<I")
#: Start of every record: length, type, byte, size of the options, flags.
PREFIX: Final = struct.Struct("<IBBHI")
#: Start of every option: tag, length of the value.
OPTION: Final = struct.Struct("<BH")
_U64: Final = struct.Struct("<Q")
#: Offsets of fields in every record, ...
KIND_AT: Final = 4
FLAGS_AT: Final = 8
#: ... of the state in CARRIED, REQUEUED and EDITED, ...
STATE_AT: Final = 5
#: ... of the job in all records except ENQUEUED, ...
JOB_AT: Final = 16
#: ... and of the length of the queue's name in ENQUEUED.
QUEUE_SIZE_AT: Final = 14
#: Size of the CRC that ends a record with flag CHECKED.
CRC_SIZE: Final = 4
#: CRC-32 of any bytes followed by their own CRC, for every seed.
CRC_OF_WHOLE: Final = 0x2144DF1C
_CRC_PIECE: Final = 5_120
#: Plain numbers, since an operation on an enum's member costs a microsecond.
_CHECKED: Final = int(Flag.CHECKED)
#: Fixed fields of each type and their size; a shorter record is damaged.
LAYOUTS: Final = {kind: row.layout.struct for kind, row in TABLE.items()}
FIXED_SIZES: Final = {kind: layout.size for kind, layout in LAYOUTS.items()}
#: Sizes as a list by type, for loops; unknown types have the prefix's size.
SIZES: Final = [FIXED_SIZES.get(kind, PREFIX.size) for kind in range(256)]

pack_length: Final = LENGTH.pack
crc32: Final = zlib.crc32


class Link(NamedTuple):
    """Link to the end of the segment before: offset and CRC of its last frame.

    It is the CRC of the frame's header. Its seed includes the offset, so no other frame has it.
    """

    offset: int
    crc: int


#: Link of the first segment of a log.
NO_LINK: Final = Link(0, 0)
#: Link to no frame: records that the end had lost when the segment was made stay known as lost.
LOST: Final = Link(1, 0)


class SegmentHeader(NamedTuple):
    """Content of a segment's first 64 bytes."""

    first_lsn: int
    epoch: int
    log_id: bytes
    created_ns: int
    link: Link = NO_LINK


class FrameHeader(NamedTuple):
    """Header of a frame; ``size`` includes padding."""

    body_size: int
    records: int
    first_lsn: int
    epoch: int
    time_ns: int
    synced_through: int
    body_crc: int
    #: CRC of the header itself
    crc: int = 0

    @property
    def size(self) -> int:
        """Bytes from this frame's start to the next frame's start."""
        return frame_size(self.body_size)

    @property
    def next_lsn(self) -> int:
        """The lsn after the frame's last record."""
        return self.first_lsn + self.records

    @property
    def is_sync_point(self) -> bool:
        """Return whether it is a sync point: no records, and all before it is on disk."""
        return not self.records


def frame_size(body_size: int) -> int:
    """Return the bytes of a frame on disk: header, body, zeros up to a multiple of 8."""
    return (FRAME_HEADER_SIZE + body_size + 7) & ~7


def encode_segment_header(header: SegmentHeader) -> bytes:
    (offset, link_crc), size = header.link, SEGMENT_HEADER.size
    fields = (SEGMENT_MAGIC, FORMAT_VERSION, size, offset, *header[:4])
    plain = SEGMENT_HEADER.pack(*fields, 0, link_crc)
    return SEGMENT_HEADER.pack(*fields, crc32(plain[:56], link_crc), link_crc)


def decode_segment_header(data: bytes, path: str) -> SegmentHeader | None:
    """Return the segment's header; None if the bytes are no whole header."""
    if len(data) < SEGMENT_HEADER.size or data[:8] != SEGMENT_MAGIC:
        return None
    _, version, _, offset, first_lsn, epoch, log_id, created_ns, crc, link_crc = (
        SEGMENT_HEADER.unpack_from(data)
    )
    # The CRC first: in a damaged header the version means nothing.
    if crc != crc32(data[:56], link_crc):
        return None
    if version != FORMAT_VERSION:
        raise FormatError(f"{path}: segment format {version} is unknown: a newer taskq wrote it")
    created_ns = min(max(created_ns, 0), TIME_NS_MAX)
    return SegmentHeader(first_lsn, epoch, log_id, created_ns, Link(offset, link_crc))


def segment_seed(log_id: UUID, first_lsn: int) -> int:
    return crc32(_U64.pack(first_lsn), crc32(log_id.bytes))


def _crc_of_body(body: Buffer, crc: int) -> int:
    """Return the CRC-32 in pieces: above 5 KiB zlib releases the GIL, here under the lock."""
    view = memoryview(body)
    for at in range(0, len(view), _CRC_PIECE):
        crc = crc32(view[at : at + _CRC_PIECE], crc)
    return crc


def encode_frame(
    body: bytes,
    count: int,
    first_lsn: int,
    epoch: int,
    time_ns: int,
    synced_through: int,
    seed: int,
    offset: int,
) -> bytes:
    """Return a whole frame with padding, for ``offset`` of a segment with that seed."""
    seed = crc32(_U64.pack(offset), seed)
    size = len(body)
    head = FRAME_HEADER.pack(
        FRAME_MAGIC,
        size,
        count,
        0,
        0,
        first_lsn,
        epoch,
        time_ns,
        synced_through,
        crc32(body, seed) if size <= _CRC_PIECE else _crc_of_body(body, seed),
        0,
    )
    crc = LENGTH.pack(crc32(head[:52], seed))
    return b"".join((head[:52], crc, body, bytes(-size & 7)))


def decode_frame_header(data: Buffer, at: int, seed: int, offset: int) -> FrameHeader | None:
    """Return the header at ``data[at:]``, ``offset`` of its segment; None if it is invalid."""
    view = memoryview(data)[at : at + FRAME_HEADER_SIZE]
    if len(view) < FRAME_HEADER_SIZE:
        return None
    magic, size, count, flags, _, first, epoch, time_ns, synced, body_crc, crc = (
        FRAME_HEADER.unpack(view)
    )
    if magic != FRAME_MAGIC or size > FRAME_BODY_MAX or first >= LSN_MAX:
        return None
    if crc != crc32(view[:52], crc32(_U64.pack(offset), seed)):
        return None
    if flags:
        raise FormatError(f"frame flags {flags:#x} at offset {offset}: a newer taskq wrote them")
    if not 0 <= time_ns <= TIME_NS_MAX:
        time_ns = min(max(time_ns, 0), TIME_NS_MAX)
    return FrameHeader(size, count, first, epoch, time_ns, synced, body_crc, crc)


def body_is_whole(body: Buffer, header: FrameHeader, seed: int, offset: int) -> bool:
    view = memoryview(body)
    if view.nbytes != header.body_size:
        return False
    return _crc_of_body(view, crc32(_U64.pack(offset), seed)) == header.body_crc


# -- records --------------------------------------------------------------------------------------


def enqueue_tail(
    priority: int,
    flags: int,
    attempts: int,
    queue_size: int,
    task_size: int,
    route: bytes,
    options: bytes,
) -> bytes:
    fixed = BORN_TAIL.pack(
        Kind.ENQUEUED, priority, len(options), flags, attempts, queue_size, task_size
    )
    return fixed + route + options


def encode_checked(tail: bytes, body: bytes, lsn: int) -> bytes:
    record = pack_length(len(tail) + len(body) + 8) + tail + body
    return record + pack_length(crc32(record, lsn & 0xFFFFFFFF))


def born_records(
    tail: bytes | list[bytes], bodies: Sequence[bytes], lsn: int, location: int
) -> tuple[list[bytes], array[int], int]:
    """Return the enqueue records of jobs from ``lsn`` on, their locations, and their end.

    ``tail`` are their bytes between length and body: one for all records, or a list.
    """
    if native.is_on:
        made = native.plain.born_records(tail, bodies, lsn, location)
        if made is not None:
            return made[0], array("Q", made[1]), made[2]
    pack, crc = pack_length, crc32
    tails = repeat(tail) if isinstance(tail, bytes) else tail
    whole: list[bytes] = []
    locations: list[int] = []
    for before, body in zip(tails, bodies, strict=False):
        record = pack(len(before) + len(body) + 8) + before + body
        record += pack(crc(record, lsn & 0xFFFFFFFF))
        whole.append(record)
        locations.append(location)
        location += len(record)
        lsn += 1
    return whole, array("Q", locations), location


def encode_job(
    kind: int,
    cause: int,
    attempt: int,
    job: int,
    token: int,
    body: bytes | None = None,
    lsn: int = 0,
    options: bytes = b"",
    flags: int = 0,
) -> bytes:
    """Return a CLAIMED, SUCCEEDED, DEAD, CANCELLED or EXPIRED record; ``flags`` are the body's."""
    if body is None:
        size = JOB.size + len(options)
        return JOB.pack(size, kind, cause, len(options), 0, attempt, job, token) + options
    fixed = JOB.pack(0, kind, cause, len(options), _CHECKED | flags, attempt, job, token)
    return encode_checked(fixed[4:] + options, body, lsn)


def encode_back(
    kind: int,
    cause: int,
    attempt: int,
    job: int,
    token: int,
    due_ns: int,
    body: bytes,
    lsn: int,
    options: bytes = b"",
) -> bytes:
    fixed = BACK.pack(0, kind, cause, len(options), Flag.CHECKED, attempt, job, token, due_ns)
    return encode_checked(fixed[4:] + options, body, lsn)


def encode(
    kind: int,
    *fields: object,
    lsn: int,
    byte: int = 0,
    flags: int = 0,
    options: bytes = b"",
    body: bytes = b"",
) -> bytes:
    """Return a record of any kind with its CRC, from fixed fields as in ``core.records``."""
    fixed = LAYOUTS[kind].pack(0, kind, byte, len(options), _CHECKED | flags, *fields)
    return encode_checked(fixed[4:] + options, body, lsn)


def encode_clock(step_ns: int, lsn: int) -> bytes:
    """Return a CLOCK record. Its CRC allows salvage: a lost step would shift all later records."""
    return encode(Kind.CLOCK, 0, step_ns, lsn=lsn)


def encode_owner(owner: int, description: bytes, lsn: int) -> bytes:
    return encode(Kind.OWNER, 0, owner, body=description, lsn=lsn)


def option(tag: int, value: bytes) -> bytes:
    return OPTION.pack(tag, len(value)) + value


class Born(NamedTuple):
    """Parts of a job's ENQUEUED record."""

    priority: int
    flags: int
    attempts_max: int
    queue: bytes
    task: bytes
    options: bytes
    body: bytes


def decode_born(record: bytes) -> Born:
    length, _, priority, size, flags, attempts, queue_size, task_size = BORN.unpack_from(record)
    task = BORN.size + queue_size
    options = task + task_size
    end = length - CRC_SIZE if flags & _CHECKED else length
    return Born(
        priority, flags, attempts, record[BORN.size : task], record[task:options],
        record[options : options + size], record[options + size : end],
    )  # fmt: skip


def encode_born(born: Born, job: int) -> bytes:
    tail = enqueue_tail(
        born.priority, born.flags, born.attempts_max, len(born.queue), len(born.task),
        born.queue + born.task, born.options,
    )  # fmt: skip
    return encode_checked(tail, born.body, job)


def enqueue_body(record: bytes) -> bytes:
    return decode_born(record).body
