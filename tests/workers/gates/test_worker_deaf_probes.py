"""Probes that ignore their cancellation: a worker goes on without them, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from taskq.conditions import condition
from taskq_workers.gates import probes
from taskq_workers.pool import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from taskq import TaskQ

pytestmark = pytest.mark.anyio


class Deaf:
    """A probe that ends when it is let go, and not before."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self._go_on = asyncio.Event()

    async def check(self) -> bool:
        self.begun.set()
        while not self._go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self._go_on.wait()
        return True

    def let_go(self) -> None:
        self._go_on.set()


@pytest.fixture
async def deaf() -> AsyncIterator[Deaf]:
    probe = Deaf()
    yield probe
    probe.let_go()


async def test_a_worker_stops_while_a_probe_ignores_its_cancellation(
    app: TaskQ, deaf: Deaf
) -> None:
    @app.task(requires=[condition(deaf.check, timeout="1h")])
    async def work() -> None: ...

    async with app:
        job = await work.enqueue()
        worker = Worker(app, drain_timeout=0)
        await worker.start()
        await deaf.begun.wait()
        began = time.monotonic()
        stopping = asyncio.create_task(worker.stop())
        done, _ = await asyncio.wait({stopping}, timeout=10)
        seconds = time.monotonic() - began
        deaf.let_go()
        await stopping
        assert done
        assert seconds < 1
        assert (await job.view()).attempt == 0


async def test_a_probe_that_cancels_itself_counts_as_failed() -> None:
    async def cancels() -> bool:
        raise asyncio.CancelledError

    probe = probes.Probe(condition(cancels), lambda: 1)
    assert await probe.told(0) == "its probe was cancelled"


async def test_a_probe_that_ignores_its_time_limit_counts_as_failed_and_ends_a_burst(
    app: TaskQ, deaf: Deaf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "DEAF_SECONDS", 0.05)

    @app.task(requires=[condition(deaf.check, timeout=0.05)])
    async def work() -> None: ...

    async with app:
        await work.enqueue()
        burst = asyncio.create_task(Worker(app, burst=True).run())
        done, _ = await asyncio.wait({burst}, timeout=10)
        deaf.let_go()
        await burst
        assert done
