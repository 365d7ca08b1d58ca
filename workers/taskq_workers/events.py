"""Events of a worker for its owner: one for each job that has left a slot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from taskq import engine, values

_log: Final = logging.getLogger("taskq.worker")

JobEnd: TypeAlias = Literal["succeeded", "retried", "dead", "released", "cancelled"]


@values.dataclass(slots=True)
class JobFinished:
    """An attempt of a job ended, also by a retry or a release.

    It is not frozen, since that would double the time to create it.

    Attributes:
        job_id: id of the job.
        task: name of its task.
        outcome: how it ended; "released": given back without using up the attempt (shutdown,
            ``Snooze``, or the job waits within its run); "cancelled": stopped by a request.
        seconds: run time of the attempt in this process.
        attempt: number of this attempt, from 1.
        attempts_max: how many attempts the job may use up; 0 for no limit.
        reason: why it failed: first line ``Type: message``, then the last lines of the traceback.
        delay_seconds: time until the job is due again; None if it ended.
        queue: queue that it was claimed from.
    """

    job_id: str
    task: str
    outcome: JobEnd
    seconds: float
    attempt: int
    attempts_max: int
    reason: str = ""
    delay_seconds: float | None = None
    queue: str = ""


Hook: TypeAlias = "Callable[[JobFinished], object]"

_OUTCOMES: Final[dict[engine.Kind, JobEnd]] = {
    engine.kinds.SUCCESS: "succeeded",
    engine.kinds.RETRY: "retried",
    engine.kinds.DEATH: "dead",
    engine.kinds.RELEASE: "released",
    engine.kinds.CANCEL: "cancelled",
}
_DUE_AGAIN: Final = frozenset({engine.kinds.RETRY, engine.kinds.RELEASE})


def call_hook(hook: Hook, settlement: engine.Settlement, seconds: float) -> None:
    """Call the hook with the event of one settlement; log its errors.

    An ``on_event`` hook runs in the event loop's thread, so it should return at once. An error of
    a hook stops nothing.
    """
    kind, delivery = settlement.kind, settlement.delivery
    event = JobFinished(
        delivery.job_id,
        delivery.lane.task,
        _OUTCOMES[kind],
        seconds,
        delivery.attempt,
        delivery.attempts_max,
        queue=delivery.queue,
    )
    # The body of a waiting job is no text.
    if kind is not engine.kinds.SUCCESS and settlement.cause is not engine.Cause.WAITS:
        event.reason = (settlement.body or b"").decode("utf-8", "replace")
        if kind in _DUE_AGAIN:
            event.delay_seconds = settlement.delay_ns / values.SECOND_NS
    try:
        hook(event)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a hook is somebody else's code
        _log.exception("the on_event hook failed on job %s; the worker goes on", event.job_id)
