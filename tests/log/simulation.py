"""Random processes on a machine that fails at random, and a memory of every answer they gave."""

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias

from taskq.core.controls import Change
from taskq.core.errors import (
    AppendFailed,
    DuplicateKey,
    JobCancelled,
    JobNotFound,
    JobSettled,
    KeyHeld,
    LogError,
    LogFailed,
    NotDead,
    NotWaiting,
    OutcomeUnknown,
    SourceMoved,
    StaleDelivery,
    TaskqError,
)
from taskq.core.flows import Policy
from taskq.core.folds.claims import GONE
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.model import SECOND_NS, Conflict, Durability, Extras, State
from taskq.core.rates import Limit
from taskq.core.records import Cause, Flag, Kind
from taskq.core.sources import Move
from taskq.flows.flow import Chain, Node, Parallel
from taskq.log.commit.answers import NOWAIT
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.decide.enqueue import Run, paired
from taskq.log.decide.steps import NewSignal, NewStep
from taskq.log.format.codec import FLAGS_AT
from taskq.log.read.jobs import JobFilter
from taskq.log.read.selection import letters, waiting_page
from taskq.log.requests import (
    Bundle,
    Cancel,
    ClaimRequest,
    Delivery,
    Done,
    Duplicate,
    EnqueueSpec,
    Enrolment,
    Ingest,
    Op,
    Outcome,
    Request,
    Settlement,
    Turn,
    Withdrawal,
)
from taskq.log.upkeep.upkeep import Upkeep
from tests.log.reference import Job, Reference
from tests.log.world import (
    Process,
    World,
    check_same,
    items_of,
    leaf,
    some_edit,
    step,
    tend_a_while,
)
from tests.machine.crashable import PowerLost, ProcessKilled

#: A request, and what its answer means.
Made: TypeAlias = "tuple[Op, Any, Callable[[Any], None]]"
Item: TypeAlias = "tuple[EnqueueSpec, bytes, Extras | None]"


