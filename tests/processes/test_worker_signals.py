"""Signals to a worker process: taken by whichever thread, and never with the lock held."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import pytest

from taskq import TaskQ
from taskq.core.model import State
from tests.processes.harness import Child, eventually
from tests.processes.test_lost_worker import enqueue, start_worker, view

#: An idle worker has nothing to drain.
STOP_SECONDS = 5.0


def signal_thread(child: Child, thread: int, number: signal.Signals) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "tgkill"):
        pytest.skip("this C library has no tgkill")
    assert library.tgkill(child.pid, thread, int(number)) == 0


def threads_of(child: Child) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{child.pid}/task")]  # noqa: PTH208


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_that_another_thread_takes_wakes_the_loop(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The kernel may choose any thread, and does so when a stopped process goes on."""
    with start_worker(tmp_path) as worker:
        worker.expect("  ready")
        others = [thread for thread in threads_of(worker) if thread != worker.pid]
        signal_thread(worker, max(others), number)
        assert worker.wait(STOP_SECONDS) == 0


def test_a_worker_that_was_stopped_ends_when_it_is_told_to_and_goes_on(tmp_path: Path) -> None:
    """SIGTERM and then SIGCONT, as service managers send them."""
    with start_worker(tmp_path) as worker:
        worker.expect("  ready")
        worker.stop()
        worker.send(signal.SIGTERM)
        worker.send(signal.SIGCONT)
        assert worker.wait(STOP_SECONDS) == 0


def test_a_process_that_a_task_forks_ends_when_it_is_told_to(tmp_path: Path) -> None:
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
