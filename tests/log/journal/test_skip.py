"""A log goes on above an lsn that somebody else has seen, in an epoch that nobody has."""

from __future__ import annotations

import pytest

from taskq.core.errors import AppendFailed
from taskq.log.config import LSN_SKIP
from taskq.log.requests import Op
from tests.log.world import World
from tests.machine.crashable import PowerLost, ProcessKilled

_SEEN = 5_000_000


def _steps_of_skip() -> int:
    world = World()
    process = world.process()
    process.enqueue()
    before = world.machine.steps
    process.ask(Op.SKIP, _SEEN)
    return world.machine.steps - before


def test_what_is_written_behind_a_skip_is_above_what_was_seen_and_of_another_epoch() -> None:
    world = World()
    first, other = world.process(), world.process()
    jobs = [first.enqueue(b"before"), other.enqueue(b"too")]
    epoch = first.journal.epoch
    assert first.ask(Op.SKIP, _SEEN) == _SEEN + LSN_SKIP
    jobs += [other.enqueue(b"behind"), first.enqueue(b"it")]
    assert jobs[2] == _SEEN + LSN_SKIP
    assert epoch != other.journal.epoch == first.journal.epoch
    assert [delivery.job for delivery in first.claim(9)] == jobs
    assert world.reader().lost == ()


def test_a_skip_below_the_logs_end_begins_an_epoch_at_its_end() -> None:
    world = World()
    process = world.process()
    process.ask(Op.SKIP, _SEEN)
    job, epoch = process.enqueue(), process.journal.epoch
    following = process.ask(Op.SKIP, _SEEN + 1)
    assert following > job
    assert process.enqueue() == following
    assert process.journal.epoch != epoch


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("step", range(1, _steps_of_skip() + 1))
def test_a_skip_that_is_cut_short_can_be_made_again(step: int, *, power: bool) -> None:
    for seed in range(4):
        world = World(seed)
        process = world.process()
        job = process.enqueue(b"kept")
        world.machine.stop_at(world.machine.steps + step, power=power)
        with pytest.raises((ProcessKilled, PowerLost)):
            process.ask(Op.SKIP, _SEEN)
        if power:
            world.everyone_is_gone()
        again = world.process()
        assert again.ask(Op.SKIP, _SEEN) >= _SEEN + LSN_SKIP
        assert again.enqueue() > _SEEN + LSN_SKIP - 1
        assert [delivery.job for delivery in again.claim(1)] == [job]


def test_a_disk_without_room_for_a_segment_leaves_the_log_as_it_was() -> None:
    world = World()
    process = world.process()
    job, epoch = process.enqueue(), process.journal.epoch
    world.machine.free = 0
    with pytest.raises(AppendFailed):
        process.ask(Op.SKIP, _SEEN)
    world.machine.free = None
    assert process.enqueue() == job + 1
    assert process.journal.epoch == epoch
