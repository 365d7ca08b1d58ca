"""Queues that are paused, and waiting jobs that are withdrawn by the many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.model import WAITING_STATES
from taskq.core.records import Cause, Kind
from taskq.log.carrying import encode_queue
from taskq.log.ports import INTEREST_READY

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.core.agenda import Agenda
    from taskq.log.batch import Batch
    from taskq.log.facets import Facets
    from taskq.log.requests import Withdrawal


class Queues:
    """The decisions of one process about whole queues.

    Args:
        withdraw: ends a waiting job: (batch, job, cause).
    """

    def __init__(self, facets: Facets, withdraw: Callable[[Batch, int, Cause], None]) -> None:
        self._facets = facets
        self._withdraw = withdraw

    def pause(self, batch: Batch, queue: str) -> bool:
        """Let no job of the queue be claimed; False if it is paused already."""
        agenda = self._agenda
        if queue in agenda.paused:
            return False
        batch.add(encode_queue(Kind.PAUSED, queue, batch.lsn))
        agenda.apply_paused(queue)
        batch.interest |= INTEREST_READY
        return True

    def resume(self, batch: Batch, queue: str) -> bool:
        """Let its jobs be claimed again; False if it is not paused."""
        agenda = self._agenda
        if queue not in agenda.paused:
            return False
        batch.add(encode_queue(Kind.RESUMED, queue, batch.lsn))
        agenda.apply_resumed(queue)
        batch.interest |= INTEREST_READY
        return True

    def withdraw(self, batch: Batch, what: Withdrawal) -> list[int]:
        """Cancel these jobs, those among them that still wait; returns which."""
        agenda = self._agenda
        withdrawn = [job for job in what.jobs if agenda.state(job) in WAITING_STATES]
        for job in withdrawn:
            self._withdraw(batch, job, what.cause)
        return withdrawn

    @property
    def _agenda(self) -> Agenda:
        agenda = self._facets.agenda
        assert agenda is not None
        return agenda
