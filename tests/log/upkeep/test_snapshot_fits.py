"""Refused snapshots; an interrupted write leaves none of them."""

from __future__ import annotations

import logging

import pytest

from taskq.core.model import Durability
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format.frames import segment_lsn, segment_name
from taskq.log.requests import Op
from taskq.log.upkeep.snapshots import Snapshots
from tests.effort import grows, some
from tests.log.told import check_same, exhaust, fill, grow, names, write
from tests.log.world import PATH, PLAIN, World

pytestmark = grows

# -- which are refused -----------------------------------------------------------------------------


def test_a_snapshot_that_is_ahead_of_the_log_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if one had got its name before the log was synced: never written, but never used too."""
    monkeypatch.setattr(Snapshots, "_is_true", lambda *_: True)
    refused = 0
    for seed in range(some(5, 15)):
        world = World(seed, LogConfig(durability=Durability.OS, segment_bytes=SEGMENT_BYTES_MIN))
        process = world.process()
        process.enqueue(b"synced")
        process.committer.sync()
        fill(process)
        before = process.journal.next_lsn
        write(process)
        world.lose_power()
        world.is_whole = False  # a snapshot says that there was more, as none ever should
        survivor = world.process()
        check_same(world)
        fill(survivor)
        check_same(world)
        refused += survivor.journal.recovered != [] or survivor.journal.next_lsn < before
    assert refused
    assert all(record.levelno <= logging.WARNING for record in caplog.records)


def test_what_is_moved_while_a_snapshot_is_written_keeps_it_from_its_name() -> None:
    world = World()
    first, second = world.process(), world.process()
    fill(first)
    steps = Snapshots(first.committer).write_steps()
    next(steps)
    second.send(Op.ENQUEUE, (PLAIN, b"in the air", None))
    world.machine.fail_next_syncs()
    second.sync()
    third = world.process()
    exhaust(steps)
    assert not names(world)
    third.close()
    check_same(world)


def test_a_process_that_does_not_know_yet_that_frames_were_moved_writes_none() -> None:
    world = World()
    first, second = world.process(), world.process()
    for number in range(5):
        second.enqueue(b"early %d" % number)
    second.send(Op.ENQUEUE, (PLAIN, bytes(SEGMENT_BYTES_MIN), None))
    first.enqueue(b"in the next segment")
    fill(first)
    first.committer.sync()
    # Like a process that has not looked for a while, and shares no fsyncs.
    second.journal.durable_lsn = 3
    second.journal.writer.turn.crowded = False
    world.machine.fail_next_syncs()
    second.sync()
    second.close()
    third = world.process()
    assert third.journal.recovered
    assert not write(first)
    check_same(world)
    assert third.claim(9)


def test_a_copy_of_the_log_that_went_another_way_does_not_take_the_snapshot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An older copy of the segments is put back, and written to: the same lsns, other records."""
    world = World()
    process = world.process()
    process.enqueue(b"both know this")
    process.catch_up()
    path = world.segments()[0]
    copy = world.machine.content(path)
    for number in range(4):
        process.enqueue(b"one way %d" % number)
    write(process)
    process.close()
    world.machine.put(path, copy)
    world.machine.put(f"{PATH}/write.lock", b"")
    world.is_whole = False
    other = world.process()
    for number in range(9):
        other.enqueue(b"another %d" % number)
    caplog.clear()
    check_same(world)
    assert "is passed over" in caplog.text


@pytest.mark.parametrize("change", ["shorter", "gone", "between"])
def test_segments_that_are_not_those_that_it_was_made_of_refuse_it(
    change: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    process = world.process()
    for _ in range(4):
        process.enqueue(bytes(SEGMENT_BYTES_MIN))
        process.enqueue(b"one more, so that there is room between the names")
    process.catch_up()
    write(process)
    process.close()
    world.is_whole = False
    second = world.segments()[1]
    data = world.machine.content(second)
    if change == "shorter":
        world.machine.put(second, data[:-8])
    elif change == "gone":
        world.machine.unlink(second)
    else:
        lsn = segment_lsn(second.rpartition("/")[2])
        assert lsn is not None
        world.machine.put(f"{PATH}/log/{segment_name(lsn + 1)}", data)
    world.fold()
    assert "is passed over: the " in caplog.text


def test_the_oldest_segments_may_be_gone() -> None:
    world = World()
    process = world.process()
    for _ in range(4):
        process.enqueue(bytes(SEGMENT_BYTES_MIN))
        process.settle(process.claim(1)[0])
    process.catch_up()
    write(process)
    world.remove_oldest(2)
    fresh = world.process()
    assert fresh.catch_up().caught_up == 0
    assert fresh.catch_up().need_agenda().queues.stats()[0].succeeded == 4


# -- crashes ---------------------------------------------------------------------------------------


def test_a_disk_that_refuses_leaves_no_snapshot_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(60):
        world = World()
        process = world.process()
        fill(process)
        left = number

        def refuse(_operation: str, path: str) -> None:
            nonlocal left
            if "/snapshot" in path and not path.endswith("lock"):
                left -= 1
                if left < 0:
                    raise OSError(28, "No space left on device")

        world.machine.on_step = refuse
        write(process)
        world.machine.on_step = None
        check_same(world)
        if left > 0:
            break
        assert "no snapshot was written: [Errno 28]" in caplog.text
        assert len(names(world)) <= 4
        grow(process)
        write(process)
        assert check_same(world).behind == 0
    assert left > 0


def test_a_sync_of_a_snapshot_that_fails_is_no_failure_of_the_log() -> None:
    world = World()
    process = world.process()
    fill(process)
    world.machine.fail_next_syncs()
    assert not write(process)
    process.enqueue(b"the log goes on")
    assert len(write(process)) == 2


def test_there_is_none_when_the_disk_is_short() -> None:
    world = World(config=LogConfig(min_free_bytes=10_000, reserve_bytes=0))
    process = world.process()
    fill(process)
    world.machine.free = 10_050
    assert not write(process)
    world.machine.free = 50_000
    assert len(write(process)) == 2
