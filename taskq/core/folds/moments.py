"""Keep when unsettled jobs are due and expire, claims end, and since when jobs wait."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from taskq.core.folds.blocks import LATEST, NO_JOB, SortedBlocks
from taskq.core.model import PRIORITY_MAX, SECOND_NS

#: Entries that may be stale before it is worth looking for them.
STALE_MAX: Final = 4_096


class Timetable:
    """Due times and expiries by moment; a job whose time comes is handed out once for each entry.

    Relative moments are kept in shifted time: wall time less ``shift_ns``, the sum of all recorded
    clock steps. So a step of the clock moves them all at once.

    Attributes:
        shift_ns: the sum of all recorded steps of the clock.
        over: after ``find_over``, the jobs that are expired; some may be settled.
    """

    __slots__ = (
        "_expiries_shifted", "_expiries_wall", "_over_ns", "_shifted", "_wall", "over", "shift_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.shift_ns = 0
        self.over: set[int] = set()
        #: of wall time: until then all that expired are in ``over``
        self._over_ns = -1
        self._shifted = SortedBlocks()
        self._wall = SortedBlocks()
        self._expiries_shifted = SortedBlocks()
        self._expiries_wall = SortedBlocks()

    def step(self, step_ns: int) -> None:
        self.shift_ns += step_ns
        self.forget_over()

    def wait(self, job: int, due_ns: int, is_wall: bool) -> None:
        """The job is due at ``due_ns`` of wall time, as the clock stands now."""
        if is_wall:
            self._wall.add(_bounded(due_ns), job)
        else:
            self._shifted.add(_bounded(due_ns - self.shift_ns), job)

    def forget(self, job: int) -> None:
        """The job is claimed or given back while it waits: the old moment must not wake it later.

        It looks through every entry, for it is rare: the claimer found the job due before the
        clock stepped back, or records before this one are damaged.
        """
        if not self._shifted.remove(job):
            self._wall.remove(job)

    def forget_at(self, moment_ns: int, job: int) -> None:
        """Do as ``forget`` for a job that waits until that moment in shifted time."""
        self._shifted.remove_pair(_bounded(moment_ns), job)

    def waits(self, job: int, moment_ns: int, is_wall: bool) -> bool:
        """Return whether the job is to be due then; in shifted time unless ``is_wall``."""
        return (self._wall if is_wall else self._shifted).has(moment_ns, job)

    def blocks(self) -> Iterator[tuple[array[int], array[int], bool]]:
        """(moments, jobs, whether that is wall time) of the entries, some hundreds at a time.

        Moments are in shifted time unless they are wall time; some entries may be stale.
        """
        for blocks, is_wall in ((self._shifted, False), (self._wall, True)):
            for keys, values in blocks.blocks():
                yield keys, values, is_wall

    def due(self, now_ns: int, count: int) -> list[tuple[int, int]]:
        """Take out the jobs whose time has come, at most ``count`` of each kind.

        Returns (moment in shifted time, job) of each.
        """
        moment = now_ns - self.shift_ns
        first = self._shifted.first_key()
        due = (
            [] if first is None or first > moment else self._shifted.pop_pairs_until(moment, count)
        )
        first = self._wall.first_key()
        if first is not None and first <= now_ns:
            shift = self.shift_ns
            due += [(at - shift, job) for at, job in self._wall.pop_pairs_until(now_ns, count)]
        return due

    def next_due_ns(self) -> int | None:
        return _sooner(self._shifted.first_key(), self.shift_ns, self._wall.first_key())

    def expire_at(self, job: int, expires_ns: int, is_wall: bool) -> None:
        """The job expires at ``expires_ns`` of wall time, as the clock stands now."""
        moment_ns = _bounded(expires_ns if is_wall else expires_ns - self.shift_ns)
        if moment_ns + (0 if is_wall else self.shift_ns) <= self._over_ns:
            self.over.add(job)
        (self._expiries_wall if is_wall else self._expiries_shifted).add(moment_ns, job)

    def expires(self, job: int, moment_ns: int) -> bool:
        return self._expiries_shifted.has(moment_ns, job)

    def expiry_blocks(self) -> Iterator[tuple[array[int], array[int]]]:
        """(moments, jobs) of the expiries that shift, some hundreds at a time.

        Moments are in shifted time; some entries may be stale.
        """
        return self._expiries_shifted.blocks()

    def expired(self, now_ns: int, count: int) -> list[int]:
        jobs = list(self._expiries_shifted.pop_until(now_ns - self.shift_ns, count))
        return jobs + list(self._expiries_wall.pop_until(now_ns, count - len(jobs)))

    def find_over(self, now_ns: int) -> None:
        """Find all that are expired, however many; ``expired`` takes them out in parts."""
        for blocks, shift_ns in ((self._expiries_shifted, self.shift_ns), (self._expiries_wall, 0)):
            after = self._over_ns - shift_ns if self._over_ns >= 0 else -1
            self.over.update(*blocks.between(after, now_ns - shift_ns))
        self._over_ns = now_ns

    def forget_over(self) -> None:
        if self._over_ns >= 0:
            self.over, self._over_ns = set(), -1

    def next_expiry_ns(self) -> int | None:
        return _sooner(
            self._expiries_shifted.first_key(), self.shift_ns, self._expiries_wall.first_key()
        )

    def sweep_dues(self, waiting: int, keep: Callable[[int], bool]) -> None:
        """Sweep a block if more entries are stale than the ``waiting`` jobs' own."""
        if self._shifted.size + self._wall.size > 2 * waiting + STALE_MAX:
            self._shifted.sweep(keep)
            self._wall.sweep(keep)

    def sweep_expiries(self, expiring: int, keep: Callable[[int], bool]) -> None:
        """Sweep a block if more entries are stale than the ``expiring`` jobs' own."""
        if self._expiries_shifted.size + self._expiries_wall.size > 2 * expiring + STALE_MAX:
            self._expiries_shifted.sweep(keep)
            self._expiries_wall.sweep(keep)


