"""At rest a ready job and a free slot that may run it never stand side by side."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter

import pytest
from anyio.lowlevel import checkpoint

from taskq import TaskQ
from taskq.core.records import Kind
from taskq.log.requests import Delivery
from taskq_workers.pool import Worker
from taskq_workers.slots.slots import Slots
from tests.effort import grows, some
from tests.workers.fakes import FakeApp
from tests.workers.slots.resting import Schedule, make_deterministic, run_seeds

SECONDS = 30

leaked: contextvars.ContextVar[str] = contextvars.ContextVar("leaked")


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in a worker depends on how fast the machine is, nor on its network."""
    make_deterministic(monkeypatch)


@grows
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("start", range(0, some(100, 200), 50))
def test_at_rest_a_ready_job_and_a_free_slot_never_coexist(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_seeds(Schedule, range(start, start + 50), monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("start", range(0, 10_000, 1_000))
def test_at_rest_a_ready_job_and_a_free_slot_never_coexist_over_many_schedules(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_seeds(Schedule, range(start, start + 1_000), monkeypatch)


@pytest.mark.parametrize(("busy", "concurrency"), [(3, 4), (5, 8), (7, 8), (9, 16), (15, 16)])
async def test_beside_jobs_that_came_together_and_take_long_one_more_runs_at_once(
    fake: FakeApp, busy: int, concurrency: int
) -> None:
    hold = asyncio.Event()

    @fake.task
    async def work() -> None:
        fake.fake.poke()
        await hold.wait()

    async with Worker(fake, concurrency=concurrency) as worker:
        await fake.fake.until(lambda: bool(fake.fake.waiting()))
        for _ in range(busy):
            fake.put(work)
        await fake.fake.until(lambda: worker.running == busy)
        fake.put(work)
        await fake.fake.until(lambda: worker.running == busy + 1)
        hold.set()


async def test_in_place_of_a_slot_that_its_job_spoilt_another_asks_for_work(fake: FakeApp) -> None:
    @fake.task
    async def spoil() -> None:
        await checkpoint()
        leaked.set("what no other job may meet")

    fake.put(spoil)
    async with asyncio.timeout(SECONDS), Worker(fake, concurrency=1):
        await fake.fake.settlements(1)
        fake.put(spoil)
        await fake.fake.settlements(2)


async def test_a_burst_runs_what_comes_while_it_still_has_a_job(fake: FakeApp) -> None:
    hold = asyncio.Event()
    seen = []

    @fake.task
    async def work(waits: bool) -> None:
        seen.append(waits)
        fake.fake.poke()
        if waits:
            await hold.wait()

    fake.put(work, True)
    async with Worker(fake, concurrency=2, burst=True) as worker:
        await fake.fake.until(lambda: bool(fake.fake.waiting()))
        fake.put(work, False)
        await fake.fake.until(lambda: seen == [True, False])
        hold.set()
        await worker.stopped.wait()


@pytest.mark.parametrize("runs_in", ["", "thread"])
async def test_on_a_real_log_a_late_job_runs_beside_others_that_take_long(
    app: TaskQ, runs_in: str
) -> None:
    hold = threading.Event()
    loop = asyncio.get_running_loop()
    begun: asyncio.Queue[int] = asyncio.Queue()

    if runs_in:

        @app.task(name="work")
        def in_thread(number: int) -> None:
            loop.call_soon_threadsafe(begun.put_nowait, number)
            assert hold.wait(SECONDS)

    else:

        @app.task(name="work")
        async def on_loop(number: int) -> None:
            begun.put_nowait(number)
            await asyncio.to_thread(hold.wait, SECONDS)

    async with app.worker(concurrency=4):
        await app.enqueue_many([app.call_by_name("work", number) for number in range(2)])
        async with asyncio.timeout(SECONDS):
            try:
                assert {await begun.get(), await begun.get()} == {0, 1}
                for number in (2, 3):
                    await app.enqueue_by_name("work", number)
                    assert await begun.get() == number
            finally:
                hold.set()


async def test_another_slot_begins_as_soon_as_one_is_spoilt(fake: FakeApp) -> None:
    """At once, not when the spoilt one has ended: that may take as long as a busy loop turns."""
    running, hold = asyncio.Event(), asyncio.Event()

    @fake.task
    async def work() -> None:
        running.set()
        await hold.wait()

    fake.put(work)
    async with asyncio.timeout(SECONDS), Worker(fake, concurrency=1) as worker:
        await running.wait()
        crew = worker._runner
        assert isinstance(crew, Slots)
        (spoilt,) = crew.slots
        fake.put(work)
        crew.feed.buffer.append(fake.fake.ready.popleft())
        crew.replace(spoilt)
        (another,) = crew.slots
        assert another is not spoilt
        hold.set()
        await fake.fake.settlements(2)


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
