"""Claims with a deadline, and jobs that expire: once, neither early nor late."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from taskq.core.errors import StaleDelivery
from taskq.core.folds import claims
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Cause, Kind
from taskq.core.views import JobView
from taskq.log.commit.committer import LOOK_AROUND_NS
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.decide import settle
from taskq.log.read.jobs import JobFilter, each_job, tell_jobs
from taskq.log.read.selection import letters
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Op
from taskq.log.store.thread import seconds_until_due
from tests.effort import grows, some
from tests.log.world import FILLER, Process, World, keeping, tend

pytestmark = grows

LEASE = 30


def claim(process: Process, seconds: float = LEASE) -> list[Delivery]:
    request = ClaimRequest(9, wait_until_ns=0, lease_ns=int(seconds * SECOND_NS))
    deliveries: list[Delivery] = process.ask(Op.CLAIM, request)
    return deliveries


def extend(process: Process, delivery: Delivery, seconds: float = LEASE) -> Any:
    return process.ask(Op.EXTEND, (delivery, int(seconds * SECOND_NS)))


def test_an_expired_lease_redelivers_once(world: World) -> None:
    """One release, one new delivery with the next attempt, however many claimers look."""
    holder, *others = (world.process() for _ in range(3))
    job = holder.enqueue()
    (held,) = claim(holder)
    world.clock.advance(LEASE)
    again = [delivery for process in (*others, holder) for delivery in claim(process)]
    assert [(item.job, item.attempt) for item in again] == [(job, 2)]
    assert [claim(process) for process in others] == [[], []]
    released = [record for record in world.records() if record.type == Kind.RELEASED]
    assert [(delivery.job, delivery.token, delivery.cause) for delivery in released] == [
        (job, held.token, str(Cause.LEASE_OVER))
    ]
    others[0].settle(again[0])
    assert world.fold().need_agenda().table.state(job) is State.ABSENT


def test_a_stale_token_is_refused_even_from_the_same_worker(world: World) -> None:
    """One process holds the old and the new delivery of a job: the old one is good for nothing.

    Ack, nack, release and extend are refused and change nothing; the new one is as good as ever.
    """
    process = world.process()
    job = process.enqueue()
    (old,) = claim(process)
    world.clock.advance(LEASE)
    (new,) = claim(process)
    assert (new.job, new.epoch, new.attempt) == (job, old.epoch, 2)
    before = world.kinds()
    for kind in (Kind.SUCCEEDED, Kind.RETRIED, Kind.RELEASED, Kind.DEAD):
        with pytest.raises(StaleDelivery):
            process.settle(old, kind)
    with pytest.raises(StaleDelivery):
        extend(process, old)
    assert world.kinds() == before
    extend(process, new)
    process.settle(new)
    with pytest.raises(StaleDelivery):
        extend(process, new)


class _Never:
    def done(self) -> bool:
        return False


def test_a_claimer_sleeps_no_longer_than_the_next_lease(world: World) -> None:
    holder, other = world.process(), world.process()
    holder.enqueue()
    (held,) = claim(holder, 0.125)
    other.catch_up()
    other.committer.waiters.claims.append((ClaimRequest(1), None, _Never()))
    assert seconds_until_due(other.committer) == pytest.approx(0.125)
    holder.settle(held)
    other.catch_up()
    assert seconds_until_due(other.committer) == LOOK_AROUND_NS / SECOND_NS


# -- expiry steps ----------------------------------------------------------------------------------


_HOUR: Final = 3_600
_YEAR: Final = 365 * 24 * _HOUR
_STEPS: Final = [-50 * _YEAR, -_HOUR, _HOUR, 50 * _YEAR]
_COMPACTED: Final = keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None)
_JOB: Final = EnqueueSpec("jobs", "run", 9)
_FILL: Final = EnqueueSpec("fill", "run", 1)


def _expiring(process: Process, seconds: float = _HOUR, due_seconds: float = 0) -> int:
    extras = Extras(
        expires_ns=int(seconds * SECOND_NS), due_ns=int(due_seconds * SECOND_NS), key=b"k"
    )
    job = process.offer(b"expiring", extras, _JOB)
    assert isinstance(job, int)
    return job


def _view(world: World, job: int) -> JobView:
    view = world.view(job)
    assert view is not None
    return view


def _state(process: Process, job: int) -> State:
    """Return what became of it, once two frames have had the chance to let it expire."""
    for _ in range(2):
        process.catch_up()
        process.commit([])
        process.sync()
        process.enqueue(b"", spec=_FILL)
    return _view(process.world, job).state


def _left_seconds(world: World, job: int) -> float:
    return (_view(world, job).expires_ns - world.clock.wall_ns()) / SECOND_NS


def _fill(process: Process, segments: int = 1) -> None:
    for _ in range(segments):
        segment = process.journal.segment
        while process.journal.segment == segment:
            process.enqueue(FILLER, spec=_FILL)
            for delivery in process.claim(4):
                process.settle(delivery)


# -- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", _STEPS)
def test_a_job_expires_after_its_time_and_not_before_it_whatever_the_clock_did(step: float) -> None:
    """Nothing is lost by a step ahead, and nothing is kept for ever by one back."""
    world = World()
    process, other = world.process(), world.process()
    job = _expiring(process)
    world.clock.advance(100)
    world.clock.step(step)
    assert _state(process, job) is State.READY
    world.clock.advance(_HOUR - 101)
    assert _state(other, job) is State.READY
    assert _left_seconds(world, job) == 1
    world.clock.advance(2)
    assert _state(other, job) is State.EXPIRED
    assert _view(world, job).settled_ns == world.clock.wall_ns()


def test_no_claimer_gets_a_job_whose_moment_has_come_however_many_expire_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch has room for some; who finds no others waits until the last of them is recorded."""
    monkeypatch.setattr(settle, "EXPIRED_MAX", 1)
    monkeypatch.setattr(claims, "PASSED_MAX", 1)
    world = World()
    process = world.process()
    jobs = [process.enqueue(b"", Extras(expires_ns=_HOUR * SECOND_NS), _JOB) for _ in range(6)]
    world.clock.advance(_HOUR)
    claim = process.send(Op.CLAIM, ClaimRequest(1, wait_until_ns=0))
    process.sync()
    assert world.kinds().count(Kind.EXPIRED) == 2
    while world.kinds().count(Kind.EXPIRED) < len(jobs):
        assert not claim.done()
        process.commit([])
        process.sync()
    process.commit([])
    assert claim.result(0) == []
    assert [_view(world, job).state for job in jobs] == [State.EXPIRED] * 6


