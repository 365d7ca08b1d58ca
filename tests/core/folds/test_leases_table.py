"""``Leases``: the table of deadlines beside a dict."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskq.core.folds import moments as leases
from taskq.core.folds.moments import Leases

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("until", "until", "drop", "time", "clock", "over")),
        st.integers(1, 9),
        st.integers(0, 60),
    ),
    max_size=80,
)


@pytest.fixture(autouse=True, scope="module")
def _little_patience() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "_STALE_MAX", 4)
        yield


@example(steps=[("until", 1, 10), ("clock", 1, 60), ("over", 1, 0)])
@given(steps=STEPS)
def test_any_history_equals_a_dict_of_deadlines(steps: list[tuple[str, int, int]]) -> None:
    held, model, now = Leases(), dict[int, int](), 1_000
    for name, job, number in steps:
        if name == "until":
            held.apply_until(job, now + number)
            model[job] = now + number
        elif name == "drop":
            held.drop(job)
            model.pop(job, None)
        elif name == "time":
            now += number
        elif name == "clock":
            now += number - 30
            held.shift_ns += number - 30
            model = {item: until + number - 30 for item, until in model.items()}
        else:
            over = held.over(now, 100)
            assert sorted(over) == sorted(item for item, until in model.items() if until <= now)
            for item in over:
                held.drop(item)
                del model[item]
        assert {
            number: held.deadline_ns(number) for number in range(1, 10) if number in model
        } == model
        assert bool(held) == bool(model)
        following = held.next_ns()
        if model:
            assert following is not None
            assert following <= min(model.values())
        assert held._order.size <= 2 * len(model) + 4


def test_a_claim_that_is_extended_without_end_takes_no_more_room() -> None:
    held = Leases()
    for moment in range(10_000):
        held.apply_until(1, moment)
    assert held._order.size < 2 * 1_024
    assert held.over(10_000, 10) == [1]
