"""What an agenda promises, said with a dict and ``sorted``: slow, and plainly right."""

from __future__ import annotations

from dataclasses import dataclass, field

from taskq.core.model import LIVE_STATES, PRIORITY_MAX, QueueStats, State
from taskq.core.records import Kind


@dataclass(slots=True, kw_only=True)
class Job:
    """One job of the model. ``due`` is shifted time unless ``is_wall``."""

    number: int
    lane: int
    queue: str
    task: str
    priority: int
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
    blocked: set[int] = field(default_factory=set)
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

    def claimable(self, queues: frozenset[str] | None, tasks: frozenset[str] | None) -> list[int]:
        """Every job that a claim may return, in the order in which claims return them."""
        ready = [
            job
            for job in self.jobs.values()
            if job.state is State.READY
            and job.lane not in self.blocked
            and (queues is None or job.queue in queues)
            and (tasks is None or job.task in tasks)
        ]
        ready.sort(key=lambda job: (-self.level(job), job.number))
        return [job.number for job in ready]

    def claim(self, number: int, token: int) -> None:
        job = self.jobs[number]
        job.state, job.token = State.RUNNING, token
        job.attempt += 1

    def back(self, number: int, attempt: int, due: int) -> None:
        job = self.jobs[number]
        job.attempt = attempt
        job.state, job.since = State.READY, self.now - self.shift
        if due > self.now:
            job.state, job.due, job.is_wall = State.SCHEDULED, due - self.shift, False

    def end(self, number: int, kind: Kind) -> None:
        ends = {
            Kind.SUCCEEDED: State.SUCCEEDED,
            Kind.DIED: State.DEAD,
            Kind.CANCELLED: State.CANCELLED,
            Kind.EXPIRED: State.EXPIRED,
        }
        self.jobs[number].state = ends[kind]

    def expiry(self, job: Job) -> int | None:
        """Wall time."""
        if job.expires is None or job.expires_is_wall:
            return job.expires
        return job.expires + self.shift

    def expired(self) -> set[int]:
        """Waiting jobs whose time has passed."""
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
