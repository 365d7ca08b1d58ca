"""The agenda: which unsettled job may be claimed next, and who runs which. A fold of the log.

``apply_*`` are called with plain numbers, by the live log for what it just wrote and by the
decoder for what others wrote. They never judge: what a record says happened, happened. ``take``,
``due`` and the ``running`` table are what decisions are made from.

Relative due times are kept in shifted time (wall time less the sum of all recorded clock steps), so
that a step of the clock moves them all at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.blocks import SortedBlocks
from taskq.core.jobtable import (
    ATTEMPT_MASK,
    ATTEMPT_SHIFT,
    ATTEMPT_UNIT,
    META_DUE,
    META_EXPIRES,
    STATE_MASK,
    JobTable,
)
from taskq.core.lanes import NO_JOB, Lane
from taskq.core.model import PRIORITY_MAX, QueueStats, State
from taskq.core.records import Kind
from taskq.core.transitions import BY_TIME, after

if TYPE_CHECKING:
    from collections.abc import Iterable

_READY: Final = int(after(State.ABSENT, Kind.ENQUEUED))
_SCHEDULED: Final = int(after(State.ABSENT, Kind.ENQUEUED, waits=True))
_CLAIMED: Final = int(after(State.READY, Kind.CLAIMED))
_BACK: Final = {
    (kind, waits): int(after(State.RUNNING, kind, waits=waits))
    for kind in (Kind.RETRIED, Kind.RELEASED)
    for waits in (False, True)
}
_NOW_DUE: Final = int(BY_TIME[State.SCHEDULED])
_ENDS: Final = {
    Kind.SUCCEEDED: "succeeded",
    Kind.DIED: "dead",
    Kind.CANCELLED: "cancelled",
    Kind.EXPIRED: "expired",
}
#: Jobs that turn ready in one batch, so that a million of one moment do not hold the writer lock.
PROMOTE_MAX: Final = 4_096

#: job, location, attempt, lane, meta
Taken = tuple[int, int, int, Lane, int]


class Agenda:
    """Every unsettled job, and the lanes of the ready ones.

    Attributes:
        running: job -> (token, epoch, owner): the claim that holds it.
        shift_ns: sum of the clock steps so far.
    """

    def __init__(self) -> None:
        self.table = JobTable()
        self.lanes: list[Lane] = []
        self.running: dict[int, tuple[int, int, int]] = {}
        self.shift_ns = 0
        self._by_key: tuple[dict[bytes, Lane], ...] = tuple({} for _ in range(PRIORITY_MAX + 1))
        self._ready: tuple[dict[Lane, None], ...] = tuple({} for _ in range(PRIORITY_MAX + 1))
        self._due_shifted = SortedBlocks()
        self._due_wall = SortedBlocks()
        self._expiries = SortedBlocks()
        #: running jobs whose expiry passed meanwhile: they expire if they are given back
        self._overdue: set[int] = set()

    # -- lanes ------------------------------------------------------------------------------------

    def lane(self, priority: int, key: bytes) -> Lane:
        """The lane of (queue length u8, task length u8, queue, task), made at first sight."""
        lane = self._by_key[priority].get(key)
        if lane is None:
            split = 2 + key[0]
            queue = key[2:split].decode("utf-8", "replace")
            task = key[split : split + key[1]].decode("utf-8", "replace")
            lane = Lane(len(self.lanes), queue, task, priority)
            self.lanes.append(lane)
            self._by_key[priority][bytes(key)] = lane
        return lane

    def block(self, lane: Lane) -> None:
        """Keep the lane's jobs from being claimed."""
        lane.blocked = True
        self._ready[lane.priority].pop(lane, None)

    def unblock(self, lane: Lane) -> None:
        """Let them be claimed again."""
        lane.blocked = False
        if lane.ready:
            self._ready[lane.priority][lane] = None

    # -- apply ------------------------------------------------------------------------------------

    def apply_enqueued(self, job: int, location: int, lane: Lane, meta: int) -> None:
        """A job that is ready at once; ``meta`` holds flags only."""
        self.table.add(job, location, lane.number, meta | _READY)
        lane.push(job)
        lane.ready += 1
        if lane.ready == 1 and not lane.blocked:
            self._ready[lane.priority][lane] = None

    def apply_scheduled(
        self, job: int, location: int, lane: Lane, meta: int, due_ns: int, is_wall: bool
    ) -> None:
        """A job that waits until ``due_ns`` of wall time."""
        self.table.add(job, location, lane.number, meta | _SCHEDULED | META_DUE)
        lane.scheduled += 1
        self._wait(job, due_ns, is_wall)

    def apply_expiry(self, job: int, expires_ns: int) -> None:
        """Note when a job that was just added expires (its meta has META_EXPIRES)."""
        self._expiries.add(max(expires_ns, 0), job)

    def apply_claimed(self, job: int, token: int, epoch: int, owner: int, attempt: int) -> bool:
        """Another process's claim. False: the job is unknown here."""
        chunk = self.table.find(job)
        if chunk is None:
            return False
        index = self.table.index
        meta = chunk.metas[index]
        lane = self.lanes[chunk.lanes[index]]
        self._leave(lane, meta)
        chunk.metas[index] = (
            (meta & ~(STATE_MASK | ATTEMPT_MASK | META_DUE)) | _attempt(attempt) | _CLAIMED
        )
        lane.running += 1
        if lane.ready and lane.head() == job:
            lane.pop(1, NO_JOB)
        elif lane.entries > 2 * lane.ready + 8_192:
            self._tidy(lane)
        self.running[job] = (token, epoch, owner)
        return True

    def apply_back(self, kind: Kind, job: int, attempt: int, due_ns: int, now_ns: int) -> bool:
        """A running job waits again: RETRIED or RELEASED. False: unknown here."""
        self.running.pop(job, None)
        chunk = self.table.find(job)
        if chunk is None:
            return False
        index = self.table.index
        meta = chunk.metas[index]
        lane = self.lanes[chunk.lanes[index]]
        self._leave(lane, meta)
        meta = (meta & ~(STATE_MASK | ATTEMPT_MASK | META_DUE)) | _attempt(attempt)
        waits = due_ns > now_ns
        if meta & META_EXPIRES and job in self._overdue:
            self._overdue.remove(job)
            self._expiries.add(0, job)
        chunk.metas[index] = meta | _BACK[kind, waits] | (META_DUE if waits else 0)
        if waits:
            lane.scheduled += 1
            self._wait(job, due_ns, is_wall=False)
        else:
            self._enter_ready(lane, job)
        return True

    def apply_ended(self, kind: Kind, job: int) -> bool:
        """A job is settled for good. False: unknown here (it ended before, or was damaged)."""
        self.running.pop(job, None)
        chunk = self.table.find(job)
        if chunk is None:
            return False
        index = self.table.index
        meta = chunk.metas[index]
        lane = self.lanes[chunk.lanes[index]]
        self._leave(lane, meta)
        if meta & META_EXPIRES:
            self._overdue.discard(job)
        if kind is Kind.SUCCEEDED:  # the common one, without getattr
            lane.succeeded += 1
        else:
            name = _ENDS[kind]
            setattr(lane, name, getattr(lane, name) + 1)
        self.table.remove(chunk, index)
        return True

    def apply_clock(self, step_ns: int) -> None:
        """Wall time made a step: relative moments move with it."""
        self.shift_ns += step_ns

    # -- decide -----------------------------------------------------------------------------------

    def promote(self, now_ns: int, count: int = PROMOTE_MAX) -> None:
        """Turn scheduled jobs ready whose time has come, at most ``count`` of each kind."""
        for waiting, moment in (
            (self._due_shifted, now_ns - self.shift_ns),
            (self._due_wall, now_ns),
        ):
            first = waiting.first_key()
            if first is None or first > moment:
                continue
            for job in waiting.pop_until(moment, count):
                chunk = self.table.find(job)
                if chunk is None:
                    continue
                index = self.table.index
                meta = chunk.metas[index]
                if not meta & META_DUE:
                    continue
                lane = self.lanes[chunk.lanes[index]]
                lane.scheduled -= 1
                chunk.metas[index] = (meta & ~(STATE_MASK | META_DUE)) | _NOW_DUE
                self._enter_ready(lane, job)

    def next_due_ns(self) -> int | None:
        """Wall time at which the next scheduled job turns ready; None if none is scheduled."""
        moments = []
        shifted = self._due_shifted.first_key()
        if shifted is not None:
            moments.append(shifted + self.shift_ns)
        wall = self._due_wall.first_key()
        if wall is not None:
            moments.append(wall)
        return min(moments, default=None)

    def next_expiry_ns(self) -> int | None:
        """Wall time at which the next job expires; None if none does."""
        return self._expiries.first_key()

    def expired(self, now_ns: int, count: int) -> list[int]:
        """At most ``count`` waiting jobs that are expired now; the caller records each."""
        jobs = []
        for job in self._expiries.pop_until(now_ns, count):
            chunk = self.table.find(job)
            if chunk is None:
                continue
            meta = chunk.metas[self.table.index]
            if meta & STATE_MASK == _CLAIMED:
                self._overdue.add(job)
            else:
                jobs.append(job)
        return jobs

    def take(
        self, count: int, queues: frozenset[str] | None, tasks: frozenset[str] | None
    ) -> list[Taken]:
        """Claim up to ``count`` ready jobs: highest priority first, oldest first within one.

        The jobs are running afterwards; the caller records the claims and fills ``running``.
        """
        taken: list[Taken] = []
        for level in reversed(self._ready):
            if not level:
                continue
            lanes = [
                lane
                for lane in level
                if (queues is None or lane.queue in queues)
                and (tasks is None or lane.task in tasks)
            ]
            while lanes and len(taken) < count:
                limit = NO_JOB
                lane = lanes[0]
                if len(lanes) > 1:
                    lane, second = _two_oldest(lanes)
                    limit = second.head()
                if not self._take_from(lane, count - len(taken), limit, taken) or not lane.ready:
                    lanes = [other for other in lanes if other.ready and other.entries]
            if len(taken) >= count:
                break
        return taken

    def _take_from(self, lane: Lane, count: int, below: int, taken: list[Taken]) -> bool:
        popped = lane.pop(count, below)
        table = self.table
        find = table.find
        number = len(taken)
        for job in popped:
            chunk = find(job)
            if chunk is None:
                continue
            index = table.index
            meta = chunk.metas[index]
            if meta & STATE_MASK != _READY or chunk.lanes[index] != lane.number:
                continue
            if meta & ATTEMPT_MASK != ATTEMPT_MASK:
                meta += ATTEMPT_UNIT
            meta = (meta & ~STATE_MASK) | _CLAIMED
            chunk.metas[index] = meta
            attempt = (meta & ATTEMPT_MASK) >> ATTEMPT_SHIFT
            taken.append((job, chunk.locations[index], attempt, lane, meta))
        number = len(taken) - number
        lane.running += number
        lane.ready -= number
        if not lane.ready:
            self._ready[lane.priority].pop(lane, None)
        return bool(popped)

    # -- look -------------------------------------------------------------------------------------

    def state(self, job: int) -> State:
        """ABSENT for a job that is settled or was never here."""
        chunk = self.table.find(job)
        if chunk is None:
            return State.ABSENT
        return State(chunk.metas[self.table.index] & STATE_MASK)

    def location(self, job: int) -> int:
        """Where the enqueue record of an unsettled job stands."""
        chunk = self.table.find(job)
        if chunk is None:
            raise KeyError(job)
        return chunk.locations[self.table.index]

    def attempt(self, job: int) -> int:
        """Attempts counted so far of an unsettled job, 0 for an unknown one."""
        chunk = self.table.find(job)
        if chunk is None:
            return 0
        return (chunk.metas[self.table.index] & ATTEMPT_MASK) >> ATTEMPT_SHIFT

    def next_ready(self, count: int, queues: frozenset[str] | None) -> list[int]:
        """The next jobs that ``take`` would claim, left where they are."""
        jobs: list[int] = []
        for level in reversed(self._ready):
            found: list[int] = []
            for lane in level:
                if queues is not None and lane.queue not in queues:
                    continue
                popped = dict.fromkeys(
                    lane.pop(count - len(jobs) + lane.entries - lane.ready, NO_JOB)
                )
                ready = [job for job in popped if self.state(job) is State.READY]
                for job in ready:
                    lane.give_back(job)
                found += ready
            jobs += sorted(found)[: count - len(jobs)]
            if len(jobs) >= count:
                break
        return jobs

    def any_ready(self) -> bool:
        """Whether any unblocked lane has a job."""
        return any(self._ready)

    def stats(self) -> tuple[QueueStats, ...]:
        """Counts per queue, by name."""
        queues: dict[str, list[Lane]] = {}
        for lane in self.lanes:
            queues.setdefault(lane.queue, []).append(lane)
        return tuple(_queue_stats(name, queues[name]) for name in sorted(queues))

    # -- inside -----------------------------------------------------------------------------------

    def _wait(self, job: int, due_ns: int, is_wall: bool) -> None:
        if is_wall:
            self._due_wall.add(max(due_ns, 0), job)
        else:
            self._due_shifted.add(max(due_ns - self.shift_ns, 0), job)

    def _enter_ready(self, lane: Lane, job: int) -> None:
        lane.give_back(job)
        lane.ready += 1
        if lane.ready == 1 and not lane.blocked:
            self._ready[lane.priority][lane] = None

    def _leave(self, lane: Lane, meta: int) -> None:
        state = meta & STATE_MASK
        if state == _CLAIMED:
            lane.running -= 1
        elif state == _READY:
            lane.ready -= 1
            if not lane.ready:
                self._ready[lane.priority].pop(lane, None)
        else:
            lane.scheduled -= 1

    def _tidy(self, lane: Lane) -> None:
        """Drop stale entries when they outnumber the ready ones."""
        entries = lane.pop(lane.entries, NO_JOB)
        for job in dict.fromkeys(entries):
            chunk = self.table.find(job)
            if chunk is not None and chunk.metas[self.table.index] & STATE_MASK == _READY:
                lane.push(job)


def _attempt(attempt: int) -> int:
    return (attempt << ATTEMPT_SHIFT) & ATTEMPT_MASK if attempt < 1 << 16 else ATTEMPT_MASK


def _two_oldest(lanes: Iterable[Lane]) -> tuple[Lane, Lane]:
    first, second, *_ = sorted(lanes, key=Lane.head)
    return first, second


def _queue_stats(name: str, lanes: list[Lane]) -> QueueStats:
    def total(field: str) -> int:
        return sum(getattr(lane, field) for lane in lanes)

    return QueueStats(
        queue=name,
        scheduled=total("scheduled"),
        ready=total("ready"),
        running=total("running"),
        succeeded=total("succeeded"),
        dead=total("dead"),
        cancelled=total("cancelled"),
        expired=total("expired"),
    )
