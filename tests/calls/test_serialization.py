from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest
from click.testing import CliRunner
from hypothesis import strategies as st

from taskq import TaskLog, TaskQ
from taskq.calls.arguments import ArgumentCodec
from taskq.calls.serialization import ResultCodec, encode_loose, encode_reason
from taskq.calls.signature import Signature
from taskq.cli.main import main
from taskq.core.errors import FormatError, InvalidCall, JobFailed, UsageError
from taskq.core.parsing import DEPTH_MAX, VALUE_DEPTH_MAX, parse_json
from taskq.log.machine.owners import decode_description, read_servings
from taskq.log.read.reader import LogReader
from taskq.schedules import _facts

if TYPE_CHECKING:
    from fractions import Fraction


def typed(annotation: Any) -> Callable[..., Any]:
    def task(value: Any) -> Any:
        return value

    task.__annotations__ = {"value": annotation, "return": annotation}
    return task


def codec_of(function: Callable[..., Any]) -> ArgumentCodec:
    return ArgumentCodec(Signature("shop.buy", function))


def round_trip(
    function: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    codec = codec_of(function)
    return codec.decode(codec.encode(args, kwargs))


MOMENT = datetime(2030, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def loose(value: Any, *rest: Any, flag: Any = False, **further: Any) -> Any:
    return value, rest, flag, further


loose.__annotations__ = {}


def every_kind(
    a: int, b: bytes = b"", /, c: int = 1, *rest: Decimal, d: float, e: str = "e", **further: UUID
) -> tuple[Any, ...]:
    return a, b, c, rest, d, e, further


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {"d": 0.5}),
        ((1, b"\xff"), {"d": 1.0, "c": 7}),
        ((1, b"x", 3), {"d": 1.0, "e": "f"}),
        ((1, b"x", 3, Decimal("1.5"), Decimal(2)), {"d": 1.0}),
        ((1,), {"d": 1.0, "a": UUID(int=1), "b": UUID(int=2), "z": UUID(int=3)}),
        ((1, b"x", 3, Decimal(4)), {"d": 1.0, "e": "f", "**": UUID(int=3), "*": UUID(int=9)}),
    ],
)
def test_every_kind_of_parameter_gets_what_it_was_given(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    got_args, got_kwargs = round_trip(every_kind, *args, **kwargs)
    assert every_kind(*got_args, **got_kwargs) == every_kind(*args, **kwargs)


def test_a_payload_names_its_arguments_and_leaves_defaults_to_the_code_that_runs() -> None:
    def send(to: str, subject: str = "hello", *, urgent: bool = False) -> None: ...

    codec = codec_of(send)
    assert codec.encode(("a@b.c",), {}) == b'{"to":"a@b.c"}'
    assert codec.encode(("a@b.c",), {"urgent": True}) == b'{"to":"a@b.c","urgent":true}'


def test_a_payload_of_a_sender_that_does_not_know_the_task_fits_its_parameters() -> None:
    def send(to: str, data: bytes, at: datetime, urgent: bool = False) -> None: ...

    body = encode_loose("send", ("a@b.c", b"\xff"), {"at": MOMENT})
    assert codec_of(send).decode(body) == ((), {"to": "a@b.c", "data": b"\xff", "at": MOMENT})

    body = encode_loose("any", (1, b"\x01", 3, Decimal(4)), {"d": 1.0, "z": UUID(int=3)})
    args, kwargs = codec_of(every_kind).decode(body)
    assert every_kind(*args, **kwargs) == every_kind(
        1, b"\x01", 3, Decimal(4), d=1.0, z=UUID(int=3)
    )


def test_a_first_argument_with_a_default_is_not_taken_for_one_of_the_rest() -> None:
    def add(start: int = 0, *rest: int) -> None: ...

    assert codec_of(add).decode(encode_loose("add", (1, 2), {})) == ((1, 2), {})
    assert round_trip(add, 1, 2) == ((1, 2), {})
    assert round_trip(add) == ((), {})


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b'{"count":"many"}', "parameter 'count' must be int, got str: Input should be"),
        (b"{}", r"parameter 'count' \(int\) is missing"),
        (b'{"count":1,"size":2}', "there is no parameter 'size'"),
        (b'{"*":[1,2]}', "takes 1 positional arguments, 2 were given"),
        (b'{"*":1,"count":"x"}', "must hold a list"),
        (b'{"*":[1],"count":"x"}', "takes 1 positional arguments, 2 were given"),
        (b"[1]", "the payload is no JSON object"),
        (b'{"count', "the payload is no JSON: EOF"),
        (b"\xff", "the payload is no JSON"),
        (b"", "the payload is no JSON"),
    ],
)
def test_a_payload_that_no_longer_fits_is_an_invalid_call(payload: bytes, message: str) -> None:
    def task(count: int) -> None: ...

    with pytest.raises(InvalidCall, match=f"^shop.buy: .*{message}"):
        codec_of(task).decode(payload)


