"""Set a worker's pace: how many jobs to claim at once, and how long to rest when refused.

As many are claimed as are done in the time that a claim takes, no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Most deliveries that one claim asks for, unless there are more than half as many slots.
BATCH_MAX: Final = 512
#: A full batch that is done sooner lets the next one be twice as large.
BATCH_SECONDS_SHORT: Final = 0.020
#: A batch that takes longer halves the next one.
BATCH_SECONDS_LONG: Final = 0.100
#: Pauses before what was refused (disk full, log locked) is tried again: the first and the longest;
#: each is twice the one before.
PAUSE_SECONDS_FIRST: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5.0


class Pace:
    """The batch size: from the number of slots up to ``BATCH_MAX``, or twice the number of slots.

    One batch is measured at a time: from its arrival until as many jobs are finished as waited
    then. Any jobs count, so that one slow job among many fast ones makes no batch look slow.

    Attributes:
        size: deliveries to ask for.
        ahead: whether to claim before a slot is free.
    """

    __slots__ = ("_concurrency", "_full", "_goal", "_since", "_size_max", "ahead", "size")

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._size_max = max(BATCH_MAX, 2 * concurrency)
        self.size = concurrency
        self.ahead = False
        self._goal = 0
        self._full = False
        self._since = 0.0

    def claimed(self, *, waiting: int, full: bool, now: float) -> None:
        """Learn from a claim: ``waiting`` are in the buffer; ``full``: as many as asked for."""
        if self._goal <= 0:
            self._goal = waiting
            self._full = full
            self._since = now

    def finished(self, count: int, now: float) -> None:
        if self._goal <= 0:
            return
        self._goal -= count
        if self._goal > 0:
            return
        seconds = now - self._since
        if seconds > BATCH_SECONDS_LONG:
            self._resize(self.size // 2)
        elif seconds < BATCH_SECONDS_SHORT and self._full:
            self._resize(self.size * 2)

    def cut(self) -> None:
        """Claim for free slots alone again: the jobs turned slow, or there are none."""
        self._goal = 0
        self._resize(0)

    def _resize(self, size: int) -> None:
        self.size = max(self._concurrency, min(size, self._size_max))
        self.ahead = self.size > self._concurrency


class Pause:
    """Seconds before the next try: each pause is twice the last, if that was not long ago."""

    __slots__ = ("_last", "_seconds", "_time")

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._last = 0.0
        self._seconds = 0.0

    def next(self) -> float:
        now = self._time()
        if now - self._last > 2 * PAUSE_SECONDS_MAX:
            self._seconds = 0.0
        self._last = now
        self._seconds = min(max(self._seconds * 2, PAUSE_SECONDS_FIRST), PAUSE_SECONDS_MAX)
        return self._seconds