# -- what reads the log ---------------------------------------------------------------------------


def test_every_way_to_look_at_a_job_tells_the_same_moment() -> None:
    world = World()
    process = world.process()
    jobs = [process.enqueue(b"", Extras(expires_ns=10**15), _JOB) for _ in range(4)]
    world.clock.step(_YEAR)
    (first, second) = process.claim(2)
    process.settle(first)
    process.settle(second, Kind.RETRIED, delay_ns=SECOND_NS)
    world.clock.step(-_HOUR)
    process.claim(1)
    world.clock.step(3 * _HOUR)
    process.enqueue(b"", spec=_FILL)
    now_ns = world.clock.wall_ns()
    reader = world.reader()
    one_by_one = [_view(world, job) for job in jobs]
    assert len({view.expires_ns for view in one_by_one}) == 2
    assert tell_jobs(reader, jobs, now_ns) == one_by_one
    exported = {view.lsn: view for view in each_job(reader, JobFilter(queue="jobs"), now_ns)}
    assert [exported[job] for job in jobs] == one_by_one


# -- compaction and snapshots ---------------------------------------------------------------------


def _compact(process: Process, job: int) -> None:
    _fill(process, 5)
    tend(process)
    assert process.journal.files.lsns[0] > job
    assert Kind.CLOCK not in process.world.kinds()


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("is_wall", [False, True])
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (Kind.RETRIED, Cause.CALLER), (Kind.RELEASED, Cause.DRAIN), (Kind.RELEASED, Cause.SNOOZE),
        (Kind.RELEASED, Cause.WAITS), (Kind.RELEASED, Cause.OWNER_LOST),
        (Kind.DEAD, Cause.REJECTED),
    ],
)  # fmt: skip
def test_a_job_that_was_claimed_does_not_expire_however_it_was_given_back(
    kind: Kind, cause: Cause, is_wall: bool, compacts: bool
) -> None:
    world = World(config=_COMPACTED)
    process, other = world.process(), world.process()
    extras = Extras(expires_ns=_HOUR * SECOND_NS + is_wall * world.clock.wall_ns())
    extras.expires_is_wall = is_wall
    job = process.enqueue(b"expiring", extras, _JOB)
    assert _view(world, job).expires_ns
    (delivery,) = process.claim()
    if compacts:
        _compact(process, job)
    if cause is Cause.OWNER_LOST:
        process.kill()
        process = world.process()
        assert [lost.job for lost in process.claim(4)] == [job]
        world.clock.advance(2 * _HOUR)
        assert _state(other, job) is State.RUNNING
        return
    waits = pack_waits([Wait(Form.SLEEP, "sleep", 1, world.clock.wall_ns() + SECOND_NS)])
    body = waits if cause is Cause.WAITS else b""
    process.settle(delivery, kind, body=body, delay_ns=10 * SECOND_NS, cause=cause)
    if kind is Kind.DEAD:
        process.catch_up()
        items = letters(process.committer.sight, [job]).items
        assert process.ask(Op.REQUEUE, items) == [None]
    if compacts and kind is not Kind.DEAD:
        _compact(process, job)
    world.clock.advance(2 * _HOUR)
    assert _view(world, job).expires_ns == 0
    assert _state(other, job) is State.READY
    assert world.fold().need_agenda().table.state(job) is State.READY
    assert job in [delivery.job for delivery in other.claim(9)]


# -- all causes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(some(2, 20)))
def test_whatever_the_clock_does_a_job_expires_neither_early_nor_late(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed, config=_COMPACTED)
    processes = [world.process(), world.process()]
    real, expired = 0.0, 0
    ends: dict[int, float] = {}
    for _ in range(40):
        process = chance.choice(processes)
        match chance.randrange(6):
            case 0 | 1:
                seconds = chance.choice((500, 4_000, 30_000))
                extras = Extras(expires_ns=seconds * SECOND_NS, due_ns=_YEAR * SECOND_NS)
                ends[process.enqueue(b"x", extras, _JOB)] = real + seconds
            case 2 | 3:
                world.clock.step(chance.choice((-60, -_HOUR, _HOUR, _YEAR, -_YEAR)))
            case 4:
                _fill(process, 2)
                tend(process)
            case _:
                seconds = chance.choice((100, 700, 5_000))
                world.clock.advance(seconds)
                real += seconds
        process.enqueue(b"", spec=_FILL)
        for job, end in list(ends.items()):
            state = _state(process, job)
            assert state is (State.SCHEDULED if real < end else State.EXPIRED)
            if state is State.EXPIRED:
                del ends[job]
                expired += 1
    assert expired
