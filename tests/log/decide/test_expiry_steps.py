"""An expiry that is a span of time is one on any clock; one that is a date is a date."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest

from taskq.core.folds import taking
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.decide import cancel
from taskq.log.read.listing import tell_jobs
from taskq.log.read.walks import Chosen, each_job
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op
from tests.effort import grows, some
from tests.log.tending import FILLER, keeping, tend
from tests.log.told import check_same, write
from tests.log.world import World

if TYPE_CHECKING:
    from taskq.core.views import JobView
    from tests.log.world import Process

_HOUR: Final = 3_600
_YEAR: Final = 365 * 24 * _HOUR
_2024: Final = 1_704_067_200
_STEPS: Final = [-50 * _YEAR, -_HOUR, _HOUR, 50 * _YEAR]
_COMPACTED: Final = keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None)
_JOB: Final = EnqueueSpec("jobs", "run", 9)
_FILL: Final = EnqueueSpec("fill", "run", 1)


def _expiring(process: Process, seconds: float = _HOUR, due_seconds: float = 0) -> int:
    """Return a job that expires so long after now, whatever the clock says then."""
    extras = Extras(
        expires_ns=int(seconds * SECOND_NS), due_ns=int(due_seconds * SECOND_NS), key=b"k"
    )
    job = process.offer(b"expiring", extras, _JOB)
    assert isinstance(job, int)
    return job


def _dated(process: Process, seconds: float = _HOUR) -> int:
    """Return a job that expires when the clock shows so much more than now."""
    moment = process.world.clock.wall_ns() + int(seconds * SECOND_NS)
    return process.enqueue(b"dated", Extras(expires_ns=moment, expires_is_wall=True), _JOB)


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
    """Return how long the job is said to have."""
    return (_view(world, job).expires_ns - world.clock.wall_ns()) / SECOND_NS


def _fill(process: Process, segments: int = 1) -> None:
    for _ in range(segments):
        segment = process.journal.segment
        while process.journal.segment == segment:
            process.enqueue(FILLER, spec=_FILL)
            for delivery in process.claim(4):
                process.settle(delivery)


# -- steps ----------------------------------------------------------------------------------------


def test_a_box_that_boots_in_1970_keeps_its_jobs_when_ntp_sets_it_right() -> None:
    world = World()
    world.clock.step(30 - _2024)
    process = world.process()
    job = _expiring(process)
    world.clock.advance(60)
    process.enqueue(b"", spec=_FILL)
    world.clock.step(_2024)
    assert _state(process, job) is State.READY
    assert _left_seconds(world, job) == _HOUR - 60
    (delivery,) = world.process().claim()
    assert delivery.job == job


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


@pytest.mark.parametrize("step", _STEPS)
def test_a_job_that_is_not_due_expires_by_its_time_too(step: float) -> None:
    world = World()
    process = world.process()
    job = _expiring(process, _HOUR, due_seconds=2 * _HOUR)
    world.clock.step(step)
    assert _state(process, job) is State.SCHEDULED
    world.clock.advance(_HOUR + 1)
    assert _state(process, job) is State.EXPIRED


def test_time_that_a_sleeping_machine_lost_is_time_that_passed() -> None:
    world = World()
    process = world.process()
    gone, kept = _expiring(process, _HOUR), process.enqueue(b"", Extras(expires_ns=10**15), _JOB)
    world.clock.advance(2 * _HOUR)
    assert (_state(process, gone), _state(process, kept)) == (State.EXPIRED, State.READY)
    assert Kind.CLOCK not in world.kinds()


def test_no_claimer_gets_a_job_whose_moment_has_come_however_many_expire_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch has room for some; who finds no others waits until the last of them is recorded."""
    monkeypatch.setattr(cancel, "EXPIRED_MAX", 1)
    monkeypatch.setattr(taking, "PASSED_MAX", 1)
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


@pytest.mark.parametrize("step", [_HOUR, 50 * _YEAR])
def test_a_date_does_not_move(step: float) -> None:
    world = World()
    process = world.process()
    ahead, behind = _dated(process, step - 60), _dated(process, step + 60)
    before = _view(world, ahead).expires_ns
    world.clock.step(step)
    assert (_state(process, ahead), _state(process, behind)) == (State.EXPIRED, State.READY)
    assert _view(world, ahead).expires_ns == before
    assert _left_seconds(world, behind) == 60


@pytest.mark.parametrize("is_date", [False, True])
def test_a_running_job_that_is_given_back_after_its_time_expires(is_date: bool) -> None:
    world = World()
    process = world.process()
    job = (_dated if is_date else _expiring)(process)
    (delivery,) = process.claim()
    world.clock.advance(2 * _HOUR)
    assert _state(process, job) is State.RUNNING
    process.settle(delivery, Kind.RETRIED, delay_ns=0)
    assert _state(process, job) is State.EXPIRED


def test_a_running_job_does_not_expire_by_a_clock_that_was_wrong_for_a_while() -> None:
    """Its date had passed only by the clock of a few frames."""
    world = World()
    process = world.process()
    job = _dated(process)
    (delivery,) = process.claim()
    world.clock.step(_YEAR)
    assert _state(process, job) is State.RUNNING
    world.clock.step(-_YEAR)
    assert _state(process, job) is State.RUNNING
    process.settle(delivery, Kind.RETRIED, delay_ns=0)
    assert _state(process, job) is State.READY
    world.clock.advance(_HOUR + 1)
    assert _state(process, job) is State.EXPIRED


