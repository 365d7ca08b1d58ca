"""What is kept, for how long, and which segment may go next."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from taskq.core.model import SECOND_NS
from taskq.core.values import NamedTuple
from taskq.log.machine.threads import Reporter
from taskq.log.read.readers import HUB_READER, reader_positions
from taskq.log.requests import LETTERS_MAX, Op

if TYPE_CHECKING:
    from taskq.core.folds.agenda import Agenda
    from taskq.log.commit.chores import InnerPort, Steps
    from taskq.log.commit.committer import Committer
    from taskq.log.config import LogConfig
    from taskq.log.journal.journal import Journal
    from taskq.log.state.facets import Facets

_log: Final = Reporter("taskq")
#: How large a log may become for the sake of a hub, or a quarter of the disk, unless told.
_HUB_LAG_BYTES: Final = 2**30


NEARLY_FULL: Final = "the disk is nearly full"


class Due(NamedTuple):
    """A segment that may go."""

    segment: int
    #: in words, for people
    reason: str
    #: whether finished jobs go with it, whatever their age
    drops_finished: bool
    #: more of it must not be needed, or nothing would be gained; None: however much it is
    needed_bytes_max: int | None


class Pinned(NamedTuple):
    """A segment that would be due, but for a named reader that has not read it."""

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
    """Return the oldest segment, if the policy says that it may go; None if nothing is due.

    For its age it goes up to the ``goal``, the last one with something that is past its time.
    ``gone`` of the oldest segments are taken for removed already.
    """
    files = journal.files
    files.refresh()
    lsns = files.lsns[gone:]
    if len(lsns) < 2:  # noqa: PLR2004 - the last one is written to
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
    """Return the segment that is written to, if it may be sealed for jobs that ended in it."""
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
    # Its header tells when the last frame before it was written.
    header = journal.files.header(following) if seconds is not None else None
    return header is not None and header.created_ns + int((seconds or 0) * SECOND_NS) <= now_ns


def _pinned(journal: Journal, candidate: Due, following: int, total: int) -> Pinned | None:
    """Return the named reader that still has to read the segment, unless it is too far behind."""
    for name, (segment, lsn) in reader_positions(journal.disk, journal.path).items():
        if max(segment, lsn) >= following:
            continue
        lag_max = journal.config.reader_lag_bytes
        if lag_max is None and name == HUB_READER:
            # A hub that is never reached again must not fill the disk.
            lag_max = min(_HUB_LAG_BYTES, journal.disk.total_bytes(journal.path) // 4)
        if lag_max is None or total <= lag_max:
            return Pinned(candidate.segment, name)
        _log.warning(
            "%s: the reader %r is over %d bytes behind, so what it has not read goes: it will get "
            "ReaderFellBehind",
            journal.path, name, lag_max,
        )  # fmt: skip
    return None


# How long dead letters stay, and how many: the oldest deaths go first.
#
# A queue with a limit of its own is counted by itself, all the others together. What is found goes
# through ordinary batches, so a letter that somebody requeues meanwhile is left alone.

#: Letters that are looked at in one step: about a millisecond's worth.
_SCANNED: Final = 2_000
#: Of those beyond a limit of their number so many go in one pass.
_EXCESS_MAX: Final = 2_000


class DeadPolicy:
    """The limits of a log and of its queues."""

    def __init__(self, config: LogConfig) -> None:
        self._keep_seconds = config.keep_dead_seconds
        self._max = config.dead_max
        self._queues = {
            name: policy
            for name, policy in config.queues.items()
            if policy.keep_dead_seconds is not None or policy.dead_max is not None
        }

    def __bool__(self) -> bool:
        """Return whether any letter may ever be too old or one too many."""
        return bool(self._queues) or not (self._keep_seconds is None and self._max is None)

    def keep_seconds(self, queue: str) -> float | None:
        """Return how long letters of the queue stay; None for ever."""
        policy = self._queues.get(queue)
        own = None if policy is None else policy.keep_dead_seconds
        return self._keep_seconds if own is None else own

    def group(self, queue: str) -> str:
        """Return the queue itself if it is counted alone, else ""."""
        policy = self._queues.get(queue)
        return "" if policy is None or policy.dead_max is None else queue

    def count_max(self, group: str) -> int | None:
        return self._queues[group].dead_max if group else self._max


def overdue_dead(
    facets: Facets, now_ns: int, policy: DeadPolicy
) -> Generator[list[int], None, bool]:
    """Yield dead letters that are too old or too many, a part a step; most steps find none.

    Returns True when there are too many still: another pass finds more.
    """
    agenda = facets.agenda
    if agenda is None or not policy:
        return False
    rest = _Excess(agenda, policy)
    start = 0
    while start >= 0:
        agenda = facets.agenda
        if agenda is None:  # thrown away meanwhile: the next look sees to it
            return False
        old, start = _scan(agenda, start, now_ns, policy, rest)
        yield old
    yield from rest.jobs()
    return rest.has_more


def purge_steps(committer: Committer, port: InnerPort) -> Steps:
    """Forget the dead letters that are too old or too many, slice by slice."""
    policy = DeadPolicy(committer.config)
    again = bool(policy)
    while again:
        now_ns = committer.journal.clock.wall_ns()
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
    """The oldest deaths of each group that has more letters than it may."""

    def __init__(self, agenda: Agenda, policy: DeadPolicy) -> None:
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
        """Count one of the group that goes because of its age."""
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
    agenda: Agenda, start: int, now_ns: int, policy: DeadPolicy, rest: _Excess
) -> tuple[list[int], int]:
    """Return the letters from ``start`` on that are too old, and where to go on; -1 at the end."""
    now = now_ns // SECOND_NS
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
