"""The order of claims: higher levels first, older jobs first within a level."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import chain, filterfalse, islice, takewhile
from typing import Any, Final

from taskq.core.controls import TaskWish
from taskq.core.errors import UsageError
from taskq.core.folds.jobtable import (
    ATTEMPT_MASK,
    ATTEMPT_SHIFT,
    ATTEMPT_UNIT,
    FRESH_MASK,
    META_EXPIRES,
    RUN_MIN,
    STATE_MASK,
    JobTable,
)
from taskq.core.folds.lanes import (
    BLOCKED_BY_PAUSE,
    BLOCKED_BY_TASK,
    Family,
    Lane,
    LimitGroups,
)
from taskq.core.folds.moments import NO_JOB, Ages, Bounds, Timetable
from taskq.core.kinds import READY, RUNNING
from taskq.core.model import PRIORITY_MAX
from taskq.core.parsing import whole
from taskq.core.views import QueueStats

#: Free numbers of forgotten lanes, beyond twice the number of lanes, before a trim.
_FREE_MAX: Final = 1_024
#: Placeholder for a forgotten lane: no queue, no task, no jobs.
GONE: Final = Lane(0, bytes(2), 0)
GONE.blocked = 1 << 30
GONE.queue = GONE.task = "\0"


class LaneQueues:
    """Every lane, and the lanes with jobs to claim by priority.

    Args:
        ages: gets the moments of jobs that may be claimed again.

    Attributes:
        lanes: all lanes by number.
        ready: lanes with jobs to claim, by priority; lanes with a key are represented by their
            family.
        groups: limits of tasks, each with its lanes.
        paused: names of paused queues.
        paused_tasks: names of paused tasks.
    """

    def __init__(self, ages: Ages) -> None:
        self._ages = ages
        self.lanes: list[Lane] = []
        self.ready: tuple[dict[Lane | Family, None], ...] = tuple(
            {} for _ in range(PRIORITY_MAX + 1)
        )
        self.paused: set[str] = set()
        self.paused_tasks: set[str] = set()
        self._by_key: tuple[dict[bytes, Lane], ...] = tuple({} for _ in range(PRIORITY_MAX + 1))
        self._families: dict[Lane, Family] = {}
        #: numbers of forgotten lanes
        self._free: list[int] = []
        self.groups: LimitGroups = LimitGroups(self.lanes, self.block, self.unblock)

    def lane(self, priority: int, key: bytes) -> Lane:
        """Return the lane of a key, created if new.

        ``key``: queue length u8, task length u8, queue, task, then the concurrency key, if any.
        """
        lane = self._by_key[priority].get(key)
        return self._new_lane(priority, bytes(key)) if lane is None else lane

    def close(self, lane: Lane) -> None:
        self.shut(lane)
        lane.clear()

    def open(self, lane: Lane) -> None:
        family = lane.family
        if family is None:
            self.ready[lane.priority][lane] = None
        else:
            family.put(lane)
            self.ready[lane.priority][family] = None

    def shut(self, lane: Lane) -> None:
        family = lane.family
        if family is None:
            self.ready[lane.priority].pop(lane, None)
        else:
            family.drop(lane)
            if not family.ready:
                self.ready[lane.priority].pop(family, None)
                family.clear()

    def block(self, lane: Lane, why: int) -> None:
        lane.blocked |= why
        self.shut(lane)

    def unblock(self, lane: Lane, why: int) -> None:
        """Clear a reason; after the last one, the lane's jobs may be claimed again."""
        lane.blocked &= ~why
        if lane.ready and not lane.blocked:
            self.open(lane)
            self._ages.note_ready(lane.waits_since(self._ages))

    def retire(self, lane: Lane) -> None:
        """Forget an empty lane with a concurrency key, and reuse its number.

        There may be as many keys as jobs.
        """
        if lane.ready or lane.scheduled or lane.running or lane.family is None:
            return
        del self._by_key[lane.priority][lane.key]
        self.shut(lane)
        self.groups.part(lane)
        lanes = self.lanes
        lanes[lane.number] = GONE
        heappush(self._free, lane.number)
        while lanes and lanes[-1] is GONE:
            lanes.pop()
        if len(self._free) > 2 * len(lanes) + _FREE_MAX:
            self._free = [number for number in self._free if number < len(lanes)]
            heapify(self._free)
            # A dict keeps the memory of deleted entries; a copy does not.
            self._by_key = tuple(dict(level) for level in self._by_key)
            self.groups.trim()

    def note_running(self, lane: Lane, count: int) -> None:
        lane.running += count
        if lane.group is not None:
            self.groups.claimed(lane.group, count)

    def apply_paused(self, queue: str) -> None:
        self.paused.add(queue)
        for lane in self.lanes:
            if lane.queue == queue:
                self.block(lane, BLOCKED_BY_PAUSE)

    def apply_resumed(self, queue: str) -> None:
        self.paused.discard(queue)
        for lane in self.lanes:
            if lane.queue == queue:
                self.unblock(lane, BLOCKED_BY_PAUSE)

    def steer(self, task: str, wish: TaskWish) -> None:
        """Pause or resume a task, and apply other limits to it."""
        if wish.paused != (task in self.paused_tasks):
            self.paused_tasks ^= {task}
            change = self.block if wish.paused else self.unblock
            for lane in self.lanes:
                if lane.task == task:
                    change(lane, BLOCKED_BY_TASK)
        self.groups.steer(task, wish if wish.has_limits else None, self._ages.moment)

    def any_ready(self) -> bool:
        return any(self.ready)

    @property
    def is_empty(self) -> bool:
        """Return whether there is no queue yet."""
        return not self.paused and all(lane is GONE for lane in self.lanes)

    def stats(self) -> tuple[QueueStats, ...]:
        queues: dict[str, list[Lane]] = {name: [] for name in self.paused}
        for lane in self.lanes:
            if lane is not GONE:
                queues.setdefault(lane.queue, []).append(lane)
        return tuple(
            _queue_stats(name, queues[name], paused=name in self.paused) for name in sorted(queues)
        )

    def thaw(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            if lane is GONE:
                heappush(self._free, len(self.lanes))
            else:
                self._by_key[lane.priority][lane.key] = lane
            self.lanes.append(lane)
        for lane in self.lanes[:]:
            if lane is not GONE:
                self._admit(lane)
                if lane.ready and not lane.blocked:
                    self.open(lane)

    def _new_lane(self, priority: int, key: bytes) -> Lane:
        number = len(self.lanes)
        while self._free and number == len(self.lanes):
            number = min(heappop(self._free), number)
        lane = Lane(number, key, priority)
        if number == len(self.lanes):
            self.lanes.append(lane)
        else:
            self.lanes[number] = lane
        self._admit(lane)
        if lane.queue in self.paused:
            self.block(lane, BLOCKED_BY_PAUSE)
        if lane.task in self.paused_tasks:
            self.block(lane, BLOCKED_BY_TASK)
        return lane

    def _admit(self, lane: Lane) -> None:
        self._by_key[lane.priority][lane.key] = lane
        names = lane.key[: lane.body_at - 14]
        if len(names) < len(lane.key):
            base = self.lane(lane.priority, names)
            family = self._families.get(base)
            if family is None:
                family = self._families[base] = Family(base)
            lane.family = family
            lane.queue, lane.task = base.queue, base.task  # one string object for all lanes
        self.groups.join(lane)


def _queue_stats(name: str, lanes: list[Lane], *, paused: bool) -> QueueStats:
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
        paused=paused,
    )


