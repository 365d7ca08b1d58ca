"""A batch never grows beyond a frame, and is answered when it is as durable as configured."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Final

import pytest

from taskq.core.errors import PayloadTooLarge, StaleDelivery
from taskq.core.model import PAYLOAD_BYTES_MAX, Durability, Extras
from taskq.core.records import Flag, Kind
from taskq.log.config import LSN_SKIP, SEGMENT_BYTES_MIN, LogConfig
from taskq.log.decide.context import BatchNeeds
from taskq.log.format import codec
from taskq.log.requests import (
    Bundle,
    Cancel,
    ClaimRequest,
    Delivery,
    EnqueueSpec,
    Item,
    Op,
    Request,
    Settlement,
)
from tests.effort import grows, some
from tests.log.world import PLAIN, Process, World

pytestmark = grows

_BIG: Final = bytes(PAYLOAD_BYTES_MAX)


def _requests(op: Op, operands: list[Any]) -> tuple[list[Request], list[Future[Any]]]:
    futures: list[Future[Any]] = [Future() for _ in operands]
    pairs = zip(operands, futures, strict=True)
    return [(op, None, future, operand) for operand, future in pairs], futures


def _claimed(process: Process, count: int) -> list[Delivery]:
    items = [(PLAIN, b"", None)] * count
    process.ask(Op.ENQUEUE_MANY, items)
    return process.claim(count)


def _frames(world: World) -> int:
    journal = world.reader()
    return sum(1 for _ in journal.frames(journal.start()))


@pytest.mark.parametrize(
    "item",
    [
        (PLAIN, b"x" * 900, None),
        (EnqueueSpec(queue="q" * 250, task="t" * 250), b"", None),
        (PLAIN, b"", Extras(key=b"k" * 900)),
        (PLAIN, b"", Extras(concurrency_key=b"c" * 900)),
        (PLAIN, b"x" * 900, Extras(key=b"k" * 900, headers={"a" * 400: "b" * 400}, keep_ns=7)),
    ],
)
def test_a_request_counts_for_about_the_room_that_it_takes(item: Item) -> None:
    """However it brings the job: alone, among many, as a child or in a transaction."""
    process = World().process()
    process.enqueue()
    process.claim()
    parent, other = _claimed(process, 2)
    for op, operand in [
        (Op.ENQUEUE, item),
        (Op.ENQUEUE_MANY, [item]),
        (Op.SETTLE, [Settlement(Kind.SUCCEEDED, parent, b"r" * 500, children=(item,))]),
        (Op.TRANSACT, Bundle((Settlement(Kind.SUCCEEDED, other, b"r" * 500),), (), (item,))),
    ]:
        before = process.journal.offset
        process.ask(op, operand)
        process.send(Op.CANCEL, process.journal.next_lsn - 1)  # its key is free for the next
        taken = process.journal.offset - before - 2 * codec.FRAME_HEADER.size - codec.JOB.size
        counted = BatchNeeds.of([(op, None, Future(), operand)]).size
        assert taken - 64 <= counted <= taken + 256


def test_a_batch_that_is_too_large_for_a_frame_is_parted() -> None:
    """However the requests came together, each is answered as if it had come alone."""
    world = World()
    process = world.process()
    requests, futures = _requests(Op.ENQUEUE, [(PLAIN, _BIG, None)] * 3)
    process.commit(requests)
    process.sync()
    assert [future.result(0) for future in futures] == [1, 2, 3]
    assert _frames(world) > 1
    assert len(world.process().claim(9)) == 3


def test_a_single_request_that_no_frame_holds_is_refused_alone() -> None:
    world = World()
    process = world.process()
    deliveries = _claimed(process, 3)
    items = [Settlement(Kind.SUCCEEDED, delivery, _BIG) for delivery in deliveries]
    large: Future[Any] = Future()
    small: Future[Any] = Future()
    claim: Future[Any] = Future()
    process.commit([
        (Op.SETTLE, None, large, items),
        (Op.ENQUEUE, None, small, (PLAIN, b"", None)),
        (Op.CLAIM, None, claim, ClaimRequest(1)),
    ])  # fmt: skip
    process.sync()
    assert isinstance(large.exception(0), PayloadTooLarge)
    assert claim.result(0)[0].job == small.result(0)
    assert not process.catch_up().damage
    process.settle(deliveries[0], body=_BIG)


def test_a_claim_of_any_count_fits_a_frame() -> None:
    world = World()
    process = world.process()
    for _ in range(4):
        process.ask(Op.ENQUEUE_MANY, [(PLAIN, b"", None)] * 2_500)
    claimed = process.claim(10**9)
    assert 0 < len(claimed) * codec.JOB.size < codec.FRAME_BODY_MAX // 8
    more = [delivery for _ in range(2) for delivery in process.claim(10**9)]
    assert [item.job for item in (*claimed, *more)] == [item.job for item in claimed + more]
    assert len(claimed) + len(more) == 10_000


def test_the_jobs_of_a_dead_owner_are_taken_back_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million running jobs do not hold the writer lock, nor make a frame that nobody can read."""
    monkeypatch.setattr("taskq.log.decide.claim.TAKEN_BACK_MAX", 10)
    world = World()
    first, second = world.process(), world.process()
    deliveries = _claimed(first, 35)
    first.kill()
    world.clock.advance(1)
    jobs: list[int] = []
    for _ in range(4):
        jobs += [delivery.job for delivery in second.claim(99)]
    assert jobs == [delivery.job for delivery in deliveries]
    assert second.committer.taken_back == 35
    assert second.peers.forgotten == [first.peers.owner]


# -- durability ------------------------------------------------------------------------------------


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
