"""The moments that unsettled jobs wait for: when they are due, and when they expire.

An entry is 16 bytes. A job that is settled before its time leaves its entry behind; where such
stale ones prevail they are swept out a block at a time, so that neither memory nor a call grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.blocks import LATEST, SortedBlocks

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator

#: Entries that may be stale before it is worth looking for them.
STALE_MAX: Final = 4_096
#: When a job expires: a moment, in shifted time unless it is wall time, and whether it is that.
Expiry = tuple[int, bool]


class Timetable:
    """Due times and expiries by moment; a job whose time comes is handed out once for each entry.

    Relative moments are kept in shifted time: wall time less ``shift_ns``, the sum of all recorded
    clock steps. So a step of the clock moves them all at once.
    """

    __slots__ = ("_expiries_shifted", "_expiries_wall", "_shifted", "_wall", "shift_ns")

    def __init__(self) -> None:
        self.shift_ns = 0
        self._shifted = SortedBlocks()
        self._wall = SortedBlocks()
        self._expiries_shifted = SortedBlocks()
        self._expiries_wall = SortedBlocks()

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

    def waits(self, job: int, moment_ns: int, is_wall: bool) -> bool:
        """Whether the job is to be due then; in shifted time unless ``is_wall``."""
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
        """Wall time of the next entry, None if there is none."""
        return _sooner(self._shifted.first_key(), self.shift_ns, self._wall.first_key())

    def expire_at(self, job: int, expires_ns: int, is_wall: bool) -> None:
        """The job expires at ``expires_ns`` of wall time, as the clock stands now."""
        if is_wall:
            self._expiries_wall.add(_bounded(expires_ns), job)
        else:
            self._expiries_shifted.add(_bounded(expires_ns - self.shift_ns), job)

    def expire_again(self, job: int, expiry: Expiry) -> None:
        """The job expires at a moment that ``expired`` took out."""
        moment_ns, is_wall = expiry
        (self._expiries_wall if is_wall else self._expiries_shifted).add(moment_ns, job)

    def expires(self, job: int, moment_ns: int, is_wall: bool = False) -> bool:
        """Whether the job is to expire then, in shifted time unless ``is_wall``."""
        return (self._expiries_wall if is_wall else self._expiries_shifted).has(moment_ns, job)

    def expiry_blocks(self) -> Iterator[tuple[array[int], array[int]]]:
        """(moments, jobs) of the expiries that shift, some hundreds at a time.

        Moments are in shifted time; some entries may be stale.
        """
        return self._expiries_shifted.blocks()

    def expired(self, now_ns: int, count: int) -> list[tuple[int, Expiry]]:
        """Take out at most ``count`` jobs that are expired, with the moments when they did."""
        found = [
            (job, (moment, False))
            for moment, job in self._expiries_shifted.pop_pairs_until(now_ns - self.shift_ns, count)
        ]
        pairs = self._expiries_wall.pop_pairs_until(now_ns, count - len(found))
        return found + [(job, (moment, True)) for moment, job in pairs]

    def next_expiry_ns(self) -> int | None:
        """Wall time of the next entry, None if there is none."""
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
