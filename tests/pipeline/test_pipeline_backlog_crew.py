"""The driver's side on a log in memory, with executors that are a function."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from taskq import current_job, retry
from taskq.core.errors import DuplicateKey
from taskq.core.records import Cause, Kind
from taskq_plugins.spark.backlog import execution
from taskq_plugins.spark.backlog.execution import run_chunk
from taskq_plugins.spark.backlog.worker import (
    CHUNK_JOBS_MAX,
    CHUNKS_PER_CORE,
    ExecutorLost,
    SparkWorker,
)
from taskq_plugins.spark.errors import SparkError
from taskq_workers.process.running import WorkerOrder
from tests.workers.fakes import FakeApp

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.core.errors import TaskqError
    from taskq.log.requests import Settlement
    from taskq_plugins.spark.backlog.execution import ChunkReport, JobChunk
    from taskq_workers import JobFinished


class Here:
    """Executors that run chunks in a thread of this process, unless told otherwise."""

    def __init__(self, cores: int = 2) -> None:
        self.cores = cores
        self.sent: list[list[int]] = []
        self.cancelled = asyncio.Event()
        #: called with the jobs of each chunk before they run; may raise
        self.before: Callable[[list[int]], None] = lambda _: None
        self.hold: asyncio.Event | None = None
        self.arrived = asyncio.Event()

    async def run(self, chunk: JobChunk) -> ChunkReport:
        jobs = [job.job for job in chunk.jobs]
        self.sent.append(jobs)
        self.arrived.set()
        self.before(jobs)
        if self.hold is not None:
            await self._held(self.hold)
        return await asyncio.to_thread(_run, pickle.dumps(chunk))

    async def _held(self, hold: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(item.wait()) for item in (hold, self.cancelled)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.cancelled.is_set():
            raise SparkError("Spark job 0 was cancelled")

    def cancel(self) -> None:
        self.cancelled.set()


def _run(packed: bytes) -> ChunkReport:
    back: ChunkReport = pickle.loads(pickle.dumps(run_chunk(pickle.loads(packed))))  # noqa: S301
    return back


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch) -> FakeApp:
    app = FakeApp()
    monkeypatch.setattr(execution, "_app", lambda *_: app)
    return app


@pytest.fixture
async def here() -> Here:
    return Here()


def worker_of(fake: FakeApp, here: Here, **changes: Any) -> SparkWorker:
    given: dict[str, Any] = {
        "target": "jobs:app",
        "concurrency": 4,
        "queues": None,
        "burst": False,
        "drain_timeout": 10.0,
        "on_event": None,
    }
    return SparkWorker(fake, here, WorkerOrder(**(given | changes)), "here")


def by_kind(settled: list[Settlement]) -> dict[Kind, int]:
    kinds = [item.kind for item in settled]
    return {kind: kinds.count(kind) for kind in set(kinds)}


async def test_a_burst_runs_everything_and_ends(fake: FakeApp, here: Here) -> None:
    @fake.task
    def double(number: int) -> int:
        return 2 * number

    events: list[JobFinished] = []
    for number in range(300):
        fake.put(double, number)
    await worker_of(fake, here, burst=True, on_event=events.append).run()
    results = {item.delivery.job: json.loads(item.body or b"") for item in fake.fake.settled}
    assert results == {number + 1: 2 * number for number in range(300)}
    assert {event.outcome for event in events} == {"succeeded"}
    assert len(events) == 300
    assert len(here.sent) < 60
    assert max(len(jobs) for jobs in here.sent) <= CHUNK_JOBS_MAX


async def test_children_join_the_success_of_their_parent(fake: FakeApp, here: Here) -> None:
    @fake.task
    def child(number: int) -> None: ...

    @fake.task
    def parent() -> None:
        for number in range(3):
            current_job().enqueue(child.call(number))

    fake.put(parent)
    async with worker_of(fake, here):
        (settled,) = await fake.fake.settlements(1)
    assert settled.kind is Kind.SUCCEEDED
    assert [body for _, body, _ in settled.children] == [
        child.encode((number,), {}) for number in range(3)
    ]


async def test_a_child_that_is_refused_fails_its_parents_attempt(fake: FakeApp, here: Here) -> None:
    @fake.task
    def child() -> None: ...

    @fake.task
    def parent() -> None:
        current_job().enqueue(child.call())

    def refuse(settlement: Settlement) -> TaskqError | None:
        return DuplicateKey("default", b"k", "fake-7") if settlement.children else None

    fake.fake.refuse = refuse
    fake.put(parent)
    async with worker_of(fake, here):
        (settled,) = await fake.fake.settlements(1)
    assert settled.kind is Kind.RETRIED


async def test_jobs_lost_in_company_are_given_back_and_then_run_alone(
    fake: FakeApp, here: Here
) -> None:
    """Which of them killed the executor is not known, so none of them loses an attempt."""

    @fake.task
    def work(number: int) -> int:
        return number

    def die_in_company(jobs: list[int]) -> None:
        if len(jobs) > 1 and len(here.sent) < 20:
            raise ExecutorLost("the executor that ran it died")

    for number in range(6):
        fake.put(work, number)
    here.before = die_in_company
    async with worker_of(fake, here):
        settled = await fake.fake.settlements(6)
        lost = [item for item in settled if item.kind is Kind.RELEASED]
        company = [jobs for jobs in here.sent if len(jobs) > 1]
        assert [item.delivery.job for item in lost] == [job for jobs in company for job in jobs]
        sent = len(here.sent)
        fake.fake.ready.extend(item.delivery for item in lost)
        fake.put(work, 6)
        await fake.fake.until(lambda: by_kind(fake.fake.settled)[Kind.SUCCEEDED] == 7)
    again = [jobs for jobs in here.sent[sent:] if set(jobs) & {item.delivery.job for item in lost}]
    assert {len(jobs) for jobs in again} <= {1}


async def test_a_job_that_kills_its_executor_alone_uses_up_its_attempts(
    fake: FakeApp, here: Here
) -> None:
    @fake.task(retry=retry.fixed(2, delay=0))
    def poison() -> None: ...

    def die(_: list[int]) -> None:
        raise ExecutorLost("the executor that ran it died")

    here.before = die
    call = poison.options(attempts=2).call()
    fake.fake.put(call.spec, call.body, attempt=1)
    fake.fake.put(call.spec, call.body, attempt=2)
    async with worker_of(fake, here):
        first, last = sorted(await fake.fake.settlements(2), key=lambda item: item.delivery.job)
    assert first.kind is Kind.RETRIED
    assert b"the executor that ran it died" in (first.body or b"")
    assert (last.kind, last.cause) == (Kind.DEAD, Cause.EXHAUSTED)


async def test_what_may_run_only_once_is_not_given_back_when_its_executor_dies(
    fake: FakeApp, here: Here
) -> None:
    @fake.task
    def work() -> None: ...

    def die(jobs: list[int]) -> None:
        if len(jobs) > 1:
            raise ExecutorLost("the executor that ran it died")

    here.before = die
    for _ in range(6):
        call = work.options(attempts=1).call()
        fake.fake.put(call.spec, call.body)
    async with worker_of(fake, here):
        settled = await fake.fake.settlements(6)
    assert Kind.RELEASED not in by_kind(settled)
    assert by_kind(settled)[Kind.DEAD] == sum(len(item) for item in here.sent if len(item) > 1)


async def test_a_drain_lets_what_is_out_come_home(fake: FakeApp, here: Here) -> None:
    @fake.task
    def work() -> None: ...

    here.hold = asyncio.Event()
    fake.put(work)
    worker = worker_of(fake, here)
    await worker.start()
    await here.arrived.wait()
    assert worker.running == 1
    worker.request_stop()
    here.hold.set()
    await worker.stopped.wait()
    assert by_kind(fake.fake.settled) == {Kind.SUCCEEDED: 1}
    assert not here.cancelled.is_set()


async def test_what_outlasts_the_drain_is_cancelled_and_given_back(
    fake: FakeApp, here: Here
) -> None:
    @fake.task
    def work() -> None: ...

    here.hold = asyncio.Event()
    fake.put(work)
    worker = worker_of(fake, here, drain_timeout=0.0)
    await worker.start()
    await here.arrived.wait()
    await worker.stop()
    assert here.cancelled.is_set()
    (settled,) = fake.fake.settled
    assert (settled.kind, settled.cause) == (Kind.RELEASED, Cause.DRAIN)


async def test_executors_that_cannot_import_the_app_stop_the_worker_and_keep_the_jobs(
    fake: FakeApp, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    @fake.task
    def work() -> None: ...

    def broken(*_: str) -> FakeApp:
        raise ModuleNotFoundError("No module named 'shop'")

    monkeypatch.setattr(execution, "_app", broken)
    fake.put(work)
    with pytest.raises(SparkError, match=r"cannot import jobs:app: .*'shop'.*--py-files"):
        await worker_of(fake, here).run()
    assert by_kind(fake.fake.settled) == {Kind.RELEASED: 1}


async def test_spark_that_fails_stops_the_worker_and_keeps_the_jobs(
    fake: FakeApp, here: Here
) -> None:
    @fake.task
    def work() -> None: ...

    def fail(_: list[int]) -> None:
        raise SparkError("Spark failed: its Java is gone")

    here.before = fail
    fake.put(work)
    once = work.options(attempts=1).call()
    fake.fake.put(once.spec, once.body)
    with pytest.raises(SparkError, match="its Java is gone"):
        await worker_of(fake, here).run()
    # Jobs that may run only once may have run, on a Spark that failed afterwards.
    assert by_kind(fake.fake.settled) == {Kind.RELEASED: 1, Kind.DEAD: 1}


async def test_no_more_jobs_are_claimed_than_chunks_have_room(fake: FakeApp, here: Here) -> None:
    @fake.task
    def work() -> None: ...

    room = here.cores * CHUNKS_PER_CORE * CHUNK_JOBS_MAX
    for _ in range(2 * room):
        fake.put(work)
    here.hold = asyncio.Event()
    async with worker_of(fake, here) as worker:
        await asyncio.wait_for(here.arrived.wait(), 10)
        await fake.fake.until(lambda: not fake.fake.waiting())
        assert worker.running <= room
        assert fake.fake.ready
        worker.request_stop()
        here.hold.set()
