"""Flows in the log: a held job is released once, after all of its inputs, through crashes."""

from typing import ClassVar, Final

import pytest

from taskq.core.flows import Policy
from taskq.core.model import State
from taskq.core.records import Cause, Kind
from taskq.flows.flow import Node
from taskq.log.read.flows import look_at_ends, look_at_ties
from taskq.log.read.selection import letters
from taskq.log.requests import Op
from tests.effort import grows, some
from tests.log.simulation import Simulation
from tests.log.world import Process, World, chord, fill_segment, items_of, keeping, tend

pytestmark = grows

SEEDS: Final = some(6, 12)
STEPS: Final = 120


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


class Flows(Simulation):
    """Processes that run flows and die at any step."""

    ACTS: ClassVar = {
        "work": 60, "sync": 30, "appear": 10, "kill": 4, "power_loss": 2, "plan_a_crash": 10,
    }  # fmt: skip
    REQUESTS: ClassVar = {"flow": 1, "claim": 3, "settle": 4}

    def check(self) -> None:
        """Each held job was released at most once, after its inputs."""
        self._take_answers()
        self._heal()
        ended: dict[int, int] = {}
        released: dict[int, int] = {}
        process = self.world.process()
        for record in self.world.records():
            if record.type in (Kind.SUCCEEDED, Kind.DEAD, Kind.CANCELLED):
                assert ended.setdefault(record.job, record.lsn) == record.lsn
            elif record.type == Kind.RELEASED and record.cause == str(Cause.INPUTS):
                assert released.setdefault(record.job, record.lsn) == record.lsn
        for job, lsn in released.items():
            ties = look_at_ties(process.committer.sight, job)
            assert ties is not None
            assert all(ended[item] < lsn for item in ties.inputs)
        held = process.catch_up().need_agenda().flows.held
        assert self.world.fold().need_agenda().flows.held == held
        self.counts["released"] += len(released)
        process.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_crash_loses_a_step_or_runs_it_early(seed: int) -> None:
    flows = Flows(seed)
    flows.run(STEPS)
    flows.drain()
    flows.check()
    assert flows.counts["released"]
