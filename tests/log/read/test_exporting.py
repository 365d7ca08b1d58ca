"""Every job of a log in one walk: the same as asking for each."""

from __future__ import annotations

import tracemalloc

import pytest

from taskq.core.model import State
from taskq.core.records import Kind
from taskq.core.views import JobView
from taskq.log.format import codec
from taskq.log.format.carried import Carried, encode_carried
from taskq.log.read.jobs import JobFilter, each_job
from taskq.log.requests import EnqueueSpec, Op
from taskq.log.state.job_history import job_view
from tests.effort import grows, some
from tests.log.acts import History
from tests.log.world import PLAIN, World

_OVER = (State.SUCCEEDED, State.CANCELLED, State.EXPIRED)


def _all(world: World, chosen: JobFilter | None = None) -> list[JobView]:
    return list(each_job(world.reader(), chosen or JobFilter(), world.clock.wall_ns()))


@grows
@pytest.mark.parametrize("steps_of_clock", [False, True])
@pytest.mark.parametrize("seed", range(some(1, 5)))
def test_every_job_is_told_once_and_as_if_it_was_asked_for(
    seed: int, *, steps_of_clock: bool
) -> None:
    """Through retries, dead processes, keys, expiries, several segments and steps of the clock."""
    history = History(seed, steps_of_clock=steps_of_clock)
    history.run(40)
    world = history.world
    answer = _all(world)
    jobs = [record.lsn for record in world.records() if record.type == Kind.ENQUEUED]
    asked = [view for view in map(world.view, jobs) if view is not None]
    assert sorted(answer, key=lambda view: view.lsn) == asked
    over = [view for view in answer if view.state in _OVER]
    assert answer[: len(over)] == over
    rest = [view.lsn for view in answer[len(over) :]]
    assert rest == sorted(rest)


def test_jobs_are_chosen_by_state_queue_task_and_time_of_their_enqueue() -> None:
    world = World()
    process = world.process()
    start_ns = world.clock.wall_ns()
    first = process.enqueue(spec=EnqueueSpec("mail", "mail.send"))
    world.clock.advance(60)
    second = process.enqueue(spec=EnqueueSpec("mail", "mail.sort"))
    third = process.enqueue(spec=EnqueueSpec("sync", "mail.send"))
    [delivery] = process.claim()
    process.settle(delivery)

    def lsns(chosen: JobFilter) -> list[int]:
        return [view.lsn for view in _all(world, chosen)]

    assert lsns(JobFilter()) == [first, second, third]
    assert lsns(JobFilter(states=frozenset({State.SUCCEEDED}))) == [first]
    assert lsns(JobFilter(states=frozenset({State.READY}))) == [second, third]
    assert lsns(JobFilter(queue="mail")) == [first, second]
    assert lsns(JobFilter(task="mail.send")) == [first, third]
    assert lsns(JobFilter(since_ns=start_ns + 1)) == [second, third]
    assert lsns(JobFilter(until_ns=start_ns + 1)) == [first]
    assert lsns(JobFilter(queue="mai")) == []


def test_what_compaction_wrote_again_is_told_once() -> None:
    world = World()
    process = world.process()
    done, waiting = process.enqueue(b"done"), process.enqueue(b"waiting")
    [delivery] = process.claim()
    process.settle(delivery, body=b"42")
    process.enqueue(bytes(70_000))
    process.enqueue(b"in the second segment")
    views = {view.lsn: view for view in _all(world)}
    for job in (done, waiting):
        view = views[job]
        result = world.reader().indexes.find(job)
        assert result is not None
        carried = Carried(
            job=job, state=view.state, born=result.record, enqueued_ns=view.enqueued_ns,
            attempt=view.attempt, ended_ns=view.settled_ns, body=view.result,
        )  # fmt: skip
        process.append(encode_carried(Kind.CARRIED, carried, process.journal.next_lsn))
    assert {view.lsn: view for view in _all(world)} == views
    world.remove_oldest(1)
    answer = _all(world)
    assert [view.lsn for view in answer] == [done, waiting, max(views)]
    assert [view.payload for view in answer[:2]] == [b"done", b"waiting"]
    assert answer[0].result == b"42"
    for view in answer:
        assert view == job_view(world.reader(), view.lsn, world.clock.wall_ns())


def test_records_that_are_whole_in_a_damaged_frame_are_told_too() -> None:
    world = World()
    process = world.process()
    jobs = process.ask(Op.ENQUEUE_MANY, [(PLAIN, b"payload %d" % n, None) for n in range(3)])
    process.enqueue()
    [path] = world.segments()
    place = world.machine.content(path).index(b"payload 1")
    world.machine.corrupt(path, place, b"P")
    assert [view.payload for view in _all(world)] == [b"payload 0", b"payload 2", b"{}"]
    assert jobs[1] not in [view.lsn for view in _all(world)]


def test_waiting_jobs_cost_no_more_than_their_places() -> None:
    """Their payloads stay in the log until it is their turn."""
    world = World()
    process = world.process()
    for _ in range(40):
        process.ask(Op.ENQUEUE_MANY, [(PLAIN, bytes(500), None) for _ in range(50)])
    journal = world.reader()
    answer = each_job(journal, JobFilter(), world.clock.wall_ns())
    next(answer)
    tracemalloc.start()
    count = 1 + sum(1 for _ in each_job(journal, JobFilter(), world.clock.wall_ns()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2_001
    assert peak < 2_000 * 500 // 2 + 2 * codec.FRAME_BODY_MAX // 9
