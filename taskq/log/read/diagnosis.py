"""The condition of a log in words: one sentence about its worst problem, and further remarks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from taskq.core import durations, model, views
from taskq.core.controls import ALERT, TASK
from taskq.core.folds import agenda, steps
from taskq.core.rates import Limit
from taskq.core.values import NamedTuple, dataclass
from taskq.core.why import (
    AHEAD_MAX,
    JobFacts,
    Reason,
    Strays,
    UsedLimit,
    Why,
    strays_of,
    used_up,
    waiting_in,
    why,
)
from taskq.log.journal.lock import flock_holders, process_state
from taskq.log.machine import owners, peers
from taskq.log.read.flows import awaited, failed_inputs
from taskq.log.state.job_history import Story, job_not_found, read_job

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal

#: "bad": jobs wait in vain, or worse; "slow": they wait for something that passes or was intended.
Level: TypeAlias = Literal["bad", "slow", "well"]

#: Age of a ready job above which it deserves a remark.
_LONG_SECONDS: Final = 300.0
_NAMED_MAX: Final = 5


class Remark(NamedTuple):
    """A remark about a log."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Condition of a log.

    Attributes:
        remarks: the worst first; never empty.
        strays: waiting jobs that no worker takes.
        workers: live processes that claim jobs.
    """

    remarks: tuple[Remark, ...]
    strays: Strays
    workers: int

    @property
    def level(self) -> Level:
        """Return the level of the worst remark."""
        return self.remarks[0].level

    @property
    def text(self) -> str:
        """Return the worst remark as one sentence."""
        return self.remarks[0].text


def standing(
    queues: Iterable[views.QueueStats],
    owners: Iterable[views.OwnerView],
    waiting: Mapping[tuple[str, str], views.Waiting],
    waits: Mapping[str, int],
    *,
    problems: Iterable[str] = (),
    stopped: frozenset[int] = frozenset(),
    controls: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Standing:
    """Return the condition of a log, from plain facts.

    Args:
        queues: counts of each queue.
        owners: processes that have the log open, and dead processes that hold jobs.
        waiting: waiting jobs of each (queue, task), without jobs put as bytes.
        waits: scheduled jobs that do not wait for a time, by cause in words.
        problems: of the log itself, as sentences.
        stopped: ids of processes that a signal has stopped.
        controls: settings changed at run time, by name.
    """
    queues, owners = tuple(queues), tuple(owners)
    alive = [owner for owner in owners if owner.alive]
    # A program that claims by itself publishes no queues.
    workers = [owner for owner in alive if owner.serves or owner.running]
    awake = [owner for owner in workers if owner.pid not in stopped]
    lost = sum(owner.running for owner in owners if not owner.alive)
    strays = Strays({}, {})
    remarks = [Remark("bad", text) for text in problems]
    remarks += [
        Remark("bad", f"Process {owner.pid} is stopped by a signal{_holding(owner.running)}: let "
               f"it go on with kill -CONT {owner.pid}")
        for owner in workers if owner.pid in stopped
    ]  # fmt: skip
    remarks += [
        Remark("bad", f"Worker {owner.pid} stands still: {hold.text}")
        for owner in awake for serving in owner.serves for hold in serving.holds if hold.is_stuck
    ]  # fmt: skip
    if not awake:
        remarks += _unworked(queues, sum(each.ready for each in waiting.values()), lost, waits)
    else:
        servings = [serving for owner in awake for serving in owner.serves]
        if servings:
            strays = strays_of(waiting, servings)
            remarks += _astray(strays, strays_of(waiting, servings, due=True))
        if lost:
            remarks.append(
                Remark("slow", f"{_jobs(lost, 'was', 'were')} running when their process died: "
                       f"a worker takes them back")
            )  # fmt: skip
    remarks += _alerts(controls)
    remarks += _paused(queues)
    remarks += _paused_tasks(controls, waiting)
    if awake:
        remarks.append(_worked(queues, awake))
    return Standing(remarks=tuple(remarks), strays=strays, workers=len(awake))


def past_standing(queues: Iterable[views.QueueStats]) -> Standing:
    """Return a log's condition at a past moment, without its processes, which were not recorded."""
    queues = tuple(queues)
    running, ready = (sum(getattr(q, name) for q in queues) for name in ("running", "ready"))
    text = f"{_jobs(running, 'was', 'were')} running, {ready:,} waited"
    return Standing(remarks=(Remark("well", text),), strays=Strays({}, {}), workers=0)


def copied_standing(queues: Iterable[views.QueueStats], copy_of: str) -> Standing:
    """Return a log's condition by a hub's copy, without processes: only the device knows them."""
    queues = tuple(queues)
    running = sum(queue.running for queue in queues)
    parts = [f"{_jobs(running, 'runs', 'run')}" if running else "", waiting_in(queues).text()]
    text = f"{_sentence(copy_of)}: {', '.join(filter(None, parts)) or 'no job waits'}"
    remarks = (Remark("well", text), *_paused(queues))
    return Standing(remarks=remarks, strays=Strays({}, {}), workers=0)


