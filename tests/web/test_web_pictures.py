"""Charts are readable: short bars are visible, and a bulk does not flatten all others."""

from __future__ import annotations

from taskq.views import Minute
from taskq_plugins.looks.reading import Chart, Life, chart_of


def test_a_bar_is_seen_however_short_and_stands_within_the_life() -> None:
    life = Life(1_000, 3_000)
    assert life.span(1_500, 2_500) == (250.0, 500.0)
    assert life.span(2_000, 2_000) == (500.0, 4)
    assert life.span(0, 1_500) == (0.0, 250.0)  # it began before what is drawn
    assert life.span(3_000, 3_000) == (996, 4)


def chart(*minutes: dict[str, int]) -> Chart:
    chart = chart_of([Minute(0, counts, 0, 0) for counts in minutes], 0, 0)
    assert chart is not None
    return chart


def levels(points: str) -> list[float]:
    return [float(point.split(",")[1]) for point in points.split()]


def test_a_bulk_that_came_leaves_what_ended_to_be_seen() -> None:
    seen = chart({"enqueued": 20_000}, {"succeeded": 10, "enqueued": 5})
    assert (seen.top, seen.came_most) == (20, 20_000)
    assert levels(seen.came) == [0, 75]  # cut at the upper edge
    assert seen.columns[1].boxes == (("succeeded", 50, 50),)


def test_what_came_sets_the_scale_where_it_is_not_far_more_or_nothing_ended() -> None:
    assert chart({"enqueued": 15}, {"succeeded": 10}).top == 15
    assert chart({"enqueued": 9}, {"dead": 10}).top == 10
    assert chart({"enqueued": 20_000}).top == 20_000
    assert chart_of([Minute(0, {}, 0, 0)], 0, 0) is None
