"""What some claims have: a deadline to be settled or extended by, or somebody who wants them over.

Moments are kept in shifted time (see ``timetable``). Few claims have one: a dict will do.
"""

from __future__ import annotations

from typing import Final

from taskq.core.blocks import SortedBlocks

#: Moments that may be stale before they are thrown out.
_STALE_MAX: Final = 1_024


class Leases:
    """Running jobs whose claim ends at a moment, or is to be cancelled.

    Attributes:
        shift_ns: sum of all recorded steps of the clock.
        asked: jobs that somebody wants cancelled.
    """

    __slots__ = ("_deadlines", "_order", "asked", "shift_ns")

    def __init__(self) -> None:
        self.shift_ns = 0
        self.asked: set[int] = set()
        self._deadlines: dict[int, int] = {}
        #: every deadline ever given; those that were moved or dropped are passed over
        self._order = SortedBlocks()

    def __bool__(self) -> bool:
        return bool(self._deadlines or self.asked)

    def apply_until(self, job: int, deadline_ns: int) -> None:
        """The claim ends at ``deadline_ns`` of wall time, whatever was said before."""
        moment = max(deadline_ns - self.shift_ns, 0)
        self._deadlines[job] = moment
        self._order.add(moment, job)
        if self._order.size > 2 * len(self._deadlines) + _STALE_MAX:
            self._order = SortedBlocks()
            for one, until in sorted(self._deadlines.items(), key=lambda pair: pair[1]):
                self._order.add(until, one)

    def drop(self, job: int) -> None:
        """The claim is over."""
        self.asked.discard(job)
        self._deadlines.pop(job, None)
        if not self._deadlines:
            self._order = SortedBlocks()

    def deadline_ns(self, job: int) -> int:
        """Wall time at which the job's claim ends, 0 if it has no deadline."""
        moment = self._deadlines.get(job)
        return 0 if moment is None else moment + self.shift_ns

    def next_ns(self) -> int | None:
        """Wall time before which no claim ends; None if none has a deadline."""
        first = self._order.first_key()
        return None if first is None else first + self.shift_ns

    def over(self, now_ns: int, count: int) -> list[int]:
        """At most ``count`` jobs whose claim has ended; the caller records each."""
        moment = now_ns - self.shift_ns
        jobs: dict[int, None] = {}
        for job in self._order.pop_until(moment, count):
            deadline = self._deadlines.get(job)
            if deadline is not None and deadline <= moment:
                jobs[job] = None
        return list(jobs)

    def all(self) -> dict[int, int]:
        """Job -> deadline in shifted time."""
        return self._deadlines
