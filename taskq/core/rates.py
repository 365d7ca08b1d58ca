"""Limits of tasks, and rates counted exactly, claim by claim."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from taskq.core.durations import nanoseconds, spoken
from taskq.core.errors import UsageError
from taskq.core.model import SECOND_NS
from taskq.core.values import dataclass

#: Highest concurrency of a group.
CONCURRENCY_MAX: Final = 1_000_000
#: Most claims in one window; the time of each claim is kept.
RATE_COUNT_MAX: Final = 100_000
RATE_WINDOW_NS_MIN: Final = SECOND_NS // 1_000
RATE_WINDOW_NS_MAX: Final = 86_400 * SECOND_NS
#: A lane that waits for its rate is checked again once this part of the window has become free, so
#: a rate of thousands a second causes few wake-ups.
_PATIENCE: Final = 200
_PATIENCE_NS_MAX: Final = SECOND_NS // 20
#: Past entries before they are removed.
_PAST_MAX: Final = 64
_TEXT: Final = r"(?a)\s*([0-9]{1,9})\s*/\s*([0-9.]*)\s*([a-z]+)\s*"
_WORDS: Final = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d"}


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` claims in any ``window_ns``."""

    count: int
    window_ns: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= RATE_COUNT_MAX:
            raise UsageError(f"a rate of {self.count} jobs: it must be 1 to {RATE_COUNT_MAX}")
        if not RATE_WINDOW_NS_MIN <= self.window_ns <= RATE_WINDOW_NS_MAX:
            raise UsageError(
                f"a rate is over {self.window_ns / SECOND_NS:g} s: it must be 1 ms to 1 day"
            )

    def __str__(self) -> str:
        for unit in ("s", "m", "h", "d"):
            if self.window_ns == nanoseconds(f"1{unit}"):
                return f"{self.count}/{'min' if unit == 'm' else unit}"
        whole = self.window_ns % SECOND_NS == 0
        over = spoken(self.window_ns) if whole else f"{self.window_ns / 1_000_000:g}ms"
        return f"{self.count}/{over}"

    @property
    def patience_ns(self) -> int:
        return min(self.window_ns // _PATIENCE, _PATIENCE_NS_MAX)


def rate_of(text: object) -> Rate:
    match = re.fullmatch(_TEXT, text) if isinstance(text, str) else None
    window_ns = None if match is None else _window_ns(match[2], match[3])
    if match is None or window_ns is None:
        raise UsageError(
            f'rate is {text!r:.60}: give text such as "10/s", "100/min", "1000/h" or "5/30s"'
        )
    return Rate(int(match[1]), window_ns)


def _window_ns(span: str, unit: str) -> int | None:
    try:
        return nanoseconds(f"{span or 1}{_WORDS.get(unit, unit)}")
    except UsageError:  # its error names a text that no user wrote
        return None


class Times:
    """Claim times of one group, as far back as they count.

    A rate allows at most ``count`` claims in any window of time. Two claims exactly one window
    apart are never in the same window. Moments are shifted time (see ``moments.Timetable``), so a
    step of the clock neither frees nor delays any claim.

    Attributes:
        total: number of claims kept.
        most: number of claims that count.
        window_ns: age up to which they count.
    """

    __slots__ = ("_counts", "_head", "_moments", "most", "total", "window_ns")

    def __init__(self) -> None:
        self._moments = array("q")
        self._counts = array("I")
        self._head = 0
        self.total: int = 0
        self.most: int = 0
        self.window_ns: int = 0

    def add(self, moment: int, count: int, most: int, window_ns: int) -> None:
        self.forget(moment)
        if not self.total:
            self.most = self.window_ns = 0
        # Two processes may use different rates: keep enough times for the higher rate.
        self.most = max(self.most, min(most, RATE_COUNT_MAX))
        self.window_ns = max(self.window_ns, min(window_ns, RATE_WINDOW_NS_MAX))
        moments = self._moments
        count = min(count, self.most)
        if self.total and moments[-1] >= moment:
            self._counts[-1] += count
        else:
            moments.append(moment)
            self._counts.append(count)
        self.total += count
        while self.total > self.most:
            more = min(self.total - self.most, self._counts[self._head])
            self._counts[self._head] -= more
            self.total -= more
            if not self._counts[self._head]:
                self._drop()

    def forget(self, moment: int) -> None:
        """Drop claims that are in no window that ends at ``moment`` or later."""
        since = moment - self.window_ns
        while self.total and self._moments[self._head] <= since:
            self.total -= self._counts[self._head]
            self._drop()

    def room(self, moment: int, rate: Rate) -> int:
        self.forget(moment)
        return max(rate.count - sum(self._counts[self._since(moment, rate) :]), 0)

    def free_at(self, moment: int, rate: Rate) -> int:
        self.forget(moment)
        at = self._since(moment, rate)
        over = sum(self._counts[at:]) - rate.count + 1
        free = moment
        while over > 0:
            free = self._moments[at] + rate.window_ns
            over -= self._counts[at]
            at += 1
        return free

    @property
    def entries(self) -> int:
        return len(self._moments) - self._head

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._moments[self._head :], self._counts[self._head :], strict=True))

    def replace(self, pairs: Iterable[tuple[int, int]], most: int, window_ns: int) -> None:
        self.__init__()  # type: ignore[misc]  # as new
        for moment, count in pairs:
            self.add(moment, count, most, window_ns)

    def unite(self, other: Times, *, is_apart: bool = False) -> None:
        """Add the claims of another object; ``is_apart``: it counts other claims than this one."""
        counts = dict(self.pairs())
        for moment, count in other.pairs():
            known = counts.get(moment, 0)
            counts[moment] = known + count if is_apart else max(known, count)
        most, window_ns = max(self.most, other.most), max(self.window_ns, other.window_ns)
        self.replace(sorted(counts.items()), most, window_ns)

    def _since(self, moment: int, rate: Rate) -> int:
        if rate.window_ns >= self.window_ns:
            return self._head
        return bisect_right(self._moments, moment - rate.window_ns, self._head)

    def _drop(self) -> None:
        self._head += 1
        if self._head > _PAST_MAX and self._head * 2 > len(self._moments):
            del self._moments[: self._head], self._counts[: self._head]
            self._head = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limit of each group of a task.

    Attributes:
        concurrency: most jobs running at a time; 0 for no limit.
        rate: most claims in a window of time.
        scope: name for the task's groups, since a task may have several names.
    """

    concurrency: int = 0
    rate: Rate | None = None
    scope: str = ""
