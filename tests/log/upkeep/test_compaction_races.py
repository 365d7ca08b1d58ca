"""Changes while a segment is being compacted, and its odd jobs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from taskq.core.errors import TaskqError
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Cause, Kind
from taskq.log.commit import chores as errand
from taskq.log.config import SEGMENT_BYTES_MIN, QueuePolicy
from taskq.log.format import frames as segment
from taskq.log.read.selection import letters
from taskq.log.requests import EnqueueSpec, Op, Order
from taskq.log.upkeep import upkeep
from taskq.log.upkeep.upkeep import Upkeep
from tests.effort import every, grows
from tests.log.tending import fill_segment, keeping, meaning, tend
from tests.log.world import Process, World

DAY = 86_400
WEEK = keeping(keep_seconds=7 * DAY)
SMALL = keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None)
OTHER = EnqueueSpec("other", "mail.send", 2, 3)


def steps(process: Process) -> Iterator[int]:
    care = Upkeep(process.committer)
    process.catch_up()
    for number in range(100_000):
        requests = care.step()
        yield number
        if requests:
            process.commit(requests)
            process.sync()
            yield number
        elif not care.busy:
            return


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that does one in a millisecond."""
    monkeypatch.setattr(errand, "STEPS_MAX", 1)


def requeue(process: Process, job: int) -> None:
    process.catch_up()
    page = letters(process.committer.sight, [job])
    assert process.ask(Op.REQUEUE, page.items) == [None]


@grows
def test_a_job_that_ends_in_the_midst_of_it_is_kept_with_its_result() -> None:
    """It was alive when the segment was looked through, and its time counts from its end."""
    number, more = 0, True
    while more:
        world = World(config=WEEK)
        process = world.process()
        job = process.enqueue(b"slow")
        (delivery,) = process.claim()
        first = world.segments()[0]
        fill_segment(process)
        world.clock.advance(8 * DAY)
        more = False
        for step in steps(process):
            if step == number and not more:
                process.settle(delivery, body=b"result")
                more = True
        if more:
            assert first not in world.segments()
            view = world.view(job)
            assert view is not None, f"step {number}"
            assert (view.state, view.result, view.payload) == (State.SUCCEEDED, b"result", b"slow")
        number += every(3)
    assert number > 5


@pytest.mark.parametrize("kind", [Kind.SUCCEEDED, Kind.DEAD])
def test_a_dead_letter_that_was_requeued_does_not_keep_its_old_segment(kind: Kind) -> None:
    config = keeping(keep_seconds=DAY, queues={"other": QueuePolicy(keep_seconds=30 * DAY)})
    world = World(config=config)
    process = world.process()
    job = process.enqueue(b"bad", spec=OTHER)
    process.settle(process.claim()[0], Kind.DEAD, body=b"why", cause=Cause.EXHAUSTED)
    fill_segment(process)
    requeue(process, job)
    process.settle(process.claim()[0], kind, body=b"then", cause=Cause.EXHAUSTED)
    world.clock.advance(2 * DAY)
    first = world.segments()[0]
    tend(process)
    assert first not in world.segments()
    view = world.view(job)
    assert view is not None
    assert view.state is (State.SUCCEEDED if kind is Kind.SUCCEEDED else State.DEAD)


def test_whoever_waits_for_a_job_that_is_kept_gets_its_result_from_where_it_stands_now() -> None:
    """The process that settled it remembers where; compaction wrote it elsewhere since."""
    config = keeping(keep_seconds=DAY, queues={"other": QueuePolicy(keep_seconds=30 * DAY)})
    world = World(config=config)
    process, other = world.process(), world.process()
    job = process.enqueue(b"x", spec=OTHER)
    process.settle(process.claim()[0], body=b"result")
    fill_segment(process)
    world.clock.advance(2 * DAY)
    first = world.segments()[0]
    tend(other)
    assert first not in world.segments()
    process.journal.files.refresh()
    assert process.ask(Op.OUTCOME, job).body == b"result"


def test_a_segment_that_is_read_in_the_midst_of_many_others_is_no_damaged_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files that were not used for the longest time are closed, and their numbers used again."""
    monkeypatch.setattr(segment, "READ_SIZE", 4_096)
    world = World(config=keeping(keep_segments=60, keep_seconds=None))
    process = world.process()
    job = process.enqueue(b"retried", Extras(due_ns=DAY * SECOND_NS))
    world.clock.advance(DAY + 1)
    for _ in range(61):
        (delivery,) = process.claim()
        assert delivery.job == job
        process.settle(delivery, Kind.RETRIED, delay_ns=SECOND_NS, body=b"again")
        fill_segment(process)
        world.clock.advance(2)
    first = world.segments()[0]
    before = meaning(process.catch_up(), world.clock.wall_ns())
    for _ in steps(process):
        for lsn in process.journal.files.lsns:
            process.journal.files.descriptor(lsn)
    assert first not in world.segments()
    assert meaning(world.fold(), world.clock.wall_ns()) == before


def test_what_nobody_thought_of_does_not_end_the_process(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(config=SMALL)
    process = world.process()
    for _ in range(6):
        fill_segment(process)

    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("nobody thought of this")

    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "due", broken)
        care = tend(process)
        future: Future[Any] = Future()
        care.order(Order(None, False, None, future))
        tend(process, care)
        process.sync()
    assert "nobody thought of this" in caplog.text
    with pytest.raises(TaskqError, match="nobody thought of this"):
        future.result(0)
    world.clock.advance(60)
    tend(process, care)
    assert len(world.segments()) <= 3
