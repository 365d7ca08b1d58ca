"""Jobs that wait are edited: when they are due, and where they wait."""

from __future__ import annotations

from typing import Any

import pytest

from taskq.core.errors import JobNotFound, KeyHeld, NotWaiting, UsageError
from taskq.core.folds.dedup import key_hash
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.rates import Limit
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.machine.ports import INTEREST_READY
from taskq.log.requests import ClaimRequest, Duplicate, EnqueueSpec, Op
from tests.log.editing import edit, found
from tests.log.flowing import chord, items_of
from tests.log.tending import fill_segment, keeping, tend
from tests.log.world import Process, World

HOUR = 3_600 * SECOND_NS
NOW = (0, False)
SEND = EnqueueSpec("mail", "send")
URGENT = EnqueueSpec("mail", "send", 9)


def claimed(process: Process, count: int = 99, **wanted: Any) -> list[tuple[int, str, int]]:
    """(job, queue, priority) of what a claim gets."""
    request = ClaimRequest(count, wait_until_ns=0, **wanted)
    return [
        (delivery.job, delivery.queue, delivery.priority)
        for delivery in process.ask(Op.CLAIM, request)
    ]


def holders(world: World, queue: str) -> list[int]:
    """Whom somebody else finds to hold the key "k"."""
    hashed = key_hash(queue.encode(), b"k")
    dedup = world.fold().need_dedup()
    return [job for job, _ in dedup.holders(hashed, world.clock.wall_ns())]


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


def test_a_job_moves_to_another_queue_and_priority_and_stands_there_by_its_age() -> None:
    world = World()
    process = world.process()
    jobs = [process.enqueue(spec=spec) for spec in (SEND, URGENT, SEND, URGENT)]
    assert edit(process, jobs[2], priority=9)
    assert edit(process, jobs[0], queue=b"slow", priority=1)
    agenda = world.fold().need_agenda()
    assert agenda.taking.next_ready(9, None) == [jobs[1], jobs[2], jobs[3], jobs[0]]
    order = [(jobs[1], "mail", 9), (jobs[2], "mail", 9), (jobs[3], "mail", 9)]
    assert claimed(process, queues=frozenset({"mail"})) == order
    assert claimed(process) == [(jobs[0], "slow", 1)]


def test_a_job_that_left_from_the_middle_of_its_lane_leaves_no_trace_there() -> None:
    """Two lanes with one id at their heads would wait for each other for ever."""
    process = World().process()
    jobs = [process.enqueue(spec=SEND) for _ in range(4)]
    for priority in (9, 5, 9, 5):
        edit(process, jobs[1], priority=priority)
        edit(process, jobs[2], queue=b"slow" if priority == 9 else b"mail")
    edit(process, jobs[1], queue=b"slow")
    assert [job for job, _, _ in claimed(process)] == jobs


def test_what_another_process_edited_is_read_anew_by_who_enqueued_it() -> None:
    """Its queue is told by its record: a key in the old place would be held for ever."""
    world = World()
    first, second = world.process(), world.process()
    job = first.enqueue(extras=Extras(key=b"k"), spec=SEND)
    assert edit(second, job, queue=b"slow")
    assert first.offer(extras=Extras(key=b"k"), spec=EnqueueSpec("slow", "send")) == Duplicate(job)
    (delivery,) = first.claim()
    assert delivery.stored_payload == b"{}"
    first.settle(delivery)
    assert holders(world, "slow") == []
    assert isinstance(first.offer(extras=Extras(key=b"k"), spec=SEND), int)


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


def test_a_key_moves_with_its_job_and_two_jobs_never_hold_one() -> None:
    world = World()
    process = world.process()
    kept = Extras(key=b"k", window_ns=HOUR, until_settled=True)
    here = process.enqueue(extras=kept, spec=SEND)
    there = process.enqueue(extras=kept, spec=EnqueueSpec("slow", "send"))
    with pytest.raises(KeyHeld, match="cannot be moved to 'slow'"):
        edit(process, here, queue=b"slow")
    assert edit(process, here, queue=b"third")
    assert [holders(world, queue) for queue in ("mail", "slow", "third")] == [[], [there], [here]]
    process.ask(Op.CANCEL, here)
    assert holders(world, "third") == [here], "its window is not over"
    world.clock.advance(3_601)
    assert holders(world, "third") == []


def test_a_job_expires_when_it_was_to_wherever_it_waits() -> None:
    world = World()
    process = world.process()
    span = process.enqueue(extras=Extras(expires_ns=HOUR))
    date = Extras(expires_ns=world.clock.wall_ns() + HOUR, expires_is_wall=True)
    dated = process.enqueue(extras=date)
    for job in (span, dated):
        assert edit(process, job, queue=b"slow", due=(2 * HOUR, False))
    world.clock.advance(3_601)
    assert claimed(process) == []
    views = [world.view(job) for job in (span, dated)]
    assert [view.state for view in views if view is not None] == [State.EXPIRED] * 2


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


def test_attempts_and_place_of_an_edited_job_outlive_all_older_segments() -> None:
    world = World(config=keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None))
    process = world.process()
    job = process.enqueue(b"mine", spec=SEND)
    (delivery,) = process.claim()
    process.settle(delivery, Kind.RETRIED, body=b"ValueError: no", delay_ns=100 * HOUR)
    born = process.journal.segment
    fill_segment(process)
    edit(process, job, queue=b"slow", priority=7, due=(200 * HOUR, False))
    due_ns = world.clock.wall_ns() + 200 * HOUR
    for number in range(6):
        fill_segment(process)
        tend(process)
        view = world.view(job)
        assert view is not None
        assert (view.queue, view.priority, view.payload) == ("slow", 7, b"mine"), number
        assert (view.state, view.due_ns) == (State.SCHEDULED, due_ns)
        assert [attempt.reason for attempt in view.attempts] == ["ValueError: no"]
    assert process.journal.files.lsns[0] > born


def test_an_edit_survives_a_loss_of_power_once_it_was_answered() -> None:
    world = World()
    process = world.process()
    job = process.enqueue(extras=Extras(due_ns=HOUR))
    assert edit(process, job, due=NOW, queue=b"slow")
    world.lose_power()
    assert claimed(world.process()) == [(job, "slow", 5)]
