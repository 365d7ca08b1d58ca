"""Flows in the log: a held job is released once, after all of its inputs, through crashes."""

from __future__ import annotations

import random
from typing import Final

import pytest

from taskq.core.errors import TaskqError
from taskq.core.flows import Policy
from taskq.core.model import State
from taskq.core.records import Cause, Kind
from taskq.flows.flow import Chain, Node, Parallel
from taskq.log.read.flows import look_at_ends, look_at_ties
from taskq.log.read.selection import letters
from taskq.log.requests import Delivery, Op, Settlement
from tests.effort import grows, some
from tests.log.world import Process, World, chord, fill_segment, items_of, keeping, leaf, step, tend
from tests.machine.crashable import PowerLost, ProcessKilled

pytestmark = grows

SEEDS: Final = some(6, 12)
STEPS: Final = 60
ACTS: Final = ("put", "claim", "claim", "settle", "settle", "settle", "kill", "power")


def put(process: Process, node: Node) -> list[int]:
    lsns: list[int] = process.ask(Op.ENQUEUE_MANY, items_of(node))
    return lsns


def states(process: Process, jobs: list[int]) -> list[State]:
    agenda = process.catch_up().need_agenda()
    return [State.DEAD if agenda.dead.find(job) else agenda.table.state(job) for job in jobs]


def test_what_runs_whatever_fails_counts_each_input_once(world: World, process: Process) -> None:
    callback, *_ = put(process, chord(2, Policy.RUN))
    first, second = process.claim(2)
    process.settle(first, Kind.DEAD, body=b"no")
    process.ask(Op.REQUEUE, letters(process.committer.sight, [first.job]).items)
    process.settle(second)
    assert states(process, [callback]) == [State.SCHEDULED]
    assert world.fold().need_agenda().flows.held == process.committer.facets.agenda.flows.held  # type: ignore[union-attr]
    (again,) = process.claim()
    process.settle(again)
    assert [delivery.job for delivery in process.claim()] == [callback]


@pytest.mark.parametrize("ends", ["purge", "requeue"])
def test_what_waits_for_a_dead_letter_goes_on_or_goes_with_it(ends: str, process: Process) -> None:
    callback, _ = put(process, chord(1, Policy.WAIT))
    (delivery,) = process.claim()
    process.settle(delivery, Kind.DEAD, body=b"no")
    assert states(process, [callback]) == [State.SCHEDULED]
    if ends == "purge":
        process.ask(Op.PURGE, [delivery.job])
        assert states(process, [callback]) == [State.ABSENT]
        return
    process.ask(Op.REQUEUE, letters(process.committer.sight, [delivery.job]).items)
    process.settle(process.claim()[0])
    assert [delivery.job for delivery in process.claim()] == [callback]


@pytest.mark.parametrize("drops", [False, True], ids=["by age", "for room"])
def test_compaction_keeps_counts_and_the_results_that_are_still_taken_in(drops: bool) -> None:
    world = World(config=keeping(keep_segments=1) if drops else keeping(keep_seconds=1))
    process = world.process()
    callback, *inputs = put(process, chord(3))
    deliveries = process.claim(3)
    for number, delivery in enumerate(deliveries[:2]):
        process.settle(delivery, body=b"%d" % number)
    process.settle(deliveries[2], Kind.RELEASED, cause=Cause.CALLER)
    for _ in range(3):
        (held,) = process.claim()
        fill_segment(process)
        world.clock.advance(100)
        tend(process)
        process.settle(held, Kind.RELEASED, cause=Cause.CALLER)
    assert world.fold().need_agenda().flows.remaining(callback) == (1, Policy.CANCEL, False)
    other = world.process()
    (delivery,) = other.claim()
    other.settle(delivery, body=b"2")
    assert [delivery.job for delivery in other.claim()] == [callback]
    ends = look_at_ends(other.committer.sight, inputs)
    assert [(end.state, end.body) for end in ends] == [
        (State.SUCCEEDED, b"0"), (State.SUCCEEDED, b"1"), (State.SUCCEEDED, b"2"),
    ]  # fmt: skip
    ties = look_at_ties(other.committer.sight, callback)
    assert ties is not None
    assert list(ties.inputs) == inputs


