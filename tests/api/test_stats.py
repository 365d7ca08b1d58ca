"""What a log says of itself: its queues, its engine, and its disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq import DiskFull, TaskLog, TaskQ

if TYPE_CHECKING:
    from pathlib import Path

_MORE_THAN_ANY_DISK_HAS = 2**60


async def test_too_little_room_on_the_disk_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path / "log", durability="os") as log:
        await log.put(b"kept")
    async with TaskLog.open(tmp_path / "log", min_free=_MORE_THAN_ANY_DISK_HAS, reserve=0) as log:
        with pytest.raises(DiskFull, match="Free some space, raise the quota or lower min_free"):
            await log.put(b"refused")
        [delivery] = await log.claim()
        await log.ack(delivery)
    app = TaskQ(tmp_path / "log", min_free=_MORE_THAN_ANY_DISK_HAS)
    async with app:
        with pytest.raises(DiskFull) as caught:
            await app.enqueue_by_name("mail.send")
        assert caught.value.limit_bytes == _MORE_THAN_ANY_DISK_HAS
