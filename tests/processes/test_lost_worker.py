"""A worker that is killed -9 in the middle of a job: another, or the next one, runs it again."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from taskq import TaskQ
from taskq.core.model import State
from taskq.log.read.reader import LogReader
from tests.processes.harness import SCRIPTS, Child, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq import JobHandle
    from taskq.core.views import JobView

#: A dead worker's job is taken over within this time of its death, or of the next worker's start.
TAKEOVER_SECONDS = 1.0
LEAVING_A_CHILD = ["jobs.forks_by_multiprocessing", "jobs.forks_by_itself"]


def start_worker(path: Path, *options: object) -> Child:
    command = [sys.executable, "-m", "taskq", "worker", "jobs:app", "-d", path, *options]
    return Child(*command, cwd=SCRIPTS)


def enqueue(path: Path, task: str, *args: Any, attempts: int = 5) -> JobHandle[Any]:
    app = TaskQ(path, durability="os")
    job = app.enqueue_sync(app.call_by_name(task, *args).options(attempts=attempts))
    app.close_sync()
    return job


def view(path: Path, job: JobHandle[Any]) -> JobView:
    found = LogReader.open(str(path)).job(job.lsn)
    assert found is not None
    return found


def limit(first: Child, first_attempt: float) -> float:
    """Return seconds that a takeover may last: one, or two starts where a start lasts that long."""
    return max(TAKEOVER_SECONDS, 2 * (first_attempt - first.started))


def attempt(worker: Child) -> tuple[int, float]:
    """(attempt, monotonic seconds when it started) of the next attempt that the worker tells."""
    number, moment, _ = worker.expect("attempt").split()
    return int(number), float(moment)


@contextmanager
def killing_orphan(pid: int) -> Iterator[None]:
    """What the killed worker left running ends with the block."""
    try:
        yield
        assert Path(f"/proc/{pid}").exists(), "the orphan was to outlive its worker"
    finally:
        os.kill(pid, signal.SIGKILL)


def check_second_attempt_succeeded(path: Path, job: JobHandle[Any]) -> None:
    eventually(lambda: view(path, job).state is State.SUCCEEDED)
    told = view(path, job)
    assert told.attempt == 2
    assert told.result == b"2"
    assert [one.outcome for one in told.attempts] == ["lost", "succeeded"]


def test_a_second_worker_takes_a_killed_ones_job_over_within_a_second(tmp_path: Path) -> None:
    """It waits for jobs meanwhile; the second attempt succeeds."""
    job = enqueue(tmp_path, "jobs.long_job")
    with start_worker(tmp_path) as first:
        number, began = attempt(first)
        assert number == 1
        with start_worker(tmp_path) as second:
            second.expect("  ready")
            killed = time.monotonic()
            first.kill()
            number, moment = attempt(second)
            print(f"taken over {moment - killed:.3f} s after the kill")  # noqa: T201 - a figure
            assert number == 2
            assert moment - killed < limit(first, began)
            check_second_attempt_succeeded(tmp_path, job)


def test_the_next_worker_takes_a_killed_ones_job_over_within_a_second(tmp_path: Path) -> None:
    """With none running, a restarted one says how many it recovered, and runs them at once."""
    job = enqueue(tmp_path, "jobs.long_job")
    with start_worker(tmp_path) as first:
        number, began = attempt(first)
        assert number == 1
        first.kill()
    with start_worker(tmp_path) as second:
        number, moment = attempt(second)
        print(f"taken over {moment - second.started:.3f} s after the start")  # noqa: T201 - a figure
        assert number == 2
        assert moment - second.started < limit(first, began)
        check_second_attempt_succeeded(tmp_path, job)


@pytest.mark.parametrize("task", LEAVING_A_CHILD)
def test_a_child_of_its_task_does_not_keep_a_killed_worker_alive(tmp_path: Path, task: str) -> None:
    """The child holds copies of what the worker had open; its locks must not live on in it."""
    job = enqueue(tmp_path, task)
    with start_worker(tmp_path) as first:
        number, began = attempt(first)
        assert number == 1
        with killing_orphan(int(first.expect("orphan"))), start_worker(tmp_path) as second:
            second.expect("  ready")
            killed = time.monotonic()
            first.kill()
            number, moment = attempt(second)
            assert number == 2
            assert moment - killed < limit(first, began)
            check_second_attempt_succeeded(tmp_path, job)


@pytest.mark.parametrize(
    "task", [LEAVING_A_CHILD[0], pytest.param(LEAVING_A_CHILD[1], marks=pytest.mark.slow)]
)
def test_nor_does_it_when_the_worker_is_restarted(tmp_path: Path, task: str) -> None:
    """The same with no second worker running."""
    job = enqueue(tmp_path, task)
    with start_worker(tmp_path) as first:
        number, began = attempt(first)
        assert number == 1
        with killing_orphan(int(first.expect("orphan"))):
            first.kill()
            with start_worker(tmp_path) as second:
                number, moment = attempt(second)
                assert number == 2
                assert moment - second.started < limit(first, began)
                check_second_attempt_succeeded(tmp_path, job)


@pytest.mark.parametrize(
    "attempts",
    [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)],
)
def test_a_job_that_kills_its_worker_each_time_ends_as_a_dead_letter(
    tmp_path: Path, attempts: int
) -> None:
    """After its attempts, with a reason that says so; and the others' jobs go on."""
    job = enqueue(tmp_path, "jobs.kills_its_worker", attempts=attempts)
    for number in range(1, attempts + 1):
        with start_worker(tmp_path) as worker:
            assert attempt(worker)[0] == number
            assert worker.wait() == -signal.SIGKILL
    other = enqueue(tmp_path, "jobs.quick", 7)
    with start_worker(tmp_path):
        eventually(lambda: view(tmp_path, other).state is State.SUCCEEDED)
    told = view(tmp_path, job)
    assert told.state is State.DEAD
    assert told.attempt == attempts
    assert told.reason == f"WorkerLost: the worker process died while it ran attempt {attempts}"
