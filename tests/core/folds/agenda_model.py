"""The promises of an agenda with a dict and ``sorted``: slow, and plainly right."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from taskq.core.model import LIVE_STATES, PRIORITY_MAX, State
from taskq.core.records import Kind
from taskq.core.views import QueueStats


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
    """All jobs that ever were."""

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
        self,
        queues: frozenset[str] | None,
        tasks: frozenset[str] | None,
        without: Collection[int] = (),
    ) -> list[int]:
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
                queue=queue,
                scheduled=count(queue, State.SCHEDULED),
                ready=count(queue, State.READY),
                running=count(queue, State.RUNNING),
                succeeded=count(queue, State.SUCCEEDED),
                dead=count(queue, State.DEAD),
                cancelled=count(queue, State.CANCELLED),
                expired=count(queue, State.EXPIRED),
            )
            for queue in sorted(queues)
        )
