"""Flows, limits, cancels and compaction in one history: all processes agree, and all jobs end.

A process that only reads, and so knows no limits, must agree with processes that decide under
limits, fold a compacted log, or begin with a snapshot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import pytest

from taskq.core.flows import Policy
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.claims import GONE
from taskq.core.folds.freeze import freeze_agenda, thaw_agenda
from taskq.core.folds.jobtable import STATE_MASK
from taskq.core.model import SECOND_NS, WAITING_STATES, Conflict, Extras, State
from taskq.core.rates import Limit, Rate
from taskq.core.records import Cause, Kind
from taskq.flows.flow import Chain, Parallel
from taskq.log.commit import chores as errand
from taskq.log.requests import (
    ClaimRequest,
    Delivery,
    EnqueueSpec,
    Enrolment,
    Op,
    Settlement,
    Steer,
    Turn,
    Withdrawal,
)
from taskq.log.state.facets import Facets
from taskq.log.upkeep import snapshots
from taskq.log.upkeep.snapshots import SnapshotPolicy
from tests.core.frozen import Columns
from tests.effort import grows, some
from tests.log.flowing import items_of, leaf, step
from tests.log.mix import ACTS, CONFIGS, REFUSED, Mix, said
from tests.log.tending import FILLER
from tests.log.world import Process
from tests.machine.crashable import ProcessKilled

HOUR_NS: Final = 3_600 * SECOND_NS
#: A killed process's half-done work cannot be closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
LIMITS: Final = {
    "mail.send": Limit(concurrency=3),
    "x": Limit(concurrency=2, rate=Rate(4, 60 * SECOND_NS)),
    "part": Limit(rate=Rate(3, 20 * SECOND_NS)),
    "step": Limit(concurrency=1),
}
KEYS: Final = (b"", b"a", b"b", b"c" * 40)
TICKED: Final = "every so often"


class LimitedMix(Mix):
    """One history."""

    def __init__(self, seed: int, *, locked: bool) -> None:
        super().__init__(seed, CONFIGS[seed % 3], locked=locked)
        #: (task, key) -> moments of its claims
        self.claims: dict[tuple[str, bytes], list[int]] = {}
        self.observer.ask(Op.ENROL, [Enrolment(TICKED, b"rule", b"{}")])

    def join(self) -> None:
        super().join()
        _, care = self.tended[-1]
        care._snapshots._policy = SnapshotPolicy(3_000, 10**6)

    def act(self) -> None:
        number = self.random.randrange(100)
        if number < 60:
            with contextlib.suppress(*REFUSED):
                super().act()
            return
        acts: dict[Callable[[Process], object], int] = {
            self.put_keyed: 12, self.put_flow: 6, self.withdraw: 1, self.tick: 2, self.claim: 12,
            self.settle: 12, self.cancel: 4, self.crash: 1, self.steer: 1,
        }  # fmt: skip
        (act,) = self.random.choices(list(acts), list(acts.values()))
        with contextlib.suppress(*REFUSED):
            act(self.random.choice(self.tended)[0])
        self.observer.catch_up()

    def put_keyed(self, process: Process) -> None:
        pick = self.random
        extras = Extras(concurrency_key=pick.choice(KEYS))
        if pick.random() < 0.3:
            extras.expires_ns = pick.randrange(1, 2_000) * SECOND_NS
        if pick.random() < 0.2:
            extras.due_ns = pick.randrange(1, 900) * SECOND_NS
        if pick.random() < 0.2:
            extras.key = b"%d" % pick.randrange(3)
            extras.on_conflict = pick.choice(list(Conflict))
        spec = EnqueueSpec(
            pick.choice(["default", "other"]),
            pick.choice(["mail.send", "x"]),
            pick.choice([0, 5]),
            pick.choice([0, 2]),
        )
        answer = process.offer(b"{}", extras, spec)
        if isinstance(answer, int):
            self.jobs.append(answer)

    def put_flow(self, process: Process) -> None:
        pick = self.random
        policy = pick.choice(list(Policy))
        members = Parallel(tuple(leaf() for _ in range(pick.choice([1, 2, 4]))))
        node = Chain(
            (members, step(), Parallel((step(), step())), step())[: pick.randrange(2, 5)], policy
        )
        items = []
        for spec, body, extras in items_of(node):
            extras.concurrency_key = pick.choice(KEYS)
            if pick.random() < 0.2:
                extras.expires_ns = pick.randrange(100, 2_000) * SECOND_NS
            items.append((spec, body, extras))
        self.jobs += process.ask(Op.ENQUEUE_MANY, items)

    def claim(self, process: Process) -> None:
        lease_ns = self.random.choice([0, 0, 500]) * SECOND_NS
        request = ClaimRequest(
            self.random.randrange(1, 9), wait_until_ns=0, lease_ns=lease_ns, limits=dict(LIMITS)
        )
        result = process.ask(Op.CLAIM, request)
        self.held += [(process, item) for item in result]
        agenda = self.observer.catch_up().need_agenda()
        moment = process.committer.facets.need_agenda().moment
        for item in result:
            limit = LIMITS[item.lane.task]
            key = item.lane.task, item.lane.concurrency_key
            if limit.rate is not None:
                moments = self.claims.setdefault(key, [])
                moments.append(moment)
                recent = [at for at in moments if at > moment - limit.rate.window_ns]
                assert len(recent) <= limit.rate.count, key
        check_running(agenda)

    def fill(self, process: Process) -> None:
        segment = process.journal.segment
        for _ in range(60):
            process.enqueue(FILLER)
            self.claim(process)
            self.settle(process)
            if process.journal.segment != segment:
                return

    def withdraw(self, process: Process) -> None:
        agenda = process.catch_up().need_agenda()
        jobs = [job for job in self.jobs if agenda.table.state(job) in WAITING_STATES]
        some = self.random.sample(jobs, min(3, len(jobs)))
        process.ask(Op.WITHDRAW, Withdrawal(some, Cause.PURGE))

    def tick(self, process: Process) -> None:
        agenda = process.catch_up().need_agenda()
        state = agenda.schedules[TICKED]
        now_ns = self.world.clock.wall_ns()
        item = (EnqueueSpec("default", "x"), b"{}", Extras(concurrency_key=b"a"))
        self.world.clock.advance(1)
        answer = process.ask(Op.TICK, Turn(TICKED, state.done_ns, now_ns, (now_ns,), (item,)))
        self.jobs += answer or []

    def steer(self, process: Process) -> None:
        process.ask(Op.STEER, Steer(TICKED, self.random.choice(["pause", "resume", "resume"])))

    def crash(self, process: Process) -> None:
        machine = self.world.machine
        machine.stop_at(machine.steps + self.random.choice([1, 2, 3, 5]), power=False)
        try:
            self.claim(process)
            self.put_flow(process)
            self.settle(process)
        except ProcessKilled:
            machine.stop_at(None)  # joining ones go on
            for number, (item, care) in enumerate(self.tended):
                if item.disk.is_dead:
                    self.tended.pop(number)
                    if care._steps is not None:
                        with contextlib.suppress(ProcessKilled):
                            care._steps.close()
                    self.held = [held for held in self.held if held[0] is not item]
                    item.kill()
                    self.join()
                    break
        finally:  # also where one of these was refused
            machine.stop_at(None)

    def check(self, when: str) -> None:
        super().check(when)
        seen = self.observer.catch_up()
        time_ns, step_ns = self.observer.journal.log_time()
        now_ns = time_ns - step_ns
        wanted = all_of(seen, now_ns)
        folded = all_of(self.world.fold(), now_ns)
        for name, value in wanted.items():
            assert folded[name] == value, f"{when}: {name}"
        for process, _ in self.tended:
            # Only processes that know the limits know the next jobs.
            assert all_of(process.catch_up(), now_ns) | {"next": wanted["next"]} == wanted, when
        agenda = thaw_agenda(Columns(freeze_agenda(seen.need_agenda())))
        assert parts_of(agenda, now_ns) == parts_of(seen.need_agenda(), now_ns), when
        for item in (
            agenda,
            *(process.committer.facets.need_agenda() for process, _ in self.tended),
        ):
            check_lanes(item)

    def drain(self) -> None:
        process, _ = self.tended[0]
        process.ask(Op.RESUME, "other")
        for _ in range(600):
            agenda = process.catch_up().need_agenda()
            if not agenda.table.live:
                break
            for owner, delivery in self.held:
                owner.ask(Op.SETTLE, [success(delivery)])
            self.held.clear()
            # A waiter for a signal waits for ever, and a waiter for a dead letter until it is gone.
            for job in list(agenda.steps.waits):
                process.ask(Op.CANCEL, job)
            process.ask(Op.PURGE, [row[0] for row in agenda.dead.rows(0, 999)])
            self.world.clock.advance(30)
            request = ClaimRequest(50, wait_until_ns=0, limits=LIMITS)
            self.held = [(process, delivery) for delivery in process.ask(Op.CLAIM, request)]
        agenda = process.catch_up().need_agenda()
        assert not agenda.table.live, dict(agenda.flows.held)
        assert not agenda.flows.held
        assert not agenda.flows.todo
        assert not agenda.leases.asked
        assert not any(lane.family for lane in agenda.lanes if lane is not GONE)


def success(delivery: Delivery) -> Any:
    return Settlement(Kind.SUCCEEDED, delivery)


def all_of(facets: Facets, now_ns: int) -> dict[str, Any]:
    return {**said(facets, now_ns), **parts_of(facets.need_agenda(), now_ns)}


def parts_of(agenda: Agenda, now_ns: int) -> dict[str, Any]:
    shift_ns = agenda.times.shift_ns
    return {
        "held": dict(agenda.flows.held),
        "todo": set(agenda.flows.todo),
        "rates": {
            key: ([(at + shift_ns, count) for at, count in times.pairs()], times.most)
            for key, times in agenda.groups.rows(now_ns - shift_ns)
        },
        "keyed": sorted(lane.key for lane in agenda.lanes if lane.family is not None),
    }


def check_running(agenda: Agenda) -> None:
    counts: dict[tuple[str, bytes], int] = {}
    for lane in agenda.lanes:
        if lane is not GONE:
            place = lane.task, lane.concurrency_key
            counts[place] = counts.get(place, 0) + lane.running
    for (task, key), count in counts.items():
        limit = LIMITS[task]
        assert not limit.concurrency or count <= limit.concurrency, (task, key)


def check_lanes(agenda: Agenda) -> None:
    counts: dict[int, list[int]] = {}
    for chunk, at in agenda.table:
        counts.setdefault(chunk.lanes[at], [0] * 8)[chunk.metas[at] & STATE_MASK] += 1
    for number, lane in enumerate(agenda.lanes):
        if lane is GONE:
            assert number not in counts
            continue
        assert lane.number == number
        row = counts.get(lane.number, [0] * 8)
        states = row[State.SCHEDULED], row[State.READY], row[State.RUNNING]
        assert states == (lane.scheduled, lane.ready, lane.running), lane.key
        entry = lane if lane.family is None else lane.family
        stands = entry in agenda.queues.ready[lane.priority]
        if lane.family is not None:
            stands = stands and lane in lane.family.ready
        assert stands == (lane.ready > 0 and not lane.blocked), lane.key
    for group in agenda.groups._groups.values():
        assert group.running == sum(lane.running for lane in group.lanes), group.key
        assert all(lane.group is group for lane in group.lanes)


def history(seed: int) -> None:
    mix = LimitedMix(seed, locked=seed % 5 == 0)
    for number in range(ACTS):
        mix.act()
        if not number % 60:
            mix.check(f"act {number}")
    for _ in mix.tended:
        mix.tend(400)
    mix.check("at the end")
    mix.drain()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that does one in a millisecond."""
    monkeypatch.setattr(errand, "STEPS_MAX", 1)
    monkeypatch.setattr(snapshots, "_PATIENCE_BYTES", 1_000)


@grows
@pytest.mark.parametrize("seed", range(some(2, 100)))
def test_flows_limits_and_cancels_are_the_same_to_all_and_all_ends(seed: int) -> None:
    history(seed)
