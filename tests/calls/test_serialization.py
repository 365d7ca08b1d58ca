from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.calls.arguments import ArgumentCodec
from taskq.calls.serialization import ResultCodec, encode_loose, encode_reason
from taskq.calls.signature import Signature
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.errors import InvalidCall, PayloadTooLarge, UsageError
from tests.effort import grows, some

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from taskq import TaskQ


@dataclass
class Point:
    x: int
    data: bytes
    next: Point | None = None


class Plain:
    """Nothing that pydantic could read."""


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
LOOSE = codec_of(loose)


@given(JSON, st.lists(JSON), st.dictionaries(st.text(min_size=1), JSON))
@grows
@settings(max_examples=some(15, 100))
def test_what_is_not_annotated_comes_back_as_plain_json(
    value: Any, rest: list[Any], further: dict[str, Any]
) -> None:
    further.pop("value", None)
    args, kwargs = LOOSE.decode(LOOSE.encode((value, *rest), further))
    assert loose(*args, **kwargs) == loose(value, *rest, **further)


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


def test_a_payload_over_the_limit_is_refused_with_its_size() -> None:
    def task(data: str) -> None: ...

    with pytest.raises(
        PayloadTooLarge, match=r"shop.buy: the payload has 167772\d\d bytes"
    ) as raised:
        codec_of(task).encode(("x" * PAYLOAD_BYTES_MAX,), {})
    assert raised.value.limit == PAYLOAD_BYTES_MAX
    with pytest.raises(PayloadTooLarge):
        encode_loose("task", ("x" * PAYLOAD_BYTES_MAX,), {})


def test_a_value_without_a_form_in_json_is_named() -> None:
    def task(first: int, anything: Any) -> None: ...

    with pytest.raises(
        InvalidCall, match=r"parameter 'anything' cannot be written as JSON: .*object"
    ):
        codec_of(task).encode((1, object()), {})
    with pytest.raises(InvalidCall, match=r"mail.send: the arguments cannot be written as JSON"):
        encode_loose("mail.send", (object(),), {})


def test_an_annotation_without_a_form_in_json_is_named_with_its_parameter() -> None:
    def task(first: int, second: Plain) -> None: ...

    with pytest.raises(
        UsageError, match=r"annotation .*Plain of parameter 'second' has no form in JSON"
    ):
        codec_of(task)


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


@pytest.mark.parametrize("value", ["x", None, object(), {"a": 1}])
def test_a_result_that_is_not_what_the_annotation_says_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"shop.buy: returned .*, but is annotated to return int"):
        ResultCodec(Signature("shop.buy", typed(int))).encode(value)


@pytest.mark.parametrize("annotation", [None, Any, int | None, object])
def test_a_none_is_no_bytes_where_none_is_allowed(annotation: Any) -> None:
    assert ResultCodec(Signature("shop.buy", typed(annotation))).encode(None) is None


def test_a_result_of_another_version_is_explained() -> None:
    with pytest.raises(UsageError, match=r"stored result does not fit the return annotation int"):
        ResultCodec(Signature("shop.buy", typed(int))).decode(b'"text"')


def test_a_result_over_the_limit_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match=r"shop.buy: the result"):
        ResultCodec(Signature("shop.buy", typed(str))).encode("x" * PAYLOAD_BYTES_MAX)


@given(st.text(max_size=20_000))
def test_a_reason_keeps_both_ends_within_its_limit(reason: str) -> None:
    encoded = encode_reason(reason)
    assert len(encoded) <= 8 * 1024
    text = encoded.decode()
    assert text[:100] == reason.encode("utf-8", "replace").decode()[:100]


def test_a_long_reason_loses_its_middle() -> None:
    text = encode_reason("first line" + "ä" * 10_000 + "last line").decode()
    assert text.startswith("first line")
    assert text.endswith("last line")
    assert "\n...\n" in text
