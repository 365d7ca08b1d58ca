"""Snapshots: opening starts from the newest that is true, and never needs one."""

from __future__ import annotations

import pytest

from taskq.core.model import SECOND_NS, Extras
from taskq.log.requests import ClaimRequest, Op
from taskq.log.state import snapshot as snapshotfile
from taskq.log.state.facets import Facets
from taskq.log.upkeep import snapshots
from taskq.log.upkeep.snapshots import SnapshotPolicy, Snapshots
from tests.log.told import check_same, exhaust, fill, names, write
from tests.log.world import PLAIN, World

# -- what they are good for ------------------------------------------------------------------------


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


def test_no_step_writes_more_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_large_one_is_on_disk_piece_by_piece_before_it_gets_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sync of all of it would hold up the log; one for each block would take for ever."""
    monkeypatch.setattr(snapshotfile, "BLOCK_BYTES", 64)
    monkeypatch.setattr(snapshots, "_SYNC_BYTES", 1_000)
    world = World()
    process = world.process()
    fill(process)
    process.catch_up()
    synced: list[int] = []

    def note(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".tmp"):
            synced.append(len(world.machine.content(path)))

    world.machine.on_step = note
    exhaust(Snapshots(process.committer).write_steps())
    pieces = [after - before for before, after in zip([0, *synced], synced, strict=False)]
    assert max(pieces) < 1_000 + 2 * 64
    assert sum(0 < size < 1_000 for size in pieces) <= 2, "the ends of two files"
