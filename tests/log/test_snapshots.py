"""Snapshots: opening starts from the newest that is true, and never needs one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import pytest

from taskq.core.model import SECOND_NS, Durability, Extras
from taskq.core.records import Kind
from taskq.log import snapshotfile, snapshots
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.facets import Facets
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op
from taskq.log.segment import segment_lsn, segment_name
from taskq.log.snapshots import SnapshotPolicy, Snapshots
from taskq.testing.crashable import PowerLost, ProcessKilled
from tests.log.told import check_same, folded, names, told, write
from tests.log.world import PATH, PLAIN, Process, World

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHER: Final = EnqueueSpec("mail", "send", 9, 2)
_HOUR: Final = Extras(due_ns=3_600 * SECOND_NS)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small snapshot has many."""
    monkeypatch.setattr(snapshotfile, "BLOCK_BYTES", 256)


def fill(process: Process) -> None:
    """A bit of everything."""
    for number in range(12):
        process.enqueue(b"plain %d" % number, spec=_OTHER if number % 3 else PLAIN)
    for number in range(4):
        process.offer(b"keyed", Extras(key=b"key %d" % number, window_ns=number * 10**10))
    process.enqueue(b"later", _HOUR)
    process.enqueue(b"soon", Extras(due_ns=SECOND_NS, expires_ns=60 * SECOND_NS))
    for number, delivery in enumerate(process.claim(6)):
        kind = (Kind.SUCCEEDED, Kind.DIED, Kind.RETRIED)[number % 3]
        process.settle(delivery, kind, delay_ns=SECOND_NS if kind is Kind.RETRIED else 0)
    process.claim(2)
    process.catch_up()


def grow(process: Process) -> None:
    """What is written after a snapshot."""
    for delivery in process.claim(3):
        process.settle(delivery)
    process.enqueue(b"after", Extras(key=b"key of %d" % process.journal.next_lsn))
    process.catch_up()


# -- what they are good for ------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_a_fold_begins_where_the_snapshot_ends() -> None:
    world = World()
    process = world.process()
    fill(process)
    assert len(write(process)) == 2
    grow(process)
    total = folded(world, trusts_snapshots=False).caught_up
    assert check_same(world).caught_up < total / 2


def test_one_process_uses_what_another_wrote() -> None:
    """Whoever opens the log later, whoever reads it, and whoever has had it open all the time."""
    world = World()
    first, early = world.process(), world.process()
    early.enqueue(b"the early one builds nothing yet")
    fill(first)
    write(first)
    grow(first)
    now_ns = world.clock.wall_ns()
    for process in (early, world.process()):
        before = process.catch_up().caught_up
        assert before < folded(world, trusts_snapshots=False).caught_up / 2
        process.enqueue(b"it goes on from there")
        assert [one.job for one in process.claim(1)]
    late = world.process().catch_up()
    assert told(late, now_ns) == told(folded(world, trusts_snapshots=False), now_ns)


def test_a_process_whose_segments_are_numbered_otherwise_finds_the_records() -> None:
    """Locations are numbers of one process; the snapshot says which segment each stands for."""
    world = World()
    process = world.process()
    for number in range(3):
        process.enqueue(b"x" * SEGMENT_BYTES_MIN, spec=_OTHER)
        process.enqueue(b"small %d" % number)
    process.catch_up()
    numbers = process.journal.files
    # As in a process that found them in another order.
    numbers._by_ordinal.reverse()
    numbers._ordinals = {lsn: at for at, lsn in enumerate(numbers._by_ordinal)}
    process.committer.facets.discard()
    process.catch_up()
    write(process)
    assert check_same(world).caught_up == 0
    other = world.process()
    assert other.catch_up().caught_up == 0
    assert [one.payload[:7] for one in other.claim(6)][3:] == [b"small 0", b"small 1", b"small 2"]


def test_a_moment_of_the_past_is_told_without_snapshots() -> None:
    """One of its very position may have been made when more jobs were due."""
    world = World()
    process = world.process()
    process.enqueue(b"due in a second", Extras(due_ns=SECOND_NS))
    process.catch_up()
    world.clock.advance(60)
    process.send(Op.CLAIM, ClaimRequest(0, wait_until_ns=0))
    assert process.catch_up().need_agenda().stats()[0].ready == 1
    write(process)
    reader = world.reader()
    reader.is_past = True
    facets = Facets(reader)
    assert facets.need_agenda().stats()[0].scheduled == 1


