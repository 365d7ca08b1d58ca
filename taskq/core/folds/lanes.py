"""Lanes: ready jobs of one (queue, priority, task) and key, oldest first, 8 bytes each."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import chain, islice
from itertools import count as counting
from typing import Final

from taskq.core.controls import TaskWish
from taskq.core.folds.moments import LATEST, NO_JOB, Ages, Returned
from taskq.core.rates import Limit, Times

_BLOCK: Final = 1_024
#: Reason of a blocked lane: its queue is paused.
BLOCKED_BY_PAUSE: Final = 1
#: Reason of a blocked lane: its task is paused.
BLOCKED_BY_TASK: Final = 2
_NO_LIMIT: Final = 2**62
#: Shared by lanes without returned jobs, always empty.
_NONE: Final = Returned()


class Lane:
    """Ready jobs in claim order, and the counts of all jobs that ever were in this lane.

    Fresh jobs arrive in the order of their ids and go to plain blocks. Returned and delayed jobs go
    to a small structure sorted by id, with the moment since when each is ready. A fresh job that
    left the ready state may remain as a stale entry, which claims skip. When most entries are
    stale, they are swept one block at a time: a million at once would hold the writer lock for a
    second.

    Attributes:
        number: index in the agenda's list of lanes.
        entries: ids that ``pop`` would return, including stale ones.
        ready: jobs that may be claimed now (stale entries not counted).
        left: number of ready jobs that left without ``pop``.
        body_at: offset of the payload in the plain enqueue records of this lane.
        key: (queue length u8, task length u8, queue, task) as in the log, then the concurrency key.
        family: the lanes that differ only in their concurrency key; None without a key.
        group: limit of its jobs; None without a limit.
        blocked: reasons to keep it out of the ready set, bits of ``BLOCKED_…``; 0 for none.
    """

    __slots__ = (
        "_back", "_blocks", "_head", "_swept", "blocked", "body_at", "cancelled", "dead", "entries",
        "expired", "family", "group", "key", "left", "number", "priority", "queue", "ready",
        "running", "scheduled", "succeeded", "task",
    )  # fmt: skip

    def __init__(self, number: int, key: bytes, priority: int) -> None:
        split = 2 + key[0]
        self.number: int = number
        self.key: bytes = key
        self.queue: str = key[2:split].decode("utf-8", "replace")
        self.task: str = key[split : split + key[1]].decode("utf-8", "replace")
        self.priority: int = priority
        self.blocked: int = 0
        self.body_at: int = 16 + key[0] + key[1]
        self.entries: int = 0
        self.left: int = 0
        self.ready: int = 0
        self.scheduled: int = 0
        self.running: int = 0
        self.succeeded: int = 0
        self.dead: int = 0
        self.cancelled: int = 0
        self.expired: int = 0
        self.family: Family | None = None
        self.group: LimitGroup | None = None
        # A list: even an empty deque is larger than the rest of a lane.
        self._blocks: list[array[int]] = []
        self._head = self._swept = 0
        self._back = _NONE

    @property
    def concurrency_key(self) -> bytes:
        """Return the concurrency key of its jobs; b"" without one."""
        return self.key[2 + self.key[0] + self.key[1] :]

    @property
    def home(self) -> Lane:
        """Lane with the totals of its settled jobs, and its dead letters."""
        return self if self.family is None else self.family.base

    def push(self, job: int) -> None:
        """Append a job that is younger than all others."""
        blocks = self._blocks
        if not blocks or len(blocks[-1]) >= _BLOCK:
            blocks.append(array("Q"))
        blocks[-1].append(job)
        self.entries += 1

    def push_run(self, first: int, count: int) -> None:
        """Append the jobs ``first``, ``first + 1``, … ``first + count - 1``."""
        blocks = self._blocks
        self.entries += count
        end = first + count
        while first < end:
            if not blocks or len(blocks[-1]) >= _BLOCK:
                blocks.append(array("Q"))
            block = blocks[-1]
            following = min(end, first + _BLOCK - len(block))
            block.extend(range(first, following))
            first = following

    def give_back(self, job: int, moment: int) -> None:
        """Insert a job at the place of its id; it is ready since ``moment``."""
        if self._back is _NONE:
            self._back = Returned()
        self.entries += self._back.put(job, moment)

    def give_back_run(self, jobs: list[int], moments: list[int]) -> None:
        """Do as ``give_back`` for jobs with rising ids."""
        if self._back is _NONE:
            self._back = Returned()
        self.entries += self._back.put_run(jobs, moments)

    def leave(self, job: int, is_ready: Callable[[int], bool]) -> None:
        """Drop the entry of a job that left the ready state, if only stale entries precede it."""
        if self._back.size and self._back.discard(job):
            self.entries -= 1
            return
        while (head := self._fresh_head()) <= job:
            if head != job and is_ready(head):
                return
            self._drop_head()
            if head == job:
                return

    def discard(self, job: int) -> None:
        """Drop the fresh entry, stale or not, of a job that moves to another lane.

        Claims take the lowest id at the head of any lane, so no id may be in two lanes.
        """
        blocks = self._blocks
        number = max(bisect_right(blocks, job, key=_first) - 1, 0)
        if not blocks:
            return
        block, head = blocks[number], self._head if not number else 0
        at = bisect_left(block, job, head)
        if at == len(block) or block[at] != job:
            return
        del block[at]
        self.entries -= 1
        if len(block) == head:
            del blocks[number]
            self._head = self._head if number else 0

    def leave_run(self, jobs: list[int]) -> bool:
        """Drop the entries of these jobs if they come first; False if others are among them."""
        if self._back.size:
            return False
        done, head = 0, self._head
        for block in self._blocks:
            part = block[head : head + len(jobs) - done].tolist()
            if part != jobs[done : done + len(part)]:
                return False
            done += len(part)
            head = 0
            if done == len(jobs):
                self.entries -= len(self._pop_fresh(done, NO_JOB))
                return True
        return False

    def head(self) -> int:
        """Return the first id, stale or not; NO_JOB if the lane is empty."""
        back = self._back.first_key()
        fresh = self._fresh_head()
        return fresh if back is None or fresh < back else back

    def head_within(self, fresh_below: int, back_until: int) -> int:
        """Return the first id among jobs within these bounds; see ``Bounds``."""
        fresh = self._fresh_head()
        back = next(self._back.within(back_until), NO_JOB)
        return min(fresh if fresh < fresh_below else NO_JOB, back)

    def has_within(self, fresh_below: int, back_until: int) -> bool:
        """Return whether any job is within these bounds."""
        if self._fresh_head() < fresh_below:
            return True
        low = self._back.low() if self._back.size else None
        return low is not None and low <= back_until

    def waits_since(self, ages: Ages) -> int:
        """Return the moment since when the oldest ready job waits, or an earlier moment."""
        fresh = self._fresh_head()
        moment = NO_JOB if fresh == NO_JOB else ages.since(fresh)
        low = self._back.low() if self._back.size else None
        return moment if low is None or moment < low else low

    def pop(self, count: int, below: int) -> list[int]:
        """Remove and return up to ``count`` ids below ``below``, in order, including stale ids."""
        popped: list[int] = []
        back = self._back
        while len(popped) < count:
            given = back.first_key() if back.size else NO_JOB
            limit = below if given is None or given >= below else given
            popped += self._pop_fresh(count - len(popped), limit)
            if len(popped) == count or limit == below:
                break
            popped += back.pop_ids(min(self._fresh_head(), below - 1), count - len(popped))
        self.entries -= len(popped)
        return popped

    def pop_within(self, count: int, below: int, fresh_below: int, back_until: int) -> list[int]:
        """Pop only jobs within these bounds; see ``Bounds``."""
        popped: list[int] = []
        back = self._back
        while len(popped) < count:
            given = next(back.within(back_until), NO_JOB)
            popped += self._pop_fresh(count - len(popped), min(below, fresh_below, given))
            if len(popped) == count or given >= below:
                break
            fresh = self._fresh_head()
            last = min(fresh if fresh < fresh_below else NO_JOB, below - 1)
            popped += back.pop_within(back_until, last, count - len(popped))
        self.entries -= len(popped)
        return popped

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ids that ``pop`` would return, without removing them."""
        return merge(self.fresh(), self._back.ids())

    def back_since(self, job: int) -> int | None:
        """Return since when a returned job is ready; None for other jobs."""
        return self._back.since(job)

    def fresh(self) -> Iterator[int]:
        """Iterate over the ids of fresh jobs, including stale entries."""
        return islice(chain.from_iterable(self._blocks), self._head, None)

    def given_back(self, until: int = LATEST) -> Iterator[int]:
        """Iterate over the ids of returned jobs that are ready since ``until`` or longer."""
        return self._back.within(until)

    def clear(self) -> None:
        """Drop all entries, which are stale since no job is ready."""
        if self.entries:
            self.entries = self._head = 0
            self._blocks.clear()
            if self._back.size:
                self._back = _NONE

    def sweep(self, is_ready: Callable[[int], bool]) -> None:
        """Drop the stale entries of the next block, in rotation."""
        blocks, number = self._blocks, self._swept
        if number >= len(blocks):
            number = self._swept = 0
        if not blocks:
            return
        block = blocks[number]
        head = 0 if number else self._head
        kept = array("Q", filter(is_ready, block[head:]))
        self.entries -= len(block) - head - len(kept)
        if not number:
            self._head = 0
        if number and len(blocks[number - 1]) + len(kept) <= _BLOCK:
            blocks[number - 1].extend(kept)
            del blocks[number]
        elif kept:
            blocks[number] = kept
            self._swept = number + 1
        else:
            del blocks[number]

    def _fresh_head(self) -> int:
        return self._blocks[0][self._head] if self._blocks else NO_JOB

    def _drop_head(self) -> None:
        self.entries -= 1
        self._head += 1
        if self._head == len(self._blocks[0]):
            del self._blocks[0]
            self._head = 0

    def _pop_fresh(self, count: int, below: int) -> list[int]:
        popped: list[int] = []
        blocks = self._blocks
        while blocks and count:
            block = blocks[0]
            head = self._head
            end = min(len(block), head + count)
            if block[end - 1] >= below:
                end = bisect_left(block, below, head, end)
            popped += block[head:end]
            count -= end - head
            self._head = end
            if end < len(block):
                break
            # The block is empty: the next push opens another.
            del blocks[0]
            self._head = 0
        return popped


