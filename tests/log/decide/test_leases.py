"""Claims with a deadline, and jobs that expire: once, neither early nor late."""

import random
from functools import partial
from typing import Final

import pytest

from taskq.core.errors import UsageError
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Kind
from taskq.core.schedules import SCHEDULES_MAX, ScheduleState, TickRecord, apply_ticked
from taskq.core.sources import checked_move
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.read.jobs import JobFilter, each_job, views_of_jobs
from taskq.log.read.selection import waiting_page
from taskq.log.requests import ClaimRequest, EnqueueSpec, Enrolment, Ingest, Item, Op, Steer, Turn
from tests.effort import grows, some
from tests.log.world import FILLER, Process, World, fill_segment, keeping, tend

pytestmark = grows

_HOUR: Final = 3_600
_YEAR: Final = 365 * 24 * _HOUR
_COMPACTED: Final = keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None)
_AGAIN: Final = EnqueueSpec(task="mail.send", attempts=0)
_FILL: Final = EnqueueSpec("fill", "run", 1, 0)


def test_all_views_of_a_job_agree_on_its_times(world: World, process: Process) -> None:
    jobs = [process.enqueue(b"", Extras(expires_ns=10**15), _AGAIN) for _ in range(4)]
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
    one_by_one = [world.job(job) for job in jobs]
    assert len({view.expires_ns for view in one_by_one}) == 2
    assert views_of_jobs(reader, jobs, now_ns) == one_by_one
    exported = {view.lsn: view for view in each_job(reader, JobFilter(task="mail.send"), now_ns)}
    assert [exported[job] for job in jobs] == one_by_one


SPEC = EnqueueSpec("mail", "report")
RULE = Enrolment("nightly", b"cron 0 0 * * * UTC", b"{}")
MINUTE_NS = 60_000_000_000


def _item(key: bytes | None = None) -> Item:
    return SPEC, b"[]", Extras(key=key, until_settled=True) if key else None


def _schedule_state(process: Process, name: str = "nightly") -> ScheduleState:
    return process.catch_up().need_agenda().schedules[name]


def _turn(seen_ns: int, *moments: int, key: bytes | None = None) -> Turn:
    return Turn("nightly", seen_ns, moments[-1], moments, tuple(_item(key) for _ in moments))


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


def test_what_a_log_knows_of_schedules_is_bounded(world: World) -> None:
    process = world.process()
    large = [Enrolment(f"s{number}", b"r" * 500, b"d" * 2_000) for number in range(2_000)]
    with pytest.raises(UsageError, match="bytes"):
        process.ask(Op.ENROL, large)
    assert world.kinds() == []
    many = [Enrolment(f"s{number}", b"every 60", b"{}") for number in range(SCHEDULES_MAX)]
    process.ask(Op.ENROL, many)
    with pytest.raises(UsageError, match=f"10001 schedules .* the most is {SCHEDULES_MAX}"):
        process.ask(Op.ENROL, [RULE])
    known = dict(process.catch_up().need_agenda().schedules)
    apply_ticked(known, TickRecord("written by others", ScheduleState()))
    assert len(known) == SCHEDULES_MAX


def test_compaction_carries_schedules_and_positions_as_they_stand() -> None:
    world = World(config=keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None))
    process = world.process()
    process.ask(Op.ENROL, [RULE, RULE._replace(name="weekly", rule=b"every 99")])
    process.ask(Op.STEER, Steer("weekly", "pause"))
    start = _schedule_state(process).done_ns
    for position, after in ((0, None), ({"b": 1, "a": [2]}, 0)):
        process.ask(Op.INGEST, Ingest(checked_move("file", position, after), []))
    world.clock.advance(90)
    process.ask(Op.TICK, _turn(start, start + MINUTE_NS))
    for _ in range(8):
        fill_segment(process)
    seen = process.catch_up().need_agenda()
    before, positions = dict(seen.schedules), dict(seen.sources)
    tend(process)
    assert len(world.segments()) <= 3
    assert world.fold().need_agenda().schedules == before
    assert world.fold().need_agenda().sources == positions
    assert positions["file"].position == b'{"a":[2],"b":1}'
    assert (before["nightly"].last_ns, before["weekly"].is_paused) == (start + MINUTE_NS, True)
    assert world.process().ask(Op.TICK, _turn(start, start + MINUTE_NS)) is None


_2024: Final = 1_704_067_200


def _steps(world: World) -> list[float]:
    return [record.step_ns / SECOND_NS for record in world.records() if record.type == Kind.CLOCK]


def _delayed(process: Process, seconds: float) -> int:
    return process.enqueue(extras=Extras(due_ns=int(seconds * SECOND_NS)), spec=_AGAIN)


