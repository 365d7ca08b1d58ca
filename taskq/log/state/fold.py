"""Decode frames into ``apply_*`` calls: one walk for recovery, catching up and reading."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from taskq.core import kinds, records
from taskq.core.errors import FormatError
from taskq.core.folds import agenda, dedup, lanes
from taskq.core.folds.agenda import (
    apply_carried,
    apply_carried_run,
    apply_requeued,
    apply_tallied,
    apply_waiting,
    forget_dead,
)
from taskq.core.folds.dedup import key_hash
from taskq.core.folds.jobtable import (
    ATTEMPT_MASK,
    ATTEMPT_SHIFT,
    META_DURABLE_CLAIM,
    META_EXPIRES,
    META_FLOW,
    META_KEYED,
)
from taskq.core.kinds import (
    CARRYING,
    CLAIMS,
    DEATH,
    DEATHS,
    EDITS,
    ENDS,
    REMOVALS,
    REPEAT,
    REVIVALS,
    STEPS,
)
from taskq.core.model import LIVE_STATES, PRIORITY_MAX, State
from taskq.core.records import Option
from taskq.core.sources import apply_moved
from taskq.log.format import codec
from taskq.log.format.carried import Carried, decode_carried, decode_queue, key_hash_of
from taskq.log.format.codec import FLAGS_AT, JOB_AT, KIND_AT, OPTION
from taskq.log.format.flows import (
    _UNLOCKS,
    FLOW_FLAG,
    decode_needs,
    decode_unlocks,
    fold_begun,
    fold_step,
    held_needs,
)
from taskq.log.format.notes import (
    _I64,
    _LEASE,
    _RATE,
    _RATE_TAG,
    decode_moved,
    decode_rated,
    decode_ticked,
)
from taskq.log.format.options import (
    decode_key_hash,
    decode_times,
    each_option,
    enqueue_extras,
    find_option,
)
from taskq.log.format.record import check_known

if TYPE_CHECKING:
    from taskq.log.format.frames import Frame

    At: TypeAlias = tuple[int, int, int]

_DURABLE_CLAIM: Final = int(records.Flag.DURABLE_CLAIM)
_CARRIED_SIZE: Final = codec.WHOLE.size
#: A CARRIED record: length, job, token, ready time, enqueue time.
_RUN: Final = struct.Struct("<I12xQQqq")
#: Bytes between length and job for a ready job without claims or result.
_PLAIN_CARRIED: Final = codec.WHOLE.pack(
    0, REPEAT, kinds.READY, 0, records.Flag.CHECKED | records.Flag.DROP_RESULT, 0, 0, 0, 0, 0
)[4:16]
#: Fields of an ENQUEUED record between length and names.
_BORN_HEAD: Final = 12


class Watch:
    """Jobs with waiters, and the locations of the records that settled them.

    Attributes:
        jobs: jobs not settled so far.
        settled: (job, location) of other jobs.
        dead: settled jobs that may still be requeued or purged.
    """

    def __init__(self) -> None:
        self.jobs: set[int] = set()
        self.settled: list[tuple[int, int]] = []
        self.dead: set[int] = set()

    def see(self, job: int, location: int, kind: int = 0) -> None:
        self.jobs.discard(job)
        self.settled.append((job, location))
        if kind in DEATHS:
            self.dead.add(job)

    def see_again(self, job: int, location: int = 0) -> None:
        """Note that a dead letter was purged by the record there, or is ready again."""
        if job not in self.dead:
            return
        self.dead.discard(job)
        self.settled = [end for end in self.settled if end[0] != job]
        if location:
            self.settled.append((job, location))
        else:
            self.jobs.add(job)

    def take(self) -> list[tuple[int, int]]:
        settled, self.settled = self.settled, []
        self.dead.clear()
        return settled


def enqueued_meta(flags: int) -> int:
    meta = 0
    if flags & _DURABLE_CLAIM:
        meta = META_DURABLE_CLAIM
    if flags & _KEYED:
        meta |= META_KEYED
    if flags & FLOW_FLAG:
        meta |= META_FLOW
    return meta


def fold_free_key(
    data: bytes, at: int, options_size: int, job: int, time_ns: int, dedup: dedup.Dedup
) -> None:
    """Free the key of an ended job, unless the job holds it longer."""
    hashed = decode_key_hash(data, at, options_size)
    if hashed:
        dedup.apply_free(hashed, job, time_ns)
    elif find_option(data, at, options_size, Option.KEY_HASH):
        dedup.apply_free_unread(job, time_ns)


def fold_other(
    kind: int,
    record: bytes,
    lsn: int,
    location: int,
    header: codec.FrameHeader,
    agenda: agenda.Agenda | None,
    dedup: dedup.Dedup | None,
    watch: Watch | None,
) -> None:
    """Apply one record of a kind without a branch in ``fold_records``."""
    if kind in CARRYING:
        carried = decode_carried(record)
        fold_carried(kind, carried, location, header.time_ns, agenda, dedup)
        if watch is not None:
            _watch_carried(kind, carried, location, watch)
    elif kind in REMOVALS:
        _fold_purged(record, location, agenda, watch)
    elif kind in STEPS:
        step_ns = codec.STEP.unpack_from(record)[6]
        for facet in (agenda, dedup):
            if facet is not None:
                facet.apply_clock(step_ns)
        if agenda is not None:
            agenda.begin_frame(header.first_lsn, header.time_ns)
    elif kind not in _ON_AGENDA:
        check_known(kind, lsn)
    elif agenda is not None:
        _ON_AGENDA[kind](record, agenda, (header.time_ns, lsn, location))


def _fold_step(record: bytes, agenda: agenda.Agenda, at: At) -> None:
    fold_step(record, *at[1:], agenda)


def _fold_back(record: bytes, agenda: agenda.Agenda, at: At) -> None:
    time_ns = at[0]
    _, _, _, options_size, _, attempt, job, _, due_ns = codec.BACK.unpack_from(record)
    if not options_size:
        agenda.apply_back(job, attempt, due_ns, time_ns)
        return
    packed, needs = None, None
    for tag, value in each_option(record, codec.BACK.size, options_size):
        if tag == Option.AWAITS:
            packed = value
        elif tag == Option.NEEDS:
            needs = decode_needs(value)
    if packed is None:
        agenda.apply_back(job, attempt, due_ns, time_ns)
    else:
        apply_waiting(agenda, job, attempt, due_ns, time_ns, packed, needs)


def _fold_extension(record: bytes, agenda: agenda.Agenda, _: At) -> None:
    options_size = codec.PREFIX.unpack_from(record)[3]
    fold_claim(record, 0, options_size, codec.JOB.unpack_from(record)[6], agenda)


def _fold_tally(record: bytes, agenda: agenda.Agenda, _: At) -> None:
    succeeded, _, cancelled, expired = codec.TALLY.unpack_from(record)[6:]
    lane = agenda.queues.lane(min(record[5], PRIORITY_MAX), record[codec.TALLY.size : -4])
    apply_tallied(lane, succeeded, cancelled, expired)


def _fold_floor(record: bytes, agenda: agenda.Agenda, _: At) -> None:
    agenda.floor_lsn = max(agenda.floor_lsn, codec.MARK.unpack_from(record)[6])


#: Effects of records that change only the agenda.
_ON_AGENDA: Final[dict[int, Callable[[bytes, agenda.Agenda, At], None]]] = {
    **dict.fromkeys(kinds.RETURNS, _fold_back),
    **dict.fromkeys(kinds.OF_STEPS, _fold_step),
    records.Kind.EXTENDED: _fold_extension,
    records.Kind.WAIT_BEGUN: lambda record, agenda, _: fold_begun(record, agenda),
    records.Kind.CANCEL_ASKED: lambda record, agenda, _: agenda.apply_cancel_asked(
        *codec.JOB.unpack_from(record)[6:]
    ),
    records.Kind.PAUSED: lambda record, agenda, _: agenda.queues.apply_paused(decode_queue(record)),
    records.Kind.RESUMED: lambda record, agenda, _: agenda.queues.apply_resumed(
        decode_queue(record)
    ),
    records.Kind.TALLIED: _fold_tally,
    records.Kind.COMPACTED: _fold_floor,
    records.Kind.TICKED: lambda record, agenda, _: agenda.apply_ticked(decode_ticked(record)),
    records.Kind.STEERED: lambda record, agenda, _: agenda.apply_steered(decode_moved(record)),
    records.Kind.INGESTED: lambda record, agenda, _: apply_moved(
        agenda.sources, decode_moved(record)
    ),
    records.Kind.RATED: lambda record, agenda, _: fold_rated(record, agenda),
}


def _watch_carried(kind: int, carried: Carried, location: int, watch: Watch) -> None:
    if kind in REVIVALS:
        watch.see_again(carried.job)
    elif carried.job in watch.jobs and carried.state not in LIVE_STATES:
        watch.see(carried.job, location, DEATH if carried.state is State.DEAD else kind)


def _fold_purged(
    record: bytes, location: int, agenda: agenda.Agenda | None, watch: Watch | None
) -> None:
    job = codec.JOB.unpack_from(record)[6]
    if agenda is not None:
        forget_dead(agenda, job)
        agenda.steps.drop(job)
        if codec.PREFIX.unpack_from(record)[3]:
            room = len(record) - codec.JOB.size
            fold_end(record, codec.JOB.size, room, job, location, agenda)
    if watch is not None:
        watch.see_again(job, location)


def fold_carried(
    kind: int,
    carried: Carried,
    location: int,
    time_ns: int,
    agenda: agenda.Agenda | None,
    dedup: dedup.Dedup | None,
) -> None:
    """Apply a decoded CARRIED, REQUEUED or EDITED record."""
    if agenda is not None:
        _carry_agenda(kind, carried, location, agenda)
    if dedup is not None:
        _carry_key(kind, carried, location, time_ns, dedup)


def _carry_agenda(kind: int, carried: Carried, location: int, agenda: agenda.Agenda) -> None:
    born = carried.born
    _, _, priority, _, flags, _, queue_size, task_size = codec.BORN.unpack_from(born)
    extras = enqueue_extras(born)
    names = born[14 : codec.BORN.size + queue_size + task_size]
    names += extras.concurrency_key
    lane = agenda.queues.lane(min(priority, PRIORITY_MAX), names)
    meta = enqueued_meta(flags)
    expires = carried.expires_ns or extras.expires_ns, extras.expires_is_wall
    due = carried.due_ns, carried.due_is_wall
    if kind in REVIVALS:
        if carried.awaiting:
            agenda.steps.apply_carried_waits(carried.job, carried.awaiting, agenda.times.shift_ns)
        apply_requeued(agenda, carried.job, location, lane, meta)
        agenda.flows.apply_again(carried.job, carried.waited)
    elif kind not in EDITS or not agenda.apply_edited(
        carried.job,
        location,
        lane,
        carried.state,
        due,
        carried.ready_ns,
        carried.needs,
        carried.awaiting,
    ):
        meta |= min(carried.attempt << ATTEMPT_SHIFT, ATTEMPT_MASK)
        apply_carried(
            agenda, carried.job, location, lane, meta, carried.state,
            expires, due, (carried.token, *carried.claim),
            carried.lease_ns, carried.ended_ns, since_ns=carried.ready_ns, needs=carried.needs,
            awaiting=carried.awaiting,
        )  # fmt: skip
        if carried.cancel_wanted:
            agenda.apply_cancel_asked(carried.job, carried.token)
    if extras.concurrency_key:
        agenda.queues.retire(lane)  # it stays empty if the job is dead or known


def _carry_key(
    kind: int, carried: Carried, location: int, time_ns: int, dedup: dedup.Dedup
) -> None:
    if kind in EDITS:
        dedup.edits += 1
    hashed = key_hash_of(carried.born)
    if not hashed:
        return
    if kind in REVIVALS:
        # While the job lives again, the rest of its window holds no key.
        dedup.apply_dropped(hashed, carried.job)
    elif carried.left_key:
        dedup.apply_dropped(carried.left_key, carried.job)
    if not dedup.apply_moved(hashed, carried.job, location):
        _take_key(carried, hashed, location, time_ns, dedup)


def _take_key(
    carried: Carried, hashed: int, location: int, time_ns: int, dedup: dedup.Dedup
) -> None:
    flags = carried.born[FLAGS_AT]
    until_settled = carried.state in LIVE_STATES and bool(flags & _KEYED)
    window_ns = max(carried.key_until_ns - time_ns, 0)
    if until_settled or window_ns:
        dedup.apply_taken(
            hashed, carried.job, location, window_ns, time_ns, until_settled=until_settled
        )


def fold_carried_run(
    data: bytes, at: int, end: int, lsn: int, where: int, agenda: agenda.Agenda
) -> tuple[int, int]:
    """Apply a run of carried jobs of one lane that were never claimed.

    A million jobs that compaction rewrote are read like this. Return the index after the run, and
    its lsn; any other record is applied alone.
    """
    start, born_at = at, at + _CARRIED_SIZE + 4
    names_end = born_at + 12
    if names_end <= end:
        names_end += data[names_end - 2] + data[names_end - 1]
    head, born = data[at + 4 : at + JOB_AT], data[born_at:names_end]
    jobs: list[int] = []
    locations: list[int] = []
    since: list[int] = []
    job = 0
    if len(born) >= _BORN_HEAD and head == _PLAIN_CARRIED and not any(born[2:4]):
        size, unpack = names_end - born_at, _RUN.unpack_from
        while at + _CARRIED_SIZE + 4 + size <= end:
            length, number, token, ready_ns, enqueued_ns = unpack(data, at)
            begin = at + _CARRIED_SIZE + 4
            if data[at + 4 : at + JOB_AT] != head or data[begin : begin + size] != born:
                break
            if token or number <= job or at + length > end:
                break
            job = number
            jobs.append(job)
            locations.append(where + at)
            since.append(ready_ns or enqueued_ns)
            at += length
    if len(jobs) < 2:  # noqa: PLR2004 - one record is no run
        length = codec.LENGTH.unpack_from(data, start)[0]
        record = data[start : start + length]
        fold_carried(REPEAT, decode_carried(record), where + start, 0, agenda, None)
        return start + length, lsn + 1
    lane: lanes.Lane = agenda.queues.lane(min(born[1], PRIORITY_MAX), born[10:])
    flags = int.from_bytes(born[4:8], "little")
    apply_carried_run(agenda, jobs, locations, lane, enqueued_meta(flags), since)
    return at, lsn + len(jobs)


def fold_end(
    data: bytes, at: int, room: int, job: int, location: int, agenda: agenda.Agenda
) -> None:
    """Apply the option UNLOCKS of a record that ends a job, if it is the first option.

    ``at`` is the option's index, ``location`` the record's; ``room`` bytes of options follow.
    """
    tag, length = OPTION.unpack_from(data, at)
    if tag == _UNLOCKS:
        if OPTION.size + length > room or length % 8:
            raise FormatError(
                f"option UNLOCKS has {length} bytes in a record that ends job {job} and has room "
                f"for {room}: use a newer taskq"
            )
        start = at + OPTION.size
        unlocks = decode_unlocks(data[start : start + length])
        agenda.flows.apply_end(job, location, unlocks, agenda.jobs_left_of_call)


def fold_claim(data: bytes, at: int, options_size: int, job: int, agenda: agenda.Agenda) -> None:
    """Apply the options of a claim or an extension; ``at`` is the start of its record."""
    for tag, value in each_option(data, at + codec.JOB.size, options_size):
        if tag == _LEASE and len(value) == _I64.size:
            deadline_ns = _I64.unpack(value)[0]
            if deadline_ns and job in agenda.running:
                agenda.leases.apply_until(job, deadline_ns)
        elif tag == _RATE_TAG:
            if len(value) != _RATE.size:
                raise FormatError(f"option RATE has {len(value)} bytes: use a newer taskq")
            agenda.apply_rated(job, *_RATE.unpack(value))


def fold_rated(record: bytes, agenda: agenda.Agenda) -> None:
    """Set the claim times of a group, including claims that were already folded."""
    key, times = decode_rated(record, agenda.times.shift_ns)
    agenda.groups.restore(key, times, agenda.moment)


# Runs of plain claims and successes, folded together.
#
# A drain fills frames with hundreds of them, all of 32 bytes, which differ in their job. Half of a
# log is such records. One by one they cost 1.9 µs each. In runs one call into C decodes them, and
# the agenda applies them at half the cost.

#: A plain record: its start (length, type, byte, size of the options, flags), attempt, job, and
#: token or owner.
_PLAIN: Final = struct.Struct("<12sIQQ")
_PLAIN_CLAIM: Final = codec.PREFIX.pack(_PLAIN.size, kinds.CLAIM, 0, 0, 0)
_PLAIN_SUCCESS: Final = codec.PREFIX.pack(_PLAIN.size, kinds.SUCCESS, 0, 0, 0)
_SIZE: Final = _PLAIN.size
#: Shortest run worth the effort; a longer run than the maximum is split.
_RUN_MIN: Final = 4
_RUN_MAX: Final = 4_096


def fold_plain_run(
    data: bytes, at: int, end: int, lsn: int, epoch: int, agenda: agenda.Agenda
) -> int:
    """Apply a run of plain claims, or of plain successes, at ``at``; return its length."""
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


_RUNS: Final = frozenset({int(kinds.CLAIM), int(kinds.SUCCESS)})
_BIRTH: Final = int(kinds.BIRTH)
_REPEAT: Final = int(REPEAT)
#: As slices, since a slice of a frame without records is empty.
_STEPS: Final = frozenset(map(int.to_bytes, STEPS))
#: Records folded in one step, with keys and without: a millisecond of work.
_KEYS_A_STEP: Final = 128
_RECORDS_A_STEP: Final = 512
_SIZES: Final = codec.SIZES
_KEYED: Final = int(records.Flag.KEY_UNTIL_SETTLED)
_JOB_FIELDS: Final = struct.Struct("<IQQ")
_JOB_ONLY: Final = struct.Struct("<Q")
_FIELDS_AT: Final = 12


def fold_frame(
    base: int,
    frame: Frame,
    agenda: agenda.Agenda | None,
    dedup: dedup.Dedup | None,
    watch: Watch | None,
) -> None:
    """Apply a whole frame. ``base`` is the location of its segment's first byte."""
    data, at, header, offset = frame
    if agenda is not None and data[at + KIND_AT : at + KIND_AT + 1] not in _STEPS:
        # Jobs due when the frame was written were ready then; see ``Agenda.promote``. A frame that
        # begins with a step of the clock has the new time: the step comes first.
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
    base: int, frame: Frame, agenda: agenda.Agenda | None, dedup: dedup.Dedup | None
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