def test_a_dead_letter_that_is_settled_shows_when_it_would_have_expired() -> None:
    """Steps after its end move nothing any more."""
    world = World()
    process = world.process()
    job = _expiring(process)
    world.clock.step(_YEAR)
    process.settle(process.claim()[0])
    expires_ns = world.clock.wall_ns() + _HOUR * SECOND_NS
    world.clock.step(_YEAR)
    process.enqueue(b"", spec=_FILL)
    assert _view(world, job).expires_ns == expires_ns


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
    exported = {view.lsn: view for view in each_job(reader, Chosen(queue="jobs"), now_ns)}
    assert [exported[job] for job in jobs] == one_by_one


# -- compaction and snapshots ---------------------------------------------------------------------


def _compact(process: Process, job: int) -> None:
    """Take the job's segment out of the log, and with it every step so far."""
    _fill(process, 5)
    tend(process)
    assert process.journal.files.lsns[0] > job
    assert Kind.CLOCK not in process.world.kinds()


@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.parametrize("later", [-_HOUR, 0, _HOUR])
def test_a_step_that_compaction_took_has_moved_the_job_for_good(step: float, later: float) -> None:
    """Two more may follow; the newcomer folds none of the first."""
    world = World(config=_COMPACTED)
    process = world.process()
    job = _expiring(process, 3 * _HOUR, due_seconds=20 * _HOUR)
    world.clock.step(step)
    before = _left_seconds_after_frame(process, job)
    _compact(process, job)
    assert _left_seconds(world, job) == before == 3 * _HOUR
    world.clock.step(later)
    newcomer = world.process()
    world.clock.advance(3 * _HOUR - 1)
    assert _state(newcomer, job) is State.SCHEDULED
    assert _left_seconds(world, job) == 1
    world.clock.advance(2)
    assert _state(newcomer, job) is State.EXPIRED


def _left_seconds_after_frame(process: Process, job: int) -> float:
    process.enqueue(b"", spec=_FILL)
    return _left_seconds(process.world, job)


def test_a_job_that_was_carried_twice_still_has_its_time() -> None:
    world = World(config=_COMPACTED)
    process = world.process()
    job = _expiring(process, 3 * _HOUR, due_seconds=20 * _HOUR)
    for _ in range(2):
        world.clock.step(_YEAR)
        _fill(process, 6)
        tend(process)
        world.clock.advance(_HOUR)
    assert world.kinds().count(Kind.CARRIED) == 1
    assert _left_seconds(world, job) == _HOUR
    newcomer = world.process()
    world.clock.advance(_HOUR - 1)
    assert _state(newcomer, job) is State.SCHEDULED
    world.clock.advance(2)
    assert _state(newcomer, job) is State.EXPIRED


@pytest.mark.parametrize("overdue", [False, True])
def test_a_running_job_is_carried_with_its_time(overdue: bool) -> None:
    """Also one whose time passed while it ran: it expires when it is given back."""
    world = World(config=_COMPACTED)
    process, other = world.process(), world.process()
    job = _expiring(process)
    (delivery,) = process.claim()
    world.clock.step(-10 * _YEAR)
    process.enqueue(b"", spec=_FILL)
    if overdue:
        world.clock.advance(2 * _HOUR)
        assert _state(process, job) is State.RUNNING
    left = _left_seconds(world, job)
    _compact(process, job)
    assert _left_seconds(world, job) == left
    process.settle(delivery, Kind.RETRIED, delay_ns=0)
    expected = State.EXPIRED if overdue else State.READY
    assert _state(other, job) is expected
    if not overdue:
        world.clock.advance(_HOUR + 1)
        assert _state(world.process(), job) is State.EXPIRED


def test_a_finished_job_that_is_kept_shows_the_moment_that_it_had() -> None:
    world = World(config=keeping(keep_seconds=10.0 * _YEAR))
    process = world.process()
    done, dead = _expiring(process), process.enqueue(b"", Extras(expires_ns=10**15), _JOB)
    world.clock.step(_HOUR)
    first, second = process.claim(2)
    process.settle(first, body=b"result")
    process.settle(second, Kind.DEAD, body=b"why")
    before = [_view(world, job) for job in (done, dead)]
    _fill(process, 2)
    world.clock.advance(9 * _YEAR)
    process.enqueue(b"", spec=_FILL)
    assert [_view(world, job) for job in (done, dead)] == before


@pytest.mark.parametrize("step", _STEPS)
def test_a_snapshot_knows_what_has_moved(step: float) -> None:
    world = World()
    process = world.process()
    job, date = _expiring(process), _dated(process)
    world.clock.step(step)
    process.enqueue(b"", spec=_FILL)
    running = process.claim(2)
    assert [job.job for job in running] == [job, date] or step > 0
    world.clock.advance(_HOUR + 1)
    process.enqueue(b"", spec=_FILL)
    process.catch_up()
    assert write(process)
    check_same(world)
    newcomer = world.process()
    for delivery in running:
        process.settle(delivery, Kind.RETRIED, delay_ns=0)
    assert _state(newcomer, job) is State.EXPIRED
    check_same(world)


# -- whatever happens -----------------------------------------------------------------------------


@grows
@pytest.mark.parametrize("seed", range(some(4, 20)))
def test_whatever_the_clock_does_a_job_expires_neither_early_nor_late(seed: int) -> None:
    """By real time, through compaction."""
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
