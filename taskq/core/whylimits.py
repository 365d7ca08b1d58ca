"""Why a job waits whose task has a limit that is used up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from taskq.core.durations import spoken
from taskq.core.model import SECOND_NS

if TYPE_CHECKING:
    from taskq.core.agenda import Agenda
    from taskq.core.rates import Limit

_HOLDERS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedUp:
    """A limit that is used up.

    Attributes:
        task: whose it is.
        key: the job's concurrency key, b"" for none.
        concurrency: jobs that may run at a time, 0 if it is the rate that is used up.
        running: those of them that do.
        rate: as people write it.
        next_ns: wall time from which on the rate lets a job start.
    """

    task: str
    key: bytes
    concurrency: int = 0
    running: tuple[int, ...] = ()
    rate: str = ""
    next_ns: int = 0

    def text(self, tag: str, now_ns: int) -> str:
        """One sentence for people; ``tag`` is that of the log's job ids."""
        whose = self.task
        if self.key:
            whose += f" with key {self.key.decode('utf-8', 'replace')!r:.60}"
        if not self.concurrency:
            moment = datetime.fromtimestamp(self.next_ns // SECOND_NS, UTC).isoformat()
            ahead = spoken(self.next_ns - now_ns)
            return (
                f"rate {self.rate} of {whose} is used up: the next may start in {ahead}, {moment}"
            )
        names = [f"{tag}-{job}" for job in self.running[:_HOLDERS_MAX]]
        more = len(self.running) - len(names)
        listed = ", ".join(names) + (f" and {more} more" if more else "")
        return f"concurrency {self.concurrency} of {whose} is used up by {listed}"


def used_up(agenda: Agenda, lsn: int, limit: Limit, now_ns: int) -> UsedUp | None:
    """Which limit keeps a ready job from running; None if none does."""
    chunk = agenda.table.find(lsn)
    if chunk is None:
        return None
    lane = agenda.lanes[chunk.lanes[agenda.table.index]]
    key = lane.concurrency_key
    if limit.concurrency:
        running = tuple(job for job in agenda.running if _is_of(agenda, job, lane.task, key))
        if len(running) >= limit.concurrency:
            return UsedUp(task=lane.task, key=key, concurrency=limit.concurrency, running=running)
    group = agenda.groups.get(lane.task, key)
    if limit.rate is None or group is None or group.times is None:
        return None
    moment = max(now_ns - agenda.times.shift_ns, agenda.moment)
    if group.times.room(moment, limit.rate):
        return None
    free_ns = group.times.free_at(moment, limit.rate) + agenda.times.shift_ns
    return UsedUp(task=lane.task, key=key, rate=str(limit.rate), next_ns=free_ns)


def _is_of(agenda: Agenda, job: int, task: str, key: bytes) -> bool:
    chunk = agenda.table.find(job)
    if chunk is None:
        return False
    lane = agenda.lanes[chunk.lanes[agenda.table.index]]
    return lane.task == task and lane.concurrency_key == key
