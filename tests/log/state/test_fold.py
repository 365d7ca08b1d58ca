"""Folding what was written gives what the writer holds: the log is the only truth."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq import Put, TaskLog
from taskq.core.errors import JobNotFound, LogLocked
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.dedup import Dedup, key_hash
from taskq.core.folds.freeze import freeze_agenda
from taskq.core.folds.jobtable import META_EXPIRES, META_KEYED
from taskq.core.model import LIVE_STATES, Extras, State
from taskq.core.parsing import Tag
from taskq.core.records import Cause, Flag, Kind
from taskq.core.views import JobView
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format import codec
from taskq.log.format.carried import Carried, encode_carried, encode_history
from taskq.log.format.frames import Frame, Scanner
from taskq.log.format.options import encode_extras, encode_key_hash, encode_replaces
from taskq.log.format.record import Record, places
from taskq.log.machine.peers import LocalPeers
from taskq.log.requests import Answer, ClaimRequest, Duplicate, EnqueueSpec, Op, Request, Settlement
from taskq.log.state import facets, fold
from taskq.log.state.fold import Watch, enqueued_meta, fold_frame, fold_records
from taskq.log.state.job_history import Story, find_end, is_job, job_view, read_outcome
from taskq.log.store import thread
from taskq.log.store.mailbox import Mailbox
from tests.effort import grows, some, within
from tests.log.world import PLAIN, SMALL, Process, World

# -- history ---------------------------------------------------------------------------------------


LOG_ID: Final = UUID(int=0x1234)
SEED: Final = codec.segment_seed(LOG_ID, 1)
BASE: Final = 3 << 32
EPOCH: Final = 99
ALL: Final = 2**62
START_NS: Final = 10**18
SPECS: Final = tuple(
    EnqueueSpec(queue, task, priority, 3)
    for queue in ("default", "mail")
    for task in ("", "tâche")
    for priority in (0, 5, 9)
)
#: a step of a history: (name, number, number, flag)
Step = tuple[str, int, int, bool]


@dataclass(slots=True)
class Batch:
    """Records of one moment, and the lsn of the first."""

    time_ns: int
    first_lsn: int
    records: list[bytes] = field(default_factory=list)


class History:
    """Decides the outcome of each step; applies it to ``agenda`` and ``dedup`` directly."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.dedup = Dedup()
        self.time_ns = START_NS
        self.lsn = 1
        self.offset = codec.SEGMENT_HEADER.size
        self.batches: list[Batch] = []
        self.keys: dict[int, int] = {}
        self.jobs_by_hash: dict[int, int] = {}
        self.hashes: set[int] = set()

    def run(self, steps: list[Step]) -> None:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)
        self.close()

    # -- batches -----------------------------------------------------------------------------------

    def begin(self, span: int, step: int, has_step: bool) -> None:
        """The next batch: time goes by ``span``, and the clock may step."""
        self.close()
        self.time_ns += span
        if has_step:
            self.time_ns += step - 150
        self.batches.append(Batch(self.time_ns, self.lsn))
        if has_step:
            self.agenda.apply_clock(step - 150)
            self.dedup.apply_clock(step - 150)
            self.add(codec.encode_clock(step - 150, self.lsn))
        self.agenda.promote(self.time_ns, ALL)

    def close(self) -> None:
        if self.batches and self.batches[-1].records:
            size = sum(map(len, self.batches[-1].records))
            self.offset += codec.frame_size(size)

    def add(self, record: bytes) -> int:
        if not self.batches:
            self.batches.append(Batch(self.time_ns, self.lsn))
        batch = self.batches[-1]
        at = sum(map(len, batch.records))
        batch.records.append(record)
        self.agenda.ages.note(batch.first_lsn, max(batch.time_ns - self.agenda.times.shift_ns, 0))
        self.lsn += 1
        return BASE + self.offset + codec.FRAME_HEADER_SIZE + at

    # -- steps -------------------------------------------------------------------------------------

    def enqueue(self, number: int, moment: int, is_wall: bool) -> None:
        spec = SPECS[number % len(SPECS)]
        extras = Extras()
        if moment % 3 == 0:
            extras.due_ns = moment + (self.time_ns - 100 if is_wall else 0)
            extras.due_is_wall = is_wall
        if moment % 4 == 0:
            extras.expires_ns = moment + 1 + (0 if is_wall else self.time_ns)
            extras.expires_is_wall = not is_wall
        if moment % 5 == 0:
            extras.key = b"key %d" % (number % 3)
            extras.window_ns = 0 if number % 2 else moment + 1
            extras.until_settled = number % 4 > 1
        if moment % 7 == 0:
            extras.headers = {"trace": "é" * (number % 4), "": ""}
        self._enqueue(spec, extras)

    def _enqueue(self, spec: EnqueueSpec, extras: Extras) -> None:
        flags = int(spec.flags)
        hashed = 0
        if extras.key is not None:
            hashed = key_hash(spec.queue.encode(), extras.key)
            if extras.until_settled or not extras.window_ns:
                flags |= Flag.KEY_UNTIL_SETTLED
        options = encode_extras(extras, self.time_ns)
        replaced = self.jobs_by_hash.get(hashed, 0) if hashed and self.lsn % 3 == 0 else 0
        if replaced:
            options += encode_replaces(replaced)
            self.dedup.apply_dropped(hashed, replaced)
        sizes = spec.lane_key[:2]
        tail = codec.enqueue_tail(
            spec.priority, flags, spec.attempts, sizes[0], sizes[1], spec.route, options
        )
        job = self.lsn
        location = self.add(codec.encode_checked(tail, b"payload of %d" % job, job))
        lane = self.agenda.queues.lane(spec.priority, spec.lane_key)
        expires = extras.expires_ns
        expires += self.time_ns if expires and not extras.expires_is_wall else 0
        meta = enqueued_meta(flags) | (META_EXPIRES if expires else 0)
        due = extras.due_ns
        due += self.time_ns if due and not extras.due_is_wall else 0
        if due > self.time_ns:
            self.agenda.apply_scheduled(job, location, lane, meta, due, extras.due_is_wall)
        else:
            self.agenda.apply_enqueued(job, location, lane, meta)
        if expires:
            self.agenda.apply_expiry(job, expires, extras.expires_is_wall)
        if hashed:
            self.dedup.apply_taken(
                hashed, job, location, extras.window_ns, self.time_ns,
                until_settled=extras.until_settled,
            )  # fmt: skip
            self.keys[job] = hashed
            self.jobs_by_hash[hashed] = job
            self.hashes.add(hashed)

    def claim(self, count: int, owner: int, __: bool) -> None:
        for job, _, attempt, _, _ in self.agenda.order.take(count % 8, None, None):
            token = self.lsn
            self.add(codec.encode_job(Kind.CLAIMED, 0, attempt, job, owner))
            self.agenda.running[job] = (token, EPOCH, owner)

    def claim_elsewhere(self, pick: int, owner: int, _: bool) -> None:
        """A claim that did not come out of ``take``: of any ready job."""
        job = self._pick(State.READY, pick)
        if job:
            token, attempt = self.lsn, self.agenda.attempt(job) + 1
            self.add(codec.encode_job(Kind.CLAIMED, 0, attempt, job, owner))
            self.agenda.apply_claimed(job, token, EPOCH, owner, attempt)

    def give_back(self, pick: int, delay: int, releases: bool) -> None:
        job = self._pick(State.RUNNING, pick)
        if job:
            kind = Kind.RELEASED if releases else Kind.RETRIED
            attempt = self.agenda.attempt(job) - releases
            due = self.time_ns + delay if delay % 2 else 0
            token = self.agenda.running[job][0]
            self.add(codec.encode_back(kind, Cause.DRAIN, attempt, job, token, due, b"", self.lsn))
            self.agenda.apply_back(job, attempt, due, self.time_ns)

    def settle(self, pick: int, _: int, succeeds: bool) -> None:
        job = self._pick(State.RUNNING, pick)
        if job:
            self._end(Kind.SUCCEEDED if succeeds else Kind.DEAD, job, b"body" if succeeds else None)

    def cancel(self, pick: int, _: int, ready: bool) -> None:
        job = self._pick(State.READY if ready else State.SCHEDULED, pick)
        if job:
            self._end(Kind.CANCELLED, job, None)

    def expire(self, _: int, __: int, ___: bool) -> None:
        for job in self.agenda.expired(self.time_ns, ALL):
            self._end(Kind.EXPIRED, job, None)

    def note(self, number: int, kind: int, is_owner: bool) -> None:
        """Records that no fold needs: who an owner is, and kinds of later versions."""
        if is_owner:
            self.add(codec.encode_owner(number, b"{}", self.lsn))
        else:
            self.add(codec.PREFIX.pack(16, 129 + kind % 127, 0, 0, 0) + bytes(4))

    def _end(self, kind: Kind, job: int, body: bytes | None) -> None:
        options = b""
        if self._meta(job) & META_KEYED:
            options = encode_key_hash(self.keys[job])
            self.dedup.apply_free(self.keys[job], job, self.time_ns)
        attempt = self.agenda.attempt(job)
        self.add(codec.encode_job(kind, Cause.CALLER, attempt, job, 5, body, self.lsn, options))
        self.agenda.apply_ended(kind, job)

    def _meta(self, job: int) -> int:
        chunk = self.agenda.table.find(job)
        assert chunk is not None
        return chunk.metas[self.agenda.table.index]

    def _pick(self, state: State, pick: int) -> int:
        jobs = [job for job in range(1, self.lsn) if self.agenda.table.state(job) is state]
        return jobs[pick % len(jobs)] if jobs else 0

    # -- bytes -------------------------------------------------------------------------------------

    def segment(self, cuts: frozenset[int] = frozenset()) -> bytes:
        """The segment's bytes: a frame for each batch, cut in two before each lsn of ``cuts``."""
        header = codec.SegmentHeader(1, EPOCH, LOG_ID.bytes, START_NS)
        data = codec.encode_segment_header(header)
        for batch in self.batches:
            start = 0
            for end in range(1, len(batch.records) + 1):
                if end == len(batch.records) or batch.first_lsn + end in cuts:
                    records = batch.records[start:end]
                    data += codec.encode_frame(
                        b"".join(records), len(records), batch.first_lsn + start, EPOCH,
                        batch.time_ns, 0, SEED, len(data),
                    )  # fmt: skip
                    start = end
        return data


