"""Apply records that stand in for older ones, and what becomes of dead letters.

A log that was compacted begins with jobs that its first records know nothing of: they are written
again behind, as they stood. A fold that has seen the originals learns from these records only where
the job's record stands now; one that has not puts the job in as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.folds.jobtable import META_BACK, META_EXPIRES, META_STEPS, STATE_MASK
from taskq.core.kinds import READY
from taskq.core.model import LIVE_STATES, SECOND_NS, State

if TYPE_CHECKING:
    from taskq.core.folds.agenda import Agenda
    from taskq.core.folds.lanes import Lane

_NEVER: Final = (0, False)


def apply_carried(
    agenda: Agenda,
    job: int,
    location: int,
    lane: Lane,
    meta: int,
    state: State,
    expires: tuple[int, bool],
    due: tuple[int, bool],
    claim: tuple[int, int, int],
    lease_ns: int,
    ended_ns: int,
    *,
    since_ns: int = 0,
    needs: int | None = None,
    awaiting: bytes = b"",
) -> None:
    """The job stands at ``location`` now, in this state.

    ``meta`` holds flags and attempts; ``expires`` and ``due`` are moments, 0 for none, and whether
    they are wall time; ``claim`` is (token, epoch, owner) of a running job; ``since_ns`` is the
    wall time since when a ready job waits; ``needs`` what a held one waits for; ``awaiting`` what
    one waits for within its run, see ``Steps.awaiting``.
    """
    if state is State.DEAD:
        _apply_carried_dead(agenda, job, location, lane, ended_ns)
        if awaiting:
            agenda.steps.apply_told(job, awaiting, agenda.times.shift_ns)
        return
    if state not in LIVE_STATES:
        return
    chunk = agenda.table.find(job)
    if chunk is not None:
        chunk.locations[agenda.table.index] = location
        return
    meta |= state | (META_BACK if state == READY else 0) | (META_EXPIRES if expires[0] else 0)
    if awaiting:
        meta |= META_STEPS
        agenda.steps.apply_told(job, awaiting, agenda.times.shift_ns)
    if needs is not None:
        agenda.apply_held(job, location, lane, meta & ~STATE_MASK, needs)
    else:
        agenda.table.insert(job, location, lane.number, meta)
        if state is State.SCHEDULED:
            lane.scheduled += 1
            agenda.note_held(job, due, None)
        elif state is State.RUNNING:
            _run_carried(agenda, job, lane, claim, lease_ns)
        else:
            agenda.enter_ready(lane, job, since_ns - agenda.times.shift_ns)
    if expires[0]:
        agenda.apply_expiry(job, *expires)


def _run_carried(
    agenda: Agenda, job: int, lane: Lane, claim: tuple[int, int, int], lease_ns: int
) -> None:
    agenda.queues.note_running(lane, 1)
    agenda.running[job] = claim
    if lease_ns:
        agenda.leases.apply_until(job, lease_ns)


def apply_carried_run(
    agenda: Agenda,
    jobs: list[int],
    locations: list[int],
    lane: Lane,
    meta: int,
    since_ns: list[int],
) -> None:
    """Do as ``apply_carried`` for ready jobs of rising numbers that were never claimed."""
    table = agenda.table
    if not table.is_free(jobs[0], jobs[-1]):
        for job, location, since in zip(jobs, locations, since_ns, strict=True):
            apply_carried(
                agenda, job, location, lane, meta, State(READY), _NEVER, _NEVER, (0, 0, 0), 0, 0,
                since_ns=since,
            )  # fmt: skip
        return
    table.insert_run(jobs, locations, lane.number, meta | READY | META_BACK)
    shift = agenda.times.shift_ns
    agenda.enter_ready_run(lane, jobs, [since - shift for since in since_ns])


def _apply_carried_dead(agenda: Agenda, job: int, location: int, lane: Lane, ended_ns: int) -> None:
    dead = agenda.dead
    chunk = dead.find(job)
    if chunk is not None:
        chunk.locations[dead.index] = location
        return
    lane = lane.home
    lane.dead += 1
    dead.insert(job, location, lane.number, max(ended_ns // SECOND_NS, 1))


def apply_requeued(
    agenda: Agenda,
    job: int,
    location: int,
    lane: Lane,
    meta: int,
) -> None:
    """A dead letter is ready again, no attempt counted; ``meta`` holds flags only."""
    forget_dead(agenda, job)
    if agenda.table.find(job) is not None:
        return
    if agenda.steps.knows(job):
        meta |= META_STEPS
    agenda.table.insert(job, location, lane.number, meta | READY | META_BACK)
    agenda.enter_ready(lane, job)


def forget_dead(agenda: Agenda, job: int) -> bool:
    chunk = agenda.dead.find(job)
    if chunk is None:
        return False
    index = agenda.dead.index
    agenda.lanes[chunk.lanes[index]].dead -= 1
    agenda.dead.remove(chunk, index)
    return True


def apply_tallied(lane: Lane, succeeded: int, cancelled: int, expired: int) -> None:
    """So many jobs of the lane ended so far; who has seen only some of them knows now.

    Dead letters are left out: each is carried itself, before the tally or behind it, and counted.
    """
    lane.succeeded = succeeded
    lane.cancelled = cancelled
    lane.expired = expired
