"""Results nest as their shape says, and a shape that does not fit is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.errors import FormatError
from taskq.core.flows import DEPTH_MAX, ONE, depth, list_of, nested, skipping

TREES: st.SearchStrategy[Any] = st.recursive(
    st.integers(0, 9), lambda inner: st.lists(inner, max_size=5), max_leaves=25
)


def shape_of(tree: Any) -> bytes:
    return list_of(map(shape_of, tree)) if isinstance(tree, list) else ONE


def leaves(tree: Any) -> list[int]:
    return [leaf for item in tree for leaf in leaves(item)] if isinstance(tree, list) else [tree]


def height(tree: Any) -> int:
    return 1 + max(map(height, tree), default=0) if isinstance(tree, list) else 0


@given(tree=TREES, skipped=st.integers(0, 3))
def test_values_nest_as_they_were(tree: Any, skipped: int) -> None:
    shape, values = shape_of(tree), leaves(tree)
    assert nested(shape, values) == tree
    assert depth(shape) == height(tree)
    assert nested(skipping(skipped) + shape, [*range(skipped), *values]) == tree
    assert depth(skipping(skipped) + shape) == height(tree)


@given(tree=TREES, more=st.sampled_from([-1, 1]))
def test_a_shape_of_more_or_fewer_jobs_is_refused(tree: Any, more: int) -> None:
    values = leaves(tree)
    if more < 0 and not values:
        return
    with pytest.raises(FormatError, match="shape"):
        nested(shape_of(tree), values[:-1] if more < 0 else [*values, 1])


@given(tree=st.lists(TREES, max_size=4), cut=st.integers(1, 8))
def test_a_shape_that_was_cut_short_is_refused(tree: list[Any], cut: int) -> None:
    shape = shape_of(tree)
    with pytest.raises(FormatError, match="shape"):
        nested(shape[: max(len(shape) - cut, 0)], leaves(tree))


def test_lists_nest_so_deep_and_no_deeper() -> None:
    shape = ONE
    for _ in range(DEPTH_MAX):
        shape = list_of([shape])
    assert depth(shape) == DEPTH_MAX
    value = nested(shape, [7])
    for _ in range(DEPTH_MAX):
        (value,) = value
    assert value == 7
    with pytest.raises(FormatError, match="does not read back"):
        nested(list_of([shape]), [7])


@pytest.mark.parametrize(
    "shape", [b"", b"\x03", b"\x02", b"\x09", b"\x02\x03\x02\x03", b"\x02\x03\x03"]
)
def test_bytes_that_are_no_shape_are_refused(shape: bytes) -> None:
    with pytest.raises(FormatError, match="shape"):
        nested(shape, [])
