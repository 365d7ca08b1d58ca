"""Changes of several kinds that become visible together, or not at all.

They go into one frame, which is on disk as a whole or not there. Every part is checked before the
first is added, as it will stand then: settlements come first, then cancellations, then new jobs, in
whatever order they were asked for, so that a new job finds the key free that another one frees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.errors import JobNotFound, PayloadTooLarge, UsageError
from taskq.core.model import TRANSACTION_BYTES_MAX, WAITING_STATES
from taskq.core.records import Kind
from taskq.log.leasing import check_claim
from taskq.log.requests import Done
from taskq.log.sizes import bundle_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskq.core.agenda import Agenda
    from taskq.log.batch import Batch
    from taskq.log.facets import Facets
    from taskq.log.operations import Operations
    from taskq.log.requests import Bundle, Settlement

_ENDS: Final = frozenset({Kind.SUCCEEDED, Kind.DIED, Kind.CANCELLED})


class Transactions:
    """The decisions about transactions."""

    def __init__(self, operations: Operations, facets: Facets, tag: str) -> None:
        self._operations = operations
        self._facets = facets
        self._tag = tag

    def run(self, batch: Batch, bundle: Bundle) -> Done:
        """Carry all of it out; whatever it raises, nothing of it was added.

        Raises:
            StaleDelivery: a claim is over.
            JobNotFound: a job to be cancelled is none.
            DuplicateKey: a key will be held, and its job asked to be refused then.
            PayloadTooLarge: together it is over TRANSACTION_BYTES_MAX.
            UsageError: a part is wrong, or a delivery is settled twice.
            SpillMissing: the file of a payload or result is gone.
        """
        operations = self._operations
        settlements, cancels, items = bundle
        ending = self._check(batch, bundle)
        prepared = operations.enqueues.prepared(batch, items, ending)
        for settlement in settlements:
            operations.settle(batch, settlement)
        cancelled = [operations.cancels.cancel(batch, job) for job in cancels]
        return Done(cancelled, operations.enqueues.add(batch, items, prepared))

    def _check(self, batch: Batch, bundle: Bundle) -> frozenset[int]:
        """Refuse what cannot be done; returns the jobs that will be settled."""
        size = bundle_size(bundle)
        if size > TRANSACTION_BYTES_MAX:
            raise PayloadTooLarge("the transaction", size, TRANSACTION_BYTES_MAX, "make it smaller")
        settlements, cancels, _ = bundle
        agenda = self._facets.agenda
        assert agenda is not None
        back, ended = self._check_settlements(agenda, settlements)
        for job in cancels:
            if not 0 < job < batch.lsn:
                raise JobNotFound(f"no job {self._tag}-{job} in this log")
            if job in back or agenda.state(job) in WAITING_STATES:
                ended.add(job)
        return frozenset(ended)

    def _check_settlements(
        self, agenda: Agenda, settlements: Sequence[Settlement]
    ) -> tuple[set[int], set[int]]:
        """(jobs that will wait again, jobs that will be settled)."""
        back: set[int] = set()
        ended: set[int] = set()
        for settlement in settlements:
            delivery = settlement.delivery
            check_claim(agenda, delivery)
            if delivery.job in back or delivery.job in ended:
                raise UsageError(f"{delivery!r} comes twice in this transaction")
            if settlement.flags:
                what = f"the result of {delivery!r}"
                body = settlement.body or b""
                self._operations.enqueues.check_packed(settlement.flags, body, what)
            is_end = settlement.kind in _ENDS or delivery.job in agenda.leases.asked
            (ended if is_end else back).add(delivery.job)
        return back, ended
