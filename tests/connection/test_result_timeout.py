"""Who waits in vain for a result hears why the job does not run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ
from taskq.errors import ResultTimeout
from taskq.log.read import reader
from taskq.log.read.reader import LogReader

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    return TaskQ(tmp_path / "my data")


async def late(app: TaskQ, seconds: float = 0.01) -> ResultTimeout:
    job = await app.enqueue_by_name("proj.send")
    with pytest.raises(ResultTimeout) as info:
        await job.result(timeout=seconds)
    assert str(info.value).startswith(f"job {job.id} is still ready after {seconds:g} s")
    return info.value


async def test_nobody_runs_it(app: TaskQ) -> None:
    async with app:
        error = await late(app)
    start = f"taskq worker MODULE:APP -d {shlex.quote(str(app.data_dir))}"
    assert error.why == f"no worker runs; start one with: {start}"
    assert str(error).endswith(f"after 0.01 s: {error.why}")


async def test_nobody_knows_its_task_or_its_queue_is_paused(app: TaskQ) -> None:
    async with app, app.worker():
        await app.stats()
        assert (await late(app)).why.startswith("no worker of queue 'default' knows task")
        await app.pause("default")
        resume = f"taskq resume default -d {shlex.quote(str(app.data_dir))}"
        assert (await late(app)).why == f"queue 'default' is paused; let it go on with: {resume}"


def test_threads_hear_the_same(app: TaskQ) -> None:
    with app:
        job = app.enqueue_by_name_sync("proj.send")
        with pytest.raises(ResultTimeout, match="after 0 s: no worker runs; start one"):
            job.result_sync(timeout=0)


async def test_what_would_take_longer_than_a_tenth_of_the_wait_is_left_to_who_asks(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_READ_BYTES_MIN", 0)
    async with app:
        error = await late(app, 0.00001)
    assert error.why == ""
    see = f"taskq why {error.job_id} -d {shlex.quote(str(app.data_dir))}"
    assert str(error).endswith(f"after 1e-05 s; for the reason: {see}")


def test_what_a_question_reads_begins_at_the_newest_snapshot(app: TaskQ) -> None:
    with app:
        for _ in range(5):
            app.enqueue_by_name_sync("proj.send", "x" * 1_000_000)
        with LogReader.open(str(app.data_dir)) as before:
            assert before.unfolded_bytes() > 5_000_000
        app.stats_sync()  # folded, so that there is something to keep
    with LogReader.open(str(app.data_dir)) as after:
        assert list((app.data_dir / "snapshot").glob("*agenda*"))
        assert 0 <= after.unfolded_bytes() < 10_000
