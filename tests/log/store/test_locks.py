"""The storage thread never waits for code of the program."""

from __future__ import annotations

import ast
import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import taskq.log
from taskq import TaskQ
from taskq.connection.blocking import blocking
from taskq.errors import UsageError
from taskq.log.machine.threads import REPORTS_MAX, Aside, Pending, inside
from tests.effort import ended, within


def sources() -> Iterator[Path]:
    return Path(taskq.log.__path__[0]).rglob("*.py")


def test_no_module_of_the_log_logs_or_warns_but_by_reports() -> None:
    reporting = [path for path in sources() if path.name != "threads.py"]
    for path in reporting:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {"logging", "warnings"} & set(names), path


class Handler(logging.Handler):
    """Enqueues a job for each line, while other threads wait for its lock."""

    def __init__(self, enqueue: Callable[[], object]) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.was_inside = False
        self._enqueue = enqueue

    def emit(self, _record: logging.LogRecord) -> None:
        self.was_inside |= threading.get_ident() in inside
        if len(self.threads) < 5:
            self.threads.add(threading.get_ident())
            self._enqueue()


def test_a_handler_that_enqueues_never_waits_for_one_that_waits_for_it(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def alert() -> None: ...

    monkeypatch.setattr("taskq.log.journal.journal.SLOW_SYNC_NS", 0)
    handler = Handler(alert.enqueue_sync)
    logging.getLogger("taskq").addHandler(handler)
    try:
        threads = [threading.Thread(target=alert.enqueue_sync, daemon=True) for _ in range(8)]
        with handler.lock or threading.Lock():
            for thread in threads:
                thread.start()
            for thread in threads:
                ended(thread)
    finally:
        logging.getLogger("taskq").removeHandler(handler)
        app.close_sync()
    assert not handler.was_inside


def on_storage_thread(app: TaskQ, call: Callable[[], Any]) -> Any:
    answer: Pending[Any] = Pending()

    def make() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is asked for
            answer.set_exception(error)

    app.store().between_batches(make)
    return answer.result(20)


async def _pause(app: TaskQ) -> bool:
    return await app.pause("mail")


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.connection.thread_port().stats(),
        lambda app: app.enqueue_by_name_sync("task"),
        lambda app: app.pause_sync("mail"),
        blocking(_pause),
        lambda app: app.close_sync(),
        lambda app: app.store().close(),
        lambda app: TaskQ(app.data_dir / "other").stats_sync(),
    ],
)
def test_what_a_finalizer_asks_on_the_storage_thread_is_refused_at_once(
    app: TaskQ, call: Callable[[TaskQ], object]
) -> None:
    """The collector runs finalizers on whichever thread it likes."""
    app.task(name="task")(lambda: None)
    with pytest.raises(UsageError, match="finalizer"):
        on_storage_thread(app, lambda: call(app))
    assert app.enqueue_by_name_sync("task").id
    app.close_sync()


class Loop(asyncio.SelectorEventLoop):
    """A loop of the program's own."""

    was_inside = False

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self.was_inside |= threading.get_ident() in inside
        return super().call_soon_threadsafe(*args, **kwargs)

    def create_future(self) -> Any:
        loop = self

        class Future(asyncio.Future[Any]):
            def done(self) -> bool:
                loop.was_inside |= threading.get_ident() in inside
                return super().done()

        return Future(loop=self)


def test_no_code_of_an_event_loop_runs_on_the_storage_thread(app: TaskQ) -> None:
    async def use() -> None:
        async with within(), app:
            await asyncio.gather(*(app.stats() for _ in range(5)))

    loop = Loop()
    loop.run_until_complete(use())
    loop.close()
    assert not loop.was_inside


def test_an_answer_is_given_while_its_waiting_thread_is_interrupted() -> None:
    answer: Pending[int] = Pending()
    held = [
        lock for lock in map(answer.__getattribute__, Pending.__slots__) if hasattr(lock, "locked")
    ]
    assert [lock.locked() for lock in held].count(True) == 1
    answer.set_result(1)
    assert answer.result() == answer.result(0) == 1
    assert not answer.cancel()


def test_reports_are_bounded_and_all_that_fit_are_made() -> None:
    aside, made, gate = Aside("test"), list[int](), threading.Event()
    begun = threading.Event()

    def hold() -> None:
        begun.set()
        gate.wait()

    aside.put(hold)
    assert begun.wait(20)
    for number in range(REPORTS_MAX + 50):
        aside.put(lambda number=number: made.append(number))  # type: ignore[misc]
    assert aside.dropped == 50
    gate.set()
    aside.drain(20)
    assert made == list(range(REPORTS_MAX))
    gc.collect()
