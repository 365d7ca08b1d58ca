"""Child processes in which tasks run: how many there are, and how they end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from taskq import JobHandle, State
from taskq.errors import JobFailed, UsageError
from taskq_workers import Worker
from taskq_workers.children.runner import ProcessRunner
from tests.processes.harness import eventually
from tests.workers import afar_jobs
from tests.workers.afar_jobs import app

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
    def written() -> str:
        return path.read_text(encoding="ascii") if path.exists() else ""

    await asyncio.to_thread(eventually, written)
    return int(written())


async def failure(job: JobHandle[Any]) -> str:
    with pytest.raises(JobFailed) as caught:
        await job.result(SECONDS)
    return str(caught.value)


async def test_no_child_is_started_before_a_job_needs_one() -> None:
    async with Worker(app) as worker:
        assert await (await afar_jobs.child.enqueue("x")).result(SECONDS) == "x"
        assert pids(worker) == []


async def test_an_async_function_may_run_in_a_thread() -> None:
    async with Worker(app):
        name = await (await afar_jobs.on_own_loop.enqueue()).result(SECONDS)
    assert name.startswith("taskq-run-")


async def test_a_cancelled_slot_kills_its_child_before_the_job_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    job = await afar_jobs.lasts.enqueue(str(path))
    async with Worker(app, drain_timeout=0):
        pid = await pid_in(path)
    assert not is_there(pid)
    view = await job.view()
    assert (view.state, view.attempt) == (State.READY, 0)


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
