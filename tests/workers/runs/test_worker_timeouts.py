"""Jobs that end early: by a timeout, soft or hard, or by a cancellation."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from anyio.lowlevel import checkpoint
from pydantic import BaseModel, field_validator

from taskq import JobContext, Snooze, SoftTimeout, State, TaskQ, current_job, durable
from taskq.conditions import condition
from taskq.core.records import Cause, Kind
from taskq.errors import JobCancelled
from taskq.log.requests import ClaimRequest, Settlement
from taskq_workers import Worker
from taskq_workers.children import runner, wire
from taskq_workers.events import JobFinished
from taskq_workers.runs import executors, timeouts
from taskq_workers.slots import middleware
from taskq_workers.slots.shipping import RemoteOutcome
from tests.programs import run_python, run_taskq
from tests.workers.conftest import Listen
from tests.workers.fakes import FakeApp, Held

SECONDS = 30
FAST = 0.02
#: in a child, without a value
ENDED = RemoteOutcome(0, Kind.SUCCEEDED, None, 0, int(Cause.CALLER), (), 0.0)


async def settle_one(fake: FakeApp, task: Any) -> Settlement:
    fake.put(task)
    async with Worker(fake):
        return (await fake.fake.settlements(1))[0]


def reason(settled: Settlement) -> str:
    return (settled.body or b"").decode()


async def test_what_a_task_group_started_ends_with_its_soft_timeout(fake: FakeApp) -> None:
    ended: list[str] = []

    async def part() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("part")

    @fake.task(soft_timeout=FAST)
    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(part())
            tasks.create_task(part())

    settled = await settle_one(fake, group)
    assert settled.kind is Kind.RETRIED
    assert "SoftTimeout" in reason(settled)
    assert ended == ["part", "part"]


async def test_the_hard_timeout_ends_a_task_that_ignores_the_soft_one(fake: FakeApp) -> None:
    raised = 0

    @fake.task(soft_timeout=FAST, timeout=25 * FAST)
    async def stubborn() -> None:
        nonlocal raised
        while True:
            try:
                await asyncio.Event().wait()
            except SoftTimeout:
                raised += 1

    settled = await settle_one(fake, stubborn)
    assert reason(settled).startswith("TimeoutError: not done within its timeout of 0.5 s")
    assert raised == 1


async def test_a_task_that_its_worker_cancels_sees_no_soft_timeout(fake: FakeApp) -> None:
    seen: list[type[BaseException]] = []
    begun = asyncio.Event()

    @fake.task(soft_timeout="1h")
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            seen.append(type(error))
            raise

    fake.put(wait)
    async with Worker(fake, drain_timeout=0):
        await begun.wait()
    assert seen == [asyncio.CancelledError]
    assert fake.fake.settled[0].kind is Kind.RELEASED


async def test_a_thread_that_outlasts_its_timeout_is_given_up_and_sync_jobs_wait_for_it(
    fake: FakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """Its slot takes the next job; the thread counts against the limit until it returns."""
    go_on, began = threading.Event(), threading.Event()

    @fake.task(timeout=FAST)
    def hang() -> None:
        assert go_on.wait(SECONDS)

    @fake.task(timeout="1m")
    def after() -> None:
        began.set()

    fake.put(hang)
    async with Worker(fake, concurrency=1, thread_limit=1) as worker:
        settled = (await fake.fake.settlements(1))[0]
        assert "goes on in its thread, which nothing can stop" in reason(settled)
        assert worker.lingering == 1
        fake.put(after)
        await fake.fake.until(lambda: not fake.fake.ready)
        assert "its thread cannot be stopped and goes on until it returns (1 of 1" in caplog.text
        assert "all 1 threads are held by jobs that were given up" in caplog.text
        assert not began.is_set()
        go_on.set()
        assert (await fake.fake.settlements(2))[1].kind is Kind.SUCCEEDED


async def test_time_in_line_for_a_thread_is_not_counted(fake: FakeApp) -> None:
    busy, go_on = threading.Event(), threading.Event()

    @fake.task
    def hold() -> None:
        busy.set()
        assert go_on.wait(SECONDS)

    @fake.task(timeout=20 * FAST)
    def quick() -> str:
        return "ran"

    fake.put(hold)
    fake.put(quick)
    async with Worker(fake, thread_limit=1):
        await asyncio.to_thread(busy.wait, SECONDS)
        await asyncio.sleep(25 * FAST)
        assert fake.fake.settled == []
        go_on.set()
        settled = await fake.fake.settlements(2)
    assert {settlement.kind for settlement in settled} == {Kind.SUCCEEDED}


@pytest.mark.parametrize(
    "way", ["timeout", "soft", "thread", "middleware", "step", "child", "probe"]
)
async def test_an_answer_that_came_while_the_loop_stood_still_is_in_time(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    loop = asyncio.get_running_loop()
    began, answer, answered = asyncio.Event(), loop.create_future(), threading.Event()

    def afar(*_: object) -> asyncio.Future[wire.JobDone]:
        began.set()
        return answer

    async def wait() -> bool:
        return await afar() is not None

    def block() -> None:
        loop.call_soon_threadsafe(began.set)
        assert answered.wait(SECONDS)

    async def step() -> None:
        await durable.step("ask", wait, timeout=5)

    monkeypatch.setattr(runner.Child, "run", afar)

    def kill(_: object, error: Exception | None = None) -> None:
        if not answer.done():  # the worker's end kills it, too
            answer.set_exception(error or RuntimeError())

    monkeypatch.setattr(runner.Child, "kill", kill)
    probe = condition(wait, every="1h", timeout=5)
    app.task(name="timeout", timeout=5)(wait)
    app.task(name="soft", soft_timeout=5)(wait)
    app.task(name="thread", timeout=5)(block)
    app.task(name="step")(step)
    app.task(name="middleware", timeout=5)(several_turns)
    app.task(name="probe", requires=[probe])(nothing)
    app.task(name="child", timeout=5, runs_in="process")(nothing)
    if way == "middleware":
        app.middleware(around(wait))
        app.middleware(around(several_turns))  # it and the function begin after the stall
    async with app, Worker(app):
        job = await app.tasks[way].options(attempts=1).enqueue()
        await asyncio.wait_for(began.wait(), SECONDS)
        late = monotonic() - loop.time() + SECONDS
        for clock, name in ((loop, "time"), (executors, "monotonic"), (middleware, "monotonic")):
            monkeypatch.setattr(clock, name, lambda: monotonic() + late)
        loop.call_soon(loop.call_soon, answer.set_result, wire.JobDone(ENDED, 0))
        answered.set()
        await job.result(SECONDS)


def nothing() -> None: ...


def around(first: Callable[[], Awaitable[object]]) -> Callable[..., AsyncIterator[None]]:
    async def surrounded(_: JobContext) -> AsyncIterator[None]:
        await first()
        yield

    surrounded.__qualname__ += repr(first)
    return surrounded


async def several_turns() -> None:
    for _ in range(9):
        await checkpoint()


def test_a_soft_timeout_that_was_asked_for_as_the_call_ended_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(executors, "_raise_in_thread", lambda _, error: asked.append(error))
    monkeypatch.setattr(ctypes, "py_object", lambda error: error)
    watched = executors._Watched(len, timeouts.TimeLimits(5.0, 1.0))
    watched._function = watched._on_soft
    watched()
    assert asked == [SoftTimeout, executors._TakenBack]
    answer: Any = Future()
    answer.set_result(7)
    watched._on_hard(answer)  # its timer rang in the turn of the answer
    assert (answer.result(), watched.gave_up) == (7, False)


TRACED = """
import asyncio, sys, time
from taskq import SoftTimeout, TaskQ
from taskq_workers import Worker

