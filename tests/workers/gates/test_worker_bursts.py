"""Bursts beside gates: they end, whoever runs the jobs in the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from taskq.conditions import condition
from taskq_workers.gates import gates
from taskq_workers.pool import Worker

if TYPE_CHECKING:
    from taskq import TaskQ
    from taskq_workers.gates.gate import Gate

pytestmark = pytest.mark.anyio


async def test_a_burst_ends_though_another_worker_took_the_job_that_a_gate_was_to_have(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was seen, and gone before the gate's claim: nothing moves the gate any more."""
    looks = 0
    is_pending = gates.Gates._is_pending

    async def seen_once(self: gates.Gates, gate: Gate) -> bool:
        nonlocal looks
        looks += 1
        return looks == 1 or await is_pending(self, gate)

    monkeypatch.setattr(gates, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(gates.Gates, "_is_pending", seen_once)

    @app.task(requires=[condition(lambda: True)])
    async def work() -> None: ...

    async with app:
        async with asyncio.timeout(10):
            await Worker(app, burst=True).run()
    assert looks > 1