class LimitGroup:
    """Jobs and claims under one limit.

    Attributes:
        key: name of the task, and the concurrency key, b"" for none.
        lanes: lanes with its jobs.
        limit: None until a claimer of this process declares it.
        running: number of its running jobs.
        blocked: reasons why its lanes are blocked, as bits.
        times: times of its claims, if they have a rate.
    """

    __slots__ = ("blocked", "key", "lanes", "limit", "running", "times")

    def __init__(self, key: tuple[str, bytes], limit: Limit | None) -> None:
        self.key: tuple[str, bytes] = key
        self.lanes: list[Lane] = []
        self.limit: Limit | None = limit
        self.running: int = 0
        self.blocked: int = 0
        self.times: Times | None = None

    def room(self, moment: int) -> int:
        limit = self.limit
        if limit is None:
            return _NO_LIMIT
        room = limit.concurrency - self.running if limit.concurrency else _NO_LIMIT
        if limit.rate is not None:
            free = limit.rate.count
            room = min(room, free if self.times is None else self.times.room(moment, limit.rate))
        return max(room, 0)


def _first(block: array[int]) -> int:
    return block[0]


# Families: lanes that differ only in their concurrency key.
#
# There may be a hundred thousand of them with a job each. So a family is one entry of the ready
# set, and finds the lane with the oldest job. A claim visits only the lanes that it takes jobs
# from.

