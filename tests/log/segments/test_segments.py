"""Segments are sealed at a size and follow each other, whatever happens while one is begun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import Op
from tests.effort import grows, some
from tests.log.world import PLAIN, World, cuts

if TYPE_CHECKING:
    from tests.log.world import Process

_LARGE: Final = b"x" * 20_000


def _fill(process: Process) -> list[int]:
    """Enqueue until the next batch needs a new segment."""
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


def test_all_processes_follow_into_the_next_segment() -> None:
    world = World()
    processes = [world.process() for _ in range(3)]
    jobs = [processes[number % 3].enqueue(_LARGE) for number in range(24)]
    assert len(world.segments()) > 5
    assert jobs == list(range(1, 25))
    fold = world.fold().need_agenda().queues.stats()
    for process in processes:
        facets = process.catch_up()
        assert facets.need_agenda().queues.stats() == fold
    assert [delivery.payload for delivery in processes[0].claim(99)] == [_LARGE] * 24


def test_more_segments_than_open_files_are_read_back() -> None:
    """Payloads of old jobs are fetched from whichever segment they are in."""
    world = World()
    first = world.process()
    jobs = [first.enqueue(b"%d" % number + _LARGE) for number in range(150)]
    assert len(world.segments()) > 35
    second = world.process()
    claimed = [delivery for _ in range(15) for delivery in second.claim(10)]
    assert [delivery.job for delivery in claimed] == jobs
    assert all(delivery.payload == b"%d" % n + _LARGE for n, delivery in enumerate(claimed))
    assert second.disk.open_files <= 32 + len(("turnstile.lock", "write.lock", "sync.lock"))
    for delivery in reversed(claimed):
        second.settle(delivery)
    assert world.kinds().count(Kind.SUCCEEDED) == 150


@grows
@pytest.mark.parametrize("size", [SEGMENT_BYTES_MIN, 2 * SEGMENT_BYTES_MIN])
@pytest.mark.parametrize("power", [True, False])
def test_a_new_segment_begun_by_a_process_that_died_in_it_costs_nothing(
    size: int, *, power: bool
) -> None:
    """At any step: others go on, and after a power loss nothing acknowledged is missing.

    Also those whose segments are larger, who would go on in the old one.
    """
    other = LogConfig(segment_bytes=size)
    for cut in cuts(power=power):
        for seed in range(some(2, 6)):
            world = World(seed)
            first, second = world.process(), world.process(other)
            jobs = _fill(first)
            with cut.during(world, first):
                jobs.append(first.enqueue(b"next"))
            if cut.came and power:
                second = world.process(other)
            jobs += [second.enqueue(b"after") for _ in range(3)]
            second.send(Op.ENQUEUE, (PLAIN, b"x" * 2_000, None))
            second.send(Op.ENQUEUE, (PLAIN, b"y" * 2_000, None))
            world.lose_power()
            third = world.process()
            new = third.enqueue(b"new")
            assert new > jobs[-1] + 2
            claimed = [delivery.job for _ in range(3) for delivery in third.claim(99)]
            assert set(claimed) >= {*jobs, new}
            assert len(set(claimed)) == len(claimed)
            assert not third.catch_up().damage
            assert (
                third.catch_up().need_agenda().queues.stats()
                == world.fold().need_agenda().queues.stats()
            )
    assert cut.step > 8


def test_leftovers_between_segments_are_passed_over() -> None:
    """Empty files and headers that a crash brought back."""
    world = World()
    first = world.process()
    jobs = _fill(first)
    jobs.append(first.enqueue(b"next"))
    for number, size in ((2, 0), (3, 64)):
        world.machine.put(
            f"/srv/data/log/{number:020d}.log", world.machine.content(world.segments()[0])[:size]
        )
    second = world.process()
    assert [delivery.job for delivery in second.claim(99)] == jobs
    assert not second.catch_up().damage
