"""Records that a named reader has not read stay: a pin, its report, and its end."""

from __future__ import annotations

from typing import Any

import pytest

from taskq.log.read.readers import NamedReader, ReaderPosition
from taskq.log.upkeep.upkeep import Upkeep
from tests.log.tending import fill_segment, keeping, tend
from tests.log.world import PATH, Process, World

LIMITS = [{"keep_bytes": 2 * 64 * 1024}, {"keep_segments": 1}, {"keep_seconds": 1}]


def read_up_to(process: Process, name: str, segment: int, lsn: int) -> None:
    reader = NamedReader.take(process.disk, PATH, process.journal.identity, name)
    reader.load()
    reader.save(ReaderPosition(segment, lsn))
    reader.release()


def grow(process: Process, segments: int) -> list[int]:
    return [fill_segment(process) for _ in range(segments)]


def tended(process: Process, upkeep: Upkeep | None = None) -> Upkeep:
    process.world.clock.advance(60)
    return tend(process, upkeep)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: next(iter(limit)))
def test_what_a_reader_has_not_read_stays_beyond_every_limit(limit: dict[str, Any]) -> None:
    world = World(config=keeping(**limit))
    process = world.process()
    first, second, *_ = grow(process, 6)
    read_up_to(process, "billing", first, first)
    before = world.segments()
    tended(process)
    assert world.segments() == before
    read_up_to(process, "billing", second, second)
    tended(process)
    assert world.segments()[:1] == before[1:2]


def test_a_pin_is_told_once_with_the_readers_name(caplog: pytest.LogCaptureFixture) -> None:
    process = World(config=keeping(keep_segments=1)).process()
    first = grow(process, 4)[0]
    read_up_to(process, "billing", first, first)
    upkeep = tended(process)
    for _ in range(3):
        tended(process, upkeep)
    assert caplog.text.count("stays although it is due: the reader 'billing' has not") == 1


def test_a_reader_that_is_too_far_behind_is_let_go_with_a_warning_that_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(config=keeping(keep_segments=1, reader_lag_bytes=5 * 64 * 1024))
    process = world.process()
    first = grow(process, 3)[0]
    read_up_to(process, "billing", first, first)
    upkeep = tended(process)
    assert len(world.segments()) == 4
    assert "ReaderFellBehind" not in caplog.text
    grow(process, 3)
    tended(process, upkeep)
    assert len(world.segments()) < 6
    assert "the reader 'billing' is over 327680 bytes behind" in caplog.text
    assert "it will get ReaderFellBehind" in caplog.text
