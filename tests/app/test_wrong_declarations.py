"""Mistakes fail where they are made, by name."""

import contextlib
import dataclasses
import datetime as dt
import functools
import math
import re
import sys
import types
import typing
from collections.abc import Iterable
from datetime import date as real_date
from datetime import datetime as real_datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Unpack

import pytest
import typing_extensions
from pydantic import BaseModel, Field, PlainSerializer, PlainValidator

from taskq import TaskLog, TaskQ, chain
from taskq.errors import UsageError
from tests.programs import run_python


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    return TaskQ(tmp_path / "here")


def increment(number: int) -> int:
    return number + 1


def test_a_flow_of_two_apps_is_refused_unless_one_is_named(app: TaskQ, tmp_path: Path) -> None:
    other = TaskQ(tmp_path / "there")
    ours, theirs = app.task(increment), other.task(name="theirs")(increment)
    flow = chain(ours.call(1), theirs.step())
    with pytest.raises(UsageError, match=r"theirs .*two apps.*app\.enqueue_flow\(flow\)"):
        flow.enqueue_sync()
    twin = TaskQ(app.data_dir)
    with app, twin:
        assert len(app.enqueue_flow_sync(flow).jobs) == 2
        shared = chain(ours.call(1), twin.task(name="theirs")(increment).step())
        assert len(shared.enqueue_sync().jobs) == 2
        named = chain(app.call_by_name("of no app"), ours.call(1))
        assert len(named.enqueue_sync().jobs) == 2


def test_missing_arguments_of_a_schedule_are_reported_with_its_name(app: TaskQ) -> None:
    app.every("1h", name="hourly")(app.task(increment))
    with pytest.raises(UsageError, match=r"'number'.*missing; the schedule 'hourly' gives .*args="):
        app.hooks.schedules.all["hourly"].enrolment()


class Plain:
    pass


class OfTyping(typing.TypedDict):
    a: int


class OfExtensions(typing_extensions.TypedDict):
    a: int


class Model(BaseModel):
    a: int


class Pair(NamedTuple):
    a: int


class Colour(Enum):
    RED = 1


@dataclasses.dataclass
class Row:
    at: dt.datetime
    day: dt.date | None = None


#: Annotations with a form in JSON that look like others without one.
SOUND = [
    bytes, OfExtensions, Model, Pair, Colour, Row, list[Model] | None, dt.timedelta, Path,
    Annotated[Plain, PlainValidator(lambda _: Plain()), PlainSerializer(str)], Any, None,
    typing.Literal["a"], typing.NoReturn,
]  # fmt: skip


@pytest.mark.parametrize("hint", SOUND)
def test_a_type_that_pydantic_can_write_is_taken(app: TaskQ, hint: Any) -> None:
    def both(value: Any) -> Any: ...

    given = Any if hint is typing.NoReturn else hint
    both.__annotations__.update({"value": given, "return": hint})
    app.task(both)
    app.hooks.check_tasks()


def test_a_result_that_nobody_writes_may_have_any_type(app: TaskQ) -> None:
    @app.task(store_result=False)
    def give() -> bytearray: ...  # type: ignore[empty-body]

    app.hooks.check_tasks()


def keywords(**options: Unpack[OfExtensions]) -> None: ...
def of_typing(value: list[OfTyping] | None) -> None: ...
def described(n: int = Field(default=3, gt=1)) -> None: ...
def as_a_field(n: int = dataclasses.field(default=3)) -> None: ...


@functools.cache
async def cached() -> None: ...


@pytest.mark.parametrize(("function", "remedy"), [
    (keywords, r"such as \*\*options: int.*typing_extensions"),
    (described, r"default of 'n' is Field.*n: Annotated\[int, Field\("),
    (as_a_field, r"default of 'n' is Field.*n: Annotated\[int, Field\("),
    (cached, "each can be awaited once: leave the cache out"),
    pytest.param(
        of_typing,
        "typing_extensions",
        marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes it"),
    ),
])  # fmt: skip
def test_a_function_that_could_not_be_called_is_refused(
    app: TaskQ, function: Any, remedy: str
) -> None:
    with pytest.raises(UsageError, match=remedy):
        app.task(function)


