"""Retention: which finished jobs stay, which segments have ended jobs, and which may go next."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from taskq.core import kinds, model, records
from taskq.core.folds import agenda, jobtable
from taskq.core.values import NamedTuple
from taskq.log.format import codec, flows, frames, options
from taskq.log.format.carried import decode_carried, encode_attempts, find_moment
from taskq.log.format.record import Record, places
from taskq.log.machine.threads import Reporter
from taskq.log.read.readers import HUB_READER, reader_positions
from taskq.log.requests import LETTERS_MAX, Op, Rewrite
from taskq.log.state.job_history import end_of, job_view, read_job

if TYPE_CHECKING:
    from taskq.log.commit import committer
    from taskq.log.config import LogConfig
    from taskq.log.journal.journal import Journal
    from taskq.log.state.facets import Facets
    from taskq.log.upkeep import compaction

_log: Final = Reporter("taskq")
#: Size, or a quarter of the disk, up to which a log may grow for an absent hub by default.
_HUB_LAG_BYTES: Final = 2**30


NEARLY_FULL: Final = "the disk is nearly full"


class Due(NamedTuple):
    """A segment that may be removed."""

    segment: int
    #: reason in words, for people
    reason: str
    #: whether its finished jobs of any age are removed, too
    drops_finished: bool
    #: most needed bytes with which the removal pays off; None: any number
    needed_bytes_max: int | None


class Pinned(NamedTuple):
    """A segment that would be due, but a named reader has not read it."""

    segment: int
    reader: str


def due(
    journal: Journal,
    now_ns: int,
    *,
    is_pressed: bool,
    keep_seconds: float | None,
    goal: int,
    gone: int = 0,
) -> Due | Pinned | None:
    """Return the oldest segment if the policy allows its removal; None if no segment is due.

    For its age a segment goes up to the ``goal``, the last segment with expired jobs. The ``gone``
    oldest segments count as removed.
    """
    files = journal.files
    files.refresh()
    lsns = files.lsns[gone:]
    if len(lsns) < 2:  # noqa: PLR2004 - the last one still grows
        return None
    total = sum(map(files.size, lsns))
    oldest = _over_limit(journal, lsns, total, is_pressed)
    if _is_past(journal, lsns[1], keep_seconds, now_ns) and (lsns[0] <= goal or oldest is None):
        bound = None if lsns[0] <= goal else files.size(lsns[0]) // 2
        oldest = Due(lsns[0], f"all of it is older than {keep_seconds:g} s", False, bound)
    if oldest is None:
        return None
    return _pinned(journal, oldest, lsns[1], total) or oldest


def past(journal: Journal, keep_seconds: float | None, now_ns: int) -> list[int]:
    lsns = journal.files.lsns
    pairs = itertools.pairwise(lsns)
    return [
        lsn
        for lsn, following in itertools.takewhile(
            lambda pair: _is_past(journal, pair[1], keep_seconds, now_ns), pairs
        )
    ]


def _over_limit(journal: Journal, lsns: list[int], total: int, is_pressed: bool) -> Due | None:
    config, oldest = journal.config, lsns[0]
    half = journal.files.size(oldest) // 2
    if config.keep_bytes is not None and total > config.keep_bytes:
        return Due(oldest, f"the log has over {config.keep_bytes} bytes", True, half)
    if config.keep_segments is not None and len(lsns) - 1 > config.keep_segments:
        return Due(oldest, f"the log has over {config.keep_segments} sealed segments", True, half)
    if is_pressed:
        return Due(oldest, NEARLY_FULL, True, half)
    return None


def last_due(
    journal: Journal, now_ns: int, *, is_pressed: bool, keep_seconds: float | None
) -> Due | None:
    """Return the growing segment, if it may be sealed for jobs that ended in it."""
    files = journal.files
    files.refresh()
    last = journal.segment
    if is_pressed and files.lsns == [last]:
        return Due(last, NEARLY_FULL, True, journal.offset // 2)
    wait = 0 if keep_seconds is None else journal.config.segment_age_of(keep_seconds)
    if not _is_past(journal, last, wait, now_ns):
        return None
    return Due(last, f"jobs that ended in it are kept for {keep_seconds} s", False, None)


def _is_past(journal: Journal, following: int, seconds: float | None, now_ns: int) -> bool:
    # The next segment's header has the time of this segment's last frame.
    header = journal.files.header(following) if seconds is not None else None
    return (
        header is not None and header.created_ns + int((seconds or 0) * model.SECOND_NS) <= now_ns
    )


def _pinned(journal: Journal, candidate: Due, following: int, total: int) -> Pinned | None:
    """Return the named reader that still has to read the segment, unless it lags too far."""
    for name, (segment, lsn) in reader_positions(journal.disk, journal.path).items():
        if max(segment, lsn) >= following:
            continue
        lag_max = journal.config.reader_lag_bytes
        if lag_max is None and name == HUB_READER:
            # An unreachable hub must not fill the disk.
            lag_max = min(_HUB_LAG_BYTES, journal.disk.total_bytes(journal.path) // 4)
        if lag_max is None or total <= lag_max:
            return Pinned(candidate.segment, name)
        _log.warning(
            "%s: the reader %r is over %d bytes late, so its unread records go: it will get "
            "ReaderFellBehind",
            journal.path, name, lag_max,
        )  # fmt: skip
    return None


# Limits of age and number of dead letters: the oldest deaths go first.
#
# A queue with a limit of its own has its own count, all other queues share one. Removals go through
# ordinary batches, so a letter requeued meanwhile is left alone.

#: Letters scanned in one step: about a millisecond of work.
_SCANNED: Final = 2_000
#: Most jobs over a limit of number that one pass removes.
_EXCESS_MAX: Final = 2_000


class DeadPolicy:
    """Limits of a log and of its queues."""

    def __init__(self, config: LogConfig) -> None:
        self._keep_seconds = config.keep_dead_seconds
        self._max = config.dead_max
        self._queues = {
            name: policy
            for name, policy in config.queues.items()
            if policy.keep_dead_seconds is not None or policy.dead_max is not None
        }

    def __bool__(self) -> bool:
        """Return whether there is any limit of age or number."""
        return bool(self._queues) or not (self._keep_seconds is None and self._max is None)

    def keep_seconds(self, queue: str) -> float | None:
        """Return the retention of the queue's letters; None for ever."""
        policy = self._queues.get(queue)
        own = None if policy is None else policy.keep_dead_seconds
        return self._keep_seconds if own is None else own

    def group(self, queue: str) -> str:
        """Return the queue itself if it has its own count, else ""."""
        policy = self._queues.get(queue)
        return "" if policy is None or policy.dead_max is None else queue

    def count_max(self, group: str) -> int | None:
        return self._queues[group].dead_max if group else self._max


