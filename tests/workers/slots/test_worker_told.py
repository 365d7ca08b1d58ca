"""What a worker tells of its jobs: those that run, and ends that the log did not keep."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from taskq.core.errors import StaleDelivery
from taskq_workers import Worker

if TYPE_CHECKING:
    import pytest

    from taskq.log.requests import Settlement
    from tests.workers.fakes import FakeApp


async def test_what_runs_is_told_with_how_long_it_runs(fake: FakeApp) -> None:
    go = asyncio.Event()

    @fake.task
    async def wait() -> None:
        await go.wait()

    delivery = fake.put(wait)
    async with Worker(fake) as worker:
        await fake.fake.until(lambda: worker.running == 1)
        ((held, seconds),) = worker.held
        assert held == delivery
        assert seconds is not None
        assert seconds >= 0
        go.set()
        await fake.fake.settlements(1)
        assert worker.held == []


async def test_an_end_that_the_log_did_not_keep_is_told_with_the_reason(
    fake: FakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """Its claim was over: somebody else has the job, and it is no end of this worker's."""

    @fake.task
    async def work(number: int) -> None: ...

    late, kept = fake.put(work, 1), fake.put(work, 2)

    def refuse(item: Settlement) -> StaleDelivery | None:
        return StaleDelivery("taken back meanwhile") if item.delivery == late else None

    fake.fake.refuse = refuse
    async with Worker(fake) as worker:
        await fake.fake.settlements(1)
    (seen,) = [
        record.getMessage() for record in caplog.records if "was not kept" in record.getMessage()
    ]
    assert seen == (
        f"job {late.job_id}: its outcome (succeeded) was not kept: taken back meanwhile"
    )
    assert [settlement.delivery for settlement in fake.fake.settled] == [kept]
    assert sum(worker.ended.values()) == 1
