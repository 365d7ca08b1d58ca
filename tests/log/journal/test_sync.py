"""Order of syncs, one sync for many writers, and nothing built on a failed fsync."""

import asyncio
import errno
import queue
import random
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import pytest

from taskq import TaskLog
from taskq.core.errors import LogFailed, OutcomeUnknown
from taskq.core.model import Durability
from taskq.log.commit.committer import Committer
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format import codec
from taskq.log.journal.lock import SyncTurn
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.reader import LogReader, verify
from taskq.log.requests import ClaimRequest, Op
from tests.effort import every, grows, some
from tests.log.world import PATH, PLAIN, Cut, Process, World
from tests.machine.crashable import CrashableDisk, ProcessKilled

pytestmark = grows

_MARKER: Final = f"{PATH}/failed"
_MANY: Final = [(PLAIN, b"many %d" % number + bytes(300), None) for number in range(5)]


class Failed:
    """A log whose fsync has just failed: what was acknowledged before, and what is unknown now."""

    def __init__(self, seed: int = 0, before: int = 3) -> None:
        self.world = World(seed)
        self.first, self.second = self.world.process(), self.world.process()
        self.kept = [self.first.enqueue(b"kept %d" % number) for number in range(before)]
        # Durable, but not by the knowledge of the process that will fail.
        self.kept.append(self.second.enqueue(b"kept by the second"))
        self.other = self.second.send(Op.ENQUEUE, (PLAIN, b"in the air", None))
        self.many = self.first.send(Op.ENQUEUE_MANY, _MANY)
        self.claim = self.first.send(Op.CLAIM, ClaimRequest(1, wait_until_ns=0))
        self.world.machine.fail_next_syncs()
        self.first.sync()

    def check(self, process: Process, *, may_lose: bool) -> None:
        views = [self.world.view(job) for job in self.kept]
        assert all(view is not None for view in views)
        bodies = [view.payload for view in views if view is not None]
        assert bodies[-1] == b"kept by the second"
        payloads = [record.body for record in self.world.records() if record.body is not None]
        many = sum(body.startswith(b"many") for body in payloads)
        assert many in (0, 5)
        assert many == 5 or may_lose
        assert b"in the air" in payloads or may_lose
        assert not process.catch_up().damage
        assert _MARKER not in self.world.machine.paths()
        new = process.enqueue(b"new")
        view = self.world.job(new)
        assert view.payload == b"new"


def test_every_waiter_of_a_failed_sync_gets_outcome_unknown() -> None:
    failed = Failed()
    error = failed.many.exception(0)
    assert isinstance(error, OutcomeUnknown)
    assert "Check the disk, then open the log again" in str(error)
    assert failed.claim.result(0), "a claim waits for no sync"


@pytest.mark.parametrize("reaches_all", [True, False])
def test_a_failed_sync_gives_other_processes_with_unsynced_frames_outcome_unknown(
    *, reaches_all: bool
) -> None:
    """Also where the system reports a lost page only once: the next fsync succeeds then."""
    failed = Failed()
    failed.world.machine.errors_reach_all = reaches_all
    failed.second.sync()
    assert isinstance(failed.other.exception(0), OutcomeUnknown)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("others_live", [True, False])
def test_the_open_after_a_failed_fsync_writes_readable_frames_again(
    before: int, *, others_live: bool
) -> None:
    for seed in range(some(3, 10)):
        failed = Failed(seed, before)
        if not others_live:
            failed.first.close()
            failed.second.close()
        third = failed.world.process()
        assert any("after a failed fsync" in note for note in third.journal.recovered)
        failed.check(third, may_lose=False)
        third.close()
        failed.world.lose_power()
        failed.check(failed.world.process(), may_lose=False)


def test_what_was_saved_from_before_a_segment_without_frames_is_not_taken_for_lost() -> None:
    """That segment goes, and the next one names the end where it stands now."""
    world = World()
    first = world.process()
    first.enqueue(b"kept")
    in_the_air = first.send(Op.ENQUEUE, (PLAIN, b"in the air", None))
    first.journal.lock()
    first.journal.writer.void_hint()  # as somebody who is killed while he begins a segment
    first.journal.writer.release()
    second = world.process()
    assert len(world.segments()) == 2
    world.machine.fail_next_syncs()
    first.sync()
    assert isinstance(in_the_air.exception(0), OutcomeUnknown)
    second.close()
    third = world.process()
    assert not third.journal.lost
    third.enqueue(b"later")
    assert not world.process().journal.lost
    assert [record.body for record in world.records() if record.body][-2:] == [
        b"in the air",
        b"later",
    ]


def test_an_unsynced_sync_point_is_written_again_after_a_failed_sync() -> None:
    """Nobody writes its page again, so it would be a hole before what was saved."""
    for size in range(0, 600, 24):  # somewhere it ends in another sector than it begins in
        world = World()
        process = world.process()
        kept = process.enqueue(bytes(size))
        process.rest()
        lost = process.send(Op.ENQUEUE, (PLAIN, b"in the air", None))
        world.machine.fail_next_syncs()
        process.sync()
        assert isinstance(lost.exception(0), OutcomeUnknown)
        world.process().enqueue(b"later")
        world.lose_power()
        world.process()
        assert not world.fold().damage
        assert world.view(kept) is not None


