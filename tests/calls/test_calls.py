"""Calls, and calls that do not fit: they fail at the call and leave no trace."""

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_core import from_json

from taskq import Task, TaskQ
from taskq.core import model
from taskq.core.model import TRANSACTION_BYTES_MAX
from taskq.errors import InvalidCall, PayloadTooLarge, UsageError
from tests.recorder import Recorder

HOUR_NS = 3_600 * 10**9
MOMENT = datetime(2030, 1, 1, tzinfo=UTC)
MOMENT_NS = int(MOMENT.timestamp()) * 10**9


@pytest.fixture
def send(app: TaskQ, recorder: Recorder) -> Task[..., int]:
    @app.task(name="send", queue="mail", priority=7, key=lambda to, n: f"{to}:{n}", window="1h")
    async def send(to: str, n: int = 1) -> int:
        return n

    return send


@pytest.mark.parametrize("count", range(6))
def test_a_call_names_its_arguments_however_many_there_are(app: TaskQ, count: int) -> None:
    """Three and fewer are put under their names by code that was written out."""
    names = "vwxyz"[:count]
    scope: dict[str, Any] = {}
    exec(f"def add({', '.join(f'{name}: int' for name in names)}): ...", scope)  # noqa: S102
    task = app.task(name="add")(scope["add"])
    numbers = tuple(range(count))
    body = task.call(*numbers).body
    assert from_json(body) == dict(zip(names, numbers, strict=True))
    assert task.call(**from_json(body)).body == body
    with pytest.raises(InvalidCall, match="takes"):
        task.call(*numbers, 9)
    for wrong in (numbers[1:], ("no",) * count)[: 2 * count]:
        with pytest.raises(InvalidCall, match="parameter '"):
            task.call(*wrong)


