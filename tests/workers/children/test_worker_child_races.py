"""Child processes that change in the very turn of the loop in which a job gets or leaves them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskq.app.context import JobContext, running_job
from taskq.engine import kinds
from taskq_workers.children import runner
from taskq_workers.children.runner import ChildPhase, ProcessRunner
from taskq_workers.children.wire import JobDone, Work
from taskq_workers.runs.executors import ExecutorLimits, ThreadRunner
from taskq_workers.slots.shipping import RemoteOutcome
from tests.effort import within
from tests.workers.fakes import FakeApp


def work() -> None: ...


class FakeChild:
    """A child that does what the test says."""

    made: list[FakeChild]

    def __init__(self, _loop: object, _outfit: object, on_change: Any, _seconds: float) -> None:
        self.phase = ChildPhase.STARTING
        self.jobs = self.rss_bytes = 0
        self.problem = ""
        self.is_ready = True
        self.gone = asyncio.Event()
        self.on_told = None
        self.got: list[int] = []
        self._on_change = on_change
        self._job: asyncio.Future[JobDone] | None = None
        FakeChild.made.append(self)

    def run(self, work: Work) -> asyncio.Future[JobDone]:
        assert self.phase is ChildPhase.IDLE
        self.phase = ChildPhase.BUSY
        self.got.append(work.shipment.job)
        self._job = asyncio.get_running_loop().create_future()
        return self._job

    def rest(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.set_result(JobDone(RemoteOutcome(0, 0, None, 0, 0, (), 0.0), 0))
        self.phase = ChildPhase.IDLE
        self._on_change(self)

    def kill(self, reason: BaseException | None = None) -> None:
        self.phase = ChildPhase.GONE
        job, self._job = self._job, None
        if job is not None:
            job.set_exception(reason or RuntimeError("killed"))
        self.gone.set()
        self._on_change(self)

    kill_and_reap = kill


class Loop:
    """The running loop, whose timers ring when the test wants it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.create_future = self._loop.create_future
        self.time = self._loop.time
        self.rings: list[Any] = []

    def call_later(self, _seconds: float, ring: Any, *args: Any) -> asyncio.Handle:
        self.rings.append(lambda: ring(*args))
        return asyncio.Handle(ring, args, self._loop)


@pytest.fixture(autouse=True)
def children(monkeypatch: pytest.MonkeyPatch) -> list[FakeChild]:
    FakeChild.made = []
    monkeypatch.setattr(runner, "Child", FakeChild)
    return FakeChild.made


class Jobs:
    """Jobs of one task on a runner with room for ``room`` children."""

    def __init__(self, fake: FakeApp, count: int) -> None:
        task = fake.task(runs_in="process", timeout="1m")(work)
        self.loop = Loop()
        loop: Any = self.loop
        self.runner = ProcessRunner(loop, fake, ExecutorLimits(threads=1, processes=count))
        self._app, self._task, self._call = fake, task, self.runner.caller(task)

    def start(self) -> asyncio.Task[RemoteOutcome]:
        job = JobContext(self._app.put(self._task), self._app)

        async def run() -> RemoteOutcome:
            running_job.set(job)
            return await self._call(b"{}")

        return asyncio.create_task(run())


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_timeout_that_rings_as_its_job_ends_kills_not_the_next_job(
    fake: FakeApp, children: list[FakeChild]
) -> None:
    jobs = Jobs(fake, 1)
    first, second = jobs.start(), jobs.start()
    await turn()
    (child,) = children
    child.rest()
    await turn()
    child.rest()  # the first job's end has come, and the second has the child
    jobs.loop.rings[0]()  # in the same turn: the first job's timer
    await turn()
    assert first.done()
    assert child.phase is ChildPhase.BUSY
    assert child.got == [1, 2]
    child.rest()
    await asyncio.wait({first, second}, timeout=30)
    assert second.exception() is None


async def test_a_child_that_dies_as_it_is_handed_over_costs_its_next_job_nothing(
    fake: FakeApp, children: list[FakeChild]
) -> None:
    jobs = Jobs(fake, 1)
    job = jobs.start()
    await turn()
    children[0].rest()
    children[0].kill()
    await turn()
    assert not job.done()
    children[1].rest()
    await turn()
    children[1].rest()
    await asyncio.wait({job}, timeout=30)
    assert job.exception() is None


async def test_no_job_waits_for_a_child_of_a_runner_that_has_ended(fake: FakeApp) -> None:
    jobs = Jobs(fake, 1)
    early = jobs.start()
    await turn()
    jobs.runner.close()
    late = jobs.start()
    async with within():
        for ended in await asyncio.gather(early, late):
            assert ended.kind == kinds.RELEASE


async def test_no_call_waits_for_a_thread_of_a_runner_that_has_ended() -> None:
    threads = ThreadRunner(asyncio.get_running_loop(), 1)
    threads.close()
    async with within():
        with pytest.raises(RuntimeError, match="the worker has ended"):
            await threads.run(work, (), {})
