"""A class written later equals the standard library's, after any first use."""

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

from taskq.core import values
from tests.programs import run_python

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


def made(make: Callable[..., Any], plain: type, options: dict[str, bool]) -> Any:
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
        ours = made(values.dataclass, parcel(), options)
        theirs = made(dataclasses.dataclass, parcel(), options)
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
        made = list(pool.map(make, range(THREADS)))
    assert [(item.to, item.weight, item.notes) for item in made] == [
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
