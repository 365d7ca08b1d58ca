"""``Lane``: ids come out oldest first, whether they came fresh or were given back."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.core.folds import lanes, moments
from taskq.core.folds.lanes import Family, Lane
from taskq.core.folds.moments import NO_JOB
from tests.effort import grows, some

PUSH = st.tuples(st.just("push"), st.integers(1, 4), st.just(0))
RUN = st.tuples(st.just("push run"), st.integers(0, 13), st.just(0))
BACK = st.tuples(st.just("give back"), st.integers(0, 10_000), st.just(0))
POP = st.tuples(st.just("pop"), st.integers(0, 11), st.integers(0, 200) | st.just(NO_JOB))
SWEEP = st.tuples(st.just("sweep"), st.integers(1, 5), st.just(0))
STEPS = st.lists(PUSH | PUSH | RUN | BACK | POP | SWEEP, max_size=120)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    """Blocks of 4 ids, so that a short history meets their ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "_BLOCK", 4)
        patch.setattr(lanes, "_BLOCK", 4)
        yield


def lane() -> Lane:
    return Lane(0, b"\x07\x01defaultt", 5)


def sweep_all(held: Lane, stale: set[int]) -> None:
    """A call for every block of fresh jobs and of those given back, and as many again."""
    for _ in range(2 * (len(held._blocks) + held.entries) + 2):
        held.sweep(lambda job: job not in stale)


@grows
@settings(max_examples=some(100, 200))
@given(steps=STEPS)
def test_any_history_equals_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    """Pops return the smallest ids under the bound, each as often as it was put in."""
    held, model, gone = lane(), list[int](), [0]
    last = 0
    for name, number, below in steps:
        if name == "push":
            last += number
            held.push(last)
            model.append(last)
        elif name == "push run":
            held.push_run(last + 2, number)
            model += range(last + 2, last + 2 + number)
            last += 1 + number
        elif name == "give back":
            for job in gone[number % max(len(gone), 1) :][:1]:
                held.give_back(job, 0)
                if job not in model:
                    insort(model, job)
        elif name == "sweep":
            swept = {job for job in model if job % (number + 1) == 0}
            sweep_all(held, swept)
            gone += swept
            left = list(held)
            # A returned entry is taken out at its claim, and needs no sweep.
            assert set(model) - swept <= set(left) <= set(model)
            assert left == sorted(left)
            gone = [job for job in gone if job not in left]
            model = left
        else:
            expected = [job for job in model if job < below][:number]
            assert held.pop(number, below) == expected
            del model[: len(expected)]
            gone += expected
        assert held.entries == len(model)
        assert list(held) == model
        assert held.head() == (model[0] if model else NO_JOB)
    assert held.pop(len(model) + 1, NO_JOB) == model


def test_a_job_that_leaves_takes_its_entry_along_unless_an_older_one_waits() -> None:
    held = lane()
    for job in range(1, 8):
        held.push(job)
    held.give_back(9, 5)
    held.leave(9, lambda _: True)
    assert held.back_since(9) is None
    held.leave(2, lambda job: job == 1)
    assert list(held) == [1, 2, 3, 4, 5, 6, 7]
    held.leave(4, lambda job: job > 4)
    assert list(held) == [5, 6, 7]
    assert held.entries == 3
    held.leave(20, lambda _: False)
    assert (held.entries, held.head()) == (0, NO_JOB)


def test_jobs_that_stand_first_leave_together_and_others_not() -> None:
    held = lane()
    held.push_run(1, 10)
    assert not held.leave_run([2, 3])
    assert not held.leave_run([1, 2, 4])
    assert not held.leave_run(list(range(1, 12)))
    assert list(held) == list(range(1, 11))
    assert held.leave_run([1, 2, 3, 4, 5, 6])
    assert (list(held), held.entries) == ([7, 8, 9, 10], 4)
    held.give_back(3, 0)
    assert not held.leave_run([3, 7])


@pytest.mark.parametrize("most", range(1, 7))
def test_a_family_shows_the_lanes_with_the_oldest_jobs_and_keeps_them(most: int) -> None:
    """A claim of a few jobs looks at as many lanes, of however many there are."""
    family = Family(lane())
    for number, job in enumerate((30, 10, 50, 20, 40), 1):
        keyed = Lane(number, b"\x07\x01defaultt#%d" % number, 5)
        keyed.push(job)
        family.put(keyed)
    for _ in range(2):
        assert sorted(item.head() for item in family.front(most)) == [10, 20, 30, 40, 50][:most]
    assert (family.head(), family.number) == (10, 2)


def test_a_job_that_came_back_just_then_is_within_that_moment() -> None:
    held = lane()
    held.give_back(3, 100)
    for moment, head in ((99, NO_JOB), (100, 3)):
        assert held.has_within(0, moment) == (head == 3)
        assert held.head_within(0, moment) == head