# -- when ------------------------------------------------------------------------------------------


def test_the_first_is_due_after_so_much_log_and_the_next_after_as_much_again() -> None:
    world = World()
    process = world.process()
    process.catch_up()
    keeper = Snapshots(process.committer, SnapshotPolicy(log_bytes_min=30_000))
    written = 0
    while not keeper.due():
        process.enqueue(bytes(2_000))
        process.claim(1)
        written += 2_000
    assert 26_000 < written <= 30_000
    _exhaust(keeper.steps())
    assert len(names(world)) == 2
    assert not keeper.due()
    since = 0
    while not keeper.due():
        process.enqueue(bytes(2_000))
        process.claim(1)
        since += 2_000
    assert 26_000 < since <= 30_000
    # Another process, or this one after it was opened again, does not begin to count anew.
    other = world.process()
    other.catch_up()
    assert Snapshots(other.committer, SnapshotPolicy(log_bytes_min=30_000)).due()
    assert not Snapshots(other.committer, SnapshotPolicy(log_bytes_min=40_000)).due()


def test_a_large_state_is_written_for_more_log() -> None:
    policy = SnapshotPolicy()
    assert policy.limit(0) == policy.limit(16 * 1024**2) == 8 * 1024**2
    assert policy.limit(64 * 1024**2) == 32 * 1024**2


def test_a_process_that_only_enqueues_writes_none() -> None:
    world = World()
    process = world.process()
    for _ in range(40):
        process.enqueue(bytes(2_000))
    keeper = Snapshots(process.committer, SnapshotPolicy(log_bytes_min=30_000))
    assert not keeper.due()
    assert not list(keeper.close_steps())


def test_the_log_of_a_busy_process_is_looked_at_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask after each batch costs nothing: the directory is read once in a while."""
    world = World()
    process = world.process()
    process.catch_up()
    keeper = Snapshots(process.committer)
    assert not keeper.due()
    with monkeypatch.context() as patch:
        patch.delattr(Snapshots, "_due_forms")
        for _ in range(100):
            assert not keeper.due()


def test_at_close_one_is_written_if_the_tail_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    process = world.process()
    fill(process)
    keeper = Snapshots(process.committer)
    assert not list(keeper.close_steps())
    monkeypatch.setattr(snapshots, "CLOSE_BYTES_MIN", 1_000)
    _exhaust(keeper.close_steps())
    assert len(names(world)) == 2
    assert not list(keeper.close_steps()), "there is nothing new"


def test_two_of_each_facet_are_kept() -> None:
    world = World()
    process = world.process()
    process.catch_up()
    seen = set()
    for _ in range(4):
        fill(process)
        seen.update(write(process))
    assert len(seen) == 8
    left = names(world)
    assert sorted(left) == sorted(seen)[-4:]
    assert [name.split(".")[1] for name in left] == ["agenda", "dedup"] * 2


def test_one_process_writes_at_a_time() -> None:
    world = World()
    first, second = world.process(), world.process()
    fill(first)
    second.catch_up()
    steps = Snapshots(first.committer).write_steps()
    next(steps)
    assert not list(Snapshots(second.committer).write_steps())
    _exhaust(steps)
    assert len(names(world)) == 2
    first.enqueue(b"more")
    second.catch_up()
    assert list(Snapshots(second.committer).write_steps())


def test_what_a_killed_writer_left_is_removed() -> None:
    world = World()
    first = world.process()
    fill(first)
    steps = Snapshots(first.committer).write_steps()
    next(steps)
    next(steps)
    first.kill()
    with pytest.raises(ProcessKilled):
        steps.close()
    assert [name for name in names(world) if name.endswith(".tmp")]
    second = world.process()
    second.catch_up()
    assert not [name for name in write(second) if name.endswith(".tmp")]


def test_no_step_writes_more_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """And between two of them the process that writes it goes on with its batches."""
    monkeypatch.setattr(snapshotfile, "BLOCK_BYTES", 4_096)
    world = World()
    process = world.process()
    for number in range(1_000):
        process.send(Op.ENQUEUE, (PLAIN, b"%d" % number, None))
    process.sync()
    process.catch_up()
    written: list[int] = []
    write_to_disk = process.disk.write

    def note(descriptor: int, data: bytes, offset: int) -> int:
        written[-1] += len(data)
        return write_to_disk(descriptor, data, offset)

    steps = Snapshots(process.committer).write_steps()
    done = object()
    while True:
        written.append(0)
        with monkeypatch.context() as patch:
            patch.setattr(process.disk, "write", note)
            if next(steps, done) is done:
                break
        process.send(Op.ENQUEUE, (PLAIN, b"meanwhile", None))
    assert sum(written) > 20_000
    assert max(written) <= 4_096 + 4
    assert check_same(world).caught_up


# -- which are refused -----------------------------------------------------------------------------


def test_a_power_loss_takes_nothing_that_a_snapshot_knows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With ``os`` and ``interval`` the log is synced before a snapshot gets its name."""
    for durability in (Durability.OS, Durability.INTERVAL, Durability.FSYNC):
        for seed in range(15):
            config = LogConfig(durability=durability, segment_bytes=SEGMENT_BYTES_MIN)
            world = World(seed, config)
            process = world.process()
            fill(process)
            write(process)
            grow(process)
            world.lose_power()
            reader = world.process()
            assert reader.catch_up().caught_up < 20
            assert check_same(world).caught_up < 20
    assert not caplog.records


