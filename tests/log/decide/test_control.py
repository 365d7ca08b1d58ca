"""Waiting jobs are edited, withdrawn and paused; running ones are asked to cancel."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from taskq.core.errors import JobCancelled, JobNotFound, NotWaiting, UsageError
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.rates import Limit
from taskq.core.records import Cause, Kind
from taskq.log import requests
from taskq.log.decide.settle import is_asked
from taskq.log.machine.ports import INTEREST_OUTCOME, INTEREST_READY
from taskq.log.read.selection import letters
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Op, Settlement
from tests.log.world import Process, World, chord, edit, found, items_of

HOUR = 3_600 * SECOND_NS
NOW = (0, False)
SEND = EnqueueSpec("mail", "send")


def claimed(process: Process, count: int = 99, **wanted: Any) -> list[tuple[int, str, int]]:
    request = ClaimRequest(count, wait_until_ns=0, **wanted)
    return [
        (delivery.job, delivery.queue, delivery.priority)
        for delivery in process.ask(Op.CLAIM, request)
    ]


def test_a_job_that_somebody_claimed_or_ended_meanwhile_is_refused_and_nothing_is_written(
    world: World,
) -> None:
    first, second = world.process(), world.process()
    jobs = [first.enqueue() for _ in range(2)]
    wishes = [found(second, job, priority=9) for job in jobs]
    (delivery,) = first.claim()
    first.ask(Op.CANCEL, jobs[1])
    before = world.kinds()
    for wish, item in zip(wishes, ("it runs already", "it is settled"), strict=True):
        with pytest.raises(NotWaiting, match=item):
            second.ask(Op.EDIT, wish)
    for job in jobs:
        with pytest.raises(NotWaiting):
            found(second, job, priority=9)
    with pytest.raises(JobNotFound):
        found(second, 99, priority=9)
    assert world.kinds() == before
    first.settle(delivery)


def test_a_job_that_changed_since_it_was_looked_at_is_looked_at_again(world: World) -> None:
    first, second = world.process(), world.process()
    job = first.enqueue(extras=Extras(due_ns=HOUR))
    wish = found(first, job, priority=9)
    assert edit(second, job, due=(2 * HOUR, False))
    assert first.ask(Op.EDIT, wish) is None
    assert edit(first, job, priority=9)
    view = world.job(job)
    assert (view.priority, view.state) == (9, State.SCHEDULED)
    assert view.due_ns == world.clock.wall_ns() + 2 * HOUR


def test_an_edit_that_changes_nothing_writes_nothing(world: World, process: Process) -> None:
    job = process.enqueue(spec=SEND)
    assert edit(process, job, due=NOW) is False
    assert edit(process, job, priority=5, queue=b"mail") is False
    assert world.kinds() == [Kind.ENQUEUED]


def test_a_job_that_waits_for_others_may_move_and_is_given_no_moment(
    world: World, process: Process
) -> None:
    last = process.ask(Op.ENQUEUE_MANY, items_of(chord(2)))[0]
    with pytest.raises(UsageError, match="waits for other jobs"):
        edit(process, last, due=NOW)
    assert edit(process, last, priority=9, queue=b"slow")
    for delivery in process.claim(2):
        process.settle(delivery, body=b"1")
    assert claimed(world.process()) == [(last, "slow", 9)]


def waking(process: Process) -> Iterator[tuple[Op, Any, int]]:
    """Yield requests, and which sleepers of other processes they concern."""
    process.ask(Op.PAUSE, "mail")
    process.enqueue(spec=SEND)
    yield Op.RESUME, "mail", INTEREST_READY
    (delivery,) = process.claim()
    dies = [Settlement(Kind.DEAD, delivery, cause=Cause.EXHAUSTED)]
    yield Op.SETTLE, dies, INTEREST_OUTCOME
    page = letters(process.committer.sight, [delivery.job])
    yield Op.REQUEUE, page.items, INTEREST_READY
    yield Op.SETTLE_NOWAIT, ([success(process.claim()[0])], print), INTEREST_OUTCOME
    job = process.enqueue(extras=Extras(due_ns=HOUR))
    yield Op.EDIT, found(process, job, due=(SECOND_NS, False)), INTEREST_READY
    request = ClaimRequest(1, wait_until_ns=0, limits={"send": Limit(concurrency=1)})
    for _ in range(2):
        process.enqueue(spec=SEND)
    (first,) = process.ask(Op.CLAIM, request)
    yield Op.SETTLE, [success(first)], INTEREST_READY | INTEREST_OUTCOME
    (last,) = process.ask(Op.CLAIM, request)
    yield Op.SETTLE, [success(last)], INTEREST_OUTCOME


def success(delivery: Delivery) -> Settlement:
    return Settlement(Kind.SUCCEEDED, delivery)


def test_a_request_wakes_the_sleepers_that_it_concerns_and_no_others(process: Process) -> None:
    for op, operand, interest in waking(process):
        process.committer.take_interest()
        future = None if op is Op.SETTLE_NOWAIT else Future[Any]()
        process.committer.commit([(op, None, future, operand)])
        seen = process.committer.take_interest() & (INTEREST_READY | INTEREST_OUTCOME)
        assert seen == interest, op


TWICE = EnqueueSpec("mail", "mail.send", attempts=2)


def asked(process: Process, spec: EnqueueSpec = TWICE, **rest: Any) -> Delivery:
    job = process.enqueue(spec=spec, **rest)
    (delivery,) = process.claim()
    assert process.ask(Op.CANCEL, job) is requests.Cancel.ASKED
    return delivery


def last(world: World) -> Any:
    return world.records()[-1]


def test_a_cancel_request_shows_when_extending_and_expires_with_the_lease(world: World) -> None:
    holder, other = world.process(), world.process()
    job = holder.enqueue()
    request = ClaimRequest(1, wait_until_ns=0, lease_ns=30 * SECOND_NS)
    (delivery,) = holder.ask(Op.CLAIM, request)
    assert not is_asked(holder.committer.facets, delivery)
    assert other.ask(Op.CANCEL, job) is requests.Cancel.ASKED
    with pytest.raises(JobCancelled):
        holder.ask(Op.EXTEND, (delivery, 30 * SECOND_NS))
    assert is_asked(holder.committer.facets, delivery)
    world.clock.advance(30)
    assert other.claim() == []
    assert (last(world).type, last(world).cause) == (Kind.CANCELLED, "asked")
    assert not is_asked(holder.catch_up(), delivery)


def test_only_the_process_that_runs_the_job_hears_of_a_cancel_and_once(world: World) -> None:
    worker, other = world.process(), world.process()
    heard: list[Any] = []
    for process in (worker, other):
        process.committer.operations.asks.listen(process, lambda ask, _: heard.append(ask))
    delivery = asked(worker)
    for _ in range(2):
        for process in (other, worker):
            process.follow()
            process.committer.operations.asks.look()
            for port, _, (call, ask, nothing) in process.committer.operations.asks.take_answers():
                assert port is worker
                call(ask, nothing)
    assert heard == [(delivery.job, delivery.token)]
    worker.settle(delivery)
    assert worker.committer.operations.asks.take_answers() == []
