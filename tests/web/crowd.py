"""Brings the shop to 22 000 jobs: ``python crowd.py`` beside ``shop.py``, once that has run."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import shop

from taskq import TaskQ, durable
from taskq.views import STATES

app: TaskQ = shop.app
#: Jobs of the whole log.
JOBS = 22_000
#: Dead letters that there are then of ``stock.check``.
DEAD = 1_500


@app.task(name="crawl.page", queue="crawl")
async def crawl(url: str) -> None:
    await asyncio.sleep(0.05)


@app.task(name="stock.check", queue="stock", retry=1)
def check(item: int) -> None:
    if not Path(f"{app.data_dir}.stock-is-up").exists():
        raise LookupError(f"item {item} is in no shelf")


def charge(order: int) -> dict[str, int]:
    return {"order": order, "cents": 1_999}


@app.task(name="orders.ship", queue="orders")
async def ship(order: int) -> str:
    await durable.step("charge", charge, order)
    with contextlib.suppress(durable.EventTimeout):
        await durable.event("word of the bank", timeout="0.5s")
    address: str = await durable.event("address", str, timeout="7d")
    return await durable.step("label", asyncio.sleep, 0.3, address)


async def fill() -> None:
    async with app:
        await crawl.enqueue("https://needle.example")
        await check.enqueue_many([(item,) for item in range(DEAD)])
        job = await ship.enqueue(4_711)
        async with app.worker(queues=["stock", "orders"], burst=True) as worker:
            await worker.stopped.wait()
        await app.signal(job, "address", "12 Harbour Street")
        async with app.worker(queues=["orders"], burst=True) as worker:
            await worker.stopped.wait()
        await ship.enqueue(4_712)
        jobs = sum(
            getattr(queue, state) for queue in (await app.stats()).queues for state in STATES
        )
        await crawl.enqueue_many([(f"https://{number}.example",) for number in range(JOBS - jobs)])


if __name__ == "__main__":
    asyncio.run(fill())
