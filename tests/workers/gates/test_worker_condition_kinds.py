"""Conditions and the other kinds of jobs: in child processes, in a worker that ends by itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from taskq import TaskQ
from taskq_workers.pool import Worker
from tests.workers.gates.switches import Switch, records

SWITCH = Switch(on=True)
app = TaskQ("never-made")


@app.task(
    name="kinds.compute", runs_in="process", requires=[SWITCH.condition()], while_running=True
)
def compute(mark: str) -> str:
    """Run for ever the first time, in a child process."""
    if not Path(mark).exists():
        Path(mark).touch()
        threading.Event().wait()
    return "done"


async def test_a_lost_condition_kills_the_child_process_and_burns_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq_workers.gates.gate.TRIAL_SECONDS", 0.05)
    monkeypatch.setattr("taskq_workers.gates.gate.HELD_SECONDS", 0.05)
    app.data_dir = tmp_path / "data"
    mark = tmp_path / "mark"
    async with app:
        async with Worker(app) as worker:
            job = await compute.enqueue(str(mark))
            until = time.monotonic() + 20
            while not mark.exists() and time.monotonic() < until:
                await SWITCH.probed(1)
            SWITCH.on = False
            gates = worker._parts[0].gates
            assert gates is not None
            while not gates.holds():
                gates.moved.clear()
                await gates.moved.wait()
            SWITCH.on = True
            assert await job.result(timeout=20) == "done"
        assert (await records(app))["released condition"] in {1, 2}
        assert (await job.view()).attempt == 1
