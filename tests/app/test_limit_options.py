"""What tasks and calls say of limits, and what reaches the log of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from taskq.core.errors import UsageError
from taskq.core.model import KEY_BYTES_MAX
from taskq.core.rates import Limit, Rate

if TYPE_CHECKING:
    from taskq import TaskQ


def key_of(call: Any) -> bytes:
    return b"" if call.extras is None else call.extras.concurrency_key


def test_a_key_is_made_of_the_arguments_defaults_filled_in(app: TaskQ) -> None:
    @app.task(name="send", concurrency=1, concurrency_key=lambda account, to="x": f"{account}/{to}")
    def send(account: str, to: str = "y") -> None: ...

    assert send.limit == Limit(concurrency=1, scope="send")
    assert key_of(send.call("a")) == b"a/y"
    assert key_of(send.options(concurrency_key="fixed").call("a")) == b"fixed"
    assert key_of(send.options(concurrency_key=None).call("a")) == b""
    assert key_of(send.call("a").options(priority=9)) == b"a/y"
    assert key_of(send.call("a").options(concurrency_key="other")) == b"other"
    assert key_of(send.options(key="k").call("a")) == b"a/y"


def test_whole_numbers_will_do_for_a_key_and_none_stands_for_no_key(app: TaskQ) -> None:
    @app.task(rate="5/s", concurrency_key=lambda account: account)
    def send(account: int | None) -> None: ...

    assert send.limit is not None
    assert send.limit.rate == Rate(5, 10**9)
    assert key_of(send.call(7)) == b"7"
    assert key_of(send.call(None)) == b""


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": True}, "concurrency is True"),
        ({"rate": "often"}, "rate is 'often'"),
        ({"concurrency_key": lambda a: a}, "without concurrency or rate"),
        ({"concurrency": 1, "concurrency_key": "text"}, "concurrency_key is 'text'"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_where_it_is_written(
    app: TaskQ, choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):

        @app.task(**choices)
        def send(a: str) -> None: ...


def test_a_key_that_does_not_fit_is_refused_at_the_call(app: TaskQ) -> None:
    @app.task(concurrency=1, concurrency_key=lambda a: a)
    def send(a: Any) -> None: ...

    for wrong in ("", "x" * (KEY_BYTES_MAX + 1), 1.5):
        with pytest.raises(UsageError, match="concurrency_key"):
            send.call(wrong)
    with pytest.raises(UsageError, match="Call takes its concurrency_key"):
        send.call("a").options(concurrency_key=lambda a: a)
