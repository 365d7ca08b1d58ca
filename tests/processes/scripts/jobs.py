"""The app of the worker tests: its tasks print their start, and some never end by themselves.

Tasks of the kill matrix are one function for each executor. A worker's first attempt of such a job
ends the worker before the function is called, or after it returned; the test itself does so in the
middle.
"""

import asyncio
import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from taskq import Inject, TaskQ, current_job, injected
from tests.processes import striker

app = TaskQ("unused", durability="os")
_LOOK_AGAIN_SECONDS = 0.002
_moment = ""


class Pool:
    def __init__(self) -> None:
        self.pid = os.getpid()


@app.lifespan
async def pool() -> AsyncIterator[Pool]:
    yield Pool()


def tell(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


@app.task
async def quick(number: int) -> int:
    return number


@app.task(retry=1)
def send(needed: str) -> int:
    if not Path(needed).exists():
        raise ConnectionError("the mail server is away")
    return os.getpid()


def last_for_ever() -> None:
    tell("orphan", os.getpid())
    while True:
        threading.Event().wait()


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
    begin("")
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
    tell("running", os.getpid(), current_job().attempt)
    threading.Event().wait()


@app.task
async def waits() -> None:
    tell("running", os.getpid(), current_job().attempt)
    await asyncio.Event().wait()


# -- the kill matrix -------------------------------------------------------------------------------


def strike() -> None:
    """Kill the worker: this very process, or the one whose child this is."""
    tell("strike", time.monotonic())
    worker = os.getppid() if current_job().task.endswith("process") else os.getpid()
    os.kill(worker, striker.SIGKILL)
    while True:
        threading.Event().wait()


def before(moment: str) -> str:
    if moment == "before" and current_job().attempt == 1:
        strike()
    return moment


def after(value: int) -> int:
    if _moment == "after" and value == 1:
        strike()
    return value


#: Read back just before the function is called, and written just after it returned.
Moment = Annotated[str, BeforeValidator(before)]
Attempt = Annotated[int, PlainSerializer(after)]


def begin(moment: str) -> int:
    global _moment  # noqa: PLW0603 - the serializer gets the value alone
    _moment = moment
    attempt = current_job().attempt
    tell("attempt", attempt, time.monotonic(), os.getpid())
    return 0 if moment == "mid" and attempt == 1 else attempt


@app.task
async def in_async(moment: Moment) -> Attempt:
    attempt = begin(moment)
    if not attempt:
        await asyncio.Event().wait()
    return attempt


@app.task
def in_thread(moment: Moment) -> Attempt:
    attempt = begin(moment)
    if not attempt:
        threading.Event().wait()
    return attempt


@app.task(runs_in="process")
def in_process(moment: Moment) -> Attempt:
    return in_thread(moment)


@app.task
def in_multiprocessing(moment: Moment) -> Attempt:
    attempt = begin(moment)
    if not attempt:
        child = multiprocessing.get_context("fork").Process(target=last_for_ever)
        child.start()
        child.join()
    return attempt


@app.task
def in_fork(moment: Moment) -> Attempt:
    attempt = begin(moment)
    if not attempt:
        child = os.fork()
        if not child:
            last_for_ever()
        os.waitpid(child, 0)
    return attempt


@app.task
async def until_deaf(path: str) -> None:
    """Ignores its cancellation, as often as it comes."""
    begin("")
    while path:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


@app.task
async def until_async(path: str) -> str:
    begin("")
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240 - a file, by another process
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    return "done"


@app.task
def until_thread(path: str) -> str:
    begin("")
    while not Path(path).exists():
        time.sleep(_LOOK_AGAIN_SECONDS)
    return "done"


@app.task(runs_in="process")
def until_process(path: str) -> str:
    return until_thread(path)
