"""Queues that are paused and resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.records import Kind
from taskq.log.carrying import encode_queue
from taskq.log.ports import INTEREST_READY

if TYPE_CHECKING:
    from taskq.log.batch import Batch
    from taskq.log.context import Context


class Queues:
    """The decisions of one process about whole queues."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def pause(self, batch: Batch, queue: str) -> bool:
        """Let no job of the queue be claimed; False if it is paused already."""
        agenda = self._context.agenda
        if queue in agenda.queues.paused:
            return False
        batch.add(encode_queue(Kind.PAUSED, queue, batch.lsn))
        agenda.queues.apply_paused(queue)
        batch.interest |= INTEREST_READY
        return True

    def resume(self, batch: Batch, queue: str) -> bool:
        """Let its jobs be claimed again; False if it is not paused."""
        agenda = self._context.agenda
        if queue not in agenda.queues.paused:
            return False
        batch.add(encode_queue(Kind.RESUMED, queue, batch.lsn))
        agenda.queues.apply_resumed(queue)
        batch.interest |= INTEREST_READY
        return True
