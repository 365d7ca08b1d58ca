"""Under trio and eventlet the first use says what to do: no loop or thread there is ours."""

from __future__ import annotations

import asyncio
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from taskq import TaskLog, TaskQ, chain
from taskq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path


async def send(to: str) -> str:
    return to


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    app = TaskQ(tmp_path / "data", durability="os")
    app.task(name="mail.send")(send)
    return app


def task_of(app: TaskQ) -> Any:
    return app.tasks["mail.send"]


def call(app: TaskQ) -> Any:
    return task_of(app).call("a")


CALLS: list[Callable[[TaskQ], Coroutine[Any, Any, Any]]] = [
    lambda app: app.open(),
    lambda app: task_of(app).enqueue("a"),
    lambda app: app.enqueue_many([call(app)]),
    lambda app: app.enqueue_by_name("mail.send", "a"),
    lambda app: chain(call(app), task_of(app).step()).enqueue(),
    lambda app: app.job(1).result(),
    lambda app: app.job(1).status(),
    lambda app: app.stats(),
    lambda app: app.dead.list(),
    lambda app: app.pause("mail"),
    lambda app: TaskLog.open(app.data_dir).__aenter__(),
]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("ask", CALLS)
def test_a_loop_that_is_not_asyncios_is_told_what_to_use(
    app: TaskQ, ask: Callable[[TaskQ], Coroutine[Any, Any, Any]], is_open: bool
) -> None:
    """Trio drives coroutines as this test does."""
    if is_open:
        task_of(app).enqueue_sync("a")
    try:
        with pytest.raises(UsageError, match="none runs here: under trio use") as refused:
            ask(app).send(None)
    finally:
        app.close_sync()
    assert "\n" not in str(refused.value)


def test_threads_of_eventlet_are_refused_before_anything_hangs(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = {"thread"}
    patcher: Any = types.ModuleType("eventlet.patcher")
    patcher.is_monkey_patched = replaced.__contains__
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    line = r"call eventlet.monkey_patch\(thread=False, select=False\)"
    for name in ("thread", "select"):
        replaced.clear()
        replaced.add(name)
        with pytest.raises(UsageError, match=line):
            app.open_sync()
        with pytest.raises(UsageError, match=line):
            asyncio.run(app.stats())
    replaced.clear()
    replaced.add("socket")
    with app:
        assert not app.stats_sync().queues
