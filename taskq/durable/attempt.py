"""One run of a job with steps: what it has done, what it does, and what it waits for."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections import Counter
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from taskq import telemetry
from taskq.app.context import is_remote, running_job
from taskq.app.hooks import StepDone
from taskq.calls.call import Call, transaction_bytes
from taskq.calls.serialization import cause_of, decode_loose
from taskq.connection import tracing
from taskq.connection.blocking import refuse_in_loop, run
from taskq.core.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    LogError,
    PayloadTooLarge,
    StaleDelivery,
    TaskqError,
    UsageError,
)
from taskq.core.flows import FlowPart
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.model import LIVE_STATES, SECOND_NS, TRANSACTION_BYTES_MAX, Extras, State
from taskq.core.parsing import check_name
from taskq.durable.values import called, codec_of, is_async_function, validator_of
from taskq.flows.building import Failed
from taskq.log.decide.steps import NewStep
from taskq.log.read.flows import ENDS_MAX, End, look_at_ends, look_at_steps
from taskq.log.segments.bodystore import QUICK_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.app.context import JobContext
    from taskq.log.format.steps import Stepped
    from taskq.log.requests import Item

_log: Final = logging.getLogger("taskq")
#: A shorter sleep waits in place, and is no step.
_IN_PLACE_NS: Final = SECOND_NS
#: Of several tasks of one run one waits: so long after the last step the others have had a turn.
_GRACE_SECONDS: Final = 0.01
#: What steps of their own are called; numbered like those that people name.
SLEEP: Final = "sleep"
CALL: Final = "call"
#: How one that failed is handed over.
OnFailure = Literal["raise", "run"]
#: The step that code runs for.
step_here: Final[ContextVar[str]] = ContextVar("taskq_step")


class Suspended(BaseException):
    """Ends the run of a job that waits; it runs again, and comes back to the same line.

    Let it pass: ``finally`` and ``async with`` do. A task that catches it and goes on fails.
    """


class EventTimeout(TaskqError, TimeoutError):
    """No signal came in time; so it stays, whatever comes later.

    Attributes:
        name: of the signal.
    """

    def __init__(self, name: str, job_id: str) -> None:
        super().__init__(f"job {job_id}: no signal {name!r} came in time")
        self.name = name


# -- one run of a job ------------------------------------------------------------------------------


class Run:
    """The steps of one attempt at a job. Used by one event loop.

    Attributes:
        suspended: the run is over, since it waits; what it still does counts for nothing.
    """

    def __init__(self, job: JobContext, *, in_thread: bool) -> None:
        self.suspended = False
        self._in_thread = in_thread
        self._job = job
        self._connection = job.app.connection
        #: how its values are stored
        self._packing = self._connection.config.packing(job.queue, None, None)
        #: by name and number: the steps that are done, and those of them that nobody asked for
        self._done: dict[tuple[str, int], Stepped] = {}
        self._unasked: set[tuple[str, int]] = set()
        #: by the number of a call: jobs of it that had failed
        self._failed: dict[int, dict[int, End]] = {}
        #: what it waited for when it was woken, and what it waits for now
        self._begun: dict[tuple[str, int], Wait] = {}
        self._waits: dict[tuple[str, int], Wait] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._counts: Counter[str] = Counter()
        self._loading = asyncio.Lock()
        self._busy = 0
        #: the tasks that asked for steps, and when one did so last, by the loop
        self._tasks: set[int] = set()
        self._active = 0.0
        self._time_ns = self._read_at_ns = 0

    @classmethod
    def here(cls, what: str, *, in_thread: bool = False) -> Run:
        """Return that of the job which runs here.

        Raises:
            UsageError: none does, or in another process, or within a step.
        """
        if in_thread:
            refuse_in_loop(f"durable.{what}_sync()", f"await durable.{what}()")
        job = running_job.get(None)
        if job is None:
            raise UsageError(
                f"durable.{what}() is for code that runs inside a task: no job runs here"
            )
        if is_remote():
            raise UsageError(
                f"durable.{what}() writes to the log, which a child process has not open: take "
                f'runs_in="process" from {job.task}, and call what is heavy as a job of its own by '
                f"durable.call()"
            )
        inside = step_here.get("")
        if inside:
            raise UsageError(
                f"durable.{what}() was called within step {inside.rpartition(':')[2]}: steps do "
                f"not nest; call it in the task itself"
            )
        here: Run | None = getattr(job, "durable", None)
        if here is None:
            here = job.durable = cls(job, in_thread=in_thread)
            # What it returns is looked at once more: whether it ended as it should.
            job.packs = True
            job.children = job.children or []
        return here

    def number(self, name: str, fn: object = callable) -> int:
        """Return which call of this name this is.

        Raises:
            UsageError: that is no name of a step, or no function.
        """
        check_name("the name of a step", name)
        if "#" in name:
            raise UsageError(
                f"the name of a step is {name!r}: it may hold no '#', which stands "
                f"before its number"
            )
        if not callable(fn):
            raise UsageError(f"step {name!r} takes a function and its arguments, got {fn!r:.60}")
        self._counts[name] += 1
        return self._counts[name]

    # -- steps ------------------------------------------------------------------------------------

    async def step(
        self, name: str, number: int, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Do as ``durable.step``."""
        done = await self._begin(Form.STEP, name, number)
        if done is not None:
            return await self._value(done, fn)
        self._busy += 1
        try:
            await self._ready()
            began_ns = self.now_ns()
            token = step_here.set(self._key(name, number))
            try:
                if tracing.tracer is None:
                    is_async = is_async_function(fn)
                    value = await (fn(*args, **kwargs) if is_async else called(fn, args, kwargs))
                else:
                    with telemetry.stepping(name, number, tracing.tracer):
                        value = await called(fn, args, kwargs)
            finally:
                step_here.reset(token)
            body = self._encoded(name, number, fn, value)
            await self._record(Form.STEP, name, number, body, began_ns)
        finally:
            self._busy -= 1
            self._look_soon()
        return value

    def step_in_thread(
        self, name: str, number: int, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Do as ``durable.step_sync``, in the thread of the task."""
        done = run(self._begin(Form.STEP, name, number))
        if done is not None:
            return run(self._value(done, fn))
        run(self._ready())
        token = step_here.set(self._key(name, number))
        began_ns = self.now_ns()
        tracer = tracing.tracer
        try:
            with telemetry.stepping(name, number, tracer) if tracer else nullcontext():
                value = fn(*args, **kwargs)
        finally:
            step_here.reset(token)
        if inspect.isawaitable(value):
            raise UsageError(f"step {name!r}: step_sync() takes a plain function, not an async one")
        body = self._encoded(name, number, fn, value)
        run(self._record(Form.STEP, name, number, body, began_ns))
        return value

    async def sleep(self, number: int, span_ns: int) -> None:
        """Do as ``durable.sleep``."""
        if span_ns < _IN_PLACE_NS:
            await asyncio.sleep(span_ns / SECOND_NS)
            return
        if await self._begin(Form.SLEEP, SLEEP, number) is not None:
            return
        begun = self._begun.get((SLEEP, number))
        until_ns = self.now_ns() + span_ns if begun is None else begun.until_ns
        if until_ns > self.now_ns():
            await self._wait(Wait(Form.SLEEP, SLEEP, number, until_ns))
        await self._record(Form.SLEEP, SLEEP, number)

    async def event(self, name: str, number: int, kind: Any, limit_ns: int | None) -> Any:
        """Do as ``durable.event``."""
        done = await self._begin(Form.EVENT, name, number)
        if done is None:
            begun = self._begun.get((name, number))
            until_ns = 0 if limit_ns is None else self.now_ns() + limit_ns
            until_ns = until_ns if begun is None else begun.until_ns
            is_over = 0 < until_ns <= self.now_ns()
            done = await self._record(Form.TIMEOUT if is_over else Form.EVENT, name, number)
            if done is None:
                await self._wait(Wait(Form.EVENT, name, number, until_ns))
                raise AssertionError("a run that waits does not come back")
        if done.form == Form.TIMEOUT:
            raise EventTimeout(name, self._job.id)
        body = await self._unpacked(done)
        return decode_loose(body) if kind is None else self._read(done, kind, body)

    async def call(self, number: int, calls: Any, on_failure: OnFailure) -> Any:
        """Do as ``durable.call``."""
        is_single = isinstance(calls, Call)
        some: list[Call[Any]] = [calls] if is_single else list(calls)
        done = await self._begin(Form.CALL, CALL, number)
        if done is None and some:
            items = await self._items(some)
            done = await self._record(Form.CALL, CALL, number, items=items)
        count = 0 if done is None else done.jobs
        if count != len(some):
            raise UsageError(
                f"step {CALL}#{number} of job {self._job.id} enqueued {count} jobs, and is asked "
                f"for {len(some)} now: calls must be the same in every attempt, so make what they "
                f"depend on a step"
            )
        if done is None:
            return []
        failed = self._failed.get(number)
        ends = await self._ends(done, failed or {})
        if ends is None:
            await self._wait(Wait(Form.CALL, CALL, number, 0, done.first, done.jobs))
            raise AssertionError("a run that waits does not come back")
        if on_failure == "run" and failed is None:
            await self._keep_failed(done, ends)
        results = [
            await self._result(end, made, on_failure) for end, made in zip(ends, some, strict=True)
        ]
        return results[0] if is_single else results

    async def _keep_failed(self, done: Stepped, ends: list[End]) -> None:
        """Write which jobs failed: one that is requeued later may succeed, a success stays."""
        failed = [
            (end.job - done.first, int(end.state), _reason(end))
            for end in ends
            if end.state is not State.SUCCEEDED
        ]
        if failed:
            await self._record(Form.FAILED, CALL, done.number, json.dumps(failed).encode())

    async def _failures(self, done: Stepped, first: int) -> dict[int, End]:
        failed = json.loads(await self._unpacked(done))
        return {
            first + at: End(first + at, State(state), reason.encode())
            for at, state, reason in failed
        }

    # -- the log ----------------------------------------------------------------------------------

    async def _begin(self, form: Form, name: str, number: int) -> Stepped | None:
        """Return the step if it is done.

        Raises:
            Suspended: the run is over.
            UsageError: it was something else.
        """
        if self.suspended:
            raise Suspended
        if not self._read_at_ns:
            await self._loaded()
        if self._waiters:
            self._active = asyncio.get_running_loop().time()
        if not self._in_thread:
            self._tasks.add(id(asyncio.current_task()))
        done = self._done.get((name, number))
        if done is None:
            return None
        self._unasked.discard((name, number))
        was = Form.EVENT if done.form == Form.TIMEOUT else done.form
        if was != form:
            raise UsageError(
                f"step {done.title} of job {self._job.id} was {_WHAT[was]} before, and is "
                f"{_WHAT[form]} now: give it another name"
            )
        return done

    async def _loaded(self) -> None:
        """Read the steps of the attempts before, once."""
        async with self._loading:
            if not self._read_at_ns:
                await self._load()

    async def _load(self) -> None:
        place, job = 0, self._job.delivery.job
        while True:
            try:
                port = await self._connection.port()
                seen = await port.look(partial(look_at_steps, job=job, place=place))
            except LogError as error:
                raise self._cut_off(error) from None
            for done in seen.steps:
                if done.form == Form.FAILED:
                    called = self._done.get((CALL, done.number))
                    if called is not None:
                        self._failed[done.number] = await self._failures(done, called.first)
                else:
                    self._done.setdefault((done.name, done.number), done)
            place = seen.next_place
            if not place:
                break
        self._unasked = set(self._done)
        self._begun = {(wait.name, wait.number): wait for wait in seen.waits}
        self._time_ns, self._read_at_ns = seen.time_ns, self._steady_ns()

    def now_ns(self) -> int:
        """Return the time as the log has it: what decides whether a wait is over."""
        return self._time_ns + self._steady_ns() - self._read_at_ns

    def _steady_ns(self) -> int:
        store = self._connection.current
        return self._read_at_ns if store is None else store.steady_ns()

    async def _record(
        self,
        form: Form,
        name: str,
        number: int,
        body: bytes = b"null",
        began_ns: int = 0,
        items: tuple[Item, ...] = (),
    ) -> Stepped | None:
        """Write the step; it is as durable as the app says when this returns.

        Raises:
            Suspended: another runs the job now.
        """
        if self.suspended:
            raise Suspended
        delivery, packing = self._job.delivery, self._packing
        self._busy += 1
        try:
            patiently, stored, flags = self._connection.patiently, body, 0
            if packing is not None or len(body) > QUICK_BYTES_MAX:
                what = f"step {name}#{number} of job {self._job.id}"
                stored, flags = await patiently(
                    lambda _: self._connection.packer.result(body, packing, what)
                )
            new = NewStep(delivery, form, name, number, stored, flags, began_ns, items)
            done = await patiently(lambda port: port.step(new))
        except (StaleDelivery, LogError) as error:
            raise self._cut_off(error) from None
        finally:
            self._busy -= 1
            self._look_soon()
        if done is not None and form != Form.FAILED:
            self._done[name, number] = done
            if self._job.app.hooks.steps:
                self._tell(done, began_ns)
        return done

    async def _ready(self) -> None:
        """Return once the log takes what a step that is to run now will leave.

        Raises:
            Suspended: it never will here.
        """
        try:
            await self._connection.ready_for_step()
        except LogError as error:
            raise self._cut_off(error) from None

    def _cut_off(self, error: TaskqError) -> Suspended:
        """The log takes nothing of this run any more: another runs the job, or it failed."""
        if not isinstance(error, StaleDelivery):
            _log.warning("job %s stops where it is: %s", self._job.id, error)
        self._end()
        return Suspended()

    def _tell(self, done: Stepped, began_ns: int) -> None:
        job, form = self._job, Form(done.form).name.lower()
        seconds = (self.now_ns() - began_ns) / SECOND_NS if began_ns else 0.0
        job.app.hooks.tell_step(
            StepDone(
                job.id, job.task, job.queue, job.attempt, done.name, done.number, form, seconds
            )
        )

    async def _items(self, calls: list[Call[Any]]) -> tuple[Item, ...]:
        job, loose = self._job, []
        for made in calls:
            if not isinstance(made, Call):
                raise UsageError(
                    f"durable.call() takes what task.call(...) returns, got {made!r:.60}"
                )
            if made.extras is not None and (made.extras.key or made.extras.flow) is not None:
                raise UsageError(
                    f"{made.name}: a job that another waits for takes no dedup key, for the job "
                    f"that holds it might be another's: use .options(key=None)"
                )
            flow = FlowPart(parent=job.delivery.job)
            extras = replace(made.extras or Extras(), flow=flow)
            child = replace(telemetry.created(made), extras=extras)
            loose.append(self._connection.packer.loose(child))
        items = tuple(await self._connection.patiently(lambda _: self._connection.pack_many(loose)))
        size = transaction_bytes(items)
        if size > TRANSACTION_BYTES_MAX:
            raise PayloadTooLarge(
                f"the {len(items)} jobs that {job.task} {job.id} calls", size,
                TRANSACTION_BYTES_MAX, "call them in several goes",
            )  # fmt: skip
        return items

    async def _ends(self, done: Stepped, failed: dict[int, End]) -> list[End] | None:
        """Return how the jobs of a call ended; None as long as one has not.

        ``failed`` are those of which that is known already.
        """
        ends: list[End] = []
        jobs = [*range(done.first, done.first + done.jobs)]
        for start in range(0, len(jobs), ENDS_MAX):
            port = await self._connection.port()
            some = await port.look(partial(look_at_ends, jobs=jobs[start : start + ENDS_MAX]))
            ends += [failed.get(end.job, end) for end in some]
            if any(end.state in LIVE_STATES for end in ends):
                return None
        return ends

    async def _result(self, end: End, made: Call[Any], on_failure: OnFailure) -> Any:
        job_id = f"{self._connection.tag}-{end.job}"
        if end.state is State.SUCCEEDED:
            if end.body is None:
                return None
            what = f"the result of job {job_id}"
            body = await self._connection.packer.unpacked(end.body, end.flags, what)
            task = made.task
            return decode_loose(body) if task is None else task.decode_result(body)
        reason = _reason(end)
        if on_failure == "run":
            return Failed(job_id=job_id, reason=reason)
        if end.state is State.CANCELLED:
            raise JobCancelled(job_id)
        if end.state is State.EXPIRED:
            raise JobExpired(job_id)
        raise JobFailed(job_id, reason)

    # -- waiting ----------------------------------------------------------------------------------

    async def _wait(self, wait: Wait) -> None:
        """End the run as soon as no step of it goes on any more.

        Raises:
            Suspended: always.
        """
        self._waits[wait.name, wait.number] = wait
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._look_soon()
        await waiter

    def _look_soon(self) -> None:
        if not self._waiters:
            return
        loop = asyncio.get_running_loop()
        self._active = loop.time()
        if not self._busy:
            loop.call_soon(self._look)

    def _look(self) -> None:
        if self._busy or not self._waiters:
            return
        loop = asyncio.get_running_loop()
        left = self._active + _GRACE_SECONDS - loop.time()
        if len(self._tasks) > 1 and left > 0:  # what a step gave may lead to another one yet
            loop.call_later(left, self._look)
            return
        self._end()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(Suspended())

    def _end(self) -> None:
        self.suspended = True

    # -- what its worker asks ---------------------------------------------------------------------

    def waits_after(self, error: BaseException) -> bytes | None:
        """Return what the job waits for, packed, if its run ended by that; else None."""
        return pack_waits(self._waits.values()) if self.suspended and _is_suspended(error) else None

    def problem(self) -> UsageError | None:
        """Return what is wrong with a run that returned; None: nothing is."""
        if self.suspended:
            return UsageError(
                f"{self._job.task} caught durable.Suspended and went on: the run was over there, "
                f"and what it did since counts for nothing. Catch Exception, not BaseException, or "
                f"raise it again"
            )
        if self._unasked and self._job.task not in _told:
            name = min(self._unasked)
            _told.add(self._job.task)
            _log.warning(
                "%s: job %s did not ask for step %s#%d%s: was its code changed meanwhile?",
                self._job.task, self._job.id, *name,
                f" and {len(self._unasked) - 1} more that were done" * (len(self._unasked) > 1)
                or ", which was done",
            )  # fmt: skip
        return None

    # -- values -----------------------------------------------------------------------------------

    def _key(self, name: str, number: int) -> str:
        return f"{self._job.id}:{name}#{number}"

    def _encoded(self, name: str, number: int, fn: Callable[..., Any], value: Any) -> bytes:
        codec = codec_of(fn)
        try:
            body = codec.encode(value, self._connection.packer.bodies.limit(self._packing))
        except UsageError as error:
            raise self._about(name, number, error) from None
        return b"null" if body is None else body

    async def _value(self, done: Stepped, fn: Callable[..., Any]) -> Any:
        body = await self._unpacked(done)
        try:
            return codec_of(fn).decode(body)
        except UsageError as error:
            raise self._about(done.name, done.number, error) from None

    def _read(self, done: Stepped, kind: Any, body: bytes) -> Any:
        try:
            return validator_of(kind).validate_json(body)
        except ValueError as error:
            kind = inspect.formatannotation(kind)
            problem = UsageError(f"the signal does not fit {kind} ({cause_of(error)})")
            raise self._about(done.name, done.number, problem) from None

    def _about(self, name: str, number: int, error: UsageError) -> UsageError:
        return UsageError(f"step {name}#{number} of job {self._job.id}: {error}")

    async def _unpacked(self, done: Stepped) -> bytes:
        if not done.flags:
            return done.body
        what = f"step {done.title} of job {self._job.id}"
        return await self._connection.packer.unpacked(done.body, done.flags, what)


_WHAT: Final[dict[int, str]] = {
    Form.STEP: "a step", Form.SLEEP: "a sleep", Form.EVENT: "an event", Form.CALL: "a call of jobs",
}  # fmt: skip
#: Tasks whose unasked steps were told of.
_told: Final[set[str]] = set()


def _reason(end: End) -> str:
    if end.state is State.DEAD:
        return (end.body or b"").decode("utf-8", "replace")
    if end.state is State.ABSENT:
        return "the log has no such job any more: it is kept for as long as the job that called it"
    return end.state.name.lower()


def _is_suspended(error: BaseException) -> bool:
    """Return whether a run ended by waiting, or by what that cancelled."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(Suspended)[0] is not None and all(
            _is_suspended(part) for part in error.exceptions
        )
    return isinstance(error, Suspended)
