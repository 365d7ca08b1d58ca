"""Tasks that child processes import by the name of this module."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
from datetime import datetime
from pathlib import Path

from taskq import SoftTimeout, TaskQ, current_job, retry

app = TaskQ("unused", durability="os")
ONCE = retry.fixed(attempts=2, delay=0)


@app.task(runs_in="process")
def where(text: str) -> tuple[int, str]:
    return os.getpid(), text


@app.task(runs_in="process")
async def where_async(text: str) -> tuple[int, str]:
    await asyncio.sleep(0)
    return os.getpid(), text


@app.task(runs_in="thread")
async def on_own_loop() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


@app.task(runs_in="process", timeout="1h")
def facts() -> tuple[str, int, dict[str, str], datetime | None]:
    job = current_job()
    return job.id, job.attempt, job.headers, job.deadline


@app.task
async def child(text: str) -> str:
    return text


@app.task(runs_in="process", retry=ONCE)
def parent(*, fails: bool) -> str:
    current_job().enqueue(child.call("of a process"))
    if fails and current_job().attempt == 1:
        raise ValueError("not yet")
    return "enqueued"


@app.task(runs_in="process")
def mirror(data: str) -> str:
    return data


@app.task(runs_in="process", retry=ONCE)
def dies(how: str) -> str:
    if current_job().attempt == 2:
        return "the second time"
    if how == "null":
        ctypes.string_at(0)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


@app.task(runs_in="process", retry=1)
def waits_for(path: str) -> int:
    """Waits until the file is there."""
    while not Path(path).exists():
        threading.Event().wait(0.002)
    return os.getpid()


@app.task(runs_in="process", retry=1)
def lasts(path: str) -> None:
    """Says where it runs, and never ends."""
    Path(path).write_text(str(os.getpid()), encoding="ascii")
    signal.pause()


@app.task(runs_in="process", timeout=0.3, retry=1)
def hangs(path: str) -> None:
    Path(path).write_text(str(os.getpid()), encoding="ascii")
    while True:
        signal.pause()


@app.task(runs_in="process", timeout=0.3, retry=1)
def brief() -> int:
    return 1


@app.task(runs_in="process", soft_timeout=0.2, timeout="1m", retry=1)
def cleans_up() -> str:
    try:
        while True:
            signal.pause()
    except SoftTimeout as error:
        return f"cleaned up: {error}"


@app.task(runs_in="process", soft_timeout=0.2, timeout="1m", retry=1)
async def cleans_up_async() -> str:
    try:
        await asyncio.Event().wait()
    except SoftTimeout as error:
        return f"cleaned up: {error}"
    return "?"


@app.task(runs_in="process", retry=1)
def grows() -> int:
    global _kept  # noqa: PLW0603 - a leak is what it is for
    _kept += bytes(60_000_000)
    return os.getpid()


_kept = bytearray()


@app.task(runs_in="process", retry=1)
def raises() -> None:
    raise LookupError("in a process")


@app.task(runs_in="process", retry=1)
def exits() -> None:
    raise SystemExit(4)
