"""Calls, and calls that do not fit: they fail at the call and leave no trace."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_core import from_json

from taskq import Task, TaskQ
from taskq.core.records import Kind
from taskq.errors import InvalidCall
from taskq.log.format.record import Record
from tests.processes.harness import log_records, of_kind

HOUR_NS = 3_600 * 10**9
MOMENT = datetime(2030, 1, 1, tzinfo=UTC)
MOMENT_NS = int(MOMENT.timestamp()) * 10**9


@pytest.fixture
def send(app: TaskQ) -> Task[..., int]:
    @app.task(name="send", queue="mail", priority=7, key=lambda to, n: f"{to}:{n}", window="1h")
    async def send(to: str, n: int = 1) -> int:
        return n

    return send


def enqueued(app: TaskQ) -> list[Record]:
    return of_kind(log_records(app.data_dir), Kind.ENQUEUED)


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


async def test_every_way_to_enqueue_writes_the_same(app: TaskQ, send: Any) -> None:
    ways = [
        await send.enqueue("a"),
        (await send.enqueue_many([("b",)]))[0],
        await app.enqueue(send.call("c")),
        (await app.enqueue_many([send.call("d")]))[0],
        await app.enqueue_by_name("send", "e"),
        await send.options().enqueue("f"),
    ]
    records = enqueued(app)
    lsns = [it.lsn for it in records]
    assert [job.lsn for job in ways] == lsns
    assert [job.id.partition("-")[2] for job in ways] == [str(lsn) for lsn in lsns]
    assert [it.body for it in records] == [b'{"to":"%c"}' % name for name in b"abcdef"]
    assert {(it.task, it.queue, it.priority) for it in records} == {("send", "mail", 7)}
    assert [it.extras and it.extras.key for it in records] == [b"%c:1" % it for it in b"abcdef"]


async def test_a_task_that_is_not_known_here_is_enqueued_by_its_name(app: TaskQ) -> None:
    await app.enqueue_by_name("mail.send", "a@b.c", 1, subject="hi")
    await app.enqueue_by_name("mail.ping")
    await app.enqueue(app.call_by_name("mail.send", task="t").options(queue="mail", attempts=2))
    assert [(it.task, it.queue, it.attempts_max, it.body) for it in enqueued(app)] == [
        ("mail.send", "default", 5, b'{"*":["a@b.c",1],"subject":"hi"}'),
        ("mail.ping", "default", 5, b"{}"),
        ("mail.send", "mail", 2, b'{"task":"t"}'),
    ]
