"""``Agenda``: any history of enqueues, claims, settles, steps of the clock … equals the model's."""

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskq.core.folds.agenda import Agenda
from taskq.core.folds.claims import GONE
from taskq.core.folds.freeze import freeze_agenda, thaw_agenda
from taskq.core.folds.jobtable import META_EXPIRES, STATE_MASK
from taskq.core.folds.lanes import Lane
from taskq.core.model import LIVE_STATES, PRIORITY_MAX, State
from taskq.core.rates import RATE_WINDOW_NS_MIN, Limit, Rate
from taskq.core.records import Kind
from taskq.core.views import QueueStats
from tests.core.folds.test_freeze import Columns
from tests.effort import grows, some

pytestmark = pytest.mark.usefixtures("small_parts")

Where = tuple[int, str, str, bytes]


@dataclass(slots=True, kw_only=True)
class Job:
    """One job of the model. ``due`` is shifted time unless ``is_wall``."""

    number: int
    queue: str
    task: str
    priority: int
    key: bytes = b""
    state: State
    attempt: int = 0
    due: int = 0
    is_wall: bool = False
    #: None: never; in shifted time unless ``expires_is_wall``
    expires: int | None = None
    expires_is_wall: bool = True
    token: int = 0
    #: shifted time since when it is ready
    since: int = 0