class Plain:
    """Nothing that pydantic could read."""


@dataclass
class Holder:
    plain: Plain


@pytest.mark.parametrize(
    ("codec", "annotation", "place"),
    [
        (ArgumentCodec, Plain, "of parameter 'value' has no form in JSON: instead of .*Plain"),
        (ResultCodec, Plain, "of the result has no form in JSON: instead of .*Plain"),
        (ArgumentCodec, Holder, "Holder of 'value' has no form in JSON: use a built-in type"),
        (ResultCodec, Holder, "Holder of 'the result' has no form in JSON: use a built-in type"),
    ],
)
def test_an_annotation_without_a_form_in_json_is_named_with_its_parameter(
    codec: Any, annotation: Any, place: str
) -> None:
    with pytest.raises(UsageError, match=f"shop.buy: the annotation .*{place}"):
        codec(Signature("shop.buy", typed(annotation)))


def test_an_annotation_that_only_the_type_checker_sees_is_explained() -> None:
    def task(first: int, second: Fraction) -> None: ...

    with pytest.raises(UsageError, match="'Fraction' of parameter 'second' cannot be resolved"):
        codec_of(task)


def test_an_unresolvable_result_does_not_stand_in_the_way_of_an_enqueue(app: TaskQ) -> None:
    @app.task
    def task(first: int) -> Fraction:
        raise NotImplementedError

    assert task.call(1).body == b'{"first":1}'


def test_a_result_of_a_kindred_type_becomes_the_annotated_one() -> None:
    codec = ResultCodec(Signature("shop.buy", typed(list[int])))
    assert codec.encode((1, 2)) == b"[1,2]"
    assert codec.decode(b"[1,2]") == [1, 2]
    with pytest.raises(UsageError, match=r"stored result does not fit the return annotation list"):
        codec.decode(b'"text"')


@pytest.mark.parametrize("annotation", [None, Any, int | None, object])
def test_a_none_is_no_bytes_where_none_is_allowed(annotation: Any) -> None:
    assert ResultCodec(Signature("shop.buy", typed(annotation))).encode(None) is None


@pytest.mark.parametrize("middle", ["ä", "\ud800", "𝄞 ", "x\n"])
def test_a_long_reason_loses_its_middle(middle: str) -> None:
    encoded = encode_reason("first line" + middle * 10_000 + "last line")
    assert len(encoded) <= 8 * 1024
    text = encoded.decode()
    assert text.startswith("first line")
    assert text.endswith("last line")
    assert "\n...\n" in text


_MANY: Final = 100_000
_DEEP: Final = b"[" * _MANY + b"]" * _MANY
_DEEP_OBJECTS: Final = b'{"a":' * _MANY + b"1" + b"}" * _MANY


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize("data", [_DEEP, _DEEP_OBJECTS, _DEEP.decode(), b"[" * _MANY])
def test_whatever_is_nested_too_deeply_is_a_value_error(data: bytes | str) -> None:
    """The limit is the depth, and not the number of brackets."""
    with pytest.raises(ValueError, match=r"nested more than 200 deep|Expecting value"):
        parse_json(data)
    for depth in (DEPTH_MAX + 1, 500):
        for text in (json.dumps([_nested(depth - 1)] * 50), '{"a":' * depth + "1" + "}" * depth):
            with pytest.raises(ValueError, match="nested more than 200 deep"):
                parse_json(text)
    text = json.dumps([[_nested(DEPTH_MAX - 2)] * 50, {"[": "{"}] * 90)
    assert parse_json(text) == json.loads(text)


