"""Instances that hold what nobody looked at: what is enqueued, a worker can read."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, Field

from taskq.calls.arguments import ArgumentCodec
from taskq.calls.signature import Signature
from taskq.core.errors import InvalidCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Colour(StrEnum):
    """A text."""

    RED = "red"


class Size(IntEnum):
    """A number."""

    ONE = 1


class Part(BaseModel):
    """A model without rules."""

    name: str
    count: int = 1
    tags: list[str] = []
    is_new: bool | None = None


class LargePart(Part):
    """Has a field more."""

    more: int = 3


@dataclass
class Box:
    """Has no rule either."""

    label: str
    weight: float = 0.5
    sizes: list[int] = field(default_factory=list)
    inner: Box | None = None


@dataclass
class BigBox(Box):
    """Has a field more."""

    more: int = 3


class Weighed(BaseModel):
    """Writes as null what is no finite number."""

    grams: float


class Counted(BaseModel):
    """Has a rule."""

    count: int = Field(default=1, gt=0)


@dataclass
class Pallet:
    """Holds both kinds."""

    parts: list[Part]
    counted: int
    best: Part | None = None


def _box(box: Box, more: list[Box] | None = None) -> None: ...


def _part(part: Part, pallet: Pallet) -> None: ...


def _weighed(weighed: Weighed) -> None: ...


def _counted(counted: Counted) -> None: ...


JUNK: tuple[Any, ...] = (
    None, True, 0, 1, -1, 10**30, 10**400, 10**5_000, 1.0, 1.5, float("nan"), float("inf"), "", "1",
    "x", "NaN", "\ud800", b"x", b"\xff", [], [1], ["x"], [None], [[]], (), ("x",), {}, {"a": 1},
    {1: 2}, {1}, Decimal("1.5"), object(), Colour.RED, Size.ONE, int, Box("x"), BigBox("x"),
    Part(name="x"), LargePart(name="x"), Part.model_construct(), Weighed(grams=1), 1j,
    [Part.model_construct(name=1)], [Part(name="x")], [LargePart(name="x"), None], range(3),
)  # fmt: skip


def _spoilt(value: Any) -> Iterator[Any]:
    """Yield the value with something else in each of its places, or nothing, or something more."""
    if isinstance(value, list):
        for at, item in enumerate(value):
            for other in (*JUNK, *_spoilt(item)):
                yield [*value[:at], other, *value[at + 1 :]]
    elif isinstance(value, Box | Pallet | BaseModel):
        for name, inner in vars(value).items():
            for other in (*JUNK, *_spoilt(inner)):
                changed = copy.copy(value)
                changed.__dict__[name] = other
                yield changed
            lacking = copy.copy(value)
            del lacking.__dict__[name]
            yield lacking
        extended = copy.copy(value)
        extended.__dict__["more"] = 1
        yield extended


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (_box, (Box("a", 1.5, [1], Box("b")), [Box("c")])),
        (_part, (Part(name="a", tags=["b"]), Pallet([Part(name="c")], 3, Part(name="d")))),
        (_weighed, (Weighed(grams=1),)),
        (_counted, (Counted(count=1),)),
    ],
)
def test_whatever_an_instance_holds_is_refused_at_the_call_or_read_by_the_worker(
    function: Callable[..., None], args: tuple[Any, ...]
) -> None:
    codec = ArgumentCodec(Signature("task", function))
    codec.decode(codec.encode(args, {}))
    taken = refused = 0
    for changed in _spoilt(list(args)):
        try:
            body = codec.encode(tuple(changed), {})
        except InvalidCall:
            refused += 1
        else:
            codec.decode(body)
            taken += 1
    assert taken
    assert refused
