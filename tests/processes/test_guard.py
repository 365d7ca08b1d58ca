"""Several worker processes under one guard: deaths, signals, replacement, the guard's own end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskq import JobHandle, TaskQ
from taskq.core.model import State
from taskq.log.machine.system import system
from taskq_workers import WorkerThread
from tests.processes.harness import Child, eventually, start_worker
from tests.processes.test_kill_matrix import view


def start_guard(path: Path, *options: object, **of: Any) -> Child:
    return start_worker(path, "--quiet", *options, **of)


def ready_pids(guard: Child, count: int) -> set[int]:
    return {int(guard.expect("worker process").split()[0]) for _ in range(count)}


alive = system.lives


def run_stop(path: Path, *which: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "taskq", "worker", "stop", "-d", str(path), *which)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def stop_workers(path: Path, *which: str) -> None:
    done = run_stop(path, *which)
    assert (done.returncode, "was asked to stop" in done.stdout) == (0, True), done


@contextmanager
def opened(path: Path) -> Iterator[TaskQ]:
    app = TaskQ(path, durability="os")
    yield app
    app.close_sync()


def put(app: TaskQ, task: str, *args: Any, attempts: int = 3) -> JobHandle[Any]:
    return app.enqueue_sync(app.call_by_name(f"jobs.{task}", *args).options(attempts=attempts))


def result(path: Path, job: JobHandle[Any]) -> bytes | None:
    eventually(lambda: view(path, job).state is State.SUCCEEDED)
    return view(path, job).result


def test_a_dead_child_is_reported_and_replaced_while_others_go_on(tmp_path: Path) -> None:
    """The job of the other process goes on, and the dead one's place is filled again."""
    with start_guard(tmp_path, "--processes", 2) as guard, opened(tmp_path) as app:
        pids = ready_pids(guard, 2)
        gate = tmp_path / "gate"
        slow = put(app, "waits_for", str(gate))
        serving, attempt = map(int, guard.expect("waiting").split())
        assert serving in pids
        assert attempt == 1
        (other,) = pids - {serving}
        os.kill(other, signal.SIGKILL)
        assert guard.expect("worker").endswith("(killed by SIGKILL): started again in 0.5 s")
        assert ready_pids(guard, 1).isdisjoint(pids)
        gate.touch()
        assert result(tmp_path, slow) == b"%d" % serving
        assert view(tmp_path, slow).attempt == 1
        gate.unlink()
        last = put(app, "waits_for", str(gate))
        guard.expect("waiting")
        stop_workers(tmp_path)
        guard.expect("draining 2 worker processes")
        gate.touch()
        assert guard.wait() == 0
        assert (view(tmp_path, last).state, view(tmp_path, last).attempt) == (State.SUCCEEDED, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "signals"), [("waits", 2), ("blocks", 3)])
def test_signals_mean_to_all_what_they_mean_to_one(tmp_path: Path, task: str, signals: int) -> None:
    """The first drains, the second cancels and burns no attempt, the third ends all at once."""
    with start_guard(tmp_path, "--processes", 2, "--drain-timeout", 1000) as guard:
        pids = ready_pids(guard, 2)
        with opened(tmp_path) as app:
            job = put(app, task)
            guard.expect("running")
        guard.send(signal.SIGTERM)
        guard.expect("draining 2 worker processes")
        eventually(lambda: sum(map(alive, pids)) == 1)
        guard.send(signal.SIGTERM)
        if signals > 2:
            guard.expect("cancelling")
            guard.send(signal.SIGTERM)
            assert guard.wait() == 128 + signal.SIGTERM
            eventually(lambda: not any(map(alive, pids)))
            return
        assert guard.wait() == 0
        assert not any(map(alive, pids))
        answer = view(tmp_path, job)
        assert (answer.state, answer.attempt) == (State.READY, 0)


def test_the_workers_end_when_the_guard_is_killed(tmp_path: Path) -> None:
    with start_guard(tmp_path, "--processes", 2, "--drain-timeout", 0) as guard:
        pids = ready_pids(guard, 2)
        with opened(tmp_path) as app:
            job = put(app, "waits")
            guard.expect("running")
            guard.kill()
            eventually(lambda: not any(map(alive, pids)))
            answer = view(tmp_path, job)
            assert (answer.state, answer.attempt) == (State.READY, 0)


