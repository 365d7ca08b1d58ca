"""Cancels of jobs that a gate has claimed, while it finds out whether they may run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from taskq.conditions import condition
from taskq.core.errors import JobCancelled
from taskq.core.model import State
from taskq_workers.gates.gate import Mode
from taskq_workers.pool import Worker

if TYPE_CHECKING:
    from taskq import TaskQ

pytestmark = pytest.mark.anyio


async def test_a_job_that_is_cancelled_while_its_condition_is_probed_never_runs(app: TaskQ) -> None:
    probed, go_on, ran = asyncio.Event(), asyncio.Event(), []

    async def holds() -> bool:
        probed.set()
        await go_on.wait()
        return True

    @app.task(requires=[condition(holds)])
    async def work(number: int) -> int:
        ran.append(number)
        return number

    async with app, Worker(app) as worker:
        gates = worker._parts[0].gates
        assert gates is not None
        (gate,) = gates._all()
        for _ in range(3):  # until its gate waits for the first job
            await app.stats()
        assert gate.mode is Mode.IDLE
        first = await work.enqueue(1)
        await probed.wait()
        assert await first.status() is State.RUNNING
        assert await first.cancel()
        with pytest.raises(JobCancelled):
            await first.result(timeout=2)
        go_on.set()
        second = await work.enqueue(2)
        assert await second.result(timeout=10) == 2
    assert ran == [2]
