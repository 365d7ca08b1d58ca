"""Values without an annotation come back unchanged, or are refused at the call."""

from __future__ import annotations

import enum
import io
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from taskq import TaskQ
from taskq.calls.arguments import ArgumentCodec
from taskq.calls.serialization import ResultCodec
from taskq.calls.signature import Signature
from taskq.core.errors import InvalidCall, JobFailed, UsageError


class Pair(NamedTuple):
    left: int
    right: int


@dataclass
class Point:
    x: int


class Order(BaseModel):
    id: int


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Fat(float):
    """As of numpy."""


class Row(TypedDict):
    at: datetime
    rest: Any


NOW = datetime(2030, 1, 2, tzinfo=UTC)
CHANGED: list[tuple[Any, str]] = [
    (NOW, "value: datetime"),
    (NOW.date(), "value: date"),
    (timedelta(1), "value: timedelta"),
    (Decimal("1.5"), "value: Decimal"),
    (UUID(int=1), "value: UUID"),
    (b"x", "value: bytes"),
    (math.nan, "value: float"),
    (-math.inf, "value: float"),
    (Path("x"), "value: "),
    ((1, 2), "value: tuple"),
    ({1, 2}, "value: set"),
    (Pair(1, 2), "value: Pair"),
    (Point(1), "value: Point"),
    (Order(id=1), "value: Order"),
    ([NOW], r"value: list\[datetime\]"),
    ({"at": NOW}, r"value: dict\[str, datetime\]"),
    ({1: "a"}, r"value: dict\[int, …\]"),
    ({"a": [{"b": b"x"}]}, r"bytes at \['a'\]\[0\]\['b'\].*annotate what holds it"),
    (Fraction(1), "value: Fraction"),
    (Colour.RED, "value: Colour"),
    (Level.LOW, "value: Level"),
    (Counter("aab"), "value: Counter"),
    (OrderedDict(a=[1]), "value: OrderedDict"),
    (Fat(1.5), r"Fat, which .*pass float\(…\) of it"),
    (object(), "cannot be written as JSON: object"),
]
KEPT: list[Any] = [
    *("", "é\x00", 0, 2**200, -0.0, 1e300, 0.1, True, None, [], {}, [[]], [1, "a", None, [2.5]]),
    {"a": {"b": [1]}},
]


def bare(value, *rest, flag=None, **more): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN201


def any_(value: Any) -> None: ...
def plain(value) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


CODECS = {fn.__name__: ArgumentCodec(Signature("t", fn)) for fn in (bare, any_, plain)}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize(("value", "message"), CHANGED)
def test_an_argument_that_would_change_is_refused_with_what_to_write(
    codec: ArgumentCodec, value: Any, message: str
) -> None:
    for args, kwargs in [((value,), {}), ((), {"value": value})]:
        with pytest.raises(InvalidCall, match=rf"^t: parameter 'value' .*{message}"):
            codec.encode(args, kwargs)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("value", KEPT)
def test_what_is_equal_behind_json_is_taken(codec: ArgumentCodec, value: Any) -> None:
    args, kwargs = codec.decode(codec.encode((value,), {}))
    assert (*args, *kwargs.values()) == (value,)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1, NOW), {}, r"\*rest"),
        ((1,), {"flag": NOW}, "'flag'.*flag: datetime"),
        ((1,), {"other": [b"x"]}, r"\*more"),
    ],
)
def test_further_arguments_are_looked_at_too(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidCall, match=message):
        CODECS["bare"].encode(args, kwargs)


def test_what_can_be_read_once_is_refused_unread(tmp_path: Path, app: TaskQ) -> None:
    @app.task
    def take(value: Any = None) -> None: ...

    (tmp_path / "f").write_text("abc")
    with (tmp_path / "f").open() as file:
        for once in (file, io.BytesIO(b"abc"), iter([1, 2]), (n for n in range(2)), map(str, [1])):
            for given in (once, [once], {"a": once}):
                with pytest.raises(InvalidCall, match=r"'value' cannot be written.*pass"):
                    take.call(given)
                with pytest.raises(InvalidCall, match=r"can be read once.*pass"):
                    app.enqueue_by_name_sync("other.take", given, value=given)
            assert list(once), "nobody has read it"


def test_an_argument_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidCall, match="Circular"):
        CODECS["plain"].encode((loop,), {})


HINTS: list[tuple[Any, Any, Any]] = [
    (list, [1, "a"], [NOW]),
    (dict, {"a": 1}, {"a": NOW}),
    (dict[str, Any], {"a": [1]}, {"a": [NOW]}),
    (dict[int, Any], {1: "a"}, {1: NOW}),
    (dict[str, Any] | None, {"a": 1}, {"a": b"x"}),
    (list[dict[str, Any]], [{"a": 1}], [{"a": Decimal(1)}]),
    (tuple, (1, "a"), (1, NOW)),
    (tuple[int, Any], (1, [2]), (1, {2})),
    (set, {1, "a"}, {1, b"x"}),
    (Row, {"at": NOW, "rest": 1}, {"at": NOW, "rest": NOW}),
    (object, "x", NOW),
]


@pytest.mark.parametrize(("hint", "kept", "changed"), HINTS)
def test_the_open_parts_of_an_annotation_are_looked_at_alike(
    hint: Any, kept: Any, changed: Any
) -> None:
    def task(value: Any) -> Any: ...

    task.__annotations__ = {"value": hint, "return": hint}
    codec, results = ArgumentCodec(Signature("t", task)), ResultCodec(Signature("t", task))
    assert codec.decode(codec.encode((kept,), {}))[1] == {"value": kept}
    assert results.decode(results.encode(kept) or b"") == kept
    with pytest.raises(InvalidCall, match="parameter 'value' holds"):
        codec.encode((changed,), {})
    with pytest.raises(UsageError, match="the result holds"):
        results.encode(changed)


@pytest.mark.parametrize(("value", "message"), CHANGED)
def test_a_result_that_would_change_is_refused_with_what_to_write(value: Any, message: str) -> None:
    codec = ResultCodec(Signature("t", lambda: None))
    with pytest.raises(UsageError, match=rf"^t: .*{message.replace('value: ', '-> ')}"):
        codec.encode(value)


@pytest.mark.parametrize("value", [item for item in KEPT if item is not None])
def test_a_result_that_is_equal_behind_json_is_taken(value: Any) -> None:
    codec = ResultCodec(Signature("t", lambda: None))
    assert codec.decode(codec.encode(value) or b"") == value


async def test_the_job_tells_what_its_result_was(app: TaskQ) -> None:
    @app.task
    async def when():  # type: ignore[no-untyped-def]  # noqa: ANN202
        return NOW

    async with app.worker():
        job = await when.enqueue()
        with pytest.raises(JobFailed, match="-> datetime"):
            await job.result(timeout=30)
    await app.close()
