"""``Agenda``: any history of enqueues, claims, settles, steps of the clock … equals the model's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskq.core.folds import agenda, jobtable, lanes, moments
from taskq.core.folds import moments as timetable
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.claims import GONE
from taskq.core.folds.jobtable import META_EXPIRES, STATE_MASK
from taskq.core.model import State
from taskq.core.rates import RATE_WINDOW_NS_MIN, Limit, Rate
from taskq.core.records import Kind
from tests.core.folds.agenda_model import Job, Model
from tests.effort import grows, some

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.core.folds.lanes import Lane

    Where = tuple[int, str, str, bytes]

QUEUES = ("default", "mail")
TASKS = ("", "a", "b")
ALL = 2**62
EPOCH = 77
PLACES = st.tuples(st.sampled_from((0, 5, 9)), st.sampled_from(QUEUES), st.sampled_from(TASKS))
KEYS = st.sampled_from((b"", b"", b"x", b"yy"))
LANES = st.tuples(st.sampled_from((0, 5, 9)), st.sampled_from(QUEUES), st.sampled_from(TASKS), KEYS)
LIMITS = {"a": Limit(concurrency=2), "b": Limit(rate=Rate(3, RATE_WINDOW_NS_MIN))}
SOME_QUEUES = st.none() | st.frozensets(st.sampled_from(QUEUES))
SOME_TASKS = st.none() | st.frozensets(st.sampled_from(TASKS))
DELAYS = st.integers(-20, 200)
EXPIRIES = st.none() | st.integers(-20, 300)
PICK = st.integers(0, 10_000)


@pytest.fixture(autouse=True, scope="module")
def _small_parts() -> Iterator[None]:
    """Parts so small that a short history splits, tidies and merges them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "_BLOCK", 4)
        patch.setattr(lanes, "_BLOCK", 4)
        patch.setattr(jobtable, "CHUNK", 16)
        patch.setattr(agenda, "STALE_MAX", 4)
        patch.setattr(timetable, "STALE_MAX", 4)
        patch.setattr(agenda, "_SWEEP_EVERY", 2)
        yield


