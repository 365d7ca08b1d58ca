"""Random processes that compact, with snapshots written all the while; see the simulation, too."""

from __future__ import annotations

import random

import pytest

from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.state import snapshot as snapshotfile
from tests.effort import grows, some
from tests.log.tending import fill_segment, keeping, tend
from tests.log.told import OTHER, check_same, folded, told, write
from tests.log.world import PLAIN, World

pytestmark = grows


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshotfile, "BLOCK_BYTES", 512)


@pytest.mark.parametrize("seed", range(some(2, 10)))
def test_it_is_the_same_when_compaction_took_segments_since(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed, keeping(keep_bytes=3 * SEGMENT_BYTES_MIN, keep_seconds=None))
    process, idle = world.process(), world.process()
    used = 0
    for _ in range(10):
        for number in range(12):
            process.offer(b"%d" % number, _extras(chance), spec=chance.choice((PLAIN, OTHER)))
        for delivery in process.claim(chance.randrange(14)):
            kind = chance.choice((Kind.SUCCEEDED, Kind.SUCCEEDED, Kind.RETRIED, Kind.DEAD))
            process.settle(delivery, kind)
        if chance.random() < 0.3:
            idle.catch_up()
        for _ in range(chance.randrange(2)):
            fill_segment(process)
        world.clock.advance(chance.choice((0, 1, 30)))
        if chance.random() < 0.5:
            process.catch_up()
            write(process)
        if chance.random() < 0.5:
            tend(process)
        behind, total = check_same(world)
        used += behind < total
    assert used
    now_ns = world.clock.wall_ns()
    assert told(idle.catch_up(), now_ns) == told(folded(world, trusts_snapshots=True), now_ns)


def _extras(chance: random.Random) -> Extras | None:
    key = b"key %d" % chance.randrange(9)
    seconds = chance.choice((1, 30)) * SECOND_NS
    return chance.choice((
        None, None, None, Extras(key=key), Extras(key=key, window_ns=seconds),
        Extras(due_ns=seconds), Extras(expires_ns=10 * seconds),
    ))  # fmt: skip
