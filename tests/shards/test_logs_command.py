"""``taskq worker APP -d a -d b``, and the state after a kill of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taskq import TaskQ
from taskq.app.logs import over
from tests.cli.helpers import taskq, taskq_json
from tests.effort import at_most, grows, within
from tests.processes.harness import eventually
from tests.programs import run_taskq

LOGS = ("a", "b", "c")
TAKEOVER_SECONDS = 1.0
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


def put(log: str, task: str, text: str) -> None:
    words = ("-d", log, "--task", f"many_logs_app.{task}", json.dumps({"text": text}))
    assert taskq("put", *words).exit_code == 0


def states(log: str) -> list[tuple[str, str]]:
    jobs = taskq_json("ls", log)
    return sorted((job["task"].rpartition(".")[2], job["state"]) for job in jobs)


@pytest.mark.parametrize("guard", [[], ["--processes", "1"]])
def test_the_command_works_several_logs(tmp_path: Path, guard: list[str]) -> None:
    for log in ("a", "b=c"):
        put(log, "root", "x")
        put(log, "child", "y")
    words = ("many_logs_app:app", "-d", "a=3", "-d", "b=c", "--burst", *guard)
    shown = run_taskq("worker", *words, check=True).stdout
    assert f"{tmp_path / 'a'}, {tmp_path / 'b=c'}" in shown
    for log in ("a", "b=c"):
        both = [("leaf", "succeeded")] * 2
        assert states(log) == [("child", "succeeded"), *both, ("root", "succeeded")]
    assert not (tmp_path / "own").exists()


def start_worker() -> subprocess.Popen[bytes]:
    words = ["worker", "many_logs_app:app", *(word for log in LOGS for word in ("-d", log))]
    return subprocess.Popen([sys.executable, "-m", "taskq", *words], stdout=subprocess.DEVNULL)


@grows
async def test_jobs_of_all_logs_of_a_killed_worker_run_again_within_a_second(
    tmp_path: Path,
) -> None:
    app = TaskQ(tmp_path / "own")
    again: dict[str, float] = {}
    all_again = asyncio.Event()

    @app.task(name="many_logs_app.hang")
    async def hang(text: str) -> None:
        again[text] = time.monotonic()
        if len(again) == len(LOGS):
            all_again.set()

    began = {log: str(tmp_path / f"begun-{log}") for log in LOGS}
    for log in LOGS:
        async with over(app, tmp_path / log) as first:
            await first._send_here([hang.call(began[log])])
    killed = start_worker()
    try:
        await asyncio.to_thread(eventually, lambda: all(map(os.path.exists, began.values())))
        async with app.worker(logs=[tmp_path / log for log in LOGS]):
            killed.send_signal(signal.SIGKILL)
            moment = time.monotonic()
            async with within(at_most(3)):
                await all_again.wait()
    finally:
        killed.kill()
        killed.wait()
    assert max(again.values()) - moment < at_most(TAKEOVER_SECONDS)