@pytest.mark.parametrize("hint", [dt.datetime, list[dt.date], Row, "fake"])
def test_a_first_call_under_freezegun_compiles_real_dates(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch, hint: Any
) -> None:
    """A stand-in for it: other classes in the module, and in annotations that name them."""

    class FakeDate(real_date):
        pass

    class FakeDatetime(real_datetime):
        pass

    api = types.SimpleNamespace(
        FakeDatetime=FakeDatetime, FakeDate=FakeDate,
        real_datetime=real_datetime, real_date=real_date,
    )  # fmt: skip
    moment = real_datetime(2024, 1, 1, tzinfo=dt.UTC)
    values = {"fake": moment, Row: Row(moment), dt.datetime: moment}
    value: Any = [real_date(2024, 1, 1)] if hint == list[real_date] else values[hint]

    def both(value: Any) -> Any: ...

    hint = FakeDatetime if hint == "fake" else hint
    both.__annotations__.update({"value": hint, "return": hint})
    with monkeypatch.context() as frozen:
        frozen.setitem(sys.modules, "freezegun.api", api)
        frozen.setattr(dt, "datetime", FakeDatetime)
        frozen.setattr(dt, "date", FakeDate)
        task = app.task(both)
        app.hooks.check_tasks()
        assert dt.datetime is FakeDatetime
    assert task.decode(task.call(value).body) == ((), {"value": value})
    assert task.decode_result(task.encode_result(value) or b"") == value


@pytest.mark.parametrize("has_worker", [False, True])
def test_a_schedule_without_a_worker_warns(
    app: TaskQ, caplog: pytest.LogCaptureFixture, has_worker: bool
) -> None:
    """Declared while the app is open, in a process without a worker of it."""
    call = app.task(increment).call(1)
    app.schedule("before", call, every="1h")
    with app, app.worker_thread() if has_worker else contextlib.nullcontext():
        app.schedule("daily", call, every="1d")
    warned = [record.args for record in caplog.records if "ticks in" in record.msg]
    assert warned == ([] if has_worker else [("daily",)])


class Whole:
    def __index__(self) -> int:
        return 3


def test_a_refused_number_leaves_a_delivery_held(tmp_path: Path) -> None:
    number: Any = Whole()
    odd: Any
    with TaskLog.open(tmp_path, durability="os") as log:
        log.put_sync(b"3", priority=number)
        (delivery,) = log.claim_sync()
        assert delivery.priority == 3
        for odd in (True, math.nan, -1, "7", b"1"):
            with pytest.raises(UsageError, match=r"^delay is "):
                log.nack_sync(delivery, delay=odd)
            with pytest.raises(UsageError, match=r"^seconds is "):
                log.extend_sync(delivery, odd)
        log.ack_sync(delivery)


ROOT = Path(__file__).parents[2]
SAMPLES = ("typed_app", "typed_flows")


@pytest.fixture(scope="module")
def output() -> list[str]:
    pytest.importorskip("mypy")
    samples = (str(ROOT / "tests" / "samples" / f"{name}.py") for name in SAMPLES)
    places = f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}"
    words = ("-m", "mypy", *places, "--no-error-summary", "--no-pretty", *samples)
    done = run_python(*words, cwd=ROOT)
    return done.stdout.splitlines()


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("typing")
@pytest.mark.parametrize("name", SAMPLES)
def test_mypy_finds_the_sample_errors_and_no_others(output: list[str], name: str) -> None:
    sample = ROOT / "tests" / "samples" / f"{name}.py"
    result = _matches(rf"{name}\.py:(\d+): error: .*\[([\w-]+)\]$", output)
    source = sample.read_text().splitlines()
    wanted = {
        (number, match[1])
        for number, line in enumerate(source, 1)
        if (match := re.search(r"# E: ([\w-]+)$", line))
    }
    assert wanted
    assert result == wanted, output


def _matches(pattern: str, lines: Iterable[str]) -> set[tuple[int, str]]:
    matches = [match for line in lines if (match := re.search(pattern, line))]
    return {(int(match[1]), match[2]) for match in matches}
