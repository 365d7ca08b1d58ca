"""The first and the next open of a log, after any crash."""

from __future__ import annotations

import pytest

from taskq.core.errors import FormatError
from taskq.core.model import Extras
from taskq.log.format import codec
from tests.effort import grows, some
from tests.log.world import PATH, World
from tests.machine.crashable import CrashableDisk, ProcessKilled

pytestmark = grows

_FIRST = f"{PATH}/log/00000000000000000001.log"


def _steps_of_first_open() -> int:
    world = World()
    world.process()
    return world.machine.steps


@pytest.mark.parametrize("step", range(1, _steps_of_first_open() + 1))
def test_a_first_open_killed_at_any_step_leaves_a_directory_that_the_next_one_uses(
    step: int,
) -> None:
    for seed in range(some(2, 8)):
        world = World(seed)
        world.machine.stop_at(step, power=False)
        with pytest.raises(ProcessKilled):
            world.process()
        job = world.process().enqueue(b"kept")
        world.lose_power()
        again = world.process()
        view = world.view(job)
        assert view is not None, f"seed {seed}"
        assert again.enqueue() > job


def test_a_lost_identity_beside_segments_is_an_error_that_says_so() -> None:
    world = World()
    world.process().enqueue()
    CrashableDisk(world.machine).remove(f"{PATH}/taskq.json")
    with pytest.raises(FormatError, match=r"taskq\.json is missing"):
        world.process()


@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize("offset", [0, 12, 16, 30, 40, 50, 58])
def test_a_damaged_segment_header_costs_no_record(offset: int, *, same_boot: bool) -> None:
    """Name and first frame say again what it said; the damage is reported."""
    world = World()
    first = world.process()
    jobs = [first.enqueue(bytes([number])) for number in range(3)]
    first.close()
    (byte,) = world.machine.content(_FIRST)[offset : offset + 1]
    world.machine.corrupt(_FIRST, offset, bytes([byte ^ 0xFF]))
    if not same_boot:
        world.machine.put(f"{PATH}/write.lock", b"")
        world.lose_power()
    second = world.process()
    last = second.enqueue(b"last")
    assert last > jobs[-1]
    assert [delivery.job for delivery in second.claim(9)] == [*jobs, last]
    assert all(world.view(job) is not None for job in (*jobs, last))
    damage = second.catch_up().damage
    assert [(gap.segment, gap.offset, gap.size) for gap in damage] == [(_FIRST[-24:], 0, 64)]


def test_a_segment_that_cannot_be_read_at_all_keeps_its_ids() -> None:
    """Header and first frame are gone, and the hint too: what is left is never written over."""
    world = World()
    first = world.process()
    first.append(b"".join(codec.encode_clock(0, 1) for _ in range(1_000)), 1_000)
    lost = first.enqueue(b"x" * 200)
    first.close()
    world.machine.corrupt(_FIRST, 0, bytes(200))
    world.machine.put(f"{PATH}/write.lock", b"")
    world.lose_power()
    before = world.machine.content(_FIRST)
    second = world.process()
    assert second.enqueue() > lost
    assert world.machine.content(_FIRST) == before


def test_log_time_does_not_go_back_over_segments_without_frames() -> None:
    """Two power losses in a row, the second into 1970: the fall is recorded, delays go on."""
    world = World()
    first = world.process()
    job = first.enqueue(extras=Extras(due_ns=3_600 * 10**9))
    world.lose_power()
    world.process()
    world.machine.lose_power()
    world.neighbourhood.living.clear()
    world.clock.reboot(wall_seconds=1_000)
    third = world.process()
    assert third.claim() == []
    world.clock.advance(3_500)
    assert third.claim() == []
    world.clock.advance(200)
    assert [delivery.job for delivery in third.claim()] == [job]
