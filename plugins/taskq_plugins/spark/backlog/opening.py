"""Payloads that executors may not be able to read: compressed, in files, or of flows' steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.engine import Settlement, kinds
from taskq.hooks import Inputs, encode_reason
from taskq.values import SECOND_NS
from taskq_workers.slots.outcomes import (
    ELSEWHERE_SECONDS,
    release,
    settle_failure,
    settle_unreadable,
)

if TYPE_CHECKING:
    from taskq import Delivery, TaskQ

#: Payloads of a chunk. A larger one is left to a worker that runs its jobs itself, since Spark
#: sends no message over 128 MiB.
SHIP_BYTES_MAX: Final = 64 << 20


async def open_payloads(
    app: TaskQ, chunk: list[Delivery]
) -> tuple[dict[int, bytes], list[Settlement]]:
    """Return payloads by job, where the record holds them otherwise; and what cannot be sent.

    The latter are taken out of the chunk.
    """
    payloads: dict[int, bytes] = {}
    settlements: list[Settlement] = []
    sendable: list[Delivery] = []
    size_bytes = 0
    for delivery in chunk:
        if not Inputs.needed(delivery):
            sendable.append(delivery)
            continue
        try:
            payload = await Inputs(app).payload(delivery)
        except Exception as error:  # noqa: BLE001 - no job may stop its worker
            failed = settle_unreadable(delivery, error)
            task = app.tasks[delivery.task]
            settlements.append(failed or settle_failure(task, delivery, error))
            continue
        if len(payload) > SHIP_BYTES_MAX:
            settlements.append(_too_large(delivery, len(payload)))
        elif size_bytes + len(payload) > SHIP_BYTES_MAX:
            settlements.append(release(delivery))
        else:
            size_bytes += len(payload)
            payloads[delivery.job] = payload
            sendable.append(delivery)
    chunk[:] = sendable
    return payloads, settlements


def _too_large(delivery: Delivery, size_bytes: int) -> Settlement:
    reason = encode_reason(
        f"its payload has {size_bytes} bytes, and no more than {SHIP_BYTES_MAX} go to an executor: "
        f"run a worker without --executor beside this one"
    )
    return Settlement(kinds.RELEASE, delivery, reason, ELSEWHERE_SECONDS * SECOND_NS)
