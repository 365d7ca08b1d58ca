"""Ageing as the log knows it: across segments, processes, restarts, snapshots and compaction."""

from __future__ import annotations

import pytest

from taskq.core.errors import UsageError
from taskq.core.model import SECOND_NS, Extras
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import EnqueueSpec
from tests.log.tending import FILLER, fill_segment
from tests.log.world import Process, World

WINDOW = 60
CONFIG = LogConfig(segment_bytes=SEGMENT_BYTES_MIN, starvation_seconds=WINDOW)
SPECS = [EnqueueSpec("default", "mail.send", priority) for priority in range(10)]


def put(process: Process, priority: int, body: bytes = b"{}", delay: float = 0) -> int:
    extras = Extras(due_ns=int(delay * SECOND_NS)) if delay else None
    return process.enqueue(body, extras, SPECS[priority])


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
