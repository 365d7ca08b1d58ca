"""Cancellation of running jobs: async tasks, threads, jobs that wait for a slot."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from taskq import Snooze, State, TaskLog, TaskQ, current_job
from taskq.core.records import Kind
from taskq.errors import JobCancelled
from taskq.log.requests import ClaimRequest
from taskq_workers.events import JobFinished
from taskq_workers.pool import Worker
from taskq_workers.process.reporting import Style, job_line


async def test_an_async_task_is_cancelled_and_cleans_up(app: TaskQ) -> None:
    began, cleaned, ends = asyncio.Event(), asyncio.Event(), list[JobFinished]()

    @app.task
    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    async with app.worker(on_event=ends.append):
        job = await wait.enqueue()
        await began.wait()
        assert await job.cancel() is True
        with pytest.raises(JobCancelled, match="was cancelled"):
            await job.result(timeout=30)
        assert cleaned.is_set()
        assert await job.status() is State.CANCELLED
        assert await job.cancel() is False
    assert [end.outcome for end in ends] == ["cancelled"]
    assert "cancelled" in job_line(ends[0], 0, Style(colours=False))


async def test_a_job_that_is_cancelled_in_another_process_is_stopped(
    app: TaskQ, tmp_path: Path
) -> None:
    """As another process would: through the files, with a log opened under another name."""
    began = asyncio.Event()

    @app.task
    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    async with app.worker():
        job = await wait.enqueue()
        await began.wait()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "taskq",
            "cancel",
            job.id,
            "-d",
            str(tmp_path / "data"),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert output == b"cancelled 1 job\n"
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)


@pytest.mark.parametrize("stubborn", [ValueError("no"), Snooze(60)])
async def test_what_a_cancelled_task_raises_instead_matters_not(
    app: TaskQ, stubborn: Exception
) -> None:
    began = asyncio.Event()

    @app.task
    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise stubborn from None

    async with app.worker():
        job = await wait.enqueue()
        await began.wait()
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)


async def test_a_success_stands_that_comes_in_spite_of_it(app: TaskQ) -> None:
    began = asyncio.Event()

    @app.task
    async def wait() -> int:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 42
        return 0

    async with app.worker(concurrency=1):
        job = await wait.enqueue()
        await began.wait()
        assert await job.cancel()
        assert await job.result(timeout=30) == 42
        began.clear()
        again = await wait.enqueue()
        await began.wait()  # the slot's next job is not cancelled with it
        assert await again.status() is State.RUNNING
        await again.cancel()


async def test_a_thread_frees_its_slot_and_learns_of_it(app: TaskQ) -> None:
    began, saw, go_on = threading.Event(), threading.Event(), threading.Event()

    @app.task
    def work() -> None:
        assert not current_job().cancel_asked
        began.set()
        assert go_on.wait(10)
        if current_job().cancel_asked:
            saw.set()

    @app.task
    async def other() -> int:
        return 1

    async with app.worker(concurrency=1) as worker:
        job = await work.enqueue()
        await asyncio.to_thread(began.wait, 10)
        assert await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)
        assert await (await other.enqueue()).result(timeout=30) == 1
        assert worker.running == 0
        go_on.set()
        assert await asyncio.to_thread(saw.wait, 10)


async def test_a_job_that_waits_in_the_buffer_is_not_begun(app: TaskQ) -> None:
    began, ran = asyncio.Event(), list[int]()
    go_on = asyncio.Event()

    @app.task
    async def hold() -> None:
        began.set()
        await go_on.wait()

    @app.task
    async def count(number: int) -> None:
        ran.append(number)

    async with Worker(app, concurrency=1) as worker:
        await hold.enqueue()
        await began.wait()
        job = await count.enqueue(1)
        crew = worker._runner
        assert crew is not None
        port = app.store().port()
        crew.feed.buffer.extend(await port.claim(ClaimRequest(1)))
        assert await job.status() is State.RUNNING
        assert await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)
        go_on.set()
    assert ran == []


async def test_whoever_holds_a_delivery_of_bytes_asks_whether_it_is_wanted(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path / "bytes") as log:
        job_id = await log.put(b"x")
        (delivery,) = await log.claim(1)
        assert not await log.cancel_asked(delivery)
        assert await log.cancel(job_id) is True
        assert await log.cancel_asked(delivery)
        with pytest.raises(JobCancelled):
            await log.extend(delivery, seconds=30)
        await log.nack(delivery, reason="given up")
        view = await log.get(job_id)
        assert (view.state, view.reason) == (State.CANCELLED, "given up")
        assert await log.cancel(job_id) is False
        events = [event.kind for event in await log.timeline(job_id)]
        assert events == ["enqueued", "claimed", Kind.CANCEL_ASKED.name.lower(), "cancelled"]