#: Outdated heap entries before a rebuild.
_STALE_MAX: Final = 64


class Family:
    """The keyed lanes of one (queue, priority, task).

    Attributes:
        base: the lane of jobs without a key, with the totals of all.
        ready: its lanes with jobs to claim, each with the id of its heap entry.
        number: number of the lane that ``head`` found.
    """

    __slots__ = ("_heap", "_order", "_top", "base", "priority", "queue", "ready", "task")

    def __init__(self, base: Lane) -> None:
        self.base: Lane = base
        self.queue: str = base.queue
        self.task: str = base.task
        self.priority: int = base.priority
        self.ready: dict[Lane, int] = {}
        #: (id at the lane's head, a number that breaks ties, lane)
        self._heap: list[tuple[int, int, Lane]] = []
        self._order = counting()
        self._top = base

    @property
    def number(self) -> int:
        return self._top.number

    def put(self, lane: Lane) -> None:
        head = lane.head()
        if self.ready.get(lane) == head:
            return
        self.ready[lane] = head
        heap = self._heap
        heappush(heap, (head, next(self._order), lane))
        if len(heap) > 2 * len(self.ready) + _STALE_MAX:
            heap[:] = [(head, next(self._order), lane) for lane, head in self.ready.items()]
            heapify(heap)

    def drop(self, lane: Lane) -> None:
        self.ready.pop(lane, None)

    def clear(self) -> None:
        """Free the memory when no lane has jobs."""
        self.ready.clear()
        self._heap.clear()

    def head(self) -> int:
        """Return the lowest id at the head of any lane, and set ``number`` to its lane."""
        heap, ready = self._heap, self.ready
        while heap:
            head, _, lane = heap[0]
            if ready.get(lane) != head:
                heappop(heap)
                continue
            now = lane.head()
            if now == head:
                self._top = lane
                return head
            ready[lane] = now
            heapreplace(heap, (now, next(self._order), lane))
        return NO_JOB

    def waits_since(self, ages: Ages) -> int:
        """Return the moment since when the oldest ready job waits, or an earlier moment."""
        head = self.head()
        if head == NO_JOB:
            return NO_JOB
        # No job waits since before the enqueue of the lowest id. If that enqueue is long ago, its
        # job may have run meanwhile, and jobs of other lanes wait since before its return.
        earliest = ages.since(head)
        if earliest + ages.window_ns > ages.moment:
            return earliest
        return min(lane.waits_since(ages) for lane in self.ready)

    def front(self, most: int) -> list[Lane]:
        if len(self.ready) <= most:
            return list(self.ready)
        lanes: list[Lane] = []
        while len(lanes) < most and self.head() != NO_JOB:
            lanes.append(self._top)
            self.drop(self._top)
        for lane in lanes:
            self.put(lane)
        return lanes


