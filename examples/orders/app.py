"""An order over days: charge, wait, hear from the customer, pack by other jobs, ship.

``python -m examples.orders`` runs one in a moment, in fake time.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.orders.world import world
from taskq import TaskQ, durable

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


async def charge(order: str, cents: int) -> str:
    """Charge the customer; the bank takes one charge of each key, whatever repeats it."""
    return world.bank.charge(order, cents, key=durable.key())


def ship(order: str, boxes: list[str], address: Address) -> str:
    """Hand the boxes over; a plain function runs in a thread."""
    return world.ship(order, boxes, f"{address.street}, {address.city}")


async def cancel(order: str, receipt: str) -> str:
    """Give the money back."""
    return world.bank.refund(order, receipt)


@app.task(retry=5)
async def order(name: str, cents: int, articles: list[str]) -> str:
    """Go through with an order. Whatever dies, each step is done once."""
    receipt = await durable.step("charge", charge, name, cents)
    await durable.sleep("2h")  # they may change their mind
    try:
        address = await durable.event("address", Address, timeout="7d")
    except durable.EventTimeout:
        return await durable.step("cancel", cancel, name, receipt)
    boxes = await durable.call([pack.call(article) for article in articles])
    return await durable.step("ship", ship, name, boxes, address)
