"""The same work on taskq. No broker, no beat process: ``taskq worker`` does everything.

Functions stay ``def`` and run in threads. A function that must be interruptible in a blocking call
takes ``runs_in="process"``, like all tasks of Celery.
"""

from __future__ import annotations

import logging
from typing import Final

from examples.from_celery.world import Order, world
from taskq import Discard, FlowHandle, SoftTimeout, TaskQ, chain, chord, retry

log: Final = logging.getLogger(__name__)

app = TaskQ("shop-data")


# -- tasks, retries, limits ------------------------------------------------------------------------


@app.task(
    name="shop.price",
    retry=retry.exponential(attempts=5, base=1, cap=60, jitter="full", retry_on=(ConnectionError,)),
    soft_timeout="20s",
    timeout="30s",
)
def price(article: str) -> int:
    try:
        return world.look_up_price(article)
    except SoftTimeout:
        log.warning("the price of %s takes too long", article)
        raise


@app.task(
    name="shop.charge",
    retry=retry.exponential(attempts=4, base=1, jitter="none", retry_on=(TimeoutError,)),
    rate="10/s",
)
def charge(amount: int, customer: str) -> str:
    if amount <= 0:
        raise Discard("nothing to pay")
    return world.charge(customer, amount)


@app.task(name="shop.mail", queue="mail", store_result=False, priority=7)
def mail(receipt: str, to: str) -> None:
    world.send_mail(to, f"paid: {receipt}")


@app.task(name="shop.total")
def total(prices: list[int]) -> int:
    return sum(prices)


@app.cron("30 3 * * *", tz="Europe/Berlin", name="nightly report")
@app.task(name="shop.report")
def report() -> str:
    return f"{len(world.mails)} mails, {len(world.charges)} charges"


@app.task(name="shop.check_stock")
def check_stock(place: str) -> str:
    return f"{place}: fine"


app.schedule("stock every ten minutes", check_stock.call("main"), every="10m")


# -- workflows -------------------------------------------------------------------------------------


def buy(order: Order) -> FlowHandle[None]:
    """Look up all prices, add them up, charge the customer, send the receipt."""
    prices = [price.call(article) for article in order.articles]
    workflow = chain(
        chord(prices, total.step()),
        charge.step(order.customer),
        mail.step(order.email),
    )
    return workflow.enqueue_sync()


def remind(customer: str, email: str) -> None:
    """Send a mail in an hour, once a day for a customer, regardless of the calling process."""
    once = mail.options(key=f"remind:{customer}", window="1d", delay="1h", expires="1d")
    once.enqueue_sync("your basket waits", email)
