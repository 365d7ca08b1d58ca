"""Steps within a task, so that it goes on where it was: after a crash, a retry, or days of waiting.

::

    @app.task(retry=5)
    async def order(order_id: str) -> str:
        receipt = await durable.step("charge", charge, order_id)
        await durable.sleep("2h")
        paid = await durable.event("paid", Payment, timeout="7d")
        return await durable.step("ship", ship, order_id, paid)

The result of a finished step is a record of the log, on disk before the next line runs. When the
job runs again, such steps answer from the log, and the rest runs. Waiting for a time, a signal or
other jobs holds no slot: the run ends by ``Suspended``, and the job runs again once it is there.

A step is known by its name and by which call of that name it is, counted when it is called. So
steps may run side by side, and end in any order. Between the effect of a step and its record a
crash repeats the effect; ``key()`` is a text to make it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from taskq.app.hooks import StepDone
from taskq.connection.blocking import run
from taskq.core.durations import nanoseconds
from taskq.core.errors import UsageError
from taskq.durable.attempt import CALL, SLEEP, EventTimeout, OnFailure, Run, Suspended, step_here

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from taskq.calls.call import Call
    from taskq.core.durations import Duration
    from taskq.flows.building import Failed

__all__ = [
    "EventTimeout",
    "StepDone",
    "Suspended",
    "call",
    "call_sync",
    "event",
    "event_sync",
    "key",
    "sleep",
    "sleep_sync",
    "step",
    "step_sync",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@overload
def step(
    name: str, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, R]: ...


@overload
def step(
    name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, R]: ...


def step(name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a function once, and keep what it returns.

    An async function runs in this loop, any other in a thread. If it raises, nothing is kept, and
    the next attempt runs it again.

    Raises:
        UsageError: the name is none or belongs to something else, this is no task of its own
            process, or the kept result does not fit what the function returns today.
    """
    here = Run.here("step")
    return here.step(name, here.number(name, fn), fn, args, kwargs)


def step_sync(name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Do as ``step`` in a task that runs in a thread; the function runs there, too."""
    here = Run.here("step", in_thread=True)
    value: R = here.step_in_thread(name, here.number(name, fn), fn, args, kwargs)
    return value


def sleep(duration: Duration) -> Coroutine[Any, Any, None]:
    """Wait so long without a slot, counted from the first time; less than a second in place.

    Raises:
        UsageError: that is no duration, or as ``step``.
    """
    here = Run.here("sleep")
    return here.sleep(here.number(SLEEP), nanoseconds(duration, "sleep"))


def sleep_sync(duration: Duration) -> None:
    """Do as ``sleep`` in a task that runs in a thread."""
    here = Run.here("sleep", in_thread=True)
    run(here.sleep(here.number(SLEEP), nanoseconds(duration, "sleep")))


@overload
def event(
    name: str, kind: type[T], *, timeout: Duration | None = None
) -> Coroutine[Any, Any, T]: ...


@overload
def event(
    name: str, kind: None = None, *, timeout: Duration | None = None
) -> Coroutine[Any, Any, Any]: ...


def event(name: str, kind: Any = None, *, timeout: Duration | None = None) -> Any:
    """Wait without a slot for a signal: what ``app.signal(job, name, value)`` tells this job.

    Each call of a name takes the next signal of it, the oldest first; one that came before is kept.

    Args:
        name: of the signal.
        kind: type of its value; None for plain JSON.
        timeout: how long to wait, counted from the first time; None for ever.

    Raises:
        EventTimeout: none came in time.
        UsageError: the value does not fit the type, or as ``step``.
    """
    here = Run.here("event")
    limit_ns = None if timeout is None else nanoseconds(timeout, "timeout")
    return here.event(name, here.number(name), kind, limit_ns)


@overload
def event_sync(name: str, kind: type[T], *, timeout: Duration | None = None) -> T: ...


@overload
def event_sync(name: str, kind: None = None, *, timeout: Duration | None = None) -> Any: ...


def event_sync(name: str, kind: Any = None, *, timeout: Duration | None = None) -> Any:
    """Do as ``event`` in a task that runs in a thread."""
    here = Run.here("event", in_thread=True)
    limit_ns = None if timeout is None else nanoseconds(timeout, "timeout")
    return run(here.event(name, here.number(name), kind, limit_ns))


@overload
def call(calls: Call[R], *, on_failure: Literal["raise"] = "raise") -> Coroutine[Any, Any, R]: ...


@overload
def call(
    calls: Sequence[Call[R]], *, on_failure: Literal["raise"] = "raise"
) -> Coroutine[Any, Any, list[R]]: ...


@overload
def call(
    calls: Sequence[Call[R]], *, on_failure: Literal["run"]
) -> Coroutine[Any, Any, list[R | Failed]]: ...


def call(calls: Any, *, on_failure: OnFailure = "raise") -> Any:
    """Enqueue jobs, wait without a slot until all have ended, and return their results in order.

    They are enqueued once, together with the record of this step, and their results are kept for
    as long as this job lives.

    Args:
        calls: what ``task.call(...)`` returns; a list of them, or a single one.
        on_failure: "raise" what ``result()`` of a job raises that failed; "run": a ``Failed``
            stands for its result.

    Raises:
        JobFailed, JobCancelled, JobExpired: so a job ended, the first of them in order.
        UsageError: a call has a key, or it is another number of calls than last time.
        PayloadTooLarge: together they are over TRANSACTION_BYTES_MAX.
    """
    here = Run.here("call")
    return here.call(here.number(CALL), calls, on_failure)


def call_sync(calls: Any, *, on_failure: OnFailure = "raise") -> Any:
    """Do as ``call`` in a task that runs in a thread."""
    here = Run.here("call", in_thread=True)
    return run(here.call(here.number(CALL), calls, on_failure))


def key() -> str:
    """Return a text that is the same in every attempt at this step, and in no other step.

    For ``Idempotency-Key`` headers and unique columns: they make an effect once that a crash would
    repeat.

    Raises:
        UsageError: no step runs here.
    """
    try:
        return step_here.get()
    except LookupError:
        raise UsageError(
            "durable.key() is for code that runs within a step: call it in the function that is "
            "given to durable.step()"
        ) from None
