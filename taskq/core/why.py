"""Decide the one reason why a job is not running, from plain facts."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from taskq.core.durations import spoken, utc_moment
from taskq.core.errors import command, worker_command
from taskq.core.folds.lanes import BLOCKED_BY_PAUSE, BLOCKED_BY_TASK
from taskq.core.folds.steps import Form, Wait, until, waited_for
from taskq.core.model import LIVE_STATES, SECOND_NS, State
from taskq.core.parsing import Tag, listed
from taskq.core.rates import Limit
from taskq.core.values import NamedTuple, dataclass
from taskq.core.views import Hold, JobView, LimitView, OwnerView, QueueStats, Serving, Waiting

if TYPE_CHECKING:
    from taskq.core.flows import HeldInputs
    from taskq.core.folds.agenda import Agenda

#: Most jobs ahead that are counted one by one; beyond that the text says "over".
AHEAD_MAX: Final = 10_000
_NAMED_MAX: Final = 5
_REASON_CHARACTERS_MAX: Final = 200


class Why(enum.StrEnum):
    """Reason why a job is not running."""

    #: it ran to its end
    SUCCEEDED = "succeeded"
    #: it is a dead letter: it used up its attempts, or was rejected
    DEAD = "dead"
    #: it was withdrawn
    CANCELLED = "cancelled"
    #: it expired before a worker claimed it
    EXPIRED = "expired"
    #: nothing: it runs
    RUNNING = "running"
    #: it ended, and was removed early because the disk was full
    DROPPED = "dropped"
    #: its worker is gone, and no other worker has taken it back yet
    WORKER_LOST = "worker_lost"
    #: other jobs of its flow have to succeed first
    INPUTS = "inputs"
    #: its run is suspended, without a slot, for a time, a signal or other jobs
    WAITS = "waits"
    #: it is not due yet: delay, eta or backoff
    NOT_DUE = "not_due"
    #: its queue or its task is paused
    PAUSED = "paused"
    #: no worker runs
    NO_WORKER = "no_worker"
    #: this is a hub's copy: only the device knows its workers
    ELSEWHERE = "elsewhere"
    #: the running workers serve other queues
    QUEUE_NOT_SERVED = "queue_not_served"
    #: none of the workers of its queue has registered its task
    TASK_UNKNOWN = "task_unknown"
    #: a condition of its task does not hold
    CONDITION = "condition"
    #: its queue backs off after network failures
    BREAKER = "breaker"
    #: the concurrency limit of its task, or of its key, is reached
    CONCURRENCY = "concurrency"
    #: the rate of its task, or of its key, is used up
    RATE = "rate"
    #: another process keeps the writer lock
    LOCKED = "locked"
    #: jobs of higher priority come first
    BEHIND_PRIORITY = "behind_priority"
    #: older jobs come first
    BEHIND_OLDER = "behind_older"
    #: it is the next job, but every slot is taken
    BUSY = "busy"
    #: nothing: a worker is about to run it
    NEXT = "next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Reason why a job is not running.

    Attributes:
        code: the reason, for programs.
        text: the reason, as one sentence for people.
        until_ns: wall time at which the reason ends by itself, 0 if unknown.
        ahead: jobs that are claimed earlier; of older jobs at most ``AHEAD_MAX`` are counted.
    """

    code: Why
    text: str
    until_ns: int = 0
    ahead: int = 0

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON document: the output of ``taskq why --json`` without the id."""
        from taskq.core.views import moment  # noqa: PLC0415 - rarely called

        return {
            "code": self.code.value,
            "text": self.text,
            "until": moment(self.until_ns),
            "ahead": self.ahead,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts for the decision.

    Attributes:
        job: the job.
        now_ns: wall time.
        directory: of the log, as an absolute path.
        tag: of the log.
        owner: the process whose claim it is under, if any.
        paused: whether its queue is paused.
        task_paused: whether its task is paused.
        ahead_higher: ready jobs of higher priority that its workers would claim first.
        ahead_older: the same for older jobs of its priority.
        workers: live processes that claim jobs; ``running`` is their number of jobs.
        awaited: inputs that it waits for in its flow.
        waits: its waits within its run.
        failed: failed inputs that cancelled it, as (id, state); None if there are none.
        used_up: the limit that it waits for.
        holder: description of the process that has kept the writer lock for longer than a batch.
        holder_pid: its id, 0 for none.
    """

    job: JobView
    now_ns: int
    directory: str
    tag: Tag
    owner: OwnerView | None = None
    paused: bool = False
    task_paused: bool = False
    ahead_higher: int = 0
    ahead_older: int = 0
    workers: tuple[OwnerView, ...] = ()
    awaited: HeldInputs | None = None
    waits: tuple[Wait, ...] = ()
    failed: tuple[tuple[str, str], ...] | None = None
    used_up: UsedLimit | None = None
    holder: str = ""
    holder_pid: int = 0