def test_a_call_is_frozen_and_holds_the_encoded_arguments(send: Any) -> None:
    call = send.call("a@b.c", n="2")
    assert (call.name, call.task, call.body) == ("send", send, b'{"to":"a@b.c","n":2}')
    assert (call.spec.queue, call.spec.priority) == ("mail", 7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        call.body = b""


def test_a_key_is_made_of_the_validated_arguments_with_their_defaults(send: Any) -> None:
    assert send.call("a", n="2").extras.key == b"a:2"
    assert send.call("a").extras.key == b"a:1"
    assert send.call("a").extras.window_ns == HOUR_NS


def test_a_key_function_names_the_arguments_it_wants_or_gets_all_in_order(app: TaskQ) -> None:
    def task(path: str, size: int = 3) -> None: ...

    keys: list[tuple[Callable[..., str], bytes]] = [
        (lambda path: path, b"p"),
        (lambda size, path: f"{path}{size}", b"p3"),
        (lambda size: f"{size}", b"3"),
        (lambda: "same", b"same"),
        (lambda item, two: f"{item}{two}", b"p3"),
        (lambda *args: "".join(map(str, args)), b"p3"),
    ]
    for number, (key, expected) in enumerate(keys):
        extras = app.task(name=f"t{number}", key=key)(task).call("p").extras
        assert extras is not None
        assert extras.key == expected


def test_a_key_sees_every_kind_of_argument(app: TaskQ) -> None:
    @app.task(key=lambda a, /, *rest, b=0, **more: f"{a}{rest}{b}{sorted(more)}")
    def task(a: int, /, *rest: int, b: int = 5, **more: int) -> None: ...

    extras = task.call(1, 2, 3, c=4).extras
    assert extras is not None
    assert extras.key == b"1(2, 3)5['c']"


def test_options_of_a_call_make_a_new_call_and_keep_the_rest(send: Any) -> None:
    call = send.call("a")
    changed = call.options(priority=9, delay="5m", headers={"x": "y"})
    assert (call.spec.priority, call.extras.due_ns, call.extras.headers) == (7, 0, {})
    assert (changed.spec.priority, changed.spec.queue, changed.body) == (9, "mail", call.body)
    assert (changed.extras.due_ns, changed.extras.headers) == (300 * 10**9, {"x": "y"})
    assert (changed.extras.key, changed.extras.window_ns) == (b"a:1", HOUR_NS)
    again = changed.options(queue="slow", headers={"z": "1"})
    assert (again.spec.queue, again.spec.priority) == ("slow", 9)
    assert again.extras.headers == {"x": "y", "z": "1"}


def test_options_of_a_task_stand_for_its_own(send: Any) -> None:
    options = send.options(attempts=1, expires=MOMENT, eta=MOMENT, key="fixed")
    call = options.call("a")
    assert call.spec.attempts == 1
    assert (call.extras.expires_ns, call.extras.expires_is_wall) == (MOMENT_NS, True)
    assert (call.extras.due_ns, call.extras.due_is_wall) == (MOMENT_NS, True)
    assert call.extras.key == b"fixed"
    assert options.options(delay=1).call("a").extras.due_is_wall is False
    assert options.options(eta=None, expires=None).call("a").extras.due_ns == 0


def test_a_key_can_be_left_out_and_takes_its_window_along(send: Any) -> None:
    assert send.options(key=None).call("a").extras is None
    assert send.call("a").options(key=None).extras is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"priority": 11}, "priority is 11"),
        ({"delay": 1, "eta": MOMENT}, "delay and eta are both given"),
        ({"eta": MOMENT.replace(tzinfo=None)}, "without a time zone"),
        ({"expires": MOMENT.replace(tzinfo=None)}, "expires is .* without a time zone"),
        ({"eta": "5m"}, "eta is '5m': give a datetime"),
        ({"key": None, "window": "1h"}, "window is given without a key"),
        ({"key": 5}, "the key is 5, it must be text or bytes"),
        ({"attempts": -1}, "attempts is -1"),
        ({"timeout": 5}, "there is no option 'timeout': the options are queue"),
    ],
)
def test_a_wrong_option_is_named(send: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        send.options(**changes).call("a")
    with pytest.raises(UsageError, match=message):
        send.call("a").options(**changes)


def test_a_call_takes_no_function_for_its_key(send: Any) -> None:
    with pytest.raises(UsageError, match="send: a Call takes its key as text or bytes"):
        send.call("a").options(key=lambda to: to)


async def test_every_way_to_enqueue_writes_the_same(
    app: TaskQ, send: Any, recorder: Recorder
) -> None:
    ways = [
        await send.enqueue("a"),
        (await send.enqueue_many([("b",)]))[0],
        await app.enqueue(send.call("c")),
        (await app.enqueue_many([send.call("d")]))[0],
        await app.enqueue_by_name("send", "e"),
        await send.options().enqueue("f"),
    ]
    assert [job.lsn for job in ways] == [1, 2, 3, 4, 5, 6]
    assert {job.id for job in ways} == {f"0123abcd-{lsn}" for lsn in range(1, 7)}
    assert recorder.bodies == [b'{"to":"%c"}' % name for name in b"abcdef"]
    assert {spec.route for spec, _, _ in recorder.items} == {send.spec.route}
    assert [extras and extras.key for _, _, extras in recorder.items] == [
        b"%c:1" % name for name in b"abcdef"
    ]


async def test_a_task_without_rare_options_sends_none(app: TaskQ, recorder: Recorder) -> None:
    @app.task
    def task(n: int) -> None: ...

    await task.enqueue(1)
    await task.options(priority=1).enqueue(2)
    assert [extras for _, _, extras in recorder.items] == [None, None]


async def test_a_taken_key_gives_the_job_that_holds_it(send: Any, recorder: Recorder) -> None:
    first = await send.enqueue("a")
    second = await send.enqueue("a")
    third = await asyncio.to_thread(send.enqueue_sync, "a")
    assert [job.duplicate for job in (first, second, third)] == [False, True, True]
    assert first == second == third
    assert len({first, second, third}) == 1
    assert repr(second) == "<JobHandle send 0123abcd-1 duplicate>"


async def test_an_empty_transaction_does_not_even_open_the_log(app: TaskQ) -> None:
    @app.task
    def task() -> None: ...

    assert await task.enqueue_many([]) == []
    assert await app.enqueue_many([]) == []
    assert await asyncio.to_thread(task.enqueue_many_sync, []) == []
    assert not app.data_dir.exists()


async def test_a_task_that_is_not_known_here_is_enqueued_by_its_name(
    app: TaskQ, recorder: Recorder
) -> None:
    await app.enqueue_by_name("mail.send", "a@b.c", 1, subject="hi")
    await app.enqueue_by_name("mail.ping")
    await app.enqueue(app.call_by_name("mail.send", task="t").options(queue="mail", attempts=2))
    assert recorder.bodies == [b'{"*":["a@b.c",1],"subject":"hi"}', b"{}", b'{"task":"t"}']
    specs = [spec for spec, _, _ in recorder.items]
    assert [spec.task for spec in specs] == ["mail.send", "mail.ping", "mail.send"]
    assert (specs[0].queue, specs[0].attempts) == ("default", 5)
    assert (specs[2].queue, specs[2].attempts) == ("mail", 2)


# -- wrong calls -----------------------------------------------------------------------------------


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
def post(app: TaskQ, recorder: Recorder) -> Any:
    @app.task(name="mail.send")
    async def post(
        to: str, count: int, *, tags: list[str] | None = None, urgent: bool = False
    ) -> int:
        return count

    return post


@pytest.mark.parametrize(("args", "kwargs", "problem"), WRONG)
def test_a_wrong_call_names_task_parameter_and_type_and_writes_nothing(
    app: TaskQ, post: Any, recorder: Recorder, args: Any, kwargs: Any, problem: str
) -> None:
    for way in (
        post.call,
        post.enqueue_sync,
        post.options(priority=1).call,
        post.options(key="k").enqueue_sync,
    ):
        with pytest.raises(InvalidCall) as raised:
            way(*args, **kwargs)
        assert str(raised.value).startswith(f"mail.send: {problem}")
        assert raised.value.task == "mail.send"
    with pytest.raises(InvalidCall):
        app.call_by_name("mail.send", *args, **kwargs)
    assert recorder.items == []


async def test_one_wrong_call_among_many_writes_none_of_them(post: Any, recorder: Recorder) -> None:
    with pytest.raises(InvalidCall, match="'count' must be int"):
        await post.enqueue_many([("a", 1), ("b", "two"), ("c", 3)])
    with pytest.raises(InvalidCall, match="'count' must be int"):
        await asyncio.to_thread(post.enqueue_many_sync, [("a", 1), ("b", "two"), ("c", 3)])
    assert recorder.items == []


async def test_enqueue_many_wants_tuples(post: Any, recorder: Recorder) -> None:
    with pytest.raises(UsageError, match=r"a tuple of arguments for each job, got 'a': write"):
        await post.enqueue_many(["a", "b"])
    assert recorder.items == []


async def test_enqueue_many_of_an_app_wants_calls(app: TaskQ, recorder: Recorder) -> None:
    with pytest.raises(UsageError, match=r"takes calls such as task.call\(...\), got \('a', 1\)"):
        await app.enqueue_many([("a", 1)])  # type: ignore[arg-type]
    assert recorder.items == []


async def test_a_transaction_over_its_limit_is_refused_whole(
    app: TaskQ, post: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = post.call("x" * 1_000_000, 1)
    assert len(await app.enqueue_many([big] * 17)) == 17
    recorder.items.clear()
    with pytest.raises(
        PayloadTooLarge, match=r"the transaction of 18 jobs has .* several calls"
    ) as e:
        await app.enqueue_many([big] * 18)
    assert e.value.limit == TRANSACTION_BYTES_MAX
    monkeypatch.setattr(model, "TRANSACTION_BYTES_MAX", 100_000)  # then what a job takes counts
    with pytest.raises(PayloadTooLarge, match="the transaction of 4000 jobs"):
        await app.enqueue_many([app.call_by_name("t")] * 4_000)
    small = app.call_by_name("t").options(headers={"h": "x" * 30_000})
    with pytest.raises(PayloadTooLarge, match="the transaction of 4 jobs"):
        await app.enqueue_many([small] * 4)
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