@pytest.mark.posix("pydantic writes at most 99 levels on Windows")
async def test_what_is_nested_too_deeply_is_no_argument_payload_or_result(app: TaskQ) -> None:
    """A call is refused; a stored payload is dead at its first attempt."""

    @app.task(name="deep")
    def deep(value: Any) -> None:
        del value

    @app.task(name="give", retry=1)
    def give(depth: int) -> Any:
        return _nested(depth)

    async with app:
        good = await deep.enqueue(_nested(VALUE_DEPTH_MAX))
        for depth in (VALUE_DEPTH_MAX + 1, 300, 100_000):
            for call in (
                deep.enqueue(_nested(depth)),
                deep.options(delay=5).enqueue(value=_nested(depth)),
            ):
                with pytest.raises(InvalidCall, match=r"deep: .*nested more than 160 deep"):
                    await call
        assert (await app.stats()).queues[0].ready == 1
        store = app.store()
        lsn = await store.port().enqueue(deep.spec.packed(0), b'{"value":' + _DEEP + b"}")
        bad = app.job(f"{store.tag}-{lsn}")
        async with app.worker():
            await good.result(timeout=20)
            jobs = [bad, await give.enqueue(VALUE_DEPTH_MAX + 1), await give.enqueue(100_000)]
            for job in jobs:
                words = "no JSON" if job is bad else "nested more than 160 deep"
                with pytest.raises(JobFailed, match=words):
                    await job.result(timeout=20)
        assert (await bad.view()).attempt == 1


@pytest.mark.parametrize("deep", [_DEEP, _DEEP_OBJECTS])
def test_commands_print_what_they_can_of_a_deep_payload(deep: bytes, tmp_path: Path) -> None:
    with TaskLog.open(tmp_path) as log:
        job = log.put_sync(deep)
        log.ack_sync(log.claim_sync(1)[0], deep)
    for command in (
        ["show", job], ["show", job, "--json"], ["tail"], ["tail", "--json"], ["export"],
        ["export", "--records"], ["ls"], ["ls", "--json"], ["why", job], ["timeline", job],
    ):  # fmt: skip
        result = CliRunner().invoke(main, [*command, "-d", str(tmp_path)])
        assert result.exit_code == 0, (command, result.output[-500:])
        assert result.output
    put = ["put", "-t", "mail.send", "-", "-d", str(tmp_path)]
    refused = CliRunner().invoke(main, put, input=deep)
    assert (refused.exit_code, "nested more than" in refused.output) == (2, True), refused.output


def _described(deep: bytes, _: Path) -> bool:
    return bool(decode_description(deep)["pid"] == 0)


def _served(deep: bytes, path: Path) -> bool:
    (path / f"{7:016x}.serves").write_bytes(deep)
    return read_servings(path, 7) == ()


def _scheduled(deep: bytes, _: Path) -> bool:
    return _facts(deep) == {}


def _identity(deep: bytes, path: Path) -> bool:
    (path / "taskq.json").write_bytes(deep)
    with pytest.raises(FormatError, match="not readable"):
        LogReader.open(str(path))
    return True


@pytest.mark.parametrize("deep", [_DEEP[: 2 * 900], _DEEP, _DEEP_OBJECTS, _DEEP[:_MANY]])
@pytest.mark.parametrize("reads", [_described, _served, _scheduled, _identity])
def test_readers_of_small_files_treat_deep_nesting_as_unreadable(
    reads: Callable[[bytes, Path], bool], deep: bytes, tmp_path: Path
) -> None:
    assert reads(deep, tmp_path)
