"""Since when jobs wait: enough to tell how many windows, without a number for any job.

Jobs are numbered in the order in which they were enqueued. So a list of (lsn, moment), with one
entry for each 64th of the window, dates every job to within that: it takes the moment of the last
entry that is not behind it. Nine windows are as much as counts, so the list stays short, and
since it follows from the frames alone, every process and every later fold has the same one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

from taskq.core.blocks import LATEST, NO_JOB
from taskq.core.model import PRIORITY_MAX, SECOND_NS

#: A job that waits longer rises one priority for each such window, unless another is given.
STARVATION_NS: Final = 600 * SECOND_NS
#: Entries for each window.
_PARTS: Final = 64


class Ages:
    """When jobs were enqueued, in shifted time (see ``timetable``).

    Attributes:
        window_ns: waiting longer, a job rises one level for each; 0: never.
        moment: now.
        aged_at: nobody has waited for a window before this moment.
    """

    __slots__ = ("_lsns", "_moments", "aged_at", "moment", "window_ns")

    def __init__(self, window_ns: int = STARVATION_NS) -> None:
        self.window_ns = window_ns
        self.moment = self.aged_at = 0
        self._lsns = array("Q")
        self._moments = array("Q")

    def __len__(self) -> int:
        return len(self._lsns)

    @property
    def step_ns(self) -> int:
        """How much older than it is a job may be taken for."""
        return self.window_ns // _PARTS

    def note(self, lsn: int, moment: int) -> None:
        """A frame that begins with ``lsn`` was written then."""
        lsns, moments = self._lsns, self._moments
        if moments:
            if moment < moments[-1] + max(self.step_ns, 1):
                return
        elif moment < 0:
            return
        if not self.window_ns:
            return
        lsns.append(lsn)
        moments.append(moment)
        # One entry stays from before all that counts: what is older still, is as old as that.
        past = bisect_right(moments, max(moment - PRIORITY_MAX * self.window_ns, 0)) - 1
        if past > _PARTS:
            del lsns[:past], moments[:past]

    def note_ready(self, moment: int) -> None:
        """A job is ready since then, perhaps for longer than those that were looked at."""
        self.aged_at = min(self.aged_at, moment + self.window_ns)

    def note_oldest(self, moment: int) -> bool:
        """No job is ready for longer than since ``moment``; whether one has waited for a window.

        If none has, it is not to be asked again for long.
        """
        if moment + self.window_ns <= self.moment:
            return True
        # Who comes from now on waits from now on, and may be taken for a step older.
        self.aged_at = min(moment, max(self.moment - self.step_ns, 0)) + self.window_ns
        return False

    def since(self, job: int) -> int:
        """About when the job was enqueued; not yet, if nothing is known of its time."""
        at = max(bisect_right(self._lsns, job) - 1, 0)
        return self._moments[at] if self._moments else LATEST

    def dates(self, job: int) -> bool:
        """Whether it is known when the job was enqueued, and not only that it was long ago."""
        return bool(self._lsns) and job >= self._lsns[0]

    def before(self, moment: int) -> int:
        """An id: the jobs below it are those that were enqueued then or earlier."""
        at = bisect_right(self._moments, moment) if moment >= 0 else 0
        if not at:
            return 0
        return self._lsns[at] if at < len(self._lsns) else NO_JOB

    def bounds(self, now: int) -> Bounds:
        """Who has waited for how many windows at a moment."""
        return Bounds(self, now)


class Bounds:
    """At one moment, by a number of windows from 0 to 9: who has waited so long, or longer.

    Attributes:
        fresh: of the jobs that were ready at once those below this id.
        back: of the others those that are ready since this moment, or earlier.
    """

    __slots__ = ("back", "fresh")

    def __init__(self, ages: Ages, now: int) -> None:
        moments = [now - windows * ages.window_ns for windows in range(1, PRIORITY_MAX + 1)]
        self.fresh = [NO_JOB, *map(ages.before, moments)]
        self.back = [LATEST, *moments]
