"""A worker reports jobs that wait in vain, and its own queues without jobs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from taskq import State, TaskQ
from taskq.engine import LogReader
from taskq.views import Why
from taskq_workers.pool import Worker
from taskq_workers.services import watches
from taskq_workers.services.watches import StrayWatch

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


@pytest.mark.parametrize("runs_in", ["loop", "thread"])
async def test_parents_that_fill_every_slot_and_wait_for_children_are_told_everywhere(
    app: TaskQ, heard: Heard, monkeypatch: pytest.MonkeyPatch, runs_in: str
) -> None:
    monkeypatch.setattr(watches, "STUCK_SECONDS", 0.0)
    monkeypatch.setattr(watches, "_STUCK_LOOK_SECONDS", 0.01)

    @app.task(name="child", retry=1)
    async def child(number: int) -> int:
        return number

    @app.task(name="parent", retry=1)
    async def parent(number: int) -> int:
        return await (await child.enqueue(number)).result()

    @app.task(name="parent in a thread", retry=1)
    def parent_in_thread(number: int) -> int:
        return child.enqueue_sync(number).result_sync()

    async with app, app.worker(concurrency=2):
        for number in range(2):
            await (parent if runs_in == "loop" else parent_in_thread).enqueue(number)
        assert "waits within its run for job" in await heard.texts.get()
        text = await heard.texts.get()
        assert text.startswith("nothing moves here: all 2 slots run jobs that wait for others")
        await app.stats()  # answered after others were
        with LogReader.open(str(app.data_dir)) as reader:
            ready, running = (
                reader.jobs({state}, None, None, 2) for state in (State.READY, State.RUNNING)
            )
            whys = [reader.why(job.lsn) for job in (*ready, *running)]
            stands = reader.standing()
        assert [why and why.code for why in whys] == [Why.BUSY] * 2 + [Why.RUNNING] * 2
        assert all("all 2 slots run jobs that wait for others" in str(why) for why in whys)
        assert (stands.level, "stands still: all 2 slots" in stands.text) == ("bad", True)
        async with app.worker(concurrency=1):  # a slot more, and all of them end
            for job in running:
                await app.job(job.job_id).result()


async def test_a_parent_that_leaves_a_slot_to_its_child_is_warned_once_and_no_more(
    app: TaskQ, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "STUCK_SECONDS", 0.0)
    monkeypatch.setattr(watches, "_STUCK_LOOK_SECONDS", 0.001)

    @app.task(name="child", retry=1)
    async def child() -> None: ...

    @app.task(name="parent", retry=1)
    async def parent() -> None:
        await (await child.enqueue()).result()

    async with app, app.worker(concurrency=2):
        for _ in range(3):
            await (await parent.enqueue()).result()
        assert "waits within its run" in await heard.texts.get()
        assert heard.texts.empty()
