"""Rates: how they are written, and what a window of claims allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.errors import UsageError
from taskq.core.model import SECOND_NS
from taskq.core.rates import RATE_COUNT_MAX, Rate, Times, rate_of


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
