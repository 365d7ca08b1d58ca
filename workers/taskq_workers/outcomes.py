"""From what a task did to what the log is told: one settlement for each delivery."""

from __future__ import annotations

import inspect
from random import random
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import CompressionUnavailable, InvalidCall, LogDamaged, PayloadTooLarge
from taskq.core.model import SECOND_NS
from taskq.core.records import Cause, Kind
from taskq.core.retry import Decision, Die
from taskq.core.signals import Discard, Snooze
from taskq.log.requests import Settlement
from taskq.serialization import encode_reason
from taskq_workers import reasons

if TYPE_CHECKING:
    from taskq.log.requests import Delivery
    from taskq.tasks import Task

#: How long a job waits that this worker lacks a package for, until any worker may take it again.
ELSEWHERE_SECONDS: Final = 60


def settle_failure(task: Task[..., Any], delivery: Delivery, error: BaseException) -> Settlement:
    """What becomes of a job whose function raised.

    A ``Retry``, ``Snooze`` or ``Discard`` is a wish and is granted; anything else goes by the
    task's retry policy. A call that its function refused (TypeError) is rejected, since it would be
    refused each time.
    """
    if isinstance(error, Snooze):
        return Settlement(Kind.RELEASED, delivery, None, error.delay_ns, Cause.SNOOZE)
    if isinstance(error, Discard):
        return reject(delivery, reasons.summary(error))
    reason = reasons.describe(error)
    if isinstance(error, TypeError) and reasons.raised_by_call(error):
        return reject(delivery, reason)
    decision = _decide(task, delivery, error)
    body = encode_reason(reason)
    if isinstance(decision, Die):
        cause = Cause.EXHAUSTED if decision.exhausted else Cause.REJECTED
        return Settlement(Kind.DIED, delivery, body, 0, cause)
    return Settlement(Kind.RETRIED, delivery, body, decision.delay_ns)


def settle_unreadable(delivery: Delivery, error: BaseException) -> Settlement | None:
    """What becomes of a job whose arguments could not be had; None: what its policy says.

    Arguments that do not fit the function of today, or do not read back, never will: the job is
    dead. What only this process cannot decompress waits for one that can; that burns no attempt.
    """
    if isinstance(error, CompressionUnavailable):
        reason = encode_reason(reasons.summary(error))
        return Settlement(Kind.RELEASED, delivery, reason, ELSEWHERE_SECONDS * SECOND_NS)
    if isinstance(error, InvalidCall):
        return reject(delivery, reasons.describe(error))
    if isinstance(error, PayloadTooLarge | LogDamaged):
        return reject(delivery, reasons.summary(error))
    return None


def settle_bad_result(
    task: Task[..., Any], delivery: Delivery, value: object, error: Exception
) -> Settlement:
    """The job ran, but what it returned cannot be kept: dead, as running again cannot help."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        return reject(
            delivery,
            f"{task.name} returned a {type(value).__name__} and is no async function: "
            f"declare it with async def, or wait for the value within it",
        )
    return reject(delivery, f"the result cannot be kept: {reasons.summary(error)}")


def reject(delivery: Delivery, reason: str) -> Settlement:
    """Dead, whatever attempts are left."""
    return Settlement(Kind.DIED, delivery, encode_reason(reason), 0, Cause.REJECTED)


def release(delivery: Delivery) -> Settlement:
    """Give a job back that this worker did not finish; burns no attempt."""
    return Settlement(Kind.RELEASED, delivery, None, 0, Cause.DRAIN)


def _decide(task: Task[..., Any], delivery: Delivery, error: BaseException) -> Decision:
    policy = task.retry
    named = isinstance(error, (policy.retry_on, policy.give_up_on))
    if not named and not isinstance(error, Exception):
        # A cancelled connection or a sys.exit() within a library says nothing of the job itself, so
        # it is judged as any failure is, and not as "no Exception, hence never again".
        error = RuntimeError(reasons.summary(error))
    return policy.decide(
        delivery.attempt,
        error,
        random(),  # noqa: S311 - jitter, no secret
        delivery.attempts_max,
    )
