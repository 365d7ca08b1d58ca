"""Jobs that are too old for another attempt: what ``max_age`` of a retry policy makes of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from taskq.core.durations import spoken
from taskq.core.model import SECOND_NS
from taskq.core.records import Cause, Kind
from taskq.log.jobage import age_ns
from taskq.log.requests import Settlement
from taskq.serialization import encode_reason
from taskq_workers.reasons import with_note

if TYPE_CHECKING:
    from taskq.log.port import LoopPort
    from taskq.tasks import Task

_log: Final = logging.getLogger("taskq.worker")


async def unless_too_old(
    port: LoopPort, task: Task[..., Any], settlement: Settlement
) -> Settlement:
    """The settlement; for another attempt that would begin after ``max_age``, the job's death.

    A job's age is in the log alone, so it is looked up, and only for tasks that have a longest age.
    """
    if not goes_on(settlement):
        return settlement
    delivery = settlement.delivery
    try:
        age: int = await port.look(
            lambda one: age_ns(one.journal, delivery.job), needs_agenda=False
        )
    except BaseException:  # noqa: BLE001 - the attempt's own outcome must reach the log
        _log.warning("the age of job %s could not be read: it is tried again", delivery.job_id)
        return settlement
    if not task.retry.is_too_old(age, settlement.delay_ns):
        return settlement
    limit = spoken(round((task.retry.max_age_seconds or 0) * SECOND_NS))
    note = f"too old: enqueued {spoken(age)} ago, and max_age is {limit}"
    reason = with_note((settlement.body or b"").decode("utf-8", "replace"), note)
    return Settlement(Kind.DIED, delivery, encode_reason(reason), 0, Cause.EXHAUSTED)


def goes_on(settlement: Settlement) -> bool:
    """Whether the job is to run again because its task said so."""
    if settlement.kind is Kind.RELEASED:
        return settlement.cause is Cause.SNOOZE
    return settlement.kind is Kind.RETRIED
