"""How the results of many jobs nest: a single value, a list of them, lists of lists.

A shape is a text of bytes over results that are given in one row: ``1`` and a count u32 stand for
so many single values, ``2`` opens a list, ``3`` closes it, ``4`` and a count u32 pass over
results. One value is ``1 1``; ten of a group are ``2 1 10 3``.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from taskq.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

#: Lists within lists.
DEPTH_MAX: Final = 32
_VALUES: Final = 1
_OPEN: Final = 2
_CLOSE: Final = 3
_SKIP: Final = 4
_RUN: Final = struct.Struct("<BI")
ONE: Final = _RUN.pack(_VALUES, 1)


def list_of(shapes: Iterable[bytes]) -> bytes:
    """The shape of a list whose items have these shapes."""
    parts: list[bytes] = [bytes((_OPEN,))]
    single = 0
    for shape in shapes:
        if shape == ONE:
            single += 1
            continue
        if single:
            parts.append(_RUN.pack(_VALUES, single))
            single = 0
        parts.append(shape)
    if single:
        parts.append(_RUN.pack(_VALUES, single))
    return b"".join((*parts, bytes((_CLOSE,))))


def skipping(count: int) -> bytes:
    """What stands before the shape of what follows so many results that nobody takes."""
    return _RUN.pack(_SKIP, count)


def depth(shape: bytes) -> int:
    """How deep its lists nest."""
    deepest = level = 0
    for token, _ in _tokens(shape):
        level += (token == _OPEN) - (token == _CLOSE)
        deepest = max(deepest, level)
    return deepest


def nested(shape: bytes, values: Iterable[T]) -> Any:
    """The values, nested.

    Raises:
        FormatError: the shape is none, or does not fit the number of values.
    """
    left = iter(values)
    root: list[Any] = []
    stack = [root]
    for token, count in _tokens(shape):
        if token == _OPEN and len(stack) <= DEPTH_MAX:
            inner: list[Any] = []
            stack[-1].append(inner)
            stack.append(inner)
        elif token == _CLOSE and len(stack) > 1:
            stack.pop()
        elif token in (_VALUES, _SKIP):
            some = list(islice(left, count))
            if len(some) != count:
                raise FormatError("a flow's shape is of more jobs than there are")
            if token == _VALUES:
                stack[-1] += some
        else:
            raise FormatError("a flow's shape does not read back")
    if len(root) != 1 or len(stack) != 1 or any(True for _ in left):
        raise FormatError("a flow's shape does not fit its jobs")
    return root[0]


def _tokens(shape: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(shape):
        token, count = shape[at], 0
        if token in (_VALUES, _SKIP) and at + _RUN.size <= len(shape):
            count = _RUN.unpack_from(shape, at)[1]
            at += _RUN.size
        elif token in (_OPEN, _CLOSE):
            at += 1
        else:
            raise FormatError("a flow's shape does not read back")
        yield token, count
