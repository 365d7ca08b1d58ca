"""A segment that is gone or cut is told, by verify, health and whoever opens; and no other log is.

The log says itself what stood in it (``taskq.log.chain``), so that a loss is told from compaction.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest

from taskq.log import codec
from taskq.log.repair import repair
from taskq.log.segment import Gap
from taskq.log.verify import verify
from taskq.testing.crashable import CrashableDisk
from tests.log.tending import FILLER, keeping, tend
from tests.log.world import World

if TYPE_CHECKING:
    from taskq.core.model import VerifyReport

_HEAD: Final = codec.SEGMENT_HEADER.size


def _written(seed: int, segments: int = 6) -> tuple[World, set[int]]:
    """A log of several segments and epochs, some of it compacted, closed; and its live lsns."""
    chance = random.Random(seed)
    world = World(seed, keeping(keep_segments=segments + 2))
    process = world.process()
    while len(world.segments()) < segments:
        process.enqueue(bytes(chance.randrange(10, 9_000)))
        if chance.random() < 0.03:
            process.kill()
            if chance.random() < 0.5:
                world.lose_power()
            process = world.process()
        if chance.random() < 0.01:
            tend(process)
    for _ in range(5):
        process.enqueue()
    process.close()
    world.is_whole = False
    return world, _lsns(world)


def _lsns(world: World) -> set[int]:
    return {record.lsn for record in world.records()}


def _report(world: World) -> VerifyReport:
    return verify(world.reader())


def _frame_ends(world: World, path: str) -> list[int]:
    journal = world.reader()
    lsn = int(path[-24:-4])
    size = journal.files.size(lsn)
    scanner = journal.files.scanner(lsn, size, lsn, sealed=True)
    return [item.end for item in scanner.frames(_HEAD) if not isinstance(item, Gap)]


def _cuts(world: World, path: str, chance: random.Random) -> list[int | None]:
    """Sizes to cut a segment to, None to remove it."""
    ends = _frame_ends(world, path)
    return [None, 0, _HEAD, chance.choice(ends[:-1]), chance.choice(ends[:-1]) + 20]


def _cut(world: World, path: str, size: int | None) -> None:
    disk = CrashableDisk(world.machine)
    if size is None:
        disk.remove(path)
    else:
        world.machine.put(path, world.machine.content(path)[:size])


def _told(report: VerifyReport) -> set[int]:
    return {lsn for one in report.damage for lsn in range(one.first_lsn, one.next_lsn)}


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("cut", range(5))
def test_any_segment_that_is_removed_or_cut_is_told_with_what_it_held(
    number: int, cut: int
) -> None:
    """By a reader, by the first writer, and by every one after it, until a person accepts it."""
    world, before = _written(number * 5 + cut)
    path = world.segments()[number]
    size = _cuts(world, path, random.Random(cut))[cut]
    _cut(world, path, size)
    lost = before - _lsns(world)
    assert lost
    assert lost <= _told(_report(world))
    first = world.process()
    assert first.journal.lost or size == _HEAD
    assert lost <= _told(_report(world))
    job = first.enqueue()
    assert job > max(before)
    first.close()
    second = world.process()
    assert lost <= {
        lsn for one in second.journal.lost for lsn in range(one.first_lsn, one.next_lsn)
    } | _told(_report(world))
    second.close()
    _accept(world)
    report = _report(world)
    assert not report.damage
    third = world.process()
    assert not third.journal.lost
    third.enqueue(FILLER)
    third.close()
    assert not _report(world).damage


def _accept(world: World) -> None:
    process = world.process()
    process.journal.lock()
    repair(process.journal)
    process.close()
