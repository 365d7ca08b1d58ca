"""Schedules over a simulated week: processes that look, hesitate, die and lose power.

Each tick of a schedule that makes up for all is in the log once, in its order; ticks of other
schedules are never there twice.
"""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from taskq.core.model import SECOND_NS, Extras
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format.frames import Cursor
from taskq.log.requests import EnqueueSpec, Enrolment, Op, Steer, Turn
from taskq.log.segments.segments import SegmentGone
from taskq.log.state.job_history import records
from taskq.schedules import Rule, due_ticks, parse_cron, parse_every
from taskq.testing.sandbox import FakeClock
from tests.log.tending import keeping, tend
from tests.log.world import Process, World
from tests.machine.machine import PowerLost, ProcessKilled

SPEC: Final = EnqueueSpec(task="report")
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
            items = tuple(_item(plan.name, at_ns) for at_ns in due.moments)
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
                items = tuple(_item(plan.name, at_ns) for at_ns in due.moments)
                turn = Turn(plan.name, state.done_ns, due.done_ns, due.moments, items)
                assert process.ask(Op.TICK, turn) is not None
        self.read()


def _item(name: str, at_ns: int) -> tuple[EnqueueSpec, bytes, Extras]:
    return SPEC, b"[]", Extras(headers={"schedule": f"{name}/{at_ns}"})


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