def _sooner(shifted_ns: int | None, shift_ns: int, wall_ns: int | None) -> int | None:
    if shifted_ns is None:
        return wall_ns
    shifted_ns += shift_ns
    return shifted_ns if wall_ns is None or shifted_ns < wall_ns else wall_ns


def _bounded(moment_ns: int) -> int:
    return min(max(moment_ns, 0), LATEST)


# What some claims have: a deadline to be settled or extended by, or somebody who wants them over.
#
# Moments are kept in shifted time (see ``Timetable``). Few claims have one: a dict will do.

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
            for leased, until in sorted(self._deadlines.items(), key=lambda pair: pair[1]):
                self._order.add(until, leased)

    def drop(self, job: int) -> None:
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
        return self._deadlines


# Since when jobs wait: enough to tell how many windows, without a number for any job.
#
# Jobs are numbered in the order in which they were enqueued. So a list of (lsn, moment), with one
# entry for each 64th of the window, dates every job to within that: it takes the moment of the last
# entry that is not behind it. Nine windows are as much as counts, so the list stays short, and
# since it follows from the frames alone, every process and every later fold has the same one.

#: A job that waits longer rises one priority for each such window, unless another is given.
STARVATION_NS: Final = 600 * SECOND_NS
#: Entries for each window.
_PARTS: Final = 64


class Ages:
    """Keep when jobs were enqueued, in shifted time (see ``Timetable``).

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
        at = max(bisect_right(self._lsns, job) - 1, 0)
        return self._moments[at] if self._moments else LATEST

    def dates(self, job: int) -> bool:
        return bool(self._lsns) and job >= self._lsns[0]

    def before(self, moment: int) -> int:
        """Return an id: the jobs below it are those that were enqueued then or earlier."""
        at = bisect_right(self._moments, moment) if moment >= 0 else 0
        if not at:
            return 0
        return self._lsns[at] if at < len(self._lsns) else NO_JOB

    def bounds(self, now: int) -> Bounds:
        return Bounds(self, now)


class Bounds:
    """At one moment, by a number of windows from 0 to 9: who has waited so long, or longer.

    Attributes:
        fresh: of the jobs that were ready at once those below this id.
        back: of the others those that are ready since this moment, or earlier.
    """

    __slots__ = ("back", "fresh")

    def __init__(self, ages: Ages, now: int) -> None:
        # Without a window nobody has waited for one: no moment is that early.
        window_ns = ages.window_ns or now + 1
        moments = [now - windows * window_ns for windows in range(1, PRIORITY_MAX + 1)]
        self.fresh = [NO_JOB, *map(ages.before, moments)]
        self.back = [LATEST, *moments]