def overdue_dead(
    facets: Facets, now_ns: int, policy: DeadPolicy
) -> Generator[list[int], None, bool]:
    """Yield dead letters that are too old or too many, a part per step; most steps have none.

    Return True if there are still too many: another pass finds more.
    """
    agenda = facets.agenda
    if agenda is None or not policy:
        return False
    rest = _Excess(agenda, policy)
    start = 0
    while start >= 0:
        agenda = facets.agenda
        if agenda is None:  # dropped meanwhile: a later check handles it
            return False
        old, start = _scan(agenda, start, now_ns, policy, rest)
        yield old
    yield from rest.jobs()
    return rest.has_more


def purge_steps(committer: committer.Committer, port: compaction.InnerPort) -> compaction.Steps:
    """Purge the dead letters that are too old or too many, in slices."""
    policy = DeadPolicy(committer.config)
    again = bool(policy)
    while again:
        now_ns = committer.calendar.now_ns()
        overdue = overdue_dead(committer.facets, now_ns, policy)
        while True:
            try:
                jobs = next(overdue)
            except StopIteration as end:
                again = end.value
                break
            yield None
            for start in range(0, len(jobs), LETTERS_MAX):
                yield from port.make(Op.PURGE, jobs[start : start + LETTERS_MAX]).wait()