def _claimed(process: Process) -> list[int]:
    return [delivery.job for delivery in process.claim(99)]


def _dated(process: Process, seconds: float) -> int:
    moment = process.world.clock.wall_ns() + int(seconds * SECOND_NS)
    return process.enqueue(extras=Extras(expires_ns=moment, expires_is_wall=True))


def test_nothing_expires_in_the_first_frame_after_a_step(world: World) -> None:
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


def test_the_rest_of_an_unrecorded_backward_clock_step_is_recorded(world: World) -> None:
    job = _delayed(world.process(), _HOUR)
    world.lose_power(60)
    world.clock.step(-_2024)
    process = world.process()
    world.clock.step(_2024 - _HOUR)
    process.enqueue()
    assert _steps(world) == [60 - _HOUR]
    world.clock.advance(_HOUR)
    assert job in _claimed(process)


class Clocked:
    """Jobs that wait, expire or are leased in real time, or at a date, as the clock steps."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(seed, config=_COMPACTED)
        self.processes = [self.world.process(), self.world.process()]
        self.real = 0.0
        self.due: dict[int, float] = {}
        self.dates: dict[int, float] = {}
        self.ends: dict[int, float] = {}

    def act(self) -> None:
        chance, clock = self.chance, self.world.clock
        seconds = chance.choice((1, 30, 500, 4_000))
        process = chance.choice(self.processes)
        wall_ns = clock.wall_ns() + seconds * SECOND_NS
        match chance.randrange(8):
            case 0:
                self.due[_delayed(process, seconds)] = self.real + seconds
            case 1:
                extras = Extras(due_ns=wall_ns, due_is_wall=True)
                self.dates[process.enqueue(extras=extras, spec=_AGAIN)] = wall_ns / SECOND_NS
            case 2:
                extras = Extras(expires_ns=seconds * SECOND_NS, due_ns=9 * _YEAR * SECOND_NS)
                self.ends[process.enqueue(extras=extras)] = self.real + seconds
            case 3 | 4:
                clock.step(chance.choice((-3, 3, -60, -_HOUR, _HOUR, _YEAR, -_YEAR)))
            case 5:
                process.ask(Op.ENQUEUE_MANY, [(_FILL, FILLER, None)] * 4)
                tend(process)
            case _:
                self.advance(seconds)
        process.enqueue(spec=_FILL)

    def advance(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.real += seconds

    def work(self) -> None:
        process = self.chance.choice(self.processes)
        wall = self.world.clock.wall_ns() / SECOND_NS
        request = ClaimRequest(99, wait_until_ns=0, lease_ns=900 * SECOND_NS)
        for delivery in process.ask(Op.CLAIM, request):
            job = delivery.job
            assert self.due.pop(job, 0.0) <= self.real + 5
            assert self.dates.pop(job, 0.0) <= wall + 5
            assert job not in self.ends
            match self.chance.randrange(6):
                case 0:
                    process.settle(delivery, Kind.RETRIED, delay_ns=700 * SECOND_NS)
                    self.due[job] = self.real + 700
                case 1:
                    self.due[job] = self.real + 900  # its lease ends
                case _:
                    process.settle(delivery)
        process.commit([])
        process.sync()
        for job, end in list(self.ends.items()):
            if self.world.job(job).state is State.EXPIRED:
                assert self.real >= end - 5
                del self.ends[job]
            else:
                assert self.real <= end + 5


@pytest.mark.parametrize("seed", range(some(8, 30)))
def test_steps_of_the_clock_run_no_job_early_and_lose_none(seed: int) -> None:
    """Delays, backoff and leases are real time; a step up to 5 s is none. Dates are wall time."""
    clocked = Clocked(seed)
    for _ in range(60):
        clocked.act()
        clocked.work()
    for _ in range(60):
        clocked.advance(_YEAR)
        clocked.work()
    assert (clocked.due, clocked.dates, clocked.ends) == ({}, {}, {})
    assert clocked.world.fold().need_agenda().table.live == 0


def test_a_listing_after_a_clock_step_makes_no_delayed_job_due(
    world: World, process: Process
) -> None:
    job = _delayed(process, _HOUR)
    process.catch_up()
    world.clock.step(2 * _HOUR)
    look = partial(waiting_page, wanted=JobFilter(), start=0, end=job + 1, limit=9)
    assert process.ask(Op.LOOK, (look, True)).items == [job]
    assert _claimed(process) == []
    world.clock.advance(_HOUR + 1)
    assert process.ask(Op.LOOK, (look, True)).items == [job]
    assert _claimed(process) == [job]
