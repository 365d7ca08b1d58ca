"""The app of the worker tests: its tasks print their start, and some never end by themselves."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

from taskq import Inject, TaskQ, current_job, injected
from tests.processes import striker

app = TaskQ("unused", durability="os")


class Pool:
    """Something that one process opens once."""

    def __init__(self) -> None:
        self.pid = os.getpid()


@app.lifespan
async def pool() -> AsyncIterator[Pool]:
    yield Pool()


def tell(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def told_attempt() -> int:
    attempt = current_job().attempt
    tell(f"attempt {attempt} {time.monotonic()} {os.getpid()}")
    return attempt


@app.task
async def quick(number: int) -> int:
    return number


@app.task(retry=1)
def send(needed: str) -> int:
    """Fail until a file is there."""
    if not Path(needed).exists():
        raise ConnectionError("the mail server is away")
    return os.getpid()


def last_for_ever() -> None:
    while True:
        signal.pause()


@app.task
def terminates_a_child() -> int:
    """As pools do with their processes: with SIGTERM."""
    child = multiprocessing.get_context("fork").Process(target=last_for_ever)
    child.start()
    child.terminate()
    child.join()
    return child.exitcode or 0


@app.task
async def kills_its_worker() -> None:
    told_attempt()
    os.kill(os.getpid(), striker.SIGKILL)


@app.task
async def who(*, pool: Inject[Pool] = injected()) -> int:
    assert pool.pid == os.getpid()
    return os.getpid()


@app.task
async def waits_for(path: str) -> int:
    """Ends when the file is there."""
    tell("waiting", os.getpid(), current_job().attempt)
    while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240, PTH110 - made by the test's process
        await asyncio.sleep(0.01)
    return os.getpid()


@app.task
async def blocks() -> None:
    """Keeps its loop from turning."""
    tell("running", os.getpid(), current_job().attempt)
    threading.Event().wait()


@app.task
async def waits() -> None:
    tell("running", os.getpid(), current_job().attempt)
    await asyncio.Event().wait()
