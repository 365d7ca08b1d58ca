"""Cancelling jobs: one that waits is withdrawn at once, the owner of one that runs is asked.

The ask is a record, so that the job does not come back whatever becomes of its owner: whoever would
give it back, or bury it, ends it as cancelled instead, be that its owner, the next claimer after
the owner's death, or the end of its lease. A dead letter would be an invitation to requeue what
somebody wanted over. Only a success that comes first stands: it says what was done.

An ask names the claim that it is meant for. It ends with that claim, so a later attempt, of a dead
letter that was requeued, has nothing to do with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import JobNotFound
from taskq.core.model import WAITING_STATES
from taskq.core.records import Cause, Kind
from taskq.log import codec
from taskq.log.ports import INTEREST_CANCEL
from taskq.log.requests import Cancel

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.core.agenda import Agenda
    from taskq.log.batch import Batch
    from taskq.log.facets import Facets
    from taskq.log.operations import Operations
    from taskq.log.requests import Answer, Ask, Delivery


_TOO_LATE: Final = Cancel.TOO_LATE


def is_asked(facets: Facets, delivery: Delivery) -> bool:
    """Whether somebody wants the job of this very claim cancelled."""
    agenda = facets.need_agenda()
    claim = agenda.running.get(delivery.job)
    return claim is not None and claim[0] == delivery.token and delivery.job in agenda.leases.asked


class Cancelling:
    """The decisions of one process about cancelling, and who here is told of those of others.

    Args:
        owner: this process: whose jobs its listeners may stop.
    """

    def __init__(self, operations: Operations, facets: Facets, owner: int, tag: str) -> None:
        self._operations = operations
        self._facets = facets
        self._owner = owner
        self._tag = tag
        #: (port, what is called there); changed by other threads
        self._listeners: list[tuple[Any, Callable[[Ask, None], object]]] = []
        self._told: set[Ask] = set()

    def cancel(self, batch: Batch, job: int) -> Cancel:
        """Withdraw a job that waits; of one that runs, ask its owner to stop it.

        Raises:
            JobNotFound: no record has that number.
        """
        if not 0 < job < batch.lsn:
            raise JobNotFound(f"no job {self._tag}-{job} in this log")
        agenda = self._agenda
        if agenda.state(job) in WAITING_STATES:
            self._operations._withdraw(batch, job, Cause.CALLER)
            return Cancel.WITHDRAWN
        claim = agenda.running.get(job)
        if claim is None:
            return _TOO_LATE
        if job not in agenda.leases.asked:
            attempt, token = agenda.attempt(job), claim[0]
            batch.add(codec.encode_job(Kind.CANCEL_ASKED, 0, attempt, job, token))
            agenda.apply_cancel_asked(job, token)
            batch.interest |= INTEREST_CANCEL
        return Cancel.ASKED

    # -- being told -------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def listen(self, port: Any, call: Callable[[Ask, None], object]) -> Callable[[], None]:
        """Have ``call(ask, None)`` called on the port's side for each job of this process.

        Called once for each claim that somebody wants cancelled, by whichever process. Returns what
        ends that.
        """
        listener = (port, call)
        self._listeners = [*self._listeners, listener]

        def leave() -> None:
            self._listeners = [one for one in self._listeners if one is not listener]

        return leave

    def look(self) -> None:
        """Fold what was written since; only where somebody listens."""
        if self._listeners:
            self._facets.need_agenda()

    def told(self) -> list[Answer]:
        """What goes out for the asks that were folded since the last call."""
        agenda = self._facets.agenda
        if agenda is None or not agenda.leases.asked:
            if self._told:
                self._told.clear()
            return []
        if not self._listeners:
            return []
        claims = ((job, agenda.running.get(job, (0, 0, 0))) for job in agenda.leases.asked)
        asks = {(job, token) for job, (token, _, owner) in claims if owner == self._owner}
        new, self._told = sorted(asks - self._told), asks
        return [(port, None, (call, ask, None)) for ask in new for port, call in self._listeners]

    @property
    def _agenda(self) -> Agenda:
        agenda = self._facets.agenda
        assert agenda is not None
        return agenda