# -- crashes ---------------------------------------------------------------------------------------


class Crashing:
    """Processes that run flows and die at any step."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.world = World(seed, keeping(min_free_bytes=0, reserve_bytes=0))
        self.processes: list[tuple[Process, list[Delivery]]] = []

    def node(self, depth: int = 0) -> Node:
        draw = self.draw
        if depth > 2 or draw.random() < 0.3:
            return leaf()
        policy = draw.choice(list(Policy))
        if draw.random() < 0.5:
            members = tuple(self.node(depth + 1) for _ in range(draw.randint(0, 4)))
            return Chain((Parallel(members), step()), policy)
        return Chain((self.node(depth + 1), step(), self.node(depth + 1)), policy)

    def act(self) -> None:
        draw, machine = self.draw, self.world.machine
        if draw.random() < 0.1:
            machine.stop_at(machine.steps + draw.randint(1, 6), power=draw.random() < 0.5)
        process: Process | None = None
        try:
            if len(self.processes) < 2:
                self.processes.append((self.world.process(), []))
                return
            process, held = draw.choice(self.processes)
            self.do(draw.choice(ACTS), process, held)
        except ProcessKilled:
            if process is not None:
                self.gone(process)
        except PowerLost:
            self.power_lost()
        except TaskqError:
            pass  # a claim that is over

    def do(self, what: str, process: Process, held: list[Delivery]) -> None:
        draw = self.draw
        if what == "put":
            put(process, self.node())
        elif what == "claim":
            held += process.claim(draw.randint(1, 3))
        elif what == "settle" and held:
            delivery = held.pop(draw.randrange(len(held)))
            kinds = [Kind.SUCCEEDED] * 5 + [Kind.DEAD, Kind.RELEASED]
            settled = [Settlement(draw.choice(kinds), delivery, b"1")]
            future = process.send(Op.SETTLE, settled)
            if draw.random() < 0.5:
                process.sync()
                future.result(0)
        elif what == "kill" and draw.random() < 0.3:
            self.gone(process)
        elif what == "power" and draw.random() < 0.2:
            self.power_lost()

    def gone(self, process: Process) -> None:
        process.kill()
        self.processes = [item for item in self.processes if item[0] is not process]

    def power_lost(self) -> None:
        self.world.lose_power()
        self.processes = []

    def drain(self) -> Process:
        for process, _ in self.processes:
            process.kill()
        self.world.machine.stop_at(None)
        self.world.clock.advance(10)
        process = self.world.process()
        while True:
            self.world.clock.advance(1)
            deliveries = process.claim(100)
            if not deliveries:
                return process
            for delivery in deliveries:
                process.settle(delivery, body=b"1")


def check(world: World, process: Process) -> None:
    """Each held job was released at most once, after its inputs; else it was cancelled."""
    ended: dict[int, int] = {}
    died: set[int] = set()
    released: dict[int, int] = {}
    for record in world.records():
        if record.type in (Kind.SUCCEEDED, Kind.DEAD, Kind.CANCELLED):
            assert ended.setdefault(record.job, record.lsn) == record.lsn
            if record.type == Kind.DEAD:
                died.add(record.job)
        elif record.type == Kind.RELEASED and record.cause == str(Cause.INPUTS):
            assert released.setdefault(record.job, record.lsn) == record.lsn
    agenda = process.committer.facets.need_agenda()
    for record in world.records():
        if record.type != Kind.ENQUEUED:
            continue
        ties = look_at_ties(process.committer.sight, record.lsn)
        assert ties is not None
        if record.lsn in released:
            assert all(ended[item] < released[record.lsn] for item in ties.inputs)
        elif ties.inputs and record.lsn not in ended:
            is_dead = ties.policy is Policy.WAIT and not died.isdisjoint(ties.inputs)
            assert is_dead or any(item in agenda.flows.held for item in ties.inputs)
    assert world.fold().need_agenda().flows.held == agenda.flows.held


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_crash_loses_a_step_or_runs_it_early(seed: int) -> None:
    crashing = Crashing(seed)
    for _ in range(STEPS):
        crashing.act()
    check(crashing.world, crashing.drain())