class AgendaMachine(RuleBasedStateMachine):
    """An agenda beside its model; every rule does one thing to both."""

    def __init__(self) -> None:
        super().__init__()
        self.agenda = Agenda()
        self.model = Model()
        self.agenda.ages.window_ns = self.model.window
        self.lsn = 0
        self.promote()

    # -- jobs come ---------------------------------------------------------------------------------

    def lane(self, where: Where) -> Lane:
        priority, queue, task, key = where
        names = bytes((len(queue), len(task))) + queue.encode() + task.encode()
        return self.agenda.queues.lane(priority, names + key)

    def born(self, where: Where, state: State, expires: int | None) -> Job:
        self.lsn += 1
        priority, queue, task, key = where
        job = Job(
            number=self.lsn,
            key=key,
            queue=queue,
            task=task,
            priority=priority,
            state=state,
            expires=None if expires is None else self.model.now + expires,
            expires_is_wall=self.lsn % 2 == 0,
            since=self.model.now - self.model.shift,
        )
        self.agenda.ages.note(job.number, job.since)
        if job.expires is not None and not job.expires_is_wall:
            job.expires -= self.model.shift
        self.model.jobs[job.number] = job
        return job

    def note_expiry(self, job: Job) -> None:
        if job.expires is not None:
            shift = 0 if job.expires_is_wall else self.model.shift
            self.agenda.apply_expiry(job.number, job.expires + shift, job.expires_is_wall)

    @rule(where=LANES, count=st.integers(1, 12), expires=EXPIRIES)
    def enqueue(self, where: Where, count: int, expires: int | None) -> None:
        for _ in range(count):
            job = self.born(where, State.READY, expires)
            meta = 0 if expires is None else META_EXPIRES
            self.agenda.apply_enqueued(job.number, job.number * 3, self.lane(where), meta)
            self.note_expiry(job)

    @rule(where=LANES, count=st.integers(0, 40))
    def enqueue_run(self, where: Where, count: int) -> None:
        first = self.lsn + 1
        jobs = [self.born(where, State.READY, None).number for _ in range(count)]
        self.agenda.apply_enqueued_run(first, [job * 3 for job in jobs], self.lane(where), 0)

    @rule(where=LANES, due=DELAYS, is_wall=st.booleans(), expires=EXPIRIES)
    def schedule(self, where: Where, due: int, is_wall: bool, expires: int | None) -> None:
        job = self.born(where, State.SCHEDULED, expires)
        moment = self.model.now + due
        job.is_wall, job.due = is_wall, moment - (0 if is_wall else self.model.shift)
        meta = 0 if expires is None else META_EXPIRES
        self.agenda.apply_scheduled(
            job.number, job.number * 3, self.lane(where), meta, moment, is_wall
        )
        self.note_expiry(job)

    # -- time goes ---------------------------------------------------------------------------------

    @rule(span=st.integers(0, 150))
    def time_goes(self, span: int) -> None:
        self.model.now += span
        self.promote()

    @rule()
    def promote(self) -> None:
        self.model.promote()
        self.agenda.promote(self.model.now, ALL)
        self.agenda.groups.open_due(self.agenda.moment)

    @rule()
    def learn_the_limits(self) -> None:
        """A worker that has the tasks begins to claim; jobs of theirs may run already."""
        self.agenda.groups.tell(LIMITS, self.agenda.moment)
        self.model.concurrency = {"a": 2}
        self.model.rates = {"b": (3, RATE_WINDOW_NS_MIN)}

    @rule()
    def a_window_goes(self) -> None:
        self.model.now += RATE_WINDOW_NS_MIN
        self.promote()

    @rule(step=st.integers(-300, 300))
    def clock_steps(self, step: int) -> None:
        """Wall time jumps; what was relative moves along."""
        self.model.now += step
        self.model.shift += step
        self.agenda.apply_clock(step)

    @rule(count=st.integers(1, 5))
    def expire(self, count: int) -> None:
        expected = self.model.expired()
        expired: list[int] = []
        while True:
            following = self.agenda.next_expiry_ns()
            if following is None or following > self.model.now:
                break
            expired += self.agenda.expired(self.model.now, count)
        assert sorted(expired) == sorted(expected)
        self.agenda.times.forget_over()
        self._expire(expired)

    def _expire(self, jobs: list[int]) -> None:
        for job in jobs:
            assert self.agenda.apply_ended(Kind.EXPIRED, job)
            self.model.end(job, Kind.EXPIRED)

    # -- claims ------------------------------------------------------------------------------------

    @rule(count=st.integers(0, 15), queues=SOME_QUEUES, tasks=SOME_TASKS, beside=st.booleans())
    def take(
        self,
        count: int,
        queues: frozenset[str] | None,
        tasks: frozenset[str] | None,
        beside: bool,
    ) -> None:
        """Claim jobs; beside expired ones, if those are found, which then end."""
        late: set[int] = set()
        if beside or self.agenda.times.over:
            self.agenda.times.find_over(self.model.now)
            late = self.model.expired()
        expected = self.model.claimable(queues, tasks, late)[:count]
        if tasks is None and not self.model.concurrency:
            assert self.agenda.order.next_ready(count, queues) == expected
        taken = self.agenda.order.take(count, queues, tasks)
        assert [entry[0] for entry in taken] == expected
        passed, self.agenda.order.passed = self.agenda.order.passed, []
        assert late.issuperset(passed)
        self._expire(passed)
        for number, location, attempt, lane, _ in taken:
            self.lsn += 1
            self.model.claim(number, self.lsn)
            self.agenda.running[number] = (self.lsn, EPOCH, 1)
            job = self.model.jobs[number]
            assert (location, attempt) == (number * 3, job.attempt)
            assert (lane.task, lane.concurrency_key) == (job.task, job.key)

    @rule(count=st.integers(1, 20), queues=SOME_QUEUES)
    def look(self, count: int, queues: frozenset[str] | None) -> None:
        """Looking twice shows the same: looking changes nothing; limits it does not know."""
        if self.model.concurrency:
            return
        late: set[int] = set()
        if self.agenda.times.over:  # known to a claim before, and passed over since
            self.agenda.times.find_over(self.model.now)
            late = self.model.expired()
        # Expired jobs are ready: a claim ends them.
        is_ready = bool(self.model.claimable(queues, None))
        assert self.agenda.order.has_ready(queues, None) == is_ready
        expected = self.model.claimable(queues, None, late)[:count]
        assert self.agenda.order.next_ready(count, queues) == expected
        assert self.agenda.order.next_ready(count, queues) == expected

    @precondition(lambda self: self.model.in_state(State.READY))
    @rule(pick=PICK, count=st.integers(1, 9), oldest=st.booleans())
    def another_process_claims(self, pick: int, count: int, oldest: bool) -> None:
        ready = self.model.claimable(None, None) if oldest else self.model.in_state(State.READY)
        for number in ready[0 if oldest else pick % len(ready) :][:count]:
            self.lsn += 1
            self.model.claim(number, self.lsn)
            attempt = self.model.jobs[number].attempt
            assert self.agenda.apply_claimed(number, self.lsn, EPOCH, 2, attempt)
            self.note_rated(number)

    @precondition(lambda self: self.model.in_state(State.SCHEDULED))
    @rule(pick=PICK)
    def another_process_claims_what_waits_here(self, pick: int) -> None:
        """Its clock was ahead before a step back: what the record says happened, happened."""
        waiting = self.model.in_state(State.SCHEDULED)
        number = waiting[pick % len(waiting)]
        self.lsn += 1
        self.model.claim(number, self.lsn)
        attempt = self.model.jobs[number].attempt
        assert self.agenda.apply_claimed(number, self.lsn, EPOCH, 2, attempt)
        self.note_rated(number)

    def note_rated(self, number: int) -> None:
        if self.model.jobs[number].task in self.model.rates:
            self.agenda.apply_rated(number, 3, RATE_WINDOW_NS_MIN)

    # -- jobs go -----------------------------------------------------------------------------------

    @precondition(lambda self: self.model.in_state(State.RUNNING))
    @rule(pick=PICK, count=st.integers(1, 9), kind=st.sampled_from((Kind.SUCCEEDED, Kind.DEAD)))
    def settle(self, pick: int, count: int, kind: Kind) -> None:
        running = self.model.in_state(State.RUNNING)
        for number in running[pick % len(running) :][:count]:
            assert self.agenda.apply_ended(kind, number)
            self.model.end(number, kind)

    @rule(pick=PICK, count=st.integers(0, 20))
    def settle_run(self, pick: int, count: int) -> None:
        running = self.model.in_state(State.RUNNING)
        jobs = running[pick % (len(running) + 1) :][:count]
        settled = self.model.in_state(State.SUCCEEDED)[:2]
        self.agenda.apply_succeeded([*settled, *jobs])
        for number in jobs:
            self.model.end(number, Kind.SUCCEEDED)

    @precondition(lambda self: self.model.in_state(State.RUNNING))
    @rule(
        pick=PICK,
        count=st.integers(1, 9),
        delay=st.just(0) | DELAYS,
        kind=st.sampled_from((Kind.RETRIED, Kind.RELEASED)),
    )
    def give_back(self, pick: int, count: int, delay: int, kind: Kind) -> None:
        running = self.model.in_state(State.RUNNING)
        due = self.model.now + delay if delay > 0 else 0
        for number in running[pick % len(running) :][:count]:
            attempt = self.model.jobs[number].attempt - (kind is Kind.RELEASED)
            assert self.agenda.apply_back(number, attempt, due, self.model.now)
            self.model.back(number, attempt, due)

    @precondition(lambda self: self.model.in_state(State.READY, State.SCHEDULED))
    @rule(pick=PICK, count=st.integers(1, 12))
    def cancel(self, pick: int, count: int) -> None:
        waiting = self.model.in_state(State.READY, State.SCHEDULED)
        for number in waiting[pick % len(waiting) :][:count]:
            assert self.agenda.apply_ended(Kind.CANCELLED, number)
            self.model.end(number, Kind.CANCELLED)

    @precondition(lambda self: self.model.in_state(State.READY, State.SCHEDULED))
    @rule(
        pick=PICK,
        count=st.integers(1, 6),
        where=PLACES,
        due=st.none() | st.just(0) | DELAYS,
        is_wall=st.booleans(),
    )
    def edit(
        self, pick: int, count: int, where: tuple[int, str, str], due: int | None, is_wall: bool
    ) -> None:
        """Jobs that wait, anywhere, wait from now on in another place, or for another moment."""
        waiting = self.model.in_state(State.READY, State.SCHEDULED)
        moment = None if due is None else self.model.now + due
        for number in waiting[pick % len(waiting) :][:count]:
            job = self.model.jobs[number]
            self.model.edit(number, where[0], where[1], moment, is_wall=is_wall)
            lane = self.lane((job.priority, job.queue, job.task, job.key))
            shift = self.model.shift
            when = job.due + (0 if job.is_wall else shift), job.is_wall
            wait = job.state, when, job.since + shift, None
            assert self.agenda.apply_edited(number, number * 3, lane, *wait)
            self.agenda.queues.retire(lane)

    @rule(where=PLACES)
    def block(self, where: tuple[int, str, str]) -> None:
        self.agenda.queues.block(self.lane((*where, b"")), 2)
        self.model.blocked.add(where)

    @rule(where=PLACES)
    def unblock(self, where: tuple[int, str, str]) -> None:
        self.agenda.queues.unblock(self.lane((*where, b"")), 2)
        self.model.blocked.discard(where)

    @rule(pick=PICK)
    def records_of_unknown_jobs_change_nothing(self, pick: int) -> None:
        known = self.model.in_state(State.SCHEDULED, State.READY, State.RUNNING)
        job = pick % (self.lsn + 2)
        if job in known:
            return
        assert not self.agenda.apply_claimed(job, 1, EPOCH, 2, 1)
        assert not self.agenda.apply_back(job, 1, 0, self.model.now)
        assert not self.agenda.apply_ended(Kind.SUCCEEDED, job)
        lane = self.lane((5, "mail", "a", b""))
        assert not self.agenda.apply_edited(job, 1, lane, State.READY, (0, False), 0, None)

    # -- always ------------------------------------------------------------------------------------

    @invariant()
    def counts_equal_a_recount(self) -> None:
        queues = {lane.queue for lane in self.agenda.lanes if lane is not GONE}
        assert self.agenda.queues.stats() == self.model.stats(queues)
        assert self.agenda.queues.any_ready() == bool(self.model.claimable(None, None))

    @invariant()
    def every_job_is_in_its_state(self) -> None:
        for number, job in self.model.jobs.items():
            state = self.model.live_state(number)
            assert self.agenda.table.state(number) is state
            assert self.agenda.attempt(number) == (job.attempt if state else 0)
            if state:
                assert self.agenda.location(number) == number * 3

    @invariant()
    def claims_are_known(self) -> None:
        tokens = {job: claim[0] for job, claim in self.agenda.running.items()}
        assert tokens == {n: self.model.jobs[n].token for n in self.model.in_state(State.RUNNING)}

    @invariant()
    def what_a_sweep_goes_by_is_true(self) -> None:
        """How many entries of the timetable are no stale ones."""
        metas = [chunk.metas[at] for chunk, at in self.agenda.table]
        scheduled = sum(meta & STATE_MASK == State.SCHEDULED for meta in metas)
        expiring = sum(bool(meta & META_EXPIRES) for meta in metas)
        assert (self.agenda._scheduled, self.agenda._expiring) == (scheduled, expiring)

    @invariant()
    def nobody_sleeps_too_long(self) -> None:
        """A waker that sleeps until the next moment is never late; early, it only looks in vain."""
        for promised, true in (
            (self.agenda.next_due_ns(), self.model.next_due()),
            (self.agenda.next_expiry_ns(), self.model.next_expiry()),
            (self.agenda.next_rate_ns(), self.next_rate()),
        ):
            if true is not None:
                assert promised is not None
                assert promised <= true

    def next_rate(self) -> int | None:
        """When the first of the ready jobs of a group that waits for its rate may be claimed."""
        moments = []
        for task, (most, window) in self.model.rates.items():
            waiting = {
                job.key
                for job in self.model.jobs.values()
                if job.task == task and job.state is State.READY
            }
            for key in waiting:
                claims = [claim[2] for claim in self.model.claims if claim[:2] == (task, key)]
                if self.model.room(task, key) <= 0:
                    moments.append(claims[-most] + window + self.model.shift)
        return min(moments, default=None)

    @invariant()
    def lanes_with_a_key_are_there_only_while_a_job_is_in_them(self) -> None:
        live = {
            (job.priority, job.queue, job.task, job.key)
            for job in self.model.jobs.values()
            if job.key and job.state in {State.SCHEDULED, State.READY, State.RUNNING}
        }
        lanes = [lane for lane in self.agenda.lanes if lane.family is not None]
        keyed = {
            (lane.priority, lane.queue, lane.task, lane.concurrency_key)
            for lane in lanes
            if lane.ready or lane.scheduled or lane.running
        }
        assert keyed == live


TestAgenda = AgendaMachine.TestCase
TestAgenda.settings = settings(max_examples=some(20, 100), stateful_step_count=40)
TestAgenda = grows(TestAgenda)
