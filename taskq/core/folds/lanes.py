"""A lane: the ready jobs of one (queue, priority, task) and key, oldest first, 8 bytes each.

Fresh jobs arrive in the order of their ids and go to plain blocks; given-back ones and those whose
time has come keep their place by id through a small sorted structure beside the blocks, which knows
since when each is ready. A fresh job that left the ready state may stay behind as a stale entry,
and is passed over when it is reached. Where stale entries prevail they are swept out, a block at a
time: a million at once would hold the writer lock for a second.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Final

from taskq.core.folds.blocks import LATEST, NO_JOB, Returned

if TYPE_CHECKING:
    from taskq.core.folds.moments import Ages
    from taskq.core.rates import Limit, Times

_BLOCK: Final = 1_024
#: Why a lane is blocked.
BLOCKED_BY_PAUSE: Final = 1
_NO_LIMIT: Final = 2**62
#: Of lanes to which no job was ever given back; nothing is put into it.
_NONE: Final = Returned()


class Lane:
    """Ready jobs in claim order, and the counts of all jobs that ever belonged here.

    Attributes:
        number: index in the agenda's list of lanes.
        entries: ids that ``pop`` would return, stale ones among them.
        ready: jobs that may be claimed now (stale entries not counted).
        left: how often a job was taken from among the ready ones without ``pop``.
        body_at: where the payload starts in the plain enqueue records of this lane.
        key: (queue length u8, task length u8, queue, task), as the log has them, and then the
            concurrency key.
        family: the lanes that differ in their concurrency key alone; None for one without a key.
        group: what limits its jobs; None if nothing does.
        blocked: why it is taken out of the ready set, bits of ``BLOCKED_…``; 0 when it is not.
    """

    __slots__ = (
        "_back",
        "_blocks",
        "_head",
        "_swept",
        "blocked",
        "body_at",
        "cancelled",
        "dead",
        "entries",
        "expired",
        "family",
        "group",
        "key",
        "left",
        "number",
        "priority",
        "queue",
        "ready",
        "running",
        "scheduled",
        "succeeded",
        "task",
    )

    def __init__(self, number: int, key: bytes, priority: int) -> None:
        split = 2 + key[0]
        self.number = number
        self.key = key
        self.queue = key[2:split].decode("utf-8", "replace")
        self.task = key[split : split + key[1]].decode("utf-8", "replace")
        self.priority = priority
        self.blocked = 0
        self.body_at = 16 + key[0] + key[1]
        self.entries = self.left = 0
        self.ready = self.scheduled = self.running = 0
        self.succeeded = self.dead = self.cancelled = self.expired = 0
        self.family: Family | None = None
        self.group: Group | None = None
        # A list: an empty deque takes more than all the rest of a lane.
        self._blocks: list[array[int]] = []
        self._head = self._swept = 0
        self._back = _NONE

    @property
    def concurrency_key(self) -> bytes:
        """Return what its jobs share besides queue, priority and task; b"" for nothing."""
        return self.key[2 + self.key[0] + self.key[1] :]

    @property
    def home(self) -> Lane:
        """The lane that has the totals of its settled jobs, and its dead letters."""
        return self if self.family is None else self.family.base

    def push(self, job: int) -> None:
        """Append a job that is younger than all before."""
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
        """Put a job in at the place of its id; it is ready since ``moment``."""
        if self._back is _NONE:
            self._back = Returned()
        self.entries += self._back.put(job, moment)

    def give_back_run(self, jobs: list[int], moments: list[int]) -> None:
        """Do as ``give_back`` for jobs of rising ids."""
        if self._back is _NONE:
            self._back = Returned()
        self.entries += self._back.put_run(jobs, moments)

    def leave(self, job: int, is_ready: Callable[[int], bool]) -> None:
        """A job is not ready any more: drop its entry, if only stale ones stand before it."""
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
        """A job goes elsewhere: drop its fresh entry, stale or not, wherever it stands.

        Claims go by the lowest id at the head of any lane, so no id may stand in two of them.
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
        """Drop the entries of these jobs, if they are the first; False if others are among them."""
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
        """Return the id at the head, stale or not; NO_JOB when there is none."""
        back = self._back.first_key()
        fresh = self._fresh_head()
        return fresh if back is None or fresh < back else back

    def head_within(self, fresh_below: int, back_until: int) -> int:
        """Do as ``head`` for those that have waited so long; see ``Bounds``."""
        fresh = self._fresh_head()
        back = next(self._back.within(back_until), NO_JOB)
        return min(fresh if fresh < fresh_below else NO_JOB, back)

    def has_within(self, fresh_below: int, back_until: int) -> bool:
        """Return whether any has waited so long."""
        if self._fresh_head() < fresh_below:
            return True
        low = self._back.low() if self._back.size else None
        return low is not None and low <= back_until

    def waits_since(self, ages: Ages) -> int:
        """The moment since when the one that waits for longest is ready, or an earlier one."""
        fresh = self._fresh_head()
        moment = NO_JOB if fresh == NO_JOB else ages.since(fresh)
        low = self._back.low() if self._back.size else None
        return moment if low is None or moment < low else low

    def pop(self, count: int, below: int) -> list[int]:
        """Remove and return up to ``count`` ids under ``below``, in order, stale ones too."""
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
        """Do as ``pop`` for those that have waited so long; see ``Bounds``."""
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
        """Return the ids that ``pop`` would return, left where they are."""
        return merge(self.fresh(), self._back.ids())

    def back_since(self, job: int) -> int | None:
        """Return the moment since when a job is ready that was not fresh; None for all others."""
        return self._back.since(job)

    def fresh(self) -> Iterator[int]:
        """Return those among them that were ready at once."""
        return islice(chain.from_iterable(self._blocks), self._head, None)

    def given_back(self, until: int = LATEST) -> Iterator[int]:
        """The others: given back, or not due at first; those that are ready since ``until``."""
        return self._back.within(until)

    def clear(self) -> None:
        """Drop all entries: no job is ready, so all are stale."""
        if self.entries:
            self.entries = self._head = 0
            self._blocks.clear()
            if self._back.size:
                self._back = _NONE

    def sweep(self, is_ready: Callable[[int], bool]) -> None:
        """Drop the stale entries of the next block, the first again after the last."""
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
            # The block is used up, full or not: the next push opens another.
            del blocks[0]
            self._head = 0
        return popped


