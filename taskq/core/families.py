"""Lanes that differ in nothing but their concurrency key, as claimers see them: as one.

There may be a hundred thousand of them with a job each. So they stand in the ready set together,
as one entry that knows which of them holds the oldest job; a claim looks at as many of them as it
takes jobs from.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import TYPE_CHECKING, Final

from taskq.core.blocks import NO_JOB

if TYPE_CHECKING:
    from taskq.core.ages import Ages
    from taskq.core.lanes import Lane

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
        """That of the lane with the oldest job, as of the last ``head``."""
        return self._top.number

    def put(self, lane: Lane) -> None:
        """The lane has jobs to claim, or another at its head."""
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
        """It has none any more, or is blocked."""
        self.ready.pop(lane, None)

    def clear(self) -> None:
        """None of them has any: give back the room that they took."""
        self.ready.clear()
        self._heap.clear()

    def head(self) -> int:
        """The lowest id at the head of any lane; its lane is ``number`` then."""
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
        """Since when the oldest job waits, or one that stands for it."""
        return self._top.waits_since(ages) if self.head() != NO_JOB else NO_JOB

    def front(self, most: int) -> list[Lane]:
        """So many of the lanes, those with the oldest jobs."""
        if len(self.ready) <= most:
            return list(self.ready)
        found: list[Lane] = []
        while len(found) < most and self.head() != NO_JOB:
            found.append(self._top)
            self.drop(self._top)
        for lane in found:
            self.put(lane)
        return found
