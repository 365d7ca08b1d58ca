"""Folding what was written gives what the writer holds: the log is the only truth."""

import asyncio
import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq import Put, TaskLog
from taskq.core.errors import LogLocked
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.dedup import Dedup
from taskq.core.folds.freeze import freeze_agenda
from taskq.core.model import Extras, State
from taskq.core.records import Flag, Kind
from taskq.log.format import codec
from taskq.log.format.carried import Carried, encode_carried
from taskq.log.format.frames import Frame
from taskq.log.format.options import encode_extras
from taskq.log.machine.peers import LocalPeers
from taskq.log.requests import Answer, ClaimRequest, Duplicate, EnqueueSpec, Op, Request, Settlement
from taskq.log.state import facets, fold
from taskq.log.state.fold import Watch, fold_frame, fold_records
from taskq.log.store import thread
from taskq.log.store.mailbox import Mailbox
from tests.log.world import PLAIN, SMALL, Process, World

BASE: Final = 3 << 32
EPOCH: Final = 99
START_NS: Final = 10**18
SPECS: Final = tuple(
    EnqueueSpec(queue, task, priority, 3)
    for queue in ("default", "mail")
    for task in ("", "tâche")
    for priority in (0, 5, 9)
)


@pytest.mark.parametrize("size", [codec.PREFIX.size, codec.PREFIX.size + 8])
def test_what_a_later_version_may_add_is_passed_over_however_short(size: int) -> None:
    spec = SPECS[0]
    later = codec.PREFIX.pack(size, 200, 0, 0, 0).ljust(size, b".")
    jobs = [codec.encode_checked(spec.tail, b"{}", lsn) for lsn in (1, 3)]
    body = jobs[0] + later + jobs[1]
    frame = Frame(body, 0, codec.FrameHeader(len(body), 3, 1, 1, 10**18, 0, 0), 64)
    at_once, in_steps = Agenda(), Agenda()
    fold_frame(BASE, frame, at_once, None, None)
    list(fold.fold_steps(BASE, frame, in_steps, None))
    for agenda in (at_once, in_steps):
        assert agenda.order.next_ready(9, None) == [1, 3]
    assert freeze_agenda(in_steps).columns == freeze_agenda(at_once).columns


