"""An order over days: charge, wait, hear from the customer, pack by other jobs, ship or undo.

``python -m examples.orders`` runs one in a moment, in fake time.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.orders.world import world
from taskq import Discard, TaskQ, durable, retry

app = TaskQ("./data")


@dataclass
class Address:
    """Name the place it goes to; the customer tells it in their own time."""

    street: str
    city: str


@app.task(retry=5)
async def pack(article: str) -> str:
    """Pack one article: a job of its own, which any worker may take."""
    return world.pack(article)


@durable.as_step(retry=retry.exponential(attempts=5), timeout="30s")
async def charge(order: str, cents: int) -> str:
    return world.bank.charge(order, cents, key=durable.key())


def ship(order: str, boxes: list[str], address: Address) -> str:
    """Hand the boxes over; a plain function runs in a thread."""
    return world.ship(order, boxes, f"{address.street}, {address.city}")


async def refund(order: str, receipt: str) -> str:
    return world.bank.refund(order, receipt)


@app.task(retry=5)
async def order(name: str, cents: int, articles: list[str]) -> str:
    """Go through with an order. Whatever dies, each step is done once."""
    receipt = await charge(name, cents)
    # Should it fail for good, or be cancelled while it waits, they get their money back.
    async with durable.undo("refund", refund, name, receipt):
        await durable.sleep("2h")  # they may change their mind
        said = await durable.first(
            durable.event("address", Address), durable.event("regret", str), durable.sleep("7d")
        )
        if not isinstance(said, Address):
            raise Discard(said or "no address within a week")
        boxes = await durable.call([pack.call(article) for article in articles])
        policy = retry.fixed(attempts=3, delay="5m")  # burns no attempt, takes no slot
        return await durable.step("ship", ship, name, boxes, said, retry=policy)
