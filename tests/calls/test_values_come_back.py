"""A written value comes back equal and of the same types, or its writer gets an error."""

from __future__ import annotations

import collections
import contextlib
import copy
import datetime as dt
import enum
import functools
import io
import itertools
import json
import math
import re
import subprocess
import sys
import threading
import zoneinfo
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, NotRequired, Optional
from uuid import UUID

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PlainValidator,
    PrivateAttr,
    RootModel,
    SecretStr,
    TypeAdapter,
    computed_field,
    field_serializer,
    model_serializer,
)
from pydantic_core import ValidationError
from typing_extensions import TypedDict

from taskq import TaskQ, chain, chord, durable
from taskq.calls.arguments import ArgumentCodec, _typed_dict
from taskq.calls.equality import find_difference
from taskq.calls.serialization import (
    ResultCodec,
    compiled,
    compiled_fields,
    encode_loose,
    plain_schema,
    way_of,
)
from taskq.calls.signature import Signature
from taskq.core.errors import InvalidCall, JobFailed, UsageError


class Base(BaseModel):
    a: int


class Sub(Base):
    b: int = 0


@dataclass
class Point:
    a: int


@dataclass
class Point3(Point):
    b: int = 0


@dataclass
class Counting:
    a: int

    def __post_init__(self) -> None:
        self.a += 1


@dataclass
class Derived:
    a: int
    double: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.double = 2 * self.a


@dataclass
class Late:
    a: int
    note: str = field(init=False, default="")


@dataclass
class WithInit:
    a: int
    by: InitVar[int] = 1


class Order(BaseModel):
    order_id: int = Field(alias="orderId")
    items: list[Base] = []


class Swapped(BaseModel):
    a: int = Field(alias="b")
    b: int = Field(alias="a")


class ByChoice(BaseModel):
    a: int = Field(validation_alias="A", serialization_alias="x")


class Login(BaseModel):
    password: SecretStr


class Hidden(BaseModel):
    a: int
    b: int = Field(default=0, exclude=True)


class Open(BaseModel):
    a: Any = None


class Parsed(BaseModel):
    a: Json[list[int]]


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def b(self) -> int:
        return self.a


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Private(BaseModel):
    a: int
    _b: int = PrivateAttr(default=1)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def __repr__(self) -> str:
        return f"Private({self.a}, {self._b})"


