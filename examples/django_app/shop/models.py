"""The shop's products."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """One order, and whether its receipt was sent."""

    email = models.EmailField()
    item = models.CharField(max_length=100)
    is_receipt_sent = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.item} for {self.email}"
