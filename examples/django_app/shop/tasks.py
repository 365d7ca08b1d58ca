"""The shop's tasks. Views enqueue them, ``manage.py worker`` runs them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import close_old_connections

from taskq import TaskQ, retry

from .models import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

# The log is opened at first use, so a server may fork its processes after this import.
app = TaskQ(settings.TASKQ_DATA_DIR)


@contextmanager
def database() -> Iterator[None]:
    """Close old connections before and after the block, as Django does for a request.

    A worker's threads live long, and Django itself closes connections only at requests.
    """
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@app.task(queue="mail", retry=retry.exponential(attempts=5, give_up_on=Order.DoesNotExist))
def send_receipt(order_id: int) -> str:
    """Send the receipt of an order, and mark the order."""
    with database():
        order = Order.objects.get(pk=order_id)
        # Send the mail here. After a kill at this point the mail is sent twice.
        order.is_receipt_sent = True
        order.save(update_fields=["is_receipt_sent"])
        return f"sent the receipt for {order}"
