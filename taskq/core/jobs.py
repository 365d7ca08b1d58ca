"""All unsettled jobs and all dead letters, and what can be asked of them."""

from __future__ import annotations

from typing import Final

from taskq.core.flows import Flows
from taskq.core.jobtable import ATTEMPT_MASK, ATTEMPT_SHIFT, FRESH_MASK, STATE_MASK, JobTable
from taskq.core.lanes import NO_JOB
from taskq.core.laneset import Lanes
from taskq.core.leases import Leases
from taskq.core.model import State
from taskq.core.records import Kind
from taskq.core.transitions import after

_READY: Final = int(after(State.ABSENT, Kind.ENQUEUED))
_SCHEDULED: Final = int(after(State.ABSENT, Kind.ENQUEUED, waits=True))


class Jobs(Lanes):
    """The tables that the agenda keeps.

    Attributes:
        table: every unsettled job.
        running: job -> (token, epoch, owner): the claim that holds it.
        leases: which of these claims end at a moment, or are to be cancelled.
        dead: dead letters by job: location of the job's ENQUEUED record (or of the one that carries
            it), lane, and as ``meta`` the second of wall time in which the job died.
        flows: jobs that wait for others.
        floor_lsn: segments that begin before it may be gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = JobTable()
        self.running: dict[int, tuple[int, int, int]] = {}
        self.leases = Leases()
        self.dead = JobTable()
        self.flows = Flows()
        self.floor_lsn = 0

    def state(self, job: int) -> State:
        """ABSENT for a job that is settled or was never here."""
        chunk = self.table.find(job)
        if chunk is None:
            return State.ABSENT
        return State(chunk.metas[self.table.index] & STATE_MASK)

    def apply_cancel_asked(self, job: int, token: int) -> None:
        """Somebody wants the job cancelled that this claim holds; of another claim it says nothing.

        The job ends with the claim: however that ends, but for a success.
        """
        claim = self.running.get(job)
        if claim is not None and claim[0] == token:
            self.leases.asked.add(job)

    def location(self, job: int) -> int:
        """Where the enqueue record of an unsettled job stands."""
        chunk = self.table.find(job)
        if chunk is None:
            raise KeyError(job)
        return chunk.locations[self.table.index]

    def attempt(self, job: int) -> int:
        """Attempts counted so far of an unsettled job, 0 for an unknown one."""
        chunk = self.table.find(job)
        if chunk is None:
            return 0
        return (chunk.metas[self.table.index] & ATTEMPT_MASK) >> ATTEMPT_SHIFT

    def oldest_ready(self) -> dict[str, tuple[int, ...]]:
        """Of each queue with ready jobs those among which the oldest is: one or two.

        The first of the jobs that were ready at once, and the first of the others.
        """
        firsts: dict[tuple[str, bool], int] = {}
        for lane in self.lanes:
            if not lane.ready:
                continue
            fresh = filter(self._is_fresh, lane.fresh())
            for is_fresh, entries in ((True, fresh), (False, lane.given_back())):
                first = next(entries, NO_JOB)
                place = lane.queue, is_fresh
                firsts[place] = min(firsts.get(place, NO_JOB), first)
        found: dict[str, tuple[int, ...]] = {}
        for (queue, _), job in firsts.items():
            if job != NO_JOB:
                found[queue] = (*found.get(queue, ()), job)
        return found

    def _is_fresh(self, job: int) -> bool:
        """Whether a job is ready, and was so when it came."""
        chunk = self.table.find(job)
        return chunk is not None and chunk.metas[self.table.index] & FRESH_MASK == _READY

    def _is_scheduled(self, job: int) -> bool:
        chunk = self.table.find(job)
        return chunk is not None and chunk.metas[self.table.index] & STATE_MASK == _SCHEDULED

    def _is_live(self, job: int) -> bool:
        return self.table.find(job) is not None
