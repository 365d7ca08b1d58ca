"""The age of a queue's oldest job, the rate of endings, and the engine's figures."""

from __future__ import annotations

from typing import Final

import pytest

from taskq.core.model import Extras
from taskq.core.records import Kind
from taskq.core.views import EngineStats, QueueStats
from taskq.log.commit.committer import engine_stats
from taskq.log.read.gauges import Gauges
from taskq.log.requests import EnqueueSpec
from tests.log.world import PATH, SMALL, Process, World

_MAIL: Final = EnqueueSpec("mail", "mail.send")


def _queues(process: Process) -> dict[str, QueueStats]:
    process.journal.refresh()
    facets = process.committer.facets
    facets.catch_up()
    agenda = facets.need_agenda()
    now_ns = process.world.clock.wall_ns()
    agenda.promote(now_ns)
    return {queue.queue: queue for queue in process.committer.gauges.queues(agenda, now_ns)}


def _age(process: Process, queue: str = "mail") -> float | None:
    return _queues(process)[queue].oldest_ready_seconds


def _rate(process: Process, queue: str = "mail") -> float | None:
    return _queues(process)[queue].throughput_per_second


def _engine(process: Process) -> EngineStats:
    return engine_stats(process.committer)


# -- ages ------------------------------------------------------------------------------------------


def test_ages_are_found_again_without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    first = world.process()
    for _ in range(3):
        first.enqueue(spec=_MAIL)
        world.clock.advance(1)
    assert _age(first) == 3

    def fail(*_: object) -> bytes:
        raise AssertionError("read again")

    monkeypatch.setattr(first.disk, "read", fail)
    agenda = first.committer.facets.agenda
    assert agenda is not None
    gauges = first.committer.gauges
    assert gauges.queues(agenda, world.clock.wall_ns())[0].oldest_ready_seconds == 3


def test_the_age_of_a_job_whose_frame_is_damaged_is_not_made_up() -> None:
    world = World()
    first = world.process()
    first.enqueue(spec=_MAIL)
    world.clock.advance(9)
    first.enqueue(spec=EnqueueSpec("other"))
    second = world.process()
    agenda = second.catch_up().agenda
    assert agenda is not None
    world.machine.corrupt(world.segments()[0], 70, bytes(60))
    gauges = Gauges(second.journal)
    ages = [queue.oldest_ready_seconds for queue in gauges.queues(agenda, world.clock.wall_ns())]
    assert ages[0] is None


# -- throughput ------------------------------------------------------------------------------------


def _end(process: Process, count: int) -> None:
    for _ in range(count):
        process.enqueue(spec=_MAIL)
    for number, delivery in enumerate(process.claim(count)):
        process.settle(delivery, Kind.DEAD if number % 2 else Kind.SUCCEEDED)


def test_throughput_is_what_ended_over_the_last_minute() -> None:
    world = World()
    first = world.process()
    first.claim()
    for _ in range(90):
        _end(first, 2)
        world.clock.advance(1)
    assert _rate(first) == pytest.approx(2, abs=0.1)
    world.clock.advance(30)
    assert _rate(first) == pytest.approx(1, abs=0.1)
    world.clock.advance(40)
    assert _rate(first) == 0


def test_what_ended_long_ago_is_not_counted_after_a_pause() -> None:
    world = World()
    first = world.process()
    first.claim()
    _end(first, 500)
    world.clock.advance(600)
    assert _rate(first) == 0
    _end(first, 30)
    assert _rate(first) == 30 / 60
    world.clock.advance(5)
    _end(first, 30)
    assert _rate(first) == 1


@pytest.mark.parametrize(("pause", "counted"), [(60.5, 30), (61, 0)])
def test_what_ended_within_a_second_of_a_sample_is_counted_until_a_second_behind_it(
    pause: float, counted: int
) -> None:
    world = World()
    first = world.process()
    first.claim()
    _end(first, 30)
    world.clock.advance(pause)
    assert _rate(first) == pytest.approx(counted / 60)


# -- the engine ------------------------------------------------------------------------------------


def test_the_engine_counts_batches_records_bytes_and_payload() -> None:
    world = World()
    first = world.process()
    size = len(world.machine.content(world.segments()[0]))
    for _ in range(4):
        first.enqueue(b"x" * 100)
    first.enqueue(b"y" * 50, Extras(headers={"a": "b"}))
    engine = _engine(first)
    assert (engine.batches, engine.records) == (5, 5)
    assert engine.batch_records.mean == engine.batch_records.max == 1
    assert engine.batch_histogram == ((1, 5),)
    assert engine.payload_bytes == 450
    assert engine.appended_bytes == len(world.machine.content(world.segments()[0])) - size
    assert engine.write_amplification == engine.appended_bytes / 450
    first.journal.meters.upkeep_bytes += 900
    amplification = _engine(first).write_amplification
    assert amplification == pytest.approx((engine.appended_bytes + 900) / 450)
    assert _engine(world.process()).write_amplification is None


def test_fsyncs_are_timed_and_slow_ones_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    first = world.process()
    seconds = iter([0.002, 0.002, 0.002, 2.0])

    def on_step(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".log"):
            world.clock.advance(next(seconds))

    before = _engine(first).sync_seconds.count
    world.machine.on_step = on_step
    for _ in range(4):
        first.enqueue()
    engine = _engine(first)
    assert engine.sync_seconds.count == before + 4
    assert engine.sync_seconds.p50 == pytest.approx(0.002, rel=0.125)
    assert engine.sync_seconds.max == 2
    assert engine.slow_syncs == 1
    assert [record.getMessage() for record in caplog.records] == [f"{PATH}: an fsync took 2.0 s"]
    assert engine.lock_hold_seconds_max < 1, "the disk's time is not the lock's"


def test_the_lock_is_excused_while_a_segment_is_sealed_and_the_next_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    first = world.process()
    first.enqueue()
    monkeypatch.setattr("taskq.log.journal.lock.perf_counter_ns", world.clock.steady_ns)
    first.journal.writer.longest_hold_ns = 0
    held: list[float] = []

    def on_step(operation: str, path: str) -> None:
        if operation.startswith("sync"):
            world.clock.advance(5)
        elif operation == "write" and path.endswith(".log"):
            world.clock.advance(0.25)
            held.append(0.25)

    world.machine.on_step = on_step
    while len(world.segments()) < 2:
        first.enqueue(b"x" * 40_000)
    assert len(held) > 2
    assert _engine(first).lock_hold_seconds_max == 0.25


def test_the_disks_room_is_told() -> None:
    world = World(config=SMALL)
    first = world.process()
    assert _engine(first).free_bytes is None
    world.machine.free = 5_000
    first.enqueue()
    assert _engine(first).free_bytes == 5_000
    assert not _engine(first).is_disk_short
