"""Encoders and decoders in C equal their Python twins, for any input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.calls.arguments import ArgumentCodec
from taskq.calls.serialization import FLAT_BYTES_MAX
from taskq.calls.signature import Signature
from tests.native.twins import examples, said

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.native.conftest import Choose


def none() -> None: ...
def number(number: int) -> None: ...
def both(a: int, b: str = "b") -> None: ...
def three(a: int, b: list[int], c: Any) -> None: ...
def five(a: int, b: int, c: int, d: int = 4, *, e: int = 5) -> None: ...


FUNCTIONS: Final = (none, number, both, three, five)
values = st.one_of(
    st.none(), st.integers(), st.text(max_size=8), st.lists(st.integers(), max_size=3),
    st.binary(max_size=4), st.just("x" * FLAT_BYTES_MAX), st.floats(),
)  # fmt: skip
names = st.sampled_from(["a", "b", "c", "d", "e", "number", "x"])
payloads = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [
            b"{}",
            b'{"number":1}',
            b'{"a":1,"b":"c"}',
            b'{"a":1,"b":[2],"c":{}}',
            b"[1]",
            b'{"*":[1]}',
        ]
    ),
)


def codecs(choose: Choose, function: Callable[..., None]) -> tuple[ArgumentCodec, ArgumentCodec]:
    made = []
    for in_c in (False, True):
        choose(in_c)
        made.append(ArgumentCodec(Signature("task", function)))
    return made[0], made[1]


def ended(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - errors are compared
        return said(error)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_calls_are_encoded_alike(function: Callable[..., None], choose: Choose) -> None:
    python, native = codecs(choose, function)
    assert type(native.encode).__name__ == "Encoder"

    @examples
    @given(st.lists(values, max_size=6), st.dictionaries(names, values, max_size=3))
    def check(args: list[Any], kwargs: dict[str, Any]) -> None:
        expected = ended(python.encode, tuple(args), dict(kwargs))
        assert ended(native.encode, tuple(args), dict(kwargs)) == expected

    check()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_payloads_are_decoded_alike(function: Callable[..., None], choose: Choose) -> None:
    python, native = codecs(choose, function)
    assert type(native.decode).__name__ == "Decoder"

    @examples
    @given(payloads)
    def check(payload: bytes) -> None:
        assert ended(native.decode, payload) == ended(python.decode, payload)

    check()


def test_a_call_that_does_not_fit_leaves_its_arguments_as_they_were(choose: Choose) -> None:
    _, native = codecs(choose, both)
    kwargs = {"a": 1, "b": 2}
    ended(native.encode, (), kwargs)
    assert kwargs == {"a": 1, "b": 2}