def _unworked(
    queues: tuple[views.QueueStats, ...], ready: int, lost: int, waits: Mapping[str, int]
) -> Iterator[Remark]:
    ended = f"{lost:,} {'was' if lost == 1 else 'were'} running when theirs died" if lost else ""
    waiting = _jobs(ready, "waits", "wait") if ready else ""
    if ready or lost:
        yield Remark("bad", f"No worker runs: {', '.join(filter(None, (waiting, ended)))}")
        return
    plain, paused, later = waiting_in(queues)
    if plain:
        yield Remark("slow", f"{_jobs(plain, 'waits', 'wait')} for a program that claims them")
    elif paused or later:
        parts = sorted(waits.items(), key=lambda part: (-part[1], part[0]))[:_NAMED_MAX]
        texts = [f"{_jobs(count, 'waits', 'wait')} for {what}" for what, count in parts]
        later -= sum(waits.values())
        texts += [f"{_jobs(paused, 'waits', 'wait')} in a paused queue"] if paused else []
        texts += [f"{_jobs(later, 'is', 'are')} due later"] if later else []
        yield Remark("slow", f"No worker runs: {', '.join(texts)}")
    else:
        yield Remark("well", "No worker runs, and no job waits")


def _astray(strays: Strays, due: Strays) -> Iterator[Remark]:
    """Yield remarks on jobs that no worker takes; a queue needs a worker once a job is due."""
    if strays.by_task:
        yield from (
            Remark("bad", _sentence(text)) for text in Strays(strays.by_task, {}).sentences()
        )
    if strays.by_queue:
        level: Level = "bad" if due.by_queue else "slow"
        yield from (
            Remark(level, _sentence(text)) for text in Strays({}, strays.by_queue).sentences()
        )


def _paused(queues: tuple[views.QueueStats, ...]) -> Iterator[Remark]:
    paused = sorted((q for q in queues if q.paused), key=lambda q: -q.ready)
    for queue in paused[:_NAMED_MAX]:
        wait = f": {_jobs(queue.ready, 'waits', 'wait')}" if queue.ready else ""
        yield Remark("slow", f"Queue {queue.queue} is paused{wait}")


def _paused_tasks(
    controls: Mapping[str, Mapping[str, Any]], waiting: Mapping[tuple[str, str], views.Waiting]
) -> Iterator[Remark]:
    paused = [name.removeprefix(TASK) for name, it in controls.items() if it.get("paused")]
    for task in paused[:_NAMED_MAX]:
        count = sum(sum(each[:2]) for (_, name), each in waiting.items() if name == task)
        wait = f": {_jobs(count, 'waits', 'wait')}" if count else ""
        yield Remark("slow", f"Task {task} is paused{wait}")


def _alerts(controls: Mapping[str, Mapping[str, Any]]) -> Iterator[Remark]:
    for name, state in controls.items():
        if name.startswith(ALERT) and state.get("phase") != "pending":
            text = state.get("text") or "it is active"
            yield Remark("bad", f"Alert {name.removeprefix(ALERT)}: {text}")


def _worked(queues: tuple[views.QueueStats, ...], workers: list[views.OwnerView]) -> Remark:
    waiting = waiting_in(queues)
    running = sum(owner.running for owner in workers)
    count = len(workers)
    text = f"{count:,} worker{' runs' if count == 1 else 's run'} "
    text += _jobs(running) if running else "no job just now"
    ages = [q.oldest_ready_seconds or 0.0 for q in queues if not q.paused]
    oldest = max(ages, default=0.0)
    text += f", {waiting.text() or 'none waits'}"
    if oldest < _LONG_SECONDS:
        return Remark("well", text)
    return Remark(
        "slow", f"{text}, the oldest for {durations.spoken(int(oldest * model.SECOND_NS))}"
    )


def _holding(running: int) -> str:
    return f" with {_jobs(running)}" if running else ""


def _jobs(count: int, single: str = "", several: str = "") -> str:
    return f"1 job {single}".rstrip() if count == 1 else f"{count:,} jobs {several}".rstrip()


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


#: Checks in a row with the same lock holder, after which it is no mere batch.
_LOOKS: Final = 5
_LOOK_SECONDS: Final = 0.02
_STOPPED: Final = "stopped"


def live_workers(path: str) -> tuple[views.OwnerView, ...]:
    views = owners.owner_views(Path(path) / "owners", {})
    return tuple(view for view in views if view.alive and view.serves)