app = TaskQ("data")

@app.task(name="busy", soft_timeout=0.05, store_result=True)
def busy():
    try:
        while True:
            time.sleep(0.001)
    except SoftTimeout:
        return "asked"

@app.task(name="batch", batch=2, within=60, soft_timeout=0.05, store_result=True)
def batch(numbers: list[int]) -> list[str]:
    return [busy.fn() for _ in numbers[:1]] * len(numbers)

async def main():
    async with Worker(app):
        for job in [await busy.enqueue(), *await batch.enqueue_many([(1,), (2,)])]:
            print(await job.result())

asyncio.run(main())
sys.settrace(lambda *_: None)
(lambda: None)()
print("ended")
"""


def test_calls_under_a_debugger_end_after_a_soft_timeout_of_a_thread(tmp_path: Path) -> None:
    run = run_python("-c", TRACED, cwd=tmp_path, timeout=SECONDS)
    assert run.stdout.split() == ["asked"] * 3 + ["ended"], run.stderr


@pytest.fixture
def said(on_log: Listen) -> threading.Event:
    """Lets a blocked task go on once the log reports it."""
    event = threading.Event()
    on_log(lambda text: event.set() if "stands still" in text else None)
    return event


async def test_what_blocks_the_loop_is_named_with_its_line(
    fake: FakeApp, caplog: pytest.LogCaptureFixture, said: threading.Event
) -> None:
    """While the loop stands still, and again with the whole time when it goes on.

    A value that taskq checks is no fault of the task's function.
    """

    class Slow(BaseModel):
        a: int

        @field_validator("a")
        @classmethod
        def wait(cls, value: int) -> int:
            assert said.wait(SECONDS)
            return value

    async def build() -> Any:
        return Slow.model_construct(a=1)

    @fake.task(name="mail.send")
    async def block() -> bool:
        return said.wait(SECONDS)  # the line

    build.__annotations__["return"] = Slow
    tasks: list[Any] = [block, fake.task(name="mail.build")(build)]
    remarks = []
    async with Worker(fake):
        for task in tasks:
            said.clear()
            caplog.clear()
            delivery = fake.put(task)
            await fake.fake.until(lambda: delivery in [end.delivery for end in fake.fake.settled])  # noqa: B023
            await asyncio.to_thread(wait_for_two_records, caplog)
            remarks.append([record.getMessage() for record in caplog.records[:2]])
    assert [end.body for end in fake.fake.settled] == [b"true", b'{"a":1}']
    (first, second), checks = remarks
    job, other = (f"{end.delivery.job_id} ({end.delivery.task})" for end in fake.fake.settled)
    assert f"job {job} is at" in first
    assert "return said.wait(SECONDS)  # the line, within Condition.wait" in first
    assert "the event loop stood still for" in second
    for text in checks:
        assert f"taskq checks a value of job {other}, and is at" in text
        assert "said.wait(SECONDS)" in text
        assert "plain def" not in text


def wait_for_two_records(caplog: pytest.LogCaptureFixture) -> None:
    pause, until = threading.Event(), monotonic() + SECONDS
    while len(caplog.records) < 2 and monotonic() < until:
        pause.wait(0.005)
    assert len(caplog.records) >= 2


@pytest.mark.parametrize("stubborn", [None, ValueError("no"), Snooze(60)])
async def test_an_async_task_is_cancelled_whatever_it_raises_as_it_cleans_up(
    app: TaskQ, stubborn: Exception | None
) -> None:
    began, cleaned, ends = asyncio.Event(), asyncio.Event(), list[JobFinished]()

    @app.task
    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()
            if stubborn is not None:
                raise stubborn

    async with app.worker(on_event=ends.append):
        job = await wait.enqueue()
        await began.wait()
        assert await job.cancel() is True
        with pytest.raises(JobCancelled, match="was cancelled"):
            await job.result(timeout=30)
        assert cleaned.is_set()
        assert await job.status() is State.CANCELLED
        assert await job.cancel() is False
    assert [end.outcome for end in ends] == ["cancelled"]


async def test_a_job_that_is_cancelled_in_another_process_is_stopped(app: TaskQ) -> None:
    held = Held(app)
    async with app.worker():
        job = await held.task.enqueue()
        await held.runs.wait()
        done = await asyncio.to_thread(run_taskq, "cancel", job.id, "-d", app.data_dir)
        assert done.stdout == "cancelled 1 job\n"
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)


@pytest.mark.parametrize("way", ["cancel", "drain"])
async def test_a_success_stands_that_comes_in_spite_of_it(app: TaskQ, way: str) -> None:
    began = asyncio.Event()

    @app.task
    async def wait() -> int:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 42
        return 0

    async with app:
        async with app.worker(concurrency=1, drain_timeout=0):
            job = await wait.enqueue()
            await began.wait()
            if way == "cancel":
                assert await job.cancel()
                assert await job.result(timeout=30) == 42
                began.clear()
                again = await wait.enqueue()
                await began.wait()  # the slot's next job is not cancelled with it
                assert await again.status() is State.RUNNING
                await again.cancel()
        assert await job.result(timeout=30) == 42


async def test_a_thread_frees_its_slot_and_learns_of_it(app: TaskQ) -> None:
    began, saw, go_on = threading.Event(), threading.Event(), threading.Event()

    @app.task
    def work() -> None:
        assert not current_job().cancel_asked
        began.set()
        assert go_on.wait(10)
        if current_job().cancel_asked:
            saw.set()

    @app.task
    async def other() -> int:
        return 1

    async with app.worker(concurrency=1) as worker:
        job = await work.enqueue()
        await asyncio.to_thread(began.wait, 10)
        assert await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)
        assert await (await other.enqueue()).result(timeout=30) == 1
        assert worker.running == 0
        go_on.set()
        assert await asyncio.to_thread(saw.wait, 10)


async def test_a_job_that_waits_in_the_buffer_is_not_begun(app: TaskQ) -> None:
    held, ran = Held(app), list[int]()

    @app.task
    async def count(number: int) -> None:
        ran.append(number)

    async with Worker(app, concurrency=1) as worker:
        await held.task.enqueue()
        await held.runs.wait()
        job = await count.enqueue(1)
        crew = worker._runner
        assert crew is not None
        crew.feed.buffer.extend(await app.store().port().claim(ClaimRequest(1)))
        assert await job.status() is State.RUNNING
        assert await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)
        held.end.set()
    assert ran == []
