"""The meaning of a log's records in the plainest way: dicts, sorting and assertions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from taskq.core.folds.dedup import key_hash
from taskq.core.folds.moments import STARVATION_NS
from taskq.core.folds.steps import Form, unpack_waits
from taskq.core.kinds import OF_STEPS
from taskq.core.model import PRIORITY_MAX, State
from taskq.core.records import Cause, Kind, Option
from taskq.log.format import codec
from taskq.log.format.carried import find_moment
from taskq.log.format.record import Record
from taskq.log.state.facets import Facets

#: The precision of a job's date.
_STEP_NS: Final = STARVATION_NS // 64
_FINAL: Final = {
    Kind.SUCCEEDED: State.SUCCEEDED,
    Kind.DEAD: State.DEAD,
    Kind.CANCELLED: State.CANCELLED,
    Kind.EXPIRED: State.EXPIRED,
}
#: These give a job back without counting the attempt.
_FREE: Final = {
    str(Cause.DRAIN), str(Cause.SNOOZE), str(Cause.CALLER), str(Cause.CONDITION),
    str(Cause.BREAKER), str(Cause.WAITS),
}  # fmt: skip


@dataclass(slots=True)
class Job:
    """One job, as of the last record."""

    lsn: int
    queue: str
    task: str
    priority: int | None
    body: bytes
    key: bytes | None
    state: State
    attempts_max: int
    attempt: int = 0
    #: of the claim that holds it
    token: int = 0
    owner: int = 0
    #: when that claim ends, less the steps of the clock so far; None: with its owner
    lease_ns: int | None = None
    #: when it is due, less the steps of the clock so far if ``shifts``
    due_ns: int = 0
    shifts: bool = False
    #: less the steps of the clock so far, unless ``expires_is_wall``
    expires_ns: int = 0
    expires_is_wall: bool = False
    result: bytes | None = None
    #: since when it is ready, less the steps of the clock so far
    since_ns: int = 0
    #: whether somebody wants its claim over
    asked: bool = False
    #: whether its key is held for as long as it lives
    key_lives: bool = False
    #: names of its steps in order, the signals (lsn, name) that none took, and what it waits for
    steps: list[str] = field(default_factory=list)
    signals: list[tuple[int, str]] = field(default_factory=list)
    awaits: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Reference:
    """The whole log, folded record by record; what is not legal is an assertion.

    Attributes:
        may_fall: the clock fell at some time: a process may have seen a job ready before.
        is_free: whether a claim of that token could take any job.
    """

    may_fall: bool = False
    is_free: Callable[[int], bool] = lambda _: False
    jobs: dict[int, Job] = field(default_factory=dict)
    #: jobs that are or were scheduled
    waiting: dict[int, Job] = field(default_factory=dict)
    claims: dict[int, int] = field(default_factory=dict)
    shift_ns: int = 0
    time_ns: int = 0
    last_lsn: int = 0
    #: the date of jobs that are enqueued now
    dated_ns: int = -_STEP_NS
    #: (queue, key) -> (job, until less the steps so far or None, whether until the job is settled)
    holders: dict[tuple[str, bytes], list[tuple[int, int | None, bool]]] = field(
        default_factory=dict
    )

    paused: set[str] = field(default_factory=set)
    paused_tasks: set[str] = field(default_factory=set)
    #: where each source stands
    sources: dict[str, bytes] = field(default_factory=dict)
    #: requeues of each job, and purged jobs
    requeues: Counter[int] = field(default_factory=Counter)
    purged: set[int] = field(default_factory=set)

    @classmethod
    def of(
        cls, records: Iterable[Record], is_free: Callable[[int], bool], *, may_fall: bool
    ) -> Reference:
        reference = cls(may_fall=may_fall, is_free=is_free)
        for record in records:
            reference.apply(record)
        return reference

    def apply(self, record: Record) -> None:
        assert record.lsn > self.last_lsn
        assert record.time_ns >= self.time_ns or record.type == Kind.CLOCK
        self.last_lsn, self.time_ns = record.lsn, record.time_ns
        kind = record.type
        if kind == Kind.CLOCK:
            self.shift_ns += record.step_ns
        if self.moment >= self.dated_ns + _STEP_NS:
            self.dated_ns = self.moment
        self._promote()
        if kind == Kind.ENQUEUED:
            self._enqueued(record)
        elif kind == Kind.CLAIMED:
            self._claimed(record)
        elif kind in (Kind.EXTENDED, Kind.CANCEL_ASKED):
            self._of_claim(record)
        elif kind in (Kind.RETRIED, Kind.RELEASED):
            self._back(record)
        elif kind in _FINAL:
            self._ended(record)
        elif kind in OF_STEPS:
            self._of_steps(record)
        elif kind in (Kind.REQUEUED, Kind.PURGED):
            self._is_dead_no_more(record)
        else:
            self._steered(record)

    def _steered(self, record: Record) -> None:
        kind = record.type
        if kind == Kind.EDITED:
            self._edited(record)
        elif kind in (Kind.PAUSED, Kind.RESUMED):
            assert (record.queue in self.paused) == (kind == Kind.RESUMED), "nothing new"
            self.paused ^= {record.queue}
        elif kind == Kind.STEERED and record.moved is not None:
            task, value = record.moved.name.removeprefix("task:"), record.moved.state.position
            self.paused_tasks -= {task}
            self.paused_tasks |= {task} if b"paused" in value else set()
        elif record.moved is not None:
            self.sources[record.moved.name] = record.moved.state.position

    def _promote(self) -> None:
        for job in [*self.waiting.values()]:
            if job.state is not State.SCHEDULED:
                del self.waiting[job.lsn]
            elif self._is_due(job, self.time_ns):
                job.state, job.awaits = State.READY, set()
                job.since_ns = job.due_ns - (0 if job.shifts else self.shift_ns)

    @property
    def moment(self) -> int:
        """The time, less the steps of the clock so far."""
        return self.time_ns - self.shift_ns

    def _is_due(self, job: Job, now_ns: int) -> bool:
        return job.due_ns + (self.shift_ns if job.shifts else 0) <= now_ns

    def _enqueued(self, record: Record) -> None:
        extras = record.extras
        assert extras is not None
        assert record.body is not None
        waits = extras.due_ns > record.time_ns
        shifts = not extras.due_is_wall
        self.jobs[record.lsn] = Job(
            lsn=record.lsn,
            queue=record.queue,
            task=record.task,
            priority=record.priority,
            body=record.body,
            key=extras.key,
            state=State.SCHEDULED if waits else State.READY,
            attempts_max=record.attempts_max,
            due_ns=extras.due_ns - (self.shift_ns if shifts else 0),
            shifts=shifts,
            expires_ns=extras.expires_ns - (0 if extras.expires_is_wall else self.shift_ns),
            expires_is_wall=not extras.expires_ns or extras.expires_is_wall,
            since_ns=self.dated_ns,
        )
        if waits:
            self.waiting[record.lsn] = self.jobs[record.lsn]
        if extras.key is not None:
            active = self.active(record.queue, extras.key, record.time_ns)
            holders = self.holders.setdefault((record.queue, extras.key), [])
            options = codec.decode_born(record.data).options
            replaces = find_moment(options, 0, len(options), Option.REPLACES)
            if replaces:
                # A waiting one is cancelled first, and so holds a key only for its window.
                assert not self.is_live(replaces), "the key of a live job was taken over"
                holders[:] = [holder for holder in holders if holder[0] != replaces]
                active = [job for job in active if job != replaces]
            assert not active, "a key held twice"
            # A window that is over now stays so, even if the clock has it open again later.
            moment = record.time_ns - self.shift_ns
            holders[:] = [
                holder
                for holder in holders
                if holder[2] or (holder[1] is not None and holder[1] > moment)
            ]
            until = moment + extras.window_ns if extras.window_ns else None
            lives = extras.until_settled or until is None
            self.jobs[record.lsn].key_lives = lives
            holders.append((record.lsn, until, lives))

    def active(self, queue: str, key: bytes, now_ns: int) -> list[int]:
        return [
            job
            for job, until, lives in self.holders.get((queue, key), ())
            if (lives and self.is_live(job))
            or (until is not None and until + self.shift_ns > now_ns)
        ]

    def is_live(self, job: int) -> bool:
        return self.jobs[job].state in (State.SCHEDULED, State.READY, State.RUNNING)

    def _claimed(self, record: Record) -> None:
        job = self.jobs[record.job]
        job.expires_ns = 0  # a claimed job expires no more
        seen = self.may_fall and job.state is State.SCHEDULED
        assert job.state is State.READY or seen, f"{job} was claimed"
        if self.is_free(record.lsn) and not self.may_fall:
            assert job.lsn == self.ready()[0], "claimed out of turn"
        assert job.queue not in self.paused, "claimed from a paused queue"
        assert job.task not in self.paused_tasks, "claimed of a paused task"
        assert record.attempt == job.attempt + 1
        assert not job.attempts_max or job.attempt < job.attempts_max, "claimed too often"
        job.attempt = record.attempt
        job.state, job.token, job.owner = State.RUNNING, record.lsn, record.token
        self.claims[record.lsn] = job.lsn
        job.lease_ns = record.lease_ns - self.shift_ns if record.lease_ns else None

    def _of_claim(self, record: Record) -> None:
        job = self.jobs[record.job]
        assert (job.state, job.token) == (State.RUNNING, record.token), "of a stale claim"
        assert not job.asked, "an unwanted claim was extended, or asked for twice"
        if record.type == Kind.CANCEL_ASKED:
            assert record.attempt == job.attempt
            job.asked = True
            return
        assert record.lease_ns > record.time_ns
        job.lease_ns = record.lease_ns - self.shift_ns

    def _check_lease(self, record: Record, job: Job) -> None:
        if record.cause == str(Cause.LEASE_OVER):
            assert job.lease_ns is not None
            assert job.lease_ns + self.shift_ns <= record.time_ns, "a lease was cut short"

    def _back(self, record: Record) -> None:
        job = self.jobs[record.job]
        if record.cause == str(Cause.INPUTS):
            assert job.state is State.SCHEDULED
            assert any(name in job.awaits for _, name in job.signals), f"{job} woke for nothing"
            job.state, job.awaits, job.since_ns = State.READY, set(), self.moment
            return
        assert job.state is State.RUNNING, f"{job} was given back"
        assert not job.asked, "a cancelled job came back"
        self._check_lease(record, job)
        assert record.token == job.token
        free = record.type == Kind.RELEASED and record.cause in _FREE
        assert record.attempt == job.attempt - free
        job.attempt = record.attempt
        job.state = State.SCHEDULED if record.due_ns > record.time_ns else State.READY
        self.waiting[job.lsn] = job
        job.due_ns, job.shifts = record.due_ns - self.shift_ns, True
        job.awaits = {wait.name for wait in unpack_waits(record.awaits)}
        assert not any(name in job.awaits for _, name in job.signals), f"{job} waits for nothing"
        job.since_ns = self.moment

    def _of_steps(self, record: Record) -> None:
        job, step = self.jobs[record.job], record.step
        assert step is not None
        if record.type == Kind.SIGNAL_SENT:
            assert self.is_live(job.lsn), "a settled job was signalled"
            job.signals.append((record.lsn, step.name))
            return
        assert (job.state, job.token) == (State.RUNNING, record.token), "a step of a stale claim"
        assert step.place == len(job.steps), "a step is missing"
        assert step.title not in job.steps, "a step was done twice"
        job.steps.append(step.title)
        oldest = next((it for it in job.signals if it[1] == step.name), None)
        if step.form in (Form.EVENT, Form.TIMEOUT):
            assert (step.signal, step.form) == (
                (0, Form.TIMEOUT) if oldest is None else (oldest[0], Form.EVENT)
            )
            job.signals = [it for it in job.signals if it != oldest]

    def _ended(self, record: Record) -> None:
        job = self.jobs[record.job]
        if record.type in (Kind.SUCCEEDED, Kind.DEAD):
            assert job.state is State.RUNNING, f"{job} was settled"
            self._check_lease(record, job)
            assert record.token == job.token
            assert record.type == Kind.SUCCEEDED or not job.asked, "a cancelled job died"
        elif record.type == Kind.CANCELLED and record.cause == str(Cause.ASKED):
            assert (job.state, job.token) == (State.RUNNING, record.token), f"{job} was cancelled"
            assert job.asked, "nobody asked for that"
            assert record.attempt == job.attempt
        else:
            assert job.state in (State.READY, State.SCHEDULED), f"{job} was withdrawn"
        if record.type == Kind.EXPIRED:
            assert job.expires_ns, f"{job} had been claimed, or never was to expire"
            # A date may have been over before the clock fell; a span of time is over for good.
            if job.expires_is_wall:
                assert 0 < job.expires_ns <= record.time_ns or self.may_fall
            else:
                assert job.expires_ns <= record.time_ns - self.shift_ns, f"{job} expired early"
        job.state, job.asked = _FINAL[Kind(record.type)], False
        if job.key is not None:
            # A key that was held for its job is free from now on, or when its window is over.
            holders = self.holders[job.queue, job.key]
            moment = record.time_ns - self.shift_ns
            holders[:] = [
                (item, until, lives and item != job.lsn)
                for item, until, lives in holders
                if item != job.lsn or not lives or (until is not None and until > moment)
            ]
        job.result = record.body

    def _is_dead_no_more(self, record: Record) -> None:
        job = self.jobs[record.job]
        assert job.state is State.DEAD, f"{job} was requeued or purged"
        job.state = State.ABSENT
        if record.type == Kind.PURGED:
            self.purged.add(job.lsn)
            return
        assert (record.queue, record.priority, record.body) == (job.queue, job.priority, job.body)
        self.requeues[job.lsn] += 1
        if job.key is not None:
            holders = self.holders[job.queue, job.key]
            moment = record.time_ns - self.shift_ns
            windows = [until for item, until, _ in holders if item == job.lsn and until is not None]
            window = windows[0] if windows and windows[0] > moment else None
            holders[:] = [holder for holder in holders if holder[0] != job.lsn]
            if job.key_lives:
                assert not self.active(job.queue, job.key, record.time_ns), "a key held twice"
            if job.key_lives or window is not None:
                holders.append((job.lsn, window, job.key_lives))
        job.state, job.attempt, job.result = State.READY, 0, None
        extras = record.extras
        assert extras is not None
        assert record.carried is not None
        assert record.carried.expires_ns == extras.expires_ns == 0, f"{job} expires again"
        job.since_ns = self.moment

    def _edited(self, record: Record) -> None:
        job, carried = self.jobs[record.job], record.carried
        assert carried is not None
        seen = self.may_fall and job.state is State.SCHEDULED
        assert job.state in (State.READY, State.SCHEDULED), f"{job} was edited"
        answer = carried.attempt, record.body, record.attempts_max
        assert answer == (job.attempt, job.body, job.attempts_max)
        assert record.extras is not None
        assert record.extras.key == job.key
        if job.key is not None and record.queue != job.queue:
            moment = record.time_ns - self.shift_ns
            mine = [holder for holder in self.holders[job.queue, job.key] if holder[0] == job.lsn]
            assert not self.active(record.queue, job.key, record.time_ns) or not any(
                lives or (until is not None and until > moment) for _, until, lives in mine
            ), "a key held twice"
            here = self.holders.setdefault((record.queue, job.key), [])
            here += [item for item in mine if item[2] or (item[1] is not None and item[1] > moment)]
            left = self.holders[job.queue, job.key]
            left[:] = [item for item in left if item[0] != job.lsn]
        job.queue, job.priority = record.queue, record.priority
        was_ready = job.state is State.READY
        job.state = carried.state
        if job.state is State.SCHEDULED:
            self.waiting[job.lsn] = job
            job.shifts = not carried.due_is_wall
            job.due_ns = carried.due_ns - (self.shift_ns if job.shifts else 0)
            assert carried.due_ns > record.time_ns or seen
        elif not was_ready:
            job.since_ns = self.moment

    def ready(self) -> list[int]:
        jobs = [
            job
            for job in self.jobs.values()
            if job.state is State.READY
            and job.queue not in self.paused
            and job.task not in self.paused_tasks
        ]
        return [job.lsn for job in sorted(jobs, key=lambda job: (-self._level(job), job.lsn))]

    def _level(self, job: Job) -> int:
        waited = max(self.moment - job.since_ns, 0)
        return min((job.priority or 0) + waited // STARVATION_NS, PRIORITY_MAX)

    def move_to(self, now_ns: int) -> None:
        self.time_ns = max(now_ns, self.time_ns)
        self._promote()

    def check(self, facets: Facets, now_ns: int) -> None:
        agenda, dedup = facets.need_agenda(), facets.need_dedup()
        assert not facets.damage
        assert {name: it.position for name, it in agenda.sources.items()} == self.sources
        agenda.promote(now_ns, 2**62)
        self.move_to(now_ns)
        seen = {
            state: sorted(job.lsn for job in self.jobs.values() if job.state is state)
            for state in State
        }
        assert agenda.running == {
            lsn: (self.jobs[lsn].token, agenda.running[lsn][1], self.jobs[lsn].owner)
            for lsn in seen[State.RUNNING]
        }
        assert agenda.leases.all() == {
            lsn: lease
            for lsn in seen[State.RUNNING]
            if (lease := self.jobs[lsn].lease_ns) is not None
        }
        for job in self.jobs.values():
            may_run = self.is_live(job.lsn) or job.state is State.DEAD
            assert agenda.steps.count(job.lsn) == len(job.steps) * may_run
            signals = agenda.steps.signals.get(job.lsn, ())
            assert [it.number for it in signals] == [lsn for lsn, _ in job.signals if may_run]
            waits = job.state is State.SCHEDULED and bool(job.awaits)
            assert self.may_fall or agenda.steps.is_waiting(job.lsn) == waits
        assert agenda.leases.asked == {job.lsn for job in self.jobs.values() if job.asked}
        stats = agenda.queues.stats()
        for state in (State.RUNNING, State.SUCCEEDED, State.DEAD, State.CANCELLED, State.EXPIRED):
            assert sum(getattr(queue, state.name.lower()) for queue in stats) == len(seen[state])
        assert [chunk.ids[index] for chunk, index in agenda.dead] == seen[State.DEAD]
        assert set(agenda.queues.paused) == self.paused
        assert agenda.queues.paused_tasks == self.paused_tasks
        ready = agenda.order.next_ready(10**6, None)
        if self.may_fall:
            waiting = sum(queue.ready + queue.scheduled for queue in stats)
            assert waiting == len(seen[State.READY]) + len(seen[State.SCHEDULED])
            assert set(ready) >= set(self.ready())
        else:
            assert ready == self.ready()
            assert sum(queue.scheduled for queue in stats) == len(seen[State.SCHEDULED])
        for queue, key in self.holders:
            hashed = key_hash(queue.encode(), key)
            holders = {job for job, _ in dedup.holders(hashed, now_ns)}
            # A window that was over stays over, also if the clock fell since.
            assert holders >= set(self.active(queue, key, self.time_ns)), "a held key is free"
            assert all(self.jobs[job].key is not None for job in holders)
            same = {job for job in holders if self.jobs[job].key == key}
            assert same <= set(self.active(queue, key, now_ns)), "a free key is held"
