from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskq import TaskLog
from taskq.log.config import SEGMENT_BYTES_MIN


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[TaskLog]:
    """Yield a real log, which is synced: a stream reads durable records."""
    async with TaskLog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES_MIN) as log:
        yield log
