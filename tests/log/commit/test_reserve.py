"""The reserve: used on a full disk for settlements, and made again."""

from __future__ import annotations

import contextlib
import errno
from typing import Final

import pytest

from taskq.core.errors import AppendFailed, DiskFull
from taskq.core.model import State
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import Cancel, ClaimRequest, Op, Settlement
from tests.effort import every, grows
from tests.log.commit.full_disks import (
    CONFIG,
    RESERVE,
    RESERVE_PATH,
    request,
    reserve_size,
    state,
)
from tests.log.world import PATH, PLAIN, World
from tests.machine.crashable import CrashableDisk, PowerLost, ProcessKilled

pytestmark = grows

_NO_MIN_FREE: Final = LogConfig(
    segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=0, reserve_bytes=RESERVE
)


def _fill(world: World) -> None:
    world.machine.free = 0
    world.clock.advance(1)


@pytest.mark.parametrize("config", [CONFIG, _NO_MIN_FREE])
def test_while_the_reserve_is_gone_no_process_enqueues_what_was_freed_for_others(
    config: LogConfig,
) -> None:
    world = World(config=config)
    world.machine.free = 2_000_000
    first, second = world.process(), world.process()
    jobs = [first.enqueue(), second.enqueue()]
    _fill(world)
    first.settle(first.claim()[0])
    assert reserve_size(world) == 0
    assert world.machine.free
    assert world.machine.free > RESERVE // 2
    third = world.process()
    for process in (first, second, third):
        with pytest.raises(DiskFull):
            process.enqueue(b"x" * 100)
        assert process.committer.room.pressed
    second.settle(second.claim()[0])
    world.machine.free = config.min_free_bytes or 0
    with pytest.raises(DiskFull):
        third.enqueue()
    world.machine.free += RESERVE + 5_000
    assert third.enqueue() > max(jobs)
    assert reserve_size(world) == RESERVE
    assert first.enqueue() > max(jobs)
    assert not first.committer.room.pressed


@pytest.mark.parametrize("config", [CONFIG, _NO_MIN_FREE])
@pytest.mark.parametrize("room", [0, 1, 60, 200, 500, 1_000, 5_000])
def test_a_mixed_batch_on_a_full_disk_loses_nothing_and_writes_nothing_twice(
    config: LogConfig, room: int
) -> None:
    world = World(config=config)
    first = world.process()
    jobs = [first.enqueue() for _ in range(4)]
    item, two = first.claim(2)
    world.machine.free = room  # since the last look, and nobody knows
    errors: list[object] = []
    requests = [
        request(Op.ENQUEUE, (PLAIN, b"x" * 6_000, None)),
        request(Op.SETTLE, [Settlement(Kind.SUCCEEDED, item, b"42")]),
        request(Op.ENQUEUE_MANY, [(PLAIN, b"1" * 6_000, None), (PLAIN, b"2", None)]),
        request(Op.CANCEL, jobs[2]),
        request(Op.OUTCOME, jobs[0]),
        request(Op.CLAIM, ClaimRequest(1, wait_until_ns=0)),
    ]
    soon = (Op.SETTLE_NOWAIT, None, None, ([Settlement(Kind.SUCCEEDED, two)], errors.append))
    first.commit([*(request for request, _ in requests), soon])
    first.sync()
    enqueued, settled, many, cancelled, outcome, claimed = (future for _, future in requests)
    assert isinstance(enqueued.exception(0), DiskFull)
    assert isinstance(many.exception(0), DiskFull)
    assert settled.result(0) == [None]
    assert cancelled.result(0) == Cancel.WITHDRAWN
    assert outcome.result(0).body == b"42"
    assert [delivery.job for delivery in claimed.result(0)] == [jobs[3]]
    assert not errors
    kinds = world.kinds()
    assert kinds.count(Kind.ENQUEUED) == 4
    assert kinds.count(Kind.SUCCEEDED) == 2
    assert kinds.count(Kind.CANCELLED) == 1
    assert kinds.count(Kind.CLAIMED) == 3
    facets = first.catch_up()
    assert facets.agenda is not None
    assert facets.agenda.queues.stats() == world.fold().need_agenda().queues.stats()


