"""Moments of unsettled jobs: due times, expiries, ends of claims, and starts of waiting."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from taskq.core.model import PRIORITY_MAX, SECOND_NS

_BLOCK: Final = 1_024
#: Larger than any lsn.
NO_JOB: Final = 2**64 - 1
LATEST: Final = 2**64 - 1


class SortedBlocks:
    """Pairs of unsigned 64-bit numbers in the order of their keys; equal keys keep their order."""

    __slots__ = ("_firsts", "_found", "_keys", "_swept", "_values", "size")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._keys: list[array[int]] = []
        self._values: list[array[int]] = []
        self._swept = 0
        #: block of the last pair found by ``has``
        self._found = 0
        self.size: int = 0

    def add(self, key: int, value: int) -> None:
        self.size += 1
        if not self._keys:
            self._open_block(key, value)
            return
        last = self._keys[-1]
        if key >= last[-1]:
            if len(last) >= _BLOCK:
                self._open_block(key, value)
            else:
                last.append(key)
                self._values[-1].append(value)
            return
        number = max(bisect_right(self._firsts, key) - 1, 0)
        keys = self._keys[number]
        index = bisect_right(keys, key)
        keys.insert(index, key)
        self._values[number].insert(index, value)
        if not index:
            self._firsts[number] = key
        if len(keys) > 2 * _BLOCK:
            self._split(number)

    def has(self, key: int, value: int) -> bool:
        """Return whether the pair is present.

        Fast for calls in the order in which the pairs were added, even if many have one key.
        """
        nearest = self._found
        for number in range(nearest, min(nearest + 2, len(self._keys))):
            if self._is_in(number, key, value):
                self._found = number
                return True
        firsts = self._firsts
        for number in range(max(bisect_left(firsts, key) - 1, 0), len(firsts)):
            if firsts[number] > key:
                break
            if self._is_in(number, key, value):
                self._found = number
                return True
        return False

    def _is_in(self, number: int, key: int, value: int) -> bool:
        keys, values = self._keys[number], self._values[number]
        start, end = bisect_left(keys, key), bisect_right(keys, key)
        # Values of one key are usually in order, but need not be.
        at = bisect_left(values, value, start, end)
        return (at < end and values[at] == value) or value in values[start:end]

    def blocks(self) -> Iterator[tuple[array[int], array[int]]]:
        """Iterate over (keys, values) of each block; pairs added meanwhile may be missing."""
        return zip(list(self._keys), list(self._values), strict=True)

    def first_key(self) -> int | None:
        return self._keys[0][0] if self._keys else None

    def between(self, after: int, until: int) -> Iterator[array[int]]:
        """Yield the values of the pairs with ``after`` < key <= ``until``."""
        for number in range(max(bisect_right(self._firsts, after) - 1, 0), len(self._firsts)):
            if self._firsts[number] > until:
                return
            keys = self._keys[number]
            yield self._values[number][bisect_right(keys, after) : bisect_right(keys, until)]

    def pop_until(self, key: int, count: int) -> list[int]:
        """Remove and return the values of at most ``count`` pairs whose key is at most ``key``."""
        popped: list[int] = []
        for _, values in self._cut_until(key, count):
            popped += values
        return popped

    def pop_pairs_until(self, key: int, count: int) -> list[tuple[int, int]]:
        cut = self._cut_until(key, count)
        return [pair for keys, values in cut for pair in zip(keys, values, strict=True)]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._values)

    def remove(self, value: int) -> bool:
        """Remove the first pair with that value, by a full scan; False if no pair has it."""
        for number, values in enumerate(self._values):
            try:
                index = values.index(value)
            except ValueError:
                continue
            self._replace(number, [at for at in range(len(values)) if at != index])
            return True
        return False

    def remove_pair(self, key: int, value: int) -> bool:
        for number in range(max(bisect_left(self._firsts, key) - 1, 0), len(self._firsts)):
            if self._firsts[number] > key:
                break
            keys, values = self._keys[number], self._values[number]
            start, end = bisect_left(keys, key), bisect_right(keys, key)
            if value in values[start:end]:
                index = values.index(value, start, end)
                self._replace(number, [at for at in range(len(values)) if at != index])
                return True
        return False

    def sweep(self, keep: Callable[[int], bool]) -> int:
        """Drop from the next block duplicate pairs and pairs whose value ``keep`` refuses.

        Each call sweeps one block, in rotation; returns the number of dropped pairs.
        """
        if not self._keys:
            return 0
        number = self._swept if self._swept < len(self._keys) else 0
        keys, values = self._keys[number], self._values[number]
        kept = [
            at
            for at, value in enumerate(values)
            if keep(value) and not (at and values[at - 1] == value and keys[at - 1] == keys[at])
        ]
        dropped = len(keys) - len(kept)
        blocks = len(self._keys)
        if dropped:
            self._replace(number, kept)
        self._swept = number + 1 - (blocks - len(self._keys))
        return dropped

    def _cut_until(self, key: int, count: int) -> Iterator[tuple[array[int], array[int]]]:
        while self._keys and count > 0:
            keys, values = self._keys[0], self._values[0]
            taken = min(bisect_right(keys, key), count)
            if not taken:
                return
            count -= taken
            self.size -= taken
            if taken == len(keys):
                self._close_block(0)
                yield keys, values
                continue
            cut = keys[:taken], values[:taken]
            del keys[:taken], values[:taken]
            self._firsts[0] = keys[0]
            yield cut

    def _replace(self, number: int, kept: list[int]) -> None:
        """Keep only the pairs at ``kept`` in a block; join it to the previous block if both fit."""
        keys, values = self._keys[number], self._values[number]
        self.size -= len(keys) - len(kept)
        if not kept:
            self._close_block(number)
        elif number and len(self._keys[number - 1]) + len(kept) <= _BLOCK:
            self._keys[number - 1].extend(keys[at] for at in kept)
            self._values[number - 1].extend(values[at] for at in kept)
            self._close_block(number)
        else:
            self._keys[number] = array("Q", [keys[at] for at in kept])
            self._values[number] = array("Q", [values[at] for at in kept])
            self._firsts[number] = self._keys[number][0]

    def _close_block(self, number: int) -> None:
        del self._keys[number], self._values[number], self._firsts[number]

    def _open_block(self, key: int, value: int) -> None:
        self._firsts.append(key)
        self._keys.append(array("Q", (key,)))
        self._values.append(array("Q", (value,)))

    def _split(self, number: int) -> None:
        keys, values = self._keys[number], self._values[number]
        self._keys.insert(number + 1, keys[_BLOCK:])
        self._values.insert(number + 1, values[_BLOCK:])
        del keys[_BLOCK:], values[_BLOCK:]
        self._firsts.insert(number + 1, self._keys[number + 1][0])


# Returned and delayed jobs of a lane, and since when they are ready.
#
# Sorted by id, 16 bytes each. Their moments are in no order, since an old job may return late. So
# each block has its earliest moment, and a search for jobs that have waited long skips other
# blocks.

#: Placeholder for a block's earliest moment before it is computed.
_UNKNOWN: Final = -1


class Returned(SortedBlocks):
    """Table of job -> moment since when it is ready, as unsigned 64-bit numbers; each job once."""

    __slots__ = ("_lows",)

    def __init__(self) -> None:
        super().__init__()
        self.size: int
        self._lows: list[int] = []

    @classmethod
    def of(cls, pairs: SortedBlocks) -> Returned:
        """Move the pairs into a new object; ``pairs`` must not be used any more."""
        returned = cls()
        returned._firsts, returned._keys = pairs._firsts, pairs._keys
        returned._values, returned.size = pairs._values, pairs.size
        returned._lows = [_UNKNOWN] * len(pairs._keys)
        return returned

    def put(self, job: int, moment: int) -> bool:
        """Set the moment since when the job is ready; return whether the job is new here."""
        keys = self._keys
        if not keys or job > keys[-1][-1]:
            self.add(job, moment)
            self._lows[-1] = min(self._lows[-1], moment)
            return True
        number, at = self._find(job)
        if at >= 0:
            self._values[number][at] = moment
            self._lows[number] = _UNKNOWN
            return False
        self.add(job, moment)
        number = max(bisect_right(self._firsts, job) - 1, 0)
        self._lows[number] = min(self._lows[number], moment)  # unknown stays unknown
        return True

    def put_run(self, jobs: list[int], moments: list[int]) -> int:
        """Put jobs of rising ids; return the number of new ones."""
        if self._keys and jobs[0] <= self._keys[-1][-1]:
            return sum(map(self.put, jobs, moments))
        most = _BLOCK
        for start in range(0, len(jobs), most):
            ids, values = jobs[start : start + most], moments[start : start + most]
            if self._keys and len(self._keys[-1]) + len(ids) <= most:
                self._keys[-1].extend(ids)
                self._values[-1].extend(values)
                self._lows[-1] = min(self._lows[-1], *values)  # unknown stays unknown
            else:
                self._firsts.append(ids[0])
                self._keys.append(array("Q", ids))
                self._values.append(array("Q", values))
                self._lows.append(min(values))
        self.size += len(jobs)
        return len(jobs)

    def discard(self, job: int) -> bool:
        number, at = self._find(job)
        if at < 0:
            return False
        self._cut(number, at, at + 1)
        return True

    def since(self, job: int) -> int | None:
        """Return the moment since when the job is ready; None if the job is missing."""
        number, at = self._find(job)
        return None if at < 0 else self._values[number][at]

    def low(self) -> int | None:
        """Return the earliest moment; None when empty."""
        return min(map(self._low, range(len(self._keys))), default=None)

    def ids(self) -> Iterator[int]:
        return chain.from_iterable(self._keys)

    def within(self, moment: int) -> Iterator[int]:
        """Yield the jobs that are ready since ``moment`` or longer, by id."""
        for number in range(len(self._keys)):
            if self._low(number) <= moment:
                keys, values = self._keys[number], self._values[number]
                yield from (keys[at] for at, value in enumerate(values) if value <= moment)

    def pop_ids(self, job: int, count: int) -> list[int]:
        popped: list[int] = []
        while self._keys and len(popped) < count:
            keys = self._keys[0]
            end = min(bisect_right(keys, job), count - len(popped))
            if not end:
                break
            popped += keys[:end]
            self._cut(0, 0, end)
        return popped

    def pop_within(self, moment: int, job: int, count: int) -> list[int]:
        """Pop only jobs that are ready since ``moment`` or longer."""
        popped: list[int] = []
        number = 0
        while number < len(self._keys) and self._firsts[number] <= job and len(popped) < count:
            if self._low(number) > moment:
                number += 1
                continue
            keys, values = self._keys[number], self._values[number]
            end = bisect_right(keys, job)
            chosen = [at for at in range(end) if values[at] <= moment][: count - len(popped)]
            popped += [keys[at] for at in chosen]
            before = len(self._keys)
            for at in reversed(chosen):
                self._cut(number, at, at + 1)
            number += 1 - (before - len(self._keys))
        return popped

    def _find(self, job: int) -> tuple[int, int]:
        number = bisect_right(self._firsts, job) - 1
        if number < 0:
            return 0, -1
        keys = self._keys[number]
        at = bisect_left(keys, job)
        return number, at if at < len(keys) and keys[at] == job else -1

    def _low(self, number: int) -> int:
        low = self._lows[number]
        if low == _UNKNOWN:
            low = self._lows[number] = min(self._values[number])
        return low

    def _cut(self, number: int, start: int, end: int) -> None:
        keys, values = self._keys[number], self._values[number]
        self.size -= end - start
        if end - start == len(keys):
            self._close_block(number)
            return
        if self._lows[number] != _UNKNOWN and self._lows[number] in values[start:end]:
            self._lows[number] = _UNKNOWN
        del keys[start:end], values[start:end]
        self._firsts[number] = keys[0]

    def _close_block(self, number: int) -> None:
        super()._close_block(number)
        del self._lows[number]

    def _open_block(self, key: int, value: int) -> None:
        super()._open_block(key, value)
        self._lows.append(value)

    def _split(self, number: int) -> None:
        super()._split(number)
        self._lows[number] = _UNKNOWN
        self._lows.insert(number + 1, _UNKNOWN)


#: Stale entries before a sweep pays off.
STALE_MAX: Final = 4_096


class Timetable:
    """Due times and expiries by moment; a due job is returned once for each entry.

    Relative moments are kept in shifted time: wall time less ``shift_ns``, the sum of all recorded
    clock steps. So one step of the clock moves all of them.

    Attributes:
        shift_ns: the sum of all recorded steps of the clock.
        over: after ``find_over``, the jobs that are expired; some may be settled.
    """

    __slots__ = (
        "_expiries_shifted", "_expiries_wall", "_over_ns", "_shifted", "_wall", "over", "shift_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.shift_ns: int = 0
        self.over: set[int] = set()
        #: wall time up to which ``over`` has all expired jobs
        self._over_ns = -1
        self._shifted = SortedBlocks()
        self._wall = SortedBlocks()
        self._expiries_shifted = SortedBlocks()
        self._expiries_wall = SortedBlocks()

    def step(self, step_ns: int) -> None:
        self.shift_ns += step_ns
        self.forget_over()

    def wait(self, job: int, due_ns: int, is_wall: bool) -> None:
        """Let a job wait until ``due_ns`` of wall time, by the present clock."""
        if is_wall:
            self._wall.add(_bounded(due_ns), job)
        else:
            self._shifted.add(_bounded(due_ns - self.shift_ns), job)

    def forget(self, job: int) -> None:
        """Remove the moment of a job that is claimed or returned while it waits.

        It is a full scan of a rare case: the claimer found the job due before the clock stepped
        back, or earlier records are damaged.
        """
        if not self._shifted.remove(job):
            self._wall.remove(job)

    def forget_at(self, moment_ns: int, job: int) -> None:
        """Forget a job that waits until that moment of shifted time, without a scan."""
        self._shifted.remove_pair(_bounded(moment_ns), job)

    def waits(self, job: int, moment_ns: int, is_wall: bool) -> bool:
        """Return whether the job is due at that moment: shifted time unless ``is_wall``."""
        return (self._wall if is_wall else self._shifted).has(moment_ns, job)

    def blocks(self) -> Iterator[tuple[array[int], array[int], bool]]:
        """Yield (moments, jobs, whether the moments are wall time), some hundreds at a time.

        Other moments are shifted time; some entries may be stale.
        """
        for blocks, is_wall in ((self._shifted, False), (self._wall, True)):
            for keys, values in blocks.blocks():
                yield keys, values, is_wall

    def due(self, now_ns: int, count: int) -> list[tuple[int, int]]:
        """Remove and return due jobs, at most ``count`` with each kind of due time.

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
        """Let a job expire at ``expires_ns`` of wall time, by the present clock."""
        moment_ns = _bounded(expires_ns if is_wall else expires_ns - self.shift_ns)
        if moment_ns + (0 if is_wall else self.shift_ns) <= self._over_ns:
            self.over.add(job)
        (self._expiries_wall if is_wall else self._expiries_shifted).add(moment_ns, job)

    def expires(self, job: int, moment_ns: int) -> bool:
        return self._expiries_shifted.has(moment_ns, job)

    def expiry_blocks(self) -> Iterator[tuple[array[int], array[int]]]:
        """Yield (moments, jobs) of the relative expiries, some hundreds at a time.

        Moments are shifted time; some entries may be stale.
        """
        return self._expiries_shifted.blocks()

    def expired(self, now_ns: int, count: int) -> list[int]:
        jobs = list(self._expiries_shifted.pop_until(now_ns - self.shift_ns, count))
        return jobs + list(self._expiries_wall.pop_until(now_ns, count - len(jobs)))

    def find_over(self, now_ns: int) -> None:
        """Put every expired job into ``over``; ``expired`` removes them in parts."""
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
        """Sweep a block if more entries are stale than the ``waiting`` jobs have."""
        if self._shifted.size + self._wall.size > 2 * waiting + STALE_MAX:
            self._shifted.sweep(keep)
            self._wall.sweep(keep)

    def sweep_expiries(self, expiring: int, keep: Callable[[int], bool]) -> None:
        """Sweep a block if more entries are stale than the ``expiring`` jobs have."""
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