JOBS = 3_000
SECONDS = 30


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every log is long, steps are small, and few are made between two batches."""
    monkeypatch.setattr(facets, "AT_ONCE_BYTES", 1_000)
    monkeypatch.setattr(fold, "_RECORDS_A_STEP", 2)
    monkeypatch.setattr(fold, "_KEYS_A_STEP", 2)
    monkeypatch.setattr(thread, "_BUILD_SECONDS", 0.0)


@pytest.mark.usefixtures("slowly")
@pytest.mark.anyio
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
        assert answered > 2
        assert (await log.stats()).queues[0].ready == JOBS + answered - 1


@pytest.mark.usefixtures("slowly")
@pytest.mark.anyio
async def test_whatever_needs_the_fold_is_answered_as_if_it_had_been_there(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path, durability="os") as log:
        ids = await log.put_many([Put(payload=b"x")] * JOBS)
        first = await log.put(b"k", key="one")
    async with TaskLog.open(tmp_path, durability="os") as log:
        again, stats, cancelled, claimed, plain = await asyncio.gather(
            log.put(b"k", key="one"), log.stats(), log.cancel(ids[1]), log.claim(2, wait=SECONDS),
            log.put(b"z"),
        )  # fmt: skip
        assert again == first
        assert stats.queues[0].ready >= JOBS - 2
        assert cancelled
        assert {delivery.job_id for delivery in claimed} <= {ids[0], ids[1], ids[2]}
        assert len(claimed) == 2
        assert await log.get(plain) is not None
        for delivery in claimed:
            await log.ack(delivery)


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize("was_alone", [False, True])
@pytest.mark.parametrize("names", ["agenda", "agenda and keys"])
def test_what_others_wrote_meanwhile_is_caught_up_with_between_batches(
    names: str, world: World, *, was_alone: bool
) -> None:
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
    view = world.job(job)
    assert view.state is State.SUCCEEDED
    assert len(process.claim(500)) == 202


@pytest.mark.usefixtures("slowly")
def test_a_claim_ends_even_if_others_write_faster_than_its_facets_build(world: World) -> None:
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


@pytest.mark.usefixtures("slowly")
def test_what_is_refused_for_the_lock_while_a_fold_is_built_is_not_carried_out(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
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


@pytest.mark.usefixtures("slowly")
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
    view = world.job(job)
    assert view.state is State.RUNNING


@pytest.mark.usefixtures("slowly")
def test_damage_ends_the_steps_and_what_waits_is_answered_all_the_same(
    world: World, process: Process
) -> None:
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


@pytest.mark.usefixtures("slowly")
@pytest.mark.anyio
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


_FIRST: Final = 1_000
_HEADER: Final = codec.FrameHeader(0, 0, _FIRST, EPOCH, START_NS, 0, 0, 0)
#: Names that differ in the first or the last letter, or only in where the queue's end.
_SPECS: Final = tuple(
    EnqueueSpec(queue, task, priority, flags=flags)
    for queue, task in (("mail", "send"), ("mail", "senf"), ("mails", "end"), ("m", ""))
    for priority in (5, 9)
    for flags in (Flag.CHECKED, Flag.CHECKED | Flag.DURABLE_CLAIM)
)
_KINDS: Final = ["plain", "waited", "claimed", "running", "late", "long", "due", "dead"]
_JOBS: Final = st.lists(
    st.tuples(
        st.sampled_from(_SPECS[:2]) | st.sampled_from(_SPECS),
        st.just("plain") | st.sampled_from(_KINDS),
        st.sampled_from((1, 1, 1, 2, -3)),
    ),
    max_size=30,
)


def _born(spec: EnqueueSpec, job: int, body: bytes, extras: Extras | None) -> bytes:
    options = b"" if extras is None else encode_extras(extras, START_NS)
    tail = codec.enqueue_tail(
        spec.priority, int(spec.flags), spec.attempts, spec.lane_key[0], spec.lane_key[1],
        spec.route, options,
    )  # fmt: skip
    return codec.encode_checked(tail, body, job)


def _record(spec: EnqueueSpec, how: str, job: int, lsn: int) -> bytes:
    extras = Extras(expires_ns=START_NS) if how == "late" else None
    born = _born(spec, job, b"x" * 300 if how == "long" else b"{}", extras)
    states = {"running": State.RUNNING, "due": State.SCHEDULED, "dead": State.DEAD}
    token = {"claimed": 7, "running": 8}.get(how, 0)
    carried = Carried(
        job=job, state=states.get(how, State.READY), born=born, enqueued_ns=START_NS - job,
        token=token, attempt=1 if token else 0,
        due_ns={"waited": START_NS - 5, "due": START_NS + 5}.get(how, 0),
        claim=(EPOCH, 3) if how == "running" else (0, 0),
    )  # fmt: skip
    return encode_carried(Kind.CARRIED, carried, lsn)


def _records(jobs: Sequence[tuple[EnqueueSpec, str, int]]) -> list[bytes]:
    job, records = 10, []
    for number, (spec, how, step) in enumerate(jobs):
        job = max(job + step, 1)
        records.append(_record(spec, how, job, _FIRST + number))
    return records


def _fold(parts: Sequence[bytes], dedup: Dedup | None = None) -> Agenda:
    agenda, at, lsn = Agenda(), 0, _FIRST
    for data in parts:
        header = _HEADER._replace(first_lsn=lsn)
        fold_records(data, 0, len(data), header, BASE + at, agenda, dedup, None)
        at, lsn = at + len(data), lsn + 1
    return agenda


def _picture(agenda: Agenda) -> object:
    rows = [
        (chunk.ids[at], chunk.locations[at], agenda.lanes[chunk.lanes[at]].key, chunk.metas[at])
        for chunk, at in agenda.table
    ]
    since = [agenda.ready_since_ns(job, START_NS) for job, *_ in rows]
    next_ready = agenda.order.next_ready(100, None)
    dead = [chunk.ids[at] for chunk, at in agenda.dead]
    moments = agenda.next_due_ns(), agenda.next_expiry_ns()
    return rows, since, next_ready, agenda.running, dead, agenda.queues.stats(), moments


@given(jobs=_JOBS)
def test_carried_jobs_fold_in_runs_to_what_they_fold_to_one_by_one(
    jobs: list[tuple[EnqueueSpec, str, int]],
) -> None:
    records = _records(jobs)
    in_runs = _picture(_fold([b"".join(records)]))
    assert in_runs == _picture(_fold(records))
    # A fold of keys takes nothing in runs.
    assert in_runs == _picture(_fold([b"".join(records)], Dedup()))


def test_a_waiter_sees_the_end_of_a_job_that_is_rewritten_alone() -> None:
    watch = Watch()
    watch.jobs = {1, 2, 3}
    records = [_record(_SPECS[0], how, job, _FIRST) for job, how in ((1, "plain"), (2, "dead"))]
    data = b"".join([*records, _record(_SPECS[0], "running", 3, _FIRST)])
    fold_records(data, 0, len(data), _HEADER, BASE, None, None, watch)
    assert watch.jobs == {1, 3}
    assert watch.dead == {2}
    assert watch.take() == [(2, BASE + len(records[0]))]
