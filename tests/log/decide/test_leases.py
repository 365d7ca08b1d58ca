"""Claims with a deadline, and jobs that expire: once, neither early nor late."""

from __future__ import annotations

import random
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from taskq.core.errors import FormatError, StaleDelivery, UsageError
from taskq.core.folds import claims
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Cause, Kind
from taskq.core.schedules import SCHEDULES_MAX, ScheduleState, TickRecord, apply_ticked
from taskq.core.views import JobView
from taskq.log.commit.committer import LOOK_AROUND_NS
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.decide import settle
from taskq.log.format.frames import Cursor
from taskq.log.format.notes import decode_ticked, encode_ticked
from taskq.log.read.jobs import JobFilter, each_job, tell_jobs
from taskq.log.read.selection import letters, waiting_page
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Enrolment, Item, Op, Steer, Turn
from taskq.log.segments.segments import SegmentGone
from taskq.log.state.job_history import records
from taskq.log.store.thread import seconds_until_due
from taskq.schedules import Rule, due_ticks, parse_cron, parse_every
from taskq.testing.sandbox import FakeClock
from tests.effort import grows, some
from tests.log.world import FILLER, Process, World, fill_segment, keeping, tend
from tests.machine.machine import PowerLost, ProcessKilled

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


# -- ticks -----------------------------------------------------------------------------------------


SPEC = EnqueueSpec("mail", "report")
RULE = Enrolment("nightly", b"cron 0 0 * * * UTC", b"{}")
MINUTE_NS = 60_000_000_000


def _item(key: bytes | None = None) -> Item:
    return SPEC, b"[]", Extras(key=key, until_settled=True) if key else None


def _schedule_state(process: Process, name: str = "nightly") -> ScheduleState:
    return process.catch_up().need_agenda().schedules[name]


def _turn(seen_ns: int, *moments: int, key: bytes | None = None) -> Turn:
    return Turn("nightly", seen_ns, moments[-1], moments, tuple(_item(key) for _ in moments))


def test_another_rule_counts_from_now_and_other_details_change_nothing_else(world: World) -> None:
    process = world.process()
    process.ask(Op.ENROL, [RULE])
    before = _schedule_state(process)
    world.clock.advance(600)
    process.ask(Op.ENROL, [RULE])
    assert world.kinds() == [Kind.TICKED]
    process.ask(Op.ENROL, [RULE._replace(details=b'{"task":"other"}')])
    assert _schedule_state(process) == before._replace(details=b'{"task":"other"}')
    process.ask(Op.ENROL, [RULE._replace(rule=b"every 60")])
    assert _schedule_state(process).done_ns == world.clock.wall_ns()
    assert _schedule_state(process).rule == b"every 60"


def test_no_tick_is_written_ahead_of_its_time_or_twice_when_the_clock_falls(world: World) -> None:
    process = world.process()
    process.ask(Op.ENROL, [RULE])
    start = _schedule_state(process).done_ns
    assert process.ask(Op.TICK, _turn(start, start + MINUTE_NS)) is None
    world.clock.advance(120)
    process.ask(Op.TICK, _turn(start, start + MINUTE_NS))
    world.clock.step(-3_600)
    done = _schedule_state(process).done_ns
    assert done == start + MINUTE_NS
    assert process.ask(Op.TICK, _turn(done, start)) is None
    assert process.ask(Op.TICK, _turn(done, done + MINUTE_NS)) is None
    assert process.ask(Op.STEER, Steer("nightly", "reset")) is True
    assert _schedule_state(process).done_ns == world.clock.wall_ns() < start
    assert world.kinds().count(Kind.ENQUEUED) == 1


def test_a_schedule_that_was_removed_is_new_when_it_comes_again(world: World) -> None:
    process = world.process()
    process.ask(Op.ENROL, [RULE, RULE._replace(name="weekly")])
    assert process.ask(Op.STEER, Steer("nightly", "forget")) is True
    assert set(process.catch_up().need_agenda().schedules) == {"weekly"}
    with pytest.raises(UsageError, match=r"no schedule 'nightly' \(it knows weekly\)"):
        process.ask(Op.STEER, Steer("nightly", "pause"))
    assert set(world.fold().need_agenda().schedules) == {"weekly"}
    world.clock.advance(60)
    process.ask(Op.ENROL, [RULE])
    assert _schedule_state(process) == ScheduleState(0, world.clock.wall_ns(), False, *RULE[1:3])


