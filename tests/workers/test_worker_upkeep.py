"""A worker keeps its log in order by itself, and what is to be kept stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskq import JobHandle, State, TaskQ
from taskq.errors import JobNotFound
from taskq.log.config import SEGMENT_BYTES_MIN

KEEP_BYTES = 8 * SEGMENT_BYTES_MIN
SECONDS = 30


def log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "log").glob("*.log"))


async def echo(text: str) -> str:
    return text


async def later() -> None: ...


async def run_rounds(app: TaskQ, *, while_over: bool) -> JobHandle[str]:
    """Jobs of about 4 KiB each, until four times the limit went through; returns the first."""
    first: JobHandle[str] | None = None
    for _ in range(16):
        jobs = await app.enqueue_many([app.call_by_name("echo", 2_000 * "x")] * 32)
        first = first or jobs[0]
        for job in jobs:
            assert len(await job.result(SECONDS)) == 2_000
        if while_over:
            async with asyncio.timeout(SECONDS):
                while (await app.stats()).size > KEEP_BYTES:
                    pass
    assert first is not None
    return first


async def test_a_worker_keeps_its_log_within_the_limit_by_itself(tmp_path: Path) -> None:
    """Nobody asked for a compaction, and the one job that waits is there all the time."""
    app = TaskQ(tmp_path, keep_bytes=KEEP_BYTES)
    app.task(name="echo")(echo)
    delayed = app.task(name="later")(later).options(delay="1h", key="k")
    async with app, app.worker():
        waits = await delayed.enqueue()
        first = await run_rounds(app, while_over=True)
        assert log_bytes(tmp_path) <= KEEP_BYTES + SEGMENT_BYTES_MIN
        with pytest.raises(JobNotFound):
            await first.status()
        assert await waits.status() is State.SCHEDULED
        again = await delayed.enqueue()
        assert (again.id, again.duplicate) == (waits.id, True)
        (queue,) = (await app.stats()).queues
    assert (queue.succeeded, queue.scheduled) == (16 * 32, 1)


async def test_without_upkeep_nothing_goes(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, keep_bytes=KEEP_BYTES, upkeep=False)
    app.task(name="echo")(echo)
    async with app, app.worker():
        first = await run_rounds(app, while_over=False)
        assert await first.status() is State.SUCCEEDED
    assert log_bytes(tmp_path) > 3 * KEEP_BYTES
    assert not list((tmp_path / "log").glob("*.idx"))
