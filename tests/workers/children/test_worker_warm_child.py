"""Tasks that run in child processes: what reaches them, and what comes back.

One worker has them all, as a program would: to start a child takes longer than to run its jobs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from taskq_workers import JobFinished, Worker
from tests.workers import afar_jobs
from tests.workers.afar_jobs import app
from tests.workers.children.test_worker_processes import SECONDS, failure, is_there, pid_in, pids

ENDED: list[JobFinished] = []


@pytest.fixture(scope="module")
async def worker(
    tmp_path_factory: pytest.TempPathFactory, stays_open: Callable[[], None]
) -> AsyncIterator[Worker]:
    app.data_dir = tmp_path_factory.mktemp("warm") / "data"
    async with app:
        async with Worker(app, process_limit=2, on_event=ENDED.append) as worker:
            stays_open()
            yield worker
            # The last test may have killed its child, and the next one comes with a job.
            await (await afar_jobs.where.enqueue("last")).result(SECONDS)
            children = pids(worker)
        assert children
        assert not any(map(is_there, children))


@pytest.fixture(autouse=True)
def at_work(worker: Worker) -> None:
    """Have the worker there for each test."""
    del worker
    ENDED.clear()


async def test_sync_and_async_functions_run_in_one_warm_child() -> None:
    first = await (await afar_jobs.where.enqueue("ä")).result(SECONDS)
    second = await (await afar_jobs.where_async.enqueue("b")).result(SECONDS)
    assert (first[1], second[1]) == ("ä", "b")
    assert first[0] == second[0] != os.getpid()


async def test_a_child_knows_its_job_and_its_deadline() -> None:
    job = await afar_jobs.facts.options(headers={"a": "b"}).enqueue()
    job_id, attempt, headers, deadline = await job.result(SECONDS)
    assert (job_id, attempt, headers) == (job.id, 1, {"a": "b"})
    assert deadline is not None
    assert timedelta(minutes=59) < deadline - datetime.now(UTC) <= timedelta(hours=1)


async def test_jobs_enqueued_in_a_child_join_its_success() -> None:
    job = await afar_jobs.parent.enqueue(fails=True)
    assert await job.result(SECONDS) == "enqueued"
    records = [item async for item in app.stream(kinds=["enqueued"], follow=False)]
    (child,) = (item.job_id for item in records if item.task == afar_jobs.child.name)
    assert await app.job(child).result(SECONDS) == "of a process"
    ended = [end.outcome for end in ENDED if end.task == afar_jobs.child.name]
    assert ended == ["succeeded"]


async def test_payloads_and_results_larger_than_a_pipe_pass() -> None:
    for size in (70_000, 700_000):
        jobs = [await afar_jobs.mirror.enqueue("x" * size) for _ in range(4)]
        for job in jobs:
            assert len(await job.result(SECONDS)) == size
    # Packed ones are opened before they go to a child.
    job = await afar_jobs.mirror.options(compress="zlib").enqueue("x" * 100_000)
    assert await job.result(SECONDS) == "x" * 100_000
    job = await afar_jobs.mirror.enqueue("y" * 16_000_000)
    assert len(await job.result(SECONDS)) == 16_000_000


async def test_a_child_that_dies_costs_its_job_one_attempt_and_another_nothing(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    other = await afar_jobs.waits_for.enqueue(str(go))
    for how in ("null", "kill", "exit"):
        job = await afar_jobs.dies.enqueue(how)
        assert await job.result(SECONDS) == "the second time"
        view = await job.view()
        assert [attempt.outcome for attempt in view.attempts] == ["retried", "succeeded"], how
        assert "ChildDied: its child process" in (view.attempts[0].reason or "")
    go.touch()
    assert await other.result(SECONDS)


async def test_a_timeout_kills_the_child_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    job = await afar_jobs.hangs.enqueue(str(path))
    answer = await failure(job)
    assert not is_there(await pid_in(path))
    assert (
        "TimeoutError: not done within its timeout of 0.3 s: its child process was kill" in answer
    )


async def test_a_soft_timeout_is_raised_in_the_task_even_while_it_sleeps() -> None:
    for task in (afar_jobs.cleans_up, afar_jobs.cleans_up_async):
        value = await (await task.enqueue()).result(SECONDS)
        assert value == "cleaned up: not done within its soft_timeout of 0.2 s"


async def test_what_a_task_raises_in_a_child_fails_its_job_and_not_the_child(
    worker: Worker,
) -> None:
    assert "LookupError: in a process" in await failure(await afar_jobs.raises.enqueue())
    before = pids(worker)
    assert "SystemExit: 4" in await failure(await afar_jobs.exits.enqueue())
    await (await afar_jobs.where.enqueue("x")).result(SECONDS)
    assert pids(worker) == before
