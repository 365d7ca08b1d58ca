"""Which job ended its worker, where one did: that burns an attempt, as ``os._exit()`` does.

Else it would end one worker after the other and never reach the dead letters. A worker that
somebody else ends, by a signal or with its program, burns nobody's attempt.

A job is known by the context that it runs in, which its tasks, callbacks and threads have, too. So
whoever stops the loop or cancels the worker is asked for that; and an exception that went through
the loop itself, as asyncio lets SystemExit and KeyboardInterrupt do, shows the callback it left.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from taskq.hooks import running_job

if TYPE_CHECKING:
    from contextvars import Context

    from taskq import JobContext

_THROUGH: Final = (SystemExit, KeyboardInterrupt)


class Keeper(asyncio.Task[None]):
    """The task of a worker's life; tells by whom it is cancelled.

    Attributes:
        blame: called with the job that does so, and what it did.
    """

    blame: Callable[[JobContext, BaseException], None] | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if self.blame is not None and not self.done():
            error = sys.exception()
            if isinstance(error, _THROUGH):
                job = _culprit(error)
            else:
                job = running_job.get(None)
                error = RuntimeError("it cancelled the worker that ran it")
            if job is not None:
                self.blame(job, error)
        return super().cancel(msg)


def forbid_stop(
    loop: asyncio.AbstractEventLoop, runs: Callable[[JobContext], bool]
) -> Callable[[], None]:
    """Let ``loop.stop()`` raise in the jobs for which ``runs`` is true; returns what undoes that.

    Others may stop the loop as ever. Of several workers on one loop each says which jobs are its.
    """
    attributes = vars(loop)
    stop = attributes.get("stop")
    guard = stop if isinstance(stop, _Guard) else _Guard(loop)
    attributes["stop"] = guard
    guard.runs.append(runs)

    def undo() -> None:
        guard.runs.remove(runs)
        # Whoever has put something over it meanwhile goes on calling it, which does no harm.
        if not guard.runs and attributes.get("stop") is guard:
            del attributes["stop"]
            attributes.update(guard.before)

    return undo


class _Guard:
    """Stands for ``loop.stop`` while a worker runs there.

    Attributes:
        runs: of each worker, whether it runs a job.
        before: the attribute of the loop, if somebody had set one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.runs: list[Callable[[JobContext], bool]] = []
        self.before = {name: value for name, value in vars(loop).items() if name == "stop"}
        self._stop = loop.stop

    def __call__(self) -> None:
        job = running_job.get(None)
        if job is not None and any(runs(job) for runs in self.runs):
            raise RuntimeError(
                f"job {job.id} ({job.task}) may not stop the event loop: its worker runs on it"
            )
        self._stop()


def _culprit(error: BaseException) -> JobContext | None:
    trace = error.__traceback__
    while trace is not None:
        handle = trace.tb_frame.f_locals.get("self")
        if isinstance(handle, asyncio.Handle):
            context: Context | None = getattr(handle, "_context", None)
            return None if context is None else context.get(running_job)
        trace = trace.tb_next
    return None
