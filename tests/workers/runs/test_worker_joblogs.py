"""The job in each of its log lines, for any worker and format; lines that stay."""

from __future__ import annotations

import asyncio
import io
import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskq import TaskQ, current_job, retry
from taskq.cli.main import main
from taskq.core.model import LINES_BYTES_MAX
from taskq.errors import JobFailed, UsageError
from taskq.log.read.reader import LogReader
from taskq_workers.runs.joblogs import LEFT_OUT
from tests.workers import joblogs_of_children

SECONDS = 30


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Yield what a program with a format of its own logs."""
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    form = "%(taskq_job)s|%(taskq_task)s|%(taskq_attempt)d|%(message)s"
    handler.setFormatter(logging.Formatter(form))
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    make = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)
    yield output
    logging.setLogRecordFactory(make)
    logger.removeHandler(handler)


async def test_a_worker_within_a_program_names_jobs_in_the_programs_own_format(
    app: TaskQ, lines: io.StringIO
) -> None:
    @app.task
    async def count(number: int) -> None:
        logging.getLogger("shop").warning("counted %d", number)

    @app.task
    def count_in_thread(number: int) -> None:
        logging.getLogger("shop").warning("counted %d", number)

    async with app, app.worker():
        jobs = [await count.enqueue(1), await count_in_thread.enqueue(2)]
        for job in jobs:
            await job.result(SECONDS)
        logging.getLogger("shop").warning("outside")
    answer = sorted(lines.getvalue().splitlines())
    assert answer == sorted(
        [
            f"{jobs[0].id}|{count.name}|1|counted 1",
            f"{jobs[1].id}|{count_in_thread.name}|1|counted 2",
            "||0|outside",
        ]
    )


async def test_what_a_program_calls_its_own_particulars_is_not_taken(
    app: TaskQ, lines: io.StringIO
) -> None:
    """A record refuses an ``extra`` of a name that it has already, with an error in the task."""

    @app.task
    async def order() -> None:
        logging.getLogger("shop").warning("x", extra={"job_id": 7, "task": "t", "attempt": 2})

    async with app, app.worker():
        await (await order.enqueue()).result(SECONDS)


# -- lines that are kept ---------------------------------------------------------------------------


async def test_the_lines_of_each_attempt_stay_with_its_outcome(app: TaskQ) -> None:
    @app.task(keep_log="1KB", retry=retry.fixed(2, delay=0))
    async def fail() -> None:
        logging.getLogger("shop").warning("try %d", current_job().attempt)
        await asyncio.to_thread(logging.getLogger("shop").error, "in a thread")
        raise ValueError("no")

    @app.task(keep_log="1KB")
    def succeed() -> None:
        logging.getLogger("shop").warning("well")

    @app.task
    async def other() -> None:
        logging.getLogger("shop").warning("nobody's")

    async with app, app.worker():
        jobs = [await process.enqueue() for process in (fail, succeed, other)]
        await jobs[1].result(SECONDS)
        await jobs[2].result(SECONDS)
        with pytest.raises(JobFailed):
            await jobs[0].result(SECONDS)
    assert [[_untimed(item) for item in kept(app, job.id)] for job in jobs] == [
        [[f"WARNING shop: try {n}", "ERROR shop: in a thread"] for n in (1, 2)],
        [["WARNING shop: well"]],
        [[]],
    ]


async def test_of_many_lines_the_latest_are_kept_and_it_is_said_that_there_were_more(
    app: TaskQ,
) -> None:
    @app.task(keep_log=300)
    async def talk() -> int:
        for number in range(1_000):
            logging.getLogger("shop").warning("line %d", number)
        logging.getLogger("shop").warning("%s", "é" * 10_000)
        return 1

    @app.task(keep_log="64KiB")
    async def noise() -> None:
        for _ in range(80):
            logging.getLogger("shop").warning("%s", random.randbytes(500).hex())

    async with app, app.worker():
        talks, noises = await talk.enqueue(), await noise.enqueue()
        await talks.result(SECONDS)
        await noises.result(SECONDS)
    (few,), (dense,) = kept(app, talks.id), kept(app, noises.id)
    assert few.startswith(f"{LEFT_OUT}\né")
    assert len(few.encode()) < 400
    assert 40_000 < len(dense) <= LINES_BYTES_MAX


async def test_a_child_that_is_killed_leaves_its_lines(app: TaskQ) -> None:
    theirs = joblogs_of_children.app
    theirs.data_dir = app.data_dir
    async with theirs, theirs.worker():
        died = await joblogs_of_children.die.enqueue()
        with pytest.raises(JobFailed):
            await died.result(SECONDS)
        spoke = await joblogs_of_children.speak.enqueue("hello")
        assert await spoke.result(SECONDS) == 5
    seen = [_untimed(line) for job in (died.id, spoke.id) for line in kept(theirs, job)]
    assert seen == [["ERROR shop: alas"], ["ERROR shop: hello"]]


async def test_lines_outlive_the_compaction_of_a_dead_letter(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", segment_bytes=64 * 1024)

    @app.task(keep_log="1KB", retry=1)
    async def fail() -> None:
        logging.getLogger("shop").warning("the last word")
        raise ValueError("no")

    @app.task
    async def fill(text: str) -> None: ...

    async with app, app.worker():
        job = await fail.enqueue()
        with pytest.raises(JobFailed):
            await job.result(SECONDS)
        for filler in await fill.enqueue_many([("x" * 10_000,) for _ in range(30)]):
            await filler.result(SECONDS)
        assert (await app.compact(keep=0)).segments
    (lines,) = kept(app, job.id)
    assert _untimed(lines) == ["WARNING shop: the last word"]
    runner = CliRunner().invoke(main, ["show", job.id, "-d", str(app.data_dir)])
    assert "logged by attempt 1\n" in runner.output
    assert "WARNING shop: the last word\n" in runner.output


@pytest.mark.parametrize("size", [0, "65KiB", "much"])
async def test_a_size_that_cannot_be_kept_is_refused_where_it_is_written(
    app: TaskQ, size: int | str
) -> None:
    with pytest.raises(UsageError, match="keep_log is"):

        @app.task(keep_log=size)
        async def never() -> None: ...


def kept(app: TaskQ, job_id: str) -> list[str]:
    """Return the lines of each attempt, as a reader beside it finds them."""
    with LogReader.open(str(app.data_dir)) as reader:
        view = reader.job(reader.parse_id(job_id))
    assert view is not None
    return [attempt.lines for attempt in view.attempts]


def _untimed(lines: str) -> list[str]:
    return [line.split(" ", 2)[2] for line in lines.splitlines()]