class _Excess:
    """The oldest deaths of each group over its limit."""

    def __init__(self, agenda: agenda.Agenda, policy: DeadPolicy) -> None:
        counts: dict[str, int] = {}
        for lane in agenda.lanes:
            group = policy.group(lane.queue)
            counts[group] = counts.get(group, 0) + lane.dead
        self._over: dict[str, int] = {}
        for group, count in counts.items():
            limit = policy.count_max(group)
            if limit is not None and count > limit:
                self._over[group] = count - limit
        self._found: dict[str, list[tuple[int, int]]] = {group: [] for group in self._over}
        self.has_more = any(over > _EXCESS_MAX for over in self._over.values())

    def __bool__(self) -> bool:
        return bool(self._over)

    def gone(self, group: str) -> None:
        """Count a letter of the group that is removed for its age."""
        if group in self._over:
            self._over[group] -= 1

    def add(self, group: str, second: int, job: int) -> None:
        ends = self._found.get(group)
        if ends is not None:
            ends.append((second, job))
            if len(ends) >= 2 * _EXCESS_MAX:
                ends[:] = nsmallest(_EXCESS_MAX, ends)

    def jobs(self) -> Iterator[list[int]]:
        for group, over in self._over.items():
            oldest = nsmallest(max(min(over, _EXCESS_MAX), 0), self._found[group])
            yield sorted(job for _, job in oldest)


def _scan(
    agenda: agenda.Agenda, start: int, now_ns: int, policy: DeadPolicy, rest: _Excess
) -> tuple[list[int], int]:
    """Return the too old letters from ``start`` on, and the next start; -1 at the end."""
    now = now_ns // model.SECOND_NS
    lanes: dict[int, tuple[float | None, str]] = {}
    old: list[int] = []
    for number, (chunk, index) in enumerate(agenda.dead.since(start)):
        job, second, lane = chunk.ids[index], chunk.metas[index], chunk.lanes[index]
        if number == _SCANNED:
            return old, job
        if lane not in lanes:
            queue = agenda.lanes[lane].queue
            lanes[lane] = policy.keep_seconds(queue), policy.group(queue)
        keep, group = lanes[lane]
        if keep is not None and second + keep < now:
            old.append(job)
            rest.gone(group)
        elif rest:
            rest.add(group, second, job)
    return old, -1


_LETTER: Final = kinds.after(model.State.RUNNING, kinds.DEATH)
_BODY_FLAGS: Final = int(records.Flag.ZLIB | records.Flag.ZSTD)
#: Records of a frame that are read in one step.
_RECORDS: Final = 1_024


#: Shift of an offset above a job and a bit, in one number.
_JOB_BITS: Final = 64
_JOB_MASK: Final = (1 << 63) - 1


