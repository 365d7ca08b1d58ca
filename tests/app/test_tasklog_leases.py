"""Leases as a caller of ``TaskLog`` meets them, with the real clock and the real thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq.errors import StaleDelivery, UsageError

if TYPE_CHECKING:
    from taskq import TaskLog


async def test_a_waiting_claimer_gets_the_job_the_moment_its_lease_ends(log: TaskLog) -> None:
    """Nobody pokes it: the storage thread wakes by itself for the deadline."""
    await log.put(b"x")
    (first,) = await log.claim(lease="50ms")
    (second,) = await log.claim(wait="20s", lease="1h")
    assert (second.job_id, second.attempt) == (first.job_id, 2)
    with pytest.raises(StaleDelivery):
        await log.ack(first)
    with pytest.raises(StaleDelivery):
        await log.extend(first)
    await log.extend(second, seconds="2h")
    await log.ack(second)


async def test_an_extended_delivery_is_not_handed_out_again(log: TaskLog) -> None:
    await log.put(b"x")
    (held,) = await log.claim(lease="50ms")
    await log.extend(held, seconds=3_600)
    assert await log.claim(wait="100ms") == []
    await log.ack(held)


async def test_a_lease_is_longer_than_nothing(log: TaskLog) -> None:
    with pytest.raises(UsageError, match="lease is 0: it must be longer than nothing"):
        await log.claim(lease=0)
    await log.put(b"x")
    (held,) = await log.claim()
    with pytest.raises(UsageError, match="seconds is '0s'"):
        await log.extend(held, seconds="0s")
