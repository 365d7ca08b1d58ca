"""A worker that is killed -9 beside a child of its task, or by its job: the job goes on."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskq import JobHandle, TaskQ
from taskq.core.model import State
from taskq.core.views import JobView
from taskq.log.read.reader import LogReader
from tests.effort import at_most, grows
from tests.processes.harness import SCRIPTS, Child, eventually

#: A dead worker's job is taken over within this time of its death, or of the next worker's start.
TAKEOVER_SECONDS = 1.0


def start_worker(path: Path, *options: object) -> Child:
    command = [sys.executable, "-m", "taskq", "worker", "jobs:app", "-d", path, *options]
    return Child(*command, cwd=SCRIPTS)


def enqueue(path: Path, task: str, *args: Any, attempts: int = 5) -> JobHandle[Any]:
    app = TaskQ(path, durability="os")
    job = app.enqueue_sync(app.call_by_name(task, *args).options(attempts=attempts))
    app.close_sync()
    return job


def view(path: Path, job: JobHandle[Any]) -> JobView:
    result = LogReader.open(str(path)).job(job.lsn)
    assert result is not None
    return result


def attempt(worker: Child) -> tuple[int, float]:
    number, moment, _ = worker.expect("attempt").split()
    return int(number), float(moment)


@contextmanager
def killing_orphan(pid: int) -> Iterator[None]:
    try:
        yield
        assert Path(f"/proc/{pid}").exists(), "the orphan was to outlive its worker"
    finally:
        os.kill(pid, signal.SIGKILL)


@grows
@pytest.mark.parametrize(
    ("task", "successor"),
    [
        ("jobs.forks_by_multiprocessing", "other"),
        ("jobs.forks_by_itself", "other"),
        ("jobs.forks_by_multiprocessing", "restarted"),
        pytest.param("jobs.forks_by_itself", "restarted", marks=pytest.mark.slow),
    ],
)
def test_a_child_of_its_task_does_not_keep_a_killed_worker_alive(
    tmp_path: Path, task: str, successor: str
) -> None:
    job = enqueue(tmp_path, task)
    with ExitStack() as stack:
        first = stack.enter_context(start_worker(tmp_path))
        number, began = attempt(first)
        assert number == 1
        stack.enter_context(killing_orphan(int(first.expect("orphan"))))
        if successor == "other":
            second = stack.enter_context(start_worker(tmp_path))
            second.expect("  ready")
            since = time.monotonic()
            first.kill()
        else:
            first.kill()
            second = stack.enter_context(start_worker(tmp_path))
            since = second.started
        number, moment = attempt(second)
        assert number == 2
        assert moment - since < max(at_most(TAKEOVER_SECONDS), 2 * (began - first.started))
        eventually(lambda: view(tmp_path, job).state is State.SUCCEEDED)
        answer = view(tmp_path, job)
        assert (answer.attempt, answer.result) == (2, b"2")
        assert [attempt.outcome for attempt in answer.attempts] == ["lost", "succeeded"]


@pytest.mark.parametrize(
    "attempts",
    [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)],
)
def test_a_job_that_kills_its_worker_each_time_ends_as_a_dead_letter(
    tmp_path: Path, attempts: int
) -> None:
    job = enqueue(tmp_path, "jobs.kills_its_worker", attempts=attempts)
    for number in range(1, attempts + 1):
        with start_worker(tmp_path) as worker:
            assert attempt(worker)[0] == number
            assert worker.wait() == -signal.SIGKILL
    other = enqueue(tmp_path, "jobs.quick", 7)
    with start_worker(tmp_path):
        eventually(lambda: view(tmp_path, other).state is State.SUCCEEDED)
    answer = view(tmp_path, job)
    assert answer.state is State.DEAD
    assert answer.attempt == attempts
    assert answer.reason == f"WorkerLost: the worker process died while it ran attempt {attempts}"