def facts_of(
    journal: Journal,
    agenda: agenda.Agenda,
    lsn: int,
    workers: tuple[views.OwnerView, ...],
    story: Story | None = None,
) -> JobFacts | None:
    """Return all facts of a job except about the writer lock; None if the job is unknown."""
    now_ns = journal.clock.wall_ns()
    story = story or read_job(journal, lsn)
    if story is None or story.state is model.State.ABSENT:
        return None
    job = story.view(now_ns)
    running = Counter(owner for _, _, owner in agenda.running.values())
    claim = agenda.running.get(lsn)
    owner = None if claim is None else owners.owner_view(Path(journal.path) / "owners", claim[2])
    higher, older = _ahead(agenda, job, workers)
    return JobFacts(
        job=job,
        now_ns=now_ns,
        directory=journal.path,
        owner=owner,
        paused=job.queue in agenda.queues.paused,
        task_paused=job.task in agenda.queues.paused_tasks,
        ahead_higher=higher,
        ahead_older=older,
        waits=tuple(steps.unpack_waits(agenda.steps.waits.get(lsn, b""), agenda.times.shift_ns)),
        tag=journal.tag,
        awaited=awaited(journal.tag, story.ties, agenda, lsn),
        failed=failed_inputs(journal, story) if job.state is model.State.CANCELLED else None,
        used_up=_used_up(agenda, job, workers, now_ns),
        workers=tuple(replace(worker, running=running[worker.owner]) for worker in workers),
    )


def decide(facts: JobFacts, path: str) -> Reason:
    """Return the reason. If no lasting reason exists, check the writer lock, which may block."""
    reason = why(facts)
    if reason.code is Why.RUNNING and facts.owner is not None:
        return _stopped(reason, (facts.owner,))
    if reason.code not in (Why.NEXT, Why.BUSY, Why.BEHIND_OLDER, Why.BEHIND_PRIORITY):
        return reason
    reason = _stopped(reason, facts.workers)
    pid, state = _keeper(Path(path))
    works = pid in {worker.pid for worker in facts.workers}
    if not pid or (works and not state.startswith(_STOPPED)):
        return reason
    return why(replace(facts, holder=state, holder_pid=pid))


def _stopped(reason: Reason, workers: Iterable[views.OwnerView]) -> Reason:
    pids = sorted({worker.pid for worker in workers})
    if not pids or not all(process_state(pid).startswith(_STOPPED) for pid in pids):
        return reason
    listed = ", ".join(map(str, pids))
    text = f"{reason.text}; stopped by a signal: {listed}. Let it go on with kill -CONT {listed}"
    return replace(reason, text=text)


def _ahead(
    agenda: agenda.Agenda, job: views.JobView, workers: tuple[views.OwnerView, ...]
) -> tuple[int, int]:
    """Return (jobs of a higher level, older jobs of its level) that workers claim before it."""
    if job.state is not model.State.READY:
        return 0, 0
    able = [
        serving
        for worker in workers
        for serving in worker.serves
        if serving.takes(job.queue, job.task)
    ]
    lanes = (
        lane
        for lane in agenda.lanes
        if not lane.blocked and any(serving.takes(lane.queue, lane.task) for serving in able)
    )
    return agenda.order.ahead(job.lsn, lanes, AHEAD_MAX)


def _used_up(
    agenda: agenda.Agenda, job: views.JobView, workers: tuple[views.OwnerView, ...], now_ns: int
) -> UsedLimit | None:
    """Return the limit, declared by workers, that keeps a ready job from running."""
    if job.state is not model.State.READY:
        return None
    limited = (serving.limits or {} for worker in workers for serving in worker.serves)
    declared = next((limits[job.task] for limits in limited if job.task in limits), None)
    if declared is None and not agenda.groups.wishes:
        return None
    limit = agenda.groups.steered({job.task: declared or Limit()})[job.task]
    return used_up(agenda, job.lsn, limit, now_ns)


def _keeper(path: Path) -> tuple[int, str]:
    """Return (pid, state) of the process that keeps the writer lock, (0, "") for none."""
    pid = 0
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_SECONDS)
        holder = next(filter(None, flock_holders(path / "write.lock", path / "turnstile.lock")), 0)
        if not holder or holder != (pid or holder):
            return 0, ""
        pid = holder
    return pid, process_state(pid)


def find_progress(journal: Journal, job: int) -> views.ProgressView | None:
    """Return a running job's latest progress report; None if it has none or does not run."""
    return progress_of(journal, read_job(journal, job), job)


def progress_of(journal: Journal, story: Story | None, job: int) -> views.ProgressView | None:
    if story is None:
        raise job_not_found(journal, job)
    if story.claim is None:
        return None
    token, owner = story.claim
    return owners.read_progress(
        Path(journal.path) / "owners" / f"{owner:016x}{peers.PROGRESS}", job, token
    )
