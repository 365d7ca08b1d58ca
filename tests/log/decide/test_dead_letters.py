"""Dead letters in the log: requeued once, purged, found, and the same to every process."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from taskq.core.errors import JobNotFound, KeyHeld, NotDead, TaskqError, UsageError
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Cause, Flag, Kind
from taskq.core.views import QueueStats
from taskq.log.machine.ports import INTEREST_READY
from taskq.log.read.selection import DeadFilter, count_dead, dead_page, letters, newest_dead
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op, Outcome
from tests.log.world import PLAIN, SMALL, Process, World

MAIL = EnqueueSpec(queue="mail", task="mail.send", priority=7, attempts=2)
ALL = 2**62


def kill(process: Process, job: int, reason: bytes = b"ValueError: no") -> None:
    (delivery,) = [delivery for delivery in process.claim(99) if delivery.job == job]
    process.settle(delivery, Kind.DEAD, body=reason, cause=Cause.EXHAUSTED)


def dead_letter(
    process: Process,
    body: bytes = b"{}",
    extras: Extras | None = None,
    spec: EnqueueSpec = PLAIN,
    reason: bytes = b"ValueError: no",
) -> int:
    job = process.enqueue(body, extras, spec)
    kill(process, job, reason)
    return job


def requeue(process: Process, *jobs: int) -> list[TaskqError | None]:
    """Look the letters up, and requeue what was found; raises what the look refused."""
    process.catch_up()
    page = letters(process.committer.sight, list(jobs))
    for _, error in page.refused:
        raise error
    answers: list[TaskqError | None] = process.ask(Op.REQUEUE, page.items)
    return answers


def purge(process: Process, *jobs: int) -> list[TaskqError | None]:
    answers: list[TaskqError | None] = process.ask(Op.PURGE, list(jobs))
    return answers


def outcome(process: Process, job: int) -> Outcome:
    answer: Outcome = process.ask(Op.OUTCOME, job)
    return answer


def test_a_requeued_job_keeps_its_id_and_counts_its_attempts_anew() -> None:
    world = World()
    process = world.process()
    extras = Extras(headers={"trace": "abc"}, key=b"k", window_ns=60 * SECOND_NS)
    job = dead_letter(process, b"payload", extras, MAIL, b"first reason")
    assert requeue(process, job) == [None]
    view = world.view(job)
    assert view is not None
    assert (view.state, view.attempt, view.reason, view.settled_ns) == (State.READY, 0, "", 0)
    assert (view.payload, view.headers, view.key) == (b"payload", {"trace": "abc"}, b"k")
    assert (view.queue, view.task, view.priority, view.attempts_max) == ("mail", "mail.send", 7, 2)
    (delivery,) = process.claim()
    assert (delivery.job, delivery.attempt, delivery.payload) == (job, 1, b"payload")
    assert delivery.headers == {"trace": "abc"}
    process.settle(delivery, body=b"done")
    view = world.view(job)
    assert view is not None
    assert (view.state, view.result) == (State.SUCCEEDED, b"done")
    assert [(attempt.number, attempt.outcome) for attempt in view.attempts] == [
        (1, "dead"),
        (1, "succeeded"),
    ]
    assert view.attempts[0].reason == "first reason"


def test_a_second_requeue_of_the_same_is_refused_naming_its_state() -> None:
    process = World().process()
    job = dead_letter(process)
    result = letters(process.committer.sight, [job]).items
    assert process.ask(Op.REQUEUE, result) == [None]
    (refusal,) = process.ask(Op.REQUEUE, result)
    assert isinstance(refusal, NotDead)
    assert refusal.state == "ready"
    with pytest.raises(NotDead, match="it is ready"):
        requeue(process, job)
    (delivery,) = process.claim()
    with pytest.raises(NotDead, match="it is running"):
        requeue(process, job)
    process.settle(delivery)
    with pytest.raises(NotDead, match="it is succeeded"):
        requeue(process, job)
    with pytest.raises(JobNotFound, match="there is no job"):
        requeue(process, job + 1_000_000)


def test_another_process_runs_what_one_requeued() -> None:
    world = World()
    first, second = world.process(), world.process()
    job = dead_letter(first, b"abc")
    assert second.claim() == []
    requeue(first, job)
    (delivery,) = second.claim()
    assert (delivery.job, delivery.attempt, delivery.payload) == (job, 1, b"abc")
    second.settle(delivery, body=b"42")
    assert outcome(first, job).body == b"42"


def test_who_waits_for_a_requeued_job_gets_its_new_end() -> None:
    world = World()
    first, second, third = world.process(), world.process(), world.process()
    job = dead_letter(first, reason=b"the first end")
    second.catch_up()
    assert outcome(third, job) == (State.DEAD, b"the first end", 0)
    assert outcome(first, job) == (State.DEAD, b"the first end", 0)
    requeue(second, job)
    waiting = [item.send(Op.OUTCOME, job) for item in (first, second, third)]
    assert not any(future.done() for future in waiting)
    (delivery,) = second.claim()
    second.settle(delivery, body=b"the second end")
    for process in (first, second, third):
        process.follow()
        process.sync()
    assert [future.result(0) for future in waiting] == [(State.SUCCEEDED, b"the second end", 0)] * 3


def expiring(world: World, *, is_wall: bool, due_ns: int = 0) -> Extras:
    moment_ns = 60 * SECOND_NS + (world.clock.wall_ns() if is_wall else 0)
    return Extras(due_ns=due_ns, expires_ns=moment_ns, expires_is_wall=is_wall, headers={"a": "b"})


@pytest.mark.parametrize("is_wall", [False, True])
def test_the_due_time_of_the_first_life_is_over_and_an_expiry_that_has_passed(
    is_wall: bool,
) -> None:
    """Who requeues a job wants it run: it does not end at once for having waited too long."""
    world = World()
    process = world.process()
    job = process.enqueue(b"x", expiring(world, is_wall=is_wall, due_ns=SECOND_NS))
    world.clock.advance(2)
    kill(process, job)
    world.clock.advance(3_600)
    assert requeue(process, job) == [None]
    view = world.view(job)
    assert view is not None
    assert (view.state, view.due_ns, view.expires_ns) == (State.READY, 0, 0)
    (delivery,) = process.claim()
    assert (delivery.job, delivery.headers, delivery.extras.expires_ns) == (job, {"a": "b"}, 0)


@pytest.mark.parametrize("is_wall", [False, True])
def test_a_requeued_job_does_not_expire(is_wall: bool) -> None:
    world = World()
    process = world.process()
    job = process.enqueue(b"x", expiring(world, is_wall=is_wall))
    kill(process, job)
    assert requeue(process, job) == [None]
    for agenda in (process.committer.facets.need_agenda(), world.fold().need_agenda()):
        assert agenda.expired(2**62, 9) == []
    world.clock.advance(10**6)
    view = world.view(job)
    assert view is not None
    assert (view.state, view.expires_ns) == (State.READY, 0)
    assert [delivery.job for delivery in world.process().claim()] == [job]


def test_flags_of_the_job_survive_a_requeue() -> None:
    """A single attempt is still run only once its claim is on disk."""
    once = EnqueueSpec(attempts=1, flags=Flag.DROP_RESULT)
    process = World().process()
    job = dead_letter(process, spec=once)
    requeue(process, job)
    agenda = process.catch_up().need_agenda()
    record = process.journal.files.record(agenda.location(job), job)
    assert record[8] & Flag.DROP_RESULT
    future = process.send(Op.CLAIM, ClaimRequest(1))
    assert not future.done()
    process.sync()
    assert [item.job for item in future.result(0)] == [job]


def test_a_key_that_another_live_job_holds_keeps_a_letter_dead() -> None:
    """Named with its holder; once that is settled, the requeue goes, and holds the key again."""
    world = World()
    process = world.process()
    job = dead_letter(process, extras=Extras(key=b"k"))
    holder = process.enqueue(extras=Extras(key=b"k"))
    (refusal,) = requeue(process, job)
    assert isinstance(refusal, KeyHeld)
    assert refusal.holder_id == f"{process.journal.tag}-{holder}"
    assert refusal.holder_id in str(refusal)
    (delivery,) = process.claim()
    assert delivery.job == holder
    process.settle(delivery)
    assert requeue(process, job) == [None]
    for item in (process, world.process()):
        assert item.offer(extras=Extras(key=b"k")) == (job,)
    (delivery,) = process.claim()
    process.settle(delivery)
    assert isinstance(process.offer(extras=Extras(key=b"k")), int)


def test_a_requeue_respects_the_limit_of_keys() -> None:
    process = World(config=replace(SMALL, keys_max=1)).process()
    job = dead_letter(process, extras=Extras(key=b"k"))
    process.enqueue(extras=Extras(key=b"other"))
    (refusal,) = requeue(process, job)
    assert isinstance(refusal, UsageError)
    assert "keys_max is 1" in str(refusal)


def test_a_purged_job_is_unknown_and_in_no_count() -> None:
    world = World()
    first, second = world.process(), world.process()
    job, kept = dead_letter(first), dead_letter(first)
    second.catch_up()
    assert purge(first, job) == [None]
    (refusal,) = purge(second, job)
    assert isinstance(refusal, NotDead)
    for process in (first, second, world.process()):
        assert process.catch_up().need_agenda().queues.stats() == (
            QueueStats(queue="default", dead=1),
        )
        with pytest.raises(JobNotFound):
            outcome(process, job)
    assert world.view(job) is None
    assert world.view(kept) is not None
    with pytest.raises(JobNotFound):
        requeue(first, job)


def test_a_requeue_wakes_who_waits_for_jobs() -> None:
    process = World().process()
    page = letters(process.committer.sight, [dead_letter(process)])
    process.committer.commit([(Op.REQUEUE, None, None, page.items)])
    assert process.committer.take_interest() & INTEREST_READY


# -- finding them ---------------------------------------------------------------------------------


def test_letters_are_listed_by_the_latest_death() -> None:
    world = World()
    process = world.process()
    jobs = [process.enqueue(spec=MAIL) for _ in range(3)]
    deliveries = {delivery.job: delivery for delivery in process.claim(3)}
    for number in (1, 0, 2):
        world.clock.advance(60)
        process.settle(deliveries[jobs[number]], Kind.DEAD, body=b"reason %d" % number)
    views, _ = newest_dead(process.committer.sight, DeadFilter(), 9, None)
    assert [(view.lsn, view.reason) for view in views] == [
        (jobs[2], "reason 2"), (jobs[0], "reason 0"), (jobs[1], "reason 1"),
    ]  # fmt: skip
    assert [view.attempt for view in views] == [1, 1, 1]
    views, place = newest_dead(process.committer.sight, DeadFilter(), 2, None)
    assert [view.lsn for view in views] == [jobs[2], jobs[0]]
    views, _ = newest_dead(process.committer.sight, DeadFilter(), 2, place)
    assert [view.lsn for view in views] == [jobs[1]]
    views, _ = newest_dead(process.committer.sight, DeadFilter(error="reason 1"), 1, None)
    assert [view.lsn for view in views] == [jobs[1]]


def test_letters_are_found_by_queue_task_reason_and_time() -> None:
    world = World()
    process = world.process()
    start = world.clock.wall_ns()
    first = dead_letter(process, spec=MAIL, reason=b"TimeoutError: slow")
    world.clock.advance(100)
    second = dead_letter(process, reason=b"ValueError: bad")
    late = start + 50 * SECOND_NS
    for wanted, expected in (
        (DeadFilter(), [first, second]),
        (DeadFilter(queue="mail"), [first]),
        (DeadFilter(task="mail.send"), [first, second]),
        (DeadFilter(queue="mail", task="other"), []),
        (DeadFilter(error="Error"), [first, second]),
        (DeadFilter(error="slow"), [first]),
        (DeadFilter(error=re.compile("^Value.*bad$")), [second]),
        (DeadFilter(since_ns=late), [second]),
        (DeadFilter(before_ns=late), [first]),
    ):
        assert dead_page(process.committer.sight, wanted, 0, ALL, 99) == (expected, [], 0)
        views, _ = newest_dead(process.committer.sight, wanted, 99, None)
        assert [view.lsn for view in views] == expected[::-1]
        if wanted.error is None:
            assert count_dead(process.committer.sight, wanted) == len(expected)


def test_pages_together_find_every_letter_once() -> None:
    process = World().process()
    jobs = [dead_letter(process) for _ in range(7)]
    numbers: list[int] = []
    start = 0
    while True:
        page = dead_page(process.committer.sight, DeadFilter(error="no"), start, jobs[6], 2)
        numbers += page.items
        start = page.following
        if not start:
            break
    assert numbers == jobs[:6]


def test_large_letters_are_requeued_in_slices() -> None:
    process = World().process()
    jobs = [dead_letter(process, bytes(100_000)) for _ in range(7)]
    rest, sizes = jobs, []
    while rest:
        page = letters(process.committer.sight, rest)
        assert process.ask(Op.REQUEUE, page.items) == [None] * len(page.items)
        sizes.append(len(page.items))
        rest = [job for job in rest if page.following and job >= page.following]
    assert sizes == [3, 3, 1]
    assert [delivery.payload for delivery in process.claim(9)] == [bytes(100_000)] * 7


def test_a_letter_that_does_not_read_back_is_refused_and_the_others_are_not() -> None:
    world = World()
    process = world.process()
    jobs = [dead_letter(process, b"payload of %d" % number) for number in range(2)]
    path = world.segments()[0]
    at = world.machine.content(path).index(b"payload of 0")
    world.machine.corrupt(path, at, b"PAYLOAD")
    fresh = world.process()
    fresh.catch_up()
    page = letters(fresh.committer.sight, jobs)
    assert [letter.job for letter in page.items] == [jobs[1]]
    assert [job for job, _ in page.refused] == [jobs[0]]