def test_a_late_error_of_a_failure_that_was_repaired_does_not_fail_the_log_again() -> None:
    """Linux reports a lost page to each descriptor once, however long after."""
    failed = Failed()
    third = failed.world.process()
    failed.second.sync()
    assert isinstance(failed.other.exception(0), OutcomeUnknown)
    assert third.enqueue() > 0
    assert failed.second.enqueue() > 0


def test_a_segment_that_is_written_again_as_a_whole_begins_as_it_began() -> None:
    world = World()
    first = world.process()
    first.enqueue(b"one")
    world.clock.advance(60)
    world.lose_power()
    second = world.process()
    world.clock.advance(60)
    second.send(Op.ENQUEUE, (PLAIN, b"in the air", None))
    segment, header = second.journal.segment, second.journal.files.header(second.journal.segment)
    world.machine.fail_next_syncs()
    second.sync()
    second.kill()
    third = world.process()
    assert third.journal.recovered == ["wrote 1 frames again after a failed fsync"]
    assert third.journal.files.header(segment) == header


def test_a_failed_sync_of_a_full_segment_refuses_the_batch_that_needed_the_next() -> None:
    world = World()
    first, second = world.process(), world.process()
    answered = [first.enqueue(b"x" * 5_000)]
    while first.journal.offset < SEGMENT_BYTES_MIN:
        first.send(Op.ENQUEUE, (PLAIN, b"x" * 5_000, None))
    world.machine.fail_next_syncs()
    with pytest.raises(LogFailed):
        second.enqueue()
    with pytest.raises(LogFailed):
        first.enqueue()
    assert len(world.segments()) == 1
    count = len(world.records())
    third = world.process()
    assert third.enqueue() > count
    world.lose_power()
    world.process()
    assert len(world.records()) == count + 1
    assert world.view(answered[0]) is not None


@pytest.mark.parametrize("problem", ["create", "sync"])
def test_a_marker_that_cannot_be_written_is_not_needed_on_the_same_boot(problem: str) -> None:
    world = World()
    first, second = world.process(), world.process()
    kept = first.enqueue(b"kept")

    def on_step(operation: str, path: str) -> None:
        if operation == problem and path == _MARKER:
            raise OSError(errno.EIO, "Input/output error")

    world.machine.on_step = on_step
    world.machine.fail_next_syncs()
    unknown = first.send(Op.ENQUEUE, (PLAIN, b"unknown", None))
    first.sync()
    assert isinstance(unknown.exception(0), OutcomeUnknown)
    world.machine.on_step = None
    with pytest.raises(LogFailed):
        second.enqueue()
    third = world.process()
    world.lose_power()
    world.process()
    assert world.view(kept) is not None
    assert world.view(kept + 1) is not None
    del third


@pytest.mark.parametrize("stage", range(1, 7))
@pytest.mark.parametrize("others_live", [True, False])
def test_a_process_killed_as_its_sync_fails_costs_nobody_else_anything(
    stage: int, *, others_live: bool
) -> None:
    """It left no marker, and to a newcomer the next fsync of clean pages would be a success."""
    for seed in range(some(2, 12)):
        world = World(seed)
        first, second = world.process(), world.process()
        kept = [first.enqueue(b"kept"), second.enqueue(b"kept")]
        first.send(Op.ENQUEUE, (PLAIN, b"in the air" * 200, None))
        world.machine.fail_next_syncs()
        world.machine.stop_at(world.machine.steps + 1 + stage, power=False)
        with pytest.raises(ProcessKilled):
            first.sync()
        first.kill()
        if not others_live:
            second.kill()
        third = world.process()
        kept.append(third.enqueue(b"kept by a newcomer"))
        world.lose_power()
        fourth = world.process()
        assert all(world.view(job) is not None for job in kept), seed
        assert not fourth.catch_up().damage


def _crash_in_recovery(seed: int, before: int, step: int, *, power: bool) -> tuple[Failed, bool]:
    failed = Failed(seed, before)
    failed.first.close()
    failed.second.close()
    cut = Cut(step, power=power)
    with cut.during(failed.world):
        failed.world.process()
    return failed, cut.came


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("before", [0, 3])
def test_a_recovery_cut_short_at_any_step_is_repeated_by_the_next_open(
    before: int, *, power: bool
) -> None:
    step = crashed = 1
    while crashed:
        for seed in range(some(1, 6)):
            failed, crashed = _crash_in_recovery(seed, before, step, power=power)
            failed.check(failed.world.process(), may_lose=power)
            failed.world.lose_power()
            failed.check(failed.world.process(), may_lose=power)
        step += every(3)
    assert step > 20


_LOCK: Final = f"{PATH}/write.lock"
_JOBS: Final = 24


