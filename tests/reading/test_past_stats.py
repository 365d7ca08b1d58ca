"""``await log.stats(at=…)``: counts as they were."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskq import TaskLog
from taskq.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


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
