"""The app of the worker tests: its tasks print their start, and some never end by themselves."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

from taskq import TaskQ, current_job

app = TaskQ("unused", durability="os")


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


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
    tell(f"orphan {os.getpid()}")
    while True:
        signal.pause()


@app.task
def forks_by_multiprocessing() -> int:
    """Starts a child that lives on when its worker is killed."""
    attempt = told_attempt()
    if attempt == 1:
        child = multiprocessing.get_context("fork").Process(target=last_for_ever)
        child.start()
        child.join()
    return attempt


@app.task
def forks_by_itself() -> int:
    """Return the same with os.fork."""
    attempt = told_attempt()
    if attempt == 1:
        child = os.fork()
        if not child:
            last_for_ever()
        os.waitpid(child, 0)
    return attempt


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
    os.kill(os.getpid(), signal.SIGKILL)