def why(facts: JobFacts) -> Reason:
    return (
        _settled(facts)
        or _running(facts)
        or _waiting(facts)
        or _unserved(facts)
        or _limited(facts)
        or _kept_back(facts)
        or _locked(facts)
        or _in_line(facts)
    )


def why_there(facts: JobFacts, device: str, copy_of: str) -> Reason:
    reason = why(replace(facts, owner=None, workers=(), used_up=None))
    if reason.code in {Why.PAUSED, Why.WAITS}:
        text = reason.text.partition("; ")[0]
    elif reason.code is Why.NO_WORKER:
        reason = replace(reason, code=Why.ELSEWHERE)
        text = f"it is ready on {device}; its workers are known there alone"
    else:
        text = reason.text
    if facts.job.state in LIVE_STATES:
        text = f"{copy_of}: {text}"
    return replace(reason, text=text)


def _settled(facts: JobFacts) -> Reason | None:
    job = facts.job
    when = f"{_ago(facts, job.settled_ns)} ago"
    if job.state is State.SUCCEEDED:
        return Reason(code=Why.SUCCEEDED, text=f"it succeeded {when}")
    if job.state is State.CANCELLED:
        return Reason(code=Why.CANCELLED, text=f"it was cancelled {when}{_with(facts.failed)}")
    if job.state is State.EXPIRED:
        return Reason(code=Why.EXPIRED, text=f"it expired {when}, before a worker could run it")
    if job.state is State.DEAD:
        spent = 0 < job.attempts_max <= job.attempt
        all_of = (
            f"all {job.attempts_max} attempts are" if job.attempts_max > 1 else "its attempt is"
        )
        how = f"{all_of} spent" if spent else "it was rejected"
        return Reason(code=Why.DEAD, text=f"it died {when}: {how}{_because(job)}")
    return None


def _running(facts: JobFacts) -> Reason | None:
    job, owner = facts.job, facts.owner
    if job.state is not State.RUNNING:
        return None
    if owner is None or owner.alive:
        since = _ago(facts, job.attempts[-1].started_ns) if job.attempts else ""
        runs = f"it has been running for {since}" if since else "it is running"
        where = f" on {_process(owner)}" if owner is not None and owner.pid else ""
        holds = [] if owner is None else [hold for each in owner.serves for hold in each.holds]
        stuck = "".join(f"; {hold.text}" for hold in holds if hold.is_stuck)
        return Reason(code=Why.RUNNING, text=f"{runs}{where}, {_attempts(job)}{stuck}")
    left = "the next worker that looks takes it back"
    if not facts.workers:
        start = worker_command(facts.directory)
        left = f"no worker is there to take it back; start one with: {start}"
    where = f"its process {_process(owner)}" if owner.pid else "its process"
    return Reason(code=Why.WORKER_LOST, text=f"{where} is gone; {left}")


def _waiting(facts: JobFacts) -> Reason | None:
    job = facts.job
    if 0 < job.expires_ns <= facts.now_ns:
        return Reason(
            code=Why.EXPIRED,
            text=f"it expired {_ago(facts, job.expires_ns)} ago, before a worker could run it; "
            f"the next worker that looks records that",
        )
    if facts.waits:
        return _within_run(facts)
    if facts.awaited is not None:
        return Reason(code=Why.INPUTS, text=_inputs(facts.awaited))
    if job.state is State.SCHEDULED:
        when = f"due in {_ago(facts, job.due_ns)}, at {_moment(job.due_ns)}"
        if job.attempts and job.attempts[-1].outcome == "retried":
            text = f"{_attempts(job)} failed{_because(job)}; the next is {when}"
        else:
            text = f"it is {when}"
        return Reason(code=Why.NOT_DUE, text=text, until_ns=job.due_ns)
    if facts.paused or facts.task_paused:
        what, args = (
            (f"queue {job.queue!r}", (job.queue,))
            if facts.paused
            else (f"task {job.task!r}", ("--task", job.task))
        )
        return Reason(
            code=Why.PAUSED,
            text=f"{what} is paused; let it go on with: "
            f"{command(facts.directory, 'resume', *args)}",
        )
    return None


