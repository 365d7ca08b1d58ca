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


def look(desk: Inject[Desk] = injected()) -> tuple[int, int, bool]:
    return os.getpid(), desk.pid, desk.is_open


async def look_on_loop(desk: Inject[Desk] = injected()) -> tuple[int, int, bool]:
    return look(desk)


TASKS = [
    app.task(name="child", runs_in="process")(look),
    app.task(name="child's loop", runs_in="process")(look_on_loop),
    app.task(name="thread")(look),
    app.task(name="loop")(look_on_loop),
]
