"""Log the running jobs of a slow drain, for a person at the terminal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from anyio import sleep, sleep_forever

from taskq import engine, hooks, values

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from taskq import Delivery
    from taskq_workers.slots import feed, slots

_log: Final = logging.getLogger("taskq.worker")
#: How long a drain may take in silence.
SILENCE_SECONDS: Final = 0.5
_NAMED_MAX: Final = 3


async def tell_drain(
    running: Callable[[], list[tuple[Delivery, float | None]]], drain_seconds: float
) -> None:
    await sleep(SILENCE_SECONDS)
    held = [f"{job.task} {job.job_id}" for job, _ in running()]
    if held:
        _log.warning(
            "the worker stops; running jobs get %g s to finish (drain_timeout): %s",
            drain_seconds, values.listed(held, _NAMED_MAX),
        )  # fmt: skip


class LastUploads:
    """Has the logs of a burst that ran dry adopt what waits there."""

    def __init__(self) -> None:
        #: how many jobs had ended when it ran dry last
        self._ended = -1

    def look(self, runner: feed.Runner | None, stores: Iterable[engine.Store]) -> bool:
        """Adopt, and let the runner look again; False if that brought nothing the last time."""
        assert runner is not None
        before, self._ended = self._ended, sum(runner.settler.ended.values())
        if before == self._ended or runner.feed.allowed(1) <= 0:
            return False
        asked = [store.port().adopt() for store in stores]

        def on_adopted(done: asyncio.Future[list[Any]]) -> None:
            for answer in [] if done.cancelled() else done.result():
                if isinstance(answer, BaseException):
                    _log.error("not all uploads were adopted: %s", answer)
            runner.feed.look_anew()

        asyncio.gather(*asked, return_exceptions=True).add_done_callback(on_adopted)
        return True


class CancelListener:
    """Stops the jobs of slots that somebody wants cancelled."""

    def __init__(self, slots: slots.Slots) -> None:
        self._slots = slots

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        """Listen until cancelled: jobs that still run while the worker drains may be cancelled."""
        leave = store.on_cancel(self._on_ask)
        try:
            task_status.started()
            await sleep_forever()
        finally:
            leave()

    def _on_ask(self, ask: engine.Ask, _: None) -> None:
        # A delivery that came with this very news is in the feed's buffer after this turn.
        self._slots.loop.call_soon(self._stop, ask)

    def _stop(self, ask: engine.Ask) -> None:
        """Stop the job, unless it is settled already, or another worker of this process runs it."""
        slots = self._slots
        for slot in slots.slots:
            delivery = slot.delivery
            if delivery is not None and (delivery.job, delivery.token) == ask:
                job = slot.context.get(hooks.running_job)
                if job is not None and job.delivery is delivery:
                    job.ask_cancel()
                _log.info("job %s is cancelled while it runs", delivery.job_id)
                slot.stop(cancellation)
                return
        buffer = slots.feed.buffer
        for delivery in buffer:
            if (delivery.job, delivery.token) == ask:
                buffer.remove(delivery)
                slots.put(cancellation(delivery), monotonic())
                return
        held = None if slots.gates is None else slots.gates.withdraw(ask)
        if held is not None:
            slots.put(cancellation(held), monotonic())


def cancellation(delivery: Delivery) -> engine.Settlement:
    return engine.Settlement(engine.kinds.CANCEL, delivery, None, 0, engine.Cause.ASKED)
