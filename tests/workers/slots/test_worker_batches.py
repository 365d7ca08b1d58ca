"""Batches: many jobs, one call of the function, and each job ends for itself."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskq import Inject, JobContext, JobHandle, State, TaskQ, current_job, injected, retry
from taskq.core.errors import InvalidCall, JobFailed, UsageError
from taskq_workers.pool import Worker
from tests.effort import within
from tests.programs import run_python
from tests.workers import afar_jobs

pytestmark = pytest.mark.usefixtures("own_settings")


async def until(job: JobHandle[Any], state: State) -> None:
    async with within():
        while await job.status() is not state:
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("concurrency", [1, 3, 64])
@pytest.mark.parametrize("runs_in", ["loop", "thread"])
async def test_jobs_share_calls_and_each_has_its_own_result(
    app: TaskQ, runs_in: str, concurrency: int
) -> None:
    calls: list[int] = []

    def double(items: list[int]) -> list[int]:
        calls.append(len(items))
        return [2 * item for item in items]

    async def double_on_loop(items: list[int]) -> list[int]:
        return double(items)

    function: Any = double if runs_in == "thread" else double_on_loop
    jobs = await app.task(batch=50, within="10s")(function).enqueue_many([(n,) for n in range(100)])
    async with app.worker(concurrency=concurrency):
        assert [await job.result(timeout=20) for job in jobs] == [2 * n for n in range(100)]
    assert calls == [50, 50]


async def test_a_batch_that_does_not_fill_runs_when_its_time_is_over(app: TaskQ) -> None:
    @app.task(batch=100, within="50ms", retry=1)
    async def note(items: list[str]) -> None:
        assert items == ["a", "b", "c"]

    jobs = [await note.enqueue(text) for text in "abc"]
    async with app.worker():
        for job in jobs:
            await job.result(timeout=20)


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_no_more_run_at_a_time_than_the_worker_has_slots(
    app: TaskQ, concurrency: int
) -> None:
    running = most = 0

    async def count() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        await anyio.sleep(0.01)
        running -= 1

    @app.task(batch=10, within="20ms")
    async def many(items: list[int]) -> None:
        await count()

    @app.task
    async def one(n: int) -> None:
        await count()

    jobs: list[Any] = await many.enqueue_many([(n,) for n in range(55)])
    jobs += await one.enqueue_many([(n,) for n in range(25)])
    async with app.worker(concurrency=concurrency):
        for job in jobs:
            await job.result(timeout=20)
    assert most <= concurrency


async def test_an_exception_fails_all_and_each_is_retried_by_its_own_count(app: TaskQ) -> None:
    sizes: list[int] = []

    @app.task(batch=4, within="10s", retry=retry.fixed(2, delay="1h"))
    async def fail(items: list[int]) -> None:
        sizes.append(len(items))
        raise ValueError("no")

    jobs = await fail.enqueue_many([(n,) for n in range(3)])
    jobs.append(await app.enqueue(fail.call(3).options(attempts=1)))
    async with app.worker():
        for job, state in zip(jobs, [*[State.SCHEDULED] * 3, State.DEAD], strict=True):
            await until(job, state)
    assert sizes == [4]
    assert "ValueError: no" in (await app.attempts(jobs[0].id))[0].reason


@pytest.mark.parametrize("result", [[1], 7, "ab", {"a": 1, "b": 2}])
async def test_another_number_of_results_than_jobs_is_no_matter_of_retries(
    app: TaskQ, result: Any
) -> None:
    @app.task(batch=2, within="10s", store_result=False)
    async def wrong(items: list[int]) -> list[int]:
        answer: list[int] = result
        return answer

    jobs = await wrong.enqueue_many([(1,), (2,)])
    async with app.worker():
        for job in jobs:
            with pytest.raises(JobFailed, match="got 2 jobs and returned a"):
                await job.result(timeout=20)


async def test_a_cancelled_job_leaves_its_batch_and_the_others_go_on(app: TaskQ) -> None:
    seen: list[list[int]] = []

    @app.task(batch=3, within="10s")
    async def take(items: list[int]) -> None:
        seen.append(items)

    jobs = await take.enqueue_many([(1,), (2,)])
    async with app.worker():
        await until(jobs[1], State.RUNNING)
        await jobs[0].cancel()
        await until(jobs[0], State.CANCELLED)
        more = await take.enqueue_many([(3,), (4,)])
        for job in (jobs[1], *more):
            await job.result(timeout=20)
    assert seen == [[2, 3, 4]]


@pytest.mark.parametrize("way", ["cancel", "stop"])
async def test_a_call_that_is_cancelled_keeps_its_slot_until_it_ends(app: TaskQ, way: str) -> None:
    begun, ended = anyio.Event(), list[str]()

    @app.task(batch=1)
    async def take(items: list[int]) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.2)
            ended.append("call")

    job = await take.enqueue(1)
    async with within(), app.worker(drain_timeout=0):
        await begun.wait()
        if way == "cancel":
            await job.cancel()
            await until(job, State.CANCELLED)
            ended.append("job")
    assert ended[0] == "call"
    assert await job.status() is (State.CANCELLED if way == "cancel" else State.READY)


@pytest.mark.parametrize(("seconds", "state"), [(0, State.READY), (3, State.SUCCEEDED)])
async def test_a_stop_gives_a_gathering_batch_back_and_a_drain_runs_it(
    app: TaskQ, seconds: int, state: State
) -> None:
    begun: list[str] = []

    @app.middleware
    async def note(job: JobContext) -> AsyncIterator[None]:
        begun.append(job.id)
        yield

    @app.task(batch=3, within="1h")
    async def take(items: list[int]) -> list[int]:
        return items

    jobs = await take.enqueue_many([(1,), (2,)])
    async with within(), app.worker(drain_timeout=seconds):
        while len(begun) < 2:
            await anyio.lowlevel.checkpoint()
    assert [await job.status() for job in jobs] == [state] * 2


async def test_middleware_stands_around_each_job_and_the_call_is_of_none(app: TaskQ) -> None:
    around: list[str] = []

    @app.lifespan
    async def open_it(_: TaskQ) -> AsyncIterator[float]:
        yield 0.5

    @app.middleware
    async def note(job: JobContext) -> AsyncIterator[None]:
        around.append(job.id)
        yield

    @app.task(batch=2, within="10s")
    async def take(items: list[int], *, half: Inject[float] = injected()) -> list[float]:
        with pytest.raises(UsageError, match="no job runs here"):
            current_job()
        return [item * half for item in items]

    jobs = await take.enqueue_many([(1,), (2,)])
    async with app.worker():
        assert [await job.result(timeout=20) for job in jobs] == [0.5, 1.0]
    assert sorted(around) == sorted(job.id for job in jobs)


async def test_a_batch_in_a_child_process_is_one_call_there(tmp_path: Path) -> None:
    app = afar_jobs.app.over(tmp_path / "data")
    plain = TaskQ(tmp_path / "data", durability="os")
    square = afar_jobs.square
    async with app, plain, Worker(afar_jobs.app, logs=[tmp_path / "data"], concurrency=2):
        jobs = [await app.enqueue(square.call(n)) for n in range(6)]
        results = [await job.result(timeout=30) for job in jobs]
        assert [value for value, _, _ in results] == [n * n for n in range(6)]
        assert {size for _, size, _ in results} == {3}
        assert os.getpid() not in {pid for _, _, pid in results}
        # Arguments that do not fit fail their own job, an error all of the call.
        bad = await plain.enqueue_by_name(square.name, "no number")
        jobs = [await app.enqueue(square.options(attempts=1).call(n)) for n in range(3)]
        assert [(await job.result(timeout=30))[0] for job in jobs] == [0, 1, 4]
        failing = [await app.enqueue(square.options(attempts=1).call(n)) for n in (-1, -1, 5)]
        for job, words in ((bad, "items"), *((job, "negative") for job in failing)):
            with pytest.raises(JobFailed, match=words):
                await job.result(timeout=30)


def test_a_kill_in_the_midst_runs_all_of_a_batch_again(tmp_path: Path) -> None:
    """Its jobs are claimed and settled like others: nothing of a batch is over before its call."""
    killed = run_python("-c", KILLED, cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = run_python("-c", KILLED, "again", cwd=tmp_path)
    assert again.stdout == "[1, 2, 3]\n", again.stderr


KILLED = """
import os, signal, sys
from taskq import TaskQ

app = TaskQ("data")

@app.task(name="take", batch=3, within="10s")
async def take(items: list[int]) -> None:
    if sys.argv[1:] != ["again"]:
        os.kill(os.getpid(), signal.SIGKILL)
    print(sorted(items))

if sys.argv[1:] != ["again"]:
    take.enqueue_many_sync([(1,), (2,), (3,)])
app.run_worker(burst=True)
"""


async def test_a_job_s_argument_is_checked_as_an_item_of_the_list(app: TaskQ) -> None:
    @app.task(batch=5)
    async def take(items: list[int]) -> list[int] | None:
        return None

    with pytest.raises(InvalidCall, match="items"):
        await take.enqueue("x")  # type: ignore[arg-type]
    assert await take([1, 2]) is None, "a plain call runs the function"
