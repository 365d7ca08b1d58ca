"""Tasks of each kind that take what a lifespan yields; child processes import this module."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from taskq import Inject, TaskQ, injected

app = TaskQ("unused", durability="os")
#: Longer than a child without lifespans gets to end.
CLOSE_SECONDS = 0.7


class Desk:
    """Says in which process it was opened, and whether it still is."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_open = True


@app.lifespan
async def desk(app: TaskQ) -> AsyncIterator[Desk]:
    answers = Desk()
    yield answers
    answers.is_open = False
    await asyncio.sleep(CLOSE_SECONDS)
    mark = Path(app.data_dir).parent / f"closed-{answers.pid}"
    await asyncio.to_thread(mark.touch)


@app.task(runs_in="process")
def in_process(desk: Inject[Desk] = injected()) -> tuple[int, int, bool]:
    return os.getpid(), desk.pid, desk.is_open


@app.task(runs_in="process")
async def in_process_async(desk: Inject[Desk] = injected()) -> tuple[int, int, bool]:
    return os.getpid(), desk.pid, desk.is_open


@app.task
def in_thread(desk: Inject[Desk] = injected()) -> tuple[int, int, bool]:
    return os.getpid(), desk.pid, desk.is_open


@app.task
async def in_loop(desk: Inject[Desk] = injected()) -> tuple[int, int, bool]:
    return os.getpid(), desk.pid, desk.is_open
