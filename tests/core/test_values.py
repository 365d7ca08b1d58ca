"""Rates of claims at their bounds, and classes that are written later."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, ClassVar, NamedTuple, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskq.core import values
from taskq.core.errors import UsageError
from taskq.core.model import SECOND_NS
from taskq.core.rates import (
    RATE_COUNT_MAX,
    RATE_WINDOW_NS_MAX,
    RATE_WINDOW_NS_MIN,
    Rate,
    Times,
    rate_of,
)
from tests.programs import run_python


@pytest.mark.parametrize(
    ("text", "rate", "again"),
    [
        ("10/s", Rate(10, SECOND_NS), "10/s"),
        ("100/min", Rate(100, 60 * SECOND_NS), "100/min"),
        ("100/m", Rate(100, 60 * SECOND_NS), "100/min"),
        ("1000/h", Rate(1_000, 3_600 * SECOND_NS), "1000/h"),
        ("1/day", Rate(1, 86_400 * SECOND_NS), "1/d"),
        (" 5 / 30s ", Rate(5, 30 * SECOND_NS), "5/30s"),
        ("2/250ms", Rate(2, SECOND_NS // 4), "2/250ms"),
        ("7/1.5s", Rate(7, 3 * SECOND_NS // 2), "7/1500ms"),
    ],
)
def test_a_rate_is_read_as_people_write_it_and_shown_like_that(
    text: str, rate: Rate, again: str
) -> None:
    assert rate_of(text) == rate
    assert str(rate) == again


@pytest.mark.parametrize(
    "wrong", ["", "10", "ten/s", "10/", "0/s", "10/0s", "10/2d", "10/parsec", "-1/s", 10, None]
)
def test_what_is_no_rate_is_refused_with_an_example(wrong: object) -> None:
    with pytest.raises(UsageError, match="rate"):
        rate_of(wrong)


_RATE = Rate(4, SECOND_NS)
_STEPS = st.lists(st.tuples(st.integers(0, SECOND_NS), st.integers(0, 5)), max_size=60)


@given(steps=_STEPS)
def test_a_window_allows_what_counting_every_claim_allows(steps: list[tuple[int, int]]) -> None:
    times, now = Times(), 0
    claims: list[int] = []
    for span, wanted in steps:
        now += span
        recent = [claim for claim in claims if claim > now - _RATE.window_ns]
        room = max(_RATE.count - len(recent), 0)
        assert times.room(now, _RATE) == room
        if not room:
            free = times.free_at(now, _RATE)
            assert free == recent[-_RATE.count] + _RATE.window_ns
        made = wanted  # another process may be of another mind, and exceed it
        if made:
            times.add(now, made, _RATE.count, _RATE.window_ns)
            claims += [now] * made
        assert times.total <= _RATE.count
        again = Times()
        again.replace(times.pairs(), times.most, times.window_ns)
        assert again.pairs() == times.pairs()


def test_the_times_of_a_hundred_thousand_claims_take_little_and_are_dropped() -> None:
    times = Times()
    for moment in range(300_000):
        times.add(moment, 1, RATE_COUNT_MAX, 3_600 * SECOND_NS)
    assert times.total == RATE_COUNT_MAX
    assert len(times._moments) <= 2 * RATE_COUNT_MAX + 100
    times.forget(4_000 * SECOND_NS)
    assert not times.total
    assert times.pairs() == []


# -- rate bounds -----------------------------------------------------------------------------------


WINDOW = 100
CLAIMS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 3)), max_size=30)


def test_the_largest_and_the_smallest_rate_are_rates_and_their_neighbours_are_not() -> None:
    assert rate_of(f"{RATE_COUNT_MAX}/s").count == RATE_COUNT_MAX
    assert rate_of("1/1ms").window_ns == RATE_WINDOW_NS_MIN
    assert rate_of("1/24h").window_ns == RATE_WINDOW_NS_MAX
    for count, window_ns in (
        (RATE_COUNT_MAX + 1, SECOND_NS),
        (0, SECOND_NS),
        (1, RATE_WINDOW_NS_MIN - 1),
        (1, RATE_WINDOW_NS_MAX + 1),
    ):
        with pytest.raises(UsageError):
            Rate(count, window_ns)


def made(spans: list[tuple[int, int]], most: int) -> tuple[Times, list[int]]:
    times, claims, now = Times(), [], 0
    for span, count in spans:
        now += span
        times.add(now, count, most, WINDOW)
        claims += [now] * count
    return times, claims


@given(
    spans=CLAIMS, count=st.integers(1, 8), window=st.integers(1, WINDOW), later=st.integers(0, 99)
)
@example(spans=[(0, 1), (2, 1)], count=2, window=WINDOW, later=99)  # the first counts no more
def test_at_the_moment_that_is_told_a_claim_is_free_and_not_before(
    spans: list[tuple[int, int]], count: int, window: int, later: int
) -> None:
    times, claims = made(spans, 8)
    rate = Rate.__new__(Rate)  # windows of a few nanoseconds, which nobody may have
    object.__setattr__(rate, "count", count)
    object.__setattr__(rate, "window_ns", window)
    now = (claims[-1] if claims else 0) + later

    def room(moment: int) -> int:
        return max(count - sum(claim > moment - window for claim in claims[-8:]), 0)

    free = times.free_at(now, rate)
    assert times.room(now, rate) == room(now)
    assert free >= now
    assert room(free) > 0
    assert free == now or room(free - 1) == 0


@given(first=CLAIMS, second=CLAIMS, is_apart=st.booleans())
def test_united_times_have_what_either_has(
    first: list[tuple[int, int]], second: list[tuple[int, int]], is_apart: bool
) -> None:
    item, _ = made(first, 1_000)
    other, _ = made(second, 1_000)
    mine, theirs = dict(item.pairs()), dict(other.pairs())
    item.unite(other, is_apart=is_apart)
    last = max([*mine, *theirs], default=0)
    expected = {
        moment: mine.get(moment, 0) + theirs.get(moment, 0)
        if is_apart
        else max(mine.get(moment, 0), theirs.get(moment, 0))
        for moment in sorted({*mine, *theirs})
        if moment > last - WINDOW
    }
    assert dict(item.pairs()) == expected
    assert item.total == sum(expected.values())
    assert item.entries == len(expected)


def test_only_as_many_claims_are_kept_as_matter_the_latest() -> None:
    times = Times()
    for moment in (1, 2, 3):
        times.add(moment, 4, 5, WINDOW)
    assert times.pairs() == [(2, 1), (3, 4)]
    assert times.total == 5
    times.forget(1 + WINDOW)
    assert times.pairs() == [(2, 1), (3, 4)]
    times.forget(2 + WINDOW)
    assert times.pairs() == [(3, 4)]


# -- values ----------------------------------------------------------------------------------------


THREADS = 8
FIRST_USES: dict[str, Callable[[Any], object]] = {
    "one is made": lambda kind: repr(kind(to="Ada", weight=2)),
    "one is made of defaults": lambda kind: repr(kind(to="Ada")),
    "too few are given": lambda kind: kind(),
    "too many are given": lambda kind: kind(to="Ada", colour="red"),
    "by position": lambda kind: repr(kind("Ada")),
    "what it checks": lambda kind: kind(to="Ada", weight=-1),
    "alike": lambda kind: kind(to="Ada", notes=["a"]) == kind(to="Ada"),
    "unlike": lambda kind: kind(to="Ada") == kind(to="Bob"),
    "of another kind": lambda kind: kind(to="Ada") == "Ada",
    "a hash": lambda kind: len({kind(to="Ada", notes=["a"]), kind(to="Ada")}),
    "a change": lambda kind: setattr(kind(to="Ada"), "to", "Bob"),
    "a loss": lambda kind: delattr(kind(to="Ada"), "to"),
    "what it has not": lambda kind: kind(to="Ada").colour,
    "no dictionary": lambda kind: hasattr(kind(to="Ada"), "__dict__"),
    "slots": lambda kind: kind.__slots__,
    "fields": lambda kind: [(field.name, field.compare) for field in dataclasses.fields(kind)],
    "whether it is one": dataclasses.is_dataclass,
    "a dictionary": lambda kind: dataclasses.asdict(kind(to="Ada")),
    "one like it": lambda kind: repr(dataclasses.replace(kind(to="Ada"), weight=3)),
    "a copy": lambda kind: repr(copy.copy(kind(to="Ada"))),
    "a pattern": lambda kind: kind.__match_args__,
    "its name": lambda kind: (kind.__name__, kind.__qualname__, kind.__module__, kind.__doc__),
    "a list each": lambda kind: kind(to="Ada").notes is kind(to="Ada").notes,
    "what is no field": lambda kind: kind.most,
}
OPTIONS: tuple[dict[str, bool], ...] = (
    {"frozen": True, "kw_only": True},
    {"frozen": True},
    {"kw_only": True},
    {},
    {"eq": False},
    {"frozen": True, "eq": False},
)


def parcel() -> type:
    class Parcel:
        """A message."""

        most: ClassVar[int] = 9
        to: str
        weight: int = 1
        notes: list[str] = dataclasses.field(default_factory=list, compare=False, hash=False)

        def __post_init__(self) -> None:
            if self.weight < 0:
                raise ValueError("a weight is not below 0")

    return Parcel


def class_of(make: Callable[..., Any], plain: type, options: dict[str, bool]) -> Any:
    """Return a dataclass with slots, by either way."""
    return make(slots=True, **options)(plain)


def told(use: Callable[[Any], object], kind: type) -> object:
    """Return what comes of a use, or how it fails."""
    try:
        return use(kind)
    except Exception as error:  # noqa: BLE001 - it is compared with the other's
        return type(error), str(error)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_whatever_is_done_first_with_a_class_comes_out_as_with_the_standard_librarys(
    options: dict[str, bool],
) -> None:
    for name, use in FIRST_USES.items():
        ours = class_of(values.dataclass, parcel(), options)
        theirs = class_of(dataclasses.dataclass, parcel(), options)
        assert told(use, ours) == told(use, theirs), name


TUPLE_USES: dict[str, Callable[[Any], object]] = {
    "one is made": lambda kind: kind("Ada", 2),
    "one is made by names": lambda kind: kind(weight=2, to="Ada"),
    "one is made of defaults": lambda kind: kind("Ada"),
    "too few are given": lambda kind: kind(),
    "too many are given": lambda kind: kind("Ada", 1, 2),
    "one of a list": lambda kind: kind._make(["Ada", 2]),
    "a field of one that was made without a word": lambda kind: tuple.__new__(kind, "ab").weight,
    "its face": lambda kind: repr(tuple.__new__(kind, "ab")),
    "its own method": lambda kind: kind("Ada").shown(),
    "one like it": lambda kind: kind("Ada")._replace(weight=3),
    "a dictionary": lambda kind: kind("Ada")._asdict(),
    "equals": lambda kind: (kind("Ada") == ("Ada", 1), hash(kind("Ada")) == hash(("Ada", 1))),
    "a change": lambda kind: setattr(kind("Ada"), "to", "Bob"),
    "no dictionary": lambda kind: hasattr(kind("Ada"), "__dict__"),
    "a copy": lambda kind: copy.copy(kind("Ada")),
    "a pattern": lambda kind: kind.__match_args__,
    "its fields": lambda kind: (kind._fields, kind._field_defaults, get_type_hints(kind)),
    "its name": lambda kind: (kind.__name__, kind.__qualname__, kind.__module__, kind.__doc__),
    "its kind": lambda kind: (type(kind), kind.__mro__[1:]),
    "how it is called": lambda kind: list(inspect.signature(kind).parameters),
}


def tuple_kind(base: Any) -> Any:
    class Weighed(base):  # type: ignore[misc]
        """A weight."""

        to: str
        weight: int = 1

        def shown(self) -> str:
            return f"{self.to}: {self.weight}"

    return Weighed


@pytest.mark.parametrize("use", TUPLE_USES.values(), ids=TUPLE_USES)
def test_whatever_is_done_first_with_a_tuple_comes_out_as_with_the_standard_librarys(
    use: Callable[[Any], object],
) -> None:
    ours, theirs = tuple_kind(values.NamedTuple), tuple_kind(NamedTuple)
    assert told(use, ours) == told(use, theirs)


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Found by its name, as a pickle needs it."""

    to: str


