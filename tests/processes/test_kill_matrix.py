"""Workers that are killed or told to stop at each moment of a job, on each executor."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from taskq import JobHandle
from taskq.core.model import State
from tests.effort import at_most, grows
from tests.processes.harness import SCRIPTS, Child, eventually
from tests.processes.test_lost_worker import TAKEOVER_SECONDS, enqueue, view

EXECUTORS = ("async", "thread", "process")
#: These few run always, so that each executor, moment and successor is among them.
ALWAYS = {
    ("async", "mid", "other"),
    ("thread", "before", "restarted"),
    ("process", "after", "other"),
}
MATRIX = [
    pytest.param(*cell, marks=() if cell in ALWAYS else pytest.mark.slow, id="-".join(cell))
    for executor in EXECUTORS
    for moment in ("before", "mid", "after")
    for cell in ((executor, moment, "restarted"), (executor, moment, "other"))
]
#: Time for a stopped worker to end after its grace for running jobs.
STOP_SECONDS = 5.0
DRAIN_SECONDS = 0.3


def start_worker(path: Path, *options: object) -> Child:
    return Child(
        sys.executable, "-m", "taskq", "worker", "matrix:app", "-d", path, *options, cwd=SCRIPTS
    )


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def next_attempt(worker: Child) -> tuple[int, float, int]:
    """(attempt, monotonic seconds when it began, process that runs it)."""
    number, moment, pid = worker.expect("attempt").split()
    return int(number), float(moment), int(pid)


def kill(worker: Child, moment: str) -> tuple[float, int]:
    """(monotonic seconds of the kill, process that ran the job or 0) of a worker with one job."""
    pid = 0
    if moment != "before":
        number, _, pid = next_attempt(worker)
        assert number == 1
    if moment == "mid":
        killed = time.monotonic()
        worker.kill()
    else:
        killed = float(worker.expect("strike"))
        assert worker.wait() == -signal.SIGKILL
    return killed, pid


@grows
@pytest.mark.parametrize(("executor", "moment", "successor"), MATRIX)
def test_a_killed_workers_job_runs_again_within_a_second_and_the_attempt_counts(
    tmp_path: Path, executor: str, moment: str, successor: str
) -> None:
    run = run_again_by_another if successor == "other" else run_again_after_a_restart
    pid = run(tmp_path, f"matrix.in_{executor}", moment)
    if executor == "process":
        eventually(lambda: not is_there(pid))


def run_again_after_a_restart(path: Path, task: str, moment: str) -> int:
    """Returns the process of the first attempt, 0 if it did not begin."""
    job = enqueue(path, task, moment)
    with start_worker(path) as first:
        killed, pid = kill(first, moment)
    with start_worker(path) as second:
        check_second_attempt(path, job, second, second.started, 2 * (killed - first.started))
    return pid


def run_again_by_another(path: Path, task: str, moment: str) -> int:
    with start_worker(path) as first, start_worker(path) as second:
        first.expect("  ready")
        second.expect("  ready")
        start_seconds = time.monotonic() - second.started
        second.stop()
        job = enqueue(path, task, moment)
        killed, pid = kill(first, moment)
        second.send(signal.SIGCONT)
        # It has had no job yet, so that a child of it is only started now, with all imports.
        grace = 4 * start_seconds if task.endswith("process") else 0.0
        check_second_attempt(path, job, second, killed, grace)
    return pid


def check_second_attempt(
    path: Path, job: JobHandle[object], worker: Child, since: float, start_seconds: float
) -> None:
    number, moment, _ = next_attempt(worker)
    print(f"taken over after {moment - since:.3f} s")  # noqa: T201 - a figure
    assert number == 2
    assert moment - since < max(at_most(TAKEOVER_SECONDS), start_seconds)
    eventually(lambda: view(path, job).state is State.SUCCEEDED)
    answer = view(path, job)
    assert (answer.attempt, answer.result) == (2, b"2")
    assert [attempt.outcome for attempt in answer.attempts] == ["lost", "succeeded"]


@pytest.mark.parametrize(
    "executor", ["async", pytest.param("thread", marks=pytest.mark.slow), "process"]
)
def test_a_job_shorter_than_the_grace_period_finishes(tmp_path: Path, executor: str) -> None:
    go = tmp_path / "go"
    job = enqueue(tmp_path / "data", f"matrix.until_{executor}", str(go))
    with start_worker(tmp_path / "data") as worker:
        _, _, pid = next_attempt(worker)
        worker.send(signal.SIGTERM)
        worker.expect("draining")
        go.touch()
        finished = time.monotonic()
        assert worker.wait() == 0
        assert time.monotonic() - finished < at_most(STOP_SECONDS)
    answer = view(tmp_path / "data", job)
    assert (answer.state, answer.attempt, answer.result) == (State.SUCCEEDED, 1, b'"done"')
    assert not is_there(pid)


@pytest.mark.parametrize(
    ("executor", "number"),
    [
        ("thread", signal.SIGTERM),
        ("deaf", signal.SIGTERM),
        ("process", signal.SIGINT),
        *(
            pytest.param(*cell, marks=pytest.mark.slow)
            for cell in (
                ("async", signal.SIGTERM),
                ("process", signal.SIGTERM),
                *((executor, signal.SIGINT) for executor in ("async", "thread", "deaf")),
            )
        ),
    ],
)
def test_a_job_longer_than_the_grace_period_goes_back_with_no_attempt_burnt(
    tmp_path: Path, executor: str, number: signal.Signals
) -> None:
    go = tmp_path / "never"
    job = enqueue(tmp_path / "data", f"matrix.until_{executor}", str(go))
    with start_worker(tmp_path / "data", "--drain-timeout", DRAIN_SECONDS) as worker:
        _, _, pid = next_attempt(worker)
        told_to_stop = time.monotonic()
        worker.send(number)
        assert worker.wait() == 0
        seconds = time.monotonic() - told_to_stop
    print(f"ended {seconds:.3f} s after {number.name}")  # noqa: T201 - a figure
    assert seconds < DRAIN_SECONDS + at_most(STOP_SECONDS)
    answer = view(tmp_path / "data", job)
    assert (answer.state, answer.attempt) == (State.READY, 0)
    assert not is_there(pid)


def test_a_signal_to_the_whole_group_ends_no_child_before_its_job(tmp_path: Path) -> None:
    """A terminal's Ctrl-C goes to the children too: the worker drains, and they finish."""
    go = tmp_path / "go"
    job = enqueue(tmp_path / "data", "matrix.until_process", str(go))
    with start_worker(tmp_path / "data") as worker:
        _, _, pid = next_attempt(worker)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        worker.send(signal.SIGINT)
        worker.expect("draining")
        go.touch()
        assert worker.wait() == 0
    assert view(tmp_path / "data", job).state is State.SUCCEEDED