# Deadlines of claims, and requests to cancel them.
#
# Moments are kept in shifted time (see ``Timetable``). Few claims have a deadline: a dict is
# enough.

#: Stale moments before a rebuild.
_STALE_MAX: Final = 1_024


class Leases:
    """Running jobs whose claim has a deadline or a request to cancel."""

    __slots__ = ("_deadlines", "_order", "asked", "shift_ns")

    def __init__(self) -> None:
        self.shift_ns: int = 0
        self.asked: set[int] = set()
        self._deadlines: dict[int, int] = {}
        #: every deadline ever set; moved and dropped ones are skipped
        self._order = SortedBlocks()

    def __bool__(self) -> bool:
        return bool(self._deadlines or self.asked)

    def apply_until(self, job: int, deadline_ns: int) -> None:
        """Set or move the claim's deadline to ``deadline_ns`` of wall time."""
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
        """Return the wall time of the job's deadline, 0 if its claim has none."""
        moment = self._deadlines.get(job)
        return 0 if moment is None else moment + self.shift_ns

    def next_ns(self) -> int | None:
        """Return a wall time before which no claim ends; None without deadlines."""
        first = self._order.first_key()
        return None if first is None else first + self.shift_ns

    def over(self, now_ns: int, count: int) -> list[int]:
        """Return at most ``count`` jobs whose claim has ended; the caller records each."""
        moment = now_ns - self.shift_ns
        jobs: dict[int, None] = {}
        for job in self._order.pop_until(moment, count):
            deadline = self._deadlines.get(job)
            if deadline is not None and deadline <= moment:
                jobs[job] = None
        return list(jobs)

    def all(self) -> dict[int, int]:
        return self._deadlines


