"""Tasks that run in child processes: what reaches them, what comes back, and how children end."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskq import State
from taskq.errors import JobFailed, UsageError
from taskq_workers import JobFinished, Worker
from taskq_workers.children.runner import ProcessRunner
from tests.processes.harness import eventually
from tests.workers import afar_jobs
from tests.workers.afar_jobs import app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from taskq import JobHandle

SECONDS = 30


@pytest.fixture(autouse=True)
async def log(tmp_path: Path) -> AsyncIterator[None]:
    app.data_dir = tmp_path / "data"
    async with app:
        yield


def pids(worker: Worker) -> list[int]:
    assert worker._places is not None
    processes = worker._places.processes
    assert isinstance(processes, ProcessRunner)
    return processes.pids


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def pid_in(path: Path) -> int:
    """The process id that a job wrote; looked for, since the job cannot tell this process."""

    def written() -> str:
        return path.read_text(encoding="ascii") if path.exists() else ""

    await asyncio.to_thread(eventually, written)
    return int(written())


async def failure(job: JobHandle[Any]) -> str:
    with pytest.raises(JobFailed) as caught:
        await job.result(SECONDS)
    return str(caught.value)


async def test_sync_and_async_functions_run_in_one_warm_child() -> None:
    async with Worker(app):
        first = await (await afar_jobs.where.enqueue("ä")).result(SECONDS)
        second = await (await afar_jobs.where_async.enqueue("b")).result(SECONDS)
    assert (first[1], second[1]) == ("ä", "b")
    assert first[0] == second[0] != os.getpid()
    assert not is_there(first[0])


async def test_no_child_is_started_before_a_job_needs_one() -> None:
    async with Worker(app) as worker:
        assert await (await afar_jobs.child.enqueue("x")).result(SECONDS) == "x"
        assert pids(worker) == []


async def test_an_async_function_may_run_in_a_thread() -> None:
    async with Worker(app):
        name = await (await afar_jobs.on_own_loop.enqueue()).result(SECONDS)
    assert name.startswith("taskq-run-")


async def test_a_child_knows_its_job_and_its_deadline() -> None:
    async with Worker(app):
        job = await afar_jobs.facts.options(headers={"a": "b"}).enqueue()
        job_id, attempt, headers, deadline = await job.result(SECONDS)
    assert (job_id, attempt, headers) == (job.id, 1, {"a": "b"})
    assert deadline is not None
    assert timedelta(minutes=59) < deadline - datetime.now(UTC) <= timedelta(hours=1)


async def test_jobs_enqueued_in_a_child_join_its_success() -> None:
    """Of an attempt that failed there is none."""
    ended: list[JobFinished] = []
    job = await afar_jobs.parent.enqueue(fails=True)
    async with Worker(app, burst=True, on_event=ended.append) as worker:
        await worker.stopped.wait()
    assert await job.result(SECONDS) == "enqueued"
    children = [end.outcome for end in ended if end.task == afar_jobs.child.name]
    assert children == ["succeeded"]


async def test_payloads_and_results_larger_than_a_pipe_pass() -> None:
    async with Worker(app, process_limit=2):
        for size in (70_000, 700_000):
            jobs = [await afar_jobs.mirror.enqueue("x" * size) for _ in range(4)]
            for job in jobs:
                assert len(await job.result(SECONDS)) == size
        # Packed ones are opened before they go to a child.
        job = await afar_jobs.mirror.options(compress="zlib").enqueue("x" * 100_000)
        assert await job.result(SECONDS) == "x" * 100_000
        job = await afar_jobs.mirror.options(spill=True).enqueue("y" * 2_000_000)
        assert await failure(job)  # its result is over the limit of those that are kept
    view = await job.view()
    assert view.attempt == 1


async def test_a_child_that_dies_costs_its_job_one_attempt_and_another_nothing(
    tmp_path: Path,
) -> None:
    """A segmentation fault, a kill, an exit."""
    go = tmp_path / "go"
    async with Worker(app):
        other = await afar_jobs.waits_for.enqueue(str(go))
        for how in ("null", "kill", "exit"):
            job = await afar_jobs.dies.enqueue(how)
            assert await job.result(SECONDS) == "the second time"
            view = await job.view()
            assert [attempt.outcome for attempt in view.attempts] == ["retried", "succeeded"], how
            assert "ChildDied: its child process" in (view.attempts[0].reason or "")
        go.touch()
        assert await other.result(SECONDS)


async def test_a_cancelled_slot_kills_its_child_before_the_job_goes_back(tmp_path: Path) -> None:
    """And burns no attempt."""
    path = tmp_path / "pid"
    job = await afar_jobs.lasts.enqueue(str(path))
    async with Worker(app, drain_timeout=0):
        pid = await pid_in(path)
    assert not is_there(pid)
    view = await job.view()
    assert (view.state, view.attempt) == (State.READY, 0)


async def test_a_timeout_kills_the_child_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    async with Worker(app):
        job = await afar_jobs.hangs.enqueue(str(path))
        answer = await failure(job)
        assert not is_there(await pid_in(path))
    assert (
        "TimeoutError: not done within its timeout of 0.3 s: its child process was kill" in answer
    )


async def test_a_soft_timeout_is_raised_in_the_task_even_while_it_sleeps() -> None:
    async with Worker(app):
        for task in (afar_jobs.cleans_up, afar_jobs.cleans_up_async):
            value = await (await task.enqueue()).result(SECONDS)
            assert value == "cleaned up: not done within its soft_timeout of 0.2 s"


async def test_a_child_is_replaced_after_its_number_of_jobs() -> None:
    async with Worker(app, process_limit=1, max_jobs_per_child=2):
        jobs = [await afar_jobs.where.enqueue("x") for _ in range(3)]
        seen = [(await job.result(SECONDS))[0] for job in jobs]
    assert seen[0] == seen[1] != seen[2]


async def test_a_child_that_grew_too_large_is_replaced() -> None:
    async with Worker(app, process_limit=1, max_rss_per_child="90MB"):
        results = [await (await afar_jobs.grows.enqueue()).result(SECONDS) for _ in range(2)]
    assert results[0] != results[1]


async def test_no_more_children_run_than_the_limit(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with Worker(app, process_limit=2) as worker:
        jobs = [await afar_jobs.waits_for.enqueue(str(go)) for _ in range(5)]
        await asyncio.to_thread(eventually, lambda: worker.running == 5)
        assert len(pids(worker)) == 2
        go.touch()
        assert len({await job.result(SECONDS) for job in jobs}) <= 2


async def test_what_a_task_raises_in_a_child_fails_its_job_and_not_the_child() -> None:
    async with Worker(app, process_limit=1) as worker:
        assert "LookupError: in a process" in await failure(await afar_jobs.raises.enqueue())
        before = pids(worker)
        assert "SystemExit: 4" in await failure(await afar_jobs.exits.enqueue())
        await (await afar_jobs.where.enqueue("x")).result(SECONDS)
        assert pids(worker) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"process_limit": 0}, "process_limit is 0"),
        ({"max_jobs_per_child": 0}, "max_jobs_per_child is 0"),
        ({"max_rss_per_child": "lots"}, "max_rss_per_child is 'lots'"),
        ({"max_rss_per_child": 5}, "max_rss_per_child is 5, which is 5 bytes: a child process"),
    ],
)
async def test_limits_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Worker(app, **options)
