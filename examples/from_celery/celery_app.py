"""The original: a shop's background work on Celery. Compare with ``taskq_app``, part by part.

A real app needs Redis or RabbitMQ. This one keeps broker and results in memory, so that one test
can run both apps.
"""

from __future__ import annotations

from celery import Celery, Task, chain, chord, group, shared_task
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.schedules import crontab
from celery.utils.log import get_task_logger

from examples.from_celery.world import Order, world

log = get_task_logger(__name__)

app = Celery("shop", broker="memory://", backend="cache+memory://")
app.conf.update(
    task_serializer="json",
    result_expires=3600,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_default_queue="default",
    task_routes={"shop.mail": {"queue": "mail", "priority": 7}},
    timezone="Europe/Berlin",
    beat_schedule={
        "nightly report": {
            "task": "shop.report",
            "schedule": crontab(minute=30, hour=3),
        },
        "stock every ten minutes": {
            "task": "shop.check_stock",
            "schedule": 600.0,
            "args": ("main",),
        },
    },
)


# -- tasks, retries, limits ------------------------------------------------------------------------


@app.task(
    name="shop.price",
    autoretry_for=(ConnectionError,),
    retry_backoff=1,
    retry_backoff_max=60,
    retry_jitter=True,
    max_retries=4,
    soft_time_limit=20,
    time_limit=30,
)
def price(article: str) -> int:
    try:
        return world.look_up_price(article)
    except SoftTimeLimitExceeded:
        log.warning("the price of %s takes too long", article)
        raise


@app.task(name="shop.charge", bind=True, max_retries=3, rate_limit="10/s")
def charge(self: Task, amount: int, customer: str) -> str:
    if amount <= 0:
        raise Reject("nothing to pay", requeue=False)
    try:
        return world.charge(customer, amount)
    except TimeoutError as error:
        raise self.retry(exc=error, countdown=2**self.request.retries) from error


@app.task(name="shop.mail", ignore_result=True)
def mail(receipt: str, to: str) -> None:
    world.send_mail(to, f"paid: {receipt}")


@app.task(name="shop.total")
def total(prices: list[int]) -> int:
    return sum(prices)


@shared_task(name="shop.report")
def report() -> str:
    return f"{len(world.mails)} mails, {len(world.charges)} charges"


@shared_task(name="shop.check_stock")
def check_stock(place: str) -> str:
    return f"{place}: fine"


# -- workflows -------------------------------------------------------------------------------------


def buy(order: Order) -> str:
    """Look up all prices, add them up, charge the customer, send the receipt."""
    prices = [price.s(article) for article in order.articles]
    workflow = chain(
        chord(group(prices), total.s()),
        charge.s(order.customer),
        mail.s(order.email),
    )
    return workflow.apply_async().id


def remind(customer: str, email: str) -> None:
    """Send a mail in an hour, once a day for a customer, as far as this process knows."""
    if world.once_a_day(f"remind:{customer}"):
        mail.apply_async(("your basket waits", email), countdown=3600, expires=86_400)
