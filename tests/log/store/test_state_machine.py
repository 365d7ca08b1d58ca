"""Random operations by several processes, with crashes: after every step the log equals a model."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from taskq.core.errors import KeyHeld
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Cause, Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.inbox.adopter import Adopter
from taskq.log.read.selection import letters
from taskq.log.requests import Duplicate, EnqueueSpec, Op
from tests.effort import grows, some
from tests.log.store.jobmodel import ATTEMPTS, Model, ModelJob, later
from tests.log.tending import FILLER, keeping, tend
from tests.log.uploading import adopt as adopt_all
from tests.log.uploading import order, publish, step, write_part
from tests.log.world import Process, World
from tests.machine.crashable import CrashableDisk, PowerLost, ProcessKilled

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.core.folds.agenda import Agenda
    from taskq.log.requests import Delivery

QUEUES = ("mail", "sync")
SPECS = {
    (queue, priority): EnqueueSpec(queue, "task", priority, ATTEMPTS)
    for queue in QUEUES
    for priority in (2, 5)
}
FILL = EnqueueSpec("fill", "task", 9, 1)
#: What an operation writes.
TRACES = {
    Op.ENQUEUE: {Kind.ENQUEUED},
    Op.SETTLE: {Kind.SUCCEEDED, Kind.RETRIED, Kind.DEAD, Kind.CANCELLED},
    Op.CANCEL: {Kind.CANCELLED, Kind.CANCEL_ASKED},
    Op.REQUEUE: {Kind.REQUEUED},
    Op.PURGE: {Kind.PURGED},
}
PICK = st.integers(0, 10**6)
SECONDS = st.sampled_from([0, 0, 5, 100])


def config() -> LogConfig:
    """Small segments, few of them, and no ageing, which would change the order of claims."""
    chosen = keeping(keep_bytes=3 * SEGMENT_BYTES_MIN, keep_seconds=None)
    names = {one.name for one in fields(chosen)}
    changes: dict[str, Any] = dict.fromkeys(names & {"starvation_seconds"})
    return replace(chosen, **changes)


class LogMachine(RuleBasedStateMachine):
    """Up to three processes on one simulated machine, and what they must agree on."""

    @initialize()
    def begin(self) -> None:
        self.world = World(config=config())
        self.model = Model()
        self.processes: list[Process] = []
        self.held: dict[int, Delivery] = {}
        self.bodies = self.uploads = 0
        #: payloads of published jobs that are not in the log yet, with their queues
        self.published: list[tuple[bytes, str]] = []
        self.appear()

    # -- processes come and go --------------------------------------------------------------------

    @precondition(lambda self: len(self.processes) < 3)
    @rule()
    def appear(self) -> None:
        process = self.world.process()
        process.catch_up()
        self.processes.append(process)

    @precondition(lambda self: len(self.processes) > 1)
    @rule(pick=PICK)
    def kill(self, pick: int) -> None:
        """Kill -9 between two operations."""
        self._bury(self._process(pick))

    @rule()
    def lose_power(self) -> None:
        """Everything acknowledged is there; a claim may be lost, and with it its attempt."""
        self.world.lose_power(1)
        self._all_are_gone()
        self._learn_of_claims()
        self.appear()

    @rule(seconds=st.sampled_from([1, 30, 400]))
    def pass_time(self, seconds: int) -> None:
        self.world.clock.advance(seconds)

    @rule(pick=PICK)
    def compact(self, pick: int) -> None:
        """Fill segments until some are due, and let them go."""
        process = self._process(pick)
        self._tick()
        segment = process.journal.segment
        while process.journal.segment == segment:
            process.enqueue(FILLER, spec=FILL)
        for delivery in self._drain(process):
            process.settle(delivery)
        tend(process)

    # -- operations -------------------------------------------------------------------------------

    @rule(
        pick=PICK, queue=st.sampled_from(QUEUES), priority=st.sampled_from([2, 5]), delay=SECONDS,
        expires=st.sampled_from([0, 0, 0, 200]), key=st.sampled_from([None, None, b"a", b"b"]),
        window=SECONDS, crash=st.integers(0, 60), power=st.booleans(),
    )  # fmt: skip
    def put(
        self, pick: int, queue: str, priority: int, delay: int, expires: int, key: bytes | None,
        window: int, crash: int, power: bool,
    ) -> None:  # fmt: skip
        process = self._process(pick)
        now_ns = self._tick()
        self.bodies += 1
        body = b"%d" % self.bodies
        window_ns = window * SECOND_NS if key else 0
        extras = Extras(
            due_ns=delay * SECOND_NS, expires_ns=expires * SECOND_NS, key=key, window_ns=window_ns
        )
        holder = self.model.holder(queue, key, now_ns)
        item = (SPECS[queue, priority], body, extras)

        def happens(answer: Any) -> None:
            if holder is not None:
                assert answer == Duplicate(holder)
                return
            state = State.SCHEDULED if delay else State.READY
            self.model.put(
                ModelJob(
                    answer, queue, priority, body, key, window_ns, state, later(now_ns, delay),
                    later(now_ns, expires),
                ),
                now_ns,
            )  # fmt: skip

        self._do(process, Op.ENQUEUE, item, happens, crash, power, lambda: self._lsn_of(body))

    @rule(pick=PICK, count=st.integers(1, 3))
    def claim(self, pick: int, count: int) -> None:
        process = self._process(pick)
        self._tick()
        expected = self.model.claim(count, process.peers.owner)
        deliveries = process.claim(count)
        assert [one.job for one in deliveries] == expected
        for one in deliveries:
            assert one.payload == self.model.jobs[one.job].body
            assert one.attempt == self.model.jobs[one.job].attempt
        self.held.update((one.job, one) for one in deliveries)

    @precondition(lambda self: self.held)
    @rule(
        pick=PICK, kind=st.sampled_from([Kind.SUCCEEDED, Kind.RETRIED, Kind.DEAD]), delay=SECONDS,
        crash=st.integers(0, 60), power=st.booleans(),
    )  # fmt: skip
    def settle(self, pick: int, kind: Kind, delay: int, crash: int, power: bool) -> None:
        job, delivery = list(self.held.items())[pick % len(self.held)]
        del self.held[job]
        owner = self.model.jobs[job].owner
        process = next(one for one in self.processes if one.peers.owner == owner)
        now_ns = self._tick()
        from taskq.log.requests import Settlement  # noqa: PLC0415 - beside its only use

        settlement = Settlement(kind, delivery, b"why", delay * SECOND_NS, Cause.EXHAUSTED)

        def happens(answer: Any) -> None:
            assert answer == [None]
            if kind is Kind.SUCCEEDED:
                self.model.succeed(job)
            elif kind is Kind.DEAD:
                self.model.die(job, b"why")
            else:
                self.model.retry(job, later(now_ns, delay))

        self._do(process, Op.SETTLE, [settlement], happens, crash, power, lambda: [None])

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK, job=PICK, crash=st.integers(0, 60), power=st.booleans())
    def cancel(self, pick: int, job: int, crash: int, power: bool) -> None:
        process = self._process(pick)
        lsn = list(self.model.jobs)[job % len(self.model.jobs)]
        self._tick()

        def happens(answer: Any) -> None:
            assert answer == self.model.cancel(lsn)

        answer = deepcopy(self.model).cancel(lsn)
        self._do(process, Op.CANCEL, lsn, happens, crash, power, lambda: answer)

    @rule(pick=PICK, job=PICK, again=st.booleans(), crash=st.integers(0, 60), power=st.booleans())
    def bring_out_your_dead(
        self, pick: int, job: int, again: bool, crash: int, power: bool
    ) -> None:
        """Requeue a dead letter, or purge it."""
        now_ns = self._tick()
        dead = [one.lsn for one in self.model.jobs.values() if one.state is State.DEAD]
        if not dead:
            return
        process, lsn = self._process(pick), dead[job % len(dead)]
        process.commit([])
        process.catch_up()

        def happens(answer: Any) -> None:
            if not again:
                self.model.purge(lsn)
            else:
                assert isinstance(answer[0], KeyHeld) != self.model.requeue(lsn, now_ns)

        operand = letters(process.committer.sight, [lsn]).items if again else [lsn]
        free = deepcopy(self.model).requeue(lsn, now_ns)
        answer = [None] if free or not again else [KeyHeld("", "")]
        op = Op.REQUEUE if again else Op.PURGE
        self._do(process, op, operand, happens, crash, power, lambda: answer)

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 4))
    def upload(self, queue: str, count: int) -> None:
        """Publish jobs, as somebody who has the log not open; nothing is in it yet."""
        self._tick()
        bodies = [b"up %d.%d" % (self.uploads, number) for number in range(count)]
        disk = CrashableDisk(self.world.machine)
        part = write_part(disk, bodies, spec=SPECS[queue, 5], alone=True)
        assert publish(self.world, f"stream@{self.uploads}", [part], disk)
        self.uploads += 1
        self.published += [(body, queue) for body in bodies]

    @precondition(lambda self: self.published)
    @rule(pick=PICK, steps=st.integers(1, 30), crash=st.integers(0, 60), power=st.booleans())
    def adopt(self, pick: int, steps: int, crash: int, power: bool) -> None:
        """Adopt some of it; one time in two the process or its machine dies within it."""
        process, machine, now_ns = self._process(pick), self.world.machine, self._tick()
        adopter = Adopter(process.committer)
        order(adopter)
        if crash <= 30:
            machine.stop_at(machine.steps + crash, power=power)
        try:
            for _ in range(steps):
                step(process, adopter)
            process.sync()
            adopter.close()
        except (PowerLost, ProcessKilled):
            self._died(process, power)
        machine.stop_at(None)
        if not self.processes:
            self.appear()
        # Whoever was killed has synced nothing; what is learned here must not be lost later.
        self.processes[0].journal.refresh()
        self.processes[0].journal.sync()
        self._learn_of_uploads(now_ns)
        self._learn_of_claims()

    @rule(pick=PICK, queue=st.sampled_from(QUEUES))
    def pause(self, pick: int, queue: str) -> None:
        self._tick()
        assert self._process(pick).ask(Op.PAUSE, queue) == (queue not in self.model.paused)
        self.model.paused.add(queue)

    @rule(pick=PICK, queue=st.sampled_from(QUEUES))
    def resume(self, pick: int, queue: str) -> None:
        self._tick()
        assert self._process(pick).ask(Op.RESUME, queue) == (queue in self.model.paused)
        self.model.paused.discard(queue)

    # -- inside -----------------------------------------------------------------------------------

    def _do(
        self, process: Process, op: Op, operand: Any, happens: Callable[[Any], None], crash: int,
        power: bool, would_answer: Callable[[], Any],
    ) -> None:  # fmt: skip
        """Carry an operation out; one time in two the process or its machine dies within it."""
        machine = self.world.machine
        start_lsn = self.world.reader().next_lsn
        if crash <= 30:
            machine.stop_at(machine.steps + crash, power=power)
        try:
            answer = process.ask(op, operand)
        except (PowerLost, ProcessKilled):
            self._died(process, power)
            if any(lsn >= start_lsn for lsn in self._traces(op)):
                # It is in the log, though nobody was told: all of it, or nothing.
                happens(would_answer())
            if power:
                self._learn_of_claims()
            if not self.processes:
                self.appear()
            return
        machine.stop_at(None)
        happens(answer)

    def _died(self, process: Process, power: bool) -> None:
        self.world.machine.stop_at(None)
        if power:
            self.world.everyone_is_gone(1)
            self._all_are_gone()
        else:
            self._bury(process)

    def _learn_of_uploads(self, now_ns: int) -> None:
        """What is in the log of what was published: the first so many, each once."""
        births = [one for one in self.world.records() if one.kind == Kind.ENQUEUED]
        while self.published:
            body, queue = self.published[0]
            found = [one.lsn for one in births if one.body == body]
            if not found:
                break
            assert len(found) == 1, "a job came twice"
            del self.published[0]
            self.model.put(ModelJob(found[0], queue, 5, body, None, 0, State.READY, 0, 0), now_ns)

    def _traces(self, op: Op) -> set[int]:
        """Return the records that an operation of this kind leaves."""
        return {record.lsn for record in self.world.records() if record.kind in TRACES[op]}

    def _tick(self) -> int:
        """A second passes; whoever commits next finds what has become due, and who died."""
        self.world.clock.advance(1)
        now_ns = self.world.clock.wall_ns()
        self.model.tick(now_ns)
        return now_ns

    def _process(self, pick: int) -> Process:
        return self.processes[pick % len(self.processes)]

    def _drain(self, process: Process) -> list[Delivery]:
        for queue in QUEUES:
            process.ask(Op.PAUSE, queue)
        deliveries = process.claim(4_000)
        for queue in set(QUEUES) - self.model.paused:
            process.ask(Op.RESUME, queue)
        return deliveries

    def _bury(self, process: Process) -> None:
        process.kill()
        self.processes.remove(process)
        owner = process.peers.owner
        self.model.lost.add(owner)
        self.held = {
            job: one for job, one in self.held.items() if self.model.jobs[job].owner != owner
        }

    def _all_are_gone(self) -> None:
        self.model.lost |= {process.peers.owner for process in self.processes}
        self.processes.clear()
        self.held.clear()

    def _learn_of_claims(self) -> None:
        """A claim is not synced: after a loss of power the job may be as it was before."""
        agenda = self.world.fold().need_agenda()
        agenda.promote(self.world.clock.wall_ns(), 10**9)
        for job in self.model.jobs.values():
            if agenda.table.state(job.lsn) is State.READY and agenda.attempt(job.lsn) < job.attempt:
                job.state, job.owner, job.attempt = State.READY, 0, agenda.attempt(job.lsn)
                assert not job.asked, "what was asked for is gone, and its claim with it"

    def _lsn_of(self, body: bytes) -> int:
        found = [one.lsn for one in self.world.records() if one.body == body and one.lsn == one.job]
        return found[-1]

    @invariant()
    def the_log_equals_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        now_ns = self.world.clock.wall_ns()
        for process in self.processes:
            # Who was killed between writing a frame and noting its end left it to the next writer.
            process.journal.lock()
            process.journal.unlock()
        for facets in [self.world.fold(), *(process.catch_up() for process in self.processes)]:
            agenda = facets.need_agenda()
            agenda.promote(now_ns, 10**9)
            said, meant = _said(agenda), _meant(self.model, agenda, now_ns)
            assert said == meant

    def teardown(self) -> None:
        """Every job is what the log tells of it, or is not kept any more."""
        if not hasattr(self, "model"):
            return
        now_ns = self._tick()
        if self.processes:
            self.processes[0].commit([])
            adopt_all(self.processes[0])
            self.processes[0].sync()
            self._learn_of_uploads(now_ns)
            assert not self.published, "a published job is gone"
        for job in self.model.jobs.values():
            view = self.world.view(job.lsn)
            if view is None:
                assert job.state not in {State.READY, State.SCHEDULED, State.RUNNING, State.DEAD}
                continue
            assert view.state is job.state, (view, job)
            assert view.attempt == job.attempt
            assert view.payload == job.body


Said = dict[int, tuple[State, int]]


def _said(agenda: Agenda) -> tuple[Said, set[int], set[int]]:
    """Live jobs with their attempts, who runs, and dead letters."""
    live = {
        chunk.ids[at]: (agenda.table.state(chunk.ids[at]), agenda.attempt(chunk.ids[at]))
        for chunk, at in list(agenda.table)
        if agenda.lanes[chunk.lanes[at]].queue != FILL.queue
    }
    return live, set(agenda.running), {chunk.ids[at] for chunk, at in agenda.dead}


def _meant(model: Model, agenda: Agenda, now_ns: int) -> tuple[Said, set[int], set[int]]:
    live: Said = {}
    for job in model.jobs.values():
        state = job.state
        if state is State.SCHEDULED and job.due_ns <= now_ns:
            state = State.READY
        if state is State.EXPIRED and agenda.table.state(job.lsn) is not State.ABSENT:
            state = agenda.table.state(job.lsn)  # no batch has recorded it yet
        if state in {State.DEAD, State.CANCELLED} and agenda.table.state(job.lsn) is State.RUNNING:
            state = State.RUNNING  # nobody has found its worker dead yet
        if state is State.READY and agenda.table.state(job.lsn) is State.RUNNING and not job.owner:
            state = State.RUNNING
        if state in {State.SCHEDULED, State.READY, State.RUNNING}:
            live[job.lsn] = (state, job.attempt)
    running = {lsn for lsn, (state, _) in live.items() if state is State.RUNNING}
    dead = {
        job.lsn for job in model.jobs.values() if job.state is State.DEAD and job.lsn not in live
    }
    return live, running, dead


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    print_blob=True,
    max_examples=some(11, 50),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLogMachine = grows(pytest.mark.timeout(240)(TestLogMachine))
