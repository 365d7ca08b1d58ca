"""Snapshots: opening starts from the newest that is true, and never needs one."""

from __future__ import annotations

import pytest

from taskq.core.model import SECOND_NS, Extras
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.requests import ClaimRequest, Op
from taskq.log.state import snapshot as snapshotfile
from taskq.log.state.facets import Facets
from taskq.log.upkeep import snapshots
from taskq.log.upkeep.snapshots import SnapshotPolicy, Snapshots
from tests.log.told import OTHER, check_same, exhaust, fill, folded, grow, names, told, write
from tests.log.world import PLAIN, World
from tests.machine.crashable import ProcessKilled


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small snapshot has many."""
    monkeypatch.setattr(snapshotfile, "BLOCK_BYTES", 256)


# -- what they are good for ------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_a_fold_begins_where_the_snapshot_ends() -> None:
    world = World()
    process = world.process()
    fill(process)
    assert len(write(process)) == 2
    grow(process)
    behind, total = check_same(world)
    assert 0 < behind < total / 2


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
        assert [delivery.job for delivery in process.claim(1)]
    late = world.process().catch_up()
    assert told(late, now_ns) == told(folded(world, trusts_snapshots=False), now_ns)


def test_a_process_whose_segments_are_numbered_otherwise_finds_the_records() -> None:
    """Locations are numbers of one process; the snapshot says which segment each stands for."""
    world = World()
    process = world.process()
    for number in range(3):
        process.enqueue(b"x" * SEGMENT_BYTES_MIN, spec=OTHER)
        process.enqueue(b"small %d" % number)
    process.catch_up()
    numbers = process.journal.files
    # As in a process that found them in another order.
    numbers._by_ordinal.reverse()
    numbers._ordinals = {lsn: at for at, lsn in enumerate(numbers._by_ordinal)}
    process.committer.facets.discard()
    process.catch_up()
    write(process)
    assert check_same(world).behind == 0
    other = world.process()
    assert other.catch_up().caught_up == 0
    assert [delivery.payload[:7] for delivery in other.claim(6)][3:] == [
        b"small 0",
        b"small 1",
        b"small 2",
    ]


def test_a_moment_of_the_past_is_told_without_snapshots() -> None:
    """One of its very position may have been made when more jobs were due."""
    world = World()
    process = world.process()
    process.enqueue(b"due in a second", Extras(due_ns=SECOND_NS))
    process.catch_up()
    world.clock.advance(60)
    process.send(Op.CLAIM, ClaimRequest(0, wait_until_ns=0))
    assert process.catch_up().need_agenda().queues.stats()[0].ready == 1
    write(process)
    reader = world.reader()
    reader.is_past = True
    facets = Facets(reader)
    assert facets.need_agenda().queues.stats()[0].scheduled == 1


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
    exhaust(keeper.steps())
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
        patch.delattr(Snapshots, "_look")
        for _ in range(100):
            assert not keeper.due()


def test_a_directory_that_cannot_be_read_is_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    process = world.process()
    fill(process)
    keeper = Snapshots(process.committer, SnapshotPolicy(log_bytes_min=1))

    def refuse(path: str) -> list[str]:
        raise OSError(5, "Input/output error", path)

    with monkeypatch.context() as patch:
        patch.setattr(process.disk, "names", refuse)
        assert not keeper.due()
        for steps in (keeper.steps(), keeper.close_steps(), keeper.write_steps()):
            exhaust(steps)
    assert caplog.text.count("no snapshot was written: [Errno 5]") == 3
    process.enqueue(bytes(2**20))
    process.catch_up()
    assert keeper.due()


def test_at_close_one_is_written_if_the_tail_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    process = world.process()
    fill(process)
    keeper = Snapshots(process.committer)
    assert not list(keeper.close_steps())
    monkeypatch.setattr(snapshots, "CLOSE_BYTES_MIN", 1_000)
    exhaust(keeper.close_steps())
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
    exhaust(steps)
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
    assert check_same(world).behind


def test_one_that_is_whole_but_wrong_does_not_stop_the_log_for_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bug once froze nonsense, and every claim breaks on it: then the log itself is folded."""
    world = World()
    writer = world.process()
    job = writer.enqueue()
    for lane in writer.catch_up().need_agenda().lanes:
        lane._head = 5_000
    assert write(writer)
    writer.close()
    process = world.process()
    tries = 0
    while process.send(Op.CLAIM, ClaimRequest(1, wait_until_ns=0)).exception(0) is not None:
        tries += 1
    assert tries < 10
    assert "snapshots are not used any more here" in caplog.text
    agenda = process.committer.facets.agenda
    assert agenda is not None
    assert list(agenda.running) == [job]
