"""Seeded simulation: crashes and power losses at random, and every answer still holds."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from typing import Any, Final

import pytest

from taskq.core.model import Durability, Extras
from taskq.core.records import Kind
from taskq.log.requests import ClaimRequest, Delivery, Duplicate, Op, Settlement
from taskq.log.state import snapshot as snapshotfile
from tests.effort import grows, some
from tests.log.simulation import Simulation
from tests.log.world import PLAIN, Process, World, cuts
from tests.machine.crashable import PowerLost, ProcessKilled

pytestmark = grows
_SEEDS: Final = some(3, 20)
_STEPS: Final = 80


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshotfile, "BLOCK_BYTES", 512)


def _run(seeds: range, steps: int = _STEPS, **options: Any) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        simulation = Simulation(seed, snapshots=True, **options)
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


# -- every step of one scenario --------------------------------------------------------------------


class _Story:
    """Two processes with several unsynced frames, and their answers so far."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.answers: list[tuple[str, Any, Future[Any]]] = []
        self.told: set[int] = set()

    def begin(self) -> tuple[Process, Process, list[Delivery]]:
        first, second = self.world.process(), self.world.process()
        for number in range(3):
            first.enqueue(b"early %d" % number)
        return first, second, second.claim(2)

    def play(self, first: Process, second: Process, held: list[Delivery]) -> None:
        keyed = Extras(key=b"k")
        self._send(first, "job", Op.ENQUEUE, (PLAIN, b"one", None))
        self._send(second, "job", Op.ENQUEUE, (PLAIN, b"two", keyed))
        self._send(first, "same", Op.ENQUEUE, (PLAIN, b"three", keyed))
        self._send(second, "end", Op.SETTLE, [Settlement(Kind.SUCCEEDED, held[0], b"42")])
        self._send(first, "many", Op.ENQUEUE_MANY, [(PLAIN, b"m%d" % n, None) for n in range(4)])
        self._send(first, "claim", Op.CLAIM, ClaimRequest(2, wait_until_ns=0))
        first.sync()
        child = (PLAIN, b"child", None)
        settlement = Settlement(Kind.SUCCEEDED, held[1], b"43", children=(child,))
        self._send(second, "end", Op.SETTLE, [settlement])
        self._send(first, "large", Op.ENQUEUE, (PLAIN, bytes(70_000), None))
        second.sync()
        self._send(second, "job", Op.ENQUEUE, (PLAIN, b"after the next segment", None))
        first.sync()
        second.sync()

    def _send(self, process: Process, what: str, op: Op, operand: Any) -> None:
        self.answers.append((what, operand, process.send(op, operand)))

    def check(self) -> None:
        process = self.world.process()
        assert not process.catch_up().damage
        bodies = [record.body for record in self.world.records() if record.type == Kind.ENQUEUED]
        assert sum(body[:1] == b"m" for body in bodies if body) in (0, 4)
        for what, operand, future in self.answers:
            if future.done():
                self._check_answer(what, operand, future.result(0))
        new = process.enqueue()
        assert new not in self.told
        assert not {delivery.token for delivery in process.claim(99)} & self.told

    def _check_answer(self, what: str, operand: Any, answer: Any) -> None:
        if what in ("job", "large"):
            self._check_body(answer, operand[1])
        elif what == "same":
            assert isinstance(answer, Duplicate)
            self._check_body(answer.lsn, b"two")
        elif what == "many":
            for lsn, (_, body, _) in zip(answer, operand, strict=True):
                self._check_body(lsn, body)
        elif what == "claim":
            self.told |= {delivery.token for delivery in answer}
        else:
            view = self.world.view(operand[0].delivery.job)
            assert view is not None
            assert view.result == operand[0].body

    def _check_body(self, lsn: int, body: bytes) -> None:
        self.told.add(lsn)
        view = self.world.view(lsn)
        assert view is not None
        assert view.payload == body


def _cut(seed: int, step: int, *, power: bool) -> bool:
    story = _Story(seed)
    world = story.world
    first, second, held = story.begin()
    world.machine.stop_at(world.machine.steps + step, power=power)
    try:
        story.play(first, second, held)
    except PowerLost:
        world.everyone_is_gone()
    except ProcessKilled:
        dead, alive = (first, second) if first.disk.is_dead else (second, first)
        dead.kill()
        alive.sync()
    else:
        world.machine.stop_at(None)
        story.check()
        return False
    story.check()
    if not power:
        world.lose_power()
        story.check()
    return True


@pytest.mark.parametrize("power", [True, False])
def test_every_answer_holds_after_a_crash_at_any_disk_step(*, power: bool) -> None:
    """Several unsynced frames of two processes are in flight, and a segment is begun."""
    steps = 0
    while all(_cut(seed, steps + 1, power=power) for seed in range(some(1, 12))):
        steps += 1
    assert steps > 30


def test_the_same_story_is_cut_at_any_step_of_the_recovery_after_it() -> None:
    """A power loss, and another while the log is opened again."""
    for cut in (5, 11, 17, 23, 29):
        for again in cuts(power=True):
            story = _Story(again.step)
            world = story.world
            first, second, held = story.begin()
            world.machine.stop_at(world.machine.steps + cut)
            with pytest.raises(PowerLost):
                story.play(first, second, held)
            world.everyone_is_gone()
            with again.during(world):
                world.process()
            story.check()
