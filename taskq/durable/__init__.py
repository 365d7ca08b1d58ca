"""Durable steps within a task: it continues after a crash, a retry, or days of waiting.

::

    @app.task(retry=5)
    async def order(order_id: str) -> str:
        receipt = await durable.step("charge", charge, order_id)
        await durable.sleep("2h")
        paid = await durable.event("paid", Payment, timeout="7d")
        return await durable.step("ship", ship, order_id, paid)

The result of a finished step is a record of the log, on disk before the next line runs. When the
job runs again, the results of finished steps are read from the log, and the rest runs. Waiting for
a time, a signal or other jobs holds no slot: the run ends by ``Suspended``, and the job runs again
after the wait.

A step is identified by its name and the number of its call, counted at the call. So steps may
run side by side and end in any order. A crash between the effect of a step and its record repeats
the effect; ``key()`` is an idempotency key against that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

from taskq.app.hooks import StepDone
from taskq.calls.call import Call
from taskq.connection.blocking import run
from taskq.core.durations import Duration, nanoseconds, positive_nanoseconds
from taskq.core.errors import InvalidStep, UsageError
from taskq.core.folds.steps import Form
from taskq.core.parsing import check_name
from taskq.core.retry import RetryPolicy, policy_of
from taskq.durable.attempt import Suspended, step_here
from taskq.durable.steps import (
    UNDO_POLICY,
    StepCall,
    StepPolicy,
    Undo,
    is_async_function,
    parameters_of,
)
from taskq.durable.waits import DurableRun, EventTimeout, OnFailure, Part
from taskq.flows.flow import Failed

__all__ = [
    "EventTimeout",
    "Part",
    "StepDone",
    "Suspended",
    "as_step",
    "call",
    "call_sync",
    "event",
    "event_sync",
    "first",
    "first_sync",
    "key",
    "sleep",
    "sleep_sync",
    "step",
    "step_sync",
    "undo",
    "undo_sync",
    "version",
    "version_sync",
]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


@overload
def step(
    name: str,
    fn: Callable[..., Coroutine[Any, Any, R]],
    /,
    *args: Any,
    retry: RetryPolicy | int,
    timeout: Duration | None = None,
    **kwargs: Any,
) -> Coroutine[Any, Any, R]: ...


@overload
def step(
    name: str,
    fn: Callable[..., R],
    /,
    *args: Any,
    retry: RetryPolicy | int,
    timeout: Duration | None = None,
    **kwargs: Any,
) -> Coroutine[Any, Any, R]: ...


@overload
def step(
    name: str,
    fn: Callable[..., Coroutine[Any, Any, R]],
    /,
    *args: Any,
    timeout: Duration,
    **kwargs: Any,
) -> Coroutine[Any, Any, R]: ...


@overload
def step(
    name: str,
    fn: Callable[..., R],
    /,
    *args: Any,
    timeout: Duration,
    **kwargs: Any,
) -> Coroutine[Any, Any, R]: ...


@overload
def step(
    name: str, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, R]: ...


@overload
def step(
    name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, R]: ...


def step(name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a function once, and keep its result.

    An async function runs in this loop, any other in a thread. If it raises, nothing is kept, and
    the next attempt runs it again.

    Args:
        name: name of the step, as for events: 1 to 255 printable bytes, without "#".
        fn: the function.
        args: its arguments.
        retry: tries of the step in each attempt of its job: a policy, or their number. A failed
            try is a record and uses no attempt; a delay of over a second holds no slot.
        timeout: limit of each try, which fails by TimeoutError after it. A thread cannot be
            stopped: a plain function goes on, and its result is dropped.
        kwargs: its arguments by name. An argument "retry" or "timeout" needs ``functools.partial``.

    Raises:
        InvalidStep: the name is invalid or belongs to another kind of step, or the value cannot
            be stored or no longer fits the function's return type. The job is dead at once.
        UsageError: no job runs here.
    """
    here = DurableRun.here("step")
    policy = _policy(name, fn, kwargs) if kwargs else None
    return here.step(StepCall(name, here.number(name, Form.STEP, fn), fn, args, kwargs, policy))


