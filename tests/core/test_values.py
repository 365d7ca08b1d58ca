"""Rates of claims at their bounds, and classes that are written later."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from threading import Barrier
from typing import Any, ClassVar, NamedTuple, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskq.core import rates, values
from taskq.core.durations import moment_ns, nanoseconds
from taskq.core.errors import FormatError
from taskq.core.fingerprints import NO_REASON, PATTERN_CHARACTERS_MAX, fingerprint, pattern_of
from taskq.core.flows import DEPTH_MAX, ONE, depth, list_of, nested, skipping
from taskq.core.model import SECOND_NS
from taskq.core.parsing import size_bytes, split_id, whole
from tests.programs import run_python


@pytest.mark.parametrize(
    ("text", "rate", "again"),
    [
        ("10/s", rates.Rate(10, SECOND_NS), "10/s"),
        ("100/min", rates.Rate(100, 60 * SECOND_NS), "100/min"),
        ("100/m", rates.Rate(100, 60 * SECOND_NS), "100/min"),
        ("1000/h", rates.Rate(1_000, 3_600 * SECOND_NS), "1000/h"),
        ("1/day", rates.Rate(1, 86_400 * SECOND_NS), "1/d"),
        (" 5 / 30s ", rates.Rate(5, 30 * SECOND_NS), "5/30s"),
        ("2/250ms", rates.Rate(2, SECOND_NS // 4), "2/250ms"),
        ("7/1.5s", rates.Rate(7, 3 * SECOND_NS // 2), "7/1500ms"),
        (f"{rates.RATE_COUNT_MAX}/s", rates.Rate(rates.RATE_COUNT_MAX, SECOND_NS), "100000/s"),
        ("1/1ms", rates.Rate(1, rates.RATE_WINDOW_NS_MIN), "1/1ms"),
        ("1/24h", rates.Rate(1, rates.RATE_WINDOW_NS_MAX), "1/d"),
    ],
)
def test_a_rate_is_read_as_people_write_it_and_shown_like_that(
    text: str, rate: rates.Rate, again: str
) -> None:
    assert rates.rate_of(text) == rate
    assert str(rate) == again


def test_the_times_of_a_hundred_thousand_claims_take_little_and_are_dropped() -> None:
    times = rates.Times()
    for moment in range(300_000):
        times.add(moment, 1, rates.RATE_COUNT_MAX, 3_600 * SECOND_NS)
    assert times.total == rates.RATE_COUNT_MAX
    assert len(times._moments) <= 2 * rates.RATE_COUNT_MAX + 100
    times.forget(4_000 * SECOND_NS)
    assert not times.total
    assert times.pairs() == []


WINDOW = 100
CLAIMS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 3)), max_size=30)


def made(spans: list[tuple[int, int]], most: int) -> tuple[rates.Times, list[int]]:
    times, claims, now = rates.Times(), [], 0
    for span, count in spans:
        now += span
        times.add(now, count, most, WINDOW)
        claims += [now] * count
    return times, claims


@given(
    spans=CLAIMS, count=st.integers(1, 8), window=st.integers(1, WINDOW), later=st.integers(0, 99)
)
@example(spans=[(0, 1), (2, 1)], count=2, window=WINDOW, later=99)  # the first counts no more
def test_a_claim_is_free_exactly_at_the_computed_time(
    spans: list[tuple[int, int]], count: int, window: int, later: int
) -> None:
    times, claims = made(spans, 8)
    rate = rates.Rate.__new__(rates.Rate)  # windows of a few nanoseconds, which nobody may have
    object.__setattr__(rate, "count", count)
    object.__setattr__(rate, "window_ns", window)
    now = (claims[-1] if claims else 0) + later

    def room(moment: int) -> int:
        return max(count - sum(claim > moment - window for claim in claims[-8:]), 0)

    free = times.free_at(now, rate)
    again = rates.Times()
    again.replace(times.pairs(), times.most, times.window_ns)
    assert again.pairs() == times.pairs()
    assert times.room(now, rate) == room(now)
    assert free >= now
    assert room(free) > 0
    assert free == now or room(free - 1) == 0


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
    {"frozen": True, "kw_only": True}, {"frozen": True}, {"kw_only": True}, {}, {"eq": False},
    {"frozen": True, "eq": False},
)  # fmt: skip


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
    to: str


class Pair(values.NamedTuple):
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


UNITS = {
    "": 1, "b": 1, "B": 1, "kB": 10**3, "MB": 10**6, "gb": 10**9, "TB": 10**12,
    "KiB": 2**10, "mib": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
LARGEST = 2**63 - 1


class Indexed:
    """A whole number of another library."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


