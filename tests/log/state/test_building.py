"""A fold that takes long to build is built between batches: what needs none of it does not wait."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from taskq import Put, TaskLog
from taskq.core.errors import LogLocked
from taskq.core.model import Extras, State
from taskq.core.records import Kind
from taskq.log.format import codec
from taskq.log.machine.peers import LocalPeers
from taskq.log.requests import Answer, ClaimRequest, Duplicate, Op, Request, Settlement
from taskq.log.state import facets, fold
from taskq.log.store import thread
from taskq.log.store.mailbox import Mailbox
from tests.log.world import PLAIN, SMALL, World

pytestmark = pytest.mark.anyio

JOBS = 3_000
SECONDS = 30


@pytest.fixture(autouse=True)
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every log is long, steps are small, and few are made between two batches."""
    monkeypatch.setattr(facets, "AT_ONCE_BYTES", 1_000)
    monkeypatch.setattr(fold, "_RECORDS_A_STEP", 2)
    monkeypatch.setattr(fold, "_KEYS_A_STEP", 2)
    monkeypatch.setattr(thread, "_BUILD_SECONDS", 0.0)


async def test_enqueues_are_answered_while_the_first_claim_builds_the_agenda(
    tmp_path: Path,
) -> None:
    async with TaskLog.open(tmp_path, durability="os") as log:
        ids = await log.put_many([Put(payload=b"x")] * JOBS)
        claim = asyncio.create_task(log.claim(1, wait=SECONDS))
        answered = 0
        while not claim.done():
            await log.put(b"y")
            answered += 1
        (delivery,) = await claim
        assert delivery.job_id == ids[0]
        # A batch waits for one step, or for as long as the last batch took.
        assert answered > 3
        assert (await log.stats()).queues[0].ready == JOBS + answered - 1


async def test_whatever_needs_the_fold_is_answered_as_if_it_had_been_there(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path, durability="os") as log:
        ids = await log.put_many([Put(payload=b"x")] * JOBS)
        first = await log.put(b"k", key="one")
    async with TaskLog.open(tmp_path, durability="os") as log:
        again, stats, cancelled, claimed, plain = await asyncio.gather(
            log.put(b"k", key="one"),
            log.stats(),
            log.cancel(ids[1]),
            log.claim(2, wait=SECONDS),
            log.put(b"z"),
        )
        assert again == first
        assert stats.queues[0].ready >= JOBS - 2
        assert cancelled
        assert {delivery.job_id for delivery in claimed} <= {ids[0], ids[1], ids[2]}
        assert await log.get(plain) is not None
        for delivery in claimed:
            await log.ack(delivery)


@pytest.mark.parametrize("was_alone", [False, True])
@pytest.mark.parametrize("names", ["agenda", "agenda and keys"])
def test_what_others_wrote_meanwhile_is_caught_up_with_between_batches(
    names: str, *, was_alone: bool
) -> None:
    world = World()
    process, other = world.process(), world.process()
    process.committer.builds_in_steps = True
    job = process.enqueue()
    (held,) = process.claim()
    if names != "agenda":
        process.offer(extras=Extras(key=b"mine", window_ns=10**15))
    process.committer.journal.writer.is_alone = was_alone
    other.ask(Op.ENQUEUE_MANY, [(PLAIN, b"x", None)] * 200)
    settled = process.send(Op.SETTLE, [Settlement(Kind.SUCCEEDED, held)])
    looked = process.send(Op.LOOK, (lambda _: "seen", True))
    keyed = process.send(Op.ENQUEUE, (PLAIN, b"k", Extras(key=b"mine")))
    assert isinstance(process.offer(), int)  # answered at once
    assert not settled.done()
    assert not looked.done()
    steps = 0
    while process.committer.facets.unfinished:
        process.committer.facets.build()
        steps += 1
    assert steps > 50
    process.commit([])
    process.sync()
    assert settled.result(0) == [None]
    assert looked.result(0) == "seen"
    assert isinstance(keyed.result(0), int if names == "agenda" else Duplicate)
    view = world.view(job)
    assert view is not None
    assert view.state is State.SUCCEEDED
    assert len(process.claim(500)) == 202


