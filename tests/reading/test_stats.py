"""A log's statistics: its queues, its engine, and its disk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskq import TaskLog, TaskQ
from taskq.errors import DiskFull, UsageError
from taskq.views import EngineStats, LogStats, QueueStats, Spread

_MORE_THAN_ANY_DISK_HAS = 2**60


async def test_stats_tell_of_the_queues_and_of_this_processs_engine(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path / "log") as log:
        for _ in range(3):
            await log.put(b"x" * 100, queue="mail")
        [delivery] = await log.claim()
        await log.ack(delivery)
        stats = await log.stats()
    assert isinstance(stats, LogStats)
    [queue] = stats.queues
    assert isinstance(queue, QueueStats)
    assert (queue.queue, queue.ready, queue.running, queue.succeeded) == ("mail", 2, 0, 1)
    assert queue.oldest_ready_seconds is not None
    assert 0 <= queue.oldest_ready_seconds < 60
    engine = stats.engine
    assert isinstance(engine, EngineStats)
    assert engine.batches >= 5
    assert engine.records >= 5
    assert engine.payload_bytes == 300
    assert engine.appended_bytes > 300
    assert engine.write_amplification == engine.appended_bytes / 300
    for spread in (engine.sync_seconds, engine.lock_wait_seconds, engine.batch_records):
        assert isinstance(spread, Spread)
        assert spread.count
        assert 0 < spread.p50 <= spread.p95 <= spread.p99 <= spread.max
    assert 0 < engine.lock_hold_seconds_max < 10
    assert 0 < engine.open_seconds < 10
    assert engine.free_bytes
    assert not engine.is_disk_short


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


async def test_stats_tell_the_past_by_lsn_and_by_time(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        before = datetime.now(UTC)
        first = await log.put(b"first")
        await log.put(b"second")
        await log.ack((await log.claim())[0])
        lsn = int(first.rpartition("-")[2])
        [queue] = (await log.stats(at=lsn)).queues
        assert (queue.ready, queue.succeeded) == (1, 0)
        [queue] = (await log.stats(at=datetime.now(UTC))).queues
        assert (queue.ready, queue.succeeded) == (1, 1)
        assert (await log.stats(at=before)).queues == ()
        assert (await log.stats(at=lsn)).next_lsn == lsn + 1
        [queue] = (await log.stats()).queues
        assert (queue.ready, queue.succeeded) == (1, 1)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (999, "the log has no lsn 999 yet"),
        (-1, "give a datetime with a time zone, or an lsn"),
        (True, "give a datetime with a time zone, or an lsn"),
        ("2h", "give a datetime with a time zone, or an lsn"),
        (datetime(2024, 1, 1), "without a time zone"),  # noqa: DTZ001 - what is refused here
        (datetime.now(UTC) + timedelta(days=1), "is still to come"),
    ],
)
async def test_a_moment_that_cannot_be_is_refused(tmp_path: Path, at: Any, message: str) -> None:
    async with TaskLog.open(tmp_path) as log:
        await log.put(b"x")
        with pytest.raises(UsageError, match=message):
            await log.stats(at=at)
