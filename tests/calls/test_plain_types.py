"""Arguments of plain types are checked by pydantic's core alone, as pydantic itself would."""

from __future__ import annotations

import copy
import enum
import io
import itertools
import json
import math
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, Optional
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, TypeAdapter
from pydantic_core import ValidationError
from typing_extensions import TypedDict

from taskq import TaskQ
from taskq.calls.arguments import ArgumentCodec, _typed_dict
from taskq.calls.serialization import ResultCodec, compiled, compiled_fields, plain_schema
from taskq.calls.signature import Signature
from taskq.core.errors import InvalidCall, JobFailed, UsageError

PLAIN: list[Any] = [str, int, float, bool, Any, None, type(None)]
OPTIONAL: list[Any] = [*(Optional.__getitem__(item) for item in PLAIN), str | None, int | None]
NOT_PLAIN: list[Any] = [bytes, list[int], dict[str, int], str | int, str | int | None, Path]
VALUES: list[Any] = [
    *("", "5", "true", "é", 0, 1, 5, -(2**70), 2.0, 0.5, float("inf"), True, False, None),
    *(b"x", [], [1], {}, {"a": b"x"}, (1,), object),
]


@pytest.mark.parametrize("hint", [*PLAIN, *OPTIONAL], ids=repr)
def test_the_schema_of_a_plain_type_is_the_one_that_pydantic_makes(hint: Any) -> None:
    assert plain_schema(hint) == TypeAdapter(hint).core_schema


@pytest.mark.parametrize("hint", [*NOT_PLAIN, [], {}], ids=repr)
def test_what_is_not_plain_is_left_to_pydantic(hint: Any) -> None:
    assert plain_schema(hint) is None
    assert compiled_fields({"a": str, "b": hint}) is None


@pytest.mark.parametrize("hint", [*PLAIN, *OPTIONAL], ids=repr)
def test_plain_arguments_are_read_written_and_refused_as_pydantic_does(hint: Any) -> None:
    fields = {"one": hint, "two": NotRequired[hint]}
    ours = compiled_fields(fields)
    assert ours is not None
    theirs = compiled(_typed_dict(fields))
    given: list[dict[str, Any]] = [{"one": a, "two": b} for a, b in itertools.pairwise(VALUES)]
    for values in [*given, {}, {"two": 1}, {"one": 1, "three": 2}, *({"one": a} for a in VALUES)]:
        assert outcome(*ours, values) == outcome(*theirs, values)


def outcome(validator: Any, serializer: Any, values: dict[str, Any]) -> object:
    """Return what comes of the values: their text and what is read back of it, or what is wrong."""
    try:
        checked = validator.validate_python(values)
        text = serializer.to_json(checked)
        return repr(checked), text, repr(validator.validate_json(text))
    except ValidationError as error:
        return error.title, error.errors(include_url=False)
    except ValueError as error:
        return str(error)


def test_a_program_of_plain_tasks_needs_no_more_of_pydantic_than_its_core() -> None:
    program = """
import json, sys
from taskq import TaskQ
app = TaskQ("data")

@app.task
async def send(to: str, count: int = 0, note: str | None = None) -> int: ...

send.call("x", count=2)
print(json.dumps([name for name in sys.modules if name.startswith("pydantic")]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert {name.partition(".")[0] for name in json.loads(done.stdout)} == {"pydantic_core"}


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


# -- unannotated -----------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: int
    right: int


@dataclass
class Point:
    x: int


class Order(BaseModel):
    id: int


class Paint(enum.StrEnum):
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
    (Paint.RED, "value: Paint"),
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