@dataclass(slots=True)
class Model:
    jobs: dict[int, Job] = field(default_factory=dict)
    blocked: set[tuple[int, str, str]] = field(default_factory=set)
    #: jobs of a task and key that may run at a time
    concurrency: dict[str, int] = field(default_factory=dict)
    #: (claims, window) of a task and key
    rates: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: (task, key, shifted time) of each claim that counted against a rate
    claims: list[tuple[str, bytes, int]] = field(default_factory=list)
    now: int = 1_000_000
    shift: int = 0
    #: waiting longer, a job rises one level for each
    window: int = 64

    def in_state(self, *states: State) -> list[int]:
        return [job.number for job in self.jobs.values() if job.state in states]

    def is_due(self, job: Job) -> bool:
        return job.due <= (self.now if job.is_wall else self.now - self.shift)

    def promote(self) -> None:
        for job in self.jobs.values():
            if job.state is State.SCHEDULED and self.is_due(job):
                job.state = State.READY
                job.since = max(job.due - (self.shift if job.is_wall else 0), 0)

    def level(self, job: Job) -> int:
        waited = max(self.now - self.shift - job.since, 0)
        return min(job.priority + waited // self.window, PRIORITY_MAX)

    def claimable(
        self, queues: frozenset[str] | None, tasks: frozenset[str] | None,
        without: Collection[int] = (),
    ) -> list[int]:  # fmt: skip
        ready = [
            job
            for job in self.jobs.values()
            if job.state is State.READY
            and job.number not in without
            and (job.key or (job.priority, job.queue, job.task) not in self.blocked)
            and (queues is None or job.queue in queues)
            and (tasks is None or job.task in tasks)
        ]
        ready.sort(key=lambda job: (-self.level(job), job.number))
        rooms: dict[tuple[str, bytes], int] = {}
        allowed = []
        for job in ready:
            group = job.task, job.key
            room = rooms.setdefault(group, self.room(*group))
            if room > 0:
                rooms[group] = room - 1
                allowed.append(job.number)
        return allowed

    def room(self, task: str, key: bytes) -> int:
        """Return how many more jobs of the group may be claimed now."""
        running = sum(
            job.state is State.RUNNING and (job.task, job.key) == (task, key)
            for job in self.jobs.values()
        )
        room = self.concurrency.get(task, 10**9) - running
        if task in self.rates:
            most, window = self.rates[task]
            since = self.now - self.shift - window
            recent = [
                claim for claim in self.claims if claim[:2] == (task, key) and claim[2] > since
            ]
            room = min(room, most - len(recent))
        return room

    def claim(self, number: int, token: int) -> None:
        job = self.jobs[number]
        if job.task in self.rates:
            self.claims.append((job.task, job.key, self.now - self.shift))
        job.state, job.token = State.RUNNING, token
        job.attempt += 1

    def back(self, number: int, attempt: int, due: int) -> None:
        job = self.jobs[number]
        job.attempt, job.expires = attempt, None
        job.state, job.since = State.READY, self.now - self.shift
        if due > self.now:
            job.state, job.due, job.is_wall = State.SCHEDULED, due - self.shift, False

    def edit(
        self, number: int, priority: int, queue: str, due: int | None, *, is_wall: bool
    ) -> None:
        job = self.jobs[number]
        job.priority, job.queue = priority, queue
        if due is None:
            return
        if due > self.now:
            job.state, job.due = State.SCHEDULED, due - (0 if is_wall else self.shift)
            job.is_wall = is_wall
        elif job.state is State.SCHEDULED:
            job.state, job.since = State.READY, self.now - self.shift

    def end(self, number: int, kind: Kind) -> None:
        ends = {
            Kind.SUCCEEDED: State.SUCCEEDED,
            Kind.DEAD: State.DEAD,
            Kind.CANCELLED: State.CANCELLED,
            Kind.EXPIRED: State.EXPIRED,
        }
        self.jobs[number].state = ends[kind]

    def expiry(self, job: Job) -> int | None:
        if job.expires is None or job.expires_is_wall:
            return job.expires
        return job.expires + self.shift

    def expired(self) -> set[int]:
        passed = [
            job
            for job in self.jobs.values()
            if job.state in LIVE_STATES
            and (moment := self.expiry(job)) is not None
            and moment <= self.now
        ]
        return {job.number for job in passed if job.state is not State.RUNNING}

    def live_state(self, number: int) -> State:
        state = self.jobs[number].state
        return state if state in LIVE_STATES else State.ABSENT

    def next_due(self) -> int | None:
        moments = [
            job.due if job.is_wall else job.due + self.shift
            for job in self.jobs.values()
            if job.state is State.SCHEDULED
        ]
        return min(moments, default=None)

    def next_expiry(self) -> int | None:
        moments = [
            moment
            for job in self.jobs.values()
            if job.state in {State.READY, State.SCHEDULED}
            and (moment := self.expiry(job)) is not None
        ]
        return min(moments, default=None)

    def stats(self, queues: set[str]) -> tuple[QueueStats, ...]:
        def count(queue: str, state: State) -> int:
            return sum(job.queue == queue and job.state is state for job in self.jobs.values())

        return tuple(
            QueueStats(
                queue=queue, scheduled=count(queue, State.SCHEDULED),
                ready=count(queue, State.READY), running=count(queue, State.RUNNING),
                succeeded=count(queue, State.SUCCEEDED), dead=count(queue, State.DEAD),
                cancelled=count(queue, State.CANCELLED), expired=count(queue, State.EXPIRED),
            )
            for queue in sorted(queues)
        )  # fmt: skip


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


class AgendaMachine(RuleBasedStateMachine):
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
        self.agenda.groups.declare(LIMITS, self.agenda.moment)
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
        self, count: int, queues: frozenset[str] | None, tasks: frozenset[str] | None, beside: bool
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
        pick=PICK, count=st.integers(1, 6), where=PLACES, due=st.none() | st.just(0) | DELAYS,
        is_wall=st.booleans(),
    )  # fmt: skip
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

    @rule()
    def go_through_a_snapshot(self) -> None:
        """Claimers send their limits again; expired jobs are found by the next claim again."""
        columns = Columns(freeze_agenda(self.agenda))
        self.agenda = thaw_agenda(columns)
        assert columns.is_empty()
        self.agenda.ages.window_ns = self.model.window
        if self.model.concurrency:
            self.learn_the_limits()

    @rule(pick=PICK)
    def ask_who_is_ahead(self, pick: int) -> None:
        live = self.model.in_state(State.READY, State.SCHEDULED)
        job = self.model.jobs[live[pick % len(live)]] if live else None
        if job is None or job.state is State.SCHEDULED:
            return
        late: set[int] = set()
        if self.agenda.times.over:  # no claim gets these
            self.agenda.times.find_over(self.model.now)
            late = self.model.expired()
        levels = {
            number: self.model.level(self.model.jobs[number])
            for number in self.model.in_state(State.READY)
            if number not in late
        }
        own = self.model.level(job)
        assert self.agenda.order.level(job.number) == own
        higher = sum(level > own for level in levels.values())
        older = sum(level == own and number < job.number for number, level in levels.items())
        ahead = self.agenda.order.ahead(job.number, self.agenda.lanes, 10**6)
        assert ahead == (higher, older)

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