# Starts of waiting, precise to a part of a window, without a number per job.
#
# Jobs are numbered in the order of their enqueues. A list has one (lsn, moment) per 64th of the
# window, and the last entry with an lsn up to the job's dates the job. Only nine windows count, so
# the list stays short. It follows from the frames alone, so every process and every later fold has
# the same list.

#: Default window: a waiting job rises one priority per window.
STARVATION_NS: Final = 600 * SECOND_NS
#: Entries per window.
_PARTS: Final = 64


class Ages:
    """Times of enqueues, in shifted time (see ``Timetable``).

    Attributes:
        window_ns: a waiting job rises one level per window; 0: never.
        moment: the current moment.
        aged_at: before this moment no job has waited for a window.
    """

    __slots__ = ("_lsns", "_moments", "aged_at", "moment", "window_ns")

    def __init__(self, window_ns: int = STARVATION_NS) -> None:
        self.window_ns: int = window_ns
        self.moment: int = 0
        self.aged_at: int = 0
        self._lsns = array("Q")
        self._moments = array("Q")

    def __len__(self) -> int:
        return len(self._lsns)

    @property
    def step_ns(self) -> int:
        return self.window_ns // _PARTS

    def note(self, lsn: int, moment: int) -> None:
        """Note the moment of a frame that begins with ``lsn``."""
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
        # One entry before the last nine windows stays: older jobs count as that old.
        past = bisect_right(moments, max(moment - PRIORITY_MAX * self.window_ns, 0)) - 1
        if past > _PARTS:
            del lsns[:past], moments[:past]

    def note_ready(self, moment: int) -> None:
        """Note a job that is ready since ``moment``; it may be the oldest."""
        self.aged_at = min(self.aged_at, moment + self.window_ns)

    def note_oldest(self, moment: int) -> bool:
        """Return whether a job has waited for a window, given the oldest moment.

        If not, move ``aged_at`` to make the next check as late as possible.
        """
        if moment + self.window_ns <= self.moment:
            return True
        # Later jobs wait from now on, and may appear one ``step_ns`` older.
        self.aged_at = min(moment, max(self.moment - self.step_ns, 0)) + self.window_ns
        return False

    def since(self, job: int) -> int:
        at = max(bisect_right(self._lsns, job) - 1, 0)
        return self._moments[at] if self._moments else LATEST

    def dates(self, job: int) -> bool:
        return bool(self._lsns) and job >= self._lsns[0]

    def before(self, moment: int) -> int:
        """Return the id below which jobs were enqueued by ``moment``."""
        at = bisect_right(self._moments, moment) if moment >= 0 else 0
        if not at:
            return 0
        return self._lsns[at] if at < len(self._lsns) else NO_JOB

    def bounds(self, now: int) -> Bounds:
        return Bounds(self, now)


class Bounds:
    """Bounds of the jobs that have waited for at least 0 to 9 windows, at one moment.

    Attributes:
        fresh: per number of windows, fresh jobs below this id.
        back: per number of windows, returned jobs that are ready since this moment or earlier.
    """

    __slots__ = ("back", "fresh")

    def __init__(self, ages: Ages, now: int) -> None:
        # Without a window no job ages: such moments are before all jobs.
        window_ns = ages.window_ns or now + 1
        moments = [now - windows * window_ns for windows in range(1, PRIORITY_MAX + 1)]
        self.fresh: list[int] = [NO_JOB, *map(ages.before, moments)]
        self.back: list[int] = [LATEST, *moments]
