"""Services beside a worker's jobs: begun before its first claim, ended as it drains."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from anyio import sleep_forever
from anyio.abc import TaskStatus

from taskq import TaskQ
from taskq.core.errors import LogError
from taskq.log.store.store import Store
from taskq.log.upkeep.health import check_health
from taskq_workers.pool import Worker
from taskq_workers.services import watches
from tests.effort import ended, within

SECONDS = 30


class Part:
    """Notes what befalls it."""

    def __init__(self, said: list[str], name: str) -> None:
        self._said = said
        self._name = name
        self.ended = asyncio.Event()

    async def run(self, store: Store, *, task_status: TaskStatus[None]) -> None:
        assert store.usable
        self._said.append(f"{self._name} begins")
        task_status.started()
        try:
            await self.work()
        finally:
            self._said.append(f"{self._name} ends")
            self.ended.set()

    async def work(self) -> None:
        await sleep_forever()


class Failing(Part):
    """Fails on demand."""

    def __init__(self, said: list[str], name: str) -> None:
        super().__init__(said, name)
        self.fails = asyncio.Event()

    async def work(self) -> None:
        await self.fails.wait()
        raise ValueError("it cannot go on")


class Unable(Part):
    """Never begins."""

    async def run(self, store: Store, *, task_status: TaskStatus[None]) -> None:
        del task_status
        raise LogError(f"this part cannot work in {store.config.durability}")


async def test_parts_live_as_long_as_their_worker_claims(app: TaskQ) -> None:
    said: list[str] = []
    runs, goes_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        runs.set()
        await goes_on.wait()

    async with app:
        worker, parts = Worker(app), [Part(said, "one"), Part(said, "two")]
        worker.services += parts
        await work.enqueue()
        async with worker:
            assert said == ["one begins", "two begins"]
            await runs.wait()
            worker.request_stop()
            await asyncio.gather(*(part.ended.wait() for part in parts))
            assert sorted(said[2:]) == ["one ends", "two ends"]
            assert worker.running == 1
            goes_on.set()


async def test_a_part_that_fails_stops_its_worker_after_its_jobs(
    app: TaskQ, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    runs, goes_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> int:
        runs.set()
        await goes_on.wait()
        return 7

    async with app:
        worker, part, failing = Worker(app), Part(said, "one"), Failing(said, "two")
        worker.services += [part, failing]
        job = await work.enqueue()
        running = asyncio.create_task(worker.run())
        await runs.wait()
        with caplog.at_level(logging.ERROR, "taskq.worker"):
            failing.fails.set()
            await part.ended.wait()
        goes_on.set()
        with pytest.raises(ValueError, match="it cannot go on"):
            await running
        assert await job.result(timeout=SECONDS) == 7
    assert said == ["one begins", "two begins", "two ends", "one ends"]
    assert [record.getMessage() for record in caplog.records] == [
        "the worker stops: it cannot go on"
    ]


async def test_a_part_that_cannot_begin_stops_its_worker(app: TaskQ) -> None:
    said: list[str] = []
    async with app:
        worker = Worker(app)
        worker.services += [Part(said, "one"), Unable(said, "two")]
        with pytest.raises(LogError, match="cannot work in"):
            async with worker:
                raise AssertionError("it started")
    assert said == ["one begins", "one ends"]


def test_a_worker_says_at_once_that_it_needs_a_loop_of_asyncio(app: TaskQ) -> None:
    with pytest.raises(Exception, match="none runs here: under trio use") as caught:
        Worker(app).start().send(None)
    assert "\n" not in str(caught.value)


def test_the_thread_ends_with_a_loop_that_is_closed_while_it_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "BLOCKED_SECONDS", 0.01)
    monkeypatch.setattr(watches, "_ASK_SECONDS", 0.01)
    surrendered = threading.Event()
    before = set(threading.enumerate())
    loop = asyncio.new_event_loop()
    main = loop.create_task(_watch_until_stopped(surrendered))
    loop.run_forever()
    assert surrendered.wait(10)  # the loop has been asked, and will not answer
    main.cancel()
    main._log_destroy_pending = False  # type: ignore[attr-defined]  # the loop ends beneath it
    loop.close()
    for thread in set(threading.enumerate()) - before:
        ended(thread)


async def until_health_fails(app: TaskQ, names: set[str], text: str = "") -> None:
    """Wait until the checks of these names fail, and no others, and one of them says this."""
    async with within(SECONDS):
        while True:
            checks = await asyncio.to_thread(check_health, app.data_dir)
            failed = [check for check in checks if not check.ok]
            said = any(text in check.detail for check in failed) or not text
            if said and {check.name for check in failed} == names:
                return


async def test_health_fails_while_the_storage_thread_answers_nothing(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standstill fails health, waiting jobs or not; it recovers by itself."""
    monkeypatch.setattr(watches, "STALL_SECONDS", 0.1)
    goes_on = threading.Event()
    text = "the storage thread answers no request, and is at"
    async with app, app.worker():
        await until_health_fails(app, set())
        app.store().between_batches(goes_on.wait)
        try:
            await until_health_fails(app, {"process", "worker", "jobs"}, text)
        finally:
            goes_on.set()
        await until_health_fails(app, set())


async def test_health_fails_while_the_loop_of_a_worker_begins_no_job(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No restart is due for that."""
    monkeypatch.setattr(watches, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(watches, "BLOCKED_SECONDS", 0.01)
    monkeypatch.setattr(watches, "_ASK_SECONDS", 0.01)
    text = "the event loop does not turn, so that no job begins"

    @app.task
    async def block() -> None:
        asyncio.run_coroutine_threadsafe(
            until_health_fails(app, {"worker", "jobs"}, text), other
        ).result(SECONDS)

    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    try:
        async with app, app.worker():
            job = await block.enqueue()
            await job.result(timeout=SECONDS)
            await until_health_fails(app, set())
    finally:
        other.call_soon_threadsafe(other.stop)
        thread.join()
        other.close()


async def _watch_until_stopped(surrendered: threading.Event) -> None:
    loop = asyncio.get_running_loop()
    watch = watches.LoopWatch(lambda: False, lambda _task: None, surrendered.set, list)
    unused: Any = None

    class Started:
        def started(self, value: object = None) -> None:
            del value
            loop.stop()

    await watch.run(unused, task_status=Started())
