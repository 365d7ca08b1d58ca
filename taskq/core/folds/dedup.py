"""Dedup keys and the jobs that hold them, a fold of the log."""

from __future__ import annotations

# The same function as in hashlib, without loading OpenSSL (4 MiB).
from _blake2 import blake2b
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from taskq.core.errors import UsageError

#: Value of ``until`` for a key that its job holds until it is settled.
UNTIL_SETTLED: Final = 2**63 - 1
#: Pages swept for ended windows before an enqueue is refused.
_SWEPT_WHEN_FULL: Final = 64
#: Two pages up to this size are joined; a page with twice as many keys is split.
_PAGE: Final = 1_024
#: Keys taken between two sweeps, each of one page, for ended windows.
_SWEEP_EVERY: Final = 64


def key_hash(queue: bytes, key: bytes) -> int:
    """Return the key's 64-bit number, never 0, the same on every machine."""
    digest = blake2b(bytes((len(queue),)) + queue + key, digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


class _Page:
    """Columns of the keys in a range of hashes, sorted by hash, then in the order taken."""

    __slots__ = ("hashes", "jobs", "locations", "untils")

    def __init__(self) -> None:
        self.hashes = array("Q")
        self.jobs = array("Q")
        self.locations = array("Q")
        self.untils = array("q")

    def columns(self) -> tuple[array[int], ...]:
        return self.hashes, self.jobs, self.locations, self.untils


def _find(page: _Page, hashed: int, job: int) -> int:
    """Return the index of the job's entry, -1 if it has none."""
    hashes = page.hashes
    for at in range(bisect_left(hashes, hashed), len(hashes)):
        if hashes[at] != hashed:
            break
        if page.jobs[at] == job:
            return at
    return -1


class Dedup:
    """Table of hash -> (job, location of its record, until).

    ``until`` is a moment of shifted time (see ``moments.Timetable``), or UNTIL_SETTLED. A negative
    one means: until the job is settled, and at least until the moment ``-until - 1``.

    Keys are stored as 64 bits of a hash of (queue, key), in pages of flat arrays sorted by hash: 32
    bytes per key plus a sixteenth to grow (a dict of ints costs over 100). The caller compares a
    matching hash with the job's record, so a collision costs a read and never a wrong answer.

    Open addressing was tried first: it took 39 bytes a key and 10 µs a key to grow by eighths.
    Growing paused it for a third of a second at 400 000 keys, under the writer lock. Pages are
    split by slices, so no call does more than one page's work.

    Attributes:
        size: number of keys, including keys whose ended window is not swept yet.
        edits: edits of waiting jobs since this object was made, with a key or without.
    """

    __slots__ = ("_firsts", "_pages", "_swept", "_taken", "edits", "shift_ns", "size")

    def __init__(self) -> None:
        self.shift_ns: int = 0
        self.size: int = 0
        self.edits: int = 0
        #: lowest hash of each page
        self._firsts = [0]
        self._pages = [_Page()]
        self._swept = self._taken = 0

    def apply_clock(self, step_ns: int) -> None:
        """Apply a step of wall time: windows move with it."""
        self.shift_ns += step_ns

    def holders(self, hashed: int, now_ns: int) -> Iterator[tuple[int, int]]:
        """Yield (job, location) of the jobs that hold this hash at ``now_ns`` of wall time."""
        moment = now_ns - self.shift_ns
        page = self._pages[bisect_right(self._firsts, hashed) - 1]
        hashes = page.hashes
        for at in range(bisect_left(hashes, hashed), len(hashes)):
            if hashes[at] != hashed:
                return
            until = page.untils[at]
            if until > moment or until < 0:
                yield page.jobs[at], page.locations[at]

    def apply_taken(
        self,
        hashed: int,
        job: int,
        location: int,
        window_ns: int,
        now_ns: int,
        *,
        until_settled: bool = False,
    ) -> None:
        """Give the key to a job for ``window_ns``, 0 meaning until it is settled.

        With a window and ``until_settled`` the job holds the key until both are over.
        """
        moment = now_ns - self.shift_ns
        until = UNTIL_SETTLED
        if window_ns:
            until = min(max(moment + window_ns, 0), UNTIL_SETTLED - 1)
            if until_settled:
                until = -until - 1
        number = bisect_right(self._firsts, hashed) - 1
        page = self._pages[number]
        at = bisect_right(page.hashes, hashed)
        if at and page.hashes[at - 1] == hashed:
            at = self._forget_over(page, at, moment)
        page.hashes.insert(at, hashed)
        page.jobs.insert(at, job)
        page.locations.insert(at, location)
        page.untils.insert(at, until)
        self.size += 1
        if len(page.hashes) > 2 * _PAGE:
            self._split(number)
        self._taken += 1
        if not self._taken % _SWEEP_EVERY:
            self._sweep(moment)

    def _forget_over(self, page: _Page, end: int, moment: int) -> int:
        """Drop entries of a hash before ``end`` whose window ended; return the new end.

        If a power loss removed the record of a clock step, such a window would be open again, and
        two jobs would hold the key.
        """
        hashed = page.hashes[end - 1]
        for at in range(end - 1, -1, -1):
            if page.hashes[at] != hashed:
                break
            if 0 <= page.untils[at] <= moment:
                self._remove(page, at)
                end -= 1
        return end

    def apply_free(self, hashed: int, job: int, now_ns: int) -> None:
        """Free the key of a settled job, if it was held until then and its window has ended."""
        page = self._pages[bisect_right(self._firsts, hashed) - 1]
        at = _find(page, hashed, job)
        if at < 0:
            return
        until = page.untils[at]
        if until < 0 and -until - 1 > now_ns - self.shift_ns:
            page.untils[at] = -until - 1
        elif until < 0 or until == UNTIL_SETTLED:
            self._remove(page, at)

    def apply_free_unread(self, job: int, now_ns: int) -> None:
        for page in self._pages:
            if job in page.jobs:
                self.apply_free(page.hashes[page.jobs.index(job)], job, now_ns)
                return

    def apply_dropped(self, hashed: int, job: int) -> None:
        page = self._pages[bisect_right(self._firsts, hashed) - 1]
        at = _find(page, hashed, job)
        if at >= 0:
            self._remove(page, at)

    def _remove(self, page: _Page, at: int) -> None:
        for column in page.columns():
            del column[at]
        self.size -= 1

    def apply_moved(self, hashed: int, job: int, location: int) -> bool:
        """Set the new location of the job's record; False if the job does not hold the key."""
        page = self._pages[bisect_right(self._firsts, hashed) - 1]
        at = _find(page, hashed, job)
        if at >= 0:
            page.locations[at] = location
        return at >= 0

    def until_ns(self, hashed: int, job: int) -> int:
        """Return the wall time until which the job holds the key at least; 0 without the key.

        UNTIL_SETTLED if the job holds the key exactly until it is settled.
        """
        page = self._pages[bisect_right(self._firsts, hashed) - 1]
        at = _find(page, hashed, job)
        if at < 0:
            return 0
        until = page.untils[at]
        if until == UNTIL_SETTLED:
            return until
        return (until if until >= 0 else -until - 1) + self.shift_ns

    def would_free(self, hashed: int, job: int, now_ns: int) -> bool:
        page = self._pages[bisect_right(self._firsts, hashed) - 1]
        at = _find(page, hashed, job)
        until = page.untils[at] if at >= 0 else UNTIL_SETTLED
        return until == UNTIL_SETTLED or (until < 0 and -until - 1 <= now_ns - self.shift_ns)

    def rows(self, hashed: int, now_ns: int) -> tuple[list[tuple[int, int]], int]:
        """Return (job, location) of the holders on a hash's page, and the next page's hash or -1.

        Keys with a window that ended by ``now_ns`` of wall time are left out.
        """
        number = bisect_right(self._firsts, hashed) - 1
        page, moment = self._pages[number], now_ns - self.shift_ns
        following = self._firsts[number + 1] if number + 1 < len(self._firsts) else -1
        columns = zip(page.jobs, page.locations, page.untils, strict=True)
        held = [(job, at) for job, at, until in columns if until > moment or until < 0]
        return held, following

    def check_room(self, now_ns: int, more: int, keys_max: int) -> None:
        """Refuse ``more`` keys if there would be over ``keys_max`` of them.

        Raises:
            UsageError: the limit is reached, and the swept pages have no ended windows.
        """
        swept = 0
        while self.size + more > keys_max:
            if swept >= min(_SWEPT_WHEN_FULL, len(self._pages) + 1):
                raise UsageError(
                    f"{self.size} dedup keys are held, and keys_max is {keys_max}: use shorter "
                    f"windows, or raise keys_max"
                )
            # A full table takes no key, so no other call would sweep it.
            self._sweep(now_ns - self.shift_ns)
            swept += 1

    def _split(self, number: int) -> None:
        page = self._pages[number]
        hashes = page.hashes
        # Equal hashes stay on one page, since ``holders`` reads a single page.
        at = bisect_left(hashes, hashes[_PAGE]) or bisect_right(hashes, hashes[_PAGE])
        if at == len(hashes):
            return
        upper = _Page()
        for column, rest in zip(page.columns(), upper.columns(), strict=True):
            rest.extend(column[at:])
            del column[at:]
        self._pages.insert(number + 1, upper)
        self._firsts.insert(number + 1, upper.hashes[0])

    def _sweep(self, moment: int) -> None:
        """Drop keys of the next page whose window ended, and join it to the previous page."""
        number = self._swept if self._swept < len(self._pages) else 0
        page = self._pages[number]
        self._swept = number + 1
        if page.untils and min(page.untils) <= moment:
            kept = [at for at, until in enumerate(page.untils) if until > moment or until < 0]
            self.size -= len(page.untils) - len(kept)
            for column in page.columns():
                column[:] = array(column.typecode, [column[at] for at in kept])
        if number and len(self._pages[number - 1].hashes) + len(page.hashes) <= _PAGE:
            before = self._pages[number - 1]
            for column, rest in zip(before.columns(), page.columns(), strict=True):
                column.extend(rest)
            del self._pages[number], self._firsts[number]
            self._swept = number
