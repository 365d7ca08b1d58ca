"""Claims with a deadline: kept by extending, over once, and their tokens with them."""

from __future__ import annotations

from typing import Any

import pytest

from taskq.core.errors import StaleDelivery
from taskq.core.model import SECOND_NS, State
from taskq.core.records import Cause, Kind
from taskq.log.commit.committer import LOOK_AROUND_NS
from taskq.log.requests import ClaimRequest, Delivery, Op
from taskq.log.store.thread import seconds_until_due
from tests.log.world import Process, World

LEASE = 30


def claim(process: Process, seconds: float = LEASE) -> list[Delivery]:
    request = ClaimRequest(9, wait_until_ns=0, lease_ns=int(seconds * SECOND_NS))
    deliveries: list[Delivery] = process.ask(Op.CLAIM, request)
    return deliveries


def extend(process: Process, delivery: Delivery, seconds: float = LEASE) -> Any:
    return process.ask(Op.EXTEND, (delivery, int(seconds * SECOND_NS)))


def test_an_expired_lease_redelivers_once(world: World) -> None:
    """One release, one new delivery with the next attempt, however many claimers look."""
    holder, *others = (world.process() for _ in range(3))
    job = holder.enqueue()
    (held,) = claim(holder)
    world.clock.advance(LEASE)
    again = [delivery for process in (*others, holder) for delivery in claim(process)]
    assert [(item.job, item.attempt) for item in again] == [(job, 2)]
    assert [claim(process) for process in others] == [[], []]
    released = [record for record in world.records() if record.type == Kind.RELEASED]
    assert [(delivery.job, delivery.token, delivery.cause) for delivery in released] == [
        (job, held.token, str(Cause.LEASE_OVER))
    ]
    others[0].settle(again[0])
    assert world.fold().need_agenda().table.state(job) is State.ABSENT


def test_a_stale_token_is_refused_even_from_the_same_worker(world: World) -> None:
    """One process holds the old and the new delivery of a job: the old one is good for nothing.

    Ack, nack, release and extend are refused and change nothing; the new one is as good as ever.
    """
    process = world.process()
    job = process.enqueue()
    (old,) = claim(process)
    world.clock.advance(LEASE)
    (new,) = claim(process)
    assert (new.job, new.epoch, new.attempt) == (job, old.epoch, 2)
    before = world.kinds()
    for kind in (Kind.SUCCEEDED, Kind.RETRIED, Kind.RELEASED, Kind.DEAD):
        with pytest.raises(StaleDelivery):
            process.settle(old, kind)
    with pytest.raises(StaleDelivery):
        extend(process, old)
    assert world.kinds() == before
    extend(process, new)
    process.settle(new)
    with pytest.raises(StaleDelivery):
        extend(process, new)


class _Never:
    def done(self) -> bool:
        return False


def test_a_claimer_sleeps_no_longer_than_the_next_lease(world: World) -> None:
    holder, other = world.process(), world.process()
    holder.enqueue()
    (held,) = claim(holder, 0.125)
    other.catch_up()
    other.committer.waiters.claims.append((ClaimRequest(1), None, _Never()))
    assert seconds_until_due(other.committer) == pytest.approx(0.125)
    holder.settle(held)
    other.catch_up()
    assert seconds_until_due(other.committer) == LOOK_AROUND_NS / SECOND_NS