#: Keyed lanes of each family that a claim compares once jobs have waited for a window. These lanes
#: have the oldest jobs; in other lanes only returned jobs could have a higher level.
_FRONT_MIN: Final = 64
#: Expired jobs that one batch of claims may skip; an EXPIRED record is written for each.
PASSED_MAX: Final = 1_024


class JobColumns:
    """Claimed jobs as columns: a tuple per job would add a fourth to the cost of a claim."""

    __slots__ = ("attempts", "jobs", "lanes", "locations", "metas")

    def __init__(self) -> None:
        self.jobs: list[int] = []
        self.locations: list[int] = []
        self.attempts: list[int] = []
        self.lanes: list[Lane] = []
        self.metas: list[int] = []

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[tuple[int, int, int, Lane, int]]:
        """Yield (job, location, attempt, lane, meta) of each."""
        return zip(*self._columns(), strict=True)

    def add(self, job: int, location: int, attempt: int, lane: Lane, meta: int) -> None:
        self.jobs.append(job)
        self.locations.append(location)
        self.attempts.append(attempt)
        self.lanes.append(lane)
        self.metas.append(meta)

    def add_run(
        self, jobs: Sequence[int], locations: Sequence[int], attempt: int, lane: Lane, meta: int
    ) -> None:
        count = len(jobs)
        self.jobs += jobs
        self.locations += locations
        self.attempts += [attempt] * count
        self.lanes += [lane] * count
        self.metas += [meta] * count

    def extend(self, other: JobColumns) -> None:
        for column, more in zip(self._columns(), other._columns(), strict=True):
            column.extend(more)

    def _columns(self) -> tuple[list[Any], ...]:
        return self.jobs, self.locations, self.attempts, self.lanes, self.metas


