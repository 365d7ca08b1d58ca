"""Two views: buy something, and show the state of the receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_GET, require_POST

from taskq import State
from taskq.errors import JobNotFound, UsageError
from taskq_plugins.django import enqueue_on_commit

from .models import Order
from .tasks import app, send_receipt

if TYPE_CHECKING:
    from taskq import JobHandle

SOLD_OUT = "unicorn"


class SoldOut(Exception):
    """The product is sold out."""


@require_POST
def buy(request: HttpRequest) -> JsonResponse:
    """Store an order, and enqueue its receipt when the order is committed."""
    jobs: list[JobHandle[str]] = []
    try:
        with transaction.atomic():
            order = _store(request.POST.get("email", ""), request.POST.get("item", ""), jobs)
    except SoldOut as error:
        return JsonResponse({"error": str(error)}, status=409)
    return JsonResponse({"order": order.pk, "job": jobs[0].id}, status=201)


def _store(email: str, item: str, jobs: list[JobHandle[str]]) -> Order:
    order: Order = Order.objects.create(email=email, item=item)
    enqueue_on_commit(send_receipt.call(order.pk), then=jobs.append)
    if item == SOLD_OUT:
        raise SoldOut(f"{item}: sold out")
    return order


@require_GET
def show(request: HttpRequest, job_id: str) -> JsonResponse:
    del request
    try:
        job = app.job(job_id)
        view = job.view_sync()
    except (JobNotFound, UsageError) as error:
        return JsonResponse({"error": str(error)}, status=404)
    result = job.result_sync(timeout=0) if view.state is State.SUCCEEDED else None
    reason = view.reason.partition("\n")[0]
    return JsonResponse({"state": view.state.name.lower(), "result": result, "reason": reason})
