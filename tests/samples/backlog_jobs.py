"""An app whose jobs run on executors, which import it by this module's name."""

from __future__ import annotations

import asyncio
import os

from taskq import Snooze, TaskQ, current_job, retry

app = TaskQ("never-made")


@app.task
def double(number: int) -> int:
    return 2 * number


@app.task
async def nap(number: int) -> int:
    await asyncio.sleep(0.001)
    return number


@app.task(retry=retry.fixed(2, delay=0))
def fail() -> None:
    raise ValueError(f"no way, attempt {current_job().attempt}")


@app.task
def parent(number: int) -> str:
    for child in range(number):
        current_job().enqueue(double.call(child))
    return current_job().headers.get("name", "")


@app.task(compress="zlib")
def shout(text: str) -> str:
    return text.upper()


@app.task(retry=retry.fixed(2, delay=0))
def die() -> None:
    os._exit(3)


@app.task
def later() -> None:
    raise Snooze(3600)


@app.task(timeout=0.01, retry=retry.fixed(1))
async def slow() -> None:
    await asyncio.Event().wait()
