"""The readable end of the log: durable for its openers, with a wake-up at growth."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Final

import pytest

from taskq.core.errors import LogFailed
from taskq.core.model import Durability
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.machine.ports import (
    INTEREST_CANCEL,
    INTEREST_GROWTH,
    INTEREST_OUTCOME,
    INTEREST_READY,
)
from taskq.log.read.follow import Onlooker
from taskq.log.requests import Answer, ClaimRequest, Op
from taskq.log.segments.segments import Extent
from tests.log.world import PATH, PLAIN, Process, World

HINT: Final = f"{PATH}/write.lock"


def config(durability: Durability) -> LogConfig:
    return LogConfig(durability=durability, segment_bytes=SEGMENT_BYTES_MIN)


def follow(process: Process, beyond: int | None) -> Future[Any]:
    """Ask, and leave the answer to ``told``."""
    future: Future[Any] = Future()
    process.commit([(Op.FOLLOW, None, future, beyond)])
    return future


def told(process: Process) -> list[Answer]:
    return process.committer.waiters.growth.told()


def extent_of(process: Process) -> Extent:
    journal = process.journal
    return Extent(journal.segment, journal.offset, journal.next_lsn)


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.INTERVAL])
def test_only_what_is_on_disk_may_be_read(durability: Durability) -> None:
    """A stream that waits hears of a record once it is synced, and not before."""
    process = World().process(config(durability))
    process.enqueue()
    process.committer.sync()
    end = process.journal.next_lsn
    future = follow(process, end)
    assert told(process) == []
    process.send(Op.ENQUEUE, (PLAIN, b"x", None))
    assert process.journal.next_lsn > end
    assert told(process) == []
    assert process.committer.waiters.growth.lacking
    process.committer.sync()
    assert told(process) == [(None, future, extent_of(process))]
    assert not process.committer.waiters.growth


def test_a_stream_sees_what_another_process_wrote_and_syncs_it_itself() -> None:
    world = World()
    writer, reader = world.process(), world.process()
    writer.enqueue()
    reader.follow()
    reader.committer.sync()
    future = follow(reader, reader.journal.next_lsn)
    writer.send(Op.CLAIM, ClaimRequest(1, wait_until_ns=0))
    assert told(reader) == []
    reader.follow()
    assert reader.committer.waiters.growth.lacking
    reader.committer.sync()
    assert [answer[1:] for answer in told(reader)] == [(future, extent_of(reader))]
    world.lose_power()
    assert len(world.records()) >= 3


def test_every_append_wakes_those_that_follow_and_nothing_else_does() -> None:
    process = World().process()
    take = process.committer.take_interest

    def interest(op: Op, operand: Any) -> int:
        process.committer.commit([(op, None, Future(), operand)])
        return take()

    assert interest(Op.ENQUEUE, (PLAIN, b"x", None)) == INTEREST_READY | INTEREST_GROWTH
    process.sync()
    assert interest(Op.CLAIM, ClaimRequest(1, wait_until_ns=0)) & INTEREST_GROWTH
    assert interest(Op.CLAIM, ClaimRequest(1, wait_until_ns=0)) == 0
    assert interest(Op.CANCEL, 1) == INTEREST_CANCEL | INTEREST_GROWTH
    assert interest(Op.CANCEL, 1) == 0, "it was asked for already"
    assert not interest(Op.FOLLOW, None)
    assert not INTEREST_GROWTH & (INTEREST_READY | INTEREST_OUTCOME)


def test_a_stream_of_a_log_whose_fsync_failed_is_told_so() -> None:
    world = World()
    process = world.process()
    process.enqueue()
    end = process.journal.next_lsn
    future = follow(process, end)
    world.machine.fail_next_syncs()
    process.send(Op.ENQUEUE, (PLAIN, b"x", None))
    process.committer.sync()
    ((_, answered, error),) = told(process)
    assert answered is future
    assert isinstance(error, LogFailed)


def test_whoever_gave_up_is_forgotten() -> None:
    process = World().process()
    future = follow(process, process.journal.next_lsn)
    assert process.committer.waiters.growth
    future.cancel()
    assert not process.committer.waiters.growth


# -- without having it open ------------------------------------------------------------------------


def onlooker(world: World) -> Onlooker:
    return Onlooker(world.reader())


def onlooker_without_a_hint(world: World) -> Onlooker:
    show = world.machine.hide(HINT)
    looking = onlooker(world)
    show()
    return looking


def fill(process: Process) -> None:
    for _ in range(30):
        process.enqueue(b"x" * 5_000)


def test_an_onlooker_sees_the_log_grow_by_its_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    process = world.process()
    looking = onlooker(world)
    monkeypatch.setattr(looking, "_walk", lambda: pytest.fail("it looks at the files"))
    for _ in range(5):
        assert looking.look() == extent_of(process)
        process.enqueue(b"x" * 30_000)
    assert looking.look() == extent_of(process)
    looking.close()
    looking.close()


@pytest.mark.parametrize("hint", ["none", "junk", "of another boot"])
def test_an_onlooker_without_a_hint_to_believe_looks_at_the_files(hint: str) -> None:
    world = World()
    process = world.process()
    process.enqueue()
    if hint == "of another boot":
        world.machine.boot += 1
        process.disk._boot = world.machine.boot
    size = len(world.machine.content(HINT))
    looking = onlooker_without_a_hint(world) if hint == "none" else onlooker(world)
    fill(process)
    if hint == "junk":
        world.machine.corrupt(HINT, 0, bytes(size))
    assert looking.look() == extent_of(process)
    assert len(world.segments()) > 1


def test_an_onlooker_takes_a_frame_that_is_being_written_for_not_yet_written() -> None:
    world = World()
    process = world.process()
    process.enqueue(b"first")
    looking = onlooker_without_a_hint(world)
    end = looking.look()
    path = world.segments()[-1]
    whole = world.machine.content(path)
    process.enqueue(b"second" * 100)
    grown = world.machine.content(path)
    for size in range(len(whole) + 8, len(grown), 64):
        world.machine.put(path, grown[:size])
        assert looking.look() == end
    world.machine.put(path, grown)
    assert looking.look() == extent_of(process)
