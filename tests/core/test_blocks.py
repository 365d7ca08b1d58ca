"""``SortedBlocks``: pairs come out by key, equal keys in the order they came in."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core import blocks
from taskq.core.blocks import SortedBlocks

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 2**64 - 1
KEYS = st.integers(0, 12) | st.integers(0, LARGEST)
ADD = st.tuples(st.just("add"), KEYS, st.integers(0, LARGEST))
POP = st.tuples(st.just("pop"), KEYS, st.integers(0, 9))
STEPS = st.lists(ADD | ADD | POP, max_size=120)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    """Blocks of 4 pairs, so that a short history meets every split."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BLOCK", 4)
        yield


def pairs_of(held: SortedBlocks) -> list[tuple[int, int]]:
    return [
        pair
        for keys, values in zip(held._keys, held._values, strict=True)
        for pair in zip(keys, values, strict=True)
    ]


@given(steps=STEPS)
def test_any_history_of_adds_and_pops_equals_a_sorted_list(
    steps: list[tuple[str, int, int]],
) -> None:
    """After every step: the same pairs, size and first key as a plain sorted list."""
    held, model = SortedBlocks(), list[tuple[int, int]]()
    for name, key, number in steps:
        if name == "add":
            held.add(key, number)
            model.insert(bisect_right([one for one, _ in model], key), (key, number))
        else:
            due = [value for one, value in model if one <= key][:number]
            assert held.pop_until(key, number) == due
            del model[: len(due)]
        assert held.size == len(model)
        assert held.first_key() == (model[0][0] if model else None)
    assert pairs_of(held) == model


@given(steps=STEPS)
def test_no_block_is_empty_or_over_twice_its_size(steps: list[tuple[str, int, int]]) -> None:
    """The work of one step is bounded, and ``first_key`` never looks at an empty block."""
    held = SortedBlocks()
    for name, key, number in steps:
        if name == "add":
            held.add(key, number)
        else:
            held.pop_until(key, number)
        assert all(0 < len(keys) <= 8 for keys in held._keys)
        assert held._firsts == [keys[0] for keys in held._keys]


def test_pop_until_on_nothing_returns_nothing() -> None:
    held = SortedBlocks()
    assert held.pop_until(LARGEST, 10) == []
    assert held.first_key() is None


def test_a_key_below_zero_or_above_64_bits_is_looked_up_without_an_error() -> None:
    """A clock that stepped far makes moments below zero: nothing is due then."""
    held = SortedBlocks()
    held.add(5, 1)
    assert held.pop_until(-(2**70), 10) == []
    assert held.pop_until(2**70, 10) == [1]
