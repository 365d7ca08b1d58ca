"""What the commands tell of jobs that wait for other jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ, chain
from taskq.errors import JobFailed
from tests.cli.helpers import taskq, taskq_json

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def held(tmp_path: Path) -> str:
    """Return a job that waits for another one."""
    app = TaskQ(tmp_path)

    @app.task
    def increment(number: int) -> int:
        return number + 1

    with app:
        return chain(increment.call(1), increment.step()).enqueue_sync().id


def test_a_held_job_is_due_at_no_time(held: str, tmp_path: Path) -> None:
    enqueued = taskq("timeline", held, "-d", tmp_path).stdout.splitlines()[-1]
    assert enqueued.endswith("waits for inputs")
    assert taskq_json("timeline", held, "-d", tmp_path)[0]["due_at"] is None


def test_a_job_is_cancelled_for_the_input_that_failed(tmp_path: Path) -> None:
    app = TaskQ(tmp_path)

    @app.task(retry=1)
    def fail() -> int:
        raise ValueError

    @app.task
    def increment(number: int) -> int:
        return number + 1

    with app, app.worker_thread():
        handle = chain(fail.call(), increment.step()).enqueue_sync()
        with pytest.raises(JobFailed) as caught:
            handle.result_sync(30)
        other = increment.options(delay="1h").enqueue_sync(1)
        other.cancel_sync()
    output = taskq("why", handle.id, "-d", tmp_path).stdout
    assert output.endswith(f"ago, for an input failed: {caught.value.job_id} (dead)\n")
    assert taskq("why", other.id, "-d", tmp_path).stdout.endswith("ago\n")


def test_its_records_tell_no_time_either(held: str, tmp_path: Path) -> None:
    lines = taskq("tail", "-d", tmp_path).stdout.splitlines()
    assert [line.partition("increment")[2].strip() for line in lines if held in line] == [
        "waits for inputs"
    ]
    exported = taskq("export", "--records", "-d", tmp_path).stdout
    assert "2116-" not in exported
    assert "2116-" not in taskq("tail", "--json", "-d", tmp_path).stdout
