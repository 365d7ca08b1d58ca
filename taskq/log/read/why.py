"""Gathering the facts from which it is decided why a job is not running."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq.core.folds.steps import unpack_waits
from taskq.core.model import State
from taskq.core.views import JobView, OwnerView, ProgressView
from taskq.core.why import AHEAD_MAX, Facts, Reason, UsedUp, Why, used_up, why
from taskq.log.journal.lock import flock_holders, process_state
from taskq.log.machine.owners import owner_view, owner_views
from taskq.log.machine.peers import PROGRESS
from taskq.log.machine.progress import read_told
from taskq.log.read.flows import awaited, failed_inputs
from taskq.log.state.story import Story, job_not_found, read_story

if TYPE_CHECKING:
    from taskq.core.folds.agenda import Agenda
    from taskq.log.journal.journal import Journal

#: A lock that the same process has at so many looks is kept, not merely held for a batch.
_LOOKS: Final = 5
_LOOK_SECONDS: Final = 0.02
_STOPPED: Final = "stopped"


def live_workers(path: str) -> tuple[OwnerView, ...]:
    """Return the live processes that claim jobs of the log in a directory."""
    views = owner_views(Path(path) / "owners", {})
    return tuple(view for view in views if view.alive and view.serves)


def facts_of(
    journal: Journal,
    agenda: Agenda,
    lsn: int,
    workers: tuple[OwnerView, ...],
    story: Story | None = None,
) -> Facts | None:
    """Return all facts of a job but those about the writer lock; None if there is no such job."""
    now_ns = journal.clock.wall_ns()
    story = story or read_story(journal, lsn)
    if story is None or story.state is State.ABSENT:
        return None
    job = story.view(now_ns)
    running = Counter(owner for _, _, owner in agenda.running.values())
    claim = agenda.running.get(lsn)
    owner = None if claim is None else owner_view(Path(journal.path) / "owners", claim[2])
    higher, older = _ahead(agenda, job, workers)
    return Facts(
        job=job,
        now_ns=now_ns,
        directory=journal.path,
        owner=owner,
        paused=job.queue in agenda.queues.paused,
        ahead_higher=higher,
        ahead_older=older,
        waits=tuple(unpack_waits(agenda.steps.waits.get(lsn, b""), agenda.times.shift_ns)),
        awaited=awaited(journal.tag, story.ties, agenda, lsn),
        failed=failed_inputs(journal, story) if job.state is State.CANCELLED else None,
        used_up=_used_up(agenda, job, workers, now_ns),
        workers=tuple(replace(worker, running=running[worker.owner]) for worker in workers),
    )


def decide(facts: Facts, path: str) -> Reason:
    """The reason; looks at the writer lock where nothing more lasting is in the way. May block."""
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


def _stopped(reason: Reason, workers: Iterable[OwnerView]) -> Reason:
    pids = sorted({worker.pid for worker in workers})
    if not pids or not all(process_state(pid).startswith(_STOPPED) for pid in pids):
        return reason
    listed = ", ".join(map(str, pids))
    text = f"{reason.text}; stopped by a signal: {listed}. Let it go on with kill -CONT {listed}"
    return replace(reason, text=text)


def _ahead(agenda: Agenda, job: JobView, workers: tuple[OwnerView, ...]) -> tuple[int, int]:
    """(jobs of a higher level, older ones of the same) that its workers would claim before it."""
    if job.state is not State.READY:
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
    agenda: Agenda, job: JobView, workers: tuple[OwnerView, ...], now_ns: int
) -> UsedUp | None:
    """Return the limit of its task, as its workers tell it, that keeps a ready job from running."""
    if job.state is not State.READY:
        return None
    limited = (serving.limits or {} for worker in workers for serving in worker.serves)
    limit = next((limits[job.task] for limits in limited if job.task in limits), None)
    return None if limit is None else used_up(agenda, job.lsn, limit, now_ns)


def _keeper(path: Path) -> tuple[int, str]:
    """(id, state) of the process that keeps the writer lock, (0, "") if nobody does."""
    pid = 0
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_SECONDS)
        holder = next(filter(None, flock_holders(path / "write.lock", path / "turnstile.lock")), 0)
        if not holder or holder != (pid or holder):
            return 0, ""
        pid = holder
    return pid, process_state(pid)


def find_progress(journal: Journal, job: int) -> ProgressView | None:
    """Return what a job that runs told last; None if it does not run, or told nothing yet.

    Raises:
        JobNotFound: there is no such job in this log.
    """
    return progress_of(journal, read_story(journal, job), job)


def progress_of(journal: Journal, story: Story | None, job: int) -> ProgressView | None:
    if story is None:
        raise job_not_found(journal, job)
    if story.claim is None:
        return None
    token, owner = story.claim
    return read_told(Path(journal.path) / "owners" / f"{owner:016x}{PROGRESS}", job, token)
