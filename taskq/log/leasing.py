"""Claims that are over: their lease has ended, or their owner's process is gone.

A lease is a deadline of one claim. It is moved by ``extend``; once it has passed, a claimer takes
the job back, and only then is the claim over: a holder that is late, but comes before any claimer,
may still settle or extend. The token decides, never the clock alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.errors import JobCancelled, LogDamaged, StaleDelivery
from taskq.core.jobtable import STATE_MASK
from taskq.core.model import State
from taskq.core.records import Cause, Kind
from taskq.log import codec
from taskq.log.carrying import encode_lease

if TYPE_CHECKING:
    from taskq.core.agenda import Agenda
    from taskq.log.batch import Batch
    from taskq.log.facets import Facets
    from taskq.log.operations import Operations
    from taskq.log.requests import Delivery

#: Jobs that are taken back in one batch.
TAKEN_BACK_MAX: Final = 4_096


class Leasing:
    """The decisions about claims that end without a settlement."""

    def __init__(self, operations: Operations, facets: Facets) -> None:
        self._operations = operations
        self._facets = facets

    @property
    def _agenda(self) -> Agenda:
        agenda = self._facets.agenda
        assert agenda is not None
        return agenda

    def extend(self, batch: Batch, operand: tuple[Delivery, int]) -> None:
        """Let a claim end so many nanoseconds from now, whether it had a deadline or not.

        Raises:
            StaleDelivery: the claim is over.
            JobCancelled: somebody wants it over: it is to be given back, which ends the job.
        """
        delivery, lease_ns = operand
        agenda = self._agenda
        check_claim(agenda, delivery)
        if delivery.job in agenda.leases.asked:
            raise JobCancelled(delivery.job_id)
        deadline_ns = batch.time_ns + lease_ns
        batch.add(
            codec.encode_job(
                Kind.EXTENDED, 0, delivery.attempt, delivery.job, delivery.token,
                options=encode_lease(deadline_ns),
            )
        )  # fmt: skip
        agenda.leases.apply_until(delivery.job, deadline_ns)

    def take_back_lost(self, batch: Batch, dead: set[int]) -> int:
        """Take back the jobs of dead owners; how many."""
        agenda = self._agenda
        lost = [job for job, claim in agenda.running.items() if claim[2] in dead]
        del lost[TAKEN_BACK_MAX:]
        for job in lost:
            self._take_back(
                batch, job, Cause.OWNER_LOST, "WorkerLost: the worker process died", "while it ran"
            )
        return len(lost)

    def take_back_over(self, batch: Batch) -> int:
        """Take back the jobs whose lease has ended; how many."""
        agenda = self._agenda
        following = agenda.leases.next_ns()
        if following is None or following > batch.time_ns:
            return 0
        over = agenda.leases.over(batch.time_ns, TAKEN_BACK_MAX)
        for job in over:
            self._take_back(
                batch, job, Cause.LEASE_OVER, "LeaseOver: neither settled nor extended in time",
                "in",
            )  # fmt: skip
        return len(over)

    def _take_back(self, batch: Batch, job: int, cause: Cause, what: str, during: str) -> None:
        """Give a job back, or end it when its attempts are spent; the attempt counts."""
        agenda = self._agenda
        token, attempt = agenda.running[job][0], agenda.attempt(job)
        operations = self._operations
        if job in agenda.leases.asked:
            operations._end(batch, Kind.CANCELLED, Cause.ASKED, job, token, attempt, what.encode())
        elif self._is_last(job, attempt):
            reason = f"{what} {during} attempt {attempt}"
            operations._end(batch, Kind.DIED, cause, job, token, attempt, reason.encode())
        else:
            operations._back(batch, Kind.RELEASED, cause, job, token, attempt, 0, what.encode())

    def _is_last(self, job: int, attempt: int) -> bool:
        table = self._agenda.table
        chunk = table.find(job)
        if chunk is None or chunk.metas[table.index] & STATE_MASK != State.RUNNING:
            return False
        try:
            record = self._operations.recent.record(job, chunk.locations[table.index])
        except LogDamaged:
            return False
        allowed = codec.ENQUEUED.unpack_from(record)[5]
        return bool(allowed) and attempt >= allowed


def check_claim(agenda: Agenda, delivery: Delivery) -> None:
    """Refuse a delivery whose claim is over.

    Raises:
        StaleDelivery: the job was taken back, settled, or claimed again, by whomever.
    """
    claim = agenda.running.get(delivery.job)
    if claim is None or claim[0] != delivery.token or claim[1] != delivery.epoch:
        raise StaleDelivery(f"{delivery!r} is over: the job was taken back or settled meanwhile")
