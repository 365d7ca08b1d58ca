"""All queues as their lanes: which there are, and which of them a claimer looks at."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from taskq.core.folds.groups import Groups
from taskq.core.folds.lanes import BLOCKED_BY_PAUSE, Family, Lane
from taskq.core.model import PRIORITY_MAX
from taskq.core.views import QueueStats

if TYPE_CHECKING:
    from taskq.core.folds.moments import Ages

#: Numbers of forgotten lanes that are kept beyond those that may be used again.
_FREE_MAX: Final = 1_024
#: Stands where a lane was forgotten: no queue's and no task's, and without jobs.
GONE: Final = Lane(0, bytes(2), 0)
GONE.blocked = 1 << 30
GONE.queue = GONE.task = "\0"


class Queues:
    """Lanes, and those of each priority that have jobs to claim.

    Args:
        ages: is told of jobs that may be claimed again.

    Attributes:
        lanes: by their number.
        ready: those with jobs to claim, by priority; for lanes with a key their family.
        groups: the jobs that are limited together.
        paused: names of the queues that are paused.
    """

    def __init__(self, ages: Ages) -> None:
        self._ages = ages
        self.lanes: list[Lane] = []
        self.ready: tuple[dict[Lane | Family, None], ...] = tuple(
            {} for _ in range(PRIORITY_MAX + 1)
        )
        self.paused: set[str] = set()
        self._by_key: tuple[dict[bytes, Lane], ...] = tuple({} for _ in range(PRIORITY_MAX + 1))
        self._families: dict[Lane, Family] = {}
        #: numbers of lanes that were forgotten
        self._free: list[int] = []
        self.groups = Groups(self.lanes, self.block, self.unblock)

    def lane(self, priority: int, key: bytes) -> Lane:
        """Return the lane of (queue length u8, task length u8, queue, task), made at first sight.

        A concurrency key may stand behind that.
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
        """Let them be claimed again, as far as that goes."""
        lane.blocked &= ~why
        if lane.ready and not lane.blocked:
            self.open(lane)
            self._ages.note_ready(lane.waits_since(self._ages))

    def retire(self, lane: Lane) -> None:
        """Forget a lane with a concurrency key if no job is in it; its number is used again.

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
            # A dict keeps the room of what was deleted; a copy does not.
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

    def any_ready(self) -> bool:
        return any(self.ready)

    def stats(self) -> tuple[QueueStats, ...]:
        """Counts per queue, by name; those that are paused are there even if they are empty."""
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
            lane.queue, lane.task = base.queue, base.task  # one text for all of them
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
