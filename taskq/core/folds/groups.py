"""Limits of tasks: how many jobs run at a time, and how many are claimed in a time.

A limit holds for a group: the jobs of one task, or of one task and concurrency key, over all queues
and priorities. A group that is at its limit has its lanes blocked, so that nobody looks at them
until one of its jobs ends, or its rate allows another. The log says which jobs run and which
claims count against a rate, so every process has the same counts; what the limit is, only those
know that have the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count as counting
from itertools import islice
from typing import Final

from taskq.core.folds.lanes import Group, Lane
from taskq.core.rates import Limit, Times

#: Why a lane is blocked: as many jobs of its group run as may, or were claimed as may be.
BLOCKED_BY_CONCURRENCY: Final = 4
BLOCKED_BY_RATE: Final = 8
#: Groups whose times may be past, of which so many are looked at with every claim.
_SWEPT: Final = 2
#: Moments of ``due`` that nobody waits for, before they are thrown out.
_STALE_MAX: Final = 64


class Groups:
    """Groups: those of keyed lanes, and of tasks that have a limit here.

    Args:
        lanes: all lanes by number; others may come.
        block: keeps a lane's jobs from being claimed, for a reason of ``BLOCKED_…``.
        unblock: ends that reason.

    Attributes:
        due: (moment, …, group) of those that wait for their rate, the earliest first.
        freed: groups that were full and are not any more, until somebody has looked.
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
        self._limits: dict[str, Limit] = {}
        self._told: Mapping[str, Limit] | None = None
        self._groups: dict[tuple[str, bytes], Group] = {}
        self._rated: dict[Group, None] = {}
        self._order = counting()
        self.due: list[tuple[int, int, Group]] = []
        self.freed: dict[Group, None] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, task: str, key: bytes) -> Group | None:
        limit = self._limits.get(task)
        return self._groups.get(((limit.scope if limit else "") or task, key))

    def tell(self, limits: Mapping[str, Limit], moment: int) -> None:
        """A claimer knows these limits, by the names of tasks; asked again it costs nothing."""
        if limits is self._told:
            return
        self._told = limits
        news = {task for task, limit in limits.items() if self._limits.get(task) != limit}
        if not news:
            return
        self._limits.update(limits)
        for lane in self._lanes:
            if lane.task in news:
                self.join(lane)
        for group in list(self._groups.values()):
            limit = limits.get(group.key[0])
            if limit is not None:
                group.limit = limit
                if limit.scope not in ("", group.key[0]):  # another name, of which no job is left
                    self._join_times(group, self._group((limit.scope, group.key[1]), limit))
        for group in self._groups.values():
            self.judge(group, moment)

    def join(self, lane: Lane, *, rated: bool = False) -> None:
        limit = self._limits.get(lane.task)
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

    # -- what happens -----------------------------------------------------------------------------

    def claimed(self, group: Group, count: int) -> None:
        """So many jobs of the group run now, by whomever they were claimed."""
        group.running += count
        limit = group.limit
        if limit is not None and 0 < limit.concurrency <= group.running:
            self._block(group, BLOCKED_BY_CONCURRENCY)

    def left(self, group: Group) -> None:
        group.running -= 1
        if group.blocked & BLOCKED_BY_CONCURRENCY:
            limit = group.limit
            if limit is None or group.running < limit.concurrency:
                self._unblock(group, BLOCKED_BY_CONCURRENCY)
                self.freed[group] = None

    def rated(self, group: Group, moment: int, count: int, most: int, window_ns: int) -> None:
        """So many claims of the group were made now, which count against such a rate."""
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
                    self._rated[old] = None  # behind the others
                    continue
            old.times = None
            self._drop_if_idle(old)

    def took(self, group: Group, moment: int, count: int) -> None:
        self.claimed(group, count)
        limit = group.limit
        if limit is not None and limit.rate is not None:
            self.rated(group, moment, count, limit.rate.count, limit.rate.window_ns)

    def open_due(self, moment: int) -> None:
        """Let those claim whose rate allows it by now."""
        due = self.due
        while due and due[0][0] <= moment:
            group = heappop(due)[2]
            self._unblock(group, BLOCKED_BY_RATE)
            self._judge_rate(group, moment)

    def is_freed(self) -> bool:
        """Return whether a group that was full has a place, and a job for it; asks once."""
        freed, self.freed = self.freed, {}
        return any(lane.ready and not lane.blocked for group in freed for lane in group.lanes)

    # -- what is kept -----------------------------------------------------------------------------

    def rows(self, moment: int) -> Iterator[tuple[tuple[str, bytes], Times]]:
        for group in self._rated:
            times = self.times(group.key, moment)
            if times is not None:
                yield group.key, times

    def times(self, key: tuple[str, bytes], moment: int) -> Times | None:
        """Return when the claims of a group were made, those that matter; None for none."""
        group = self._groups.get(key)
        times = None if group is None else group.times
        if times is not None:
            times.forget(moment)
        return times if times is not None and times.total else None

    def restore(self, key: tuple[str, bytes], times: Times, moment: int) -> None:
        limit = self._limits.get(key[0])
        group = self._group(((limit.scope if limit else "") or key[0], key[1]), limit)
        if group.times is None:
            group.times = times
        else:
            # Not instead of those: under another name of the task there may have been others.
            group.times.unite(times)
        self._rated[group] = None
        self._judge_rate(group, moment)

    # -- inside -----------------------------------------------------------------------------------

    def _group(self, key: tuple[str, bytes], limit: Limit | None) -> Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, limit)
        elif limit is not None:
            group.limit = limit
        return group

    def _join_times(self, old: Group, group: Group) -> None:
        times, old.times = old.times, None
        self._rated.pop(old, None)
        if times is not None:
            if group.times is None:
                group.times = times
            else:
                group.times.unite(times, is_apart=True)
            self._rated[group] = None
        self._drop_if_idle(old)

    def judge(self, group: Group, moment: int) -> None:
        limit = group.limit
        full = limit is not None and 0 < limit.concurrency <= group.running
        (self._block if full else self._unblock)(group, BLOCKED_BY_CONCURRENCY)
        self._unblock(group, BLOCKED_BY_RATE)
        self._judge_rate(group, moment)

    def _judge_rate(self, group: Group, moment: int) -> None:
        limit, times = group.limit, group.times
        if limit is None or limit.rate is None or times is None:
            return
        if group.blocked & BLOCKED_BY_RATE or times.room(moment, limit.rate):
            return
        due = max(times.free_at(moment, limit.rate), moment + limit.rate.patience_ns)
        heappush(self.due, (due, next(self._order), group))
        self._block(group, BLOCKED_BY_RATE)
        if len(self.due) > 2 * len(self._groups) + _STALE_MAX:
            # Of groups that were judged anew, for their limit changed, the last word counts.
            entries = sorted(self.due, key=lambda entry: entry[1])
            last = {entry[2]: entry for entry in entries if entry[2].times and entry[2].blocked}
            self.due[:] = sorted(last.values())

    def _block(self, group: Group, why: int) -> None:
        if not group.blocked & why:
            group.blocked |= why
            for lane in group.lanes:
                self._block_lane(lane, why)

    def _unblock(self, group: Group, why: int) -> None:
        if group.blocked & why:
            group.blocked &= ~why
            for lane in group.lanes:
                self._unblock_lane(lane, why)

    def _drop_if_idle(self, group: Group) -> None:
        if not group.lanes and group.times is None and self._groups.get(group.key) is group:
            del self._groups[group.key]
            self.freed.pop(group, None)


def pack_group(key: tuple[str, bytes]) -> bytes:
    task = key[0].encode("utf-8", "surrogatepass")
    return bytes((len(task),)) + task + key[1]


def unpack_group(packed: bytes) -> tuple[str, bytes]:
    """Return the key of a group that was packed.

    Raises:
        ValueError: it is none.
    """
    if not packed or len(packed) <= packed[0]:
        raise ValueError(f"{packed!r:.60} names no group")
    end = 1 + packed[0]
    return packed[1:end].decode("utf-8", "replace"), packed[end:]