def test_whoever_others_write_faster_than_it_builds_still_gets_its_claim() -> None:
    world = World()
    process, other = world.process(), world.process()
    process.committer.builds_in_steps = True
    other.ask(Op.ENQUEUE_MANY, [(PLAIN, b"x", None)] * 200)
    claim = process.send(Op.CLAIM, ClaimRequest(1))
    for _ in range(3):
        if claim.done():
            break
        while process.committer.facets.unfinished:
            process.committer.facets.build()
        other.ask(Op.ENQUEUE_MANY, [(PLAIN, b"x", None)] * 200)
        process.commit([])
        process.sync()
    assert claim.done()
    # Afterwards it is built in steps again.
    other.ask(Op.ENQUEUE_MANY, [(PLAIN, b"x", None)] * 200)
    late = process.send(Op.CLAIM, ClaimRequest(1))
    assert process.committer.facets.unfinished
    assert not late.done()


def test_what_is_refused_for_the_lock_while_a_fold_is_built_is_not_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    process, other = world.process(), world.process()
    process.committer.builds_in_steps = True
    jobs = [process.enqueue(), process.enqueue()]
    first, second = process.claim(2)
    other.ask(Op.ENQUEUE_MANY, [(PLAIN, b"x", None)] * 200)
    process.send(Op.SETTLE, [Settlement(Kind.SUCCEEDED, first)])
    process.send(Op.SETTLE_NOWAIT, ([Settlement(Kind.SUCCEEDED, second)], lambda *_: None))
    answers: list[Answer] = []
    storage = thread.StorageThread.__new__(thread.StorageThread)
    storage.peers, storage.writer = LocalPeers.__new__(LocalPeers), process.journal.writer
    storage.journal, storage.committer = process.journal, process.committer
    monkeypatch.setattr(storage, "_mailbox", Mailbox("data"), raising=False)
    monkeypatch.setattr(storage, "_deliver", answers.extend)
    storage._answer_late(30.0)
    (answer,) = answers
    assert isinstance(answer[2], LogLocked)
    while process.committer.facets.unfinished:
        process.committer.facets.build()
    process.commit([])
    process.sync()
    states = [view.state for job in jobs if (view := world.view(job)) is not None]
    assert states == [State.RUNNING, State.SUCCEEDED]


def test_what_was_refused_for_the_lock_is_not_carried_out_where_the_lock_comes_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(config=replace(SMALL, reserve_bytes=100_000))
    process = world.process()
    job = process.enqueue()
    (delivery,) = process.claim()
    lock = process.journal.lock
    late: list[Request] = []

    def lock_late() -> None:
        if late:
            lock()
        else:
            late.extend(process.committer.undecided.take_in_flight())
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(process.journal, "lock", lock_late)
    settled = process.send(Op.SETTLE, [Settlement(Kind.SUCCEEDED, delivery)])
    assert len(late) == 1
    assert not settled.done()
    view = world.view(job)
    assert view is not None
    assert view.state is State.RUNNING


def test_damage_ends_the_steps_and_what_waits_is_answered_all_the_same() -> None:
    world = World()
    process = world.process()
    for _ in range(3):
        process.ask(Op.ENQUEUE_MANY, [(PLAIN, b"x", None)] * 50)
    process.close()
    journal = world.reader()
    second = [item for _, item in journal.frames(journal.start())][1]
    place = second.offset + codec.FRAME_HEADER_SIZE + 30
    world.machine.corrupt(world.segments()[0], place, b"\xff\xff")
    late = world.process()
    late.committer.builds_in_steps = True
    claim = late.send(Op.CLAIM, ClaimRequest(500))
    while late.committer.facets.unfinished:
        late.committer.facets.build()
    late.commit([])
    late.sync()
    assert len(claim.result(0)) >= 100


async def test_a_log_that_closes_while_it_builds_carries_out_what_waits_for_that(
    tmp_path: Path,
) -> None:
    async with TaskLog.open(tmp_path, durability="os") as log:
        ids = await log.put_many([Put(payload=b"x")] * JOBS)
    async with TaskLog.open(tmp_path, durability="os") as log:
        await log.put(b"y")
        cancel = asyncio.create_task(log.cancel(ids[0]))
        await asyncio.sleep(0)
    assert await cancel


async def test_a_process_that_adds_faster_than_it_builds_still_gets_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building goes on for as long as the last batch took, and takes less time for the same."""
    monkeypatch.setattr(fold, "_RECORDS_A_STEP", 512)
    async with TaskLog.open(tmp_path, durability="os") as log:
        await log.put_many([Put(payload=b"x")] * JOBS)
        claim = asyncio.create_task(log.claim(1, wait=SECONDS))
        async with asyncio.timeout(SECONDS):
            while not claim.done():
                await log.put_many([Put(payload=b"y")] * JOBS)
        assert await claim
