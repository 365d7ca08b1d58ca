"""Claims with a deadline: kept by extending, over once, and their tokens with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from taskq.core.errors import StaleDelivery
from taskq.core.model import SECOND_NS, State
from taskq.core.records import Cause, Kind
from taskq.log.commit.committer import LOOK_AROUND_NS
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Op
from taskq.log.store.thread import seconds_until_due
from tests.log.world import World, cuts

if TYPE_CHECKING:
    from tests.log.world import Process

LEASE = 30


def claim(process: Process, seconds: float = LEASE) -> list[Delivery]:
    request = ClaimRequest(9, wait_until_ns=0, lease_ns=int(seconds * SECOND_NS))
    deliveries: list[Delivery] = process.ask(Op.CLAIM, request)
    return deliveries


def extend(process: Process, delivery: Delivery, seconds: float = LEASE) -> Any:
    return process.ask(Op.EXTEND, (delivery, int(seconds * SECOND_NS)))


def test_extending_just_before_a_deadline_keeps_the_lease(world: World) -> None:
    """And once more, and once more; another claimer looks at every old deadline in vain."""
    holder, other = world.process(), world.process()
    holder.enqueue()
    (held,) = claim(holder)
    for _ in range(3):
        world.clock.advance(LEASE - 0.002)
        assert claim(other) == []
        extend(holder, held)
        world.clock.advance(0.002)
        assert claim(other) == []
        extend(holder, held)
    holder.settle(held)
    assert world.kinds().count(Kind.RELEASED) == 0


def test_an_expired_lease_redelivers_once(world: World) -> None:
    """One release, one new delivery with the next attempt, however many claimers look."""
    holder, *others = (world.process() for _ in range(3))
    job = holder.enqueue()
    (held,) = claim(holder)
    world.clock.advance(LEASE)
    again = [delivery for process in (*others, holder) for delivery in claim(process)]
    assert [(item.job, item.attempt) for item in again] == [(job, 2)]
    assert [claim(process) for process in others] == [[], []]
    released = [record for record in world.records() if record.kind == Kind.RELEASED]
    assert [(delivery.job, delivery.token, delivery.cause) for delivery in released] == [
        (job, held.token, Cause.LEASE_OVER)
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


def test_a_late_holder_settles_unless_somebody_took_the_job_back(world: World) -> None:
    """The deadline alone ends nothing: the token does. Nobody claimed meanwhile, so all is well."""
    holder = world.process()
    first, second = holder.enqueue(), holder.enqueue()
    held = claim(holder)
    world.clock.advance(LEASE + 1)
    holder.enqueue()
    holder.settle(held[0])
    extend(holder, held[1])
    assert claim(holder)[0].job not in {first, second}
    holder.settle(held[1])


def test_a_settlement_in_the_batch_that_would_take_the_job_back_is_in_time(world: World) -> None:
    process = world.process()
    process.enqueue()
    (held,) = claim(process)
    world.clock.advance(LEASE)
    process.committer.waiters.claims.append((ClaimRequest(1), None, _Never()))
    process.settle(held)
    assert world.kinds().count(Kind.RELEASED) == 0


class _Never:
    def done(self) -> bool:
        return False


def test_a_lease_that_is_over_on_the_last_attempt_ends_the_job(world: World) -> None:
    process = world.process()
    job = process.enqueue(spec=EnqueueSpec(attempts=2))
    claim(process)
    world.clock.advance(LEASE)
    claim(process)
    world.clock.advance(LEASE)
    assert claim(process) == []
    view = world.view(job)
    assert view is not None
    assert (view.state, view.attempt) == (State.DEAD, 2)
    assert view.reason == "LeaseOver: neither settled nor extended in time in attempt 2"


def test_extend_gives_a_lease_to_a_claim_that_had_none(world: World) -> None:
    holder, other = world.process(), world.process()
    holder.enqueue()
    (held,) = holder.claim()
    world.clock.advance(10**6)
    assert other.claim() == []
    extend(holder, held, 5)
    world.clock.advance(5)
    assert [delivery.attempt for delivery in other.claim()] == [2]


def test_a_lease_can_be_cut_short(world: World) -> None:
    """The old, later deadline means nothing any more, neither to this claim nor to the next."""
    process = world.process()
    process.enqueue()
    (held,) = claim(process, 100)
    extend(process, held, 1)
    world.clock.advance(1)
    (again,) = claim(process, 1_000)
    world.clock.advance(100)
    assert claim(process) == []
    process.settle(again)


def test_the_deadline_of_an_earlier_claim_does_not_end_a_later_one(world: World) -> None:
    """Given back and claimed without a lease: the job is held as long as its owner lives."""
    holder, other = world.process(), world.process()
    holder.enqueue()
    (held,) = claim(holder)
    holder.settle(held, Kind.RELEASED, cause=Cause.CALLER)
    (held,) = holder.claim()
    world.clock.advance(10 * LEASE)
    assert claim(other) == []
    assert not world.fold().need_agenda().leases
    holder.settle(held)


@pytest.mark.parametrize("step", [-3_600, 3_600, 54 * 365 * 86_400, -(54 * 365 * 86_400)])
def test_a_step_of_the_clock_neither_ends_nor_prolongs_a_lease(world: World, step: float) -> None:
    """A box boots in 1970 and NTP corrects it: half of the lease is left, as it was before."""
    holder, other = world.process(), world.process()
    holder.enqueue()
    claim(holder)
    world.clock.advance(LEASE / 2)
    world.clock.step(step)
    assert claim(other) == []
    world.clock.advance(LEASE / 2 - 0.001)
    assert claim(other) == []
    world.clock.advance(0.001)
    assert len(claim(other)) == 1


def test_a_lease_survives_its_readers(world: World) -> None:
    """Whoever folds the log anew knows the deadline as extended."""
    holder = world.process()
    holder.enqueue()
    (held,) = claim(holder)
    extend(holder, held, 77)
    now = world.clock.wall_ns()
    assert world.fold().need_agenda().leases.deadline_ns(held.job) == now + 77 * SECOND_NS
    view = world.view(held.job)
    assert view is not None
    assert view.state is State.RUNNING
    assert [attempt.ended_ns for attempt in view.attempts] == [0]


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


def test_many_leases_that_end_at_once_are_taken_back_in_parts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq.log.decide.claim.TAKEN_BACK_MAX", 4)
    process = world.process()
    jobs = [process.enqueue() for _ in range(9)]
    claim(process)
    world.clock.advance(LEASE)
    again = [delivery.job for _ in range(3) for delivery in claim(process)]
    assert again == jobs


@pytest.mark.parametrize("power", [True, False])
def test_an_expired_lease_redelivers_once_whatever_step_a_crash_comes_at(power: bool) -> None:
    """The claimer that takes the job back dies at each of its disk accesses in turn."""
    for cut in cuts(power=power):
        world = World(cut.step)
        holder, taker = world.process(), world.process()
        job = holder.enqueue()
        (held,) = claim(holder)
        holder.sync()
        world.clock.advance(LEASE)
        with cut.during(world, taker):
            claim(taker)
        if not cut.came:
            break
        last = world.process()
        again = claim(last)
        assert [item.job for item in again] == [job]
        with pytest.raises(StaleDelivery):
            last.settle(held)
        last.settle(again[0])
    assert cut.step > 2