def _unserved(facts: JobFacts) -> Reason | None:
    job, workers = facts.job, facts.workers
    if not workers:
        if not job.task:
            return Reason(
                code=Why.NO_WORKER,
                text="it was put as bytes, and no process claims any: use TaskLog.claim()",
            )
        return Reason(
            code=Why.NO_WORKER,
            text=f"no worker runs; start one with: {worker_command(facts.directory)}",
        )
    here = [
        serving
        for worker in workers
        for serving in worker.serves
        if serving.queues is None or job.queue in serving.queues
    ]
    if not here:
        served = {
            queue for worker in workers for serving in worker.serves for queue in _queues(serving)
        }
        return Reason(
            code=Why.QUEUE_NOT_SERVED,
            text=f"no worker serves queue {job.queue!r}: running workers serve {_names(served)}",
        )
    if any(serving.takes(job.queue, job.task) for serving in here):
        return None
    if not job.task:
        text = "it was put as bytes, and no process claims any: use TaskLog.claim()"
    else:
        text = (
            f"no worker of queue {job.queue!r} knows task {job.task!r}: "
            f"start one with the app that registers it"
        )
    return Reason(code=Why.TASK_UNKNOWN, text=text)


def _kept_back(facts: JobFacts) -> Reason | None:
    """Return the reason if every worker that could run it holds it back; one worker is named."""
    job, first = facts.job, None
    for worker in facts.workers:
        for serving in worker.serves:
            if not serving.takes(job.queue, job.task):
                continue
            hold = next((kept for kept in serving.holds if _keeps(kept, job)), None)
            if hold is None:
                return None
            first = first or hold
    if first is None:
        return None
    return Reason(
        code=Why.BUSY if first.is_stuck else Why.BREAKER if first.is_breaker else Why.CONDITION,
        text=f"{first.text}, for {_ago(facts, first.since_ns)} now",
    )


def _keeps(hold: Hold, job: JobView) -> bool:
    return (hold.queues is None or job.queue in hold.queues) and (
        hold.tasks is None or job.task in hold.tasks
    )


def _limited(facts: JobFacts) -> Reason | None:
    limit = facts.used_up
    if limit is None:
        return None
    code = Why.CONCURRENCY if limit.concurrency else Why.RATE
    return Reason(code=code, text=limit.text(facts.tag, facts.now_ns), until_ns=limit.next_ns)


def _locked(facts: JobFacts) -> Reason | None:
    if not facts.holder_pid:
        return None
    return Reason(
        code=Why.LOCKED,
        text=f"process {facts.holder_pid} ({facts.holder}) keeps the writer lock: "
        f"continue or stop it",
    )


def _in_line(facts: JobFacts) -> Reason:
    job, higher, older = facts.job, facts.ahead_higher, facts.ahead_older
    ahead = higher + older
    older_text = f"{'over ' if older >= AHEAD_MAX else ''}{_jobs(older, 'older')}"
    if higher:
        also = f" and {older_text}" if older else ""
        text = f"{_jobs(higher, 'of higher priority')}{also} {_are(ahead)} before it"
        return Reason(code=Why.BEHIND_PRIORITY, text=text, ahead=ahead)
    if older:
        return Reason(
            code=Why.BEHIND_OLDER, text=f"{older_text} {_are(older)} before it", ahead=ahead
        )
    able = [
        worker
        for worker in facts.workers
        if any(serving.takes(job.queue, job.task) for serving in worker.serves)
    ]
    slots = [sum(serving.slots for serving in worker.serves) for worker in able]
    if all(0 < most <= worker.running for most, worker in zip(slots, able, strict=True)):
        where = "of the one worker" if len(able) == 1 else f"of the {len(able)} workers"
        return Reason(
            code=Why.BUSY,
            text=f"it is the next, but all {sum(slots)} slots {where} that could run it are taken",
        )
    return Reason(code=Why.NEXT, text="nothing is in its way: a worker takes it at any moment")


def _with(failed: tuple[tuple[str, str], ...] | None) -> str:
    if failed is None:
        return ""
    named = ", ".join(f"{job_id} ({state})" for job_id, state in failed)
    return f", for an input failed{': ' if named else ''}{named}"