def test_a_quota_that_the_free_bytes_do_not_show_is_a_full_disk_too() -> None:
    world = World(config=CONFIG)
    first = world.process()
    for _ in range(3):
        first.enqueue()
    deliveries = first.claim(3)
    left = 0

    def on_step(operation: str, path: str) -> None:
        nonlocal left
        if operation == "remove" and path == RESERVE_PATH:
            left = 3
        elif operation == "write" and path.endswith(".log") and left:
            left -= 1
        elif operation == "allocate" or (operation == "write" and path.endswith(".log")):
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    world.machine.on_step = on_step
    with pytest.raises(DiskFull, match="quota") as caught:
        first.enqueue()
    assert caught.value.errno == errno.EDQUOT
    first.settle(deliveries[0])
    with pytest.raises(DiskFull):
        first.enqueue()
    first.settle(deliveries[1])
    world.machine.on_step = None
    assert first.enqueue() == 4 + 3 + 1 + 2
    first.enqueue()
    assert reserve_size(world) == RESERVE


@pytest.mark.parametrize("was_power_lost", [True, False])
def test_a_log_opens_on_a_full_disk_so_that_its_jobs_can_be_settled(
    *, was_power_lost: bool
) -> None:
    """After a power loss it begins a segment, which needs room: the reserve's."""
    world = World(config=CONFIG)
    first = world.process()
    job = first.enqueue()
    first.enqueue()
    if was_power_lost:
        world.machine.lose_power()
        world.everyone_is_gone()
        CrashableDisk(world.machine).make_directory(PATH)
        world.machine.put(RESERVE_PATH, bytes(RESERVE))
    else:
        first.kill()
    world.machine.free = 0
    second = world.process()
    with pytest.raises(DiskFull):
        second.enqueue()
    delivery = second.claim()[0]
    assert delivery.job == job
    second.settle(delivery)
    assert state(world, job) is State.SUCCEEDED
    assert reserve_size(world) == 0


def test_a_disk_that_is_full_for_good_is_named_at_opening() -> None:
    world = World(config=CONFIG)
    world.machine.free = 0
    with pytest.raises(AppendFailed, match="Free some space"):
        world.process()
    world.machine.free = None
    world.process().enqueue()


# -- crashes ---------------------------------------------------------------------------------------


def _story(world: World, done: list[tuple[str, int]]) -> None:
    first = world.process()
    done.extend(("job", first.enqueue(b"x" * 50)) for _ in range(4))
    delivery = first.claim()[0]
    _fill(world)
    first.settle(delivery)
    done.append(("settled", delivery.job))
    with contextlib.suppress(DiskFull):
        done.append(("job", first.enqueue()))
    first.ask(Op.CANCEL, 2)
    done.append(("cancelled", 2))
    world.machine.free = 1_000_000
    world.clock.advance(1)
    done.append(("job", first.enqueue()))
    done.append(("job", first.enqueue()))


@pytest.mark.parametrize("power", [True, False])
def test_a_crash_at_any_step_of_making_or_giving_up_the_reserve_loses_nothing(
    *, power: bool
) -> None:
    whole = World(config=CONFIG)
    _story(whole, [])
    assert reserve_size(whole) == RESERVE
    for step in range(1, whole.machine.steps + 1, every(2)):
        world = World(step, CONFIG)
        world.machine.stop_at(step, power=power)
        done: list[tuple[str, int]] = []
        with pytest.raises((PowerLost, ProcessKilled)):
            _story(world, done)
        if power:
            world.everyone_is_gone()
        else:
            world.neighbourhood.living.clear()
        world.machine.free = None
        after = world.process()
        for what, job in done:
            ended = state(world, job)
            if what == "settled":
                assert ended is State.SUCCEEDED, step
            elif what == "cancelled":
                assert ended is State.CANCELLED, step
        known = {record.lsn for record in world.records() if record.type == Kind.ENQUEUED}
        assert {job for what, job in done if what == "job"} <= known
        after.enqueue()
        after.enqueue()
        assert reserve_size(world) == RESERVE, step
        assert f"{PATH}/reserve.tmp" not in world.machine.paths()
        assert not after.catch_up().damage


def test_a_probe_that_a_killed_process_left_takes_no_room() -> None:
    world = World(config=CONFIG)
    CrashableDisk(world.machine).make_directory(PATH)
    world.machine.put(f"{PATH}/reserve.tmp", bytes(16_384))
    world.process().enqueue()
    assert f"{PATH}/reserve.tmp" not in world.machine.paths()


def test_a_reserve_that_is_too_small_is_made_whole() -> None:
    world = World(config=CONFIG)
    CrashableDisk(world.machine).make_directory(PATH)
    world.machine.put(RESERVE_PATH, bytes(100))
    world.process().enqueue()
    assert reserve_size(world) == RESERVE