def test_what_a_log_knows_of_schedules_is_bounded(world: World) -> None:
    process = world.process()
    many = [Enrolment(f"s{number}", b"every 60", b"{}") for number in range(SCHEDULES_MAX)]
    process.ask(Op.ENROL, many)
    with pytest.raises(UsageError, match=f"10001 schedules .* the most is {SCHEDULES_MAX}"):
        process.ask(Op.ENROL, [RULE])
    known = dict(process.catch_up().need_agenda().schedules)
    apply_ticked(known, TickRecord("written by others", ScheduleState()))
    assert len(known) == SCHEDULES_MAX


def test_schedules_of_too_many_bytes_are_refused(world: World) -> None:
    many = [Enrolment(f"s{number}", b"r" * 500, b"d" * 2_000) for number in range(2_000)]
    with pytest.raises(UsageError, match="bytes"):
        world.process().ask(Op.ENROL, many)
    assert world.kinds() == []


def test_compaction_carries_schedules_as_they_stand() -> None:
    world = World(config=keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None))
    process = world.process()
    process.ask(Op.ENROL, [RULE, RULE._replace(name="weekly", rule=b"every 99")])
    process.ask(Op.STEER, Steer("weekly", "pause"))
    start = _schedule_state(process).done_ns
    world.clock.advance(90)
    process.ask(Op.TICK, _turn(start, start + MINUTE_NS))
    for _ in range(8):
        fill_segment(process)
    before = dict(process.catch_up().need_agenda().schedules)
    tend(process)
    assert len(world.segments()) <= 3
    assert world.fold().need_agenda().schedules == before
    assert (before["nightly"].last_ns, before["weekly"].is_paused) == (start + MINUTE_NS, True)
    assert world.process().ask(Op.TICK, _turn(start, start + MINUTE_NS)) is None


def test_a_name_that_is_too_long_is_damage() -> None:
    record = encode_ticked(TickRecord("x" * 300, ScheduleState()), 5)
    with pytest.raises(FormatError, match="300 bytes"):
        decode_ticked(record)


# -- tick simulation -------------------------------------------------------------------------------


REPORT: Final = EnqueueSpec(task="report")
BULK: Final = EnqueueSpec("bulk")
BERLIN: Final = ZoneInfo("Europe/Berlin")
#: Three days before the clocks go back there.
AUTUMN: Final = datetime(2024, 10, 24, tzinfo=BERLIN).timestamp()


class Plan(NamedTuple):
    """One schedule."""

    name: str
    rule: Rule
    catch_up: str
    jitter_ns: int = 0


PLANS: Final = (
    Plan("nightly", parse_cron("30 2 * * *", BERLIN), "all"),
    Plan("hourly", parse_cron("0 * * * *", BERLIN), "all", 300 * SECOND_NS),
    Plan("often", parse_every("20m"), "all", 60 * SECOND_NS),
    Plan("late", parse_cron("*/30 * * * *", BERLIN), "last"),
    Plan("never late", parse_cron("*/30 * * * *", BERLIN), "skip"),
)


