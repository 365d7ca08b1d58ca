"""What lifespans yield reaches tasks on each executor, and is closed in each process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from taskq_workers import Worker
from tests.workers import lent_jobs
from tests.workers.lent_jobs import app

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 30


def is_closed(path: Path, pid: int) -> bool:
    return (path / f"closed-{pid}").exists()


async def test_tasks_on_each_executor_take_the_resource_of_their_own_process(
    tmp_path: Path,
) -> None:
    app.data_dir = tmp_path / "data"
    async with app:
        async with Worker(app, process_limit=1):
            in_process = await (await lent_jobs.in_process.enqueue()).result(SECONDS)
            in_process_async = await (await lent_jobs.in_process_async.enqueue()).result(SECONDS)
            in_thread = await (await lent_jobs.in_thread.enqueue()).result(SECONDS)
            in_loop = await (await lent_jobs.in_loop.enqueue()).result(SECONDS)
        child, here = in_process[0], os.getpid()
        assert child != here
        assert in_process == in_process_async == (child, child, True)
        assert in_thread == in_loop == (here, here, True)
        # A child has as long to close it as a worker.
        assert is_closed(tmp_path, child)
        assert is_closed(tmp_path, here)
