"""Claims that follow one another, folded together; ``Agenda.apply_claimed`` does one alone."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from taskq.core.agenda import counted
from taskq.core.jobtable import ATTEMPT_MASK, STATE_MASK
from taskq.core.model import State
from taskq.core.records import Kind
from taskq.core.transitions import after

if TYPE_CHECKING:
    from taskq.core.agenda import Agenda
    from taskq.core.lanes import Lane

_READY: Final = int(after(State.ABSENT, Kind.ENQUEUED))
_CLAIMED: Final = int(after(State.READY, Kind.CLAIMED))


def apply_claimed_run(
    agenda: Agenda,
    jobs: list[int],
    attempts: list[int],
    owners: list[int],
    token: int,
    epoch: int,
) -> None:
    """Do as ``apply_claimed`` for jobs whose claims follow one another from ``token`` on."""
    number = 0
    while number < len(jobs):
        count = _claim_from(agenda, jobs, attempts, owners, number, token, epoch)
        if not count:
            claim = token + number, epoch, owners[number], attempts[number]
            agenda.apply_claimed(jobs[number], *claim)
        number += count or 1


def _claim_from(
    agenda: Agenda,
    jobs: list[int],
    attempts: list[int],
    owners: list[int],
    number: int,
    token: int,
    epoch: int,
) -> int:
    """Claim the jobs from ``number`` on that are ready in one lane; returns how many."""
    find, table, running = agenda.table.find, agenda.table, agenda.running
    lane: Lane | None = None
    start = number
    for job in islice(jobs, start, None):
        chunk = find(job)
        if chunk is None:
            break
        index = table.index
        meta = chunk.metas[index]
        if meta & STATE_MASK != _READY or (lane is not None and chunk.lanes[index] != lane.number):
            break
        lane = lane or agenda.lanes[chunk.lanes[index]]
        meta &= ~(STATE_MASK | ATTEMPT_MASK)
        chunk.metas[index] = meta | counted(attempts[number]) | _CLAIMED
        running[job] = (token + number, epoch, owners[number])
        number += 1
    if lane is None:
        return 0
    count = number - start
    lane.ready -= count
    agenda.note_running(lane, count)
    if not lane.ready:
        agenda._close(lane)
        return count
    claimed = jobs[start:number]
    if not lane.leave_run(claimed):
        for job in claimed:
            lane.leave(job, agenda._is_fresh)
        lane.left += count
    return count
