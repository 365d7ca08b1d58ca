"""A disk that fills up: new jobs are refused first, and what ends jobs goes on."""

from __future__ import annotations

import errno
import re
from dataclasses import replace

import pytest

from taskq.core.errors import DiskFull, JobNotFound, UsageError
from taskq.core.model import State
from taskq.core.records import Kind
from taskq.log.config import MIN_FREE_BYTES, RESERVE_BYTES, LogConfig
from taskq.log.read.selection import letters
from taskq.log.requests import Cancel, Op
from taskq.log.state.job_history import job_not_found
from tests.log.commit.full_disks import (
    CONFIG,
    MIN_FREE,
    RESERVE,
    reserve_size,
    state,
)
from tests.log.tending import FILLER, tend
from tests.log.world import PATH, PLAIN, Process, World


def _looks(process: Process, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    free_bytes = process.disk.free_bytes

    def count(path: str) -> int:
        asked.append(process.world.clock.steady_ns())
        return free_bytes(path)

    monkeypatch.setattr(process.disk, "free_bytes", count)
    return asked


# -- min_free --------------------------------------------------------------------------------------


def test_enqueues_are_refused_before_the_disk_is_full_and_all_else_goes_on() -> None:
    world = World(config=CONFIG)
    world.machine.free = 400_000
    first = world.process()
    jobs = []
    refused: DiskFull | None = None
    while refused is None:
        try:
            jobs.append(first.enqueue(b"x" * 5_000))
        except DiskFull as error:
            refused = error
    assert MIN_FREE <= world.machine.free < MIN_FREE + 6_000
    assert refused.errno == errno.ENOSPC
    assert refused.limit_bytes == MIN_FREE
    assert refused.free_bytes == world.machine.free
    for part in (PATH, str(world.machine.free), str(MIN_FREE), "Free some space", "min_free"):
        assert part in str(refused)
    with pytest.raises(DiskFull):
        first.ask(Op.ENQUEUE_MANY, [(PLAIN, b"y" * 5_000, None)] * 2)
    assert first.committer.room.pressed
    deliveries = first.claim(3)
    children = ((PLAIN, b"child" * 2_000, None),)
    first.settle(deliveries[0], children=children)
    first.settle(deliveries[1], Kind.RETRIED)
    first.settle(deliveries[2], Kind.RELEASED)
    assert first.ask(Op.CANCEL, jobs[5]) == Cancel.WITHDRAWN
    assert state(world, jobs[0]) is State.SUCCEEDED
    assert state(world, jobs[5]) is State.CANCELLED
    assert reserve_size(world) == RESERVE
    world.machine.free += 1_000_000
    assert first.enqueue() > jobs[-1]
    assert not first.committer.room.pressed


def test_dead_letters_are_not_requeued_while_there_is_no_room_for_new_jobs() -> None:
    """They are written again; forgetting them is another matter."""
    world = World(config=CONFIG)
    first = world.process()
    jobs = [first.enqueue(b"x" * 500), first.enqueue(b"x" * 500)]
    for delivery in first.claim(2):
        first.settle(delivery, Kind.DEAD)
    dead = letters(first.committer.sight, jobs).items
    world.machine.free = MIN_FREE - 1
    world.clock.advance(10)
    with pytest.raises(DiskFull):
        first.ask(Op.REQUEUE, dead)
    assert first.ask(Op.PURGE, jobs[:1]) == [None]
    world.machine.free = None
    assert first.ask(Op.REQUEUE, dead[1:]) == [None]
    assert [claimed.job for claimed in first.claim(9)] == jobs[1:]


@pytest.mark.parametrize(
    ("total", "limit", "reserve"),
    [(4 * 2**20, 4 * 2**20 // 50, 4 * 2**20 // 50), (2**40, MIN_FREE_BYTES, RESERVE_BYTES)],
)
def test_unless_told_otherwise_a_small_disk_is_left_a_fiftieth_each(
    total: int, limit: int, reserve: int
) -> None:
    world = World(config=LogConfig())
    world.machine.total = total
    first = world.process()
    first.enqueue()
    assert first.committer.room.limit_bytes == limit
    assert reserve_size(world) == reserve


def test_a_size_below_zero_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="min_free is -1"):
        LogConfig(min_free_bytes=-1)
    with pytest.raises(UsageError, match="reserve is -1"):
        LogConfig(reserve_bytes=-1)


def test_a_disk_that_cannot_be_asked_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(config=CONFIG)
    first = world.process()

    def fail(_: str) -> int:
        raise OSError(errno.EACCES, "no")

    monkeypatch.setattr(first.disk, "free_bytes", fail)
    first.enqueue()
    assert first.committer.room.free_bytes is None


# -- how often the disk is asked -------------------------------------------------------------------


def test_the_disk_is_seldom_asked_while_there_is_plenty_of_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(config=CONFIG)
    first = world.process()
    asked = _looks(first, monkeypatch)
    for _ in range(100):
        first.enqueue()
    assert len(asked) == 1
    for _ in range(100):
        world.clock.advance(0.1)
        first.enqueue()
    assert len(asked) <= 11


def test_near_the_limit_the_disk_is_asked_every_50_ms_or_after_a_quarter_of_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(config=CONFIG)
    world.machine.free = MIN_FREE + RESERVE + 1_000_000
    first = world.process()
    first.enqueue()
    asked = _looks(first, monkeypatch)
    for _ in range(20):
        first.enqueue(b"x" * 100)
    assert asked == []
    for _ in range(20):
        world.clock.advance(0.025)
        first.enqueue(b"x" * 100)
    assert len(asked) == 10
    first.enqueue(b"x" * 200_000)
    first.enqueue(b"x" * 60_000)
    assert len(asked) == 11


def test_the_oldest_ends_go_as_far_as_needed_and_whoever_asks_is_told_why() -> None:
    """None goes where even half of the log would not do: others fill the disk then."""
    world = World(config=replace(CONFIG, reserve_bytes=0, keep_seconds=None))
    process = world.process()
    jobs = [process.enqueue(FILLER) for _ in range(40)]
    for delivery in process.claim(40):
        process.settle(delivery)
    for free, all_stay in ((0, True), (MIN_FREE - 3_000, False)):
        world.machine.free = free
        with pytest.raises(DiskFull):
            process.enqueue(b"new")
        tend(process)
        there = [job for job in jobs if world.view(job) is not None]
        assert (there == jobs) is all_stay
    assert len(jobs) // 2 < len(there) < len(jobs)
    assert there == jobs[-len(there) :]
    process.enqueue(b"new")
    gone = r"the disk was full at .* went to make room"
    with pytest.raises(JobNotFound, match=gone):
        process.ask(Op.OUTCOME, jobs[0])
    assert re.search(gone, str(job_not_found(process.journal, jobs[0])))
    assert not re.search(gone, str(job_not_found(process.journal, jobs[-1])))
    assert process.ask(Op.OUTCOME, jobs[-1]).state is State.SUCCEEDED