def _world(durability: Durability) -> World:
    config = LogConfig(
        durability=durability, segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=0, reserve_bytes=0
    )
    return World(config=config)


def _written(durability: Durability, *, rests: bool) -> tuple[World, list[int]]:
    """Return jobs by two processes, some of which ran; and whether they closed, or were killed."""
    world = _world(durability)
    first, other = world.process(), world.process()
    jobs: list[Future[int]] = []
    for number in range(_JOBS):
        future = (first, other)[number % 2].send(Op.ENQUEUE, (PLAIN, b"job %d" % number, None))
        if number % 5 == 4:
            first.sync()
            for delivery in first.claim(2):
                first.settle(delivery)
        jobs.append(future)
    first.sync()
    other.sync()
    for process in (first, other):
        if rests:
            process.rest()
            process.close()
        else:
            process.kill()
    return world, [future.result(0) for future in jobs]


def _verdict(process: Process) -> tuple[set[tuple[int, int]], int]:
    """(bad stretches that a writer keeps, bytes that it cut off)."""
    damage = {(gap.offset, gap.size) for gap in process.catch_up().damage}
    notes = [item for item in process.journal.recovered if item.startswith("cut a torn tail")]
    return damage, sum(int(note.split()[5]) for note in notes)


@grows
@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize("rests", [True, False])
@pytest.mark.parametrize("has_hint", [True, False])
@pytest.mark.parametrize("same_boot", [True, False])
def test_reader_and_writer_agree_on_any_flipped_byte(
    durability: Durability, *, rests: bool, has_hint: bool, same_boot: bool
) -> None:
    world, jobs = _written(durability, rests=rests)
    files = world.files()
    path = world.segments()[0]
    first_of_last = world.frames()[-1].offset
    chance = random.Random(f"{durability} {rests} {has_hint} {same_boot}")
    for at in chance.sample(range(len(files[path])), some(1, 12)):
        for name, data in files.items():
            world.machine.put(name, data)
        if has_hint:
            _rewrite_hint(world, files[_LOCK])
        else:
            world.machine.unlink(_LOCK)
        for name in set(world.machine.paths()) - files.keys():
            world.machine.unlink(name)
        world.machine.corrupt(path, at, bytes([files[path][at] ^ 0x10]))
        if not same_boot:
            world.lose_power()
        answer = verify(world.reader())
        process = world.process()
        assert _verdict(process) == (
            {(gap.offset, gap.size) for gap in answer.damage},
            answer.torn_bytes,
        ), at
        if rests and at < first_of_last:
            assert not answer.torn_bytes, "all before a sync point is known to have been whole"
            assert len(answer.damage) == 1 or at >= codec.SEGMENT_HEADER.size
        if answer.damage:
            assert len([job for job in jobs if process.world.view(job)]) >= len(jobs) - 1
        process.close()


def _rewrite_hint(world: World, data: bytes) -> None:
    process = CrashableDisk(world.machine)
    descriptor = process.open(_LOCK, create=True)
    process.write(descriptor, data, 0)
    process.close(descriptor)


async def test_a_second_without_work_leaves_one_sync_point_and_then_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: queue.Queue[int] = queue.Queue()
    rest = Committer.rest

    def resting(committer: Committer) -> None:
        rest(committer)
        rested.put(committer.journal.next_lsn)

    monkeypatch.setattr("taskq.log.store.thread._REST_SECONDS", 0.01)
    monkeypatch.setattr(Committer, "rest", resting)
    async with TaskLog.open(tmp_path, durability="os") as log:
        for number in range(2):
            lsn = int((await log.put(b"job %d" % number)).partition("-")[2])
            # It may have rested before: a second without work is soon over.
            while await asyncio.to_thread(rested.get, timeout=60) <= lsn:
                pass
            with LogReader.open(str(tmp_path)) as reader:
                assert reader.journal.ends_in_sync_point()
        with pytest.raises(queue.Empty):  # an idle log is left alone
            rested.get(timeout=0.1)


BOOT, GENERATION = 7, 3


@pytest.fixture
def turns(tmp_path: Path) -> tuple[SyncTurn, SyncTurn]:
    """Two processes' views: two open files, which flock keeps apart."""
    return SyncTurn(LocalDisk(), str(tmp_path)), SyncTurn(LocalDisk(), str(tmp_path))


@pytest.mark.disk
def test_a_process_covered_by_another_sync_skips_its_own_and_one_that_stops_holds_nobody_up(
    turns: tuple[SyncTurn, SyncTurn],
) -> None:
    first, second = turns
    assert first.take(BOOT, GENERATION, 10)
    first.leave(BOOT, GENERATION, 25)
    assert not second.take(BOOT, GENERATION, 25)
    assert second.take(BOOT, GENERATION, 26)
    assert first.take(BOOT, GENERATION, 28), "the other is stopped in its turn"
    first.leave(BOOT, GENERATION, 28)
    second.leave(BOOT, GENERATION, 26)
    assert not second.take(BOOT, GENERATION, 28)