@given(number=st.integers())
def test_a_whole_number_of_any_library_is_one(number: int) -> None:
    assert whole(number, "count") == number
    assert whole(Indexed(number), "count") == number


@given(count=st.integers(1, 10**6), unit=st.sampled_from(sorted(UNITS)), space=st.booleans())
def test_a_size_is_its_number_times_its_unit(count: int, unit: str, space: bool) -> None:
    text = f" {count} {unit} " if space else f"{count}{unit}"
    assert size_bytes(text) == count * UNITS[unit]
    assert size_bytes(count) == size_bytes(Indexed(count)) == count  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "size"), [(1, 1), (LARGEST, LARGEST), ("1.5kB", 1_500), ("0.5 KiB", 512)]
)
def test_a_size_may_have_a_fraction_of_its_unit(value: Any, size: int) -> None:
    assert size_bytes(value) == size


@given(tag=st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True), lsn=st.integers(0, 10**19 - 1))
def test_an_id_is_the_tag_of_its_log_and_a_number(tag: str, lsn: int) -> None:
    assert split_id(f"{tag}-{lsn}") == (tag, lsn)
    assert split_id(f" {lsn}\n") == ("", lsn)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (3, 3_000_000_000),
        (0.25, 250_000_000),
        (0.1, 100_000_000),
        ("250ms", 250_000_000),
        ("30s", 30_000_000_000),
        ("0.1s", 100_000_000),
        ("5m", 300_000_000_000),
        ("2h", 7_200_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("1d", 86_400_000_000_000),
        (" 7 d ", 604_800_000_000_000),
        (timedelta(minutes=1, microseconds=1), 60_000_001_000),
    ],
)
def test_a_duration_is_read_exactly(value: Any, expected: int) -> None:
    assert nanoseconds(value) == expected


def test_a_moment_is_the_same_in_every_time_zone() -> None:
    here = datetime(2030, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)
    there = here.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert moment_ns(here) == moment_ns(there) == int(here.timestamp()) * 10**9 + 123_456_000


