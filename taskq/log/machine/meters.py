"""Counters of the engine of one process, as plain numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from taskq.core import model, views

#: Duration above which an fsync counts as slow, and is logged.
SLOW_SYNC_NS: Final = model.SECOND_NS
#: Values up to twice this have a bucket each; every doubling above has this many buckets.
_PER_OCTAVE: Final = 4
_MANTISSA_BITS: Final = 3
#: Buckets up to 2^40, 18 minutes in nanoseconds; larger numbers go into the last bucket.
_BUCKETS: Final = (40 - _MANTISSA_BITS) * _PER_OCTAVE + 2 * _PER_OCTAVE


class Histogram:
    """Counts of whole numbers in buckets, each at most a quarter wide.

    Attributes:
        record: adds a number; a negative number (a clock that fell) counts as 0.
    """

    __slots__ = ("_buckets", "_count", "_guard", "_largest", "_noted", "_total", "record")

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self._count = self._total = self._largest = 0
        self._noted: list[int] = []
        #: only the counting thread takes numbers out
        self._guard = threading.Lock()
        self.record: Callable[[int], None] = self._noted.append

    @property
    def count(self) -> int:
        self.settle()
        return self._count

    @property
    def total(self) -> int:
        self.settle()
        return self._total

    @property
    def largest(self) -> int:
        self.settle()
        return self._largest

    def settle(self) -> None:
        noted = self._noted
        with self._guard:
            while noted:
                self._count_in(noted.pop())

    def _count_in(self, value: int) -> None:
        value = max(value, 0)
        # The number's highest three bits and their position: a bucket without a search.
        shift = value.bit_length() - _MANTISSA_BITS
        index = shift * _PER_OCTAVE + (value >> shift) if shift > 0 else value
        self._buckets[index if index < _BUCKETS else _BUCKETS - 1] += 1
        self._count += 1
        self._total += value
        self._largest = max(self._largest, value)

    def quantile(self, share: float) -> float:
        """Return a quantile: about ``share`` of all numbers are at most it; 0 without numbers.

        It is the nearest rank, in the middle of its bucket: off by at most an eighth.
        """
        rank = share * self.count
        running_total = 0
        for index, count in enumerate(self._buckets):
            running_total += count
            if count and running_total >= rank:
                first, following = _bounds(index)
                return min((first + following - 1) / 2, self.largest)
        return 0.0

    def spread(self, unit: int = 1) -> views.Spread:
        """Return the distribution, its numbers divided by ``unit``."""
        return views.Spread(
            count=self.count,
            mean=self.total / self.count / unit if self.count else 0.0,
            p50=self.quantile(0.50) / unit,
            p95=self.quantile(0.95) / unit,
            p99=self.quantile(0.99) / unit,
            max=self.largest / unit,
        )

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Return (largest number of a bucket, count) of each bucket that is not empty, in order."""
        self.settle()
        return tuple(
            (_bounds(index)[1] - 1, count) for index, count in enumerate(self._buckets) if count
        )


def _bounds(index: int) -> tuple[int, int]:
    shift = max(index // _PER_OCTAVE - 1, 0)
    mantissa = index - shift * _PER_OCTAVE
    return mantissa << shift, (mantissa + 1) << shift


class Meters:
    """Counters of one process's use of a log; its storage thread writes them.

    They cost nothing per job: a batch, an fsync or a wait for the lock is one ``record``, which
    only notes the number. Numbers are counted on demand, and once a second.

    Attributes:
        sizes: records of each frame that this process appended.
        appended_bytes: bytes appended to segments, with frame headers and carried jobs.
        payload_bytes: payload bytes of the jobs that it enqueued.
        upkeep_bytes: bytes that upkeep wrote into other files: indexes, snapshots.
        syncs: nanoseconds of each fsync of a segment; slow_syncs: number of fsyncs over a second.
        open_ns: duration of opening, without the wait for the lock.
    """

    __slots__ = (
        "appended_bytes",
        "open_ns",
        "payload_bytes",
        "sizes",
        "slow_syncs",
        "syncs",
        "upkeep_bytes",
    )

    def __init__(self) -> None:
        self.appended_bytes: int = 0
        self.payload_bytes: int = 0
        self.upkeep_bytes: int = 0
        self.slow_syncs: int = 0
        self.open_ns: int = 0
        self.sizes: Histogram = Histogram()
        self.syncs: Histogram = Histogram()

    @property
    def batches(self) -> int:
        return self.sizes.count

    @property
    def records(self) -> int:
        return self.sizes.total

    def settle(self) -> None:
        self.sizes.settle()
        self.syncs.settle()
