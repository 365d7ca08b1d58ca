"""``taskq worker APP -d a -d b``, and what a kill of it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.processes.harness import eventually

if TYPE_CHECKING:
    from pathlib import Path

APP = """
import time
from pathlib import Path

from taskq import TaskQ

app = TaskQ("own")


@app.task
async def leaf(text: str) -> str:
    return text


@app.task
async def root(text: str) -> str:
    await leaf.enqueue(text)
    return text


@app.task(runs_in="process")
def child(text: str) -> str:
    leaf.enqueue_sync(text)
    return text


@app.task
def hang(text: str) -> str:
    begun = Path(text)
    if not begun.exists():
        begun.touch()
        time.sleep(60)
    return text
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "many_logs_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TASKQ_DATA_DIR", raising=False)


def taskq(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "taskq", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def put(log: str, task: str, text: str) -> None:
    taskq("put", "-d", log, "--task", f"many_logs_app.{task}", json.dumps({"text": text}))


def states(log: str) -> list[tuple[str, str]]:
    jobs = json.loads(taskq("ls", log, "--json"))
    return sorted((job["task"].rpartition(".")[2], job["state"]) for job in jobs)


@pytest.mark.parametrize("guard", [[], ["--processes", "1"]])
def test_the_command_works_several_logs(tmp_path: Path, guard: list[str]) -> None:
    """What jobs enqueue goes into their own log, also from child processes."""
    for log in ("a", "b=c"):
        put(log, "root", "x")
        put(log, "child", "y")
    shown = taskq("worker", "many_logs_app:app", "-d", "a=3", "-d", "b=c", "--burst", *guard)
    assert f"{tmp_path / 'a'}, {tmp_path / 'b=c'}" in shown
    for log in ("a", "b=c"):
        both = [("leaf", "succeeded")] * 2
        assert states(log) == [("child", "succeeded"), *both, ("root", "succeeded")]
    assert not (tmp_path / "own").exists()


def test_jobs_of_all_logs_of_a_killed_worker_run_again_within_a_second() -> None:
    command = [sys.executable, "-m", "taskq", "worker", "many_logs_app:app"]
    command += ["-d", "a", "-d", "b", "-d", "c"]
    for log in "abc":
        put(log, "hang", f"begun-{log}")
    began = [f"begun-{log}" for log in "abc"]
    workers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    try:
        eventually(lambda: all(map(os.path.exists, began)))
        # Each may have jobs of any log: first one, then the other, so that all are taken back.
        workers[0].send_signal(signal.SIGKILL)
        workers[0].wait()
        killed = time.monotonic()
        third = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        workers.append(third)
        workers[1].send_signal(signal.SIGKILL)
        workers[1].wait()
        eventually(lambda: all(states(log) == [("hang", "succeeded")] for log in "abc"))
        assert time.monotonic() - killed < 15
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
