"""A lane: the ready jobs of one (queue, priority, task), oldest first, 8 bytes each.

Fresh jobs arrive in the order of their ids and go to plain blocks; given-back ones and those whose
time has come keep their place by id through a small sorted structure beside the blocks. A job that
left the ready state stays behind as a stale entry, and is passed over when it is reached.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from typing import Final

from taskq.core.blocks import SortedBlocks

_BLOCK: Final = 4_096
#: Larger than any lsn.
NO_JOB: Final = 2**64 - 1


class Lane:
    """Ready jobs in claim order, and the counts of all jobs that ever belonged here.

    Attributes:
        number: index in the agenda's list of lanes.
        ready: jobs that may be claimed now (stale entries not counted).
        blocked: taken out of the ready set by a limit or a condition.
    """

    __slots__ = (
        "_back",
        "_blocks",
        "_head",
        "blocked",
        "cancelled",
        "dead",
        "entries",
        "expired",
        "number",
        "priority",
        "queue",
        "ready",
        "running",
        "scheduled",
        "succeeded",
        "task",
    )

    def __init__(self, number: int, queue: str, task: str, priority: int) -> None:
        self.number = number
        self.queue = queue
        self.task = task
        self.priority = priority
        self.blocked = False
        self.entries = 0
        self.ready = self.scheduled = self.running = 0
        self.succeeded = self.dead = self.cancelled = self.expired = 0
        self._blocks: deque[array[int]] = deque()
        self._head = 0
        self._back = SortedBlocks()

    def push(self, job: int) -> None:
        """Append a job that is younger than all before."""
        blocks = self._blocks
        if not blocks or len(blocks[-1]) >= _BLOCK:
            blocks.append(array("Q"))
        blocks[-1].append(job)
        self.entries += 1

    def give_back(self, job: int) -> None:
        """Put a job in at the place of its id."""
        self._back.add(job, job)
        self.entries += 1

    def head(self) -> int:
        """The id at the head, stale or not; NO_JOB when there is none."""
        back = self._back.first_key()
        fresh = self._blocks[0][self._head] if self._blocks else NO_JOB
        return fresh if back is None or fresh < back else back

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
            fresh = self._blocks[0][self._head] if self._blocks else NO_JOB
            popped += back.pop_until(min(fresh, below - 1), count - len(popped))
        self.entries -= len(popped)
        return popped

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
            blocks.popleft()
            self._head = 0
        return popped