#: Reason of a blocked lane: its group has reached its concurrency or its rate.
BLOCKED_BY_CONCURRENCY: Final = 4
BLOCKED_BY_RATE: Final = 8
_UNLIMITED: Final = Limit()
#: Groups with claim times that each claim checks for expired times.
_SWEPT: Final = 2


class LimitGroups:
    """Groups of keyed lanes, and of tasks with a limit in this process.

    Args:
        lanes: all lanes by number; the list grows.
        block: blocks a lane for a reason of ``BLOCKED_…``.
        unblock: clears that reason.

    Attributes:
        due: (moment, …, group) of groups that wait for their rate, earliest first.
        freed: groups with new room since the last call of ``is_freed``.
        limits: of tasks, as claimers declare them, with operators' wishes applied.
        wishes: limits of operators by task.
    """

    def __init__(
        self,
        lanes: list[Lane],
        block: Callable[[Lane, int], None],
        unblock: Callable[[Lane, int], None],
    ) -> None:
        self._lanes = lanes
        self._block_lane = block
        self._unblock_lane = unblock
        self.limits: dict[str, Limit] = {}
        self._declared: dict[str, Limit] = {}
        self._latest: Mapping[str, Limit] | None = None
        self.wishes: dict[str, TaskWish] = {}
        self._groups: dict[tuple[str, bytes], LimitGroup] = {}
        self._rated: dict[LimitGroup, None] = {}
        self._order = counting()
        self.due: list[tuple[int, int, LimitGroup]] = []
        self.freed: dict[LimitGroup, None] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, task: str, key: bytes) -> LimitGroup | None:
        limit = self.limits.get(task)
        return self._groups.get(((limit.scope if limit else "") or task, key))

    def declare(self, limits: Mapping[str, Limit], moment: int) -> None:
        """Apply the limits of a claimer, by task name; the same mapping again costs nothing."""
        if limits is self._latest:
            return
        self._latest = limits
        self._declared.update(limits)
        self._take(self.steered(limits), moment)

    def steer(self, task: str, wish: TaskWish | None, moment: int) -> None:
        """Set operators' limits of a task, before its claimers' limits; None removes them."""
        if wish is None and task not in self.wishes:
            return
        if wish is None:
            del self.wishes[task]
        else:
            self.wishes[task] = wish
        limits = {task: self._declared.get(task, _UNLIMITED)}
        limits |= {name: it for name, it in self._declared.items() if it.scope == task}
        self._take(self.steered(limits), moment)

    def steered(self, limits: Mapping[str, Limit]) -> Mapping[str, Limit]:
        """Return the limits by task, with operators' wishes applied."""
        if not self.wishes:
            return limits
        steered = dict(limits)
        for task, limit in limits.items():
            wish = self.wishes.get(task) or self.wishes.get(limit.scope)
            if wish is not None:
                steered[task] = wish.over(limit)
        return steered

    def _take(self, limits: Mapping[str, Limit], moment: int) -> None:
        news = {task for task, limit in limits.items() if self.limits.get(task) != limit}
        if not news:
            return
        self.limits.update(limits)
        for lane in self._lanes:
            if lane.task in news:
                self.join(lane)
        for group in list(self._groups.values()):
            limit = limits.get(group.key[0])
            if limit is not None:
                group.limit = limit
                if limit.scope not in ("", group.key[0]):  # the groups moved to another name
                    self._join_times(group, self._group((limit.scope, group.key[1]), limit))
        for group in self._groups.values():
            self.judge(group, moment)

    def join(self, lane: Lane, *, rated: bool = False) -> None:
        limit = self.limits.get(lane.task)
        if limit is None and lane.family is None and not rated:
            return
        key = ((limit.scope if limit else "") or lane.task, lane.concurrency_key)
        group = self._group(key, limit)
        old = lane.group
        if old is group:
            return
        if old is not None:
            self._join_times(old, group)
            self.part(lane)
            self._unblock_lane(lane, old.blocked)
        lane.group = group
        group.lanes.append(lane)
        group.running += lane.running
        if group.blocked:
            self._block_lane(lane, group.blocked)

    def trim(self) -> None:
        self._groups = dict(self._groups)
        self._rated = dict(self._rated)

    def part(self, lane: Lane) -> None:
        group = lane.group
        if group is not None:
            lane.group = None
            group.lanes.remove(lane)
            group.running -= lane.running
            self._drop_if_idle(group)

    # -- events ----------------------------------------------------------------------------------

    def claimed(self, group: LimitGroup, count: int) -> None:
        """Count ``count`` more running jobs of the group."""
        group.running += count
        limit = group.limit
        if limit is not None and 0 < limit.concurrency <= group.running:
            self._block(group, BLOCKED_BY_CONCURRENCY)

    def left(self, group: LimitGroup) -> None:
        group.running -= 1
        if group.blocked & BLOCKED_BY_CONCURRENCY:
            limit = group.limit
            if limit is None or group.running < limit.concurrency:
                self._unblock(group, BLOCKED_BY_CONCURRENCY)
                self.freed[group] = None

    def rated(self, group: LimitGroup, moment: int, count: int, most: int, window_ns: int) -> None:
        """Count ``count`` claims made now against a rate of ``most`` in ``window_ns``."""
        if group.times is None:
            group.times = Times()
        group.times.add(moment, count, most, window_ns)
        self._rated[group] = None
        self._judge_rate(group, moment)
        for old in list(islice(self._rated, _SWEPT)):
            del self._rated[old]
            if old.times is not None:
                old.times.forget(moment)
                if old.times.total:
                    self._rated[old] = None  # back to the end
                    continue
            old.times = None
            self._drop_if_idle(old)

    def took(self, group: LimitGroup, moment: int, count: int) -> None:
        self.claimed(group, count)
        limit = group.limit
        if limit is not None and limit.rate is not None:
            self.rated(group, moment, count, limit.rate.count, limit.rate.window_ns)

    def open_due(self, moment: int) -> None:
        """Unblock the groups whose rate allows a claim now."""
        due = self.due
        while due and due[0][0] <= moment:
            group = heappop(due)[2]
            self._unblock(group, BLOCKED_BY_RATE)
            self._judge_rate(group, moment)

    def is_freed(self) -> bool:
        """Return whether a full group got room and has a job for it, and reset the answer."""
        freed, self.freed = self.freed, {}
        return any(lane.ready and not lane.blocked for group in freed for lane in group.lanes)

    # -- claim times -----------------------------------------------------------------------------

    def rows(self, moment: int) -> Iterator[tuple[tuple[str, bytes], Times]]:
        for group in self._rated:
            times = self.times(group.key, moment)
            if times is not None:
                yield group.key, times

    def times(self, key: tuple[str, bytes], moment: int) -> Times | None:
        """Return the times of a group's claims that still count; None if no claim counts."""
        group = self._groups.get(key)
        times = None if group is None else group.times
        if times is not None:
            times.forget(moment)
        return times if times is not None and times.total else None

    def restore(self, key: tuple[str, bytes], times: Times, moment: int) -> None:
        limit = self.limits.get(key[0])
        group = self._group(((limit.scope if limit else "") or key[0], key[1]), limit)
        if group.times is None:
            group.times = times
        else:
            # Unite the times: claims under another name of the task may count, too.
            group.times.unite(times)
        self._rated[group] = None
        self._judge_rate(group, moment)

    # -- inside -----------------------------------------------------------------------------------

    def _group(self, key: tuple[str, bytes], limit: Limit | None) -> LimitGroup:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = LimitGroup(key, limit)
        elif limit is not None:
            group.limit = limit
        return group

    def _join_times(self, old: LimitGroup, group: LimitGroup) -> None:
        times, old.times = old.times, None
        self._rated.pop(old, None)
        if times is not None:
            if group.times is None:
                group.times = times
            else:
                group.times.unite(times, is_apart=True)
            self._rated[group] = None
        self._drop_if_idle(old)

    def judge(self, group: LimitGroup, moment: int) -> None:
        limit = group.limit
        full = limit is not None and 0 < limit.concurrency <= group.running
        (self._block if full else self._unblock)(group, BLOCKED_BY_CONCURRENCY)
        self._unblock(group, BLOCKED_BY_RATE)
        self._judge_rate(group, moment)

    def _judge_rate(self, group: LimitGroup, moment: int) -> None:
        limit, times = group.limit, group.times
        if limit is None or limit.rate is None or times is None:
            return
        if group.blocked & BLOCKED_BY_RATE or times.room(moment, limit.rate):
            return
        due = max(times.free_at(moment, limit.rate), moment + limit.rate.patience_ns)
        heappush(self.due, (due, next(self._order), group))
        self._block(group, BLOCKED_BY_RATE)
        if len(self.due) > 2 * len(self._groups) + _STALE_MAX:
            # A group with a changed limit has several entries; the last one counts.
            entries = sorted(self.due, key=lambda entry: entry[1])
            last = {entry[2]: entry for entry in entries if entry[2].times and entry[2].blocked}
            self.due[:] = sorted(last.values())

    def _block(self, group: LimitGroup, why: int) -> None:
        if not group.blocked & why:
            group.blocked |= why
            for lane in group.lanes:
                self._block_lane(lane, why)

    def _unblock(self, group: LimitGroup, why: int) -> None:
        if group.blocked & why:
            group.blocked &= ~why
            for lane in group.lanes:
                self._unblock_lane(lane, why)

    def _drop_if_idle(self, group: LimitGroup) -> None:
        if not group.lanes and group.times is None and self._groups.get(group.key) is group:
            del self._groups[group.key]
            self.freed.pop(group, None)


def pack_group(key: tuple[str, bytes]) -> bytes:
    task = key[0].encode("utf-8", "surrogatepass")
    return bytes((len(task),)) + task + key[1]


def unpack_group(packed: bytes) -> tuple[str, bytes]:
    if not packed or len(packed) <= packed[0]:
        raise ValueError(f"{packed!r:.60} names no group")
    end = 1 + packed[0]
    return packed[1:end].decode("utf-8", "replace"), packed[end:]
