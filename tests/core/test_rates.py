"""Rates: how they are written, and what a window of claims allows."""

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


@pytest.mark.parametrize(
    ("text", "rate", "again"),
    [
        ("10/s", Rate(10, SECOND_NS), "10/s"),
        ("100/min", Rate(100, 60 * SECOND_NS), "100/min"),
        ("100/m", Rate(100, 60 * SECOND_NS), "100/min"),
        ("1000/h", Rate(1_000, 3_600 * SECOND_NS), "1000/h"),
        ("1/day", Rate(1, 86_400 * SECOND_NS), "1/d"),
        (" 5 / 30s ", Rate(5, 30 * SECOND_NS), "5/30s"),
        ("2/250ms", Rate(2, SECOND_NS // 4), "2/250ms"),
        ("7/1.5s", Rate(7, 3 * SECOND_NS // 2), "7/1500ms"),
    ],
)
def test_a_rate_is_read_as_people_write_it_and_shown_like_that(
    text: str, rate: Rate, again: str
) -> None:
    assert rate_of(text) == rate
    assert str(rate) == again


@pytest.mark.parametrize(
    "wrong", ["", "10", "ten/s", "10/", "0/s", "10/0s", "10/2d", "10/parsec", "-1/s", 10, None]
)
def test_what_is_no_rate_is_refused_with_an_example(wrong: object) -> None:
    with pytest.raises(UsageError, match="rate"):
        rate_of(wrong)


_RATE = Rate(4, SECOND_NS)
_STEPS = st.lists(st.tuples(st.integers(0, SECOND_NS), st.integers(0, 5)), max_size=60)


@given(steps=_STEPS)
def test_a_window_allows_what_counting_every_claim_allows(steps: list[tuple[int, int]]) -> None:
    times, now = Times(), 0
    claims: list[int] = []
    for span, wanted in steps:
        now += span
        recent = [claim for claim in claims if claim > now - _RATE.window_ns]
        room = max(_RATE.count - len(recent), 0)
        assert times.room(now, _RATE) == room
        if not room:
            free = times.free_at(now, _RATE)
            assert free == recent[-_RATE.count] + _RATE.window_ns
        made = wanted  # another process may be of another mind, and exceed it
        if made:
            times.add(now, made, _RATE.count, _RATE.window_ns)
            claims += [now] * made
        assert times.total <= _RATE.count
        again = Times()
        again.replace(times.pairs(), times.most, times.window_ns)
        assert again.pairs() == times.pairs()


def test_the_times_of_a_hundred_thousand_claims_take_little_and_are_dropped() -> None:
    times = Times()
    for moment in range(300_000):
        times.add(moment, 1, RATE_COUNT_MAX, 3_600 * SECOND_NS)
    assert times.total == RATE_COUNT_MAX
    assert len(times._moments) <= 2 * RATE_COUNT_MAX + 100
    times.forget(4_000 * SECOND_NS)
    assert not times.total
    assert times.pairs() == []


# -- rate bounds -----------------------------------------------------------------------------------


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
