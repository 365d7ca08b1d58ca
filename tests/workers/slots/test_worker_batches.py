"""Batches: many jobs, one call of the function, and each job ends for itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from taskq import Inject, JobContext, State, TaskQ, current_job, injected
from taskq.core.errors import InvalidCall, JobFailed, UsageError
from taskq_workers.pool import Worker
from taskq_workers.slots.slots import Slots
from tests.programs import run_python
from tests.workers import batch_jobs

pytestmark = pytest.mark.usefixtures("own_settings")


def doubled(runs_in: str, app: TaskQ, calls: list[int]) -> Any:
    """Return a task of batches that runs there; ``calls`` gets the size of each call."""
    if runs_in == "loop":

        @app.task(batch=50, within="10s")
        async def double(items: list[int]) -> list[int]:
            calls.append(len(items))
            return [2 * item for item in items]

        return double

    @app.task(batch=50, within="10s")
    def double_in_thread(items: list[int]) -> list[int]:
        calls.append(len(items))
        return [2 * item for item in items]

    return double_in_thread


@pytest.mark.parametrize("concurrency", [1, 3, 64])
@pytest.mark.parametrize("runs_in", ["loop", "thread"])
async def test_jobs_share_calls_and_each_has_its_own_result(
    app: TaskQ, runs_in: str, concurrency: int
) -> None:
    calls: list[int] = []
    double = doubled(runs_in, app, calls)
    jobs = await double.enqueue_many([(n,) for n in range(100)])
    async with app.worker(concurrency=concurrency):
        assert [await job.result(timeout=20) for job in jobs] == [2 * n for n in range(100)]
    assert calls == [50, 50]


async def test_a_batch_that_does_not_fill_runs_when_its_time_is_over(app: TaskQ) -> None:
    @app.task(batch=100, within="50ms")
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

    @app.task(batch=4, within="10s", retry=2)
    async def fail(items: list[int]) -> None:
        sizes.append(len(items))
        raise ValueError("no")

    jobs = await fail.enqueue_many([(n,) for n in range(3)])
    jobs.append(await app.enqueue(fail.call(3).options(attempts=1)))
    async with app.worker():
        with pytest.raises(JobFailed, match="no"):
            await jobs[3].result(timeout=20)
        with anyio.fail_after(20):
            while await jobs[0].status() is not State.SCHEDULED:
                await anyio.lowlevel.checkpoint()
    assert sizes == [4]
    states = [await job.status() for job in jobs]
    assert states == [*[State.SCHEDULED] * 3, State.DEAD]
    attempts = await app.attempts(jobs[0].id)
    assert "ValueError: no" in attempts[0].reason


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
        with anyio.fail_after(20):
            while await jobs[1].status() is not State.RUNNING:
                await anyio.lowlevel.checkpoint()
            await jobs[0].cancel()
            while await jobs[0].status() is not State.CANCELLED:
                await anyio.lowlevel.checkpoint()
        more = await take.enqueue_many([(3,), (4,)])
        for job in (jobs[1], *more):
            await job.result(timeout=20)
    assert seen == [[2, 3, 4]]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_free_place_is_handed_to_the_batch_that_waits(cancelled: bool) -> None:
    slots = Slots.__new__(Slots)
    slots.__dict__.update(
        loop=asyncio.get_running_loop(), concurrency=1, feed=SimpleNamespace(resize=lambda _: None),
        _slots={"runs", "parked", "parked, too"}, _parked=2, _entering=deque(), _resting={},
    )  # fmt: skip
    first, second = (asyncio.create_task(slots.take_place()) for _ in range(2))
    await anyio.lowlevel.checkpoint()
    slots.resize(2 if cancelled else 3)
    assert not slots._has_place(), "no slot may take it meanwhile"
    if cancelled:
        first.cancel()
    with anyio.fail_after(20):
        await second
    await asyncio.wait([first])
    assert first.cancelled() is cancelled
    assert not slots._has_place()


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
    async with app.worker(drain_timeout=0):
        with anyio.fail_after(20):
            await begun.wait()
            if way == "cancel":
                await job.cancel()
                while await job.status() is not State.CANCELLED:
                    await anyio.lowlevel.checkpoint()
                ended.append("job")
    assert ended[0] == "call"
    assert await job.status() is (State.CANCELLED if way == "cancel" else State.READY)


async def test_a_stop_gives_a_gathering_batch_back(app: TaskQ) -> None:
    @app.task(batch=3, within="1h")
    async def take(items: list[int]) -> None: ...

    jobs = await take.enqueue_many([(1,), (2,)])
    async with app.worker(drain_timeout=0):
        with anyio.fail_after(20):
            while await jobs[1].status() is not State.RUNNING:
                await anyio.lowlevel.checkpoint()
    assert [await job.status() for job in jobs] == [State.READY] * 2


async def test_a_drain_runs_what_has_gathered(app: TaskQ) -> None:
    begun: list[str] = []

    @app.middleware
    async def note(job: JobContext) -> AsyncIterator[None]:
        begun.append(job.id)
        yield

    @app.task(batch=3, within="1h")
    async def take(items: list[int]) -> list[int]:
        return items

    jobs = await take.enqueue_many([(1,), (2,)])
    async with app.worker(drain_timeout=3):
        with anyio.fail_after(20):
            while len(begun) < 2:
                await anyio.lowlevel.checkpoint()
    assert [await job.status() for job in jobs] == [State.SUCCEEDED] * 2


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
    app = batch_jobs.app.over(tmp_path / "data")
    square = batch_jobs.square
    async with app, Worker(batch_jobs.app, logs=[tmp_path / "data"], concurrency=2):
        jobs = [await app.enqueue(square.call(n)) for n in range(6)]
        results = [await job.result(timeout=30) for job in jobs]
        assert [value for value, _, _ in results] == [n * n for n in range(6)]
        assert {size for _, size, _ in results} == {3}
        assert os.getpid() not in {pid for _, _, pid in results}
        for job in [await app.enqueue(square.options(attempts=1).call(n)) for n in (-1, -1, 5)]:
            with pytest.raises(JobFailed, match="negative"):
                await job.result(timeout=30)


async def test_bad_arguments_fail_their_own_job_in_a_child_process(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data")
    square = batch_jobs.square
    async with app, Worker(batch_jobs.app, logs=[tmp_path / "data"], concurrency=2):
        bad = await app.enqueue_by_name(square.name, "no number")
        jobs = [await app.enqueue(square.options(attempts=1).call(n)) for n in range(3)]
        assert [(await job.result(timeout=30))[0] for job in jobs] == [0, 1, 4]
        with pytest.raises(JobFailed, match="items"):
            await bad.result(timeout=30)


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


def test_wrong_declarations_name_the_remedy(app: TaskQ) -> None:
    def one(item: int) -> None: ...
    def two(items: list[int], more: int) -> None: ...
    def none() -> None: ...
    def good(items: list[int]) -> None: ...
    def single(items: list[int]) -> int:
        return 1

    wrong: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
        (one, {"batch": 5}, "must be a list"),
        (single, {"batch": 5}, "must be a list"),
        (two, {"batch": 5}, "takes one list"),
        (none, {"batch": 5}, "takes one list"),
        (good, {"batch": 0}, "it must be 1 to"),
        (good, {"within": "1s"}, "within= needs it"),
        (good, {"batch": 5, "concurrency": 2}, "counts jobs"),
        (good, {"batch": 5, "keep_log": "1KB"}, "does not go with batch"),
    ]
    for function, choices, match in wrong:
        with pytest.raises(UsageError, match=match):
            app.task(**choices)(function)


async def test_a_job_s_argument_is_checked_as_an_item_of_the_list(app: TaskQ) -> None:
    @app.task(batch=5)
    async def take(items: list[int]) -> list[int] | None:
        return None

    with pytest.raises(InvalidCall, match="items"):
        await take.enqueue("x")  # type: ignore[arg-type]
    assert await take([1, 2]) is None, "a plain call runs the function"
