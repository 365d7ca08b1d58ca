"""Cancelling jobs: a waiting one is withdrawn at once, the owner of a running one is asked.

The ask is a record, so that the job does not come back: the process that would give it back or bury
it ends it as cancelled instead. That is its owner, the next claimer after the owner's death, or the
process that finds its lease over. A dead letter would be an invitation to requeue a job that
somebody wanted over. Only a success that comes first stands: it shows that the work was done.

An ask names its claim and ends with it, so a later attempt of a requeued dead letter has nothing to
do with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.errors import JobNotFound
from taskq.core.kinds import CANCEL, EXPIRY, REQUEST
from taskq.core.model import WAITING_STATES
from taskq.core.records import Cause
from taskq.log.format import codec
from taskq.log.machine.ports import INTEREST_CANCEL
from taskq.log.requests import Cancel, Delivery, Withdrawal

if TYPE_CHECKING:
    from taskq.log.decide.context import Batch, Context
    from taskq.log.decide.ends import Ends
    from taskq.log.state.facets import Facets

#: Children cancelled in one batch with the jobs that called them; the others follow in the next.
ORPHANS_MAX: Final = 2_048
#: Expired jobs that are recorded in one batch.
EXPIRED_MAX: Final = 2_048
_TOO_LATE: Final = Cancel.TOO_LATE


def is_asked(facets: Facets, delivery: Delivery) -> bool:
    """Return whether somebody wants the job of this very claim cancelled."""
    agenda = facets.need_agenda()
    claim = agenda.running.get(delivery.job)
    return claim is not None and claim[0] == delivery.token and delivery.job in agenda.leases.asked


class Cancels:
    """The decisions of one process about jobs that somebody, or their time, wants over."""

    def __init__(self, context: Context, ends: Ends) -> None:
        self._context = context
        self._ends = ends

    def cancel(self, batch: Batch, job: int) -> Cancel:
        """Withdraw a waiting job, or ask the owner of a running one to stop it.

        Raises:
            JobNotFound: no record has that number.
        """
        if not 0 < job < batch.lsn:
            raise JobNotFound(f"no job {self._context.tag}-{job} in this log")
        agenda = self._context.agenda
        if agenda.table.state(job) in WAITING_STATES:
            is_over = self._withdraw(batch, job, Cause.CALLER)
            return Cancel.WITHDRAWN if is_over else Cancel.ASKED
        claim = agenda.running.get(job)
        if claim is None:
            return _TOO_LATE
        if job not in agenda.leases.asked:
            attempt, token = agenda.attempt(job), claim[0]
            batch.add(codec.encode_job(REQUEST, 0, attempt, job, token))
            agenda.apply_cancel_asked(job, token)
            batch.interest |= INTEREST_CANCEL
        return Cancel.ASKED

    def withdraw(self, batch: Batch, what: Withdrawal) -> list[int]:
        """Cancel these jobs, those among them that still wait; returns which."""
        agenda = self._context.agenda
        withdrawn = [job for job in what.jobs if agenda.table.state(job) in WAITING_STATES]
        return [job for job in withdrawn if self._withdraw(batch, job, what.cause)]

    def follow(self, batch: Batch) -> None:
        orphans, left = self._context.agenda.steps.orphans, ORPHANS_MAX
        while orphans and left:
            left -= 1
            child = next(iter(orphans))
            self.cancel(batch, child)
            orphans.pop(child, None)

    def expire(self, batch: Batch) -> bool:
        """Record some of the jobs whose time has passed; True if there are more."""
        agenda = self._context.agenda
        self._expire(batch, agenda.expired(batch.time_ns, EXPIRED_MAX))
        following = agenda.next_expiry_ns()
        if following is None or following > batch.time_ns:
            agenda.times.forget_over()
            return False
        return True

    def expire_passed(self, batch: Batch) -> None:
        order, table = self._context.agenda.order, self._context.agenda.table
        passed, order.passed = order.passed, []
        self._expire(batch, [job for job in passed if table.state(job) in WAITING_STATES])

    def _expire(self, batch: Batch, jobs: list[int]) -> None:
        attempt = self._context.agenda.attempt
        for job in jobs:
            self._ends.end(batch, EXPIRY, Cause.CALLER, job, 0, attempt(job), None)

    def _withdraw(self, batch: Batch, job: int, cause: Cause) -> bool:
        attempt = self._context.agenda.attempt(job)
        return self._ends.end(batch, CANCEL, cause, job, 0, attempt, None)
