"""A child that a job forks and lets return is no second worker: it ends, and a line says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ
from taskq_workers.runs import guards
from tests.programs import run_python
from tests.workers.runs import forking_jobs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("task", ["on_loop", "that_waits", "in_thread", "in_process"])
def test_a_forked_child_that_comes_back_ends_and_says_so(tmp_path: Path, task: str) -> None:
    name = f"{forking_jobs.__name__}.{task}"
    with TaskQ(tmp_path, durability="os") as app:
        job = app.enqueue_by_name_sync(name)
        after = app.enqueue_by_name_sync(f"{forking_jobs.__name__}.plain")
        done = run_python("-W", "ignore", "-m", forking_jobs.__name__, tmp_path)
        assert done.returncode == 0, done.stderr
        assert (job.result_sync(1), after.result_sync(1)) == (1, 0)
    assert f"taskq: job {job.id} ({name}) forked, and its child came back" in done.stderr
    assert done.stdout == "plain ran\n"


def test_a_loop_that_is_closed_under_its_worker_is_forgotten() -> None:
    closed, alive = asyncio.new_event_loop(), asyncio.new_event_loop()
    guards.end_children_of(closed, lambda: None)
    closed.close()
    undo = guards.end_children_of(alive, lambda: None)
    try:
        assert closed not in guards._workers
        assert alive in guards._workers
    finally:
        undo()
        alive.close()