def test_a_snapshot_that_is_ahead_of_the_log_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if one had got its name before the log was synced: never written, but never used too."""
    monkeypatch.setattr(Snapshots, "_is_true", lambda *_: True)
    refused = 0
    for seed in range(15):
        world = World(seed, LogConfig(durability=Durability.OS, segment_bytes=SEGMENT_BYTES_MIN))
        process = world.process()
        process.enqueue(b"synced")
        process.committer.sync()
        fill(process)
        before = process.journal.next_lsn
        write(process)
        world.lose_power()
        survivor = world.process()
        check_same(world)
        fill(survivor)
        check_same(world)
        refused += survivor.journal.recovered != [] or survivor.journal.next_lsn < before
    assert refused
    assert all(record.levelno <= logging.WARNING for record in caplog.records)


def test_frames_that_were_moved_after_a_failed_sync_are_not_looked_for_where_they_were() -> None:
    """The snapshot's writer knew more to be on disk than the process whose sync failed."""
    for seed in range(10):
        world = World(seed)
        first, second = world.process(), world.process()
        second.enqueue(b"the second knows that this is on disk")
        fill(first)
        write(first)
        second.send(Op.ENQUEUE, (PLAIN, b"in the air", None))
        second.journal.durable_lsn = 2
        world.machine.fail_next_syncs()
        second.sync()
        for process in (first, second):
            process.close()
        third = world.process()
        assert third.journal.recovered
        check_same(world)
        assert third.claim(1)[0].payload
        check_same(world)


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
    _exhaust(steps)
    assert not names(world)
    third.close()
    check_same(world)


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
    for path in world.segments()[:2]:
        world.machine.unlink(path)
    fresh = world.process()
    assert fresh.catch_up().caught_up == 0
    assert fresh.catch_up().need_agenda().stats()[0].succeeded == 4


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("power", [True, False])
def test_writing_may_end_at_any_step(*, power: bool) -> None:
    """Killed or without power: the log is what it was, and what has its name is true."""
    step, used = 0, 0
    while True:
        world = World(step)
        process = world.process()
        fill(process)
        if step % 2:
            write(process)
            grow(process)
        world.machine.stop_at(world.machine.steps + step + 1, power=power)
        try:
            write(process)
        except (PowerLost, ProcessKilled):
            (world.everyone_is_gone if power else process.kill)()
        else:
            break
        reopened = world.process()
        reopened.catch_up()
        facets = check_same(world)
        used += facets.caught_up < folded(world, trusts_snapshots=False).caught_up
        grow(reopened)
        write(reopened)
        assert check_same(world).caught_up == 0
        step += 1
    assert step > 20
    assert used


def test_a_disk_that_refuses_leaves_no_snapshot_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At every step; the log itself is not touched, and goes on."""
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
        assert check_same(world).caught_up == 0
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
    """Room is for jobs; a snapshot is only of use."""
    world = World(config=LogConfig(min_free_bytes=10_000, reserve_bytes=0))
    process = world.process()
    fill(process)
    world.machine.free = 10_050
    assert not write(process)
    world.machine.free = 50_000
    assert len(write(process)) == 2


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass
