"""Executors run a chunk of jobs, called on a list and without Spark."""

import asyncio
import contextvars
import json
import pickle
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskq import Discard, Retry, Snooze, TaskQ, current_job, retry
from taskq.core.records import Cause, Kind
from taskq.log.requests import Delivery, Settlement
from taskq_plugins.spark.backlog import execution
from taskq_plugins.spark.backlog import worker as backlog_worker
from taskq_plugins.spark.backlog.execution import (
    HOLD_SECONDS,
    ChunkReport,
    JobChunk,
    run_chunk,
    run_chunks,
)
from taskq_plugins.spark.backlog.worker import (
    CHUNK_BYTES_MAX,
    CHUNK_JOBS_MAX,
    CHUNKS_PER_CORE,
    ExecutorLost,
    SparkWorker,
    cut,
    open_payloads,
)
from taskq_plugins.spark.errors import SparkError
from taskq_workers import JobFinished
from taskq_workers.process.running import WorkerOrder
from taskq_workers.slots.shipping import RemoteOutcome, ship
from tests.workers.fakes import FakeApp, make_delivery


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> TaskQ:
    """Return an app that the executor's side finds under any name."""
    app = TaskQ("never-made")
    monkeypatch.setattr(execution, "_app", lambda *_: app)
    return app


def claimed(task: Any, *args: Any, job: int = 1, attempt: int = 1) -> Delivery:
    call = task.call(*args)
    return make_delivery(call.spec, call.body, job=job, attempt=attempt)


def chunk_of(*deliveries: Delivery, concurrency: int = 4) -> JobChunk:
    jobs = tuple(ship(delivery, None) for delivery in deliveries)
    chunk: JobChunk = pickle.loads(pickle.dumps(JobChunk("jobs:app", "data", concurrency, jobs)))  # noqa: S301
    return chunk


def run(*deliveries: Delivery, concurrency: int = 4) -> tuple[RemoteOutcome, ...]:
    (report,) = run_chunks([chunk_of(*deliveries, concurrency=concurrency)])
    back: ChunkReport = pickle.loads(pickle.dumps(report))  # noqa: S301 - as Spark does
    assert (back.lost, back.problem) == (False, "")
    return tuple(sorted(back.ended))


ERRORS = [
    ValueError("no"), SystemExit(3), KeyboardInterrupt(), StopIteration(), Retry(delay=7),
    Discard("useless"), Snooze(60),
]  # fmt: skip
SEEN: contextvars.ContextVar[int] = contextvars.ContextVar("seen", default=0)


def ways() -> dict[str, Callable[..., Any]]:  # noqa: C901 - one after the other
    def add(a: int, b: int) -> int:
        return a + b

    async def greet(name: str) -> str:
        await asyncio.sleep(0)
        return f"hello {name}"

    def double_batch(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    async def greet_batch(names: list[str]) -> list[str] | None:
        return [f"hello {name}" for name in names] if names != ["nobody"] else None

    def wrong_batch(items: list[int]) -> list[int]:
        return items * 2

    def who() -> list[Any]:
        return [current_job().attempt, current_job().task, current_job().headers]

    def leave() -> int:
        SEEN.set(SEEN.get() + 1)
        return SEEN.get()

    def fail(number: int) -> None:
        raise ERRORS[number]

    async def fail_later(number: int) -> None:
        raise ERRORS[number]

    def lie() -> int:
        return "many"  # type: ignore[return-value]

    async def hang() -> None:
        await asyncio.Event().wait()

    return locals()


DONE, AGAIN, DEAD = Kind.SUCCEEDED, Kind.RETRIED, Kind.DEAD
#: (task, arguments, attempt of at most five, how it ends, what the body begins with)
ENDS: list[tuple[str, tuple[Any, ...], int, tuple[Any, ...], bytes]] = [
    ("add", (1, 2), 1, (DONE,), b"3"),
    ("greet", ("you",), 1, (DONE,), b'"hello you"'),
    ("double_batch", (7,), 1, (DONE,), b"14"),
    ("greet_batch", ("you",), 1, (DONE,), b'"hello you"'),
    ("greet_batch", ("nobody",), 1, (DONE,), b""),
    ("wrong_batch", (1,), 1, (DEAD,), b"Discard: wrong_batch got 1 jobs and returned a list of 2"),
    ("who", (), 3, (DONE,), b'[3,"who",{}]'),
    ("leave", (), 1, (DONE,), b"1"),
    ("leave", (), 1, (DONE,), b"1"),
    ("fail", (0,), 1, (AGAIN,), b"ValueError: no\n"),
    *((name, (n,), 1, (AGAIN,), b"") for name in ("fail", "fail_later") for n in range(5)),
    ("fail", (0,), 5, (DEAD, Cause.EXHAUSTED), b"ValueError: no\n"),
    ("lie", (), 1, (DEAD,), b""),
    ("hang", (), 1, (AGAIN,), b""),
    ("fail", (5,), 1, (DEAD, Cause.REJECTED), b""),
    ("fail", (6,), 1, (Kind.RELEASED,), b""),
]


def test_each_way_to_end_is_an_outcome_and_stops_no_executor(app: TaskQ) -> None:
    """Results are encoded where the functions ran; a job of a batch is a batch of one."""
    policy = retry.fixed(5, delay=0)
    tasks: dict[str, Any] = {}
    for name, way in ways().items():
        options: dict[str, Any] = {"batch": 5} if name.endswith("_batch") else {}
        options |= {"timeout": 0.001} if name == "hang" else {}
        tasks[name] = app.task(name=name, retry=policy, **options)(way)
    ended = run(*(claimed(tasks[name], *args, attempt=n) for name, args, n, *_ in ENDS))
    for (name, args, _, end, body), item in zip(ENDS, ended, strict=True):
        assert (item.kind, item.cause)[: len(end)] == end, (name, args, item)
        assert (item.body or b"").startswith(body), (name, item.body)
    assert [item.delay_ns for item in ended if item.delay_ns] == [7 * 10**9, 7 * 10**9, 60 * 10**9]
    misfit = run(make_delivery(tasks["add"].spec, b'{"a":"many"}'))[0]
    assert (misfit.kind, misfit.cause) == (Kind.DEAD, Cause.REJECTED)
    assert b"InvalidCall" in (misfit.body or b"")


def test_async_jobs_run_together_but_no_more_than_the_limit(app: TaskQ) -> None:
    running = most = 0

    @app.task
    async def meet() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running -= 1

    assert len(run(*(claimed(meet, job=item) for item in range(1, 21)), concurrency=3)) == 20
    assert most == 3


def test_children_come_back_with_the_success_and_not_with_a_failure(app: TaskQ) -> None:
    @app.task
    def child(number: int) -> None: ...

    @app.task
    def parent(fails: bool) -> None:
        for number in range(3):
            current_job().enqueue(child.options(priority=9).call(number))
        if fails:
            raise ValueError

    good, bad = run(claimed(parent, False), claimed(parent, True))
    bodies = [body for (_, body, _), *_ in good.children]
    assert bodies == [child.encode((number,), {}) for number in range(3)]
    assert {spec.priority for (spec, *_), *_ in good.children} == {9}
    assert not bad.children


def test_after_its_time_a_chunk_begins_no_further_job(app: TaskQ) -> None:
    now = 0.0

    @app.task
    def slow() -> None:
        nonlocal now
        now += HOLD_SECONDS * 0.6

    @app.task
    async def late() -> None: ...

    deliveries = [claimed(slow, job=number) for number in range(1, 6)]
    report = run_chunk(chunk_of(*deliveries, claimed(late)), clock=lambda: now)
    assert [item.number for item in report.ended] == [0, 1]
    assert report.ended[0].seconds == pytest.approx(HOLD_SECONDS * 0.6)


def test_a_repeated_partition_runs_no_job(app: TaskQ, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its executor died over it: which jobs ran is not known, and attempts have to be counted."""
    ran = []

    @app.task
    def note() -> None:
        ran.append(1)

    monkeypatch.setattr(execution, "_ran_before", lambda: True)
    assert list(run_chunks([chunk_of(claimed(note))])) == [ChunkReport(lost=True)]
    assert not ran


def test_a_task_that_the_executors_copy_lacks_is_left_for_others(app: TaskQ) -> None:
    other = TaskQ("never-made")

    @other.task
    def new() -> None: ...

    (ended,) = run(claimed(new))
    assert (ended.kind, ended.delay_ns) == (Kind.RELEASED, 60_000_000_000)
    assert b"no task" in (ended.body or b"")


# -- how large chunks are --------------------------------------------------------------------------


MIB = 1 << 20


@pytest.mark.parametrize(("jobs", "size_bytes", "chunks", "alone", "lengths"), [
    (100, 10, 2, 0, [50, 50]),
    (3, 10, 4, 0, [1, 1, 1]),
    (500, 10, 2, 0, [CHUNK_JOBS_MAX] * 2),
    (12, MIB, 1, 0, [CHUNK_BYTES_MAX // MIB - 1]),
    (10, 10, 4, 3, [2, 1, 4, 3]),
])  # fmt: skip
def test_chunks_are_about_equal_bounded_and_leave_a_suspect_alone(
    jobs: int, size_bytes: int, chunks: int, alone: int, lengths: list[int]
) -> None:
    spec = TaskQ("never-made").task(name="a")(lambda: None).spec
    numbers = range(1, jobs + 1)
    waiting = deque(make_delivery(spec, bytes(size_bytes), job=number) for number in numbers)
    cuts = [
        len(cut(waiting, left, lambda job: job.job == alone))
        for left in range(chunks, 0, -1)
        if waiting
    ]
    assert cuts == lengths


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
        "target": "jobs:app", "concurrency": 4, "queues": None, "burst": False,
        "drain_timeout": 10.0, "on_event": None,
    }  # fmt: skip
    executors: Any = here
    return SparkWorker(fake, executors, WorkerOrder(**(given | changes)), "here")


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


async def test_jobs_lost_in_company_run_alone_afterwards(fake: FakeApp, here: Here) -> None:
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


@pytest.mark.parametrize(("jobs", "attempts", "attempt", "end"), [
    (1, 2, 1, (Kind.RETRIED, 0)),
    (1, 2, 2, (Kind.DEAD, Cause.EXHAUSTED)),
    (6, 1, 1, (Kind.DEAD, Cause.EXHAUSTED)),
])  # fmt: skip
async def test_a_dead_executor_costs_jobs_alone_and_jobs_that_run_once_an_attempt(
    fake: FakeApp, here: Here, jobs: int, attempts: int, attempt: int, end: tuple[Kind, Cause]
) -> None:
    @fake.task(retry=retry.fixed(2, delay=0))
    def poison() -> None: ...

    def die(_: list[int]) -> None:
        raise ExecutorLost("the executor that ran it died")

    here.before = die
    call = poison.options(attempts=attempts).call()
    for _ in range(jobs):
        fake.fake.put(call.spec, call.body, attempt=attempt)
    async with worker_of(fake, here):
        settled = await fake.fake.settlements(jobs)
    assert {(item.kind, item.cause) for item in settled} == {end}
    assert all(b"the executor that ran it died" in (item.body or b"") for item in settled)
    assert len(here.sent) < jobs or jobs == 1


@pytest.mark.parametrize("is_sent", [True, False])
async def test_what_outlasts_the_drain_is_cancelled_and_given_back(
    fake: FakeApp, here: Here, monkeypatch: pytest.MonkeyPatch, *, is_sent: bool
) -> None:
    @fake.task
    def work() -> None: ...

    async def waits(*given: Any) -> Any:
        here.arrived.set()
        await here.cancelled.wait()
        return await open_payloads(*given)

    if not is_sent:
        monkeypatch.setattr(backlog_worker, "open_payloads", waits)
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
    fake: FakeApp, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @fake.task
    def work() -> None: ...

    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken_backlog.py").write_text("import not_there_at_all\n")
    fake.put(work)
    with pytest.raises(SparkError, match=r"(?s)import broken.*'not_there_at_all'.*--py-files"):
        await worker_of(fake, here, target="broken_backlog:app").run()
    assert by_kind(fake.fake.settled) == {Kind.RELEASED: 1}


async def test_a_failed_spark_stops_the_worker_and_keeps_jobs(fake: FakeApp, here: Here) -> None:
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
        assert 0 < worker.running <= room
        assert fake.fake.ready
        worker.request_stop()
        here.hold.set()
    assert by_kind(fake.fake.settled) == {Kind.SUCCEEDED: sum(map(len, here.sent))}
    assert not here.cancelled.is_set(), "a drain lets what is out come home"