class Constants(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    a: float
    note: str = ""


@dataclass
class Cached:
    a: int

    def __post_init__(self) -> None:
        self.lock, self.double = threading.Lock(), 2 * self.a

    @functools.cached_property
    def half(self) -> float:
        return self.a / 2


class Odd(BaseModel):
    a: float
    b: bytes = b""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("broken")

    __hash__ = None  # type: ignore[assignment]


class Doubled(BaseModel):
    a: int

    @field_serializer("a")
    def double(self, value: int) -> int:
        return 2 * value


class Whole(BaseModel):
    a: int

    @model_serializer
    def whole(self) -> dict[str, int]:
        return {"z": self.a}


class Raised(BaseModel):
    a: int

    def model_post_init(self, _: object) -> None:
        self.a += 1


class Named(BaseModel):
    model_config = ConfigDict(alias_generator=str.upper, extra="forbid")
    some_name: int


@dataclass(frozen=True, slots=True)
class Node:
    at: dt.datetime
    inner: list[Node] = field(default_factory=list)


class Row(TypedDict):
    at: dt.datetime
    size: NotRequired[Decimal]


class OpenRow(TypedDict):
    at: dt.datetime
    rest: Any


class May(enum.Flag):
    READ = 1
    WRITE = 2


class Cat(BaseModel):
    kind: Literal["cat"] = Field("cat", alias="type")


class Dog(BaseModel):
    kind: Literal["dog"] = Field("dog", alias="type")


class Level(enum.IntEnum):
    LOW = 1


class Colour(enum.StrEnum):
    RED = "red"


class Shape(enum.Enum):
    BOX = (1, 2)


class Pair(NamedTuple):
    left: int
    right: Any


Bare = collections.namedtuple("Bare", "a b")  # noqa: PYI024 - without types
Roots = RootModel[list[int]]
#: An int whose validator raises a TypeError for None.
Fussy = Annotated[int, PlainValidator(int)]
LOGIN: Final = Login.model_validate({"password": "x"})
BERLIN: Final = zoneinfo.ZoneInfo("Europe/Berlin")
NOW: Final = dt.datetime(2030, 6, 2, 4, 5, 6, 7, tzinfo=dt.UTC)


def private(b: int) -> Private:
    made = Private(a=1)
    made._b = b
    return made


def cached(**more: object) -> Cached:
    made = Cached(1)
    assert made.half
    vars(made).update(more)
    return made


def late(note: str) -> Late:
    made = Late(1)
    made.note = note
    return made


HERE = {"name": "caller"}


class Fresh(BaseModel):
    place: str = Field(default_factory=lambda: HERE["name"])


#: Values with a default that a function makes, or with the tag of a union.
WHOLE: Final = [Fresh(), Dog.model_validate({})]
#: An annotation and values that come back, wherever they are given.
KEPT: list[tuple[Any, list[Any]]] = [
    (int, [0, -(2**200)]), (float, [0.1, -0.0, math.inf, math.nan]), (str, ["é\x00", "1"]),
    (bool, [True]), (bytes, [b"\xff"]), (Any, [[1, 1.0, "a", None, True, {"a": [-0.0]}]]),
    (dt.datetime, [NOW, NOW.astimezone(BERLIN), NOW.replace(tzinfo=None)]),
    (dt.datetime, [dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)]),
    (dt.time, [dt.time(1, 2, 3, 4)]), (dt.timedelta, [dt.timedelta(-1, 1, 1)]),
    (dt.date, [NOW.date()]), (Decimal, [Decimal("1.10"), Decimal("1E+5")]),
    (UUID, [UUID(int=7)]), (Path, [Path("a/b")]), (re.Pattern[str], [re.compile("a")]),
    (Colour, [Colour.RED]), (Level, [Level.LOW]), (Literal["a", 1], ["a", 1]),
    (list[Colour], [[Colour.RED]]), (int | str, ["1", 1]), (float | int, [1, 1.0]),
    (set[int], [{1, 2}]), (frozenset[float], [frozenset({math.nan, 0.5})]),
    (tuple[int, ...], [(1, 2)]), (collections.deque[int], [collections.deque([1])]),
    (dict[int, int], [{1: 2}]), (dict[UUID, list[Decimal]], [{UUID(int=1): [Decimal(1)]}]),
    (collections.defaultdict[str, int], [collections.defaultdict(int, a=1)]),
    (collections.Counter[str], [collections.Counter("aab")]), (Pair, [Pair(1, "a")]),
    (Iterable[int], [[1, 2]]), (Collection[int], [[1, 2]]), (Sequence[int], [[1, 2]]),
    (list[Collection[int]] | None, [[[1]]]), (Mapping[str, int], [{"a": 1}]),
    (Base, [Base(a=1)]), (Base | Sub, [Base(a=1), Sub(a=1, b=2)]), (list[Sub], [[Sub(a=1)]]),
    (Point | Point3, [Point(1), Point3(1, 2)]), (Derived, [Derived(2)]), (Roots, [Roots([1])]),
    (Order, [Order(orderId=7, items=[Base(a=1)])]), (dict[str, Order], [{"a": Order(orderId=7)}]),
    (Swapped, [Swapped(a=1, b=1)]), (Hidden, [Hidden(a=1)]), (Computed, [Computed(a=1)]),
    (ByChoice, [ByChoice.model_validate({"A": 1})]),
    (Parsed, [Parsed.model_validate({"a": "[1]"})]),
    (Extra, [Extra.model_validate({"a": 1, "b": [2]})]),
    (Cached, [cached()]), (Constants, [Constants(a=1, note="NaN")]),
    (Private, [Private(a=1)]), (Open, [Open(a=[{"a": 1.5}])]), (Odd, [Odd(a=1.5, b=b"x")]),
    (Node, [Node(NOW, [Node(NOW)])]), (Row, [{"at": NOW, "size": Decimal("1.0")}, {"at": NOW}]),
    (May, [May.READ | May.WRITE]), (Named, [Named.model_validate({"SOME_NAME": 1})]),
    (Doubled, [Doubled(a=0)]), (str | UUID, ["a", UUID(int=1)]), (bool | int, [True, 1]),
    (Annotated[Cat | Dog, Field(discriminator="kind")], [Dog(type="dog"), WHOLE[1]]),
    (Fresh, [WHOLE[0]]), (Sub, [Sub(a=1), Sub(a=1, b=0)]), (Cat, [Cat.model_validate({})]),
    (Any, ["", 2**200, 1e300, [], {}, [[]], {"a": {"b": [1]}}]), (list, [[1, "a"]]),
    (dict, [{"a": 1}]), (dict[str, Any], [{"a": [1]}]), (dict[int, Any], [{1: "a"}]),
    (dict[Any, int], [{"a": 1}]), (Fussy, [5]),
    (list[dict[str, Any]], [[{"a": 1}]]), (tuple, [(1, "a")]), (tuple[int, Any], [(1, [2])]),
    (set, [{1, "a"}]), (OpenRow, [{"at": NOW, "rest": 1}]), (object, ["x"]),
]  # fmt: skip
#: Values that would come back as others, or not at all.
REFUSED: list[tuple[Any, list[Any]]] = [
    (Base, [Sub(a=1, b=9), Base.model_construct(a="x"), Base.model_construct()]),
    (list[Base], [[Sub(a=1)]]), (dict[str, Base | None], [{"a": Sub(a=1)}]),
    (Point, [Point3(1, 9)]), (Counting, [Counting(1)]), (Late, [late("x")]),
    (SecretStr, [SecretStr("x")]), (Login, [LOGIN]), (Hidden, [Hidden(a=1, b=2)]),
    (Private, [private(2)]), (Extra, [Extra.model_validate({"a": 1, "b": b"x"})]),
    (Odd, [Odd(a=math.nan)]), (Constants, [Constants(a=math.nan), Constants(a=-math.inf)]),
    (Cached, [cached(double=3), cached(more=1)]),
    (Swapped, [Swapped(a=1, b=2), Swapped(b=1, a=2)]),
    (Open, [Open(a=NOW), Open(a=b"x"), Open(a=(1,)), Open(a={1}), Open(a=Colour.RED)]),
    (Open, [Open(a=Base(a=1)), Open(a={1: 2}), Open(a=math.inf)]), (Pair, [Pair(1, NOW)]),
    (Any, [NOW, (1,), Colour.RED, Level.LOW, math.nan, {1: 2}, collections.OrderedDict(a=1)]),
    (Bare, [Bare(NOW.date(), 2)]), (list[Any], [[{1}]]),
    (re.Pattern[str], [re.compile("a", re.IGNORECASE)]),
    (dt.time, [dt.time(1, tzinfo=BERLIN)]),
    (dt.datetime, [dt.datetime(1890, 1, 1, tzinfo=BERLIN)]),
    (dict[int | str, int], [{1: 1, "1": 2}]), (dict[int, int], [{1: 1, "1": 2}]),
    (dict[str, int], [{"a": 1, b"a": 2}]),
    (dict[int | None, int], [{None: 1}]), (int, [10**4_400]), (list[int], [[1, -(10**5_000)]]),
    (str | bytes, [b"abcd"]), (str | Decimal, [Decimal("1.1")]), (str | dt.datetime, [NOW]),
    (set[int] | list[int], [{1}]),
    (list[int] | tuple[int, ...], [(1,)]), (str | Colour, [Colour.RED]),
    (collections.deque[int], [collections.deque([1], maxlen=2)]), (Sequence[int], [(1,)]),
    (Collection[int], [(1,), {1}]), (Iterable[int], [(1,)]),
    (Doubled, [Doubled(a=1)]), (Whole, [Whole(a=1)]), (Raised, [Raised(a=1)]),
    (Odd, [Odd(a=1, b=b"\xff")]), (dict[tuple[int, int], int], [{(1, 2): 3}]),
    (UUID | str, [str(UUID(int=1))]), (tuple[int, Any], [(1, b"x")]),
    (float, [2**60 + 1]), (list[float], [[0.5, 2**60 + 1]]), (dict[str, float], [{"a": 2**53 + 1}]),
    (Decimal, [Decimal("NaN")]), (Shape, [Shape.BOX]),
    (Annotated[int, AfterValidator(lambda value: value + 1)], [1]), (list, [[NOW]]),
    (dict, [{"a": NOW}]), (dict[str, Any] | None, [{"a": b"x"}]), (dict[int, Any], [{1: NOW}]),
    (list[dict[str, Any]], [[{"a": Decimal(1)}]]), (tuple, [(1, NOW)]), (set, [{1, b"x"}]),
    (OpenRow, [{"at": NOW, "rest": NOW}]), (object, [NOW]), (dict[Any, int], [{1: 1}]),
    (list[dict[Any, list[int]]], [[{None: [1]}]]), (dict[Any, Any], [{True: 1}]),
]  # fmt: skip
#: Values that only some versions of pydantic and typing bring back.
EITHER: list[tuple[Any, list[Any]]] = [
    (WithInit, [WithInit(1)]), (dict[Level, int], [{Level.LOW: 1}]),
    (Literal[Colour.RED], [Colour.RED]), (dt.datetime | str, ["2020-01-01T00:00:00"]),
]  # fmt: skip


