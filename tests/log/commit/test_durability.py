"""No answer is more durable than its source: what waits for the disk, and what need not."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from taskq.core.errors import StaleDelivery
from taskq.core.model import Durability
from taskq.core.records import Flag, Kind
from taskq.log.config import LSN_SKIP, SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import Cancel, ClaimRequest, EnqueueSpec, Op, Settlement
from tests.effort import grows, some
from tests.log.world import PLAIN, Process, World

pytestmark = grows


def _two() -> tuple[World, Process, Process]:
    world = World()
    return world, world.process(), world.process()


def _waits_for(process: Process, future: Future[Any]) -> Any:
    assert not future.done()
    assert process.committer.must_sync()
    process.sync()
    return future.result(0)


def test_an_enqueue_is_answered_when_it_is_on_disk() -> None:
    world, first, _ = _two()
    job = _waits_for(first, first.send(Op.ENQUEUE, (PLAIN, b"x", None)))
    world.lose_power()
    world.process()
    assert world.view(job) is not None


def test_a_refusal_that_rests_on_an_unsynced_record_waits_for_it() -> None:
    _, first, second = _two()
    job = first.enqueue()
    delivery = first.claim()[0]
    first.send(Op.SETTLE, [Settlement(Kind.SUCCEEDED, delivery)])
    again = second.send(Op.SETTLE, [Settlement(Kind.SUCCEEDED, delivery)])
    assert isinstance(_waits_for(second, again)[0], StaleDelivery)
    _, first, second = _two()
    job = first.enqueue()
    first.send(Op.CLAIM, ClaimRequest(1))
    assert _waits_for(second, second.send(Op.CANCEL, job)) == Cancel.ASKED


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("spec", [EnqueueSpec(attempts=1), EnqueueSpec(flags=Flag.DURABLE_CLAIM)])
def test_a_job_with_a_durable_claim_runs_only_once_that_is_on_disk_in_every_mode(
    spec: EnqueueSpec, durability: Durability
) -> None:
    for seed in range(some(2, 5)):
        world = World(seed)
        config = LogConfig(durability=durability, segment_bytes=SEGMENT_BYTES_MIN)
        first = world.process(config)
        job = first.enqueue(spec=spec)
        plain = first.enqueue(spec=PLAIN)
        future, other = Future[Any](), Future[Any]()
        first.commit([(Op.CLAIM, None, item, ClaimRequest(1)) for item in (future, other)])
        assert other.result(0)[0].job == plain
        assert _waits_for(first, future)[0].job == job
        assert not first.committer.must_sync()
        world.lose_power()
        view = world.process(config).world.view(job)
        assert view is not None
        assert view.attempt == 1


@pytest.mark.parametrize("durability", [Durability.OS, Durability.INTERVAL])
def test_other_modes_wait_for_nothing_and_survive_the_process(durability: Durability) -> None:
    world = World()
    config = LogConfig(durability=durability, segment_bytes=SEGMENT_BYTES_MIN)
    first = world.process(config)
    future = first.send(Op.ENQUEUE, (PLAIN, b"x", None))
    assert future.done()
    assert not first.committer.must_sync()
    first.kill()
    assert [delivery.job for delivery in world.process().claim()] == [future.result(0)]


def test_no_mode_lets_more_ids_hang_in_the_air_than_a_loss_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert LSN_SKIP == 2**20
    for module in ("journal.journal", "commit.committer"):
        monkeypatch.setattr(f"taskq.log.{module}.LSN_SKIP", 100)
    for seed in range(some(6, 30)):
        world = World(seed)
        config = LogConfig(durability=Durability.OS, segment_bytes=SEGMENT_BYTES_MIN)
        first, second = world.process(config), world.process(config)
        seen = set()
        for number in range(130):
            process = (first, second)[number % 2]
            seen.add(process.enqueue())
        assert first.journal.durable_lsn + second.journal.durable_lsn > 100
        world.lose_power()
        assert world.process().enqueue() not in seen