NUMBER = st.integers(0, 300)


def step(name: str, first: st.SearchStrategy[int] = NUMBER) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), first, NUMBER, st.booleans())


STEPS = st.lists(
    st.one_of(
        step("begin"),
        step("enqueue"),
        step("enqueue"),
        step("claim"),
        step("claim_elsewhere"),
        step("give_back"),
        step("settle"),
        step("cancel"),
        step("expire"),
        step("note"),
    ),
    max_size=60,
)


def both(data: bytes) -> tuple[Agenda, Dedup]:
    agenda, dedup = Agenda(), Dedup()
    for frame in frames_of(data):
        fold_frame(BASE, frame, agenda, dedup, None)
    return agenda, dedup


def test_frames_fold_in_small_steps_to_what_they_fold_to_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fold, "_RECORDS_A_STEP", 3)
    monkeypatch.setattr(fold, "_KEYS_A_STEP", 3)
    history = History()
    names = ("enqueue", "enqueue", "claim", "settle")
    history.run([(names[n % 4], n, 7 * n, n % 3 == 0) for n in range(120)])
    data = history.segment()
    (agenda, at_once), jobs, keys = both(data), Agenda(), Dedup()
    steps = 0
    for frame in frames_of(data):
        steps += sum(1 for _ in fold.fold_steps(BASE, frame, jobs, None))
        assert list(fold.fold_steps(BASE, frame, None, keys))
    assert steps > len(list(frames_of(data)))
    assert at_once.size
    assert list(keys._pages[0].hashes) == list(at_once._pages[0].hashes)
    assert list(keys._pages[0].untils) == list(at_once._pages[0].untils)
    assert list(keys._pages[0].locations) == list(at_once._pages[0].locations)
    assert freeze_agenda(jobs).columns == freeze_agenda(agenda).columns


