"""Steps of a run: functions that run once, and are tried again where their policy says so."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from contextlib import nullcontext
from random import random
from typing import TYPE_CHECKING, Any, Final

from taskq import telemetry
from taskq.connection import tracing
from taskq.connection.blocking import run
from taskq.core.durations import spoken
from taskq.core.errors import InvalidStep, UsageError
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.model import SECOND_NS
from taskq.core.retry import RetryAfter, Snooze, exponential
from taskq.core.values import NamedTuple
from taskq.durable.attempt import IN_PLACE_NS, Attempt, Suspended, Tries, step_here, undoing_here
from taskq.durable.values import called, codec_of, is_async_function
from taskq.log.decide.ends import UNDO

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.app.context import JobContext
    from taskq.calls.serialization import ResultCodec
    from taskq.core.retry import Decision, RetryPolicy

_ERROR_CHARACTERS_MAX: Final = 1_000
_log: Final = logging.getLogger("taskq")


class StepPolicy(NamedTuple):
    """The tries of a step, and how long each may take; None: one, and any time."""

    retry: RetryPolicy | None
    timeout_ns: int | None


#: Of an undo without a policy of its own.
_UNDO_POLICY: Final = StepPolicy(exponential(attempts=10), None)


class Undone(NamedTuple):
    """The end of a job whose steps were undone; with a ``kind`` of 0 what that waits for."""

    kind: int
    cause: int
    body: str | bytes


class Undo:
    """A block whose work is undone by a step if the job fails for good or is cancelled in it."""

    def __init__(
        self,
        here: StepAttempt,
        name: str,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        policy: StepPolicy | None,
    ) -> None:
        self._here = here
        self.name = name
        self.number = here.number(name, Form.UNDO, fn)
        self.call = fn, args, kwargs, policy or _UNDO_POLICY

    async def __aenter__(self) -> None:
        """Note the step in the log; from now on it runs if the job ends badly."""
        await self._here.enter(self)

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Forget it, if the block has done what it should."""
        if error is None:
            self._here.undos.remove(self)

    def __enter__(self) -> None:
        """Do as ``async with`` in a task that runs in a thread."""
        run(self._here.enter(self))

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Forget it, if the block has done what it should."""
        if error is None:
            self._here.undos.remove(self)


class StepAttempt(Attempt):
    """An attempt that runs steps, and undoes them.

    Attributes:
        undos: steps that run if the job fails for good or is cancelled now, the newest last.
    """

    def __init__(self, job: JobContext, *, in_thread: bool) -> None:
        super().__init__(job, in_thread=in_thread)
        self.undos: list[Undo] = []

    async def step(
        self,
        name: str,
        number: int,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        policy: StepPolicy | None = None,
    ) -> Any:
        """Do as ``durable.step``."""
        done = await self._begin(Form.STEP, name, number)
        codec = self._codec(name, number, fn)
        if done is not None:
            return self._decoded(done.name, done.number, codec, await self._unpacked(done))
        while True:
            if self._tries:
                await self._pause(name, number)
            self._busy += 1
            try:
                await self._ready()
                began_ns = self.now_ns()
                try:
                    value = await self._ran(name, number, fn, args, kwargs, policy)
                except Exception as error:
                    if policy is None or policy.retry is None:
                        raise
                    await self._failed_try(name, number, error, policy.retry, began_ns)
                    continue
                body, value = self._encoded(name, number, codec, value)
                await self._record(Form.STEP, name, number, body, began_ns)
            finally:
                self._busy -= 1
                self._look_soon()
            return value

    async def _ran(
        self,
        name: str,
        number: int,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        policy: StepPolicy | None,
    ) -> Any:
        token = step_here.set(self._key(name, number))
        try:
            if policy is not None and policy.timeout_ns is not None:
                return await self._limited(name, number, fn, args, kwargs, policy.timeout_ns)
            if tracing.tracer is None:
                return await (
                    fn(*args, **kwargs) if is_async_function(fn) else called(fn, args, kwargs)
                )
            with telemetry.stepping(name, number, tracing.tracer):
                return await called(fn, args, kwargs)
        finally:
            step_here.reset(token)

    async def _limited(
        self, name: str, number: int, fn: Callable[..., Any], args: Any, kwargs: Any, limit_ns: int
    ) -> Any:
        limit = asyncio.timeout(limit_ns / SECOND_NS)
        tracer = tracing.tracer
        try:
            with telemetry.stepping(name, number, tracer) if tracer else nullcontext():
                async with limit:
                    return await called(fn, args, kwargs)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"step {name}#{number} was not done within its timeout of {spoken(limit_ns)}"
            ) from error

    def step_in_thread(
        self,
        name: str,
        number: int,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        policy: StepPolicy | None = None,
    ) -> Any:
        """Do as ``durable.step_sync``, in the thread of the task."""
        done = run(self._begin(Form.STEP, name, number))
        codec = self._codec(name, number, fn)
        if done is not None:
            return self._decoded(done.name, done.number, codec, run(self._unpacked(done)))
        while True:
            if self._tries:
                run(self._pause(name, number))
            run(self._ready())
            began_ns = self.now_ns()
            try:
                value = self._ran_in_thread(name, number, fn, args, kwargs, policy)
            except Exception as error:
                if policy is None or policy.retry is None:
                    raise
                run(self._failed_try(name, number, error, policy.retry, began_ns))
                continue
            body, value = self._encoded(name, number, codec, value)
            run(self._record(Form.STEP, name, number, body, began_ns))
            return value

    def _ran_in_thread(
        self,
        name: str,
        number: int,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        policy: StepPolicy | None,
    ) -> Any:
        if policy is not None and policy.timeout_ns is not None:  # no thread can stop itself
            return run(self._ran(name, number, fn, args, kwargs, policy))
        token = step_here.set(self._key(name, number))
        tracer = tracing.tracer
        try:
            with telemetry.stepping(name, number, tracer) if tracer else nullcontext():
                value = fn(*args, **kwargs)
        finally:
            step_here.reset(token)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise InvalidStep(f"step {name!r}: step_sync() takes a plain function, no async one")
        return value

    async def _pause(self, name: str, number: int) -> None:
        """Wait until a step that failed is to be tried again; without a slot if that is long."""
        tries = self._tries.get((name, number))
        if tries is None:
            return
        begun = self._begun.get((name, number))
        due_ns = tries.due_ns if begun is None else max(begun.until_ns, tries.due_ns)
        left_ns = due_ns - self.now_ns()
        if left_ns <= 0:
            return
        if left_ns > IN_PLACE_NS:
            await self._wait(Wait(Form.TRIED, name, number, due_ns))
        self._busy += 1
        try:
            await asyncio.sleep(left_ns / SECOND_NS)
        finally:
            self._busy -= 1
            self._look_soon()

    async def _failed_try(
        self, name: str, number: int, error: Exception, policy: RetryPolicy, began_ns: int
    ) -> None:
        """Write that a try failed; raises its error if there is to be no other."""
        if isinstance(error, InvalidStep | Snooze):
            raise error
        now_ns, tries = self.now_ns(), self._tries.get((name, number))
        tries = tries or Tries(0, 0, began_ns)
        count = tries.failed + 1
        wish = policy.wish(error, count)
        if isinstance(wish, Snooze):
            decision: Decision = RetryAfter(policy.bounded_ns(wish.delay_ns) / SECOND_NS)
        else:
            decision = policy.decide(count, wish or error, random())  # noqa: S311 - jitter
        due_ns = 0
        if isinstance(decision, RetryAfter):
            delay_ns = decision.delay_ns
            if not policy.is_too_old(now_ns - tries.began_ns, delay_ns):
                due_ns = now_ns + delay_ns
        tried = {"try": count, "due_ns": due_ns, "error": summary(error)}
        await self._record(Form.TRIED, name, number, json.dumps(tried).encode(), began_ns)
        if not due_ns:
            self._tries.pop((name, number), None)
            raise error
        self._tries[name, number] = Tries(count, due_ns, tries.began_ns)
        self._begun.pop((name, number), None)

    def _codec(self, name: str, number: int, fn: Callable[..., Any]) -> ResultCodec:
        try:
            return codec_of(fn)
        except UsageError as error:
            raise self._about(name, number, error) from None

    def _encoded(
        self, name: str, number: int, codec: ResultCodec, value: object
    ) -> tuple[bytes, Any]:
        """(a value as JSON, the value as every later attempt gets it)."""
        try:
            body = codec.encode(value)
        except UsageError as error:
            raise self._about(name, number, error) from None
        except Exception as error:
            problem = f"the value cannot be kept: {summary(error)}"
            raise self._about(name, number, problem) from error
        if body is None:
            return b"null", None
        return body, self._decoded(name, number, codec, body)

    def _decoded(self, name: str, number: int, codec: ResultCodec, body: bytes) -> Any:
        try:
            return codec.decode(body)
        except UsageError as error:
            raise self._about(name, number, error) from None

    def _key(self, name: str, number: int) -> str:
        return f"{self._job.id}:{name}#{number}"

    async def enter(self, undo: Undo) -> None:
        """Note that the job may have to undo something."""
        title = undo.name, undo.number
        self._check_goes_on()
        await self._loaded()
        if title not in self._registered:
            await self._stop_if_unwinding()
            await self._record(Form.UNDO, *title)
            self._registered.add(title)
        self._unasked.discard(title)
        self.undos.append(undo)

    def unwinds(self, *, is_end: bool) -> bool:
        """Return whether steps are to be undone before the job ends, or waits again."""
        if self.unwinding is not None:
            return is_end or self.suspended
        return is_end and bool(self.undos)

    async def undo(self, kind: int, cause: int, reason: str) -> Undone:
        """Undo, the newest first, and return how the job ends; by default as given.

        A step that fails for good is named in the reason, and those before it are undone still.
        """
        token = undoing_here.set(True)
        notes = []
        try:
            if self.unwinding is None:
                self.unwinding = {"kind": kind, "cause": cause, "reason": reason}
                await self._record(Form.UNDOING, UNDO, 1, json.dumps(self.unwinding).encode())
            self._waits.clear()
            for undo in reversed(self.undos):
                title = f"{undo.name}#{undo.number}"
                fn, args, kwargs, policy = undo.call
                try:
                    await self.step(undo.name, undo.number, fn, args, kwargs, policy)
                    notes.append(f"undone: {title}")
                except Exception as error:  # noqa: BLE001 - the others are undone still
                    _log.exception("job %s: %s could not be undone", self._job.id, title)
                    notes.append(f"not undone: {title} ({summary(error)})")
        except Suspended:
            return Undone(0, 0, pack_waits(self._waits.values()))
        finally:
            undoing_here.reset(token)
        why = self.unwinding
        return Undone(why["kind"], why["cause"], "\n".join(filter(None, [why["reason"], *notes])))


def summary(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS_MAX]
