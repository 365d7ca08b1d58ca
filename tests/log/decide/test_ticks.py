"""Ticks in the log: each once, with its jobs, from any process."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from taskq.core.errors import FormatError, UsageError
from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.core.schedules import SCHEDULES_MAX, ScheduleState, TickRecord, apply_ticked
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format.frames import Cursor
from taskq.log.format.notes import decode_ticked, encode_ticked
from taskq.log.requests import EnqueueSpec, Enrolment, Item, Op, Steer, Turn
from taskq.log.segments.segments import SegmentGone
from taskq.log.state.job_history import records
from taskq.schedules import Rule, due_ticks, parse_cron, parse_every
from taskq.testing.sandbox import FakeClock
from tests.log.world import Process, World, fill_segment, keeping, tend
from tests.machine.machine import PowerLost, ProcessKilled

SPEC = EnqueueSpec("mail", "report")
RULE = Enrolment("nightly", b"cron 0 0 * * * UTC", b"{}")
MINUTE_NS = 60_000_000_000


def _item(key: bytes | None = None) -> Item:
    return SPEC, b"[]", Extras(key=key, until_settled=True) if key else None


def _state(process: Process, name: str = "nightly") -> ScheduleState:
    return process.catch_up().need_agenda().schedules[name]


def _turn(seen_ns: int, *moments: int, key: bytes | None = None) -> Turn:
    return Turn("nightly", seen_ns, moments[-1], moments, tuple(_item(key) for _ in moments))


def test_another_rule_counts_from_now_and_other_details_change_nothing_else(world: World) -> None:
    process = world.process()
    process.ask(Op.ENROL, [RULE])
    before = _state(process)
    world.clock.advance(600)
    process.ask(Op.ENROL, [RULE])
    assert world.kinds() == [Kind.TICKED]
    process.ask(Op.ENROL, [RULE._replace(details=b'{"task":"other"}')])
    assert _state(process) == before._replace(details=b'{"task":"other"}')
    process.ask(Op.ENROL, [RULE._replace(rule=b"every 60")])
    assert _state(process).done_ns == world.clock.wall_ns()
    assert _state(process).rule == b"every 60"


def test_no_tick_is_written_ahead_of_its_time_or_twice_when_the_clock_falls(world: World) -> None:
    process = world.process()
    process.ask(Op.ENROL, [RULE])
    start = _state(process).done_ns
    assert process.ask(Op.TICK, _turn(start, start + MINUTE_NS)) is None
    world.clock.advance(120)
    process.ask(Op.TICK, _turn(start, start + MINUTE_NS))
    world.clock.step(-3_600)
    done = _state(process).done_ns
    assert done == start + MINUTE_NS
    assert process.ask(Op.TICK, _turn(done, start)) is None
    assert process.ask(Op.TICK, _turn(done, done + MINUTE_NS)) is None
    assert process.ask(Op.STEER, Steer("nightly", "reset")) is True
    assert _state(process).done_ns == world.clock.wall_ns() < start
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
    assert _state(process) == ScheduleState(0, world.clock.wall_ns(), False, *RULE[1:])


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
    start = _state(process).done_ns
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
