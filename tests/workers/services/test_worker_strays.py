"""A worker tells of jobs that wait in vain, and of queues of its own that nobody uses."""

from __future__ import annotations

import asyncio
import logging

import pytest

from taskq import TaskQ
from taskq_workers.pool import Worker
from taskq_workers.services.strays import StrayWatch

_UNKNOWN = (
    "1 job waits that no worker knows: proj.send (1); start one with the app that registers them, "
    "or name their module with -I"
)


class Heard(logging.Handler):
    """The warnings of workers, as they come."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.put_nowait(record.getMessage())


@pytest.fixture
async def heard() -> Heard:
    return Heard()


@pytest.fixture(autouse=True)
def log(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("taskq.worker"), "handlers", [heard])


async def test_jobs_that_nobody_knows_are_told_at_the_start_and_again_and_again(
    app: TaskQ, heard: Heard
) -> None:
    async with app:
        await app.enqueue_by_name("proj.send")
        worker = Worker(app, warns=False)
        worker.services.append(StrayWatch(app, None, look_seconds=0.01))
        async with worker:
            assert [await heard.texts.get() for _ in range(3)] == [_UNKNOWN] * 3


async def test_a_worker_tells_by_itself_unless_it_is_one_of_several(
    app: TaskQ, heard: Heard
) -> None:
    async with app:
        await app.enqueue_by_name("proj.send")
        async with app.worker():
            assert await heard.texts.get() == _UNKNOWN
        async with Worker(app, warns=False) as worker:
            parts = {type(part) for part in worker.services}
            assert StrayWatch not in parts


async def test_a_burst_that_is_over_at_once_has_told_what_it_leaves_behind(
    app: TaskQ, heard: Heard
) -> None:
    async with app:
        await app.enqueue_by_name("proj.send")
        async with app.worker(burst=True) as worker:
            await worker.stopped.wait()
        assert heard.texts.get_nowait() == _UNKNOWN


async def test_what_another_worker_would_take_is_not_told(app: TaskQ, heard: Heard) -> None:
    @app.task(name="known", queue="mail")
    async def known() -> None: ...

    async with app:
        await app.pause("default")
        await known.enqueue()
        await app.enqueue_by_name("proj.send")
        async with app.worker(queues=["mail"], warns=False), app.worker(queues=["none"]):
            text = await heard.texts.get()
        assert text.startswith("nobody uses queue 'none'")
        assert heard.texts.empty()


@pytest.mark.parametrize(
    ("queue", "hint"),
    [
        ("mial", "did you mean 'mail'?"),
        ("sms", "known are default, mail"),
    ],
)
async def test_a_queue_that_nobody_uses_is_told_with_the_one_that_was_meant(
    app: TaskQ, heard: Heard, queue: str, hint: str
) -> None:
    @app.task(name="send", queue="mail")
    async def send() -> None: ...

    async with app:
        await send.options(queue="default", delay="1h").enqueue()
        async with app.worker(queues=[queue, "mail"]):
            assert await heard.texts.get() == (
                f"nobody uses queue {queue!r}: no task puts into it, no job was ever in it; {hint}"
            )