def payload_at(data: bytes, location: int) -> bytes:
    at = location - BASE
    return codec.enqueue_body(data[at : at + codec.LENGTH.unpack_from(data, at)[0]])


def check_same(history: History, agenda: Agenda, dedup: Dedup) -> None:
    live, jobs = history.agenda, range(1, history.lsn)
    for item in (live, agenda):
        item.promote(history.time_ns, ALL)
    assert [agenda.table.state(job) for job in jobs] == [live.table.state(job) for job in jobs]
    assert [agenda.attempt(job) for job in jobs] == [live.attempt(job) for job in jobs]
    assert agenda.running == live.running
    assert agenda.queues.stats() == live.queues.stats()
    assert agenda.order.next_ready(1_000, None) == live.order.next_ready(1_000, None)
    for hashed in history.hashes:
        for later in (0, 50, 150, 299, 301, ALL):
            moment = history.time_ns + later
            there = [job for job, _ in dedup.holders(hashed, moment)]
            assert there == [job for job, _ in history.dedup.holders(hashed, moment)]
    for span in (50, 100, 150, 200, ALL):
        for item in (live, agenda):
            item.promote(history.time_ns + span, ALL)
        assert agenda.order.next_ready(1_000, None) == live.order.next_ready(1_000, None)
    assert sorted(agenda.expired(ALL, ALL)) == sorted(live.expired(ALL, ALL))


