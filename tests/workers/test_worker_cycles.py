"""Workers that start and stop again and again leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

import pytest

from taskq_workers import Worker
from tests.workers import afar_jobs
from tests.workers.afar_jobs import app

SECONDS = 30


def census() -> tuple[int, list[str], int, int]:
    """(open descriptors, threads, child processes, asyncio tasks) of this process.

    Not the threads of the loop's own executor: a busy machine has it start one more at any time.
    """
    gc.collect()
    names = sorted(item.name for item in threading.enumerate())
    threads = [name for name in names if not name.startswith("asyncio_")]
    mine = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    children = mine.read_text(encoding="ascii").split() if mine.exists() else []
    return len(os.listdir("/dev/fd")), threads, len(children), len(asyncio.all_tasks())  # noqa: PTH208


@pytest.mark.parametrize("cycles", [3, pytest.param(50, marks=pytest.mark.slow)])
async def test_descriptors_threads_children_and_tasks_end_with_their_worker(
    tmp_path: Path, cycles: int
) -> None:
    app.data_dir = tmp_path / "data"
    async with app:
        before = None
        for _ in range(cycles):
            # Two at a time in one process, as some programs have them.
            async with Worker(app, concurrency=2), Worker(app, concurrency=2):
                await (await afar_jobs.where.enqueue("x")).result(SECONDS)
                await (await afar_jobs.on_own_loop.enqueue()).result(SECONDS)
                await (await afar_jobs.child.enqueue("y")).result(SECONDS)
            result = census()
            before = before or result
        # The first answers bring the loop's pipe.
        assert before is not None
        assert result[0] <= before[0] + 2
        assert result[1:] == before[1:]