def _within_run(facts: JobFacts) -> Reason:
    until_ns = until(facts.waits)
    text = f"it waits within its run for {waited_for(facts.waits)}"
    if until_ns:
        text += f", until {_moment(until_ns)} at the latest"
    names = [wait.name for wait in facts.waits if wait.form == Form.EVENT]
    if names:
        how = command(facts.directory, "signal", facts.job.job_id, names[0], "JSON")
        text += f"; signal it with: {how}"
    return Reason(code=Why.WAITS, text=text, until_ns=until_ns)


def _inputs(awaited: HeldInputs) -> str:
    total = f"{awaited.total} input{'s' if awaited.total != 1 else ''}"
    named = ", ".join(f"{job_id} ({state})" for job_id, state in awaited.named)
    return f"it waits for {awaited.count} of {total}{': ' if named else ''}{named}"


def _ago(facts: JobFacts, moment_ns: int) -> str:
    return spoken(moment_ns - facts.now_ns)


def _moment(moment_ns: int) -> str:
    return utc_moment(moment_ns // SECOND_NS * SECOND_NS).isoformat()


def _attempts(job: JobView) -> str:
    return f"attempt {job.attempt}" + (f" of {job.attempts_max}" if job.attempts_max else "")


def _because(job: JobView) -> str:
    reason = job.reason.strip().partition("\n")[0][:_REASON_CHARACTERS_MAX]
    return f" ({reason})" if reason else ""


def _process(owner: OwnerView) -> str:
    return f"{owner.pid} ({owner.name} on {owner.host})"


def _queues(serving: Serving) -> frozenset[str]:
    return serving.queues or frozenset()


def _names(names: set[str]) -> str:
    return listed(map(repr, sorted(names)), _NAMED_MAX)


def _jobs(count: int, which: str) -> str:
    noun = "job" if count == 1 else "jobs"
    return f"{count} {which} {noun}" if which == "older" else f"{count} {noun} {which}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


# Jobs that wait for a limit of their task.

_HOLDERS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedLimit:
    """A limit that is reached.

    Attributes:
        task: its task.
        key: the job's concurrency key, b"" for none.
        concurrency: most jobs running at a time, 0 if the rate is used up.
        running: the running jobs.
        rate: as text, such as "10/s".
        next_ns: wall time from which the rate allows a job to start.
    """

    task: str
    key: bytes
    concurrency: int = 0
    running: tuple[int, ...] = ()
    rate: str = ""
    next_ns: int = 0

    def text(self, tag: Tag, now_ns: int) -> str:
        """Return one sentence for people; ``tag`` is the log's tag."""
        subject = self.task
        if self.key:
            subject += f" with key {self.key.decode('utf-8', 'replace')!r:.60}"
        if not self.concurrency:
            moment = _moment(self.next_ns)
            ahead = spoken(self.next_ns - now_ns)
            return (
                f"rate {self.rate} of {subject} is used up: the next may start in {ahead}, {moment}"
            )
        holders = listed((tag.id(job) for job in self.running), _HOLDERS_MAX)
        return f"concurrency {self.concurrency} of {subject} is used up by {holders}"


_PAUSED: Final = BLOCKED_BY_PAUSE | BLOCKED_BY_TASK


def used_up(agenda: Agenda, lsn: int, limit: Limit, now_ns: int) -> UsedLimit | None:
    """Return the limit that keeps a ready job from running; None if there is no such limit."""
    chunk = agenda.table.find(lsn)
    if chunk is None:
        return None
    lane = agenda.lanes[chunk.lanes[agenda.table.index]]
    key = lane.concurrency_key
    if limit.concurrency:
        running = tuple(job for job in agenda.running if _is_of(agenda, job, lane.task, key))
        if len(running) >= limit.concurrency:
            return UsedLimit(
                task=lane.task, key=key, concurrency=limit.concurrency, running=running
            )
    group = agenda.groups.get(lane.task, key)
    if limit.rate is None or group is None or group.times is None:
        return None
    moment = max(now_ns - agenda.times.shift_ns, agenda.moment)
    if group.times.room(moment, limit.rate):
        return None
    free_ns = group.times.free_at(moment, limit.rate) + agenda.times.shift_ns
    return UsedLimit(task=lane.task, key=key, rate=str(limit.rate), next_ns=free_ns)


def limits_in_use(agenda: Agenda, limits: Mapping[str, Limit], now_ns: int) -> list[LimitView]:
    """Return the use of limits by task and concurrency key, for keys with jobs."""
    wishes = agenda.groups.wishes
    limits = agenda.groups.steered({**dict.fromkeys(wishes, Limit()), **limits})
    keyed = {lane.task for lane in agenda.lanes if lane.concurrency_key}
    counts = {(task, b""): [0, 0] for task in limits if task not in keyed}
    for lane in agenda.lanes:
        if lane.task in limits and (lane.running or lane.ready):
            count = counts.setdefault((lane.task, lane.concurrency_key), [0, 0])
            count[0] += lane.running
            count[1] += lane.ready
    moment = max(now_ns - agenda.times.shift_ns, agenda.moment)
    views = []
    for (task, key), (running, ready) in sorted(counts.items()):
        limit, group = limits[task], agenda.groups.get(task, key)
        times = None if group is None else group.times
        rate = limit.rate
        rooms = [limit.concurrency - running] if limit.concurrency else []
        if rate is not None:
            rooms.append(rate.count if times is None else times.room(moment, rate))
        views.append(
            LimitView(
                task=task, key=key, concurrency=limit.concurrency, running=running,
                rate="" if rate is None else str(rate), waiting=ready,
                room=max(min(rooms, default=0), 0),
            )
        )  # fmt: skip
    return views


def _is_of(agenda: Agenda, job: int, task: str, key: bytes) -> bool:
    chunk = agenda.table.find(job)
    if chunk is None:
        return False
    lane = agenda.lanes[chunk.lanes[agenda.table.index]]
    return lane.task == task and lane.concurrency_key == key


class Strays(NamedTuple):
    """Counts of waiting jobs that no worker takes.

    Attributes:
        by_task: jobs of served queues, by tasks that no worker of the queue knows.
        by_queue: jobs of queues without a worker.
    """

    by_task: Mapping[str, int]
    by_queue: Mapping[str, int]

    def sentences(self) -> list[str]:
        sentences = []
        if self.by_task:
            sentences.append(
                f"{_wait(self.by_task)} that no worker knows: {_listed(self.by_task)}; start one "
                f"with the app that registers them, or name their module with -I"
            )
        if self.by_queue:
            sentences.append(
                f"{_wait(self.by_queue)} in a queue that no worker serves: "
                f"{_listed(self.by_queue)}; start one with "
                f"-Q {','.join(sorted(self.by_queue)[:_NAMED_MAX])}, or without -Q"
            )
        return sentences


def waiting_in(queues: Iterable[QueueStats]) -> Waiting:
    queues = list(queues)
    paused = sum(queue.ready for queue in queues if queue.paused)
    ready, later = (sum(getattr(q, name) for q in queues) for name in ("ready", "scheduled"))
    return Waiting(ready - paused, paused, later)


def waiting_jobs(agenda: Agenda) -> dict[tuple[str, str], Waiting]:
    """Return the counts of waiting jobs by (queue, task).

    Jobs that were put as bytes are left out: programs that claim them register no task.
    """
    counts: dict[tuple[str, str], Waiting] = {}
    for lane in agenda.lanes:
        if lane.task and (lane.ready or lane.scheduled):
            due = (0, lane.ready) if lane.blocked & _PAUSED else (lane.ready, 0)
            key = lane.queue, lane.task
            counts[key] = counts.get(key, Waiting()).plus(Waiting(*due, lane.scheduled))
    return counts


def strays_of(
    waiting: Mapping[tuple[str, str], Waiting], servings: Iterable[Serving], *, due: bool = False
) -> Strays:
    """Return the jobs that no worker would take; with ``due`` only the ready ones."""
    servings = list(servings)
    by_task: Counter[str] = Counter()
    by_queue: Counter[str] = Counter()
    for (queue, task), waits in waiting.items():
        count = waits.ready if due else sum(waits)
        if not count:
            continue
        if any(serving.takes(queue, task) for serving in servings):
            continue
        if any(serving.queues is None or queue in serving.queues for serving in servings):
            by_task[task] += count
        else:
            by_queue[queue] += count
    return Strays(by_task, by_queue)


def _wait(counts: Mapping[str, int]) -> str:
    count = sum(counts.values())
    return "1 job waits" if count == 1 else f"{count:,} jobs wait"


def _listed(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return listed((f"{name} ({count:,})" for name, count in ordered), _NAMED_MAX)
