"""Cancellation of running jobs: requested through the log, and final."""

from __future__ import annotations

from typing import Any

import pytest

from taskq.core.errors import JobCancelled
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Cause, Kind
from taskq.log.decide.settle import is_asked
from taskq.log.requests import Cancel, ClaimRequest, Delivery, EnqueueSpec, Op
from tests.log.tending import FILLER, keeping, tend
from tests.log.world import Process, World

TWICE = EnqueueSpec("mail", "mail.send", attempts=2)


def asked(process: Process, spec: EnqueueSpec = TWICE, **rest: Any) -> Delivery:
    job = process.enqueue(spec=spec, **rest)
    (delivery,) = process.claim()
    assert process.ask(Op.CANCEL, job) is Cancel.ASKED
    return delivery


def last(world: World) -> Any:
    return world.records()[-1]


def test_each_state_has_its_answer(world: World) -> None:
    process = world.process()
    waits, late = process.enqueue(), process.enqueue(extras=Extras(due_ns=9 * SECOND_NS))
    assert process.ask(Op.CANCEL, late) is Cancel.WITHDRAWN
    (delivery,) = process.claim()
    assert process.ask(Op.CANCEL, waits) is Cancel.ASKED
    assert process.ask(Op.CANCEL, waits) is Cancel.ASKED
    process.settle(delivery)
    assert process.ask(Op.CANCEL, waits) is Cancel.TOO_LATE
    assert world.kinds().count(Kind.CANCEL_ASKED) == 1, "one ask a claim"


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (Kind.RETRIED, Cause.EXHAUSTED), (Kind.RELEASED, Cause.DRAIN), (Kind.DEAD, Cause.REJECTED),
        (Kind.RELEASED, Cause.SNOOZE), (Kind.RELEASED, Cause.CALLER), (Kind.DEAD, Cause.EXHAUSTED),
        (Kind.CANCELLED, Cause.ASKED), (Kind.RELEASED, Cause.CONDITION),
    ],
)  # fmt: skip
def test_whatever_ends_the_claim_ends_the_job_as_cancelled(
    world: World, kind: Kind, cause: Cause
) -> None:
    process, other = world.process(), world.process()
    delivery = asked(process)
    waiting = other.send(Op.OUTCOME, delivery.job)
    process.settle(delivery, kind, cause=cause, body=b"why", delay_ns=SECOND_NS)
    record = last(world)
    assert (record.type, record.cause, record.body) == (Kind.CANCELLED, "asked", b"why")
    assert (record.token, record.attempt) == (delivery.token, 1)
    world.clock.advance(3_600)
    assert other.claim() == []
    other.follow()
    assert waiting.result(0).state is State.CANCELLED
    view = world.view(delivery.job)
    assert view is not None
    assert (view.state, view.reason) == (State.CANCELLED, "why")
    assert [(attempt.number, attempt.outcome) for attempt in view.attempts] == [(1, "cancelled")]


def test_a_lease_that_is_over_ends_it_and_extending_tells_of_it(world: World) -> None:
    holder, other = world.process(), world.process()
    job = holder.enqueue()
    request = ClaimRequest(1, wait_until_ns=0, lease_ns=30 * SECOND_NS)
    (delivery,) = holder.ask(Op.CLAIM, request)
    assert not is_asked(holder.committer.facets, delivery)
    assert other.ask(Op.CANCEL, job) is Cancel.ASKED
    with pytest.raises(JobCancelled):
        holder.ask(Op.EXTEND, (delivery, 30 * SECOND_NS))
    assert is_asked(holder.committer.facets, delivery)
    world.clock.advance(30)
    assert other.claim() == []
    assert (last(world).type, last(world).cause) == (Kind.CANCELLED, "asked")
    assert not is_asked(holder.catch_up(), delivery)


def test_compaction_carries_the_wish(world: World) -> None:
    world = World(config=keeping(keep_bytes=200_000, keep_seconds=None))
    process = world.process()
    delivery = asked(process)
    first = world.segments()[0]
    fill = EnqueueSpec("fill", "fill", 9, 1)
    while first in world.segments():
        for _ in range(20):
            process.enqueue(FILLER, spec=fill)
        for item in process.claim(40):
            process.settle(item)
        tend(process)
    carried = [
        record for record in world.records() if record.carried and record.job == delivery.job
    ]
    assert carried
    assert all(item.carried and item.carried.cancel_wanted for item in carried)
    assert world.fold().need_agenda().leases.asked == {delivery.job}
    process.settle(delivery, Kind.RETRIED)
    assert last(world).type == Kind.CANCELLED


def test_only_the_process_that_runs_the_job_is_told_and_once(world: World) -> None:
    worker, other = world.process(), world.process()
    heard: list[Any] = []
    for process in (worker, other):
        process.committer.operations.asks.listen(process, lambda ask, _: heard.append(ask))
    delivery = asked(worker)
    for _ in range(2):
        for process in (other, worker):
            process.follow()
            process.committer.operations.asks.look()
            for port, _, (call, ask, nothing) in process.committer.operations.asks.told():
                assert port is worker
                call(ask, nothing)
    assert heard == [(delivery.job, delivery.token)]
    worker.settle(delivery)
    assert worker.committer.operations.asks.told() == []
