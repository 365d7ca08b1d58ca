"""Random processes that fail at random, with snapshots written all the while."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskq.core.errors import LogError
from taskq.core.model import SECOND_NS, Durability, Extras
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.state import snapshot as snapshotfile
from taskq.log.upkeep.snapshots import Snapshots
from tests.effort import grows, some
from tests.log.simulation import Simulation
from tests.log.tending import fill_segment, keeping, tend
from tests.log.told import OTHER, check_same, folded, told, write
from tests.log.world import PLAIN, World
from tests.machine.crashable import PowerLost, ProcessKilled

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.log.world import Process

pytestmark = grows
_SEEDS: Final = some(2, 8)
_STEPS: Final = 120
_DONE: Final = object()


class SnapshotSimulation(Simulation):
    """One in which any process may be in the midst of writing a snapshot.

    Attributes:
        used: folds that began with one.
    """

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self._writing: dict[Process, Generator[None, None, None]] = {}
        self.used = 0

    def work(self) -> None:
        """A batch, and before it a few steps of a snapshot."""
        process = self.chance.choice(self.processes)
        if self.chance.random() < 0.5:
            self._write(process)
        super().work()

    def _write(self, process: Process) -> None:
        steps = self._writing.pop(process, None)
        if steps is None:
            with contextlib.suppress(LogError):
                process.catch_up()
            steps = Snapshots(process.committer).write_steps()
        for _ in range(self.chance.choice((1, 2, 5, 100))):
            if next(steps, _DONE) is _DONE:
                return
        self._writing[process] = steps

    def _bury(self, process: Process) -> None:
        super()._bury(process)
        self._drop(process)

    def _everything_is_gone(self) -> None:
        super()._everything_is_gone()
        for process in list(self._writing):
            self._drop(process)

    def _drop(self, process: Process) -> None:
        steps = self._writing.pop(process, None)
        if steps is not None:
            with contextlib.suppress(PowerLost, ProcessKilled):
                steps.close()

    def check(self) -> None:
        """The promises of the log, and that it does not matter what a fold begins with."""
        super().check()
        if self.world.machine.find("/srv/data/taskq.json") is not None:
            behind, total = check_same(self.world, loosely=self._steps_of_clock)
            self.used += behind < total


def _run(seeds: range, steps: int = _STEPS, **options: Any) -> int:
    used = 0
    for seed in seeds:
        simulation = SnapshotSimulation(seed, **options)
        try:
            simulation.run(steps)
        except BaseException as error:
            error.add_note(f"seed {seed} {options}")
            raise
        used += simulation.used
    return used


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshotfile, "BLOCK_BYTES", 512)


@pytest.mark.parametrize("start", range(0, 2 * _SEEDS, _SEEDS))
def test_a_fold_is_the_same_whatever_it_begins_with(start: int) -> None:
    """Through kills and losses of power, while others write."""
    assert _run(range(start, start + _SEEDS))


def test_it_is_the_same_after_a_sync_failed_or_on_a_disk_that_is_full() -> None:
    assert _run(range(_SEEDS), faults=True)


def test_it_is_the_same_when_a_loss_of_power_takes_what_was_not_synced() -> None:
    for durability in (Durability.OS, Durability.INTERVAL):
        assert _run(range(_SEEDS // 2), durability=durability)


def test_it_is_nearly_the_same_while_the_clock_steps() -> None:
    """A snapshot holds a job as ready that was due before the clock fell; others let it wait."""
    assert _run(range(_SEEDS), steps_of_clock=True)


@pytest.mark.parametrize("seed", range(some(2, 10)))
def test_it_is_the_same_when_compaction_took_segments_since(seed: int) -> None:
    """Jobs that it knows in them were written again behind it; or it is of no use any more."""
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


@pytest.mark.slow
@pytest.mark.parametrize("start", range(10_000, 10_800, 100))
def test_it_is_the_same_for_hundreds_of_seeds(start: int) -> None:
    seeds = range(start, start + 100)
    _run(seeds)
    _run(seeds, faults=True)
    _run(seeds, durability=Durability.OS, faults=True)
