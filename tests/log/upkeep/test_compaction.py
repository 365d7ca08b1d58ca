"""Compaction: the oldest segment goes, and the log means what it meant."""

from __future__ import annotations

from typing import Any

import pytest

from taskq.core.errors import JobNotFound
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import Duplicate, EnqueueSpec, Op, Rewrite
from taskq.log.state.job_history import is_job
from tests.effort import grows, some
from tests.log.tending import FILLER, fill_segment, keeping, meaning, tend
from tests.log.world import Process, World
from tests.machine.crashable import PowerLost, ProcessKilled

DAY = 86_400
SMALL = keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None)
WEEK = keeping(keep_seconds=7 * DAY)
OTHER = EnqueueSpec("other", "mail.send", 2, 3)


def world_of(config: LogConfig) -> tuple[World, Process]:
    world = World(config=config)
    return world, world.process()


def grown(process: Process, segments: int = 4) -> list[int]:
    return [fill_segment(process) for _ in range(segments)]


def test_a_log_with_a_limit_of_bytes_loses_its_oldest_finished_jobs_and_no_others() -> None:
    world, process = world_of(SMALL)
    first = process.enqueue(b"first")
    process.settle(process.claim()[0])
    grown(process, 6)
    last = process.enqueue(b"last")
    process.settle(process.claim()[0], body=b"result")
    tend(process)
    assert len(world.segments()) <= 3
    assert world.view(first) is None
    view = world.view(last)
    assert view is not None
    assert view.state is State.SUCCEEDED
    assert view.result == b"result"


def test_time_counts_from_the_end_of_a_job() -> None:
    world, process = world_of(WEEK)
    slow = process.enqueue(b"slow", Extras(due_ns=10 * DAY * SECOND_NS))
    quick = process.enqueue(b"quick")
    process.settle(process.claim()[0])
    grown(process, 2)
    world.clock.advance(11 * DAY)
    (delivery,) = process.claim()
    assert delivery.job == slow
    process.settle(delivery, body=b"done")
    tend(process)
    assert world.view(quick) is None
    view = world.view(slow)
    assert view is not None
    assert (view.state, view.result, view.payload) == (State.SUCCEEDED, b"done", b"slow")
    assert view.enqueued_ns < view.settled_ns - 10 * DAY * SECOND_NS
    assert [attempt.outcome for attempt in view.attempts] == ["succeeded"]
    grown(process, 1)
    world.clock.advance(8 * DAY)
    tend(process)
    assert world.view(slow) is None


def test_an_unexpired_key_stays_and_an_expired_one_goes() -> None:
    world, process = world_of(SMALL)
    long = Extras(key=b"long", window_ns=DAY * SECOND_NS)
    short = Extras(key=b"short", window_ns=SECOND_NS)
    job = process.enqueue(b"x" * 1_000, long)
    process.enqueue(b"x", short)
    for delivery in process.claim(2):
        process.settle(delivery)
    grown(process, 8)
    world.clock.advance(2)
    tend(process)
    other = world.process()
    assert other.offer(b"y", long) == Duplicate(job)
    assert isinstance(other.offer(b"y", short), int)
    size = sum(len(record.carried.born) for record in world.records() if record.carried)
    assert size < 500, "the payload of a job whose key alone is needed was written again"
    world.clock.advance(DAY)
    assert isinstance(other.offer(b"y", long), int)


def test_a_paused_queue_stays_paused() -> None:
    world, process = world_of(SMALL)
    process.ask(Op.PAUSE, "other")
    process.enqueue(b"x", spec=OTHER)
    grown(process, 8)
    tend(process)
    assert world.fold().need_agenda().queues.paused == {"other"}
    assert world.process().claim() == []


def test_a_job_that_is_gone_is_not_found() -> None:
    world, process = world_of(SMALL)
    job = process.enqueue(b"x")
    process.settle(process.claim()[0])
    grown(process, 8)
    tend(process)
    assert not is_job(world.reader(), job)
    with pytest.raises(JobNotFound):
        process.ask(Op.OUTCOME, job)


def test_a_segment_that_is_needed_for_the_most_part_stays_until_the_log_has_grown() -> None:
    world, process = world_of(SMALL)
    while len(world.segments()) < 6:
        process.enqueue(FILLER)
    upkeep = tend(process)
    first = len(world.records())
    tend(process, upkeep)
    assert len(world.records()) == first
    assert len(world.segments()) == 6


def test_what_is_carried_in_one_batch_is_bounded() -> None:
    """The writer lock is held for a few milliseconds at a time."""
    process = World(config=keeping(keep_segments=1)).process()
    for _ in range(800):
        process.commit(
            [(Op.ENQUEUE, None, _Nobody(), (OTHER, b"x", Extras(due_ns=DAY * SECOND_NS)))]
        )
    grown(process, 3)
    sizes: list[int] = []
    carry = process.committer.operations.table[Op.CARRY]

    def noted(batch: Any, items: list[Rewrite]) -> object:
        sizes.append(len(items))
        return carry(batch, items)

    process.committer.operations.table[Op.CARRY] = noted
    tend(process)
    assert sum(sizes) >= 800
    assert max(sizes) <= 256


class _Nobody:
    """A future that nobody waits for."""

    def done(self) -> bool:
        return False

    def set_result(self, value: object) -> None:
        assert isinstance(value, int)


def test_a_damaged_segment_is_kept_with_all_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    world, process = world_of(SMALL)
    grown(process, 8)
    path = world.segments()[0]
    world.machine.corrupt(path, 3_000, b"#")
    before = world.segments()
    process.journal._forget_files()
    tend(process)
    assert world.segments() == before
    assert "taskq repair" in caplog.text


# -- crashes --------------------------------------------------------------------------------------


def mixed(world: World, process: Process) -> None:
    """Jobs in every state, with keys, then enough segments for the first to be due."""
    process.enqueue(b"later", Extras(due_ns=DAY * SECOND_NS, key=b"k1"))
    process.enqueue(b"ready", Extras(key=b"k2", window_ns=DAY * SECOND_NS), OTHER)
    process.enqueue(b"expires", Extras(due_ns=SECOND_NS, expires_ns=DAY * SECOND_NS))
    for kind in (Kind.DEAD, Kind.SUCCEEDED, Kind.RETRIED):
        process.enqueue(b"run", Extras(key=kind.name.encode(), window_ns=DAY * SECOND_NS))
        process.settle(process.claim()[0], kind, body=b"why")
    grown(process, 2)
    world.clock.step(3_600)
    grown(process, 4)


@grows
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.timeout(180)
def test_a_crash_at_any_step_loses_nothing_and_doubles_nothing(power: bool) -> None:
    step, survived = 0, 0
    while not survived:
        world = World(seed=step, config=SMALL)
        process = world.process()
        mixed(world, process)
        expected = meaning(process.catch_up(), world.clock.wall_ns())
        world.machine.stop_at(world.machine.steps + step, power=power)
        try:
            tend(process)
            survived = 1
        except (PowerLost, ProcessKilled):
            pass
        world.machine.stop_at(None)
        if power:
            world.lose_power(0)
        now_ns = world.clock.wall_ns()
        fresh = world.process()
        assert meaning(world.fold(), now_ns) == expected, f"step {step}"
        tend(fresh)
        assert len(world.segments()) <= 4
        assert meaning(world.fold(), now_ns) == expected, f"step {step}, then"
        step += 1 + step // some(1, 8)
    assert step > 100