def test_a_hang_up_replaces_the_workers_and_burns_no_attempt(tmp_path: Path) -> None:
    """Each old one drains only when its successor is ready; what it runs is finished by it."""
    with start_guard(tmp_path, "--processes", 2) as guard, opened(tmp_path) as app:
        pids = ready_pids(guard, 2)
        gate = tmp_path / "gate"
        slow = [put(app, "waits_for", str(gate)) for _ in range(4)]
        for _ in slow:
            guard.expect("waiting")
        guard.send(signal.SIGHUP)
        assert ready_pids(guard, 2).isdisjoint(pids)
        quick = put(app, "who")
        # An old one is stopped a moment after its successor is ready, and may claim until then.
        while int(result(tmp_path, quick) or 0) in pids:
            quick = put(app, "who")
        gate.touch()
        assert all(int(result(tmp_path, timing) or 0) in pids for timing in slow)
        assert {view(tmp_path, item).attempt for item in [*slow, quick]} == {1}
        eventually(lambda: not any(map(alive, pids)))
        guard.send(signal.SIGTERM)
        assert guard.wait() == 0


@pytest.mark.slow
def test_max_jobs_recycles_a_process_and_a_burst_ends_with_all(tmp_path: Path) -> None:
    with opened(tmp_path) as app:
        jobs = [put(app, "who") for _ in range(7)]
        with start_guard(tmp_path, "--processes", 1, "--max-jobs", 3) as guard:
            ready_pids(guard, 3)
            pids = [int(result(tmp_path, job) or 0) for job in jobs]
            guard.send(signal.SIGTERM)
            assert guard.wait() == 0
        assert sorted(pids.count(pid) for pid in set(pids)) == [1, 3, 3]
        jobs = [put(app, "who") for _ in range(20)]
    with start_guard(tmp_path, "--processes", 2, "--burst") as guard:
        assert guard.wait() == 0
    assert {view(tmp_path, job).state for job in jobs} == {State.SUCCEEDED}


def test_max_jobs_alone_ends_the_worker(tmp_path: Path) -> None:
    with opened(tmp_path) as app:
        jobs = [put(app, "who") for _ in range(5)]
        with start_guard(tmp_path, "--max-jobs", 3) as worker:
            assert worker.wait() == 0
    states = [view(tmp_path, job).state for job in jobs]
    assert states == [State.SUCCEEDED] * 3 + [State.READY] * 2


def test_a_burst_that_no_worker_can_begin_ends_the_guard(tmp_path: Path) -> None:
    """As it ends a single worker; others try again, as the log may be back by then."""
    (tmp_path / "file").touch()
    with start_guard(tmp_path / "file", "--processes", 2, "--burst") as guard:
        assert guard.wait() == 1


def test_reload_starts_again_when_code_changes_and_waits_out_a_mistake(tmp_path: Path) -> None:
    folder, data = tmp_path / "code", tmp_path / "data"
    folder.mkdir()
    module = folder / "changing.py"
    text = (
        "import asyncio\nfrom taskq import TaskQ\napp = TaskQ('unused', durability='os')\n"
        "@app.task(name='jobs.version')\nasync def version() -> int:\n    return {}\n"
        "@app.task(name='jobs.waits')\nasync def waits() -> None:\n"
        "    print('running', flush=True)\n    await asyncio.Event().wait()\n"
    )
    module.write_text(text.format(1))
    with start_guard(data, "--reload", app="changing:app", cwd=folder) as guard:
        guard.expect("  ready")
        with opened(data) as app:
            assert result(data, put(app, "version")) == b"1"
            slow = put(app, "waits")
            guard.expect("running")
            module.write_text(text.format("2 +"))
            guard.expect("changing.py changed: starting again")
            eventually(lambda: view(data, slow).state is State.READY)
            assert view(data, slow).attempt == 0
            # Old byte code of the same size and second would count as current.
            module.write_text(text.format(22))
            guard.expect("  ready")
            assert result(data, put(app, "version")) == b"22"
            stop_workers(data)
        assert guard.wait() == 0


def test_stop_ends_a_worker_after_its_job_and_no_program_beside_it(tmp_path: Path) -> None:
    """The app that is open here serves, too, and has other work."""
    with (
        start_guard(tmp_path) as worker,
        opened(tmp_path) as app,
        WorkerThread(app, queues=["mine"]),
    ):
        worker.expect("  ready")
        gate = tmp_path / "gate"
        job = put(app, "waits_for", str(gate))
        pid, _ = map(int, worker.expect("waiting").split())
        wrong = run_stop(tmp_path, "12345678")
        assert (wrong.returncode, "no worker '12345678'" in wrong.stderr) == (2, True)
        ours = run_stop(tmp_path, str(os.getpid()))
        assert (ours.returncode, "cannot be asked" in ours.stdout) == (1, True)
        stop_workers(tmp_path, str(pid))
        worker.expect("draining")
        gate.touch()
        assert worker.wait() == 0
        assert (view(tmp_path, job).state, view(tmp_path, job).attempt) == (State.SUCCEEDED, 1)
