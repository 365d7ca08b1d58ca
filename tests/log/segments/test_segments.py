"""Segments are sealed at a size and follow each other, through faults at their beginning."""

from __future__ import annotations

from typing import Final

from taskq.log.config import SEGMENT_BYTES_MIN
from tests.log.world import Process, World

_LARGE: Final = b"x" * 20_000


def _fill(process: Process) -> list[int]:
    jobs = []
    while process.journal.offset < SEGMENT_BYTES_MIN:
        jobs.append(process.enqueue(_LARGE))
    return jobs


def test_a_full_segment_is_followed_by_one_named_after_its_first_record() -> None:
    world = World()
    first = world.process()
    jobs = _fill(first)
    jobs.append(first.enqueue())
    assert world.segments()[1].endswith(f"/{jobs[-1]:020d}.log")
    assert [record.lsn for record in world.records()] == list(range(1, len(jobs) + 1))
    assert first.journal.epoch == world.reader().epoch
