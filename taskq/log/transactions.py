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
from taskq.log.ends import check_claim
from taskq.log.requests import Done
from taskq.log.sizes import bundle_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskq.core.agenda import Agenda
    from taskq.log.batch import Batch
    from taskq.log.cancelling import Cancels
    from taskq.log.context import Context
    from taskq.log.enqueues import Enqueues
    from taskq.log.requests import Bundle, Settlement
    from taskq.log.settle import Settles

_ENDS: Final = frozenset({Kind.SUCCEEDED, Kind.DIED, Kind.CANCELLED})


class Transactions:
    """The decisions about transactions."""

    def __init__(
        self, context: Context, enqueues: Enqueues, cancels: Cancels, settles: Settles
    ) -> None:
        self._context = context
        self._enqueues = enqueues
        self._cancels = cancels
        self._settles = settles

    def transact(self, batch: Batch, bundle: Bundle) -> Done:
        """Carry all of it out; whatever it raises, nothing of it was added.

        Raises:
            StaleDelivery: a claim is over.
            JobNotFound: a job to be cancelled is none.
            DuplicateKey: a key will be held, and its job asked to be refused then.
            PayloadTooLarge: together it is over TRANSACTION_BYTES_MAX.
            UsageError: a part is wrong, or a delivery is settled twice.
            SpillMissing: the file of a payload or result is gone.
        """
        settlements, cancels, items = bundle
        ending = self._check(batch, bundle)
        prepared = self._enqueues.prepared(batch, items, ending)
        for settlement in settlements:
            self._settles.settle(batch, settlement)
        cancelled = [self._cancels.cancel(batch, job) for job in cancels]
        return Done(cancelled, self._enqueues.add(batch, items, prepared))

    def _check(self, batch: Batch, bundle: Bundle) -> frozenset[int]:
        """Refuse what cannot be done; returns the jobs that will be settled."""
        size = bundle_size(bundle)
        if size > TRANSACTION_BYTES_MAX:
            raise PayloadTooLarge("the transaction", size, TRANSACTION_BYTES_MAX, "make it smaller")
        settlements, cancels, _ = bundle
        agenda = self._context.agenda
        back, ended = self._check_settlements(agenda, settlements)
        for job in cancels:
            if not 0 < job < batch.lsn:
                raise JobNotFound(f"no job {self._context.tag}-{job} in this log")
            if job in back or agenda.table.state(job) in WAITING_STATES:
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
                self._enqueues.check_packed(settlement.flags, body, what)
            is_end = settlement.kind in _ENDS or delivery.job in agenda.leases.asked
            (ended if is_end else back).add(delivery.job)
        return back, ended
