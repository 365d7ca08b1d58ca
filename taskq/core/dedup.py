"""Which dedup keys are taken, and by which job. A fold of the log.

Keys are known by 32 bits of a hash of (queue, key) in an open-addressed table of flat arrays: 28
bytes an entry, 35 to 40 with the free places (a dict of ints costs over 100). A hash that matches
is verified against the job's record by the caller, so a collision costs a look, never a wrong
answer.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING, Final

from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Held until the job is settled.
UNTIL_SETTLED: Final = 2**63 - 1
#: Most keys held at a time; an enqueue beyond is refused.
KEYS_MAX: Final = 50_000_000
#: The table is kept between 71 and 80 per cent full: it grows by an eighth.
_FULL: Final = 0.8
_SMALLEST: Final = 1_024


def key_hash(queue: bytes, key: bytes) -> int:
    """The key's 64-bit number, never 0, the same on every machine."""
    digest = hashlib.blake2b(bytes((len(queue),)) + queue + key, digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


class Dedup:
    """Hash -> (job, location of its record, until).

    ``until`` is shifted time (see ``agenda``) or UNTIL_SETTLED.
    """

    def __init__(self) -> None:
        self.shift_ns = 0
        self.size = 0
        self._allocate(_SMALLEST)

    def apply_clock(self, step_ns: int) -> None:
        """Wall time made a step: windows move with it."""
        self.shift_ns += step_ns

    def holders(self, hashed: int, now_ns: int) -> Iterator[tuple[int, int]]:
        """(job, location) of those that hold such a hash at ``now_ns`` of wall time."""
        moment = now_ns - self.shift_ns
        hashed = _short(hashed)
        hashes = self._hashes
        place = hashed % self._places
        while hashes[place]:
            if hashes[place] == hashed and self._untils[place] > moment:
                yield self._jobs[place], self._locations[place]
            place = (place + 1) % self._places

    def apply_taken(
        self, hashed: int, job: int, location: int, window_ns: int, now_ns: int
    ) -> None:
        """A job took the key for ``window_ns``, 0 meaning until it is settled."""
        moment = now_ns - self.shift_ns
        if self.size >= self._places * _FULL:
            self._make_room(moment)
        until = min(moment + window_ns, UNTIL_SETTLED - 1) if window_ns else UNTIL_SETTLED
        self._insert(_short(hashed), job, location, until)
        self.size += 1

    def apply_free(self, hashed: int, job: int) -> None:
        """The job is settled: its key is free, if it was held until then."""
        hashed = _short(hashed)
        hashes = self._hashes
        place = hashed % self._places
        while hashes[place]:
            if hashes[place] == hashed and self._jobs[place] == job:
                if self._untils[place] == UNTIL_SETTLED:
                    self._close_gap(place)
                    self.size -= 1
                return
            place = (place + 1) % self._places

    def check_room(self) -> None:
        """Raise UsageError when the table is at its limit."""
        if self.size >= KEYS_MAX:
            raise UsageError(
                f"{self.size} dedup keys are held, the limit is {KEYS_MAX}: use shorter windows"
            )

    def _allocate(self, places: int) -> None:
        self._places = places
        self._hashes = array("I", bytes(4 * places))
        self._jobs = array("Q", bytes(8 * places))
        self._locations = array("Q", bytes(8 * places))
        self._untils = array("q", bytes(8 * places))

    def _insert(self, hashed: int, job: int, location: int, until: int) -> None:
        hashes = self._hashes
        place = hashed % self._places
        while hashes[place]:
            place = (place + 1) % self._places
        hashes[place] = hashed
        self._jobs[place] = job
        self._locations[place] = location
        self._untils[place] = until

    def _make_room(self, moment: int) -> None:
        """Drop keys whose window is over; grow only if the table is still full enough."""
        hashes, untils = self._hashes, self._untils
        jobs, locations = self._jobs, self._locations
        live = sum(1 for place in range(self._places) if hashes[place] and untils[place] > moment)
        places = self._places
        while live >= places * _FULL * 0.9:
            places += places // 8
        self._allocate(places)
        self.size = 0
        for place, hashed in enumerate(hashes):
            if hashed and untils[place] > moment:
                self._insert(hashed, jobs[place], locations[place], untils[place])
                self.size += 1

    def _close_gap(self, gap: int) -> None:
        """Empty a place and move the run behind it up: every probe still finds its entry."""
        hashes, places = self._hashes, self._places
        columns = (hashes, self._jobs, self._locations, self._untils)
        place = gap
        while True:
            place = (place + 1) % places
            hashed = hashes[place]
            if not hashed:
                break
            if (place - hashed % places) % places >= (place - gap) % places:
                for column in columns:
                    column[gap] = column[place]
                gap = place
        hashes[gap] = 0


def _short(hashed: int) -> int:
    return (hashed & 0xFFFFFFFF) or 1
