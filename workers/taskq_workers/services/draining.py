"""Says what a drain waits for, since somebody may sit before it who has pressed Ctrl-C."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from anyio import sleep

from taskq.values import listed

if TYPE_CHECKING:
    from taskq import Delivery

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
            drain_seconds, listed(held, _NAMED_MAX),
        )  # fmt: skip
