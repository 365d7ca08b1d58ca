"""Log time goes back only by record: what a step of the clock does to delays and moments."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Kind
from taskq.log.read.selection import WaitingFilter, waiting_page
from taskq.log.requests import Duplicate, EnqueueSpec, Op
from tests.log.world import World

if TYPE_CHECKING:
    from tests.log.world import Process

_HOUR: Final = 3_600
_YEAR: Final = 365 * 24 * _HOUR
_2024: Final = 1_704_067_200


def _steps(world: World) -> list[float]:
    return [record.step_ns / SECOND_NS for record in world.records() if record.kind == Kind.CLOCK]


def _times(world: World) -> list[int]:
    return [record.time_ns for record in world.records()]


def _delayed(process: Process, seconds: float) -> int:
    return process.enqueue(extras=Extras(due_ns=int(seconds * SECOND_NS)))


def _at(process: Process, wall_seconds: float) -> int:
    return process.enqueue(extras=Extras(due_ns=int(wall_seconds * SECOND_NS), due_is_wall=True))


def _claimed(process: Process) -> list[int]:
    return [delivery.job for delivery in process.claim(99)]


def test_a_clock_that_only_runs_makes_no_record() -> None:
    world = World()
    first = world.process()
    for _ in range(5):
        first.enqueue()
        world.clock.advance(_YEAR / 100)
    assert _steps(world) == []
    assert _times(world) == sorted(_times(world))


@pytest.mark.parametrize("fall", [-0.001, -1, -4.9])
def test_a_small_fall_is_smoothed_out(fall: float) -> None:
    """Log time stands still until wall time has caught up."""
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


@pytest.mark.parametrize("step", [-_HOUR, _HOUR])
def test_two_processes_record_a_step_once(step: float) -> None:
    world = World()
    first, second = world.process(), world.process()
    first.enqueue()
    world.clock.step(step)
    for process in (second, first, second, first):
        process.enqueue()
        world.clock.advance(1)
    assert _steps(world) == [step]


@pytest.mark.parametrize("step", [-_HOUR, _HOUR])
def test_a_process_that_came_between_a_step_and_its_record_records_it_once(step: float) -> None:
    world = World()
    first = world.process()
    first.enqueue()
    world.clock.step(step)
    second = world.process()
    first.enqueue()
    second.enqueue()
    third = world.process()
    third.enqueue()
    assert _steps(world) == [step]
    world.clock.step(step)
    fourth = world.process()
    fourth.enqueue()
    first.enqueue()
    second.enqueue()
    assert _steps(world) == [step, step]


@pytest.mark.parametrize("step", [-_HOUR, _HOUR])
def test_delays_shift_with_a_step_and_moments_do_not(step: float) -> None:
    world = World()
    first = world.process()
    wall = world.clock.wall_ns() / SECOND_NS
    delayed = _delayed(first, 1_000)
    moment = _at(first, wall + 1_000)
    world.clock.step(step)
    readers = [first, world.process()]
    for process in readers:
        facets = process.catch_up()
        assert facets.agenda is not None
        assert facets.agenda.table.state(delayed) is State.SCHEDULED
    assert _claimed(first) == ([moment] if step > 0 else [])
    world.clock.advance(1_001)
    assert _claimed(first) == [delayed]
    if step < 0:
        world.clock.advance(-step)
        assert _claimed(readers[1]) == [moment]


@pytest.mark.parametrize("step", [-_HOUR, _HOUR])
def test_a_backoff_shifts_with_a_step(step: float) -> None:
    world = World()
    first = world.process()
    job = first.enqueue()
    first.settle(first.claim()[0], Kind.RETRIED, delay_ns=100 * SECOND_NS)
    world.clock.step(step)
    assert _claimed(first) == []
    world.clock.advance(99)
    assert _claimed(world.process()) == []
    world.clock.advance(2)
    assert _claimed(first) == [job]


@pytest.mark.parametrize("step", [-_HOUR, _HOUR])
def test_windows_shift_with_a_step(step: float) -> None:
    world = World()
    first = world.process()
    keyed = Extras(key=b"k", window_ns=100 * SECOND_NS)
    job = first.enqueue(extras=keyed)
    world.clock.step(step)
    world.clock.advance(99)
    assert first.offer(extras=keyed) == Duplicate(job)
    assert world.process().offer(extras=keyed) == Duplicate(job)
    world.clock.advance(2)
    second = first.enqueue(extras=keyed)
    assert world.process().offer(extras=keyed) == Duplicate(second)


def _expiring(process: Process, seconds: float) -> int:
    return process.enqueue(extras=Extras(expires_ns=int(seconds * SECOND_NS)))


def _dated(process: Process, seconds: float) -> int:
    """Return a job that expires at a date, so many seconds from now as the clock stands."""
    moment = process.world.clock.wall_ns() + int(seconds * SECOND_NS)
    return process.enqueue(extras=Extras(expires_ns=moment, expires_is_wall=True))


def test_nothing_expires_in_the_first_frame_after_a_step() -> None:
    """The new time may be corrected again: what would expire can still be claimed, or wait."""
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


def test_a_step_that_is_taken_back_at_once_expires_nothing() -> None:
    world = World()
    first = world.process()
    job = _dated(first, 100)
    world.clock.step(_HOUR)
    first.enqueue(spec=EnqueueSpec("other"))
    world.clock.step(-_HOUR)
    first.enqueue(spec=EnqueueSpec("other"))
    assert _steps(world) == [_HOUR, -_HOUR]
    assert job in _claimed(first)


def test_a_machine_that_boots_in_1970_keeps_delays_windows_and_order() -> None:
    """An edge box without a battery: it loses its time with its power, then NTP sets it right."""
    world = World()
    first = world.process()
    keyed = Extras(key=b"k", window_ns=1_000 * SECOND_NS)
    taken = first.enqueue(extras=keyed)
    delayed = _delayed(first, 1_000)
    expiring = _expiring(first, _HOUR)
    world.machine.lose_power()
    world.neighbourhood.living.clear()
    world.clock.reboot(wall_seconds=30)
    second = world.process()
    assert _claimed(second) == [taken, expiring]
    assert _steps(world) == [30 - _2024]
    assert second.offer(extras=keyed) == Duplicate(taken)
    world.clock.advance(500)
    assert _claimed(second) == []
    world.clock.step(_2024 + 100 - 530)
    assert _claimed(second) == []
    assert second.offer(extras=keyed) == Duplicate(taken)
    world.clock.advance(501)
    assert _claimed(second) == [delayed]
    assert isinstance(second.offer(extras=keyed), int)
    facets = second.catch_up()
    assert facets.agenda is not None
    assert facets.agenda.queues.stats() == world.fold().need_agenda().queues.stats()


@pytest.mark.parametrize("hands_on", [True, False])
def test_a_clock_that_is_set_right_after_a_boot_in_1970_before_anything_is_written_made_no_step(
    hands_on: bool,
) -> None:
    """The log never had the time of 1970: delays must not be put off by half a century."""
    world = World()
    job = _delayed(world.process(), _HOUR)
    world.lose_power(60)
    world.clock.step(-_2024)
    process = world.process()
    if hands_on:  # what it takes for the time goes to the next one with the lock
        process.journal.lock()
        process.journal.unlock()
        process = world.process()
    world.clock.step(_2024)
    assert _claimed(process) == []
    world.clock.advance(_HOUR)
    assert _claimed(process) == [job]
    assert _steps(world) == []


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


def test_a_machine_that_was_off_for_days_finds_its_delays_over() -> None:
    """Real time passed: that is no step."""
    world = World()
    first = world.process()
    job = _delayed(first, _HOUR)
    world.lose_power(off_seconds=72 * _HOUR)
    second = world.process()
    assert _claimed(second) == [job]
    assert _steps(world) == []


def test_a_fall_while_nobody_looked_is_recorded_by_the_next_writer() -> None:
    world = World()
    first = world.process()
    job = _delayed(first, 100)
    first.close()
    world.clock.step(-_HOUR)
    second = world.process()
    world.clock.advance(101)
    assert _claimed(second) == [job]
    assert _steps(world) == [-_HOUR]


def test_a_new_log_of_a_machine_in_1970_can_be_set_right() -> None:
    world = World()
    world.clock.step(-_2024)
    first = world.process()
    job = _delayed(first, 100)
    world.clock.step(_2024)
    assert _claimed(first) == []
    world.clock.advance(101)
    assert _claimed(first) == [job]


def test_waking_from_sleep_is_time_that_passed_and_no_step() -> None:
    """The steady clock counts suspended time: what fell due meanwhile is due, all else is not."""
    world = World()
    first, second = world.process(), world.process()
    keyed = Extras(key=b"k", window_ns=2 * _HOUR * SECOND_NS)
    taken = first.enqueue(extras=keyed, spec=EnqueueSpec("other", attempts=0))
    soon, late = _delayed(first, _HOUR), _delayed(second, 10 * _HOUR)
    gone, kept = _expiring(second, _HOUR), _expiring(second, 10 * _HOUR)
    world.clock.advance(8 * _HOUR)
    assert _claimed(second) == [taken, soon, kept]
    assert world.view(gone).state is State.EXPIRED  # type: ignore[union-attr]
    assert world.view(late).state is State.SCHEDULED  # type: ignore[union-attr]
    assert isinstance(first.offer(extras=keyed), int)
    assert _steps(world) == []


@pytest.mark.parametrize("seed", range(30))
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


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_clock_does_a_window_ends_neither_early_nor_late(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed)
    processes = [world.process(), world.process()]
    keyed = Extras(key=b"k", window_ns=1_000 * SECOND_NS)
    real, held_until = 0.0, float(-_YEAR)
    for _ in range(80):
        if chance.random() < 0.4:
            world.clock.step(chance.choice((-_HOUR, _HOUR, _YEAR, -_YEAR)))
        else:
            world.clock.advance(300)
            real += 300
        answer = chance.choice(processes).offer(extras=keyed)
        if isinstance(answer, int):
            assert real >= held_until - 5
            held_until = real + 1_000
        else:
            assert real <= held_until + 5


@pytest.mark.parametrize("step", [-_HOUR, _HOUR, _YEAR])
def test_a_job_never_expires_before_wall_time_says_so_in_two_frames(step: float) -> None:
    """A date is wall time: a step takes part in it, once the frame after it agrees."""
    world = World()
    first = world.process()
    job = _dated(first, 2 * _HOUR)
    world.clock.step(step)
    first.enqueue(spec=EnqueueSpec("other"))
    assert Kind.EXPIRED not in world.kinds()
    world.clock.step(-step)
    first.enqueue(spec=EnqueueSpec("other"))
    world.clock.advance(2 * _HOUR - 1)
    first.catch_up()
    first.ask(Op.CANCEL, first.enqueue(spec=EnqueueSpec("other")))
    assert Kind.EXPIRED not in world.kinds()
    assert job in _claimed(first)


def test_whoever_looks_after_a_step_of_the_clock_makes_nothing_run_early() -> None:
    """The look comes before the step is recorded: by the log's own time the job is not due."""
    world = World()
    process = world.process()
    job = _delayed(process, _HOUR)
    process.catch_up()
    world.clock.step(2 * _HOUR)
    look = partial(waiting_page, wanted=WaitingFilter(), start=0, end=job + 1, limit=9)
    assert process.ask(Op.LOOK, (look, True)).items == [job]
    assert _claimed(process) == []
    world.clock.advance(_HOUR + 1)
    assert process.ask(Op.LOOK, (look, True)).items == [job]
    assert _claimed(process) == [job]
