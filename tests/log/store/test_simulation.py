"""Seeded simulation: crashes and power losses at random, and every answer still holds."""

from collections import Counter
from typing import Any, Final

import pytest

from taskq.core.model import Durability
from taskq.log.state import snapshot as snapshotfile
from tests.effort import every, grows, some
from tests.log.simulation import Simulation

pytestmark = grows
_SEEDS: Final = some(3, 20)
_STEPS: Final = 80


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshotfile, "BLOCK_BYTES", 512)


def _run(seeds: range, steps: int = _STEPS, **options: Any) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        simulation = Simulation(seed, **options)
        try:
            simulation.run(steps)
        except BaseException as error:
            error.add_note(f"seed {seed} {options}")
            raise
        counts += simulation.counts
    assert counts["folds that began with snapshots"]
    assert counts["interrupted commits"]


@pytest.mark.parametrize("start", range(0, 6 * _SEEDS, _SEEDS))
def test_every_answer_holds_through_crashes_and_power_losses(start: int) -> None:
    _run(range(start, start + _SEEDS))


@pytest.mark.parametrize("start", range(0, 3 * _SEEDS, _SEEDS))
def test_every_answer_holds_while_the_clock_steps(start: int) -> None:
    _run(range(start, start + _SEEDS), steps_of_clock=True)


@pytest.mark.parametrize("start", range(0, 3 * _SEEDS, _SEEDS))
def test_every_answer_holds_while_the_disk_is_full_short_or_fails_to_sync(start: int) -> None:
    _run(range(start, start + _SEEDS), faults=True)


@pytest.mark.parametrize("durability", [Durability.OS, Durability.INTERVAL])
def test_other_modes_keep_every_answer_through_process_crashes(durability: Durability) -> None:
    """And after a power loss ids and tokens are still unique, and transactions whole."""
    _run(range(_SEEDS), durability=durability)


def test_long_runs_over_many_segments() -> None:
    _run(range(some(1, 2)), steps=some(250, 400))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(10_000, 15_000, 250))
def test_every_answer_holds_for_thousands_of_seeds(start: int) -> None:
    seeds = range(start, start + 250)
    _run(seeds)
    _run(seeds, faults=True)
    _run(seeds, steps_of_clock=True, faults=True)
    _run(seeds, durability=Durability.OS, faults=True)
    _run(range(start, start + 4), steps=1_000, faults=True)


@pytest.mark.parametrize("power", [True, False])
def test_every_answer_holds_after_a_crash_at_any_disk_step(*, power: bool) -> None:
    """Disk steps of two processes that work at the same time, and of the opening after it."""
    came, step = True, 0
    while came:
        step += every(3)
        simulation = Simulation(step)
        for _ in range(2):
            simulation.safely(simulation.appear)
        machine = simulation.world.machine
        machine.stop_at(machine.steps + step, power=power)
        for _ in range(12):
            simulation.safely(simulation.work)
            simulation.safely(simulation.sync)
        came = any(name.endswith("in a step") for name in simulation.counts)
        simulation.power_loss()
    assert step > 30
