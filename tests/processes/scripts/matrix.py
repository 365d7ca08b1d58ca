"""The app of the kill matrix: one function for each executor, and moments at which a worker dies.

A worker's first attempt of a job ends the worker before the function is called, or after it
returned; the test itself does so in the middle.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from taskq import TaskQ, current_job
from taskq_workers.runs import system

app = TaskQ("unused", durability="os")
_LOOK_AGAIN_SECONDS = 0.002
_moment = ""


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def strike() -> None:
    """Kill the worker: this very process, or the one whose child this is."""
    tell(f"strike {time.monotonic()}")
    worker = os.getppid() if current_job().task.endswith("process") else os.getpid()
    os.kill(worker, system.SIGKILL)
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
    tell(f"attempt {attempt} {time.monotonic()} {os.getpid()}")
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
    attempt = begin(moment)
    if not attempt:
        threading.Event().wait()
    return attempt


def last_for_ever() -> None:
    tell(f"orphan {os.getpid()}")
    while True:
        threading.Event().wait()


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
    tell(f"attempt {current_job().attempt} {time.monotonic()} {os.getpid()}")
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
