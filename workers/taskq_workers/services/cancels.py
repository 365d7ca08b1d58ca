"""Cancels of jobs that run here, from whichever process they come.

The log's thread tells of each ask as soon as it has read it. An async task is cancelled and may
clean up; a child process is killed; a function in a thread cannot be stopped: its slot is free for
the next job, and it learns of the ask by ``current_job().cancel_asked``.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from anyio import sleep_forever

from taskq.engine import Cause, Settlement, kinds
from taskq.hooks import running_job

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from taskq import Delivery
    from taskq.engine import Ask, Store
    from taskq_workers.slots.slots import Slots

_log: Final = logging.getLogger("taskq.worker")


class CancelListener:
    """Stops the jobs of slots that somebody wants cancelled."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    async def run(self, store: Store, *, task_status: TaskStatus[None]) -> None:
        """Listen until cancelled: jobs that still run while the worker drains may be cancelled."""
        leave = store.on_cancel(self._on_ask)
        try:
            task_status.started()
            await sleep_forever()
        finally:
            leave()

    def _on_ask(self, ask: Ask, _: None) -> None:
        # A delivery that came with this very news is in the feed's buffer after this turn.
        self._slots.loop.call_soon(self._stop, ask)

    def _stop(self, ask: Ask) -> None:
        """Stop the job, unless it is settled already, or another worker of this process runs it."""
        slots = self._slots
        for slot in slots.slots:
            delivery = slot.delivery
            if delivery is not None and (delivery.job, delivery.token) == ask:
                job = slot.context.get(running_job)
                if job is not None and job.delivery is delivery:
                    job.ask_cancel()
                _log.info("job %s is cancelled while it runs", delivery.job_id)
                slot.stop(cancelled)
                return
        buffer = slots.feed.buffer
        for delivery in buffer:
            if (delivery.job, delivery.token) == ask:
                buffer.remove(delivery)
                slots.put(cancelled(delivery), monotonic())
                return
        held = None if slots.gates is None else slots.gates.withdraw(ask)
        if held is not None:
            slots.put(cancelled(held), monotonic())


def cancelled(delivery: Delivery) -> Settlement:
    return Settlement(kinds.CANCEL, delivery, None, 0, Cause.ASKED)
