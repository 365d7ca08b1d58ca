"""A sync point declares a log whole at rest, so rot is never taken for a torn write."""

from __future__ import annotations

import asyncio
import queue
import random
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import pytest

from taskq import TaskLog
from taskq.core.model import Durability
from taskq.log.commit.committer import Committer
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format import codec
from taskq.log.read.reader import LogReader, verify
from taskq.log.requests import Op
from tests.effort import grows, some
from tests.log.world import PATH, PLAIN, Process, World
from tests.machine.crashable import CrashableDisk

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


def _frame_offsets(world: World) -> list[int]:
    journal = world.reader()
    scanner = journal.files.scanner(
        journal.segment, journal.files.size(journal.segment), 1, sealed=True
    )
    return [item.offset for item in scanner.frames(codec.SEGMENT_HEADER.size)]


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
def test_who_reads_and_who_writes_come_to_the_same_verdict_on_any_flipped_byte(
    durability: Durability, *, rests: bool, has_hint: bool, same_boot: bool
) -> None:
    world, jobs = _written(durability, rests=rests)
    files = {path: world.machine.content(path) for path in world.machine.paths()}
    path = world.segments()[0]
    first_of_last = _frame_offsets(world)[-1]
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


def test_a_full_disk_goes_without_a_sync_point() -> None:
    world, _ = _written(Durability.OS, rests=False)
    process = world.process()
    process.enqueue(b"one more")
    size = len(world.machine.content(world.segments()[-1]))
    world.machine.free = 20
    with pytest.raises(OSError, match="No space"):
        process.rest()
    world.machine.free = None
    assert len(world.machine.content(world.segments()[-1])) == size
    process.enqueue(b"and another")
    assert not process.catch_up().damage


# -- real files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["os", "interval", "fsync"])
async def test_rot_in_a_log_that_was_closed_well_costs_the_frame_it_is_in(
    durability: str, tmp_path: Path
) -> None:
    """In a copy as in place, with the lock's file as without: reported, and nothing cut off."""
    place = tmp_path / "data"
    async with TaskLog.open(place, durability=durability) as log:
        for number in range(60):
            await log.put(b"job %d" % number)
    segment = next((place / "log").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"job 21") + 2] ^= 1
    segment.write_bytes(data)
    for name in ("copy", "bare", "data"):
        if name != "data":
            shutil.copytree(place, tmp_path / name)
        if name == "bare":
            (tmp_path / name / "write.lock").unlink()
        with LogReader.open(str(tmp_path / name)) as reader:
            report = reader.verify()
        assert len(report.damage) == 1
        assert not report.torn_bytes
        async with TaskLog.open(tmp_path / name) as log:
            assert len(await log.claim(99)) == 59
        assert not (tmp_path / name / "torn").exists()


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