@overload
def step_sync(
    name: str,
    fn: Callable[..., R],
    /,
    *args: Any,
    retry: RetryPolicy | int,
    timeout: Duration | None = None,
    **kwargs: Any,
) -> R: ...


@overload
def step_sync(
    name: str,
    fn: Callable[..., R],
    /,
    *args: Any,
    timeout: Duration,
    **kwargs: Any,
) -> R: ...


@overload
def step_sync(name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...


def step_sync(name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Do as ``step`` in a task that runs in a thread; the function runs there, too.

    With a ``timeout`` it runs in another thread.
    """
    here = DurableRun.here("step", in_thread=True)
    policy = _policy(name, fn, kwargs) if kwargs else None
    number = here.number(name, Form.STEP, fn)
    return here.step_in_thread(StepCall(name, number, fn, args, kwargs, policy))


@overload
def as_step(fn: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def as_step(
    *,
    name: str | None = None,
    retry: RetryPolicy | int | None = None,
    timeout: Duration | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def as_step(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    retry: RetryPolicy | int | None = None,
    timeout: Duration | None = None,
) -> Any:
    """Make each call of a function a step, called by the function's name.

    ::

        @durable.as_step(retry=retry.exponential(attempts=5), timeout="30s")
        async def charge(order: str) -> str: ...

        receipt = await charge(order)  # in a task

    A plain function is a step of tasks that run in threads, as by ``step_sync``.

    Args:
        fn: the function, if the decorator is written without options.
        name: name of the step, if not the function's.
        retry: as for ``step``.
        timeout: as for ``step``.

    Raises:
        UsageError: an argument is wrong, or a call comes from outside of a task.
    """
    if fn is not None and not callable(fn):
        raise UsageError(f"as_step takes a function, got {fn!r:.60}: write @as_step(name=...)")
    policy = _policy_of(retry, timeout)

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        title = name if name is not None else str(getattr(fn, "__name__", fn))
        check_name("the name of a step", title)
        in_thread = not is_async_function(fn)

        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            here = DurableRun.here(title, in_thread=in_thread)
            number = here.number(title, Form.STEP, fn)
            do = here.step_in_thread if in_thread else here.step
            return do(StepCall(title, number, fn, args, kwargs, policy))

        return call

    return decorate if fn is None else decorate(fn)


def _policy(name: str, fn: Callable[..., Any], kwargs: dict[str, Any]) -> StepPolicy | None:
    """Move the step's own options out of the function's arguments."""
    own = {option: kwargs.pop(option, None) for option in ("retry", "timeout")}
    for option, value in own.items():
        if value is not None and option in parameters_of(fn):
            raise InvalidStep(
                f"step {name!r}: {option}= is the step's own, and the function has a parameter of "
                f"that name: give it functools.partial(fn, {option}=...)"
            )
    try:
        return _policy_of(**own)
    except UsageError as error:
        raise InvalidStep(f"step {name!r}: {error}") from None


def _policy_of(retry: RetryPolicy | int | None, timeout: Duration | None) -> StepPolicy | None:
    if retry is None and timeout is None:
        return None
    return StepPolicy(
        None if retry is None else policy_of(retry),
        None if timeout is None else positive_nanoseconds(timeout, "timeout"),
    )


def undo(name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Undo:
    """Undo a block by a step, if the job fails for good or is cancelled in the block.

    ::

        receipt = await durable.step("charge", charge, order)
        async with durable.undo("refund", refund, receipt):
            await durable.step("ship", ship, order)

    Several are undone the newest first, also after a crash. A block that ends without an error is
    not undone.

    Args:
        name: name of the undoing step.
        fn: its function; an async one runs in this loop, any other in a thread.
        args: its arguments.
        kwargs: its arguments by name, and ``retry`` and ``timeout`` as for ``step``; ten tries by
            default. If it fails for good, the job's reason names it.

    Raises:
        InvalidStep: as ``step``.
        UsageError: no job runs here.
    """
    here = DurableRun.here("undo")
    policy = (_policy(name, fn, kwargs) if kwargs else None) or UNDO_POLICY
    number = here.number(name, Form.UNDO, fn)
    return Undo(here, StepCall(name, number, fn, args, kwargs, policy))


def undo_sync(name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Undo:
    """Do as ``undo`` by ``with`` in a task that runs in a thread."""
    DurableRun.here("undo", in_thread=True)
    return undo(name, fn, *args, **kwargs)


def sleep(duration: Duration) -> Part[None]:
    """Wait without a slot, counted from the first attempt; under a second with the slot.

    Raises:
        InvalidStep: the argument is no duration.
        UsageError: no job runs here.
    """
    return DurableRun.here("sleep").sleep(_span(duration, "sleep"))


def sleep_sync(duration: Duration) -> None:
    """Do as ``sleep`` in a task that runs in a thread."""
    run(DurableRun.here("sleep", in_thread=True).sleep(_span(duration, "sleep")))


@overload
def event(
    name: str,
    kind: type[T],
    *,
    timeout: Duration | None = None,
    where: Callable[[T], object] | None = None,
) -> Part[T]: ...


@overload
def event(
    name: str,
    kind: None = None,
    *,
    timeout: Duration | None = None,
    where: Callable[[Any], object] | None = None,
) -> Part[Any]: ...


def event(
    name: str,
    kind: Any = None,
    *,
    timeout: Duration | None = None,
    where: Callable[[Any], object] | None = None,
) -> Any:
    """Wait without a slot for a signal that ``app.signal(job, name, value)`` sends to this job.

    Each call of a name takes the oldest signal of that name that fits, also an earlier one.
    A signal that does not fit is kept for another call.

    Args:
        name: name of the signal.
        kind: type of its value; None for plain JSON.
        timeout: how long to wait, counted from the first attempt; None for ever.
        where: whether a value fits; a plain function without effects, called again in each attempt.

    Raises:
        EventTimeout: no signal came in time.
        InvalidStep: as ``step``.
    """
    here = DurableRun.here("event")
    return here.event(name, kind, _limit(timeout), where)


@overload
def event_sync(
    name: str,
    kind: type[T],
    *,
    timeout: Duration | None = None,
    where: Callable[[T], object] | None = None,
) -> T: ...


@overload
def event_sync(
    name: str,
    kind: None = None,
    *,
    timeout: Duration | None = None,
    where: Callable[[Any], object] | None = None,
) -> Any: ...


def event_sync(
    name: str,
    kind: Any = None,
    *,
    timeout: Duration | None = None,
    where: Callable[[Any], object] | None = None,
) -> Any:
    """Do as ``event`` in a task that runs in a thread."""
    here = DurableRun.here("event", in_thread=True)
    return run(here.event(name, kind, _limit(timeout), where))


@overload
def call(
    calls: Call[R], *, on_failure: Literal["raise"] = "raise", detach: bool = False
) -> Part[R]: ...


@overload
def call(
    calls: Sequence[Call[R]], *, on_failure: Literal["raise"] = "raise", detach: bool = False
) -> Part[list[R]]: ...


@overload
def call(
    calls: Sequence[Call[R]], *, on_failure: Literal["run"], detach: bool = False
) -> Part[list[R | Failed]]: ...


def call(calls: Any, *, on_failure: OnFailure = "raise", detach: bool = False) -> Any:
    """Enqueue jobs, wait without a slot until all have ended, and return their results in order.

    They are enqueued once, together with the record of this step, and their results are kept
    until this job ends.

    Args:
        calls: one ``task.call(...)``, or a list of them.
        on_failure: reaction to a failed job: "raise" the error of its ``result()``, or "run" on
            with a ``Failed`` as its result.
        detach: the jobs go on if this one is cancelled; by default they are cancelled with it.

    Raises:
        JobFailed, JobCancelled, JobExpired: end of the first failed job, in order.
        InvalidStep: a call has a key, the number of calls differs from an earlier attempt's, or
            they are over TRANSACTION_BYTES_MAX together.
    """
    return DurableRun.here("call").call(calls, on_failure, detach=detach)


def call_sync(calls: Any, *, on_failure: OnFailure = "raise", detach: bool = False) -> Any:
    """Do as ``call`` in a task that runs in a thread."""
    return run(DurableRun.here("call", in_thread=True).call(calls, on_failure, detach=detach))


@overload
def first(part: Part[R], other: Part[S], /) -> Coroutine[Any, Any, R | S]: ...


@overload
def first(part: Part[R], other: Part[S], third: Part[T], /) -> Coroutine[Any, Any, R | S | T]: ...


@overload
def first(
    part: Part[R], other: Part[S], third: Part[T], fourth: Part[U], /
) -> Coroutine[Any, Any, R | S | T | U]: ...


@overload
def first(
    part: Part[R], other: Part[S], third: Part[T], fourth: Part[U], fifth: Part[V], /
) -> Coroutine[Any, Any, R | S | T | U | V]: ...


@overload
def first(*parts: Part[R]) -> Coroutine[Any, Any, R]: ...


def first(*parts: Part[Any]) -> Any:
    """Wait without a slot for the first of several waits, and return its value.

    ::

        paid = await durable.first(durable.event("paid", Payment), durable.sleep("2d"))

    The order in the log decides, once: every later attempt gets the same result. Signals and jobs
    come before times that have passed. The other waits are dropped: their signals stay for later
    events, and their jobs go on.

    Args:
        parts: results of ``event``, ``sleep`` and ``call``, not awaited. Add new ones at the end.

    Raises:
        EventTimeout: an event's ``timeout`` came first.
        InvalidStep: an argument is no such wait.
    """
    return DurableRun.here("first").first(parts)


@overload
def first_sync(part: Part[R], other: Part[S], /) -> R | S: ...


@overload
def first_sync(part: Part[R], other: Part[S], third: Part[T], /) -> R | S | T: ...


@overload
def first_sync(*parts: Part[R]) -> R: ...


def first_sync(*parts: Part[Any]) -> Any:
    """Do as ``first`` in a task that runs in a thread; make its waits by the async functions."""
    return run(DurableRun.here("first", in_thread=True).first(parts))


def version(current: str, *, before: str | None = None) -> Coroutine[Any, Any, str]:
    """Return the version of the code that this job began with: ``current`` at its first call.

    ::

        if await durable.version("2026-12", before="2026-01") == "2026-01":
            ...  # as it was

    Args:
        current: the version of this code.
        before: version of jobs with steps that are older than this call; None: ``current``.

    Raises:
        InvalidStep: a version is not a short text.
    """
    here = DurableRun.here("version")
    for text in (current, before):
        if text is not None:
            try:
                check_name("a version", text)
            except UsageError as error:
                raise InvalidStep(str(error)) from None
    return here.version(current, before)


def version_sync(current: str, *, before: str | None = None) -> str:
    """Do as ``version`` in a task that runs in a thread."""
    DurableRun.here("version", in_thread=True)
    return run(version(current, before=before))


def key() -> str:
    """Return a text that is the same in every attempt at this step, and in no other step.

    Use it in ``Idempotency-Key`` headers and unique columns, so that a crash repeats no effect.

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


def _limit(timeout: Duration | None) -> int | None:
    return None if timeout is None else _span(timeout, "timeout")


def _span(duration: Duration, what: str) -> int:
    try:
        return nanoseconds(duration, what)
    except UsageError as error:
        raise InvalidStep(str(error)) from None
