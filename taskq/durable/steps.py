"""Steps of a run: functions that run once, their policies, and their undoing."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from random import random
from typing import Any, Final

import taskq.telemetry as telemetry
from taskq.app.context import JobContext
from taskq.calls.serialization import ResultCodec
from taskq.calls.signature import Signature
from taskq.connection import blocking, tracing
from taskq.core import errors, model
from taskq.core.exceptions import text_of
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.retry import Decision, RetryAfter, RetryPolicy, Snooze, exponential
from taskq.core.values import NamedTuple
from taskq.durable.attempt import IN_PLACE_NS, Attempt, Suspended, Tries, step_here, undoing_here
from taskq.limits import Deadline
from taskq.log.decide.ends import UNDO
from taskq.log.machine.threads import on_thread

_FUNCTIONS_KEPT: Final = 512
_ERROR_CHARACTERS_MAX: Final = 1_000
_log: Final = logging.getLogger("taskq")


class StepPolicy(NamedTuple):
    """Retries of a step, and the limit of each try; None: no retry, no limit."""

    retry: RetryPolicy | None
    timeout_ns: int | None


class StepCall(NamedTuple):
    """A step: its name, the number of this call of the name, and the function to run."""

    name: str
    number: int
    fn: Callable[..., Any]
    args: Any
    kwargs: Any
    policy: StepPolicy | None = None

    def __str__(self) -> str:
        return f"{self.name}#{self.number}"


#: Policy of an undo without its own policy.
UNDO_POLICY: Final = StepPolicy(exponential(attempts=10), None)


class Undone(NamedTuple):
    """The end of a job whose steps were undone; with a ``kind`` of 0, the waits of an undo."""

    kind: int
    cause: int
    body: str | bytes


class Undo:
    """A block that a step undoes if the job fails for good or is cancelled in the block."""

    def __init__(self, here: StepAttempt, call: StepCall) -> None:
        self._here = here
        self.call = call

    async def __aenter__(self) -> None:
        """Record the undo in the log; from now on it runs if the job fails for good."""
        await self._here.enter(self)

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Drop the undo if the block ended without an error."""
        if error is None:
            self._here.undos.remove(self)

    def __enter__(self) -> None:
        """Do as ``async with`` in a task that runs in a thread."""
        blocking.run(self._here.enter(self))

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Drop the undo if the block ended without an error."""
        if error is None:
            self._here.undos.remove(self)


class StepAttempt(Attempt):
    """An attempt that runs steps and undoes them.

    Attributes:
        undos: steps that would run if the job failed for good or was cancelled now, newest last.
    """

    def __init__(self, job: JobContext, *, in_thread: bool) -> None:
        super().__init__(job, in_thread=in_thread)
        self.undos: list[Undo] = []

    async def step(self, call: StepCall) -> Any:
        """Do as ``durable.step``."""
        done = await self._begin(Form.STEP, call.name, call.number)
        codec = self._codec(call)
        if done is not None:
            return self._decode(call, codec, await self._unpacked(done))
        while True:
            if self._tries:
                await self._pause(call)
            self._busy += 1
            try:
                await self._ready()
                began_ns = self.now_ns()
                try:
                    value = await self._run(call)
                except Exception as error:
                    if call.policy is None or call.policy.retry is None:
                        raise
                    await self._record_try(call, error, call.policy.retry, began_ns)
                    continue
                body, value = self._encode(call, codec, value)
                await self._record(Form.STEP, call.name, call.number, body, began_ns)
            finally:
                self._busy -= 1
                self._look_soon()
            return value

    async def _run(self, call: StepCall) -> Any:
        token = step_here.set(f"{self._job.id}:{call}")
        try:
            if call.policy is not None and call.policy.timeout_ns is not None:
                return await self._run_limited(call, call.policy.timeout_ns)
            if tracing.tracer is None:
                return await (
                    call.fn(*call.args, **call.kwargs)
                    if is_async_function(call.fn)
                    else run_function(call.fn, call.args, call.kwargs)
                )
            with telemetry.stepping(call.name, call.number, tracing.tracer):
                return await run_function(call.fn, call.args, call.kwargs)
        finally:
            step_here.reset(token)

    async def _run_limited(self, call: StepCall, limit_ns: int) -> Any:
        limit = Deadline(limit_ns / model.SECOND_NS)
        tracer = tracing.tracer
        try:
            with telemetry.stepping(call.name, call.number, tracer) if tracer else nullcontext():
                async with limit:
                    return await run_function(call.fn, call.args, call.kwargs)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"step {call} was not done within its timeout of {limit_ns / model.SECOND_NS:g} s"
            ) from error

    def step_in_thread(self, call: StepCall) -> Any:
        """Do as ``durable.step_sync``, in the thread of the task."""
        done = blocking.run(self._begin(Form.STEP, call.name, call.number))
        codec = self._codec(call)
        if done is not None:
            return self._decode(call, codec, blocking.run(self._unpacked(done)))
        while True:
            if self._tries:
                blocking.run(self._pause(call))
            blocking.run(self._ready())
            began_ns = self.now_ns()
            try:
                value = self._run_in_thread(call)
            except Exception as error:
                if call.policy is None or call.policy.retry is None:
                    raise
                blocking.run(self._record_try(call, error, call.policy.retry, began_ns))
                continue
            body, value = self._encode(call, codec, value)
            blocking.run(self._record(Form.STEP, call.name, call.number, body, began_ns))
            return value

    def _run_in_thread(self, call: StepCall) -> Any:
        if (
            call.policy is not None and call.policy.timeout_ns is not None
        ):  # a thread cannot stop itself
            return blocking.run(self._run(call))
        token = step_here.set(f"{self._job.id}:{call}")
        tracer = tracing.tracer
        try:
            with telemetry.stepping(call.name, call.number, tracer) if tracer else nullcontext():
                value = call.fn(*call.args, **call.kwargs)
        finally:
            step_here.reset(token)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise errors.InvalidStep(
                f"step {call.name!r}: step_sync() takes a plain function, no async one"
            )
        return value

    async def _pause(self, call: StepCall) -> None:
        """Wait for the next try of a step; a long wait holds no slot."""
        title = call.name, call.number
        tries = self._tries.get(title)
        if tries is None:
            return
        begun = self._begun.get(title)
        due_ns = tries.due_ns if begun is None else max(begun.until_ns, tries.due_ns)
        left_ns = due_ns - self.now_ns()
        if left_ns <= 0:
            return
        if left_ns > IN_PLACE_NS:
            await self._wait(Wait(Form.TRIED, *title, due_ns))
        self._busy += 1
        try:
            await asyncio.sleep(left_ns / model.SECOND_NS)
        finally:
            self._busy -= 1
            self._look_soon()

    async def _record_try(
        self, call: StepCall, error: Exception, policy: RetryPolicy, began_ns: int
    ) -> None:
        """Write a failed try; raise its error if no try is left."""
        if isinstance(error, errors.InvalidStep | Snooze):
            raise error
        title = call.name, call.number
        now_ns, tries = self.now_ns(), self._tries.get(title)
        tries = tries or Tries(0, 0, began_ns)
        count = tries.failed + 1
        wish = policy.wish(error, count)
        if isinstance(wish, Snooze):
            decision: Decision = RetryAfter(policy.bounded_ns(wish.delay_ns) / model.SECOND_NS)
        else:
            decision = policy.decide(count, wish or error, random())  # noqa: S311 - jitter
        due_ns = 0
        if isinstance(decision, RetryAfter):
            delay_ns = decision.delay_ns
            if not policy.is_too_old(now_ns - tries.began_ns, delay_ns):
                due_ns = now_ns + delay_ns
        tried = {"try": count, "due_ns": due_ns, "error": summary(error)}
        await self._record(Form.TRIED, *title, json.dumps(tried).encode(), began_ns)
        if not due_ns:
            self._tries.pop(title, None)
            raise error
        self._tries[title] = Tries(count, due_ns, tries.began_ns)
        self._begun.pop(title, None)

    def _codec(self, call: StepCall) -> ResultCodec:
        try:
            return codec_of(call.fn)
        except errors.UsageError as error:
            raise self._about(call.name, call.number, error) from None

    def _encode(self, call: StepCall, codec: ResultCodec, value: object) -> tuple[bytes, Any]:
        """Return a value as JSON, and the value that later attempts will read."""
        try:
            body = codec.encode(value)
        except errors.UsageError as error:
            raise self._about(call.name, call.number, error) from None
        except Exception as error:
            problem = f"the value cannot be kept: {summary(error)}"
            raise self._about(call.name, call.number, problem) from error
        if body is None:
            return b"null", None
        return body, self._decode(call, codec, body)

    def _decode(self, call: StepCall, codec: ResultCodec, body: bytes) -> Any:
        try:
            return codec.decode(body)
        except errors.UsageError as error:
            raise self._about(call.name, call.number, error) from None

    async def enter(self, undo: Undo) -> None:
        """Record an undo, unless an earlier attempt did so."""
        title = undo.call.name, undo.call.number
        self._check_running()
        await self._loaded()
        if title not in self._registered:
            await self._stop_if_unwinding()
            await self._record(Form.UNDO, *title)
            self._registered.add(title)
        self._unasked.discard(title)
        self.undos.append(undo)

    def unwinds(self, *, is_end: bool) -> bool:
        """Return whether undos must run before the job ends or waits again."""
        if self.unwinding is not None:
            return is_end or self.suspended
        return is_end and bool(self.undos)

    async def undo(self, kind: int, cause: int, reason: str) -> Undone:
        """Run the undos, newest first; return the end of the job.

        The reason names an undo that failed for good; older undos still run.
        """
        token = undoing_here.set(True)
        task, notes = asyncio.current_task(), []
        assert task is not None
        try:
            if self.unwinding is None:
                self.unwinding: dict[str, Any] | None
                self.unwinding = {"kind": kind, "cause": cause, "reason": reason}
                await self._record(Form.UNDOING, UNDO, 1, json.dumps(self.unwinding).encode())
            self._waits.clear()
            for undo in reversed(self.undos):
                cancelled = task.cancelling()
                try:
                    await self.step(undo.call)
                    notes.append(f"undone: {undo.call}")
                except GeneratorExit:
                    raise
                except BaseException as error:
                    is_over = isinstance(error, Suspended) and (self._waits or self._is_cut)
                    if is_over or task.cancelling() > cancelled:
                        raise
                    # The error belongs to the undo: older undos still run.
                    _log.exception("job %s: %s could not be undone", self._job.id, undo.call)
                    notes.append(f"not undone: {undo.call} ({summary(error)})")
        except Suspended:
            return Undone(0, 0, pack_waits(self._waits.values()))
        finally:
            undoing_here.reset(token)
        why = self.unwinding
        return Undone(why["kind"], why["cause"], "\n".join(filter(None, [why["reason"], *notes])))


def summary(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}"[:_ERROR_CHARACTERS_MAX]


# -- functions of steps, and their values ----------------------------------------------------------


async def run_function(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call an async function in this loop, any other in a thread."""
    if is_async_function(fn):
        return await fn(*args, **kwargs)
    value = await on_thread(fn, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


is_async_function: Final = lru_cache(_FUNCTIONS_KEPT)(inspect.iscoroutinefunction)


@lru_cache(_FUNCTIONS_KEPT)
def parameters_of(fn: Callable[..., Any]) -> frozenset[str]:
    """Return the names of a function's parameters; empty if it has no readable signature."""
    try:
        return frozenset(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return frozenset()


@lru_cache(_FUNCTIONS_KEPT)
def codec_of(fn: Callable[..., Any]) -> ResultCodec:
    """Return the codec of a function's results."""
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    try:
        signature = Signature(name, fn)
    except (TypeError, ValueError) as error:
        if isinstance(error, errors.TaskqError):
            raise
        signature = Signature(name, _untyped)
    return ResultCodec(signature)


def _untyped() -> Any:
    """Stand in for functions without a readable signature."""
