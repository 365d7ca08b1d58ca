"""Decoding frames into ``apply_*`` calls: one walk serves recovery, catching up and reading along.

A record costs a walk step (its length and type), and what the facets in use need of it. No object
is made for any.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from taskq.core.errors import FormatError
from taskq.core.folds.dedup import Dedup, key_hash
from taskq.core.folds.jobtable import META_EXPIRES
from taskq.core.kinds import BIRTH, CLAIM, CLAIMS, ENDS, REPEAT, STEPS, SUCCESS
from taskq.core.model import PRIORITY_MAX
from taskq.core.records import Flag, Option
from taskq.log.format import codec
from taskq.log.format.codec import JOB_AT, KIND_AT
from taskq.log.format.flows import held_needs
from taskq.log.format.options import decode_times, each_option
from taskq.log.state.fold_rare import (
    Watch,
    enqueued_meta,
    fold_carried_run,
    fold_claim,
    fold_end,
    fold_free_key,
    fold_other,
)

if TYPE_CHECKING:
    from taskq.core.folds.agenda import Agenda
    from taskq.log.format.frames import Frame


# Runs of plain claims and successes, folded together.
#
# A drain fills frames with hundreds of them, all of 32 bytes and alike but for their job. Taken one
# by one they cost 1.9 µs each, and half of what a log is made of is such records; in runs they are
# decoded by one call into C, and the agenda takes them for half of that.

#: What a plain record starts with (length, type, byte, size of the options, flags), then attempt,
#: job, and token or owner.
_PLAIN: Final = struct.Struct("<12sIQQ")
_PLAIN_CLAIM: Final = codec.PREFIX.pack(_PLAIN.size, CLAIM, 0, 0, 0)
_PLAIN_SUCCESS: Final = codec.PREFIX.pack(_PLAIN.size, SUCCESS, 0, 0, 0)
_SIZE: Final = _PLAIN.size
#: Fewer are not worth the trouble; more are taken in several goes.
_RUN_MIN: Final = 4
_RUN_MAX: Final = 4_096


def fold_plain_run(data: bytes, at: int, end: int, lsn: int, epoch: int, agenda: Agenda) -> int:
    """Apply the run of plain claims, or of plain successes, that starts here; returns how many."""
    head = data[at : at + len(_PLAIN_CLAIM)]
    if head not in {_PLAIN_CLAIM, _PLAIN_SUCCESS}:
        return 0
    last = at + (_RUN_MIN - 1) * _SIZE
    if last + _SIZE > end or data[last : last + len(head)] != head:
        return 0
    limit = min((end - at) // _SIZE, _RUN_MAX)
    jobs: list[int] = []
    attempts: list[int] = []
    owners: list[int] = []
    for prefix, attempt, job, owner in _PLAIN.iter_unpack(
        memoryview(data)[at : at + limit * _SIZE]
    ):
        if prefix != head:
            break
        jobs.append(job)
        attempts.append(attempt)
        owners.append(owner)
    if head == _PLAIN_SUCCESS:
        agenda.apply_succeeded(jobs)
    else:
        agenda.apply_claimed_run(jobs, attempts, owners, lsn, epoch)
    return len(jobs)


_RUNS: Final = frozenset({int(CLAIM), int(SUCCESS)})
_BIRTH: Final = int(BIRTH)
_REPEAT: Final = int(REPEAT)
#: As a slice gives it, which of a frame without a record is empty.
_STEPS: Final = frozenset(map(int.to_bytes, STEPS))
#: Records that are folded in one step, with keys and without: a millisecond's worth.
_KEYS_A_STEP: Final = 128
_RECORDS_A_STEP: Final = 512
_SIZES: Final = codec.SIZES
_KEYED: Final = int(Flag.KEY_UNTIL_SETTLED)
_JOB_FIELDS: Final = struct.Struct("<IQQ")
_JOB_ONLY: Final = struct.Struct("<Q")
_FIELDS_AT: Final = 12


def fold_frame(
    base: int, frame: Frame, agenda: Agenda | None, dedup: Dedup | None, watch: Watch | None
) -> None:
    """Apply a whole frame. ``base`` is the location of its segment's first byte.

    Raises:
        FormatError: a type that is unknown and may not be skipped, or lengths that do not fit.
    """
    data, at, header, offset = frame
    if agenda is not None and data[at + KIND_AT : at + KIND_AT + 1] not in _STEPS:
        # What was due when the frame was written was ready then; see ``Agenda.promote``. A frame
        # that opens with a step of the clock is of the new time: the step must be known first.
        agenda.begin_frame(header.first_lsn, header.time_ns)
    where = base + offset + codec.FRAME_HEADER_SIZE - at
    try:
        fold_records(data, at, at + header.body_size, header, where, agenda, dedup, watch)
    except struct.error as error:
        raise FormatError(
            f"a record of the frame at lsn {header.first_lsn} is shorter than its type: "
            f"use a newer taskq"
        ) from error


def fold_steps(
    base: int, frame: Frame, agenda: Agenda | None, dedup: Dedup | None
) -> Iterator[None]:
    data, at, header, offset = frame
    if agenda is not None and data[at + KIND_AT : at + KIND_AT + 1] not in _STEPS:
        agenda.begin_frame(header.first_lsn, header.time_ns)
    end = at + header.body_size
    where = base + offset + codec.FRAME_HEADER_SIZE - at
    lsn = header.first_lsn
    count_max = _RECORDS_A_STEP if dedup is None else _KEYS_A_STEP
    while at < end:
        stop = at
        count = 0
        while count < count_max and stop < end:
            length = codec.LENGTH.unpack_from(data, stop)[0] if stop + 4 <= end else 0
            if length < codec.PREFIX.size or stop + length > end:
                break
            stop += length
            count += 1
        if stop == at:
            raise FormatError(f"a record of the frame at lsn {lsn} has an impossible length")
        fold_records(data, at, stop, header._replace(first_lsn=lsn), where, agenda, dedup, None)
        lsn += count
        at = stop
        yield


def fold_records(  # noqa: C901, PLR0912 - one flat loop: a call a record would double it
    data: bytes,
    at: int,
    end: int,
    header: codec.FrameHeader,
    where: int,
    agenda: Agenda | None,
    dedup: Dedup | None,
    watch: Watch | None,
) -> None:
    _, _, lsn, epoch, time_ns, _, _, _ = header
    unpack = codec.PREFIX.unpack_from
    job_fields = _JOB_FIELDS.unpack_from
    jobs = watch.jobs if watch is not None else ()
    alone = agenda if dedup is None and watch is None else None
    while at < end:
        length, kind, byte, options_size, flags = unpack(data, at)
        if length < _SIZES[kind] or at + length > end:
            raise FormatError(f"record at lsn {lsn} has an impossible length of {length} bytes")
        if kind == _BIRTH:
            if agenda is not None:
                if options_size:
                    _fold_enqueued(data, at, byte, options_size, flags, lsn, where, time_ns, agenda)
                else:
                    at, lsn = _fold_run(data, at, end, lsn, where, agenda)
                    continue
            if dedup is not None and options_size:
                _fold_key(data, at, options_size, flags, lsn, where, time_ns, dedup)
        elif (
            kind in _RUNS and alone and (count := fold_plain_run(data, at, end, lsn, epoch, alone))
        ):
            at += codec.JOB.size * count
            lsn += count
            continue
        elif kind in CLAIMS:
            if agenda is not None:
                attempt, job, owner = job_fields(data, at + _FIELDS_AT)
                agenda.apply_claimed(job, lsn, epoch, owner, attempt)
                if options_size:
                    fold_claim(data, at, options_size, job, agenda)
        elif kind in ENDS:
            job = _JOB_ONLY.unpack_from(data, at + JOB_AT)[0]
            if agenda is not None:
                agenda.apply_ended(kind, job, time_ns)
                if options_size:
                    room = length - codec.JOB.size
                    fold_end(data, at + codec.JOB.size, room, job, where + at, agenda)
            if dedup is not None and options_size:
                fold_free_key(data, at + codec.JOB.size, options_size, job, time_ns, dedup)
            if watch is not None and job in jobs:
                watch.see(job, where + at, kind)
        elif kind == _REPEAT and alone is not None and not options_size:
            at, lsn = fold_carried_run(data, at, end, lsn, where, alone)
            continue
        else:
            record = data[at : at + length]
            fold_other(kind, record, lsn, where + at, header, agenda, dedup, watch)
        at += length
        lsn += 1


def _fold_run(
    data: bytes, at: int, end: int, lsn: int, where: int, agenda: Agenda
) -> tuple[int, int]:
    """Apply the plain enqueues of one lane that start here; returns what follows, and its lsn."""
    start = at + codec.PREFIX.size
    names = data[at + 14 : at + 16 + data[at + 14] + data[at + 15]]
    # Type, priority, no options, flags: what must be the same, as must be the names.
    head = data[at + 4 : start]
    locations: list[int] = []
    unpack_length = codec.LENGTH.unpack_from
    shortest = codec.BORN.size
    size = len(names)
    while at < end and data[at + 4 : at + 12] == head and data[at + 14 : at + 14 + size] == names:
        length = unpack_length(data, at)[0]
        if length < shortest or at + length > end:
            break
        locations.append(where + at)
        at += length
    lane = agenda.queues.lane(min(head[1], PRIORITY_MAX), names)
    flags = int.from_bytes(head[4:8], "little")
    agenda.apply_enqueued_run(lsn, locations, lane, enqueued_meta(flags))
    return at, lsn + len(locations)


def fold_damaged(
    data: bytes,
    base: int,
    offset: int,
    lsn: int,
    header: codec.FrameHeader,
    agenda: Agenda | None,
    dedup: Dedup | None,
    watch: Watch | None,
) -> int:
    """Apply the records of a damaged body that are whole by their own CRC; returns how many."""
    count = 0
    from taskq.log.format.salvage import salvage  # noqa: PLC0415 - little is damaged

    for number, at, record in salvage(data, lsn):
        single = header._replace(first_lsn=number)
        where = base + offset + at
        fold_records(record, 0, len(record), single, where, agenda, dedup, watch)
        count += 1
    return count


def _fold_enqueued(
    data: bytes,
    at: int,
    priority: int,
    options_size: int,
    flags: int,
    lsn: int,
    where: int,
    time_ns: int,
    agenda: Agenda,
) -> None:
    names = at + 14
    start = names + 2
    end = start + data[names] + data[names + 1]
    meta = enqueued_meta(flags) if flags > 1 else 0
    due_ns, is_wall, expires_ns, expires_is_wall, key = decode_times(data, end, options_size)
    lane = agenda.queues.lane(priority if priority < 10 else 9, data[names:end] + key)  # noqa: PLR2004
    if expires_ns:
        meta |= META_EXPIRES
    needs = held_needs(meta, data, end, options_size)
    if needs is not None:
        agenda.apply_held(lsn, where + at, lane, meta, needs)
    elif due_ns > time_ns:
        agenda.apply_scheduled(lsn, where + at, lane, meta, due_ns, is_wall)
    else:
        agenda.apply_enqueued(lsn, where + at, lane, meta)
    if expires_ns:
        agenda.apply_expiry(lsn, expires_ns, expires_is_wall)


def _fold_key(
    data: bytes,
    at: int,
    options_size: int,
    flags: int,
    lsn: int,
    where: int,
    time_ns: int,
    dedup: Dedup,
) -> None:
    queue_size, task_size = data[at + 14], data[at + 15]
    start = at + codec.BORN.size
    key: bytes | None = None
    window = replaced = 0
    for tag, value in each_option(data, start + queue_size + task_size, options_size):
        if tag == Option.KEY:
            key = value
        elif tag == Option.WINDOW:
            window = int.from_bytes(value, "little", signed=True)
        elif tag == Option.REPLACES:
            replaced = int.from_bytes(value, "little")
    if key is not None:
        hashed = key_hash(data[start : start + queue_size], key)
        if replaced:
            dedup.apply_dropped(hashed, replaced)
        until_settled = bool(flags & _KEYED)
        dedup.apply_taken(hashed, lsn, where + at, window, time_ns, until_settled=until_settled)
