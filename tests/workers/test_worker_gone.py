"""A worker whose log is taken away."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ
from taskq.core.model import SECOND_NS
from taskq.errors import LogGone
from taskq.log.commit.committer import LOOK_AROUND_NS
from taskq_workers import Worker

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_worker_that_sleeps_stops_when_its_directory_is_removed(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data")
    app.task(name="idle")(lambda: None)
    worker = Worker(app)
    await worker.start()
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    async with asyncio.timeout(3 * LOOK_AROUND_NS / SECOND_NS):
        await worker.stopped.wait()
    with pytest.raises(LogGone, match="removed, moved or replaced"):
        await worker.run()
    await app.close()