def rows(table: list[tuple[Any, list[Any]]]) -> list[Any]:
    return [
        pytest.param(
            hint, value, id=f"{getattr(hint, '__name__', hint)}-{type(value).__name__}{at}"
        )
        for hint, values in table
        for at, value in enumerate(values)
    ]


def text(value: object) -> str:
    return re.sub(
        r"tzinfo=(TzInfo\(.*?\)|datetime\.timezone\.utc|zoneinfo[^)]*\))", "", repr(value)
    )


def same(given: Any, got: Any) -> bool:
    if isinstance(given, dt.datetime) and given.tzinfo:
        return type(got) is dt.datetime and given.timestamp() == got.timestamp()
    return type(given) is type(got) and text(given) == text(got)


def typed(hint: Any) -> Callable[..., Any]:
    def task(value: Any = None, *rest: Any, only: Any = None, **more: Any) -> Any: ...

    task.__annotations__ = dict.fromkeys(("value", "rest", "only", "more", "return"), hint)
    return task


def plain(hint: Any) -> Callable[..., Any]:
    def task(value: Any) -> Any: ...

    task.__annotations__ = {"value": hint, "return": hint}
    return task


CALLS: dict[str, tuple[Any, Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "positional": (plain, lambda value: ((value,), {})),
    "keyword": (plain, lambda value: ((), {"value": value})),
    "rest": (typed, lambda value: ((value, value), {})),
    "keyword only": (typed, lambda value: ((), {"only": value})),
    "further keyword": (typed, lambda value: ((), {"other": value})),
}


@pytest.mark.parametrize("border", CALLS)
@pytest.mark.parametrize(("hint", "value"), rows(KEPT))
def test_an_argument_comes_back(
    border: str, hint: Any, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, given = CALLS[border]
    codec, (args, kwargs) = ArgumentCodec(Signature("shop.buy", make(hint))), given(value)
    body = codec.encode(args, kwargs)
    monkeypatch.setitem(HERE, "name", "worker")
    got, named = codec.decode(body)
    assert all(same(value, other) for other in (*got, *named.values()))
    if value not in WHOLE:  # a patch goes by the fields that are set
        dump = partial(TypeAdapter(Any).dump_python, exclude_unset=True)
        assert all(same(dump(value), dump(other)) for other in (*got, *named.values()))
    assert len(got) + len(named) == len(args) + len(kwargs)


@pytest.mark.parametrize("border", CALLS)
@pytest.mark.parametrize(("hint", "value"), rows(REFUSED))
def test_an_argument_that_would_change_is_refused(border: str, hint: Any, value: Any) -> None:
    make, given = CALLS[border]
    args, kwargs = given(value)
    with pytest.raises(InvalidCall, match=r"^shop.buy: (parameter ['\"].*|what the .*): "):
        ArgumentCodec(Signature("shop.buy", make(hint))).encode(args, kwargs)


@pytest.mark.parametrize(("hint", "value"), rows(KEPT))
def test_a_result_or_the_value_of_a_step_comes_back(hint: Any, value: Any) -> None:
    task = Signature("shop.buy", plain(hint))
    codec = ResultCodec(task)
    body = codec.encode(value)
    assert body is not None
    assert same(value, codec.decode(body))
    # The next step of a chain takes it in as its argument.
    _, named = ArgumentCodec(task).decode(b'{"value":%s}' % body)
    assert same(value, named["value"])


@pytest.mark.parametrize(("hint", "value"), rows(REFUSED))
def test_a_result_that_would_change_is_refused(hint: Any, value: Any) -> None:
    with pytest.raises(UsageError, match=r"^shop.buy: (the re.*: |returned .* to return |no .*: )"):
        ResultCodec(Signature("shop.buy", plain(hint))).encode(value)


@pytest.mark.parametrize(("hint", "value"), rows(EITHER))
def test_what_a_version_may_not_know_comes_back_or_is_refused(hint: Any, value: Any) -> None:
    task = Signature("shop.buy", plain(hint))
    codec = ArgumentCodec(task)
    with contextlib.suppress(InvalidCall):
        assert same(value, codec.decode(codec.encode((value,), {}))[1]["value"])
    with contextlib.suppress(UsageError):
        results = ResultCodec(task)
        assert same(value, results.decode(results.encode(value) or b""))


@pytest.mark.parametrize(("hint", "value"), rows(KEPT))
def test_a_signal_comes_back_as_the_type_that_an_event_names(hint: Any, value: Any) -> None:
    body = encode_loose("signal", (), {"value": value})[len('{"value":') : -1]
    assert same(value, way_of(hint).read(body)) or hint in {float | int, Any}


@pytest.mark.parametrize(
    "value",
    [
        SecretStr("x"), LOGIN, Hidden(a=1, b=2), Counting(1), Open(a=NOW),
        {1: 1, "1": 2}, dt.time(1, tzinfo=BERLIN), Decimal("NaN"), Shape.BOX,
        [Private(a=1), private(2)], iter([1]), [[10**4_400]], 10**4_400,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_signal_that_no_event_could_read_is_refused(value: Any) -> None:
    for given in (value, [value], {"a": value}):
        with pytest.raises(InvalidCall):
            encode_loose("signal", (), {"value": given})


@pytest.mark.parametrize("hint", [SecretStr, SecretStr | Shape, Login, Shape, Annotated[Shape, 1]])
def test_a_type_whose_values_never_come_back_is_no_result(hint: Any) -> None:
    with pytest.raises(UsageError, match="comes back from JSON"):
        ResultCodec(Signature("shop.buy", plain(hint)))


def test_a_value_of_many_parts_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def task(a: int, b: str, c: list[dict[str, float]], d: Any, e: tuple[bytes, ...]) -> int:
        return a

    codec = ArgumentCodec(Signature("shop.buy", task))
    monkeypatch.delattr("taskq.calls.equality.find_difference")
    assert codec.encode((1, "b", [{"a": 0.5}], {"x": [1]}, (b"",)), {})
    assert ResultCodec(Signature("shop.buy", task)).encode(5) == b"5"


class Slotted:
    """An object without a dictionary, which may hold itself."""

    __slots__ = ("a", "itself")

    def __init__(self, a: int) -> None:
        self.a, self.itself = a, self


def test_objects_are_compared_by_their_slots_and_once() -> None:
    assert find_difference(Slotted(1), Slotted(1)) is None
    assert find_difference(Slotted(1), Slotted(2)) == (("a",), 1, 2)


async def test_no_effect_is_made_for_a_value_that_cannot_be_kept(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "log")
    effects: list[str] = []

    async def known() -> Shape:
        effects.append("known")
        return Shape.BOX

    def seen() -> Base:
        effects.append("seen")
        return Sub(a=1, b=2)

    def good() -> Order:
        effects.append("good")
        return Order(orderId=7)

    @app.task(retry=3)
    async def order(which: str) -> int:
        kept = await durable.step("good", good)
        await durable.step("bad", known if which == "known" else seen)
        return kept.order_id

    @app.task(retry=3)
    def in_thread() -> int:
        durable.step_sync("bad", seen)
        return 1

    async with app, app.worker():
        for job in (await order.enqueue("known"), await order.enqueue("seen")):
            with pytest.raises(JobFailed, match=r"step bad#1 .*: .*: "):
                await job.result(timeout=20)
        job = await in_thread.enqueue()
        with pytest.raises(JobFailed, match=r"step bad#1 .*Sub, which would come back as Base"):
            await job.result(timeout=20)
    assert effects == ["good", "good", "seen", "seen"]


async def test_a_flow_hands_over_what_was_returned_or_is_refused(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "log")

    @app.task
    async def make() -> Order:
        return Order(orderId=7)

    @app.task
    async def take(order: Order) -> int:
        return order.order_id

    @app.task
    async def count(orders: list[Order]) -> int:
        return sum(order.order_id for order in orders)

    @app.task
    async def anything(value: Any) -> str:
        return json.dumps(value)

    @app.task
    async def parent() -> int:
        return (await durable.call(make.call())).order_id

    async with app, app.worker():
        flows: list[Any] = [
            chain(make.call(), take.step()), chord([make.call()], count.step()),
            chain(take.call(Order(orderId=7)), anything.step()), parent.call(),
        ]  # fmt: skip
        for flow in flows[:3]:
            assert int(await (await flow.enqueue()).result(timeout=20)) == 7
        assert await (await app.enqueue(flows[3])).result(timeout=20) == 7
        for flow in (chain(make.call(), anything.step()), chord([make.call()], anything.step())):
            with pytest.raises(UsageError, match=r"'value' has no type.*annotate it"):
                await flow.enqueue()


def test_the_order_of_a_union_is_that_of_the_annotation() -> None:
    """Text stays text for the codecs of all processes, whichever union they met first."""
    ResultCodec(Signature("shop.first", plain(dt.date | str)))
    codec = ResultCodec(Signature("shop.buy", plain(str | dt.date)))
    assert codec.decode(b'"2020-01-01"') == "2020-01-01"
    with pytest.raises(UsageError, match="would come back as str"):
        codec.encode(NOW.date())


class Fat(float):
    """As of numpy."""


CHANGED: list[tuple[Any, str]] = [
    (NOW, "value: datetime"), (b"x", "value: bytes"), (math.nan, "value: float"),
    (Path("x"), "value: "), ({1, 2}, "value: set"), (Pair(1, 2), "value: Pair"),
    (Point(1), "value: Point"), (Base(a=1), "value: Base"), ([NOW], r"value: list\[datetime\]"),
    ({"at": NOW}, r"value: dict\[str, datetime\]"), ({1: "a"}, r"value: dict\[int, …\]"),
    ({"a": [{"b": b"x"}]}, r"bytes at \['a'\]\[0\]\['b'\].*annotate what holds it"),
    (Colour.RED, "value: Colour"), (collections.Counter("aab"), "value: Counter"),
    (Fat(1.5), r"Fat, which .*pass float\(…\) of it"),
    (object(), "cannot be written as JSON: object"),
]  # fmt: skip


def bare(value, *rest, flag=None, **more): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN201
def any_(value: Any) -> None: ...


CODECS = {fn.__name__: ArgumentCodec(Signature("t", fn)) for fn in (bare, any_)}


@pytest.mark.parametrize(("value", "message"), CHANGED)
def test_a_value_without_a_type_that_would_change_is_refused_with_what_to_write(
    value: Any, message: str
) -> None:
    for codec in CODECS.values():
        for args, kwargs in [((value,), {}), ((), {"value": value})]:
            with pytest.raises(InvalidCall, match=rf"^t: parameter 'value' .*{message}"):
                codec.encode(args, kwargs)
    result = ResultCodec(Signature("t", lambda: None))
    with pytest.raises(UsageError, match=rf"^t: .*{message.replace('value: ', '-> ')}"):
        result.encode(value)


def test_further_arguments_are_looked_at_too() -> None:
    loop: list[Any] = []
    loop.append(loop)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((1, NOW), {}, r"\*rest"), ((1,), {"flag": NOW}, "'flag'.*flag: datetime"),
        ((1,), {"other": [b"x"]}, r"\*more"), ((loop,), {}, "Circular"),
    ]  # fmt: skip
    for args, kwargs, message in wrong:
        with pytest.raises(InvalidCall, match=message):
            CODECS["bare"].encode(args, kwargs)


def test_what_can_be_read_once_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("abc")
    with (tmp_path / "f").open() as file:
        for once in (file, io.BytesIO(b"abc"), iter([1, 2]), (n for n in range(2)), map(str, [1])):
            for given in (once, [once], {"a": once}):
                with pytest.raises(InvalidCall, match=r"'value' .* can be read once.*pass"):
                    CODECS["any_"].encode((given,), {})
                with pytest.raises(InvalidCall, match=r"can be read once.*pass"):
                    encode_loose("other.take", (given,), {"value": given})
            assert list(once), "nobody has read it"


@pytest.mark.parametrize(
    "make", [iter, reversed, partial(map, lambda item: item), lambda items: (n for n in items)]
)
@pytest.mark.parametrize(
    "hint", [list[int], tuple[int, ...], set[int], list[int] | None, Iterable[int]], ids=str
)
def test_an_iterator_comes_back_whole_or_is_refused(make: Any, hint: Any) -> None:
    """It is read once: a second look, for the words of an error, would find a rest of it."""

    def take(value: Any) -> Any: ...

    take.__annotations__.update({"value": hint, "return": hint})
    signature = Signature("t", take)
    codec, result = ArgumentCodec(signature), ResultCodec(signature)
    for args, kwargs in [((make([2, 1]),), {}), ((), {"value": make([2, 1])})]:
        _, named = codec.decode(codec.encode(args, kwargs))
        assert sorted(named["value"]) == [1, 2]
    with pytest.raises(InvalidCall, match=r"'value' \(.* can be read once: pass a list"):
        codec.encode((make([1, 2, "wrong", 3]),), {})
    for value in (make([1, 2]), {"a": make([1, 2])}, [make([1, 2])]):
        with pytest.raises(UsageError, match=r"the result: .* can be read once: pass a list"):
            result.encode(value)


PLAIN: list[Any] = [str, int, float, bool, Any, None, type(None)]
OPTIONAL: list[Any] = [*(Optional.__getitem__(item) for item in PLAIN), str | None, int | None]
NOT_PLAIN: list[Any] = [bytes, list[int], dict[str, int], str | int, str | int | None, Path]
VALUES: list[Any] = [
    *("", "5", "true", "é", 0, 1, 5, -(2**70), 2.0, 0.5, float("inf"), True, False, None),
    *(b"x", [], [1], {}, {"a": b"x"}, (1,), object),
]


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


class Part(BaseModel):
    name: str
    count: int = 1
    tags: list[str] = []
    is_new: bool | None = None


@dataclass
class Box:
    label: str
    weight: float = 0.5
    sizes: list[int] = field(default_factory=list)
    inner: Box | None = None


class Weighed(BaseModel):
    """Writes as null what is no finite number."""

    grams: float


class Counted(BaseModel):
    """Has a rule."""

    count: int = Field(default=1, gt=0)


@dataclass
class Pallet:
    parts: list[Part]
    boxes: list[Box] | None
    best: Part | None = None


JUNK: tuple[Any, ...] = (
    None, True, 0, 1, -1, 10**30, 10**400, 10**5_000, 1.0, 1.5, float("nan"), float("inf"), "", "1",
    "x", "NaN", "\ud800", b"x", b"\xff", [], [1], ["x"], [None], [[]], (), ("x",), {}, {"a": 1},
    {1: 2}, {1}, Decimal("1.5"), object(), Colour.RED, Level.LOW, int, Box("x"), Sub(a=1),
    Part(name="x"), Part.model_construct(), Weighed(grams=1), 1j, [Part.model_construct(name=1)],
    [Part(name="x")], [Sub(a=1), None], range(3),
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
    "whole",
    [
        Box("a", 1.5, [1], Box("b")), Weighed(grams=1), Counted(count=1),
        Pallet([Part(name="c", tags=["b"])], [Box("c")], Part(name="d")),
    ],
)  # fmt: skip
def test_whatever_an_instance_holds_is_refused_at_the_call_or_read_by_the_worker(
    whole: Any,
) -> None:
    codec = ArgumentCodec(Signature("task", plain(type(whole))))
    codec.decode(codec.encode((whole,), {}))
    taken = refused = 0
    for changed in _spoilt([whole]):
        try:
            body = codec.encode(tuple(changed), {})
        except InvalidCall:
            refused += 1
        else:
            codec.decode(body)
            taken += 1
    assert taken
    assert refused
