"""The engine's counters: a histogram without a search, and a process's published figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.log.machine.meters import Histogram


def _histogram(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=50), st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_at_most_an_eighth_beside_the_true_one(
    values: list[int], share: float
) -> None:
    rank = max(-int(-share * len(values) // 1), 1)
    true = sorted(values)[rank - 1]
    assert _histogram(values).quantile(share) == pytest.approx(true, rel=0.125)


@given(st.lists(st.integers(0, 2**40 - 1), max_size=50))
def test_buckets_cover_all_numbers_in_order_and_are_at_most_a_quarter_wide(
    values: list[int],
) -> None:
    buckets = _histogram(values).buckets()
    assert sum(count for _, count in buckets) == len(values)
    bounds = [bound for bound, _ in buckets]
    assert bounds == sorted(set(bounds))
    below = 0
    for bound, count in buckets:
        inside = [value for value in values if below <= value <= bound]
        assert len(inside) == count
        assert all(value >= bound * 0.8 - 1 for value in inside)
        below = bound + 1


def test_what_is_beyond_the_last_bucket_is_counted_and_its_largest_is_exact() -> None:
    histogram = _histogram([2**60, 5])
    assert histogram.count == 2
    assert histogram.largest == histogram.spread().max == 2**60