# A record costs a walk step (its length and type), and the work of the facets in use. No object is
# made per record.
def fold_records(  # noqa: C901, PLR0912 - one flat loop: a call per record would double the cost
    data: bytes,
    at: int,
    end: int,
    header: codec.FrameHeader,
    where: int,
    agenda: agenda.Agenda | None,
    dedup: dedup.Dedup | None,
    watch: Watch | None,
) -> None:
    # Branches for births, claims and ends, which are nearly all records; ``fold_other`` has a row
    # for each other kind. Runs of plain records move ``at`` and ``lsn`` themselves.
    _, _, lsn, epoch, time_ns, _, _, _ = header
    unpack = codec.PREFIX.unpack_from
    job_fields = _JOB_FIELDS.unpack_from
    jobs = watch.jobs if watch is not None else ()
    sole = agenda if dedup is None and watch is None else None
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
        elif kind in _RUNS and sole and (count := fold_plain_run(data, at, end, lsn, epoch, sole)):
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
        elif kind == _REPEAT and sole is not None and not options_size:
            at, lsn = fold_carried_run(data, at, end, lsn, where, sole)
            continue
        else:
            record = data[at : at + length]
            fold_other(kind, record, lsn, where + at, header, agenda, dedup, watch)
        at += length
        lsn += 1


def _fold_run(
    data: bytes, at: int, end: int, lsn: int, where: int, agenda: agenda.Agenda
) -> tuple[int, int]:
    """Apply a run of plain enqueues of one lane; return the index after it, and its lsn."""
    start = at + codec.PREFIX.size
    names = data[at + 14 : at + 16 + data[at + 14] + data[at + 15]]
    # Type, priority, no options, flags: equal in the whole run, like the names.
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
    agenda: agenda.Agenda | None,
    dedup: dedup.Dedup | None,
    watch: Watch | None,
) -> int:
    """Apply the records of a damaged body with a valid CRC of their own; return their count."""
    count = 0
    from taskq.log.format.salvage import salvage  # noqa: PLC0415 - damage is rare

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
    agenda: agenda.Agenda,
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
    dedup: dedup.Dedup,
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
