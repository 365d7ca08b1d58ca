"""Progress reports of running jobs, their readers, and their lifetime."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
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


def tells_from_async(go_on: threading.Event) -> Callable[[], Any]:
    async def work() -> None:
        for number in range(100):
            await progress(number / 100, f"step {number}")
        await progress(1, "all of it")
        await asyncio.to_thread(go_on.wait, 10)

    return work


def tells_from_thread(go_on: threading.Event) -> Callable[[], Any]:
    def work() -> None:
        for number in range(100):
            current_job().progress(number / 100, f"step {number}")
        progress_sync(1, "all of it")
        assert go_on.wait(10)

    return work


@pytest.mark.parametrize("make", [tells_from_async, tells_from_thread])
async def test_the_last_word_lands_is_seen_by_everybody_and_gone_with_the_job(
    app: TaskQ, tmp_path: Path, make: Callable[[threading.Event], Callable[[], Any]]
) -> None:
    go_on = threading.Event()
    task = app.task(name="work")(make(go_on))
    path = tmp_path / "data"
    async with app.worker():
        job = await task.enqueue()
        result = await told(job, "all of it")
        assert result.fraction == 1.0
        assert timedelta(0) <= datetime.now(UTC) - result.at < timedelta(seconds=30)
        journal = open_journal(str(path))
        seen = find_progress(journal, job.lsn)
        assert seen is not None
        assert (seen.fraction, seen.message) == (1.0, "all of it")
        assert (
            "100% all of it" in (await asyncio.to_thread(taskq, "show", job.id, "-d", path)).stdout
        )
        shown = await asyncio.to_thread(taskq_json, "show", job.id, "-d", path)
        assert shown["progress"]["message"] == "all of it"
        assert await asyncio.to_thread(job.progress_sync) == result
        go_on.set()
        await job.result(timeout=30)
        assert await job.progress() is None
        journal.close()
    await app.close()
    assert not list((path / "owners").glob("*.progress*"))
    assert all(b"all of it" not in path.read_bytes() for path in (path / "log").iterdir())


async def test_a_job_that_tells_nothing_has_no_progress_and_costs_no_file(
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


async def test_an_attempt_does_not_show_what_the_one_before_it_told(app: TaskQ) -> None:
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


@pytest.mark.parametrize(
    ("fraction", "told_fraction"),
    [
        (1.0000001, 1.0), (-1e-9, 0.0), (float("nan"), 0.0), (float("inf"), 1.0),
        (10**400, 1.0), (True, 1.0), (Fraction(1, 2), 0.5), (Decimal("0.25"), 0.25),
        (Decimal("nan"), 0.0),
    ],
)  # fmt: skip
async def test_a_fraction_beyond_its_range_is_the_nearest_in_it_and_fails_no_job(
    app: TaskQ, fraction: Any, told_fraction: float
) -> None:
    go_on = asyncio.Event()

    @app.task
    async def work() -> None:
        await progress(fraction, "so far")
        await go_on.wait()

    async with app.worker():
        job = await work.enqueue()
        assert (await told(job, "so far")).fraction == told_fraction
        go_on.set()
        await job.result(timeout=30)


@pytest.mark.parametrize(
    ("message", "shown"),
    [("x" * 501, "x" * 499 + "…"), ("x" * 500, "x" * 500), (17, "17"), (Path("a/b"), "a/b")],
)
async def test_of_a_message_the_beginning_is_told_and_it_fails_no_job(
    app: TaskQ, message: Any, shown: str
) -> None:
    go_on = asyncio.Event()

    @app.task
    async def work() -> None:
        await progress(0.5, message)
        await go_on.wait()

    async with app.worker():
        job = await work.enqueue()
        assert (await told(job, shown)).message == shown
        go_on.set()
        await job.result(timeout=30)


@pytest.mark.parametrize("fraction", ["half", b"1", None, 1j])
async def test_what_is_no_number_is_a_mistake_of_the_code_and_refused(
    app: TaskQ, fraction: Any
) -> None:
    problems: list[str] = []

    @app.task
    async def work() -> None:
        with pytest.raises(UsageError) as caught:
            await progress(fraction)
        problems.append(str(caught.value))

    async with app.worker():
        await (await work.enqueue()).result(timeout=30)
    assert "it must be a number from 0 to 1" in problems[0]


async def test_outside_a_task_there_is_nothing_to_tell() -> None:
    with pytest.raises(UsageError, match="inside a task: no job runs here"):
        await progress(0.5)


class Runner:
    """The runner of a job, as a board sees it."""


def test_a_board_forgets_who_is_gone_and_has_an_end(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path, 7)
    lasting = Runner()
    for job in range(JOBS_MAX + 10):
        board.tell(lasting if job > JOBS_MAX else Runner(), job, job, ProgressView(0.5, "", 1))
    board.close()
    board.close()
    rows = json.loads((tmp_path / f"{7:016x}{PROGRESS}").read_text())
    assert {row[0] for row in rows} <= set(range(JOBS_MAX, JOBS_MAX + 10))
    board.tell(lasting, 1, 1, ProgressView(0.5, "", 1))
    assert board._thread is None


@pytest.mark.parametrize(
    "content", ["", "{", "7", "[7]", "[[1,2]]", '[["a",1,0.5,"",1]]', "[" * 100_000]
)
async def test_what_is_no_progress_is_passed_over(app: TaskQ, tmp_path: Path, content: str) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        await go_on.wait()

    async with app.worker():
        job = await work.enqueue()
        await began.wait()
        owner = app.store().owner
        file = Path(tmp_path / f"data/owners/{owner:016x}{PROGRESS}")
        await asyncio.to_thread(file.write_text, content)
        assert await job.progress() is None
        go_on.set()