class Group:
    """Count what one limit counts.

    Attributes:
        key: name of the task, and the concurrency key, b"" for none.
        lanes: all that have jobs of it.
        limit: None while no claimer here has told it.
        running: how many of its jobs run.
        blocked: bits of why its lanes are blocked.
        times: of its claims, if they count against a rate.
    """

    __slots__ = ("blocked", "key", "lanes", "limit", "running", "times")

    def __init__(self, key: tuple[str, bytes], limit: Limit | None) -> None:
        self.key = key
        self.lanes: list[Lane] = []
        self.limit = limit
        self.running = self.blocked = 0
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


# Lanes that differ in nothing but their concurrency key, as claimers see them: as one.
#
# There may be a hundred thousand of them with a job each. So they stand in the ready set together,
# as one entry that knows which of them holds the oldest job; a claim looks at as many of them as it
# takes jobs from.

#: Entries of the heap that are out of date, before it is made anew.
_STALE_MAX: Final = 64


class Family:
    """The keyed lanes of one (queue, priority, task).

    Attributes:
        base: the lane of jobs without a key; it has the totals of all.
        ready: those of them that a claim may take from, and the id under which each is found.
        number: that of the lane that ``head`` told of.
    """

    __slots__ = ("_heap", "_order", "_top", "base", "priority", "queue", "ready", "task")

    def __init__(self, base: Lane) -> None:
        self.base = base
        self.queue, self.task, self.priority = base.queue, base.task, base.priority
        self.ready: dict[Lane, int] = {}
        #: (id at the lane's head, a number that settles ties, lane)
        self._heap: list[tuple[int, int, Lane]] = []
        self._order = count()
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
        """None of them has any: give back the room that they took."""
        self.ready.clear()
        self._heap.clear()

    def head(self) -> int:
        """Return the lowest id at the head of any lane; its lane is ``number`` then."""
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
        return self._top.waits_since(ages) if self.head() != NO_JOB else NO_JOB

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
