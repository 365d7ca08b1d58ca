"""Ageing as the log knows it: across segments, processes, restarts, snapshots and compaction."""

from __future__ import annotations

import pytest

from taskq.core.errors import UsageError
from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Cause, Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import EnqueueSpec, Op
from tests.log.tending import FILLER, fill_segment, keeping, meaning, tend
from tests.log.told import folded, write
from tests.log.world import Process, World

WINDOW = 60
CONFIG = LogConfig(segment_bytes=SEGMENT_BYTES_MIN, starvation_seconds=WINDOW)
SPECS = [EnqueueSpec("default", "mail.send", priority) for priority in range(10)]


def put(process: Process, priority: int, body: bytes = b"{}", delay: float = 0) -> int:
    extras = Extras(due_ns=int(delay * SECOND_NS)) if delay else None
    return process.enqueue(body, extras, SPECS[priority])


def order(world: World) -> list[int]:
    """Return what somebody who folds the log anew would claim, in turn."""
    agenda = world.fold().need_agenda()
    agenda.promote(world.clock.wall_ns())
    return agenda.taking.next_ready(10**6, None)


def mixed(world: World, process: Process) -> None:
    """Jobs of all priorities and ages: fresh, retried, scheduled, released, over many segments."""
    for number in range(60):
        put(process, number * 7 % 10, FILLER)
        put(process, number % 3, delay=number * 9 % 200 + 1)
        world.clock.advance(7)
        if number % 4 == 0:
            for delivery in process.claim(2):
                kind = Kind.RELEASED if number % 8 else Kind.RETRIED
                delay = (number % 5) * 30 * SECOND_NS
                process.settle(delivery, kind, delay_ns=delay, cause=Cause.CALLER)


@pytest.fixture
def world() -> World:
    return World(config=CONFIG)


def test_an_old_low_job_goes_first_across_segments_and_a_restart(world: World) -> None:
    """LedgerQ loses such a job when it is opened again: this one is the next after kill -9."""
    process = world.process()
    low = put(process, 0)
    while len(world.segments()) < 4:
        world.clock.advance(40)
        put(process, 5, FILLER)
        for delivery in process.claim():
            assert delivery.job != low
            process.settle(delivery)
        if world.clock.steady_ns() > 8 * WINDOW * SECOND_NS:
            break
    while len(world.segments()) < 4:
        fill_segment(process)
    process.kill()
    world.clock.advance(9 * WINDOW)
    process = world.process()
    put(process, 9)
    assert [delivery.job for delivery in process.claim()] == [low]


def test_whoever_folds_the_log_finds_the_same_order(world: World) -> None:
    """At any moment from then on, also who was there all the time."""
    process, other = world.process(), world.process()
    mixed(world, process)
    assert len(world.segments()) > 2
    for _ in range(20):
        world.clock.advance(31)
        expected = order(world)
        for item in (process, other):
            agenda = item.catch_up().need_agenda()
            agenda.promote(world.clock.wall_ns())
            assert agenda.taking.next_ready(10**6, None) == expected
    process.kill()
    assert [delivery.job for delivery in world.process().claim(1_000)] == expected


def test_claims_are_made_in_that_order(world: World) -> None:
    process = world.process()
    mixed(world, process)
    world.clock.advance(100)
    expected = order(world)
    claimed: list[int] = []
    while deliveries := process.claim(7):
        claimed += [delivery.job for delivery in deliveries]
    assert claimed == expected
    priorities = [record.priority for record in world.records() if record.lsn in set(claimed)]
    assert priorities != sorted(priorities, reverse=True)


def test_a_snapshot_keeps_the_ages(world: World) -> None:
    process = world.process()
    mixed(world, process)
    assert write(process)
    for _ in range(10):
        world.clock.advance(47)
        agendas = []
        for trusts_snapshots in (True, False):
            facets = folded(world, trusts_snapshots=trusts_snapshots)
            agendas.append(facets.need_agenda())
            agendas[-1].promote(world.clock.wall_ns())
        assert len(agendas[0].ages) == len(agendas[1].ages) > 10
        assert agendas[0].taking.next_ready(10**6, None) == agendas[1].taking.next_ready(
            10**6, None
        )


def test_jobs_that_compaction_writes_again_keep_their_ages() -> None:
    """Fresh ones wait since they were enqueued, the others since they came back."""
    config = keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None, starvation_seconds=WINDOW)
    world = World(config=config)
    process = world.process()
    jobs = []
    for number in range(8):
        jobs.append(put(process, number % 4))
        world.clock.advance(WINDOW / 4)
    delayed = put(process, 1, delay=WINDOW)
    for delivery in process.claim(3):
        process.settle(delivery, Kind.RETRIED, delay_ns=20 * SECOND_NS)
    world.clock.advance(2 * WINDOW)
    held = process.claim(1)
    before = put(process, 9)
    for _ in range(4):
        segment = process.journal.segment
        while process.journal.segment == segment:
            job = process.enqueue(FILLER, spec=SPECS[9])
            assert process.ask(Op.CANCEL, job)
    process.settle(held[0], Kind.RELEASED, cause=Cause.CALLER)
    tend(process)
    assert min(record.lsn for record in world.records()) > delayed
    for _ in range(12):
        world.clock.advance(WINDOW / 3)
        now = world.clock.wall_ns()
        live, anew = meaning(process.catch_up(), now), meaning(world.fold(), now)
        assert live["next"] == anew["next"]
        assert set(live["next"]) == {*jobs, delayed, before}
        assert live == anew


def test_a_window_of_nothing_turns_it_off() -> None:
    world = World(config=LogConfig(segment_bytes=SEGMENT_BYTES_MIN, starvation_seconds=None))
    process = world.process()
    low = put(process, 0)
    world.clock.advance(10**6)
    high = put(process, 1)
    assert [delivery.job for delivery in process.claim(2)] == [high, low]
    with pytest.raises(UsageError, match="starvation is -1 s, it must be 0 or above"):
        LogConfig(starvation_seconds=-1)


def test_a_process_that_wrote_nothing_for_long_dates_new_jobs_by_their_own_frame(
    world: World,
) -> None:
    """In the very batch that enqueues a job it is young, however old the frame before."""
    process = world.process()
    put(process, 9)
    process.claim()
    world.clock.advance(10 * WINDOW)
    low, high = put(process, 0), put(process, 1)
    assert [delivery.job for delivery in process.claim(2)] == [high, low]