@dataclass(slots=True)
class Memory:
    #: lsn -> its promised meaning: a job with this body, or a claim of that job
    meanings: dict[int, tuple[str, object]] = field(default_factory=dict)
    durable: set[int] = field(default_factory=set)
    settled: dict[int, tuple[State, bytes | None]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    #: bodies that belong together -> whether the group was acknowledged
    groups: dict[tuple[bytes, ...], bool] = field(default_factory=dict)
    #: children -> the claim that they were enqueued with
    children: dict[tuple[bytes, ...], int] = field(default_factory=dict)
    free_claims: set[int] = field(default_factory=set)
    run_once: set[int] = field(default_factory=set)
    #: running jobs that somebody asked to cancel, and those whose asker was answered
    doubted: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    #: jobs that somebody asked to requeue or purge: of their end nothing is promised any more
    reborn: set[int] = field(default_factory=set)
    #: confirmed requeues of each job
    requeued: Counter[int] = field(default_factory=Counter)
    purged: set[int] = field(default_factory=set)
    #: titles of the steps of each job that are done
    steps: dict[int, list[str]] = field(default_factory=dict)
    #: source -> the farthest position that an answer named
    positions: Counter[str] = field(default_factory=Counter)

    def end(self, lsn: int, state: State, body: bytes | None) -> None:
        if lsn in self.reborn:
            return
        assert lsn not in self.ended, "settled twice"
        self.ended.add(lsn)
        self.know(lsn, state, body)

    def know(self, lsn: int, state: State, body: bytes | None) -> None:
        if lsn in self.reborn:
            return
        assert self.settled.setdefault(lsn, (state, body)) == (state, body), "two outcomes"

    def cancel(self, lsn: int, answer: Cancel) -> None:
        if answer is Cancel.WITHDRAWN:
            self.end(lsn, State.CANCELLED, None)
        elif answer is Cancel.ASKED and lsn not in self.reborn:
            self.asked.add(lsn)

    def may_live_again(self, lsn: int) -> None:
        """Somebody asks to requeue or purge a job."""
        self.reborn.add(lsn)
        self.asked.discard(lsn)
        self.settled.pop(lsn, None)
        self.ended.discard(lsn)
        self.run_once.discard(lsn)

    def forgive(self, reference: Reference) -> None:
        """A power loss took what was never promised to survive one."""
        self.durable &= reference.jobs.keys()
        self.steps.clear()
        self.groups = dict.fromkeys(self.groups, False)
        self.settled = {
            lsn: ended
            for lsn, ended in self.settled.items()
            if lsn in self.durable
            and (reference.jobs[lsn].state, reference.jobs[lsn].result) == ended
        }
        self.ended &= self.settled.keys()
        self.asked = {lsn for lsn in self.asked if stays_cancelled(reference.jobs.get(lsn))}
        self.requeued &= reference.requeues
        self.purged &= reference.purged
        self.positions.clear()

    def mean(self, lsn: int, what: str, value: object) -> None:
        assert self.meanings.setdefault(lsn, (what, value)) == (what, value), f"lsn {lsn}"


def stays_cancelled(job: Job | None) -> bool:
    """Return whether a running job that was cancelled can never run again."""
    return job is not None and (job.asked or job.state in (State.CANCELLED, State.SUCCEEDED))


QUEUES: Final = ("default", "other", "third")
#: A claim of one key after the other.
KEYS: Final = (b"", b"a", b"b", b"c" * 40)
_PROCESSES_MAX: Final = 3
SPECS: Final = [
    EnqueueSpec(queue, task, priority, attempts, flags=flags)
    for queue, task, priority, attempts, flags in (
        ("default", "mail.send", 5, 5, 0), ("default", "mail.send", 5, 2, 0),
        ("default", "mail.send", 9, 0, 0), ("default", "mail.send", 5, 1, 0),
        ("other", "mail.send", 5, 3, 0), ("other", "mail.send", 0, 3, 0),
        ("third", "x", 7, 1, int(Flag.DROP_RESULT)),
    )
]  # fmt: skip
_TIED: Final = Flag.KEY_UNTIL_SETTLED | Flag.FLOW
_ENDS: Final = {Kind.SUCCEEDED: State.SUCCEEDED, Kind.DEAD: State.DEAD}
_STEADY: Final = LogConfig(
    segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=200, reserve_bytes=20_000, keep_seconds=None
)


class Simulation:
    """One run; every draw comes from the seed.

    Attributes:
        ACTS: what happens, methods by name, and how often.
        REQUESTS: what processes ask for, and how often.
        clock_steps: seconds by which the clock may be set.
        limits: of tasks, which all claims know.
    """

    ACTS: ClassVar = {
        "work": 30, "tend": 15, "sync": 12, "rest": 2, "pass_time": 6, "appear": 3, "kill": 2,
        "power_loss": 1, "plan_a_crash": 2, "check": 1,
    }  # fmt: skip
    REQUESTS: ClassVar = {
        "enqueue": 22, "enqueue_run": 4, "enqueue_many": 4, "claim": 20, "settle": 20,
        "settle_soon": 10, "cancel": 4, "watch": 4, "transact": 4, "extend": 4, "requeue": 4,
        "purge": 1, "pause": 2, "steer": 1, "withdraw": 1, "edit": 6, "step": 12, "signal": 8,
        "ingest": 4, "tick": 10,
    }  # fmt: skip
    clock_steps: tuple[int, ...] = (-4, -3_600, 3_600, -60, 60, 10**8, -(10**8))
    limits: Mapping[str, Limit] | None = None
    #: how often a planned crash is one of the power
    power = 0.6

    def __init__(
        self, seed: int, durability: Durability = Durability.FSYNC, *, config: LogConfig = _STEADY,
        steps_of_clock: bool = False, faults: bool = False,
    ) -> None:  # fmt: skip
        self.chance = random.Random(seed)
        self.world = World(seed, replace(config, durability=durability))
        self.memory = Memory()
        self.processes: list[Process] = []
        self.cares: dict[Process, Upkeep] = {}
        self.held: dict[Process, list[Delivery]] = {}
        self.old: list[Delivery] = []
        self.pending: list[tuple[Process, Future[Any], Callable[[Any], None]]] = []
        self.counts: Counter[str] = Counter()
        self.acts: dict[str, int] = dict(self.ACTS)
        self.requests: dict[str, int] = dict(self.REQUESTS)
        self.acts |= {"step_clock": 1} if steps_of_clock else {}
        self.acts |= {"fault": 2} if faults else {}
        self._faults = faults
        self._steps_of_clock = steps_of_clock
        self._is_durable = durability is Durability.FSYNC
        self._compacts = config is not _STEADY
        self._bodies = 0
        self._believed: dict[str, bytes] = {}
        self._turns: list[Turn] = []
        self._is_failed = False
        self._may_have_lost = False

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.act()
        self.calm()
        self.power_loss()
        self.check()

    # -- what happens -----------------------------------------------------------------------------

    def act(self) -> None:
        self.safely(getattr(self, self._draw(self.acts)))

    def _draw(self, weights: Mapping[str, int]) -> str:
        return self.chance.choices(list(weights), list(weights.values()))[0]

    def safely(self, act: Callable[[], None]) -> None:
        """Do something in the course of which the power may fail, or a process be killed."""
        try:
            if not self.processes or self._is_failed:
                self.appear()
                self._is_failed = False
            if self.processes:
                act()
        except PowerLost:
            self.counts["power lost in a step"] += 1
            self._everything_is_gone()
            self._cut_recovery_short()
            self.check()
        except ProcessKilled:
            self.counts["killed in a step"] += 1
            for process in [dead for dead in self.processes if dead.disk.is_dead]:
                self._bury(process)
            self.check()
        self._take_answers()

    def appear(self) -> None:
        if len(self.processes) < _PROCESSES_MAX:
            try:
                process = self.world.process()
            except (OSError, LogError):
                assert self._faults
                self.counts["not opened"] += 1
                return
            self.processes.append(process)
            self.held[process], self.cares[process] = [], self._care(process)

    def _care(self, process: Process) -> Upkeep:
        care = Upkeep(process.committer)
        care._snapshots._log_bytes_min, care._snapshots._state_parts = 3_000, 10**6
        if not self._compacts:  # on a full disk, either
            care._lacks_room = lambda **_: False  # type: ignore[method-assign]
        return care

    def work(self) -> None:
        process = self.chance.choice(self.processes)
        if self.chance.random() < 0.3:
            self._work_alone(process, self._request(process))
            return
        count = self.chance.choice((1, 1, 1, 2, 5))
        process.commit([self._request(process) for _ in range(count)])

    def ask(self) -> None:
        process = self.chance.choice(self.processes)
        process.commit([self._request(process)])
        process.sync()

    def tend(self) -> None:
        process = self.chance.choice(self.processes)
        with contextlib.suppress(LogError):
            process.catch_up()
        tend_a_while(process, self.cares[process], self.chance.choice((1, 1, 2, 5, 30)))

    def _work_alone(self, process: Process, request: Request) -> None:
        """Commit a request as a caller does, whom a signal handler may raise at; else send it."""
        if not process.commit_alone(request, self.chance.choice((0, 0, 1, 2, 3, 5, 8, 13, 21))):
            process.commit([request])
            return
        self.counts["commits of callers"] += 1
        if not request[2].done():
            self.counts["interrupted commits"] += 1
            self.pending = [asked for asked in self.pending if asked[1] is not request[2]]

    def sync(self) -> None:
        self.chance.choice(self.processes).sync()

    def rest(self) -> None:
        with contextlib.suppress(OSError, LogError):
            self.chance.choice(self.processes).rest()

    def pass_time(self) -> None:
        self.world.clock.advance(self.chance.choice((0.001, 1, 7, 60, 3_600)))

    def step_clock(self) -> None:
        self.world.clock.step(self.chance.choice(self.clock_steps))

    def kill(self) -> None:
        self._bury(self.chance.choice(self.processes))

    def restart(self) -> None:
        self.kill()
        self.appear()

    def plan_a_crash(self) -> None:
        """Stop within the next disk accesses: power, or whichever process is at it then."""
        step = self.world.machine.steps + self.chance.choice((1, 2, 3, 5, 8, 13, 21))
        self.world.machine.stop_at(step, power=self.chance.random() < self.power)

    def power_loss(self) -> None:
        self.world.machine.lose_power()
        self._everything_is_gone()
        self.check()

    def fault(self) -> None:
        """The disk is full, or short, or fails, or is well again."""
        machine = self.world.machine
        kind = self.chance.choice(("full", "short", "sync", "well", "well"))
        machine.free = self.chance.choice((0, 50, 300, 5_000)) if kind == "full" else None
        machine.shorten = (lambda size: max(size // 2, 1)) if kind == "short" else None
        if kind == "sync":
            machine.fail_next_syncs()
        self.counts[f"disk {kind}"] += 1

    def calm(self) -> None:
        self._heal()
        self.world.process().close()
        for process in list(self.processes):
            process.commit([])
            process.sync()
        self._take_answers()

    def drain(self) -> None:
        """Let one process go on until every job has ended."""
        self._heal()
        for process in list(self.processes):
            self._bury(process)
        process = self.world.process()
        for name in QUEUES:
            process.ask(Op.RESUME, name)
        for task in {spec.task for spec in SPECS}:
            process.ask(Op.CONTROL, Change(f"task:{task}", {"paused": None}))
        claim = ClaimRequest(50, None, None, 0, 0, self.limits)
        for _ in range(600):
            agenda = process.catch_up().need_agenda()
            if not agenda.table.live:
                break
            for delivery in process.ask(Op.CLAIM, claim):
                process.settle(delivery)
            # A waiter for a signal waits for ever, and a waiter for a dead letter until it is gone.
            for job in list(agenda.steps.waits):
                process.ask(Op.CANCEL, job)
            process.ask(Op.PURGE, [row[0] for row in agenda.dead.rows(0, 999)])
            self.world.clock.advance(30)
        assert not agenda.table.live, dict(agenda.flows.held)
        assert not agenda.flows.held
        assert not agenda.flows.todo
        assert not agenda.leases.asked
        assert not any(lane.family for lane in agenda.lanes if lane is not GONE)

    def _heal(self) -> None:
        machine = self.world.machine
        machine.free = machine.shorten = None
        machine.fail_next_syncs(0)
        machine.stop_at(None)

    def _cut_recovery_short(self) -> None:
        self.plan_a_crash()
        try:
            self.world.process().close()
        except PowerLost:
            self._everything_is_gone()
        except ProcessKilled:
            self.counts["recoveries cut short"] += 1
        except (OSError, LogError):
            assert self._faults

    def _bury(self, process: Process) -> None:
        process.kill()
        self.processes.remove(process)
        self._forget(process)
        self.pending = [entry for entry in self.pending if entry[0] is not process]
        self.counts["killed"] += 1

    def _everything_is_gone(self) -> None:
        self.world.everyone_is_gone(self.chance.choice((1, 60, 7_200)))
        for process in list(self.processes):
            self._forget(process)
        self.processes.clear()
        self.pending.clear()
        self.counts["power lost"] += 1
        self._may_have_lost = not self._is_durable

    def _forget(self, process: Process) -> None:
        """Leave half done what a process did that is gone."""
        self.old += self.held.pop(process)
        steps = self.cares.pop(process)._steps
        if steps is not None:
            with contextlib.suppress(PowerLost, ProcessKilled, LogError):
                steps.close()

    # -- requests and their answers ---------------------------------------------------------------

    def _request(self, process: Process) -> Request:
        make = getattr(self, f"_{self._draw(self.requests)}")
        op, operand, accept = make(process)
        if op in NOWAIT:
            return op, None, None, operand
        if op is Op.ENQUEUE_RUN:
            return op, None, operand, operand
        future: Future[Any] = Future()
        self.pending.append((process, future, accept))
        return op, None, future, operand

    def _item(self) -> Item:
        self._bodies += 1
        filler = self.chance.choice((0, 0, 0, 10, 500, 6_000))
        body = b"%d" % self._bodies + b"." * filler
        return self.chance.choice(SPECS), body, self._extras()

    def _extras(self) -> Extras | None:
        now = self.world.clock.wall_ns()
        key = b"key %d" % self.chance.randrange(4)
        seconds = self.chance.choice((1, 60, 3_600)) * SECOND_NS
        return self.chance.choice((
            None, None, None, None, Extras(key=key), Extras(key=key, window_ns=seconds),
            Extras(key=key, window_ns=seconds, until_settled=True, on_conflict=Conflict.REPLACE),
            Extras(key=key, window_ns=seconds, on_conflict=Conflict.REPLACE),
            Extras(key=key, on_conflict=self.chance.choice((Conflict.REPLACE, Conflict.RAISE))),
            Extras(concurrency_key=self.chance.choice(KEYS)),
            Extras(due_ns=seconds), Extras(due_ns=now + seconds, due_is_wall=True),
            Extras(expires_ns=seconds), Extras(headers={"a": "b"}),
            Extras(expires_ns=now + seconds, expires_is_wall=True),
        ))  # fmt: skip

    def _enqueue(self, _: Process) -> Made:
        item = self._item()
        return Op.ENQUEUE, item, lambda answer: self._enqueued(item, answer)

    def _enqueued(self, item: Item, answer: Any) -> None:
        if isinstance(answer, Duplicate):
            assert item[2] is not None
            assert item[2].key is not None
            self.counts["duplicates"] += 1
            lsn = answer.lsn
        else:
            lsn = answer
            self.memory.mean(lsn, "job", item[1])
            self.counts["jobs"] += 1
        self.memory.durable.add(lsn)

    def _enqueue_run(self, process: Process) -> Made:
        count = self.chance.choice((1, 3, 12, 30))
        specs = sorted(self.chance.choices(SPECS, k=count), key=SPECS.index)
        items = [self._in_line(each, *self._item()[1:]) for each in specs]
        futures: list[Future[Any]] = [Future() for _ in items]
        for item, future in zip(items, futures, strict=True):
            if self.chance.random() < 0.05:
                future.cancel()
            else:
                self.pending.append((process, future, partial(self._enqueued, item)))
        kinds = [(extras and (spec, extras)) or spec for spec, _, extras in items]
        run = Run(kinds, [body for _, body, _ in items], futures)
        return Op.ENQUEUE_RUN, run, lambda _: None

    def _in_line(self, spec: EnqueueSpec, body: bytes, extras: Extras | None) -> Item:
        """Half of the jobs without options, as they come in turns of one loop."""
        is_odd = self.chance.random() < 0.5 and isinstance(paired(spec, extras), tuple)
        return spec, body, extras if is_odd else None

    def _enqueue_many(self, _: Process) -> Made:
        items = [self._item() for _ in range(self.chance.choice((2, 3, 8)))]
        group = tuple(body for _, body, extras in items if extras is None or extras.key is None)
        self.memory.groups[group] = False

        def accept(answers: list[Any]) -> None:
            for item, answer in zip(items, answers, strict=True):
                self._enqueued(item, answer)
            self.memory.groups[group] = True

        return Op.ENQUEUE_MANY, items, accept

    def _flow(self, _: Process) -> Made:
        items = items_of(self._node())
        for item in items:
            item[2].concurrency_key = self.chance.choice(KEYS)

        def accept(jobs: list[int]) -> None:
            self.memory.durable.update(jobs)
            self.counts["flows"] += len(jobs) > 1

        return Op.ENQUEUE_MANY, items, accept

    def _node(self, depth: int = 0) -> Node:
        if depth > 2 or self.chance.random() < 0.3:
            return leaf()
        policy = self.chance.choice(list(Policy))
        if self.chance.random() < 0.5:
            members = tuple(self._node(depth + 1) for _ in range(self.chance.randint(0, 4)))
            return Chain((Parallel(members), step()), policy)
        return Chain((self._node(depth + 1), step(), self._node(depth + 1)), policy)

    def _ingest(self, _: Process) -> Made:
        """The next lines of a source, as somebody does who last heard of it a while ago."""
        source = self.chance.choice(("a", "b"))
        before = self._believed.get(source, b"")
        line = int(before or 0)
        after = line + self.chance.choice((0, 1, 2, 5))
        items: list[Item] = [
            (self.chance.choice(SPECS), f"{source} {number}".encode(), None)
            for number in range(line, after)
        ]

        def accept(answers: list[Any]) -> None:
            for item, answer in zip(items, answers, strict=True):
                self._enqueued(item, answer)
            self._heard_of(source, after)
            self.counts["ingests"] += 1

        return Op.INGEST, Ingest(Move(source, b"%d" % after, before), items), accept

    def _tick(self, process: Process) -> Made:
        """Ticks of a schedule for each second, from a look that may be old by now."""
        state = process.catch_up().need_agenda().schedules.get("ticks")
        if state is None:
            return Op.ENROL, [Enrolment("ticks", b"every 1", b"{}")], lambda _: None
        first_ns, now_ns = state.done_ns + SECOND_NS, self.world.clock.wall_ns()
        moments = tuple(range(first_ns, now_ns + 1, SECOND_NS)[: self.chance.choice((1, 3))])
        if moments:
            extras = self.chance.choice((None, Extras(concurrency_key=b"a")))
            items = tuple((SPECS[0], b"tick %d" % moment, extras) for moment in moments)
            self._turns.append(Turn("ticks", state.done_ns, moments[-1], moments, items))
        if not self._turns:
            return self._enqueue(process)
        turn = self.chance.choice(self._turns[-4:])

        def accept(answers: list[Any] | None) -> None:
            for item, answer in zip(turn.items, answers or (), strict=answers is not None):
                self._enqueued(item, answer)
            self.memory.positions["ticks"] = max(
                self.memory.positions["ticks"], turn.done_ns if answers else 0
            )
            self.counts["ticks"] += len(answers or ())

        return Op.TICK, turn, accept

    def _heard_of(self, source: str, position: int) -> None:
        self._believed[source] = b"%d" % position
        self.memory.positions[source] = max(self.memory.positions[source], position)

    def _claim(self, process: Process) -> Made:
        queues = self.chance.choice((None, None, frozenset({"default"})))
        lease_ns = self.chance.choice((0, 0, 5, 60, 7_200)) * SECOND_NS
        count = self.chance.choice((1, 2, 10, 40))
        request = ClaimRequest(count, queues, None, 0, lease_ns, self.limits)

        def accept(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                # A lease may be over before its holder hears of the claim.
                assert lease_ns or delivery.job not in self.memory.settled, (
                    "settled jobs stay settled"
                )
                self.memory.mean(delivery.job, "job", delivery.payload)
                self.memory.mean(delivery.token, "claim", delivery.job)
                if queues is None:
                    self.memory.free_claims.add(delivery.token)
                if delivery.attempts_max == 1 and delivery.job not in self.memory.reborn:
                    assert delivery.job not in self.memory.run_once, "a single attempt ran twice"
                    self.memory.run_once.add(delivery.job)
            self.held[process] += deliveries
            self.counts["claims"] += len(deliveries)
            self._claimed(process, deliveries)

        return Op.CLAIM, request, accept

    def _claimed(self, process: Process, deliveries: list[Delivery]) -> None:
        """Somebody has an answer to a claim."""

    def _settle(self, process: Process) -> Made:
        mine = self.held[process]
        if not mine and not self.old:
            return self._enqueue(process)
        is_old = not mine or (self.old and self.chance.random() < 0.05)
        pool = self.old if is_old else mine
        delivery = pool.pop(self.chance.randrange(len(pool)))
        item = self._settlement(delivery)
        if item.kind is Kind.RELEASED:
            # Others may claim it before the answer is out.
            self.memory.run_once.discard(delivery.job)

        def accept(answers: list[Any]) -> None:
            if isinstance(answers[0], Exception):
                assert isinstance(answers[0], StaleDelivery), repr(answers[0])
                self.counts["stale"] += 1
                return
            self.counts["settled"] += 1
            if item.kind in _ENDS and self._is_as_told(item):
                self.memory.end(delivery.job, _ENDS[item.kind], item.body)
            for child, lsn in zip(item.children, answers[0] or (), strict=True):
                self._enqueued(child, lsn)

        return Op.SETTLE, [item], accept

    def _is_as_told(self, item: Settlement) -> bool:
        return item.kind is Kind.SUCCEEDED or item.delivery.job not in self.memory.doubted

    def _transact(self, process: Process) -> Made:
        mine = self.held[process] or self.old
        cancels = [job for job in (self._some_job(), self._some_job()) if job is not None]
        if not mine or not cancels:
            return self._claim(process)
        self.memory.doubted.update(cancels)
        delivery = mine.pop(0)
        self._bodies += 1
        item = Settlement(Kind.SUCCEEDED, delivery, b"end %d" % self._bodies)
        items = [self._item(), (self.chance.choice(SPECS), self._item()[1], None)]
        self.memory.children[tuple(body for _, body, x in items if not x or not x.key)] = item[1][2]

        def accept(done: Done) -> None:
            self.memory.end(delivery.job, State.SUCCEEDED, item.body)
            for job, is_cancelled in zip(cancels, done.cancelled, strict=True):
                self.memory.cancel(job, is_cancelled)
            for wanted, answer in zip(items, done.jobs, strict=True):
                self._enqueued(wanted, answer)
            self.counts["transactions"] += 1

        return Op.TRANSACT, Bundle((item,), tuple(cancels), tuple(items)), accept

    def _step(self, process: Process) -> Made:
        pool = self.held[process] or self.old
        if not pool:
            return self._claim(process)
        # Mostly the claim that was made last, which holds, and the signals that come to it.
        delivery = pool[-1] if self.chance.random() < 0.8 else self.chance.choice(pool)
        form = self.chance.choice((*list(Form)[:4], Form.EVENT, Form.EVENT))
        self._bodies += 1
        name = self.chance.choice(("paid", "sent")) if form is Form.EVENT else "do"
        new = NewStep(delivery, form, name, self._bodies, b"%d" % self._bodies)

        def accept(step: Any) -> None:
            if step is not None:
                self.memory.steps.setdefault(delivery.job, []).append(step.title)
                self.counts[f"step: {Form(step.form).name}"] += 1

        return Op.STEP, new, accept

    def _signal(self, process: Process) -> Made:
        mine = self.held[process]
        # Mostly a running one: it may ask for the signal.
        running = mine[-1].job if mine and self.chance.random() < 0.8 else None
        job = running or self._some_job()
        if job is None:
            return self._claim(process)
        once = self.chance.choice(("", "", "a", "b"))
        new = NewSignal(job, self.chance.choice(("paid", "sent")), b"{}", once)
        return Op.SIGNAL, new, lambda _: self.counts.update(("signals",))

    def _extend(self, process: Process) -> Made:
        pool = self.held[process] or self.old
        if not pool:
            return self._claim(process)
        lease_ns = self.chance.choice((5, 60)) * SECOND_NS
        return Op.EXTEND, (self.chance.choice(pool), lease_ns), lambda _: None

    def _settle_soon(self, process: Process) -> Made:
        mine = self.held[process]
        if not mine:
            return self._claim(process)
        count = min(len(mine), self.chance.choice((1, 3, 9, 30)))

        def on_error(_: Settlement, error: TaskqError) -> None:
            assert isinstance(error, StaleDelivery) or self._faults, repr(error)
            assert isinstance(error, (StaleDelivery, LogFailed)), repr(error)
            self.counts["stale"] += 1

        if self.chance.random() < 0.5:
            free = [delivery for delivery in mine[:count] if not delivery.record[FLAGS_AT] & _TIED]
            if free:
                self.held[process] = [delivery for delivery in mine if delivery not in free]
                return Op.SUCCEED_NOWAIT, (free, on_error), lambda _: None
        items = [
            Settlement(Kind.SUCCEEDED, mine.pop(0))
            if self.chance.random() < 0.7
            else self._settlement(mine.pop(0))
            for _ in range(count)
        ]
        for item in items:
            if item.kind is Kind.RELEASED:
                self.memory.run_once.discard(item.delivery.job)

        return Op.SETTLE_NOWAIT, (items, on_error), lambda _: None

    def _settlement(self, delivery: Delivery) -> Settlement:
        last = delivery.attempts_max and delivery.attempt >= delivery.attempts_max
        kind = self.chance.choice((Kind.SUCCEEDED, Kind.SUCCEEDED, Kind.RELEASED, Kind.DEAD))
        if not last and self.chance.random() < 0.3:
            kind = Kind.RETRIED
        self._bodies += 1
        is_plain = kind is Kind.SUCCEEDED and self.chance.random() < 0.3
        body = None if is_plain else b"end %d" % self._bodies
        cause = Cause.EXHAUSTED
        if kind is Kind.RELEASED:
            cause = self.chance.choice((Cause.DRAIN, Cause.SNOOZE, Cause.CALLER, Cause.WAITS))
        if cause is Cause.WAITS:
            until_ns = self.world.clock.wall_ns() + self.chance.choice((-5, 5, 60)) * SECOND_NS
            form = self.chance.choice((Form.EVENT, Form.SLEEP))
            forever = form is Form.EVENT and self.chance.random() < 0.3
            waits = [Wait(form, "paid" * (form is Form.EVENT), 1, 0 if forever else until_ns)]
            if self.chance.random() < 0.3:
                waits.append(Wait(Form.EVENT, "sent", 1))
            return Settlement(kind, delivery, pack_waits(waits), 0, cause)
        children: tuple[Item, ...] = ()
        if kind is Kind.SUCCEEDED and self.chance.random() < 0.4:
            children = tuple((self.chance.choice(SPECS), self._item()[1], None) for _ in range(2))
            self.memory.children[tuple(child for _, child, _ in children)] = delivery.token
        delay = self.chance.choice((0, 0, 30 * SECOND_NS)) if kind not in _ENDS else 0
        return Settlement(kind, delivery, body, delay, cause, children)

    def _some_job(self) -> int | None:
        jobs = sorted(self.memory.durable)
        return self.chance.choice(jobs[-12:]) if jobs else None

    def _cancel(self, process: Process) -> Made:
        job = self._some_job()
        if job is None:
            return self._enqueue(process)

        self.memory.doubted.add(job)

        def accept(answer: Cancel) -> None:
            self.memory.cancel(job, answer)
            self.counts[f"cancel: {answer.name}"] += 1

        return Op.CANCEL, job, accept

    def _watch(self, process: Process) -> Made:
        job = self._some_job()
        if job is None:
            return self._enqueue(process)

        def accept(outcome: Outcome) -> None:
            self.memory.know(job, outcome.state, outcome.body)
            self.counts["outcomes"] += 1

        return Op.OUTCOME, job, accept

    def _dead(self, process: Process) -> list[int]:
        agenda = process.catch_up().need_agenda()
        dead = [chunk.ids[index] for chunk, index in agenda.dead]
        if not dead:
            return []
        count = min(len(dead), self.chance.choice((1, 1, 3, 9)))
        return sorted(self.chance.sample(dead, count))

    def _requeue(self, process: Process) -> Made:
        jobs = self._dead(process)
        result = letters(process.committer.sight, jobs).items
        if not result:
            return self._enqueue(process)
        for job in jobs:
            self.memory.may_live_again(job)

        def accept(answers: list[TaskqError | None]) -> None:
            for letter, answer in zip(result, answers, strict=True):
                if answer is None:
                    self.memory.requeued[letter.job] += 1
                    self.counts["requeued"] += 1
                else:
                    assert isinstance(answer, NotDead | KeyHeld), repr(answer)
                    self.counts["requeue refused"] += 1

        return Op.REQUEUE, result, accept

    def _edit(self, process: Process) -> Made:
        """Return a job that waits where somebody looked, and may be claimed or changed by now."""
        wish = some_edit(process, self.chance, [name.encode() for name in QUEUES])
        if wish is None:
            return self._enqueue(process)

        def accept(answer: bool | None) -> None:
            self.counts[f"edit: {answer}"] += 1

        return Op.EDIT, wish, accept

    def _purge(self, process: Process) -> Made:
        jobs = self._dead(process)
        if not jobs:
            return self._enqueue(process)
        for job in jobs:
            self.memory.may_live_again(job)

        def accept(answers: list[TaskqError | None]) -> None:
            for job, answer in zip(jobs, answers, strict=True):
                if answer is None:
                    self.memory.purged.add(job)
                    self.counts["purged"] += 1
                else:
                    assert isinstance(answer, NotDead), repr(answer)

        return Op.PURGE, jobs, accept

    def _steer(self, process: Process) -> Made:
        """Pause or resume a task, or limit it."""
        paused = sorted(process.catch_up().need_agenda().queues.paused_tasks)
        resumes = bool(paused) and self.chance.random() < 0.8
        task = self.chance.choice(paused if resumes else [spec.task for spec in SPECS])
        self.counts["pauses of tasks"] += not resumes
        return (
            Op.CONTROL,
            Change(f"task:{task}", {"paused": None if resumes else True}),
            lambda _: None,
        )

    def _pause(self, process: Process) -> Made:
        paused = sorted(process.catch_up().need_agenda().queues.paused)
        if paused and self.chance.random() < 0.8:
            return Op.RESUME, self.chance.choice(paused), lambda _: None
        self.counts["pauses"] += 1
        return Op.PAUSE, self.chance.choice(QUEUES), lambda _: None

    def _withdraw(self, process: Process) -> Made:
        process.catch_up()
        wanted = JobFilter(queue=self.chance.choice(QUEUES))
        result = waiting_page(process.committer.sight, wanted, 0, 2**62, 50).items
        jobs = result[: self.chance.choice((1, 2, 4))]
        if not jobs:
            return self._enqueue(process)

        def accept(done: list[int]) -> None:
            assert set(done) <= set(jobs)
            for job in done:
                self.memory.end(job, State.CANCELLED, None)
            self.counts["withdrawn"] += len(done)

        cause = self.chance.choice((Cause.CALLER, Cause.PURGE))
        return Op.WITHDRAW, Withdrawal(jobs, cause), accept

    def _take_answers(self) -> None:
        waiting = []
        for process, future, accept in self.pending:
            if not future.done():
                waiting.append((process, future, accept))
                continue
            error = future.exception(0)
            if error is None:
                accept(future.result(0))
            elif isinstance(error, JobNotFound):
                assert self.memory.reborn or self._compacts, "a job is gone"
                self.counts["purged jobs asked for"] += 1
            elif isinstance(error, (StaleDelivery, JobCancelled, JobSettled)):
                self.counts["stale"] += 1
            elif isinstance(error, NotWaiting | KeyHeld) or "waits within its run" in str(error):
                self.counts["edit: refused"] += 1
            elif isinstance(error, (SourceMoved, DuplicateKey)):
                self._learn_from(error)
            else:
                assert self._faults, f"{error!r} for no reason"
                assert isinstance(error, (AppendFailed, OutcomeUnknown, LogFailed)), repr(error)
                self.counts[type(error).__name__] += 1
                # Somebody has to open the log again.
                self._is_failed = self._is_failed or isinstance(error, LogFailed)
        self.pending = waiting

    def _learn_from(self, error: SourceMoved | DuplicateKey) -> None:
        """Records named by a refusal are durable."""
        if isinstance(error, DuplicateKey):
            self.counts["refused keys"] += 1
            if error.job_id:
                self.memory.durable.add(int(error.job_id.rpartition("-")[2]))
            return
        self.counts["ingests refused"] += 1
        self._believed.pop(error.source, None)
        if error.position is not None:
            self._heard_of(error.source, int(str(error.position)))

    # -- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        """Open the log once more, and hold every promise against its records."""
        self._take_answers()
        self._heal()
        if self.world.machine.find("/srv/data") is None and not self.memory.durable:
            return
        opener = self.world.process()
        memory = self.memory
        if self.world.config.durability is Durability.OS and self.world.has_gap():
            # An fsync failed, its process was killed before it could mark it, and power was lost.
            self.world.fold()
            opener.close()
            self.counts["gaps"] += 1
            return
        records = self.world.records()
        reference = Reference.of(
            records, memory.free_claims.__contains__, may_fall=self._steps_of_clock
        )
        for lsn, (what, value) in memory.meanings.items():
            if what == "job" and lsn in reference.jobs:
                assert reference.jobs[lsn].body == value, "an id names another job"
            elif lsn in reference.claims:
                assert ("claim", reference.claims[lsn]) == (what, value), "a token of two claims"
        if self._may_have_lost:
            memory.forgive(reference)
            self._may_have_lost = False
        self._check_promises(reference)
        now = self.world.clock.wall_ns()
        reference.check(self.world.fold(), now)
        for process in self.processes:
            if not self._faults:
                reference.check(process.catch_up(), now)
        opener.close()
        self._check_snapshots(self._steps_of_clock)
        self.counts["checks"] += 1

    def _check_snapshots(self, loosely: bool) -> None:
        if self.world.machine.find("/srv/data/taskq.json") is not None:
            behind, total = check_same(self.world, loosely=loosely)
            self.counts["folds that began with snapshots"] += behind < total

    def _check_promises(self, reference: Reference) -> None:
        memory = self.memory
        bodies = Counter(job.body for job in reference.jobs.values())
        assert not bodies or max(bodies.values()) == 1, "a job came twice"
        for lsn in memory.durable:
            assert lsn in reference.jobs, f"acknowledged job {lsn} is gone"
        for lsn, (state, body) in memory.settled.items():
            job = reference.jobs[lsn]
            assert (job.state, job.result) == (state, body), f"outcome of {lsn} changed"
        for lsn in memory.asked:
            assert stays_cancelled(reference.jobs[lsn]), "a cancelled job may run again"
        for lsn, times in memory.requeued.items():
            assert reference.requeues[lsn] >= times, f"a requeue of {lsn} is lost"
        assert memory.purged <= reference.purged, "a purged job is back"
        for group, acknowledged in memory.groups.items():
            there = sum(bodies[body] for body in group)
            whole = there == len(group)
            assert there == 0 or whole, "a part of a transaction"
            assert whole or not acknowledged, "a transaction is gone"
        for source in ("a", "b"):
            position = int(reference.sources.get(source, 0))
            assert position >= memory.positions[source], f"a position of {source} is lost"
            lines = sum(body.startswith(source.encode() + b" ") for body in bodies)
            assert lines == position, "lines are missing, or beyond the position"
        ticks = [int(body[5:]) for body in bodies if body.startswith(b"tick ")]
        assert max(ticks, default=0) >= memory.positions["ticks"], "a tick is lost"
        last = max(ticks, default=-SECOND_NS)
        assert sorted(ticks) == [*range(min(ticks, default=0), last + 1, SECOND_NS)]
        for lsn, titles in memory.steps.items():
            done = set(reference.jobs[lsn].steps) if lsn in reference.jobs else set()
            assert done >= set(titles) or lsn not in memory.durable, "a step is lost"
        succeeded = {job.token for job in reference.jobs.values() if job.state is State.SUCCEEDED}
        for group, token in memory.children.items():
            there = sum(bodies[body] for body in group)
            assert there == (len(group) if token in succeeded else 0), "children without parent"
