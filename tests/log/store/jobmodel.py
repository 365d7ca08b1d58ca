"""What a task log is, said in the plainest way: a dict of jobs and one of keys, and a clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from taskq.core.model import LIVE_STATES, SECOND_NS, State
from taskq.log.requests import Cancel

ATTEMPTS = 2


@dataclass(slots=True)
class ModelJob:
    """One job."""

    lsn: int
    queue: str
    priority: int
    body: bytes
    key: bytes | None
    window_ns: int
    state: State
    due_ns: int = 0
    expires_ns: int = 0
    attempt: int = 0
    #: the process that runs it
    owner: int = 0
    reason: bytes = b""
    #: whether somebody wants it cancelled, which runs
    asked: bool = False


@dataclass(slots=True)
class Model:
    """All jobs, as of the last operation.

    Attributes:
        lost: owners that died and whose jobs were not taken back yet.
    """

    jobs: dict[int, ModelJob] = field(default_factory=dict)
    #: (queue, key) -> (job, until; None: until the job is settled)
    keys: dict[tuple[str, bytes], tuple[int, int | None]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)

    def tick(self, now_ns: int) -> None:
        """What every batch finds before it does anything: time, and the death of others."""
        for job in self.jobs.values():
            if job.state is State.RUNNING and job.owner in self.lost:
                self._end(job, State.DEAD) if job.attempt >= ATTEMPTS else self._back(job, 0)
            if job.state is State.SCHEDULED and job.due_ns <= now_ns:
                job.state = State.READY
            waits = job.state in {State.SCHEDULED, State.READY}
            if waits and job.expires_ns and job.expires_ns <= now_ns:
                self._end(job, State.EXPIRED)
        self.lost.clear()

    # -- operations -------------------------------------------------------------------------------

    def holder(self, queue: str, key: bytes | None, now_ns: int) -> int | None:
        """Return the job that has the key."""
        job, until = self.keys.get((queue, key or b""), (0, 0))
        if not job or key is None:
            return None
        if until is None:
            return job if self.jobs[job].state in LIVE_STATES else None
        return job if until > now_ns else None

    def put(self, job: ModelJob, now_ns: int) -> None:
        """A new job."""
        self.jobs[job.lsn] = job
        if job.key is not None:
            until = now_ns + job.window_ns if job.window_ns else None
            self.keys[job.queue, job.key] = (job.lsn, until)

    def ready(self) -> list[int]:
        """Return jobs in the order of their claims."""
        ready = [
            job
            for job in self.jobs.values()
            if job.state is State.READY and job.queue not in self.paused
        ]
        return [job.lsn for job in sorted(ready, key=lambda job: (-job.priority, job.lsn))]

    def claim(self, count: int, owner: int) -> list[int]:
        """Return who is claimed."""
        claimed = self.ready()[:count]
        for lsn in claimed:
            job = self.jobs[lsn]
            job.state, job.owner, job.attempt = State.RUNNING, owner, job.attempt + 1
        return claimed

    def succeed(self, lsn: int) -> None:
        """It ran well."""
        self._end(self.jobs[lsn], State.SUCCEEDED)

    def die(self, lsn: int, reason: bytes) -> None:
        """It failed for good."""
        self.jobs[lsn].reason = reason
        self._end(self.jobs[lsn], State.DEAD)

    def retry(self, lsn: int, due_ns: int) -> None:
        """It failed, and is due again."""
        self._back(self.jobs[lsn], due_ns)

    def cancel(self, lsn: int) -> Cancel:
        """Over at once if it waited; if it runs, over when its claim is."""
        job = self.jobs[lsn]
        if job.state is State.RUNNING:
            job.asked = True
            return Cancel.ASKED
        if job.state not in {State.SCHEDULED, State.READY}:
            return Cancel.TOO_LATE
        self._end(job, State.CANCELLED)
        return Cancel.WITHDRAWN

    def requeue(self, lsn: int, now_ns: int) -> bool:
        """Return whether its key was free."""
        job = self.jobs[lsn]
        if job.key is not None and not job.window_ns:
            if self.holder(job.queue, job.key, now_ns) is not None:
                return False
            self.keys[job.queue, job.key] = (lsn, None)
        job.state, job.attempt, job.due_ns = State.READY, 0, 0
        if job.expires_ns <= now_ns:
            job.expires_ns = 0
        return True

    def purge(self, lsn: int) -> None:
        """The dead letter is forgotten."""
        self.jobs[lsn].state = State.ABSENT

    def _back(self, job: ModelJob, due_ns: int) -> None:
        if job.asked:
            self._end(job, State.CANCELLED)
            return
        job.owner = 0
        job.due_ns = due_ns
        job.state = State.SCHEDULED if due_ns else State.READY

    def _end(self, job: ModelJob, state: State) -> None:
        if job.asked and state is State.DEAD:
            state = State.CANCELLED
        job.owner, job.state, job.asked = 0, state, False


def later(now_ns: int, seconds: int) -> int:
    """So many seconds from now; 0 for no seconds."""
    return now_ns + seconds * SECOND_NS if seconds else 0
