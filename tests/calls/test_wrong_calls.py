"""A call that does not fit fails at the call, with a reason, and leaves no trace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskq import TaskQ
from taskq.core.model import TRANSACTION_BYTES_MAX
from taskq.errors import InvalidCall, PayloadTooLarge, UsageError
from tests.recorder import Recorder

WRONG = [
    ((), {}, "parameter 'to' (str) is missing; parameter 'count' (int) is missing"),
    (("a",), {}, "parameter 'count' (int) is missing"),
    (("a", "many"), {}, "parameter 'count' must be int, got str"),
    ((5, 1), {}, "parameter 'to' must be str, got int"),
    (("a", 1, "b"), {}, "takes 2 positional arguments, 3 were given"),
    (("a", 1), {"to": "b"}, "parameter 'to' is given twice"),
    (("a", 1), {"urgnet": True}, "there is no parameter 'urgnet' (did you mean 'urgent'?)"),
    (("a", 1), {"*": []}, "there is no parameter '*'"),
    (("a", 1), {"tags": ["x", 3]}, "parameter 'tags' must be list[str] | None, got int at [1]"),
    (("a", object()), {}, "parameter 'count' must be int, got object"),
]


@pytest.fixture
def send(app: TaskQ, recorder: Recorder) -> Any:
    @app.task(name="mail.send")
    async def send(
        to: str, count: int, *, tags: list[str] | None = None, urgent: bool = False
    ) -> int:
        return count

    return send


@pytest.mark.parametrize(("args", "kwargs", "problem"), WRONG)
def test_a_wrong_call_names_task_parameter_and_type_and_writes_nothing(
    app: TaskQ, send: Any, recorder: Recorder, args: Any, kwargs: Any, problem: str
) -> None:
    for way in (
        send.call,
        send.enqueue_sync,
        send.options(priority=1).call,
        send.options(key="k").enqueue_sync,
    ):
        with pytest.raises(InvalidCall) as raised:
            way(*args, **kwargs)
        assert str(raised.value).startswith(f"mail.send: {problem}")
        assert raised.value.task == "mail.send"
    with pytest.raises(InvalidCall):
        app.call_by_name("mail.send", *args, **kwargs)
    assert recorder.items == []


async def test_one_wrong_call_among_many_writes_none_of_them(send: Any, recorder: Recorder) -> None:
    with pytest.raises(InvalidCall, match="'count' must be int"):
        await send.enqueue_many([("a", 1), ("b", "two"), ("c", 3)])
    with pytest.raises(InvalidCall, match="'count' must be int"):
        await asyncio.to_thread(send.enqueue_many_sync, [("a", 1), ("b", "two"), ("c", 3)])
    assert recorder.items == []


async def test_enqueue_many_wants_tuples(send: Any, recorder: Recorder) -> None:
    with pytest.raises(UsageError, match=r"a tuple of arguments for each job, got 'a': write"):
        await send.enqueue_many(["a", "b"])
    assert recorder.items == []


async def test_enqueue_many_of_an_app_wants_calls(app: TaskQ, recorder: Recorder) -> None:
    with pytest.raises(UsageError, match=r"takes calls such as task.call\(...\), got \('a', 1\)"):
        await app.enqueue_many([("a", 1)])  # type: ignore[arg-type]
    assert recorder.items == []


async def test_a_transaction_over_its_limit_is_refused_whole(
    app: TaskQ, send: Any, recorder: Recorder
) -> None:
    big = send.call("x" * 1_000_000, 1)
    assert len(await app.enqueue_many([big] * 17)) == 17
    recorder.items.clear()
    with pytest.raises(
        PayloadTooLarge, match=r"the transaction of 18 jobs has .* several calls"
    ) as e:
        await app.enqueue_many([big] * 18)
    assert e.value.limit == TRANSACTION_BYTES_MAX
    with pytest.raises(PayloadTooLarge, match="the transaction of 600000 jobs"):
        await app.enqueue_many([app.call_by_name("t")] * 600_000)
    small = app.call_by_name("t").options(headers={"h": "x" * 30_000})
    with pytest.raises(PayloadTooLarge, match="the transaction of 600 jobs"):
        await app.enqueue_many([small] * 600)
    assert recorder.items == []


async def test_a_positional_only_parameter_is_told_apart(app: TaskQ, recorder: Recorder) -> None:
    @app.task
    def task(a: int, /, b: int) -> None: ...

    with pytest.raises(InvalidCall, match="parameter 'a' is positional only"):
        await task.enqueue(a=1, b=2)  # type: ignore[call-arg]
    with pytest.raises(InvalidCall, match=r"parameter 'a' \(int\) is missing"):
        await task.enqueue(b=2)  # type: ignore[call-arg]
    assert recorder.items == []


async def test_an_argument_whose_repr_fails_does_not_hide_the_mistake(
    app: TaskQ, recorder: Recorder
) -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    @app.task
    def task(a: int) -> None: ...

    with pytest.raises(InvalidCall, match=r"'a' must be int, got Shy"):
        await task.enqueue(Shy())  # type: ignore[arg-type]


async def test_a_failing_key_is_told_with_its_task(app: TaskQ, recorder: Recorder) -> None:
    @app.task(name="t", key=lambda a: 1 / a)
    def task(a: int) -> None: ...

    with pytest.raises(UsageError, match="t: key= failed for this call: ZeroDivisionError"):
        await task.enqueue(0)
    with pytest.raises(UsageError, match=r"t: the key is 1.0, it must be text or bytes"):
        await task.enqueue(1)
    assert recorder.items == []


@pytest.mark.parametrize("key", ["", "k" * 1_025, b""])
async def test_a_key_has_1_to_1024_bytes(app: TaskQ, recorder: Recorder, key: str | bytes) -> None:
    @app.task
    def task() -> None: ...

    with pytest.raises(UsageError, match="it must have 1 to 1024"):
        await task.options(key=key).enqueue()
    assert recorder.items == []
