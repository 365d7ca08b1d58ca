"""``starvation``: the window after which a waiting job rises, wherever a log is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from taskq import Put, TaskLog, TaskQ
from taskq.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("given", "seconds"), [("5m", 300.0), (90, 90.0), ("never", None), (None, None), (0, 0.0)]
)
async def test_a_log_has_the_window_that_it_is_opened_with(
    tmp_path: Path, given: Any, seconds: float | None
) -> None:
    async with TaskLog.open(tmp_path / "log", durability="os", starvation=given) as log:
        assert log._connection.config.starvation_seconds == seconds
        low = await log.put(b"low", priority=0)
        assert [delivery.job_id for delivery in await log.claim()] == [low]


def test_an_app_has_it_from_its_settings_or_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def window(**options: Any) -> float | None:
        return TaskQ(tmp_path, **options)._connection.config.starvation_seconds

    assert window() == 600.0
    assert window(starvation="1h") == 3_600.0
    assert window(starvation="never") is None
    monkeypatch.setenv("TASKQ_STARVATION", "2m")
    assert window() == 120.0
    monkeypatch.setenv("TASKQ_STARVATION", "never")
    assert window() is None
    with pytest.raises(UsageError, match="starvation"):
        window(starvation="soon")


async def test_a_low_job_is_claimed_before_newer_high_ones_in_time(tmp_path: Path) -> None:
    """With the real clock: a window of a millisecond is over by the next call."""
    async with TaskLog.open(tmp_path / "log", durability="os", starvation="1ms") as log:
        low = await log.put(b"low", priority=0)
        while (await log.peek(1))[0].job_id != low or (await log.stats()).next_lsn < 40:
            await log.put_many([Put(payload=b"high", priority=9)])
        assert [delivery.job_id for delivery in await log.claim()] == [low]