@grows
@settings(max_examples=some(20, 150))
@given(steps=STEPS)
def test_a_fold_equals_what_was_applied_while_writing(steps: list[Step]) -> None:
    """States, attempts, claims, counts, order, keys and moments, with locations to the byte."""
    history = History()
    history.run(steps)
    data = history.segment()
    agenda, dedup = both(data)
    for job in range(1, history.lsn):
        if agenda.table.state(job):
            assert agenda.location(job) == history.agenda.location(job)
            assert payload_at(data, agenda.location(job)) == b"payload of %d" % job
    for hashed in history.hashes:
        held = list(dedup.holders(hashed, history.time_ns))
        assert held == list(history.dedup.holders(hashed, history.time_ns))
    check_same(history, agenda, dedup)


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


# -- story -----------------------------------------------------------------------------------------


def frames_of(data: bytes) -> list[Frame]:
    def read(count: int, offset: int) -> bytes:
        return data[offset : offset + count]

    items = Scanner(read, SEED, len(data), 1, sealed=False).frames(codec.SEGMENT_HEADER.size)
    return [item for item in items if isinstance(item, Frame)]


def stories(data: bytes) -> dict[int, Story]:
    values: dict[int, Story] = {}
    for frame in frames_of(data):
        for lsn, at, length in places(frame):
            header = frame.header
            record = Record(frame.data[at : at + length], lsn, header.epoch, header.time_ns)
            if record.type == Kind.ENQUEUED:
                values[lsn] = Story(Tag("tag"), record)
            elif record.type == Kind.CLOCK:
                for story in values.values():
                    story.clock_stepped(record.lsn, record.step_ns)
            elif record.job in values:
                values[record.job].add(record)
    return values


def forward(steps: list[Step]) -> list[Step]:
    """Return the clock steps ahead only: what was due once is not due again in the story."""
    return [(name, a, b % 150 + 150 if name == "begin" else b, c) for name, a, b, c in steps]


