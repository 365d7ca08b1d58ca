"""Dead letters and paused queues where several processes share a log."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from taskq import Put, State, TaskLog, TaskQ
from taskq.core.records import Kind
from taskq.errors import JobFailed
from tests.processes.harness import SCRIPTS, Child, eventually, log_records, of_kind

LETTERS = 96


def start_worker(path: Path) -> Child:
    return Child(sys.executable, "-m", "taskq", "worker", "letters:app", "-d", path, cwd=SCRIPTS)


async def test_what_one_process_requeues_another_ones_worker_runs(tmp_path: Path) -> None:
    needed = tmp_path / "server"
    async with TaskQ(tmp_path / "data", durability="os") as app:
        with start_worker(tmp_path / "data") as worker:
            call = app.call_by_name("letters.send", str(needed))
            job = await app.enqueue(call.options(queue="mail", attempts=1))
            with pytest.raises(JobFailed, match="the mail server is away"):
                await job.result(timeout=20)
            needed.touch()
            await job.requeue()
            assert await job.result(timeout=20) == worker.pid
            view = await job.view()
            assert [attempt.outcome for attempt in view.attempts] == ["dead", "succeeded"]


async def test_a_worker_of_another_process_heeds_a_pause_and_wakes_at_the_resume(
    tmp_path: Path,
) -> None:
    needed = tmp_path / "server"
    needed.touch()
    async with TaskQ(tmp_path / "data", durability="os") as app:
        with start_worker(tmp_path / "data") as worker:
            call = app.call_by_name("letters.send", str(needed)).options(queue="mail")
            first = await app.enqueue(call)
            assert await first.result(timeout=20) == worker.pid
            await app.pause("mail")
            paused = await app.enqueue(call)
            free = await app.enqueue(call.options(queue="other", priority=0))
            assert await free.result(timeout=20) == worker.pid
            assert await paused.status() is State.READY
            await app.resume("mail")
            assert await paused.result(timeout=20) == worker.pid


async def _make_letters(path: Path) -> list[str]:
    async with TaskLog.open(path, durability="os") as log:
        ids = await log.put_many([Put(payload=b"x", attempts=1) for _ in range(LETTERS)])
        for delivery in await log.claim(LETTERS):
            await log.nack(delivery)
    return ids


def test_two_processes_that_requeue_everything_share_the_letters(tmp_path: Path) -> None:
    asyncio.run(_make_letters(tmp_path))
    with Child("letters.py", tmp_path) as first, Child("letters.py", tmp_path) as second:
        lines = first.rest() + second.rest()
        eventually(lambda: None not in (first.process.poll(), second.process.poll()))
    ids = [line for line in lines if line != "open"]
    requeued = [record.job for record in of_kind(log_records(tmp_path), Kind.REQUEUED)]
    assert len(requeued) == len(set(requeued)) == LETTERS
    assert len(ids) == len(set(ids))
