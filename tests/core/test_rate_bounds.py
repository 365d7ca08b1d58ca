"""Rates at their bounds, and the times of claims against counting each."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskq.core.errors import UsageError
from taskq.core.model import SECOND_NS
from taskq.core.rates import (
    RATE_COUNT_MAX,
    RATE_WINDOW_NS_MAX,
    RATE_WINDOW_NS_MIN,
    Rate,
    Times,
    rate_of,
)

WINDOW = 100
CLAIMS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 3)), max_size=30)


def test_the_largest_and_the_smallest_rate_are_rates_and_their_neighbours_are_not() -> None:
    assert rate_of(f"{RATE_COUNT_MAX}/s").count == RATE_COUNT_MAX
    assert rate_of("1/1ms").window_ns == RATE_WINDOW_NS_MIN
    assert rate_of("1/24h").window_ns == RATE_WINDOW_NS_MAX
    for count, window_ns in (
        (RATE_COUNT_MAX + 1, SECOND_NS),
        (0, SECOND_NS),
        (1, RATE_WINDOW_NS_MIN - 1),
        (1, RATE_WINDOW_NS_MAX + 1),
    ):
        with pytest.raises(UsageError):
            Rate(count, window_ns)


def made(spans: list[tuple[int, int]], most: int) -> tuple[Times, list[int]]:
    times, claims, now = Times(), [], 0
    for span, count in spans:
        now += span
        times.add(now, count, most, WINDOW)
        claims += [now] * count
    return times, claims


@given(
    spans=CLAIMS, count=st.integers(1, 8), window=st.integers(1, WINDOW), later=st.integers(0, 99)
)
@example(spans=[(0, 1), (2, 1)], count=2, window=WINDOW, later=99)  # the first counts no more
def test_at_the_moment_that_is_told_a_claim_is_free_and_not_before(
    spans: list[tuple[int, int]], count: int, window: int, later: int
) -> None:
    times, claims = made(spans, 8)
    rate = Rate.__new__(Rate)  # windows of a few nanoseconds, which nobody may have
    object.__setattr__(rate, "count", count)
    object.__setattr__(rate, "window_ns", window)
    now = (claims[-1] if claims else 0) + later

    def room(moment: int) -> int:
        return max(count - sum(claim > moment - window for claim in claims[-8:]), 0)

    free = times.free_at(now, rate)
    assert times.room(now, rate) == room(now)
    assert free >= now
    assert room(free) > 0
    assert free == now or room(free - 1) == 0


@given(first=CLAIMS, second=CLAIMS, is_apart=st.booleans())
def test_united_times_have_what_either_has(
    first: list[tuple[int, int]], second: list[tuple[int, int]], is_apart: bool
) -> None:
    item, _ = made(first, 1_000)
    other, _ = made(second, 1_000)
    mine, theirs = dict(item.pairs()), dict(other.pairs())
    item.unite(other, is_apart=is_apart)
    last = max([*mine, *theirs], default=0)
    expected = {
        moment: mine.get(moment, 0) + theirs.get(moment, 0)
        if is_apart
        else max(mine.get(moment, 0), theirs.get(moment, 0))
        for moment in sorted({*mine, *theirs})
        if moment > last - WINDOW
    }
    assert dict(item.pairs()) == expected
    assert item.total == sum(expected.values())
    assert item.entries == len(expected)


def test_only_as_many_claims_are_kept_as_matter_the_latest() -> None:
    times = Times()
    for moment in (1, 2, 3):
        times.add(moment, 4, 5, WINDOW)
    assert times.pairs() == [(2, 1), (3, 4)]
    assert times.total == 5
    times.forget(1 + WINDOW)
    assert times.pairs() == [(2, 1), (3, 4)]
    times.forget(2 + WINDOW)
    assert times.pairs() == [(3, 4)]
