"""How a job ends that runs in another process than the one that claimed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskq.engine import Settlement, kinds
from taskq.hooks import encode_reason
from taskq.values import SECOND_NS
from taskq_workers.slots.outcomes import (
    ELSEWHERE_SECONDS,
    settle_bad_result,
    settle_failure,
    settle_unreadable,
)
from taskq_workers.slots.shipping import Ended, pickled_error

if TYPE_CHECKING:
    from taskq import Delivery, JobContext, Task
    from taskq.hooks import Loose


def failed(
    number: int,
    task: Task[..., Any],
    delivery: Delivery,
    error: BaseException,
    seconds: float,
    *,
    called: bool,
) -> Ended:
    """Return the end of a job that raised; ``called`` is false if its arguments were not had."""
    settlement = None if called else settle_unreadable(delivery, error)
    end = ended(number, settlement or settle_failure(task, delivery, error), seconds)
    return end._replace(error=pickled_error(error))


def succeeded(
    number: int, task: Task[..., Any], job: JobContext, value: object, seconds: float
) -> Ended:
    delivery, packer = job.delivery, job.app.connection.packer
    try:
        body = task.encode_result(value)
    except Exception as error:  # noqa: BLE001 - a result may raise what it likes when read
        return ended(number, settle_bad_result(task, delivery, value, error), seconds)
    children = tuple(packer.loose(pending.call) for pending, *_ in job.children or ())
    return ended(number, Settlement(kinds.SUCCESS, delivery, body), seconds, children)


def given_back(number: int, delivery: Delivery, reason: str) -> Ended:
    """Return the end of a job that cannot be run here, and may be elsewhere; burns no attempt."""
    delay_ns = ELSEWHERE_SECONDS * SECOND_NS
    return ended(number, Settlement(kinds.RELEASE, delivery, encode_reason(reason), delay_ns), 0.0)


def ended(
    number: int, settlement: Settlement, seconds: float, children: tuple[Loose, ...] = ()
) -> Ended:
    return Ended(
        number,
        int(settlement.kind),
        settlement.body,
        settlement.delay_ns,
        int(settlement.cause),
        children,
        seconds,
    )
