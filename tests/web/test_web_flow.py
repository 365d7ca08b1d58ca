"""The drawing of a flow: no line crosses the box of an unrelated job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskq_plugins.looks.reading import lay_out


@st.composite
def flows(draw: st.DrawFn) -> dict[int, tuple[int, ...]]:
    count = draw(st.integers(2, 12))
    return {
        number: tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=4))))
        if number
        else ()
        for number in range(count)
    }


@given(flows())
def test_lines_lead_between_columns_or_across_one_in_a_row_without_a_box(
    inputs: dict[int, tuple[int, ...]],
) -> None:
    places, steps = lay_out(inputs)
    boxes = set(places.values())
    assert len(boxes) == len(inputs)
    for start, end in steps:
        if start == end:
            assert start not in boxes
        else:
            assert end[0] == start[0] + 1
    # Each job is reached from its inputs, and from nothing else.
    for number, before in inputs.items():
        ends = {places[number]}
        sources = set()
        while ends:
            ends = {start for start, end in steps if end in ends and start != end}
            sources |= ends & boxes
            ends -= boxes
        assert sources == {places[first] for first in before}
        assert all(places[first][0] < places[number][0] for first in before)


def test_a_line_over_three_columns_keeps_clear_of_the_boxes_between() -> None:
    places, steps = lay_out({1: (), 2: (1,), 3: (2,), 4: (1, 3)})
    assert places == {1: (0, 0), 2: (1, 0), 3: (2, 0), 4: (3, 0)}
    assert ((0, 0), (1, 1)) in steps
    assert ((1, 1), (1, 1)) in steps
    assert ((1, 1), (2, 1)) in steps
    assert ((2, 1), (3, 0)) in steps
