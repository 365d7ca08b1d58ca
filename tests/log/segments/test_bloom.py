"""Bloom filters: nothing that was added is missed, and little else seems to be there."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.log.segments.index_format import (
    PAGE_SIZE,
    STEP_KEYS,
    BloomBuilder,
    mixed,
    page_holds,
    page_of,
    pages_for,
)

_KEYS: Final = st.lists(st.integers(0, 2**64 - 1), max_size=200)
_CHANCE: Final = random.Random(5)


def _built(keys: Iterable[int]) -> list[bytes]:
    numbers = array("Q", keys)
    builder = BloomBuilder(len(numbers))
    for start in range(0, len(numbers), STEP_KEYS):
        builder.add(numbers[start : start + STEP_KEYS])
    return [builder.page(number) for number in range(builder.pages)]


def _holds(pages: list[bytes], key: int) -> bool:
    word = mixed(key)
    return bool(pages) and page_holds(pages[page_of(word, len(pages))], word)


@given(_KEYS)
def test_no_key_that_was_added_is_missed(keys: list[int]) -> None:
    pages = _built(keys)
    assert all(_holds(pages, key) for key in keys)


@pytest.mark.parametrize(
    ("keys", "others"),
    [
        (range(5_000, 20_000), range(40_000, 60_000)),
        (range(5_000, 35_000, 2), range(5_001, 35_001, 2)),
        (range(0, 15_000 * 4_096, 4_096), range(7, 20_000 * 4_096, 4_096)),
        (range(2**40, 2**40 + 15_000), range(15_000)),
        (
            [_CHANCE.getrandbits(64) for _ in range(15_000)],
            [_CHANCE.getrandbits(64) for _ in range(20_000)],
        ),
    ],
    ids=["neighbours", "between", "far apart", "high", "random"],
)
def test_about_one_in_a_hundred_of_other_keys_seems_to_be_there(
    keys: Iterable[int], others: Iterable[int]
) -> None:
    pages = _built(keys)
    seen = [_holds(pages, key) for key in others]
    assert 0.003 < sum(seen) / len(seen) < 0.013


def test_a_filter_takes_about_ten_bits_a_key() -> None:
    assert 10 <= pages_for(1_000_000) * PAGE_SIZE * 8 / 1_000_000 <= 11.5
    assert pages_for(1) == 1
