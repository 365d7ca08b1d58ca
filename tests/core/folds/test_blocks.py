"""``SortedBlocks``: pairs come out by key, equal keys in the order they came in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.folds import moments
from taskq.core.folds.moments import SortedBlocks

LARGEST = 2**64 - 1
KEYS = st.integers(0, 12) | st.integers(0, LARGEST)
ADD = st.tuples(st.just("add"), KEYS, st.integers(0, LARGEST))
REMOVE = st.tuples(st.just("remove"), st.just(0), st.integers(0, 12))
SWEEP = st.tuples(st.just("sweep"), st.integers(1, 3), st.integers(1, 5))
POP = st.tuples(st.just("pop"), KEYS, st.integers(0, 9))
STEPS = st.lists(ADD | ADD | ADD | POP | REMOVE | SWEEP, max_size=120)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    """Blocks of 4 pairs, so that a short history meets every split."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "_BLOCK", 4)
        yield


def pairs_of(held: SortedBlocks) -> list[tuple[int, int]]:
    return [
        pair
        for keys, values in zip(held._keys, held._values, strict=True)
        for pair in zip(keys, values, strict=True)
    ]


class Checked:
    """Blocks beside the sorted list of pairs that they must hold."""

    def __init__(self) -> None:
        self.held = SortedBlocks()
        self.pairs: list[tuple[int, int]] = []

    def step(self, name: str, key: int, number: int) -> None:
        held, pairs = self.held, self.pairs
        if name == "add":
            held.add(key, number)
            pairs.insert(bisect_right([item for item, _ in pairs], key), (key, number))
        elif name == "pop":
            due = [value for item, value in pairs if item <= key][:number]
            assert held.pop_until(key, number) == due
            del pairs[: len(due)]
        elif name == "remove":
            at = [value for _, value in pairs].index(number) if number in self.values() else None
            assert held.remove(number) == (at is not None)
            if at is not None:
                del pairs[at]
        else:
            self.sweep_all(lambda value: value % (number + 1) != 0)

    def sweep_all(self, keep: Callable[[int], bool]) -> None:
        """One call for each block, and one more: no pair that must go is left."""
        calls = len(self.held._keys) + 1
        dropped = sum(self.held.sweep(keep) for _ in range(calls))
        left = pairs_of(self.held)
        assert dropped == len(self.pairs) - len(left)
        wanted = [pair for pair in self.pairs if keep(pair[1])]
        assert [pair for pair, _ in groupby(left)] == [pair for pair, _ in groupby(wanted)]
        self.pairs = left

    def values(self) -> list[int]:
        return [value for _, value in self.pairs]


@given(steps=STEPS)
def test_any_history_equals_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    checked = Checked()
    for step in steps:
        checked.step(*step)
        assert checked.held.size == len(checked.pairs)
        assert checked.held.first_key() == (checked.pairs[0][0] if checked.pairs else None)
    assert pairs_of(checked.held) == checked.pairs
    assert list(checked.held) == checked.values()


@given(steps=STEPS)
def test_no_block_is_empty_or_over_twice_its_size(steps: list[tuple[str, int, int]]) -> None:
    """The work of one step is bounded, and ``first_key`` never looks at an empty block."""
    checked = Checked()
    for step in steps:
        checked.step(*step)
        assert all(0 < len(keys) <= 8 for keys in checked.held._keys)
        assert checked.held._firsts == [keys[0] for keys in checked.held._keys]


def test_a_sweep_looks_at_one_block_and_joins_what_is_left_of_several() -> None:
    """100 blocks with one pair left in each become 25: a pair never keeps a block for itself."""
    held = SortedBlocks()
    for number in range(400):
        held.add(number, number)
    asked: list[int] = []

    def keep(value: int) -> bool:
        asked.append(value)
        return value % 4 == 0

    held.sweep(keep)
    assert len(asked) <= 8
    for _ in range(110):
        held.sweep(keep)
    assert list(held) == list(range(0, 400, 4))
    assert len(held._keys) <= 50


def test_what_is_left_of_a_block_is_joined_to_the_one_before_only_if_both_fit_into_one() -> None:
    held = SortedBlocks()
    for number in range(8):
        held.add(number, number)
    assert [len(keys) for keys in held._keys] == [4, 4]
    assert held.remove(7)
    assert [len(keys) for keys in held._keys] == [4, 3]
    for gone in (0, 1, 2):
        assert held.remove(gone)
    assert held.remove(6)
    assert [len(keys) for keys in held._keys] == [3]
    assert list(held) == [3, 4, 5]


def test_a_key_below_zero_or_above_64_bits_is_looked_up_without_an_error() -> None:
    """A clock that stepped far makes moments below zero: nothing is due then."""
    held = SortedBlocks()
    held.add(5, 1)
    assert held.pop_until(-(2**70), 10) == []
    assert held.pop_until(2**70, 10) == [1]


@given(pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_it_tells_which_pairs_it_has_in_whatever_order_it_is_asked(
    pairs: list[tuple[int, int]],
) -> None:
    held = SortedBlocks()
    for key, value in pairs:
        held.add(key, value)
    for key in range(4):
        for value in range(10):
            assert held.has(key, value) == ((key, value) in pairs)
            assert held.has(key, 9 - value) == ((key, 9 - value) in pairs)
    held.pop_until(1, 30)
    left = pairs_of(held)
    for key, value in pairs:
        assert held.has(key, value) == ((key, value) in left)


def test_many_pairs_of_one_key_are_asked_for_without_looking_through_them() -> None:
    held = SortedBlocks()
    for value in range(4_000):
        held.add(7, value)
    looked: list[int] = []
    look = SortedBlocks._is_in

    def noted(blocks_: SortedBlocks, number: int, key: int, value: int) -> bool:
        looked.append(number)
        return look(blocks_, number, key, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SortedBlocks, "_is_in", noted)
        assert all(held.has(7, value) for value in range(1_000, 3_000))
    assert len(looked) < 2 * 2_000 + len(held._keys)
