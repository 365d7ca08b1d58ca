"""How a delivery ends, from the words of a caller of ``TaskLog`` to what the log is told."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from taskq.core.durations import Duration, nanoseconds
from taskq.core.model import SECOND_NS
from taskq.core.records import Cause, Kind
from taskq.core.retry import DEFAULT
from taskq.log.requests import Settlement
from taskq.serialization import encode_reason

if TYPE_CHECKING:
    from taskq.log.requests import Delivery


def failed(delivery: Delivery, reason: str, delay: Duration | None) -> Settlement:
    """The attempt failed: due again later, or dead after the last one.

    Args:
        delivery: what ``claim`` returned.
        reason: kept with the job.
        delay: until it is due again; None for the default backoff (exponential, full jitter).

    Raises:
        UsageError: the delay is no duration.
    """
    body = encode_reason(reason)
    if 0 < delivery.attempts_max <= delivery.attempt:
        return Settlement(Kind.DIED, delivery, body, cause=Cause.EXHAUSTED)
    if delay is None:
        draw = random.random()  # noqa: S311 - spreads retries, guards no secret
        delay_ns = round(DEFAULT.delay_seconds(delivery.attempt, draw) * SECOND_NS)
    else:
        delay_ns = nanoseconds(delay, "delay")
    return Settlement(Kind.RETRIED, delivery, body, delay_ns=delay_ns)


def released(delivery: Delivery, delay: Duration) -> Settlement:
    """Given back without burning the attempt; due again after ``delay``.

    Raises:
        UsageError: the delay is no duration.
    """
    return Settlement(Kind.RELEASED, delivery, delay_ns=nanoseconds(delay, "delay"))
