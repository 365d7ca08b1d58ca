"""Log time goes back only by record: what a step of the clock does to delays and moments."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

import pytest

from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.log.read.jobs import JobFilter
from taskq.log.read.selection import waiting_page
from taskq.log.requests import Op
from tests.effort import grows, some
from tests.log.world import Process, World

pytestmark = grows

_HOUR: Final = 3_600
_YEAR: Final = 365 * 24 * _HOUR
_2024: Final = 1_704_067_200


def _steps(world: World) -> list[float]:
    return [record.step_ns / SECOND_NS for record in world.records() if record.type == Kind.CLOCK]


def _times(world: World) -> list[int]:
    return [record.time_ns for record in world.records()]


def _delayed(process: Process, seconds: float) -> int:
    return process.enqueue(extras=Extras(due_ns=int(seconds * SECOND_NS)))


def _at(process: Process, wall_seconds: float) -> int:
    return process.enqueue(extras=Extras(due_ns=int(wall_seconds * SECOND_NS), due_is_wall=True))


def _claimed(process: Process) -> list[int]:
    return [delivery.job for delivery in process.claim(99)]


@pytest.mark.parametrize("fall", [-0.001, -1, -4.9])
def test_a_small_fall_is_smoothed_out(fall: float) -> None:
    world = World()
    first = world.process()
    first.enqueue()
    world.clock.step(fall)
    first.enqueue()
    assert _steps(world) == []
    assert len(set(_times(world))) == 1
    world.clock.advance(10)
    first.enqueue()
    assert _times(world)[-1] == world.clock.wall_ns()


@pytest.mark.parametrize("step", [-_HOUR, -6, 6, _HOUR, 50 * _YEAR])
def test_a_step_is_recorded_once_before_anything_else_in_its_frame(step: float) -> None:
    world = World()
    first = world.process()
    first.enqueue()
    world.clock.step(step)
    first.enqueue()
    first.enqueue()
    assert world.kinds() == [Kind.ENQUEUED, Kind.CLOCK, Kind.ENQUEUED, Kind.ENQUEUED]
    assert _steps(world) == [step]
    assert _times(world)[-1] == world.clock.wall_ns()


def _dated(process: Process, seconds: float) -> int:
    moment = process.world.clock.wall_ns() + int(seconds * SECOND_NS)
    return process.enqueue(extras=Extras(expires_ns=moment, expires_is_wall=True))


def test_nothing_expires_in_the_first_frame_after_a_step() -> None:
    world = World()
    first = world.process()
    job = _dated(first, 100)
    claimed = _dated(first, 100)
    world.clock.step(_HOUR)
    delivery = first.claim(1)[0]
    assert delivery.job == job
    assert Kind.EXPIRED not in world.kinds()
    assert first.claim() == []
    assert world.kinds()[-1] == Kind.EXPIRED
    assert world.records()[-1].job == claimed
    first.settle(delivery)


def test_of_a_fall_that_no_frame_told_of_what_is_left_of_it_is_recorded() -> None:
    world = World()
    job = _delayed(world.process(), _HOUR)
    world.lose_power(60)
    world.clock.step(-_2024)
    process = world.process()
    world.clock.step(_2024 - _HOUR)
    process.enqueue()
    assert _steps(world) == [60 - _HOUR]
    world.clock.advance(_HOUR)
    assert job in _claimed(process)


@pytest.mark.parametrize("seed", range(some(8, 30)))
def test_whatever_the_clock_does_nothing_runs_early_and_everything_runs(seed: int) -> None:
    """Delays and backoff are real time; a step of up to 5 s is no step. Dates are wall time."""
    chance = random.Random(seed)
    world = World(seed)
    processes = [world.process(), world.process()]
    real = 0.0
    due: dict[int, float] = {}
    dates: dict[int, float] = {}
    claimed: set[int] = set()

    def work() -> None:
        process = chance.choice(processes)
        wall = world.clock.wall_ns() / SECOND_NS
        for delivery in process.claim(99):
            job = delivery.job
            assert due.pop(job, 0.0) <= real + 5
            assert dates.pop(job, 0.0) <= wall + 5
            if chance.random() < 0.3:
                process.settle(delivery, Kind.RETRIED, delay_ns=700 * SECOND_NS)
                due[job] = real + 700
            else:
                claimed.add(job)
                process.settle(delivery)

    for _ in range(60):
        seconds = chance.choice((1, 30, 500, 4_000))
        process = chance.choice(processes)
        match chance.randrange(5):
            case 0:
                due[_delayed(process, seconds)] = real + seconds
            case 1:
                wall = world.clock.wall_ns() / SECOND_NS
                dates[_at(process, wall + seconds)] = wall + seconds
            case 2:
                world.clock.step(chance.choice((-3, 3, -_HOUR, _HOUR, _YEAR, -_YEAR)))
            case _:
                world.clock.advance(seconds)
                real += seconds
        work()
    for _ in range(60):
        world.clock.advance(_YEAR)
        real += _YEAR
        work()
    assert not due
    assert not dates
    assert claimed
    assert world.fold().need_agenda().table.live == 0


def test_whoever_looks_after_a_step_of_the_clock_makes_nothing_run_early() -> None:
    world = World()
    process = world.process()
    job = _delayed(process, _HOUR)
    process.catch_up()
    world.clock.step(2 * _HOUR)
    look = partial(waiting_page, wanted=JobFilter(), start=0, end=job + 1, limit=9)
    assert process.ask(Op.LOOK, (look, True)).items == [job]
    assert _claimed(process) == []
    world.clock.advance(_HOUR + 1)
    assert process.ask(Op.LOOK, (look, True)).items == [job]
    assert _claimed(process) == [job]
