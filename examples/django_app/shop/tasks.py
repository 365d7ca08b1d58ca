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

# Opened at first use, so that a server may fork its processes after this was imported.
app = TaskQ(settings.TASKQ_DATA_DIR)


@contextmanager
def database() -> Iterator[None]:
    """Connections as a request has them: old ones are closed before and after.

    A worker's threads live long, and Django looks after connections at requests alone.
    """
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@app.task(queue="mail", retry=retry.exponential(attempts=5, give_up_on=Order.DoesNotExist))
def send_receipt(order_id: int) -> str:
    """Send the receipt of an order, and note that in its row."""
    with database():
        order = Order.objects.get(pk=order_id)
        # Send the mail here. A kill right after it sends the mail twice.
        order.is_receipt_sent = True
        order.save(update_fields=["is_receipt_sent"])
        return f"sent the receipt for {order}"