class ClaimOrder:
    """The order in which ready jobs are claimed.

    A job's level is its priority plus one for each starvation window that it has waited, up to 9. A
    lane keeps its fresh jobs by age and the earliest moment of its other jobs, so a claim compares
    only heads and drains lanes level by level. While no job has waited for a whole window, levels
    are priorities; one comparison shows that.

    Attributes:
        passed: expired jobs that a claim skipped. They have left their lanes, so the caller records
        their ends and clears this list.
    """

    def __init__(self, table: JobTable, queues: LaneQueues, ages: Ages, times: Timetable) -> None:
        self._times = times
        self.passed: list[int] = []
        self._table = table
        self._queues = queues
        self._ages = ages
        # Never replaced, and used by every claim.
        self._lanes, self._ready, self._groups = queues.lanes, queues.ready, queues.groups

    def take(
        self, count: int, queues: frozenset[str] | None, tasks: frozenset[str] | None
    ) -> JobColumns:
        """Claim up to ``count`` ready jobs: highest level first, oldest first within a level.

        The jobs are in state running afterwards; the caller records the claims and fills
        ``running``.
        """
        ages = self._ages
        if self._groups.due:
            self._groups.open_due(ages.moment)
        if ages.moment >= ages.aged_at and self._is_any_aged():
            return self._take_aged(count, queues, tasks)
        taken = JobColumns()
        for level in reversed(self._ready):
            if not level:
                continue
            lanes = list(_served(level, queues, tasks))
            if len(lanes) > 1 and self._take_all(lanes, count - len(taken), taken):
                continue
            heads = [(lane.head(), lane.number) for lane in lanes]
            heapify(heads)
            while heads and len(taken) < count and not self.is_full:
                lane = self._lanes[heappop(heads)[1]]
                below = heads[0][0] if heads else NO_JOB
                if lane.group is not None:
                    self._claim_limited(lane, count - len(taken), below, heads, taken)
                    continue
                self._claim(lane, lane.pop(count - len(taken), below), taken)
                if lane.ready and lane.entries:
                    heappush(heads, (lane.head(), lane.number))
            if len(taken) >= count:
                break
        return taken

    def _take_all(self, lanes: list[Lane | Family], count: int, taken: JobColumns) -> bool:
        """Claim all jobs of several lanes without limits at once; False if there are too many.

        Jobs of different lanes alternate, so claiming lane by lane would make runs of a few jobs.
        """
        if self._times.over:
            return False
        alone = [lane for lane in lanes if isinstance(lane, Lane) and lane.group is None]
        if len(alone) < len(lanes) or sum(lane.entries for lane in alone) > count:
            return False
        jobs = sorted(chain.from_iterable(lane.pop(lane.entries, NO_JOB) for lane in alone))
        before = len(taken)
        self._claim_each(jobs, taken)
        claimed = Counter(taken.lanes[before:])
        for lane in alone:
            number = claimed[lane]
            lane.running += number
            lane.ready -= number
            if not lane.ready:
                self._queues.close(lane)
        return True

    @property
    def is_full(self) -> bool:
        """Return whether a claim may have stopped early, after PASSED_MAX expired jobs."""
        return len(self.passed) >= PASSED_MAX

    def has_ready(self, queues: frozenset[str] | None, tasks: frozenset[str] | None) -> bool:
        return any(True for level in self._ready for _ in _served(level, queues, tasks))

    def next_ready(self, count: int, queues: frozenset[str] | None) -> list[int]:
        """Return the next jobs that ``take`` would claim, without claiming them."""
        jobs: list[int] = []
        seen: set[int] = set()
        bounds = self._ages.bounds(self._ages.moment)
        for level in range(PRIORITY_MAX, -1, -1):
            ready: list[int] = []
            for lane in self._served_up_to(level, queues):
                windows = level - lane.priority
                wanted = self._ready_within(lane, bounds, windows)
                fresh = (job for job in wanted if job not in seen)
                ready += islice(fresh, count - len(jobs))
            chosen = sorted(ready)[: count - len(jobs)]
            jobs += chosen
            seen.update(chosen)
            if len(jobs) >= count:
                break
        return jobs

    def back_since(self, job: int) -> int | None:
        """Return the moment of shifted time since when a returned or delayed job is ready.

        None for a fresh job, which waits since its enqueue.
        """
        chunk = self._table.find(job)
        if chunk is None:
            return None
        return self._lanes[chunk.lanes[self._table.index]].back_since(job)

    def level(self, job: int) -> int:
        chunk = self._table.find(job)
        if chunk is None:
            return 0
        priority = self._lanes[chunk.lanes[self._table.index]].priority
        since = self.back_since(job)
        waited = max(self._ages.moment - (self._ages.since(job) if since is None else since), 0)
        window = self._ages.window_ns
        return min(priority + (waited // window if window else 0), PRIORITY_MAX)

    def ahead(self, job: int, lanes: Iterable[Lane], most: int) -> tuple[int, int]:
        """Count the jobs of these lanes that ``take`` would claim first: (higher level, older).

        At most ``most`` jobs of a lane are counted one by one.
        """
        level = self.level(job)
        bounds = self._ages.bounds(self._ages.moment)
        over = Counter(map(self._ready_lane, filter(self._is_over, self._times.over)))
        higher = older = 0
        for lane in lanes:
            windows = level - lane.priority
            if windows < 0:
                higher += lane.ready - over[lane.number]
                continue
            risen: set[int] = set()
            if level < PRIORITY_MAX:
                risen.update(islice(self._ready_within(lane, bounds, windows + 1), most))
                higher += len(risen)
            before = takewhile(lambda other: other < job, self._ready_within(lane, bounds, windows))
            older += sum(1 for other in islice(before, most) if other not in risen)
        return higher, min(older, most)

    def oldest_ready(self) -> dict[str, tuple[int, ...]]:
        """Return one or two candidates per queue for its oldest ready job.

        They are the first fresh job and the first returned job.
        """
        firsts: dict[tuple[str, bool], int] = {}
        for lane in self._lanes:
            if not lane.ready:
                continue
            fresh = filter(self._table.is_fresh, lane.fresh())
            for is_fresh, entries in ((True, fresh), (False, lane.given_back())):
                first = next(entries, NO_JOB)
                place = lane.queue, is_fresh
                firsts[place] = min(firsts.get(place, NO_JOB), first)
        oldest: dict[str, tuple[int, ...]] = {}
        for (queue, _), job in firsts.items():
            if job != NO_JOB:
                oldest[queue] = (*oldest.get(queue, ()), job)
        return oldest

    # -- aged jobs -------------------------------------------------------------------------------

    def _is_any_aged(self) -> bool:
        """Return whether a ready job has waited for a window; if not, postpone the next check."""
        ages = self._ages
        if not ages.window_ns:
            ages.aged_at = NO_JOB
            return False
        oldest = min(
            (lane.waits_since(ages) for level in self._ready[:PRIORITY_MAX] for lane in level),
            default=NO_JOB,
        )
        return ages.note_oldest(oldest)

    def _take_aged(
        self, count: int, queues: frozenset[str] | None, tasks: frozenset[str] | None
    ) -> JobColumns:
        taken = JobColumns()
        bounds = self._ages.bounds(self._ages.moment)
        levels = self._by_level(count, bounds, queues, tasks)
        for level in range(PRIORITY_MAX, -1, -1):
            heads = [
                (lane.head_within(*_bound(lane, bounds, level)), lane.number)
                for lane in levels[level]
                if lane.ready and not lane.blocked
            ]
            heapify(heads)
            while heads and len(taken) < count and not self.is_full:
                lane = self._lanes[heappop(heads)[1]]
                below = heads[0][0] if heads else NO_JOB
                bound = _bound(lane, bounds, level)
                most = self._most(lane, count - len(taken))
                if not most:
                    continue  # its group is at its limit by now
                self._claim(lane, lane.pop_within(most, below, *bound), taken)
                if not (lane.ready and lane.entries) or lane.blocked:
                    continue
                head = lane.head_within(*bound)
                if head != NO_JOB:
                    heappush(heads, (head, lane.number))
                else:
                    levels[_top(lane, bounds)].append(lane)
            if len(taken) >= count:
                break
        return taken

    def _by_level(
        self,
        count: int,
        bounds: Bounds,
        queues: frozenset[str] | None,
        tasks: frozenset[str] | None,
    ) -> list[list[Lane]]:
        """Return the lanes that a claim of ``count`` jobs compares, by their highest level."""
        levels: list[list[Lane]] = [[] for _ in range(PRIORITY_MAX + 1)]
        for ready in self._ready:
            for top in _served(ready, queues, tasks):
                for lane in (top,) if isinstance(top, Lane) else top.front(max(count, _FRONT_MIN)):
                    levels[_top(lane, bounds)].append(lane)
        return levels

    # -- inside -----------------------------------------------------------------------------------

    def _claim(self, lane: Lane, jobs: list[int], taken: JobColumns) -> None:
        if self._times.over:
            jobs = self._pass_over(jobs)
        number = len(taken)
        self._claim_each(islice(jobs, self._claim_runs(lane, jobs, taken), None), taken)
        number = len(taken) - number
        lane.running += number
        lane.ready -= number
        if not lane.ready:
            self._queues.close(lane)
        if lane.group is not None:
            if number:
                self._groups.took(lane.group, self._ages.moment, number)
            if lane.family is not None and lane.ready and not lane.blocked:
                self._queues.open(lane)  # again, by the job that is now at its head

    def _claim_each(self, jobs: Iterable[int], taken: JobColumns) -> None:
        find, table, lanes = self._table.find, self._table, self._lanes
        for job in jobs:
            chunk = find(job)
            if chunk is None:
                continue
            index = table.index
            meta, lane = chunk.metas[index], lanes[chunk.lanes[index]]
            if meta & FRESH_MASK != READY and (
                meta & STATE_MASK != READY or lane.back_since(job) is not None
            ):
                continue  # a stale entry; the job may be ready at another place
            if meta & ATTEMPT_MASK != ATTEMPT_MASK:
                meta += ATTEMPT_UNIT
            meta = (meta & ~STATE_MASK) | RUNNING
            chunk.metas[index] = meta
            attempt = (meta & ATTEMPT_MASK) >> ATTEMPT_SHIFT
            taken.add(job, chunk.locations[index], attempt, lane, meta)

    def _pass_over(self, jobs: list[int]) -> list[int]:
        left: list[int] = []
        for job in jobs:
            (self.passed if self._is_over(job) else left).append(job)
        return left

    def _is_over(self, job: int) -> bool:
        chunk = self._table.find(job) if job in self._times.over else None
        # A requeued dead letter has lost the expiry of its first life.
        return chunk is not None and bool(chunk.metas[self._table.index] & META_EXPIRES)

    def _ready_lane(self, job: int) -> int:
        """Return the number of the lane in which a job is ready, or -1."""
        chunk, index = self._table.find(job), self._table.index
        if chunk is None or chunk.metas[index] & STATE_MASK != READY:
            return -1
        return chunk.lanes[index]

    def _claim_runs(self, lane: Lane, jobs: list[int], taken: JobColumns) -> int:
        """Claim leading runs of jobs with adjacent rows; return the number of jobs handled."""
        at = 0
        while len(jobs) - at >= RUN_MIN:
            run = self._table.find_run(jobs, at)
            if run is None:
                break
            chunk, start, count = run
            meta = chunk.metas[start]
            if count < RUN_MIN or meta & FRESH_MASK != READY:
                break
            if meta & ATTEMPT_MASK != ATTEMPT_MASK:
                meta += ATTEMPT_UNIT
            meta = (meta & ~STATE_MASK) | RUNNING
            attempt = (meta & ATTEMPT_MASK) >> ATTEMPT_SHIFT
            end = start + count
            chunk.metas[start:end] = array("I", (meta,)) * count
            taken.add_run(jobs[at : at + count], chunk.locations[start:end], attempt, lane, meta)
            at += count
        return at

    def _claim_limited(
        self,
        lane: Lane,
        count: int,
        below: int,
        heads: list[tuple[int, int]],
        taken: JobColumns,
    ) -> None:
        """Claim from a lane with a group. A family has one entry among the heads."""
        family = lane.family
        most = self._most(lane, count)
        if most:  # 0: its group is at its limit by now
            if family is not None:
                family.drop(lane)
                below = min(below, family.head())
            self._claim(lane, lane.pop(most, below), taken)
        if family is None:
            if lane.ready and lane.entries and not lane.blocked:
                heappush(heads, (lane.head(), lane.number))
        elif (head := family.head()) != NO_JOB:
            heappush(heads, (head, family.number))
        else:
            self._queues.shut(lane)

    def _most(self, lane: Lane, count: int) -> int:
        group = lane.group
        if group is None or lane.blocked:
            return 0 if lane.blocked else count
        room = group.room(self._ages.moment)
        if not room:  # its lanes should be closed
            self._groups.judge(group, self._ages.moment)
        return min(count, room)

    def _served_up_to(self, level: int, queues: frozenset[str] | None) -> Iterator[Lane]:
        for ready in self._ready[: level + 1]:
            for top in _served(ready, queues, None):
                if isinstance(top, Lane):
                    yield top
                else:
                    yield from top.ready

    def _ready_within(self, lane: Lane, bounds: Bounds, windows: int) -> Iterator[int]:
        fresh_below = bounds.fresh[windows]
        fresh = takewhile(lambda job: job < fresh_below, lane.fresh())
        jobs = merge(filter(self._table.is_fresh, fresh), lane.given_back(bounds.back[windows]))
        return filterfalse(self._is_over, jobs) if self._times.over else jobs


def _served(
    lanes: Iterable[Lane | Family], queues: frozenset[str] | None, tasks: frozenset[str] | None
) -> Iterator[Lane | Family]:
    return (
        lane
        for lane in lanes
        if (queues is None or lane.queue in queues) and (tasks is None or lane.task in tasks)
    )


def _bound(lane: Lane, bounds: Bounds, level: int) -> tuple[int, int]:
    """Return the bounds (fresh id, moment) of the lane's jobs that have reached this level."""
    windows = level - lane.priority
    return bounds.fresh[windows], bounds.back[windows]


def _top(lane: Lane, bounds: Bounds) -> int:
    level = lane.priority
    while level < PRIORITY_MAX and lane.has_within(*_bound(lane, bounds, level + 1)):
        level += 1
    return level


# Weights of queues, so that no queue starves another.
#
# Deficit round robin: each queue in turn gets as many claims as its weight. The next claim finishes
# an incomplete turn. A queue without jobs loses its turn. Priority and age decide only within a
# queue.

WEIGHT_MAX: Final = 1_000
#: Most rounds of one claim; for a claim of many jobs, a turn is a multiple of the weight.
_ROUNDS: Final = 4


class Weights:
    """Turns of one worker's queues. Used by one thread.

    Args:
        shares: name of each queue and its weight, 1 to WEIGHT_MAX.

    Raises:
        UsageError: a weight is out of range.
    """

    def __init__(self, shares: Mapping[str, int]) -> None:
        self._turns: list[tuple[frozenset[str], int]] = []
        for queue, share in shares.items():
            weight = self.checked(share, f"the weight of queue {queue!r}")
            self._turns.append((frozenset({queue}), weight))
        self._total = sum(weight for _, weight in self._turns)
        self._turn = -1
        self._left = 0

    @staticmethod
    def checked(weight: object, name: str) -> int:
        """Return the weight of a queue or of a log.

        Raises:
            UsageError: the weight is out of range.
        """
        number = whole(weight, name)
        if not 1 <= number <= WEIGHT_MAX:
            raise UsageError(f"{name} is {number}, it must be 1 to {WEIGHT_MAX}")
        return number

    def take(
        self,
        order: ClaimOrder,
        count: int,
        queues: frozenset[str] | None,
        tasks: frozenset[str] | None,
    ) -> JobColumns:
        """Claim like ``ClaimOrder.take``, shared among the queues by weight."""
        taken = JobColumns()
        factor = max(count // (self._total * _ROUNDS), 1)
        if self._left:  # perhaps left by a larger claim
            self._left = min(self._left, self._turns[self._turn][1] * factor)
        empty = 0
        while len(taken) < count and empty < len(self._turns):
            if not self._left:
                self._turn = (self._turn + 1) % len(self._turns)
                self._left = self._turns[self._turn][1] * factor
            wanted = min(self._left, count - len(taken))
            queue = self._turns[self._turn][0]
            is_open = queues is None or queue <= queues
            jobs = order.take(wanted, queue, tasks) if is_open else JobColumns()
            taken.extend(jobs)
            self._left = self._left - wanted if len(jobs) == wanted else 0
            empty = 0 if jobs else empty + 1
        return taken