class Week:
    """A world with three processes and these schedules."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        config = keeping(keep_bytes=4 * SEGMENT_BYTES_MIN, keep_seconds=None)
        self.world = World(seed, config)
        self.world.clock = FakeClock(AUTUMN)
        self.world.machine.wall_ns = self.world.clock.wall_ns
        self.start_ns = self.world.clock.wall_ns()
        self.processes: list[Process] = []
        #: a stale request of a process
        self.turns: list[Turn] = []
        #: every tick that the log ever held
        self.seen: dict[str, dict[int, int]] = {plan.name: {} for plan in PLANS}
        #: up to where it was read for them
        self._read: Cursor | None = None

    def step(self) -> None:
        while len(self.processes) < 3:
            self.processes.append(self.world.process())
            self._ask(self.processes[-1], Op.ENROL, [_enrolment(plan) for plan in PLANS])
        process = self.chance.choice(self.processes)
        dice = self.chance.random()
        if dice < 0.6:
            self._look(process)
        if self.turns and dice < 0.8:
            turn = self.turns.pop(self.chance.randrange(len(self.turns)))
            self._ask(process, Op.TICK, turn)
        elif dice < 0.85:
            self.world.clock.advance(self.chance.choice([1, 60, 900, 2_000, 8 * 3_600]))
        elif dice < 0.9:
            # Only ever by a little: what is ahead of its time waits.
            self.world.clock.step(self.chance.choice([-3_600, -60, 60]))
        elif dice < 0.93:
            self._ask(process, Op.ENQUEUE_MANY, [(BULK, bytes(5_000), None)] * 4)
        elif dice < 0.95:
            self._ask(process, Op.STEER, Steer("late", self.chance.choice(["pause", "resume"])))
        elif dice < 0.97:
            self.read()
            tend(process)
        self.read()

    def _look(self, process: Process) -> None:
        states = process.catch_up().need_agenda().schedules
        plan = self.chance.choice(PLANS)
        state, now_ns = states[plan.name], self.world.clock.wall_ns()
        due = due_ticks(plan.name, plan.rule, plan.catch_up, plan.jitter_ns, state.done_ns, now_ns)
        if due.done_ns:
            items = tuple(_tick_item(plan.name, at_ns) for at_ns in due.moments)
            self.turns.append(Turn(plan.name, state.done_ns, due.done_ns, due.moments, items))

    def _ask(self, process: Process, op: Op, operand: Any) -> None:
        """Carry it out; one time in five the process or its machine dies within it."""
        machine, chance = self.world.machine, self.chance
        power = chance.random() < 0.3
        if chance.random() < 0.2:
            machine.stop_at(machine.steps + chance.randrange(20), power=power)
        try:
            process.ask(op, operand)
        except PowerLost:
            self.world.everyone_is_gone(chance.choice([1.0, 7_200.0]))
            self.processes.clear()
        except ProcessKilled:
            process.kill()
            self.processes.remove(process)
        machine.stop_at(None)

    def read(self) -> None:
        """Note the ticks that were written since, while their jobs are still there."""
        if not self.processes:
            return
        # Records that are not on disk may be lost, and come again.
        self.processes[0].journal.refresh()
        self.processes[0].journal.sync()
        reader = self.world.reader()
        try:
            result = list(records(reader, self._read or reader.start()))
        except SegmentGone:  # upkeep removed what was read last
            result = list(records(reader, reader.start()))
        for record in result:
            if record.extras is not None and record.task == "report":
                name, moment = record.extras.headers["schedule"].split("/")
                job = self.seen[name].setdefault(int(moment), record.job)
                assert job == record.job, f"{name} ticked twice for {moment}"
        self._read = reader.end()

    def finish(self) -> None:
        self.world.clock.advance(2 * 3_600)
        process = self.world.process()
        self.processes = [process]
        process.ask(Op.ENROL, [_enrolment(plan) for plan in PLANS])
        process.ask(Op.STEER, Steer("late", "resume"))
        for plan in PLANS:
            states = process.catch_up().need_agenda().schedules
            state, now_ns = states[plan.name], self.world.clock.wall_ns()
            due = due_ticks(
                plan.name, plan.rule, plan.catch_up, plan.jitter_ns, state.done_ns, now_ns
            )
            if due.done_ns:
                items = tuple(_tick_item(plan.name, at_ns) for at_ns in due.moments)
                turn = Turn(plan.name, state.done_ns, due.done_ns, due.moments, items)
                assert process.ask(Op.TICK, turn) is not None
        self.read()


def _tick_item(name: str, at_ns: int) -> tuple[EnqueueSpec, bytes, Extras]:
    return REPORT, b"[]", Extras(headers={"schedule": f"{name}/{at_ns}"})


def _enrolment(plan: Plan) -> Enrolment:
    return Enrolment(plan.name, plan.rule.rule, b"{}")


def _run(seed: int, steps: int) -> None:
    week = Week(seed)
    for _ in range(steps):
        week.step()
    week.finish()
    states = week.world.fold().need_agenda().schedules
    for plan in PLANS:
        seen = week.seen[plan.name]
        moments = sorted(seen)
        assert list(seen) == moments, f"{plan.name} ticked out of order"
        expected = plan.rule.latest(10**6, week.start_ns, states[plan.name].done_ns)
        if plan.catch_up == "all":
            assert moments == expected
        else:
            assert set(moments) <= set(expected)
        assert states[plan.name].last_ns == (moments[-1] if moments else 0)


@pytest.mark.parametrize("seed", range(2))
def test_each_tick_of_a_week_is_written_once(seed: int) -> None:
    _run(seed, 250)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 112))
def test_each_tick_of_many_weeks_is_written_once(seed: int) -> None:
    _run(seed, 800)


# -- log time --------------------------------------------------------------------------------------


_2024: Final = 1_704_067_200


def _steps(world: World) -> list[float]:
    return [record.step_ns / SECOND_NS for record in world.records() if record.type == Kind.CLOCK]


def _times(world: World) -> list[int]:
    return [record.time_ns for record in world.records()]


def _delayed(process: Process, seconds: float) -> int:
    return process.enqueue(extras=Extras(due_ns=int(seconds * SECOND_NS)))


def _at(process: Process, wall_seconds: float) -> int:
    return process.enqueue(extras=Extras(due_ns=int(wall_seconds * SECOND_NS), due_is_wall=True))


def _claimed(process: Process) -> list[int]:
    return [delivery.job for delivery in process.claim(99)]


@pytest.mark.parametrize("fall", [-0.001, -1, -4.9])
def test_a_small_fall_is_smoothed_out(fall: float) -> None:
    world = World()
    first = world.process()
    first.enqueue()
    world.clock.step(fall)
    first.enqueue()
    assert _steps(world) == []
    assert len(set(_times(world))) == 1
    world.clock.advance(10)
    first.enqueue()
    assert _times(world)[-1] == world.clock.wall_ns()


@pytest.mark.parametrize("step", [-_HOUR, -6, 6, _HOUR, 50 * _YEAR])
def test_a_step_is_recorded_once_before_anything_else_in_its_frame(step: float) -> None:
    world = World()
    first = world.process()
    first.enqueue()
    world.clock.step(step)
    first.enqueue()
    first.enqueue()
    assert world.kinds() == [Kind.ENQUEUED, Kind.CLOCK, Kind.ENQUEUED, Kind.ENQUEUED]
    assert _steps(world) == [step]
    assert _times(world)[-1] == world.clock.wall_ns()


def _dated(process: Process, seconds: float) -> int:
    moment = process.world.clock.wall_ns() + int(seconds * SECOND_NS)
    return process.enqueue(extras=Extras(expires_ns=moment, expires_is_wall=True))


def test_nothing_expires_in_the_first_frame_after_a_step() -> None:
    world = World()
    first = world.process()
    job = _dated(first, 100)
    claimed = _dated(first, 100)
    world.clock.step(_HOUR)
    delivery = first.claim(1)[0]
    assert delivery.job == job
    assert Kind.EXPIRED not in world.kinds()
    assert first.claim() == []
    assert world.kinds()[-1] == Kind.EXPIRED
    assert world.records()[-1].job == claimed
    first.settle(delivery)


def test_of_a_fall_that_no_frame_told_of_what_is_left_of_it_is_recorded() -> None:
    world = World()
    job = _delayed(world.process(), _HOUR)
    world.lose_power(60)
    world.clock.step(-_2024)
    process = world.process()
    world.clock.step(_2024 - _HOUR)
    process.enqueue()
    assert _steps(world) == [60 - _HOUR]
    world.clock.advance(_HOUR)
    assert job in _claimed(process)


@pytest.mark.parametrize("seed", range(some(8, 30)))
def test_whatever_the_clock_does_nothing_runs_early_and_everything_runs(seed: int) -> None:
    """Delays and backoff are real time; a step of up to 5 s is no step. Dates are wall time."""
    chance = random.Random(seed)
    world = World(seed)
    processes = [world.process(), world.process()]
    real = 0.0
    due: dict[int, float] = {}
    dates: dict[int, float] = {}
    claimed: set[int] = set()

    def work() -> None:
        process = chance.choice(processes)
        wall = world.clock.wall_ns() / SECOND_NS
        for delivery in process.claim(99):
            job = delivery.job
            assert due.pop(job, 0.0) <= real + 5
            assert dates.pop(job, 0.0) <= wall + 5
            if chance.random() < 0.3:
                process.settle(delivery, Kind.RETRIED, delay_ns=700 * SECOND_NS)
                due[job] = real + 700
            else:
                claimed.add(job)
                process.settle(delivery)

    for _ in range(60):
        seconds = chance.choice((1, 30, 500, 4_000))
        process = chance.choice(processes)
        match chance.randrange(5):
            case 0:
                due[_delayed(process, seconds)] = real + seconds
            case 1:
                wall = world.clock.wall_ns() / SECOND_NS
                dates[_at(process, wall + seconds)] = wall + seconds
            case 2:
                world.clock.step(chance.choice((-3, 3, -_HOUR, _HOUR, _YEAR, -_YEAR)))
            case _:
                world.clock.advance(seconds)
                real += seconds
        work()
    for _ in range(60):
        world.clock.advance(_YEAR)
        real += _YEAR
        work()
    assert not due
    assert not dates
    assert claimed
    assert world.fold().need_agenda().table.live == 0


def test_whoever_looks_after_a_step_of_the_clock_makes_nothing_run_early() -> None:
    world = World()
    process = world.process()
    job = _delayed(process, _HOUR)
    process.catch_up()
    world.clock.step(2 * _HOUR)
    look = partial(waiting_page, wanted=JobFilter(), start=0, end=job + 1, limit=9)
    assert process.ask(Op.LOOK, (look, True)).items == [job]
    assert _claimed(process) == []
    world.clock.advance(_HOUR + 1)
    assert process.ask(Op.LOOK, (look, True)).items == [job]
    assert _claimed(process) == [job]