class Pair(values.NamedTuple):
    """As above."""

    number: int
    other: int


def test_one_travels_in_a_pickle_to_a_process_that_has_used_none() -> None:
    label = Label(to="Ada")
    assert pickle.loads(pickle.dumps(label)) == label  # noqa: S301 - our own
    pair = Pair(1, 2)
    assert pickle.loads(pickle.dumps(pair)) == pair  # noqa: S301 - our own


def test_threads_that_use_a_class_first_at_the_same_time_all_get_theirs() -> None:
    kind: Any = values.dataclass(slots=True, frozen=True)(parcel())
    together = Barrier(THREADS)

    def make(number: int) -> Any:
        together.wait()
        return kind(str(number))

    with ThreadPoolExecutor(THREADS) as pool:
        class_of = list(pool.map(make, range(THREADS)))
    assert [(item.to, item.weight, item.notes) for item in class_of] == [
        (str(number), 1, []) for number in range(THREADS)
    ]


def test_views_are_loaded_without_a_method_of_theirs_being_written() -> None:
    program = (
        "import dataclasses, sys\n"
        "written, process = [], dataclasses._process_class\n"
        "dataclasses._process_class = lambda cls, *a: written.append(cls) or process(cls, *a)\n"
        "from taskq.core import views\n"
        "print(len(written))\n"
        "views.Spread.__init__\n"
        "print(len(written))\n"
    )
    done = run_python("-c", program)
    assert done.stdout.split() == ["0", "1"], done.stderr


def test_what_a_class_is_written_from_is_whole_when_garbage_is_collected_meanwhile() -> None:
    """The source of a copy is garbage once nobody holds it, and is emptied then."""

    class Pair(values.NamedTuple):
        left: int
        right: str = ""

    later = vars(Pair)["__new__"]
    write = later._write

    def write_and_collect(name: str) -> Any:
        written = write(name)
        gc.collect()
        return written

    later._write = write_and_collect
    assert Pair(1)._asdict() == {"left": 1, "right": ""}


def test_the_types_of_a_dictionary_stay_as_they_are_written() -> None:
    class Most(values.TypedDict, total=False):
        to: "Nobody"  # type: ignore[name-defined]  # noqa: F821, UP037

    class All(Most, total=False):
        weight: int

    assert (Most.__annotations__, All.__annotations__) == (
        {"to": "'Nobody'"},
        {"to": "'Nobody'", "weight": "int"},
    )
    assert All(weight=1) == {"weight": 1}
