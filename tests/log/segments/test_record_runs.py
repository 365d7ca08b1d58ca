"""The enqueue records of many jobs are read as each of them alone is, and checked as much."""

from __future__ import annotations

import random

import pytest

from taskq.core.errors import LogDamaged
from taskq.core.model import Extras
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from tests.log.world import Process, World

SIZES = (0, 1, 90, 90, 90, 5_000, 16_300, 40_000)


@pytest.fixture
def backlog() -> Process:
    """Jobs of all sizes over several segments, of a process that has none of their records."""
    world, chance = World(3, LogConfig(segment_bytes=SEGMENT_BYTES_MIN)), random.Random(3)
    process = world.process()
    for number in range(300):
        extras = Extras(headers={"a": "b"}) if number % 7 == 0 else None
        process.enqueue(b"%d" % number + bytes(chance.choice(SIZES)), extras)
    process.close()
    return world.process()


def places(process: Process) -> tuple[list[int], list[int]]:
    table = list(process.catch_up().need_agenda().table)
    return [chunk.locations[at] for chunk, at in table], [chunk.ids[at] for chunk, at in table]


def test_a_record_that_does_not_read_back_is_never_one_of_them(backlog: Process) -> None:
    locations, jobs = places(backlog)
    jobs[150] = jobs[151]  # another job's: its CRC is of its own place
    with pytest.raises(LogDamaged):
        backlog.journal.files.records(locations, jobs)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_claim_takes_the_records_that_are_at_hand_and_reads_the_others(is_damaged: bool) -> None:
    world = World()
    process = world.process()
    process.catch_up().need_agenda()
    bodies = [b"payload %d." % number for number in range(20)]
    jobs = [process.enqueue(body) for body in bodies]
    recent = process.committer.operations.context.recent
    for job in jobs[5:15]:
        del recent.records[job]
    (segment,) = world.segments()
    if is_damaged:
        world.machine.corrupt(segment, world.machine.content(segment).index(b"payload 7."), b"x")
    given = [(delivery.job, delivery.payload) for delivery in process.claim(99)]
    wanted = list(zip(jobs, bodies, strict=True))
    if is_damaged:
        del wanted[7]
        assert [record.body for record in world.records()][-1] == b"its record is damaged"
    assert given == wanted
    assert not recent.records


def test_a_backlog_is_read_in_pieces_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0, LogConfig())
    process = world.process()
    for number in range(3_000):
        process.enqueue(b"%0100d" % number)
    files, wanted, sizes = process.journal.files, places(process), []
    read = files._read

    def note(descriptor: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return read(descriptor, size, offset)

    monkeypatch.setattr(files, "_read", note)
    assert len(files.records(*wanted)) == 3_000
    assert sizes[0] == 16 * 1024
    assert len(sizes) <= 7
    assert max(sizes) <= 256 * 1024
