from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ
from taskq.errors import UsageError
from taskq.log.read.reader import LogReader
from taskq.log.read.walks import entries
from taskq.testing.clock import START_SECONDS, TravelClock, use_clock
from taskq_workers.pool import Worker

if TYPE_CHECKING:
    from pathlib import Path

_DAY_SECONDS = 86_400
_SECOND_NS = 1_000_000_000


async def test_a_delayed_job_runs_once_its_app_s_clock_was_sent_ahead(tmp_path: Path) -> None:
    """The times in the log are the clock's, not the machine's."""
    app = TaskQ(tmp_path)
    clock = TravelClock(START_SECONDS)
    use_clock(app, clock)
    ran: list[int] = []

    @app.task(name="note")
    def note(number: int) -> None:
        ran.append(number)

    async with app:
        await note.options(delay="1d").enqueue(1)
        await Worker(app, burst=True).run()
        assert ran == []
        clock.advance(_DAY_SECONDS)
        await Worker(app, burst=True).run()
        assert ran == [1]
    with LogReader.open(str(tmp_path)) as reader:
        days = [
            (entry.time_ns // _SECOND_NS - START_SECONDS) // _DAY_SECONDS
            for entry in entries(reader.journal)
        ]
    assert (days[0], days[-1]) == (0, 1)


async def test_the_clock_of_an_open_app_cannot_be_changed(tmp_path: Path) -> None:
    async with TaskQ(tmp_path) as app:
        await app.open()
        with pytest.raises(UsageError, match="before first use"):
            use_clock(app, TravelClock())