UUID = "550e8400-e29b-41d4-a716-446655440000"
#: Reasons, and what is left of them.
EXAMPLES = {
    "ValueError: bad order 17 of 'ann'": "ValueError: bad order <n> of <str>",
    "KeyError: 'user_id'\n  File \"app.py\", line 3": "KeyError: <str>",
    "  \n ValueError: late\nmore": "ValueError: late",
    "ValueError": "ValueError",
    "sqlite3.Error": "sqlite3.Error",
    "sqlite3.OperationalError: no such table: t1": "sqlite3.OperationalError: no such table: t<n>",
    "OSError: [Errno 111] Connect call failed ('127.0.0.1', 8080)": (
        "OSError: [Errno <n>] Connect call failed (<str>, <n>)"
    ),
    "ConnectionError: 10.1.2.3:8080 refused": "ConnectionError: <addr> refused",
    "cannot reach db7.example.com:5432 or redis:6379": "cannot reach <addr> or <addr>",
    "no route to fe80::1, [2001:db8::1]:443 or aa:bb:cc:dd:ee:ff": (
        "no route to <addr>, <addr> or <addr>"
    ),
    "std::vector of a::b": "std::vector of a::b",
    "<Job object at 0x7f3a2b1c>": "<Job object at <hex>>",
    "commit deadbeef01 and 5f3a9c-7": "commit <hex> and <id>-<n>",
    "the feedface of defaced": "the feedface of defaced",
    "token 01HZX3K9ABCDEFGHJKMNPQRSTV is old": "token <id> is old",
    f"job {UUID} gone": "job <uuid> gone",
    "mail to Bob.x+y@mail.example.org bounced": "mail to <email> bounced",
    "GET https://x.example/a/b?c=1: 503": "GET <url>: <n>",
    "cannot open /var/lib/data-7/file.txt: denied": "cannot open <path>: denied",
    "cannot open C:\\Users\\ann\\a.txt: denied": "cannot open <path>: denied",
    "cannot open ~/a/b and ./c and data/in/file.csv:12": "cannot open <path> and <path> and <path>",
    "read and/or write": "read and/or write",
    "at 2024-05-01T12:00:00.123Z or 12:30": "at <time> or <time>",
    "at 2024-05-01 12:00:00+02:00, 2024-05-01": "at <time>, <time>",
    "-3 and +4.5e-10 and 1,000.5 and 1_000": "<n> and <n> and <n> and <n>",
    "took 12.5s on device-17 over utf-8": "took <n>s on device-<n> over utf-<n>",
    "[1, 2, 3] and ['a', \"b\"]": "[<n>, ...] and [<str>, ...]",
    "can't decode what doesn't fit": "can't decode what doesn't fit",
    r"it said 'it\'s over' and b'\x00'": "it said <str> and <str>",
    "\x1b[31mred\x1b[0m \t word": "red word",
    "Fehler: größer als ١٢٣ 数字 🙂": "Fehler: größer als ١٢٣ 数字 🙂",
    "an open ' quote 5": "an open ' quote <n>",
    "": NO_REASON,
    " \r\n\t": NO_REASON,
    "x" * 900: "x" * PATTERN_CHARACTERS_MAX,
}


@pytest.mark.parametrize("reason", list(EXAMPLES))
def test_what_differs_from_job_to_job_becomes_a_placeholder(reason: str) -> None:
    assert pattern_of(reason) == EXAMPLES[reason]


@given(st.text(alphabet=st.sampled_from("aZ9 .:/'\"\\-@0x[]<>,~\n{}=é"), max_size=600))
def test_a_pattern_is_short_and_one_line(reason: str) -> None:
    pattern = pattern_of(reason)
    assert 0 < len(pattern) <= PATTERN_CHARACTERS_MAX
    assert "\n" not in pattern


@pytest.mark.parametrize("piece", ["/a", "a.", "0:", "a-", "'\\", "::", "a@", "1,", "<n>,", "~+"])
def test_no_reason_takes_long_to_read(piece: str) -> None:
    """The patterns could be made to try again and again; the timeout of tests is what watches."""
    pattern_of(piece * 100_000)


def test_a_fingerprint_is_of_task_and_pattern() -> None:
    """It is stored and compared over years, so it is pinned."""
    assert fingerprint("app.send", "KeyError: <str>") == "b310ff0c758e2c34"
    assert fingerprint(None, "KeyError: <str>") != fingerprint("app.send", "KeyError: <str>")


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


@given(tree=st.lists(TREES, max_size=4), cut=st.integers(1, 8))
def test_a_shape_that_was_cut_short_or_is_of_other_jobs_is_refused(
    tree: list[Any], cut: int
) -> None:
    shape, values = shape_of(tree), leaves(tree)
    for wrong, jobs in (
        (shape[: max(len(shape) - cut, 0)], values), (shape, [*values, 1]), (shape, values[:-1]),
    ):  # fmt: skip
        if (wrong, jobs) != (shape, values):
            with pytest.raises(FormatError, match="shape"):
                nested(wrong, jobs)


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
