"""Time limits of one attempt: the soft limit, which a task may handle, and the hard limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from taskq import SoftTimeout, Task, hooks, values
from taskq.limits import Alarm, Deadline


class TimeLimits(values.NamedTuple):
    """Seconds that one attempt may take; None for no limit."""

    hard: float | None
    soft: float | None


def limits_of(task: Task[..., Any]) -> TimeLimits | None:
    limits = TimeLimits(task.timeout, task.soft_timeout)
    return None if limits == (None, None) else limits


def set_deadline(seconds: float | None) -> None:
    """Set ``current_job().deadline`` of this context to now plus ``seconds``."""
    job = hooks.running_job.get(None)
    if seconds is not None and job is not None:
        job.until_seconds = time.time() + seconds
        job.ends_at = time.monotonic() + seconds


def left_of(seconds: float | None) -> float | None:
    """Return the rest of a hard limit after middleware, as the function begins."""
    spent = getattr(hooks.running_job.get(None), "spent_seconds", 0.0)
    return seconds if seconds is None or not spent else left_after(spent, seconds)


def left_after(spent: float, seconds: float) -> float:
    """Return the rest of a limit after parts of its attempt that kept within the limit.

    Only a stall of the loop can end a part later; the time is given back, like by an ``Alarm``.
    """
    return min(abs(seconds - spent), seconds)


def too_long(seconds: float, and_then: str = "") -> TimeoutError:
    """Return the error of an attempt that exceeded its hard limit."""
    return TimeoutError(f"not done within its timeout of {seconds:g} s{and_then}")


def too_long_softly(seconds: float) -> SoftTimeout:
    return SoftTimeout(f"not done within its soft_timeout of {seconds:g} s")


def with_limits(
    function: Callable[..., Coroutine[Any, Any, Any]], limits: TimeLimits
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the function with its limits: SoftTimeout is raised in it, then it is cancelled.

    A cancelled function raises a TimeoutError that names the limit.
    """
    hard, soft = limits

    async def call(*args: Any, **kwargs: Any) -> Any:
        left = left_of(hard)
        set_deadline(left)
        limit = Deadline(left)
        try:
            async with limit:
                coroutine = function(*args, **kwargs)
                return await (coroutine if soft is None else Softened(coroutine, soft))
        except TimeoutError as error:
            if hard is not None and limit.expired() and not isinstance(error, SoftTimeout):
                raise too_long(hard) from error
            raise

    return call


class Softened:
    """Awaits a coroutine in the current task, and raises SoftTimeout in it after some seconds.

    The task is cancelled for that, so that the awaited future ends properly; here, between task
    and coroutine, the cancellation is replaced by the SoftTimeout.
    """

    __slots__ = ("_before", "_coroutine", "_rang", "_seconds")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], seconds: float) -> None:
        self._coroutine = coroutine
        self._seconds = seconds
        self._before = 0
        self._rang = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        self._before = task.cancelling()
        timer = Alarm(self._seconds, lambda: self._ring(task))
        coroutine, error, sent = self._coroutine, None, None
        try:
            while True:
                try:
                    waits = coroutine.send(sent) if error is None else coroutine.throw(error)
                except StopIteration as end:
                    return end.value
                error = None
                try:
                    sent = yield waits
                except BaseException as thrown:  # noqa: BLE001 - it is for the coroutine
                    error = thrown
                if self._rang:
                    error = self._exchange(task, error)
        finally:
            timer.cancel()
            if self._rang:
                task.uncancel()
            coroutine.close()

    def _ring(self, task: asyncio.Task[Any]) -> None:
        self._rang = True
        task.cancel()

    def _exchange(
        self, task: asyncio.Task[Any], error: BaseException | None
    ) -> BaseException | None:
        self._rang = False
        task.uncancel()
        if isinstance(error, asyncio.CancelledError) and task.cancelling() > self._before:
            return error  # another cancellation, which has priority
        if error is None or isinstance(error, asyncio.CancelledError):
            return too_long_softly(self._seconds)
        return error