@grows
@settings(max_examples=some(20, 150))
@given(steps=STEPS)
def test_a_story_ends_where_the_agenda_stands(steps: list[Step]) -> None:
    history = History()
    history.run(forward(steps))
    result = stories(history.segment())
    for later in (0, ALL):
        now = history.time_ns + later
        history.agenda.promote(now, ALL)
        for job, story in result.items():
            view = story.view(now)
            state = history.agenda.table.state(job)
            assert view.state is state or (not state and view.state not in LIVE_STATES)
            assert not state or view.attempt == history.agenda.attempt(job)
            assert bool(view.settled_ns) == (view.state not in LIVE_STATES)


# -- carried stories -------------------------------------------------------------------------------


_SECOND: Final = 10**9


def _view(process: Process, job: int) -> JobView | None:
    return job_view(process.world.reader(), job, process.world.clock.wall_ns())


def _next_segment(process: Process) -> None:
    while process.journal.offset < SEGMENT_BYTES_MIN:
        process.enqueue(b"x" * 30_000)
    process.enqueue(b"first of the next")


def _carry(process: Process, job: int, kind: Kind = Kind.CARRIED, *, dies: bool = False) -> JobView:
    """Carry a job into a later segment, and remove its first one.

    Unless compaction ``dies`` before it can.
    """
    view = _view(process, job)
    assert view is not None
    result = process.world.reader().indexes.find(job)
    assert result is not None
    body = view.result if view.state is State.SUCCEEDED else None
    if view.state is State.DEAD:
        body = view.reason.encode()
    carried = Carried(
        job=job, state=view.state, born=result.record, enqueued_ns=view.enqueued_ns,
        attempt=view.attempt, due_ns=view.due_ns, ended_ns=view.settled_ns,
        history=encode_history(view.attempts), body=body,
    )  # fmt: skip
    _next_segment(process)
    process.append(encode_carried(kind, carried, process.journal.next_lsn))
    if not dies:
        process.journal.files.remove(1)
    return view


def _settled(process: Process, kind: Kind = Kind.SUCCEEDED, body: bytes = b"the end") -> int:
    job = process.enqueue(b"payload", Extras(key=b"k", headers={"trace": "x"}))
    [delivery] = process.claim()
    process.settle(delivery, Kind.RETRIED, body=b"not yet", delay_ns=_SECOND)
    process.world.clock.advance(2)
    [delivery] = process.claim()
    process.settle(delivery, kind, body=body)
    return job


def test_a_waiting_job_keeps_what_it_waits_for() -> None:
    process = World().process()
    job = process.enqueue(b"payload", Extras(due_ns=100 * _SECOND))
    before = _carry(process, job)
    assert before.state is State.SCHEDULED
    assert _view(process, job) == before


def test_a_record_that_carries_a_job_still_known_changes_nothing() -> None:
    process = World().process()
    job = _settled(process)
    before = _carry(process, job, dies=True)
    assert _view(process, job) == before


@pytest.mark.parametrize("kind", [Kind.SUCCEEDED, Kind.DEAD])
def test_who_waits_for_a_carried_job_gets_its_outcome(kind: Kind) -> None:
    process = World().process()
    job = _settled(process, kind, b"so it ended")
    _carry(process, job)
    reader = process.world.reader()
    assert is_job(reader, job)
    location = find_end(reader, job)
    assert location is not None
    outcome = read_outcome(reader, location)
    state = State.SUCCEEDED if kind is Kind.SUCCEEDED else State.DEAD
    assert (outcome.state, outcome.body) == (state, b"so it ended")


def test_a_carried_job_that_waits_has_no_end() -> None:
    process = World().process()
    job = process.enqueue(b"payload")
    _carry(process, job)
    assert find_end(process.world.reader(), job) is None


