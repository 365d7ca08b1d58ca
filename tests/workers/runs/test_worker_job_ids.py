"""The id of a job in each line that it logs, whoever made the worker and the format."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq import TaskQ

SECONDS = 20


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a program with a format of its own logs."""
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(logging.Formatter("%(job_id)s|%(message)s"))
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
    told = sorted(lines.getvalue().splitlines())
    assert told == sorted([f"{jobs[0].id}|counted 1", f"{jobs[1].id}|counted 2", "|outside"])
