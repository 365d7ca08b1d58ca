"""Jobs that wait are edited: when they are due, and where they wait."""

from __future__ import annotations

from typing import Any

import pytest

from taskq.core.errors import JobNotFound, NotWaiting, UsageError
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.rates import Limit
from taskq.core.records import Kind
from taskq.log.machine.ports import INTEREST_READY
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op
from tests.log.editing import edit, found
from tests.log.flowing import chord, items_of
from tests.log.world import Process, World

HOUR = 3_600 * SECOND_NS
NOW = (0, False)
SEND = EnqueueSpec("mail", "send")
URGENT = EnqueueSpec("mail", "send", 9)


def claimed(process: Process, count: int = 99, **wanted: Any) -> list[tuple[int, str, int]]:
    request = ClaimRequest(count, wait_until_ns=0, **wanted)
    return [
        (delivery.job, delivery.queue, delivery.priority)
        for delivery in process.ask(Op.CLAIM, request)
    ]


def test_a_job_that_waits_is_due_now_later_or_at_a_date_whatever_it_waited_for() -> None:
    world = World()
    first, second = world.process(), world.process()
    hour, date = first.enqueue(extras=Extras(due_ns=HOUR)), world.clock.wall_ns() + 2 * HOUR
    tried = first.enqueue(spec=URGENT)
    (delivery,) = first.claim()
    first.settle(delivery, Kind.RETRIED, delay_ns=HOUR)
    ready = first.enqueue()
    assert edit(second, hour, due=NOW)
    assert edit(second, tried, due=(date, True))
    assert edit(second, ready, due=(HOUR, False))
    assert [job for job, _, _ in claimed(first)] == [hour]
    world.clock.advance(3_601)
    assert [job for job, _, _ in claimed(first)] == [ready]
    world.clock.advance(3_600)
    assert claimed(first) == [(tried, "mail", 9)]


def test_a_job_that_somebody_claimed_or_ended_meanwhile_is_refused_and_nothing_is_written() -> None:
    world = World()
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


def test_a_job_that_changed_since_it_was_looked_at_is_looked_at_again() -> None:
    world = World()
    first, second = world.process(), world.process()
    job = first.enqueue(extras=Extras(due_ns=HOUR))
    wish = found(first, job, priority=9)
    assert edit(second, job, due=(2 * HOUR, False))
    assert first.ask(Op.EDIT, wish) is None
    assert edit(first, job, priority=9)
    view = world.view(job)
    assert view is not None
    assert (view.priority, view.state) == (9, State.SCHEDULED)
    assert view.due_ns == world.clock.wall_ns() + 2 * HOUR


def test_an_edit_that_changes_nothing_writes_nothing() -> None:
    world = World()
    process = world.process()
    job = process.enqueue(spec=SEND)
    assert edit(process, job, due=NOW) is False
    assert edit(process, job, priority=5, queue=b"mail") is False
    assert world.kinds() == [Kind.ENQUEUED]


def test_an_edit_wakes_who_sleeps_until_the_job_is_due() -> None:
    process = World().process()
    job = process.enqueue(extras=Extras(due_ns=HOUR))
    wish = found(process, job, due=(SECOND_NS, False))
    process.committer.commit([(Op.EDIT, None, None, wish)])
    assert process.committer.take_interest() & INTEREST_READY


def test_limits_of_a_task_count_its_jobs_wherever_they_wait() -> None:
    process = World().process()
    keyed = Extras(concurrency_key=b"ada")
    jobs = [process.enqueue(extras=keyed, spec=SEND) for _ in range(3)]
    limits = {"send": Limit(concurrency=1)}
    assert [job for job, _, _ in claimed(process, 1, limits=limits)] == [jobs[0]]
    edit(process, jobs[2], priority=9, queue=b"slow")
    edit(process, jobs[1], priority=8)
    assert claimed(process, limits=limits) == []
    assert process.catch_up().need_agenda().queues.stats()[0].ready == 1


def test_a_job_that_waits_for_others_may_move_and_is_given_no_moment() -> None:
    world = World()
    process = world.process()
    last = process.ask(Op.ENQUEUE_MANY, items_of(chord(2)))[0]
    with pytest.raises(UsageError, match="waits for other jobs"):
        edit(process, last, due=NOW)
    assert edit(process, last, priority=9, queue=b"slow")
    for delivery in process.claim(2):
        process.settle(delivery, body=b"1")
    assert claimed(world.process()) == [(last, "slow", 9)]
