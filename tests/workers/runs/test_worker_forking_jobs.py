"""A child that a job forks and lets return is no second worker: it ends, and a line says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from taskq import TaskQ
from taskq_workers.runs import guards
from tests.programs import run_python
from tests.workers.runs import forking_jobs

if TYPE_CHECKING:
    from pathlib import Path


def test_a_forked_child_that_comes_back_ends_and_says_so(tmp_path: Path) -> None:
    """On the loop, in a thread and in a child process; those that come after it run once."""
    tasks = ["on_loop", "plain", "that_waits", "plain", "in_thread", "plain", "in_process", "plain"]
    names = [f"{forking_jobs.__name__}.{task}" for task in tasks]
    with TaskQ(tmp_path, durability="os") as app:
        jobs = [app.enqueue_by_name_sync(name) for name in names]
        done = run_python("-W", "ignore", "-m", forking_jobs.__name__, tmp_path)
        assert done.returncode == 0, done.stderr
        assert [job.result_sync(1) for job in jobs] == [1, 0] * 4
    for job, name in zip(jobs[::2], names[::2], strict=True):
        assert f"taskq: job {job.id} ({name}) forked, and its child came back" in done.stderr
    assert done.stdout == "plain ran\n" * 4


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
