"""Gives the shop of the pictures an hour that has passed: ``python past.py`` beside ``shop.py``."""

import asyncio
import os
import random
import time
from typing import Any

from taskq import TaskQ, retry
from taskq.testing import TravelClock, use_clock

MINUTES = 60
chance = random.Random(7)
clock = TravelClock(time.time() - 60 * MINUTES)
app = TaskQ(os.environ["TASKQ_DATA_DIR"], durability="os", name="shop")
use_clock(app, clock)


def work(seconds: float, fails: float, error: Exception) -> None:
    clock.advance(chance.uniform(seconds / 5, seconds))
    if chance.random() < fails:
        raise error


@app.task(name="mail.send", queue="mail", retry=retry.fixed(2, 0))
def send(to: str, subject: str) -> None:
    work(0.4, 0.06, ConnectionError("the mail server is away"))


@app.task(name="pages.fetch", queue="pages", retry=1)
def fetch(url: str) -> None:
    work(1.5, 0.05, TimeoutError("no answer in 30 s"))


@app.task(name="orders.import", queue="orders", retry=1)
def load(row: dict[str, Any]) -> None:
    work(0.05, 0.04, ValueError("invalid literal for int() with base 10: 'many'"))


async def live() -> None:
    """Let each minute pass with jobs of its own, and two that are busier."""
    async with app:
        for minute in range(MINUTES):
            begun_ns, many = clock.wall_ns(), 10 + 20 * (25 < minute < 33) + chance.randrange(10)
            await send.enqueue_many(
                [(f"customer{n}@example.org", "Your order") for n in range(many)]
            )
            await fetch.enqueue_many([(f"https://{n}.example",) for n in range(many // 3)])
            await load.enqueue_many([({"quantity": n},) for n in range(many // 4)])
            await app.worker(burst=True, concurrency=1).run()
            clock.advance(max(60 - (clock.wall_ns() - begun_ns) / 1e9, 0))


if __name__ == "__main__":
    asyncio.run(live())