class Needed:
    """Jobs with a needed record in the segment, in the order of offsets once sorted.

    Attributes:
        dues: of scheduled jobs: (moment, whether that is wall time).
        expiries: relative expiries of jobs, in shifted time.
        waits, expires: whether there may be any such jobs.
        steps: (offset, job, whether it has ended) of steps and signals in the segment.
    """

    def __init__(self) -> None:
        #: offset, job and whether it is settled, in one number: a million take 44 MB
        self._keys: list[int] = []
        self.dues: dict[int, tuple[int, bool]] = {}
        self.expiries: dict[int, int] = {}
        self.waits: bool = False
        self.expires: bool = False
        self.steps: list[tuple[int, int, bool]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, job: int, offset: int, meta: int) -> None:
        self._keys.append(offset << _JOB_BITS | job << 1 | (not meta))
        self.waits = self.waits or meta & jobtable.STATE_MASK == model.State.SCHEDULED
        self.expires = self.expires or bool(meta & jobtable.META_EXPIRES)

    def sort(self) -> None:
        self._keys.sort()
        self.steps.sort()

    def jobs(self) -> set[int]:
        return {key >> 1 & _JOB_MASK for key in self._keys}

    def between(self, first: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Yield (job, offset, whether it was alive) of jobs at these offsets, each once."""
        keys, before = self._keys, -1
        last = bisect_left(keys, end << _JOB_BITS)
        for number in range(bisect_left(keys, first << _JOB_BITS), last):
            key = keys[number]
            offset = key >> _JOB_BITS
            if offset != before:
                yield key >> 1 & _JOB_MASK, offset, not key & 1
            before = offset


def extent(journal: Journal, segment: int) -> tuple[int, int]:
    """Return (bytes, lsn after its records) of a segment, as far as known here."""
    following = min((lsn for lsn in journal.files.lsns if lsn > segment), default=0)
    if following:
        return journal.files.size(segment), following
    return journal.offset, journal.next_lsn


class Retained:
    """Decision which finished jobs stay.

    Args:
        committer: of this process.
        keep_seconds: retention after the end, unless the queue or the job has its own; None for
            ever.
        drops_finished: no finished job stays.
        now_ns: wall time.
    """

    def __init__(
        self,
        committer: committer.Committer,
        *,
        keep_seconds: float | None,
        drops_finished: bool,
        now_ns: int,
    ) -> None:
        self._committer = committer
        self._journal = committer.journal
        self._keep_ns = _nanoseconds(keep_seconds)
        self._queues = {
            name: _nanoseconds(policy.keep_seconds)
            for name, policy in committer.config.queues.items()
            if policy.keep_seconds is not None
        }
        self._drops_finished = drops_finished
        self._now_ns = now_ns
        self._kept: dict[int, Record] = {}

    def find(self, segment: int, needed: Needed) -> Iterator[None]:
        """Add the finished jobs that stay, by the offset of their record in the segment."""
        self._kept = {}
        files = self._journal.files
        size, following = extent(self._journal, segment)
        # An epoch may begin any number of lsns further on.
        births = _Births(segment, min(following, files.bound(segment)))
        scanner = files.scanner(segment, size, segment, sealed=True)
        for frame in scanner.frames(codec.SEGMENT_HEADER.size):
            if not isinstance(frame, frames.Gap):
                yield from self._look(frame, births)
        agenda = self._committer.facets.need_agenda()
        for number, (job, offset) in enumerate(births.open()):
            if not number % 64:
                yield
            if self._drops_finished and job not in births.keeps:
                continue
            if agenda.table.find(job) is None and agenda.dead.find(job) is None:
                end = _end(self._journal, job, following)
                if end is not None and self._is_kept(end, births.keeps.get(job, self._keep_ns)):
                    self._keep(job, offset, end, needed)
        for job, (offset, end) in births.kept.items():
            self._keep(job, offset, end, needed)
        yield from self._find_steps(births, following, needed)
        yield from self._find_acts(births, following, needed)

    def _find_acts(self, births: _Births, following: int, needed: Needed) -> Iterator[None]:
        """Add acts on jobs that stay, or that were rewritten later."""
        agenda, known = self._committer.facets.need_agenda(), dict[int, bool]()
        for offset, job in births.acts:
            if job and job not in known:
                known[job] = (
                    agenda.table.find(job) is not None
                    or agenda.dead.find(job) is not None
                    or job in self._kept
                    or self._occurs_after(job, following)
                )
                yield
            if known.get(job):
                needed.steps.append((offset, job, True))

    def _find_steps(self, births: _Births, following: int, needed: Needed) -> Iterator[None]:
        """Add steps of finished jobs that stay, or that were rewritten later."""
        for number, (job, offsets) in enumerate(births.steps.items()):
            if not number % 64:
                yield
            if job in self._kept or self._occurs_after(job, following):
                needed.steps += ((offset, job, True) for offset in offsets)

    def _look(self, frame: frames.Frame, births: _Births) -> Iterator[None]:
        header = frame.header
        base = frame.offset + codec.FRAME_HEADER_SIZE - frame.at
        for number, (lsn, at, length) in enumerate(places(frame)):
            if not number % _RECORDS:
                yield
            kind = frame.data[at + 4]
            if kind == kinds.BIRTH:
                births.born(lsn, base + at)
                if self._drops_finished:
                    is_special = frame.data[at + codec.FLAGS_AT] & flows.FLOW_FLAG != 0
                else:
                    is_special = bool(self._queues or frame.data[at + 6] or frame.data[at + 7])
                if is_special:
                    self._note_keep(births, lsn, frame.data[at : at + length])
            elif kind in kinds.CARRYING:
                self._look_at_carried(births, frame, base, at, length)
            elif kind == kinds.ACT:
                births.acts.append((base + at, flows.job_of(frame.data[at : at + length])))
            elif kind == kinds.STEP:
                births.steps[flows.job_of(frame.data[at : at + length])].append(base + at)
            elif kind in kinds.ENDS:
                self._look_at_end(births, frame.data[at : at + length], lsn, header)

    def _occurs_after(self, job: int, following: int) -> bool:
        agenda = self._committer.facets.need_agenda()
        if agenda.table.find(job) is not None or agenda.dead.find(job) is not None:
            return False
        story = read_job(self._journal, job)
        return story is not None and story.end is not None and story.snapshot_lsn >= following

    def _look_at_end(
        self, births: _Births, record: bytes, lsn: int, header: codec.FrameHeader
    ) -> None:
        job = codec.JOB.unpack_from(record)[6]
        offset = births.ended(job)
        # The agenda knows a dead letter until it is purged or requeued.
        if not offset or record[codec.KIND_AT] in kinds.DEATHS:
            return
        if job in births.keeps:
            end = _final(record, lsn, header.epoch, header.time_ns)
            if self._is_kept(end, births.keeps[job]):
                births.kept[job] = (offset, end)
                return
        births.steps.pop(job, None)

    def _look_at_carried(
        self, births: _Births, frame: frames.Frame, base: int, at: int, length: int
    ) -> None:
        record = frame.data[at : at + length]
        carried = decode_carried(record)
        if carried.state is model.State.ABSENT or carried.state is model.State.DEAD:
            return
        births.ended(carried.job)  # its earlier record, if that is in this segment
        births.carried[carried.job] = base + at
        self._note_keep(births, carried.job, carried.born)
        if carried.state in model.LIVE_STATES:
            return
        births.ended(carried.job)
        end = _final(record, 0, 0, carried.ended_ns)
        if self._drops_finished and carried.job not in births.keeps:
            return
        if self._is_kept(end, births.keeps.get(carried.job, self._keep_ns)):
            births.kept[carried.job] = (base + at, end)

    def _note_keep(self, births: _Births, job: int, born: bytes) -> None:
        """Note a job with a retention of its own."""
        keep_ns = self.own_keep_ns(born)
        if keep_ns:
            births.keeps[job] = keep_ns

    def own_keep_ns(self, born: bytes) -> int:
        """Return the retention of a job by its own options, or its queue's; else 0."""
        if flows.is_of_flow(born) and self._is_taken_in(born):
            return model.TIME_NS_MAX
        if self._drops_finished:
            return 0
        _, _, _, size, _, _, queue_size, task_size = codec.BORN.unpack_from(born)
        start = codec.BORN.size
        keep_ns = find_moment(born, start + queue_size + task_size, size, records.Option.KEEP)
        if not keep_ns and self._queues:
            queue = born[start : start + queue_size].decode("utf-8", "replace")
            keep_ns = self._queues.get(queue, 0)
        return keep_ns

    def _is_taken_in(self, born: bytes) -> bool:
        """Return whether a job may still need the result: it waits, runs, or is a dead letter."""
        agenda = self._committer.facets.need_agenda()
        return any(
            agenda.table.find(job) is not None or agenda.dead.find(job) is not None
            for job in flows.takes_of(born).unlocks
        )

    def _is_kept(self, end: Record, keep_ns: int) -> bool:
        return not keep_ns or end.time_ns + keep_ns > self._now_ns

    def _keep(self, job: int, offset: int, end: Record, needed: Needed) -> None:
        self._kept[job] = end
        needed.add(job, offset, 0)

    # -- facts about a job ------------------------------------------------------------------------

    def keeps(self, job: int) -> bool:
        return job in self._kept

    def look_again(self, job: int, born: bytes, following: int) -> None:
        """Also keep a job of the segment before ``following`` that has ended since ``find``."""
        own_ns = self.own_keep_ns(born)
        if own_ns or not self._drops_finished:
            end = _end(self._journal, job, following)
            if end is not None and self._is_kept(end, own_ns or self._keep_ns):
                self._kept[job] = end

    def kept_item(self, job: int, location: int, born: bytes, enqueued_ns: int) -> Rewrite | None:
        end = self._kept.get(job)
        return None if end is None else self._item(job, location, born, enqueued_ns, end)

    def dead_item(
        self, job: int, location: int, born: bytes, enqueued_ns: int, died_seconds: int
    ) -> Rewrite:
        end = _end(self._journal, job)
        if end is not None and end_of(end)[0] is model.State.DEAD:
            return self._item(job, location, born, enqueued_ns, end)
        return Rewrite(
            job,
            location,
            _LETTER,
            options.unexpiring(born, job),
            enqueued_ns,
            ended_ns=died_seconds * model.SECOND_NS,
        )

    def attempts(self, job: int) -> tuple[bytes, bytes]:
        """Return the job's packed attempts so far, and the log lines of the last one."""
        view = job_view(self._journal, job, self._now_ns)
        return encode_attempts(view.attempts if view is not None else ())

    def _item(self, job: int, location: int, born: bytes, enqueued_ns: int, end: Record) -> Rewrite:
        state, body, flags, ended_ns = end_of(end)
        born, expires_ns = self._expiry(job, born)
        history, lines = self.attempts(job)
        return Rewrite(
            job, location, state, born, enqueued_ns, end.attempt,
            expires_ns=expires_ns, ended_ns=ended_ns,
            history=history, body=body, flags=flags & _BODY_FLAGS, lines=lines,
        )  # fmt: skip

    def _expiry(self, job: int, born: bytes) -> tuple[bytes, int]:
        extras = options.enqueue_extras(born)
        view = job_view(self._journal, job, self._now_ns) if extras.expires_ns else None
        if view is None or not view.expires_ns:
            return options.unexpiring(born, job), 0
        return born, 0 if extras.expires_is_wall else view.expires_ns


class _Births:
    """Jobs that began in a segment, and their ends there.

    Attributes:
        carried: jobs rewritten here, with their offsets.
        keeps: retention of jobs with their own, in nanoseconds.
        kept: jobs that ended here and stay, with their offsets and ends.
        steps: job -> offsets of its steps here.
        acts: (offset, job) of acts.
    """

    def __init__(self, first_lsn: int, next_lsn: int) -> None:
        self._first = first_lsn
        self._offsets = array("I", bytes(4 * (next_lsn - first_lsn)))
        self.carried: dict[int, int] = {}
        self.keeps: dict[int, int] = {}
        self.kept: dict[int, tuple[int, Record]] = {}
        self.steps: defaultdict[int, list[int]] = defaultdict(list)
        self.acts: list[tuple[int, int]] = []

    def born(self, job: int, offset: int) -> None:
        self._offsets[job - self._first] = offset

    def ended(self, job: int) -> int:
        """Mark the job as ended; return its offset, 0 if it did not begin here."""
        offset = self.carried.pop(job, 0)
        number = job - self._first
        if 0 <= number < len(self._offsets):
            offset = offset or self._offsets[number]
            self._offsets[number] = 0
        return offset

    def open(self) -> Iterator[tuple[int, int]]:
        """Yield (job, offset) of jobs that did not end here."""
        for number, offset in enumerate(self._offsets):
            if offset:
                yield self._first + number, offset
        yield from self.carried.items()


def _end(journal: Journal, job: int, following: int = codec.LSN_MAX) -> Record | None:
    """Return the record that ended a job; None if the job lives, or was purged.

    Also None if all records of the job were rewritten at ``following`` or later.
    """
    story = read_job(journal, job)
    return None if story is None or story.snapshot_lsn >= following else story.end


def _final(record: bytes, lsn: int, epoch: int, time_ns: int) -> Record:
    return Record(record, lsn, epoch, time_ns)


def _nanoseconds(seconds: float | None) -> int:
    return 0 if seconds is None else max(int(seconds * model.SECOND_NS), 1)


#: Frames read in one step.
_FRAMES: Final = 32


class _FirstEnds:
    """The read part of a segment.

    Attributes:
        offset, next_lsn: where the next read begins.
        ended_ns: first end of a job with the log's retention; 0 for none.
        over_ns: first end of a retention among rewritten jobs with their own; 0 for none.
    """

    def __init__(self, segment: int) -> None:
        self.offset, self.next_lsn = codec.SEGMENT_HEADER.size, segment
        self.ended_ns = self.over_ns = 0

    def look(self, frame: frames.Frame, own_keep_ns: Callable[[bytes], int]) -> bool:
        data = frame.data
        for _, at, length in places(frame):
            kind = data[at + codec.KIND_AT]
            if kind in kinds.LAST:
                self.ended_ns = _first(self.ended_ns, frame.header.time_ns)
                return True
            if kind in kinds.CARRYING and data[at + codec.STATE_AT] in model.PASSING_STATES:
                carried = decode_carried(data[at : at + length])
                own_ns = own_keep_ns(carried.born)
                if own_ns:
                    self.over_ns = _first(self.over_ns, carried.ended_ns + own_ns)
                else:
                    self.ended_ns = _first(self.ended_ns, carried.ended_ns)
        return self.ended_ns > 0


class Endings:
    """The first ends in each segment, as far as requested."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._ends: dict[int, _FirstEnds] = {}

    def steps(self, segment: int, own_keep_ns: Callable[[bytes], int]) -> Iterator[None]:
        """Read on, to the first end in a segment.

        ``own_keep_ns`` returns the retention of an ENQUEUED record's job, 0 for the log's
        retention.

        Raises:
            SegmentGone: another process compacted it.
        """
        files = self._journal.files
        self._ends = {lsn: ends for lsn, ends in self._ends.items() if lsn in files}
        ends = self._ends.setdefault(segment, _FirstEnds(segment))
        if ends.ended_ns:
            return
        size, _ = extent(self._journal, segment)
        scanner = files.scanner(segment, size, ends.next_lsn, sealed=True)
        for number, item in enumerate(scanner.frames(ends.offset), 1):
            ends.offset, ends.next_lsn = item.end, item.next_lsn
            if isinstance(item, frames.Frame) and ends.look(item, own_keep_ns):
                return
            if not number % _FRAMES:
                yield

    def any(self, segment: int, now_ns: int) -> bool:
        """Return whether a segment past the log's retention has jobs to remove."""
        ends = self._ends[segment]
        return ends.ended_ns > 0 or 0 < ends.over_ns <= now_ns

    def are_due(self, segment: int, keep_seconds: float | None, now_ns: int) -> bool:
        ends = self._ends[segment]
        if keep_seconds is None:
            return 0 < ends.over_ns <= now_ns
        wait_ns = self._journal.config.segment_age_of(keep_seconds) * model.SECOND_NS
        early_ns = keep_seconds * model.SECOND_NS - wait_ns
        return 0 < ends.ended_ns <= now_ns - wait_ns or 0 < ends.over_ns <= now_ns + early_ns


def _first(known_ns: int, moment_ns: int) -> int:
    return min(known_ns or moment_ns, moment_ns)