def test_a_dead_letter_that_was_requeued_and_purged_is_told_so() -> None:
    process = World().process()
    job = _settled(process, Kind.DEAD)
    _carry(process, job, Kind.REQUEUED)
    view = _view(process, job)
    assert view is not None
    assert (view.state, view.attempt, view.reason, view.settled_ns) == (State.READY, 0, "", 0)
    assert len(view.attempts) == 2
    assert find_end(process.world.reader(), job) is None
    process.append(codec.encode_job(Kind.PURGED, Cause.CALLER, 0, job, 0))
    assert _view(process, job) is None
    location = find_end(process.world.reader(), job)
    assert location is not None
    with pytest.raises(JobNotFound, match="purged"):
        read_outcome(process.world.reader(), location)


def test_a_job_of_which_only_the_key_is_kept_is_no_job_any_more() -> None:
    process = World().process()
    job = _settled(process)
    result = process.world.reader().indexes.find(job)
    assert result is not None
    _next_segment(process)
    carried = Carried(job, State.ABSENT, result.record, 1)
    process.append(encode_carried(Kind.CARRIED, carried, process.journal.next_lsn))
    process.journal.files.remove(1)
    reader = process.world.reader()
    assert job_view(reader, job, 0) is None
    assert not is_job(reader, job)
    with pytest.raises(JobNotFound):
        find_end(reader, job)


# -- building --------------------------------------------------------------------------------------


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
        assert answered > 3
        assert (await log.stats()).queues[0].ready == JOBS + answered - 1


@pytest.mark.usefixtures("slowly")
@pytest.mark.anyio
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


@pytest.mark.usefixtures("slowly")
@pytest.mark.anyio
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


@pytest.mark.usefixtures("slowly")
@pytest.mark.anyio
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


@pytest.mark.usefixtures("slowly")
@pytest.mark.anyio
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


@pytest.mark.usefixtures("slowly")
@pytest.mark.anyio
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


@pytest.mark.usefixtures("slowly")
@pytest.mark.anyio
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


@pytest.mark.usefixtures("slowly")
@pytest.mark.anyio
async def test_a_process_that_adds_faster_than_it_builds_still_gets_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building goes on for as long as the last batch took, and takes less time for the same."""
    monkeypatch.setattr(fold, "_RECORDS_A_STEP", 512)
    async with TaskLog.open(tmp_path, durability="os") as log:
        await log.put_many([Put(payload=b"x")] * JOBS)
        claim = asyncio.create_task(log.claim(1, wait=SECONDS))
        async with within(SECONDS):
            while not claim.done():
                await log.put_many([Put(payload=b"y")] * JOBS)
        assert await claim


# -- carried runs ----------------------------------------------------------------------------------


_FIRST: Final = 1_000
_HEADER: Final = codec.FrameHeader(0, 0, _FIRST, EPOCH, START_NS, 0, 0, 0)
#: Names that differ in the first or the last letter, or only in where the queue's end.
_SPECS: Final = tuple(
    EnqueueSpec(queue, task, priority, flags=flags)
    for queue, task in (("mail", "send"), ("mail", "senf"), ("mails", "end"), ("m", ""))
    for priority in (5, 9)
    for flags in (Flag.CHECKED, Flag.CHECKED | Flag.DURABLE_CLAIM)
)
_JOBS: Final = st.lists(
    st.tuples(
        st.sampled_from(_SPECS[:2]) | st.sampled_from(_SPECS),
        st.sampled_from(
            (
                "plain",
                "plain",
                "plain",
                "waited",
                "claimed",
                "running",
                "late",
                "long",
                "due",
                "dead",
            )
        ),
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


def test_who_waits_for_a_job_hears_of_an_end_that_is_written_again_alone() -> None:
    watch = Watch()
    watch.jobs = {1, 2, 3}
    records = [_record(_SPECS[0], how, job, _FIRST) for job, how in ((1, "plain"), (2, "dead"))]
    data = b"".join([*records, _record(_SPECS[0], "running", 3, _FIRST)])
    fold_records(data, 0, len(data), _HEADER, BASE, None, None, watch)
    assert watch.jobs == {1, 3}
    assert watch.dead == {2}
    assert watch.take() == [(2, BASE + len(records[0]))]
