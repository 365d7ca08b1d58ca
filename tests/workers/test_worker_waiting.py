"""Jobs that come while others run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from taskq import TaskQ

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_job_that_waits_keeps_no_later_one_from_its_slot(tmp_path: Path) -> None:
    """The first of eight slots is taken; what is enqueued then runs at once beside it."""
    app = TaskQ(tmp_path)
    started, released = asyncio.Event(), asyncio.Event()

    @app.task
    async def wait() -> str:
        started.set()
        await released.wait()
        return "released"

    @app.task
    async def release() -> None:
        released.set()

    async with app, app.worker(concurrency=8):
        waiting = await wait.enqueue()
        await started.wait()
        await release.enqueue()
        assert await waiting.result(timeout=5) == "released"
