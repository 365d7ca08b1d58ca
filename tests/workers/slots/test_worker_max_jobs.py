"""``max_jobs``: a worker runs so many attempts and ends, whoever claims them for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from taskq.core.records import Kind
from taskq_workers.pool import Worker

if TYPE_CHECKING:
    from taskq.log.requests import Delivery
    from tests.workers.fakes import FakeApp

SECONDS = 30


async def ended(worker: Worker) -> None:
    async with asyncio.timeout(SECONDS):
        await worker.run()


async def test_a_worker_ends_by_itself_after_so_many_attempts(fake: FakeApp) -> None:
    @fake.task
    async def work() -> None: ...

    for _ in range(5):
        fake.put(work)
    await ended(Worker(fake, max_jobs=3))
    assert [settlement.kind for settlement in fake.fake.settled] == [Kind.SUCCEEDED] * 3
    assert len(fake.fake.ready) == 2


@pytest.mark.parametrize("gate_first", [True, False])
async def test_what_a_gate_claims_beside_the_common_claim_counts_as_well(
    fake: FakeApp, gate_first: bool
) -> None:
    """Both may claim what is left to run, and what is too much goes back, burning no attempt."""

    @fake.task
    async def work() -> None: ...

    worker = Worker(fake, max_jobs=2)
    running = asyncio.create_task(ended(worker))
    await worker.started.wait()
    await fake.fake.until(lambda: bool(fake.fake.waiting()))
    crew = worker._runner
    assert crew is not None
    gates = [fake.put(work), fake.put(work)]
    fake.fake.ready.clear()
    if gate_first:
        crew.feed.add(gates)
        fake.put(work)
    else:
        fake.put(work)
        await fake.fake.until(lambda: len(fake.fake.settled) == 1)
        crew.feed.add(gates)
    await running
    kinds = Counter(settlement.kind for settlement in fake.fake.settled)
    assert kinds == {Kind.SUCCEEDED: 2, Kind.RELEASED: 1}


async def test_what_a_gate_sends_back_as_it_shuts_counts_for_nothing(fake: FakeApp) -> None:
    """It was claimed while the gate was open, and has not run."""

    class Shutting:
        shuts = True

        def claimable(
            self, queues: frozenset[str] | None, tasks: frozenset[str]
        ) -> tuple[frozenset[str] | None, frozenset[str]]:
            return queues, tasks

        def passed(self, deliveries: list[Delivery]) -> list[Delivery]:
            passed, self.shuts = ([] if self.shuts else deliveries), False
            return passed

    @fake.task
    async def work() -> None: ...

    worker = Worker(fake, max_jobs=1)
    running = asyncio.create_task(ended(worker))
    await worker.started.wait()
    runner = worker._runner
    assert runner is not None
    runner.feed.filter = gate = Shutting()
    fake.put(work)
    await fake.fake.until(lambda: not gate.shuts)
    fake.put(work)
    await running
    assert [settlement.kind for settlement in fake.fake.settled] == [Kind.SUCCEEDED]
