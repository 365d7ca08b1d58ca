"""Dead letters: requeue and purge, crashes meanwhile, their listeners, and their retention."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from taskq import DeadLetter
from taskq.core.errors import JobNotFound, KeyHeld, NotDead, TaskqError, UsageError
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Cause, Flag, Kind
from taskq.log import requests
from taskq.log.config import QueuePolicy
from taskq.log.read.jobs import JobFilter
from taskq.log.read.selection import DeadFilter, dead_page, letters, waiting_page
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op, Settlement
from taskq.log.upkeep import retention as deadkeep
from tests.log.world import PLAIN, SMALL, Process, World, keeping, tend


def kill(process: Process, job: int, reason: bytes = b"ValueError: no") -> None:
    (delivery,) = [delivery for delivery in process.claim(99) if delivery.job == job]
    process.settle(delivery, Kind.DEAD, body=reason, cause=Cause.EXHAUSTED)


def dead_letter(
    process: Process, body: bytes = b"{}", extras: Extras | None = None, spec: EnqueueSpec = PLAIN,
    reason: bytes = b"ValueError: no",
) -> int:  # fmt: skip
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


def outcome(process: Process, job: int) -> requests.Outcome:
    answer: requests.Outcome = process.ask(Op.OUTCOME, job)
    return answer


def test_a_second_requeue_is_refused_with_the_state_of_the_job(process: Process) -> None:
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


def test_waiting_for_a_requeued_job_returns_its_new_outcome(world: World) -> None:
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
    is_wall: bool, world: World, process: Process
) -> None:
    """Who requeues a job wants it run: it does not end at once for having waited too long."""
    job = process.enqueue(b"x", expiring(world, is_wall=is_wall, due_ns=SECOND_NS))
    world.clock.advance(2)
    kill(process, job)
    world.clock.advance(3_600)
    assert requeue(process, job) == [None]
    view = world.job(job)
    assert (view.state, view.due_ns, view.expires_ns) == (State.READY, 0, 0)
    (delivery,) = process.claim()
    assert (delivery.job, delivery.headers, delivery.extras.expires_ns) == (job, {"a": "b"}, 0)


def test_flags_of_the_job_survive_a_requeue() -> None:
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


def test_a_key_that_another_live_job_holds_keeps_a_letter_dead(
    world: World, process: Process
) -> None:
    """Named with its holder; once that is settled, the requeue goes, and holds the key again."""
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


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize(
    ("page_of", "wanted"), [(waiting_page, JobFilter()), (dead_page, DeadFilter(error="no"))]
)
def test_pages_together_find_every_waiting_job_or_letter_once(
    process: Process, page_of: Any, wanted: Any, limit: int
) -> None:
    jobs = [(dead_letter if page_of is dead_page else Process.enqueue)(process) for _ in range(9)]
    process.catch_up()
    seen: list[int] = []
    start = 0
    while True:
        page = page_of(process.committer.sight, wanted, start, jobs[8], limit)
        seen += page.items
        start = page.following
        if not start:
            break
    assert seen == jobs[:8]


def test_large_letters_are_requeued_in_slices(process: Process) -> None:
    jobs = [dead_letter(process, bytes(100_000)) for _ in range(7)]
    rest, sizes = jobs, []
    while rest:
        page = letters(process.committer.sight, rest)
        assert process.ask(Op.REQUEUE, page.items) == [None] * len(page.items)
        sizes.append(len(page.items))
        rest = [job for job in rest if page.following and job >= page.following]
    assert sizes == [3, 3, 1]
    assert [delivery.payload for delivery in process.claim(9)] == [bytes(100_000)] * 7


def test_a_letter_that_does_not_read_back_is_refused_and_the_others_are_not(
    world: World, process: Process
) -> None:
    jobs = [dead_letter(process, b"payload of %d" % number) for number in range(2)]
    path = world.segments()[0]
    at = world.machine.content(path).index(b"payload of 0")
    world.machine.corrupt(path, at, b"PAYLOAD")
    fresh = world.process()
    fresh.catch_up()
    page = letters(fresh.committer.sight, jobs)
    assert [letter.job for letter in page.items] == [jobs[1]]
    assert [job for job, _ in page.refused] == [jobs[0]]


TELL = EnqueueSpec(task="tell")
ONCE = EnqueueSpec(attempts=1, task="mail")


def told(world: World) -> list[bytes]:
    records = world.records()
    deaths = [record for record in records if record.type == Kind.DEAD]
    jobs = [record for record in records if (record.type, record.task) == (Kind.ENQUEUED, "tell")]
    assert [job.time_ns for job in jobs] == [death.time_ns for death in deaths]
    return [job.body or b"" for job in jobs]


def telling(process: Process) -> Process:
    def write(letter: DeadLetter) -> list[Any]:
        return [(TELL, letter.job_id.rpartition("-")[2].encode(), None)]

    for app in "one", "other":
        process.committer.operations.deaths.write(app, write)
    return process


def of_its_task(world: World, process: Process, job: int) -> None:
    (delivery,) = process.claim()
    world.clock.advance(1)
    process.settle(delivery, Kind.DEAD, body=b"no")


def of_its_worker(world: World, process: Process, job: int) -> None:
    other = world.process()
    other.claim()
    other.kill()
    world.clock.advance(1)
    process.claim()


def of_its_lease(world: World, process: Process, job: int) -> None:
    process.ask(Op.CLAIM, ClaimRequest(1, wait_until_ns=0, lease_ns=SECOND_NS))
    world.clock.advance(2)
    process.claim()


def of_its_record(world: World, process: Process, job: int) -> None:
    process.catch_up()
    process.committer.operations.context.recent.clear()
    (path,) = world.segments()
    world.machine.corrupt(path, world.machine.content(path).index(b"payload"), b"P")
    process.claim()


@pytest.mark.parametrize("die", [of_its_task, of_its_worker, of_its_lease, of_its_record])
def test_each_dead_letter_is_announced_once_in_its_own_frame(
    die: Callable[[World, Process, int], None], world: World
) -> None:
    process = telling(world.process())
    job = process.enqueue(b"payload", spec=ONCE)
    world.clock.advance(1)
    die(world, process, job)
    assert told(world) == [b"%d" % job]
    process.claim()
    assert told(world) == [b"%d" % job]


def test_a_claim_gets_the_jobs_for_dead_letters_of_its_own_batch(world: World) -> None:
    process = telling(world.process())
    process.enqueue(spec=ONCE)
    (delivery,) = process.claim()
    claimed: Future[Any] = Future()
    died = Settlement(Kind.DEAD, delivery, b"no", cause=Cause.REJECTED)
    process.commit([
        (Op.CLAIM, None, claimed, ClaimRequest(1, wait_until_ns=0)),
        (Op.SETTLE_NOWAIT, None, None, ([died], print)),
    ])  # fmt: skip
    assert [taken.task for taken in claimed.result(0)] == ["tell"]


def test_a_failing_dead_letter_hook_does_not_keep_it_out_of_the_log(
    caplog: pytest.LogCaptureFixture, world: World
) -> None:
    process = telling(world.process())

    def fail(letter: DeadLetter) -> list[Any]:
        raise ValueError(letter)

    process.committer.operations.deaths.write("bad", fail)
    job = process.enqueue(spec=ONCE)
    with caplog.at_level(logging.ERROR, logger="taskq"):
        of_its_task(world, process, job)
    assert "the death of job" in caplog.text
    assert told(world) == [b"%d" % job]


HOUR = 3_600


def dead_letters(process: Process, count: int, queue: str = "mail") -> list[int]:
    spec = EnqueueSpec(queue=queue)
    jobs: list[int] = process.ask(Op.ENQUEUE_MANY, [(spec, b"x", None)] * count)
    deliveries = process.claim(count)
    assert [delivery.job for delivery in deliveries] == jobs
    items = [
        Settlement(Kind.DEAD, delivery, b"no", cause=Cause.EXHAUSTED) for delivery in deliveries
    ]
    assert process.ask(Op.SETTLE, items) == [None] * count
    return jobs


def left(process: Process) -> list[int]:
    agenda = process.catch_up().need_agenda()
    return [chunk.ids[index] for chunk, index in agenda.dead]


def world_with(**options: Any) -> tuple[World, Process]:
    world = World(config=keeping(**options))
    return world, world.process()


def test_letters_go_when_they_are_dead_for_too_long() -> None:
    """Counted from their death, not from their birth; not a second too early."""
    world, process = world_with(keep_dead_seconds=HOUR)
    slow = process.enqueue(spec=EnqueueSpec(queue="mail", priority=0))
    old = dead_letters(process, 2)
    world.clock.advance(HOUR)
    (delivery,) = process.claim()
    process.settle(delivery, Kind.DEAD, body=b"at last")
    tend(process)
    assert left(process) == [slow, *old]
    world.clock.advance(2)
    tend(process)
    assert left(process) == [slow]
    assert world.view(old[0]) is None
    assert world.kinds().count(Kind.PURGED) == 2


def test_a_queue_may_keep_more_or_less_than_its_log_and_is_counted_by_itself() -> None:
    policies = {"mail": QueuePolicy(dead_max=4), "sync": QueuePolicy(keep_dead_seconds=10 * HOUR)}
    policies["none"] = QueuePolicy(dead_max=0)
    world, process = world_with(keep_dead_seconds=HOUR, dead_max=2, queues=policies)
    dead_letters(process, 1, "none")
    mail = dead_letters(process, 5, "mail")
    sync = dead_letters(process, 2, "sync")
    world.clock.advance(1)
    other = dead_letters(process, 1, "other")
    tend(process)
    assert left(process) == [*mail[1:], sync[1], *other]
    world.clock.advance(2 * HOUR)
    late = dead_letters(process, 1, "other")
    tend(process)
    assert left(process) == [sync[1], *late], "one that goes for its age counts no more"
    world.clock.advance(9 * HOUR)
    tend(process)
    assert left(process) == []


def test_thousands_go_in_slices_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch holds the lock for long, and no pass remembers more than its share."""
    monkeypatch.setattr(deadkeep, "_EXCESS_MAX", requests.LETTERS_MAX + 30)
    monkeypatch.setattr(deadkeep, "_SCANNED", 100)
    world, process = world_with(dead_max=5)
    jobs = dead_letters(process, 3 * requests.LETTERS_MAX)
    before = process.journal.meters.batches
    tend(process)
    assert left(process) == jobs[-5:]
    assert process.journal.meters.batches - before >= 4
    assert world.fold().need_agenda().dead.live == 5
