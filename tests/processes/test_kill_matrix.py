"""Workers that are killed, stopped or told to stop at each moment of a job, on each executor."""

import contextlib
import ctypes
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskq import JobHandle, TaskQ
from taskq.core.model import State
from taskq.core.views import JobView
from taskq.log.machine.system import system
from taskq.log.read.reader import LogReader
from tests.effort import at_most, grows
from tests.processes.harness import Child, eventually, start_worker
from tests.processes.striker import KILLED

#: A dead worker's job is taken over within this time of its death, or of the next worker's start.
TAKEOVER_SECONDS = 1.0


def enqueue(path: Path, task: str, *args: Any, attempts: int = 5) -> JobHandle[Any]:
    app = TaskQ(path, durability="os")
    job = app.enqueue_sync(app.call_by_name(task, *args).options(attempts=attempts))
    app.close_sync()
    return job


def view(path: Path, job: JobHandle[Any]) -> JobView:
    result = LogReader.open(str(path)).job(job.lsn)
    assert result is not None
    return result


@pytest.mark.parametrize("attempts", [
    2, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_job_killing_each_worker_ends_as_a_dead_letter(tmp_path: Path, attempts: int) -> None:
    job = enqueue(tmp_path, "jobs.kills_its_worker", attempts=attempts)
    for number in range(1, attempts + 1):
        with start_worker(tmp_path) as worker:
            assert next_attempt(worker)[0] == number
            assert worker.wait() == KILLED
    other = enqueue(tmp_path, "jobs.quick", 7)
    with start_worker(tmp_path):
        eventually(lambda: view(tmp_path, other).state is State.SUCCEEDED)
    answer = view(tmp_path, job)
    assert answer.state is State.DEAD
    assert answer.attempt == attempts
    assert answer.reason == f"WorkerLost: the worker process died while it ran attempt {attempts}"


EXECUTORS = ("async", "thread", "process")
#: These few run always, so that each executor, moment and successor is among them.
ALWAYS = {
    ("async", "mid", "other"),
    ("thread", "before", "restarted"),
    ("process", "after", "other"),
}
#: Tasks whose child lives on when its worker is killed, and must not keep that alive.
FORKS = ("fork", "multiprocessing")
MATRIX = [
    pytest.param(*cell, marks=() if cell in ALWAYS else pytest.mark.slow, id="-".join(cell))
    for executor in EXECUTORS
    for moment in ("before", "mid", "after")
    for cell in ((executor, moment, "restarted"), (executor, moment, "other"))
] + [
    pytest.param(*cell, marks=[pytest.mark.posix("forks"), *marks])
    for cell, marks in [
        (("multiprocessing", "mid", "other"), []),
        (("multiprocessing", "mid", "restarted"), []),
        (("fork", "mid", "other"), []),
        (("fork", "mid", "restarted"), [pytest.mark.slow]),
    ]
]
#: Time for a stopped worker to end after its grace for running jobs.
STOP_SECONDS = 5.0
DRAIN_SECONDS = 0.3


def next_attempt(worker: Child) -> tuple[int, float, int]:
    """(attempt, monotonic seconds when it began, process that runs it)."""
    number, moment, pid = worker.expect("attempt").split()
    return int(number), float(moment), int(pid)


def kill(worker: Child, task: str, moment: str) -> tuple[float, int]:
    """(monotonic seconds of the kill, process of the job or its child, 0 for none)."""
    pid = 0
    if moment != "before":
        number, _, pid = next_attempt(worker)
        assert number == 1
    if task.removeprefix("jobs.in_") in FORKS:
        pid = int(worker.expect("orphan"))
    if moment == "mid":
        killed = time.monotonic()
        worker.kill()
    else:
        killed = float(worker.expect("strike"))
        assert worker.wait() == KILLED
    return killed, pid


@grows
@pytest.mark.parametrize(("executor", "moment", "successor"), MATRIX)
def test_a_killed_workers_job_runs_again_within_a_second_and_the_attempt_counts(
    tmp_path: Path, executor: str, moment: str, successor: str
) -> None:
    run = run_again_by_another if successor == "other" else run_again_after_a_restart
    pid = run(tmp_path, f"jobs.in_{executor}", moment)
    if executor == "process":
        eventually(lambda: not system.lives(pid))


def run_again_after_a_restart(path: Path, task: str, moment: str) -> int:
    """Returns the process of the first attempt, 0 if it did not begin."""
    job = enqueue(path, task, moment)
    with start_worker(path) as first:
        killed, pid = kill(first, task, moment)
        with start_worker(path) as second, ending_orphan(task, pid):
            check_second_attempt(path, job, second, second.started, 2 * (killed - first.started))
    return pid


def run_again_by_another(path: Path, task: str, moment: str) -> int:
    with start_worker(path) as first, start_worker(path) as second:
        first.expect("  ready")
        second.expect("  ready")
        start_seconds = time.monotonic() - second.started
        stop_without_lock(second, path)
        job = enqueue(path, task, moment)
        killed, pid = kill(first, task, moment)
        second.send(signal.SIGCONT)
        # It has had no job yet, so that a child of it is only started now, with all imports.
        grace = 4 * start_seconds if task.endswith("process") else 0.0
        with ending_orphan(task, pid):
            check_second_attempt(path, job, second, killed, grace)
    return pid


def stop_without_lock(worker: Child, path: Path) -> None:
    """Stop it; it goes on for a moment if it has the writer lock just then."""
    for _ in range(100):
        worker.stop()
        with contextlib.ExitStack() as undo, contextlib.suppress(BlockingIOError):
            for name in ("write.lock", "turnstile.lock"):
                file = undo.enter_context((path / name).open("rb"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        worker.send(signal.SIGCONT)
    raise AssertionError("it has the writer lock whenever it is stopped")


@contextmanager
def ending_orphan(task: str, pid: int) -> Iterator[None]:
    if task.removeprefix("jobs.in_") not in FORKS:
        yield
        return
    try:
        yield
        assert system.lives(pid), "the orphan was to outlive its worker"
    finally:
        os.kill(pid, signal.SIGKILL)


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


@pytest.mark.parametrize(("executor", "number"), [
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
])  # fmt: skip
def test_a_job_longer_than_the_grace_period_goes_back_with_no_attempt_burnt(
    tmp_path: Path, executor: str, number: signal.Signals
) -> None:
    go = tmp_path / "never"
    job = enqueue(tmp_path / "data", f"jobs.until_{executor}", str(go))
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
    assert not system.lives(pid)


def test_a_signal_to_the_whole_group_ends_no_child_before_its_job(tmp_path: Path) -> None:
    """A terminal's Ctrl-C goes to the children too: the worker drains, and they finish."""
    go = tmp_path / "go"
    job = enqueue(tmp_path / "data", "jobs.until_process", str(go))
    with start_worker(tmp_path / "data") as worker:
        _, _, pid = next_attempt(worker)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        worker.send(signal.SIGINT)
        worker.expect("draining")
        go.touch()
        assert worker.wait() == 0
    answer = view(tmp_path / "data", job)
    assert (answer.state, answer.attempt) == (State.SUCCEEDED, 1)


def signal_thread(child: Child, thread: int, number: signal.Signals) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "tgkill"):
        pytest.skip("this C library has no tgkill")
    assert library.tgkill(child.pid, thread, int(number)) == 0


def threads_of(child: Child) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{child.pid}/task")]  # noqa: PTH208


@pytest.mark.posix("signals a thread")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_another_thread_wakes_the_loop(tmp_path: Path, number: signal.Signals) -> None:
    """The kernel may choose any thread, and does so when a stopped process goes on."""
    with start_worker(tmp_path) as worker:
        worker.expect("  ready")
        others = [thread for thread in threads_of(worker) if thread != worker.pid]
        signal_thread(worker, max(others), number)
        assert worker.wait(at_most(STOP_SECONDS)) == 0


@pytest.mark.posix("forks")
def test_a_process_forked_by_a_task_ends_on_sigterm(tmp_path: Path) -> None:
    job = enqueue(tmp_path, "jobs.terminates_a_child")
    with start_worker(tmp_path):
        eventually(lambda: view(tmp_path, job).state is State.SUCCEEDED, STOP_SECONDS)
    assert view(tmp_path, job).result == b"-15"


@pytest.mark.parametrize("logs", [1, 3])
def test_ctrl_z_on_a_busy_worker_never_keeps_a_lock(tmp_path: Path, logs: int) -> None:
    """SIGTSTP takes effect between two batches of each log, so that the others go on beside it."""
    apps = [TaskQ(tmp_path / f"{n}", durability="os", lock_wait=0.5) for n in range(logs)]
    quick = apps[0].call_by_name("jobs.quick", 1)
    for app in apps:
        app.enqueue_many_sync([quick] * (5_000 // logs))
    rest = [word for app in apps[1:] for word in ("-d", app.data_dir)]
    with start_worker(apps[0].data_dir, *rest) as worker:
        worker.expect("  ready")
        for _ in range(30):
            worker.send(signal.SIGTSTP)
            eventually(lambda: worker.state() == "T")
            for app in apps:
                app.enqueue_many_sync([quick] * (200 // logs))
            worker.send(signal.SIGCONT)
            eventually(lambda: worker.state() != "T")
    for app in apps:
        app.close_sync()
