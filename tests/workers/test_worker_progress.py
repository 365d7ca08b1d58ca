"""Progress reports of running jobs, their readers, and their lifetime."""

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from taskq import JobHandle, TaskQ, current_job, progress, progress_sync, retry
from taskq.core.errors import JobNotFound
from taskq.core.views import ProgressView
from taskq.errors import UsageError
from taskq.log.machine.owners import JOBS_MAX, ProgressBoard
from taskq.log.machine.peers import PROGRESS
from taskq.log.read.diagnosis import find_progress
from taskq.log.read.reader import open_journal
from taskq.views import Progress
from tests.cli.helpers import taskq, taskq_json


async def told(job: JobHandle[Any], message: str) -> Progress:
    async with asyncio.timeout(30):
        while True:
            result = await job.progress()
            if result is not None and result.message == message:
                return result


@pytest.mark.parametrize("runs_in", ["loop", "thread"])
async def test_the_last_word_lands_is_seen_by_everybody_and_gone_with_the_job(
    app: TaskQ, tmp_path: Path, runs_in: str
) -> None:
    go_on = threading.Event()

    async def on_loop() -> None:
        for number in range(100):
            await progress(number / 100, f"step {number}")
        await progress(1, "all of it")
        await asyncio.to_thread(go_on.wait, 60)

    def in_thread() -> None:
        for number in range(100):
            current_job().progress(number / 100, f"step {number}")
        progress_sync(1, "all of it")
        assert go_on.wait(60)

    function: Any = on_loop if runs_in == "loop" else in_thread
    task, path = app.task(name="work")(function), tmp_path / "data"
    async with app.worker():
        job = await task.enqueue()
        result = await told(job, "all of it")
        assert result.fraction == 1.0
        assert timedelta(0) <= datetime.now(UTC) - result.at < timedelta(seconds=30)
        journal = open_journal(str(path))
        seen = find_progress(journal, job.lsn)
        journal.close()
        assert seen is not None
        assert (seen.fraction, seen.message) == (1.0, "all of it")
        text = (await asyncio.to_thread(taskq, "show", job.id, "-d", path)).stdout
        assert "100% all of it" in text
        shown = await asyncio.to_thread(taskq_json, "show", job.id, "-d", path)
        assert shown["progress"]["message"] == "all of it"
        assert await asyncio.to_thread(job.progress_sync) == result
        go_on.set()
        await job.result(timeout=30)
        assert await job.progress() is None
    await app.close()
    assert not list((path / "owners").glob("*.progress*"))
    assert all(b"all of it" not in path.read_bytes() for path in (path / "log").iterdir())


async def test_a_job_without_progress_calls_has_none_and_writes_no_file(
    app: TaskQ, tmp_path: Path
) -> None:
    @app.task
    async def quiet() -> None: ...

    async with app.worker():
        job = await quiet.enqueue()
        await job.result(timeout=30)
        assert await job.progress() is None
        assert not list((tmp_path / "data/owners").glob("*.progress*"))
        assert app.store()._progress is None
        with pytest.raises(JobNotFound):
            await app.job(f"{job.id.rpartition('-')[0]}-999").progress()


async def test_an_attempt_does_not_show_the_progress_of_the_previous_one(app: TaskQ) -> None:
    second = asyncio.Event()
    go_on = asyncio.Event()

    @app.task(retry=retry.fixed(attempts=3, delay=0))
    async def work() -> None:
        if current_job().attempt == 1:
            await progress(0.9, "nearly")
            await told(app.job(current_job().id), "nearly")
            raise ValueError("once more")
        second.set()
        await go_on.wait()

    async with app.worker():
        job = await work.enqueue()
        await asyncio.wait_for(second.wait(), 30)
        assert await job.progress() is None
        go_on.set()
        await job.result(timeout=30)


REPORTS: list[tuple[Any, Any, float, str]] = [
    (1.0000001, "a", 1.0, "a"), (-1e-9, "b", 0.0, "b"), (float("nan"), "c", 0.0, "c"),
    (float("inf"), "d", 1.0, "d"), (10**400, "e", 1.0, "e"), (True, "f", 1.0, "f"),
    (Fraction(1, 2), "g", 0.5, "g"), (Decimal("0.25"), "h", 0.25, "h"),
    (Decimal("nan"), "i", 0.0, "i"), (0.5, "x" * 501, 0.5, "x" * 499 + "…"),
    (0.5, "x" * 500, 0.5, "x" * 500), (0.5, 17, 0.5, "17"), (0.5, PurePosixPath("a/b"), 0.5, "a/b"),
]  # fmt: skip


async def test_what_is_out_of_range_is_cut_and_what_is_no_number_a_mistake(app: TaskQ) -> None:
    @app.task
    async def work() -> None:
        job = app.job(current_job().id)
        for fraction, message, told_fraction, shown in REPORTS:
            await progress(fraction, message)
            assert (await told(job, shown)).fraction == told_fraction
        wrong: list[Any] = ["half", b"1", None, 1j]
        for value in wrong:
            with pytest.raises(UsageError, match="it must be a number from 0 to 1"):
                await progress(value)

    with pytest.raises(UsageError, match="inside a task: no job runs here"):
        await progress(0.5)
    async with app.worker():
        await (await work.enqueue()).result(timeout=30)


class Runner:
    """The runner of a job, as a board sees it."""


def test_a_progress_board_drops_ended_jobs_and_is_bounded(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path, 7)
    lasting = Runner()
    for job in range(JOBS_MAX + 10):
        board.report(lasting if job > JOBS_MAX else Runner(), job, job, ProgressView(0.5, "", 1))
    board.close()
    board.close()
    rows = json.loads((tmp_path / f"{7:016x}{PROGRESS}").read_text())
    assert {row[0] for row in rows} == set(range(JOBS_MAX + 1, JOBS_MAX + 10))
    board.report(lasting, 1, 1, ProgressView(0.5, "", 1))
    assert board._thread is None


async def test_what_is_no_progress_is_passed_over(app: TaskQ, tmp_path: Path) -> None:
    @app.task(retry=1)
    async def work() -> None:
        job = app.job(current_job().id)
        file = Path(tmp_path / f"data/owners/{app.store().owner:016x}{PROGRESS}")
        for text in ("", "{", "7", "[7]", "[[1,2]]", '[["a",1,0.5,"",1]]', "[" * 100_000):
            await asyncio.to_thread(file.write_text, text)
            assert await job.progress() is None
        await progress(0.5, "there")
        await told(job, "there")
        assert "there" in await asyncio.to_thread(file.read_text)

    async with app.worker():
        await (await work.enqueue()).result(timeout=30)
