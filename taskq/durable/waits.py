"""Waits of a run: for a time, a signal, other jobs, or the first of them."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar

import taskq.telemetry as telemetry
from taskq.app.context import event_readers
from taskq.calls.call import Call, transaction_bytes
from taskq.calls.serialization import cause_of, decode_loose, way_of
from taskq.connection.connection import Loose
from taskq.core import errors, model
from taskq.core.flows import FlowPart
from taskq.core.folds.steps import Form, Wait
from taskq.core.values import NamedTuple
from taskq.durable.attempt import CALL, IN_PLACE_NS, warned
from taskq.durable.steps import StepAttempt
from taskq.flows.flow import Failed
from taskq.log.format.flows import Stepped
from taskq.log.read.flows import ENDS_MAX, InputEnd, StoredSignal, look_at_ends, look_at_signals
from taskq.log.requests import Item

_log: Final = logging.getLogger("taskq")
SLEEP: Final = "sleep"
FIRST: Final = "first"
VERSION: Final = "durable.version"
#: A failed job raises, or its result is a ``Failed``.
OnFailure = Literal["raise", "run"]
#: Jobs of a call that are checked before the event loop turns.
_TURN_JOBS: Final = 1_000
#: Returns the step that enqueued the jobs of a call.
Enqueued: TypeAlias = Callable[[], Awaitable[Stepped | None]]
T = TypeVar("T")


class EventTimeout(errors.TaskqError, TimeoutError):
    """No signal came in time. Later attempts raise it again, even if a signal came meanwhile.

    Attributes:
        name: name of the signal.
    """

    def __init__(self, name: str, job_id: str) -> None:
        super().__init__(f"job {job_id}: no signal {name!r} came in time")
        self.name = name


class EventWait(NamedTuple):
    """The signal that an event waits for."""

    name: str
    number: int
    kind: Any
    limit_ns: int | None
    where: Callable[[Any], object] | None


class Arrival(NamedTuple):
    """Place of a wait's end in the log's order; the smallest came first."""

    #: 0: its step is done; 1: its end is in the log; 2: its time has passed
    rank: int
    place: int


class Part(Coroutine[Any, Any, T]):
    """A wait: await it, or pass it to ``durable.first`` with others."""

    __slots__ = ("_coroutine", "look", "title")

    def __init__(
        self,
        title: tuple[str, int],
        look: Callable[[], Awaitable[Arrival | Wait]],
        coroutine: Coroutine[Any, Any, T],
    ) -> None:
        self.title: tuple[str, int] = title
        self.look: Callable[[], Awaitable[Arrival | Wait]] = look
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        """Wait for the end."""
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        """Continue with a value, like a coroutine."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Continue with an error, like a coroutine."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Drop the wait."""
        self._coroutine.close()


class DurableRun(StepAttempt):
    """An attempt with waits."""

    def sleep(self, span_ns: int) -> Part[None]:
        """Return the wait of ``durable.sleep``."""
        number = self.number(SLEEP, Form.SLEEP)
        look = partial(self._look_at_sleep, number, span_ns)
        return Part((SLEEP, number), look, self._sleep(number, span_ns))

    async def _sleep(self, number: int, span_ns: int) -> None:
        if span_ns < IN_PLACE_NS and (SLEEP, number) not in self._begun:
            await asyncio.sleep(span_ns / model.SECOND_NS)
            return
        if await self._begin(Form.SLEEP, SLEEP, number) is not None:
            return
        wait = await self._sleeping(number, span_ns)
        if wait.until_ns > self.now_ns():
            await self._wait(wait)
        await self._record(Form.SLEEP, SLEEP, number)

    async def _look_at_sleep(self, number: int, span_ns: int) -> Arrival | Wait:
        done = await self._begin(Form.SLEEP, SLEEP, number)
        if done is not None:
            return Arrival(0, done.place)
        wait = await self._sleeping(number, span_ns)
        return wait if wait.until_ns > self.now_ns() else Arrival(2, wait.until_ns)

    async def _sleeping(self, number: int, span_ns: int) -> Wait:
        return await self._reached(Wait(Form.SLEEP, SLEEP, number, self.now_ns() + span_ns))

    def event(
        self, name: str, kind: Any, limit_ns: int | None, where: Callable[[Any], object] | None
    ) -> Part[Any]:
        """Return the wait of ``durable.event``."""
        event = EventWait(name, self.number(name, Form.EVENT), kind, limit_ns, where)
        readers = event_readers.setdefault(name, {}).setdefault(self._job.task, {})
        readers[repr(kind)] = partial(_valid, kind)
        look = partial(self._look_at_event, event)
        return Part((name, event.number), look, self._event(event))

    async def _event(self, event: EventWait) -> Any:
        name, number = event.name, event.number
        done = await self._begin(Form.EVENT, name, number)
        while done is None:
            fitting, wait = await self._find(event)
            if fitting is not None:
                done = await self._record(Form.EVENT, name, number, signal=fitting.number)
            elif 0 < wait.until_ns <= self.now_ns():
                done = await self._record(Form.TIMEOUT, name, number, signal=wait.first)
            else:
                await self._wait(wait)
        if done.form == Form.TIMEOUT:
            raise EventTimeout(name, self._job.id)
        return self._read(done, event.kind, await self._unpacked(done))

    async def _look_at_event(self, event: EventWait) -> Arrival | Wait:
        done = await self._begin(Form.EVENT, event.name, event.number)
        if done is not None:
            return Arrival(0, done.place)
        fitting, wait = await self._find(event)
        if fitting is not None:
            return Arrival(1, fitting.location)
        is_over = 0 < wait.until_ns <= self.now_ns()
        return Arrival(2, wait.until_ns) if is_over else wait

    async def _find(self, event: EventWait) -> tuple[StoredSignal | None, Wait]:
        """Return the oldest signal that fits, and the wait for a later one."""
        name, job = event.name, self._job.delivery.job
        until_ns = 0 if event.limit_ns is None else self.now_ns() + event.limit_ns
        wait = Wait(Form.EVENT, name, event.number, until_ns)
        latest, encoded = 0, name.encode("utf-8", "surrogatepass")
        while True:
            port = await self._connection.port()
            look = partial(look_at_signals, job=job, name=encoded, after=latest)
            signals = await port.look(look)
            for signal in signals:
                if await self._fits(event, signal):
                    return signal, wait
                latest = signal.number
            if not signals:
                return None, (await self._reached(wait))._replace(first=latest)

    async def _fits(self, event: EventWait, signal: StoredSignal) -> bool:
        """Return whether the event takes a signal."""
        body, what = signal.body, f"signal {event.name!r} of job {self._job.id}"
        if signal.flags:
            body = await self._connection.packer.unpacked(body, signal.flags, what)
        try:
            value = _valid(event.kind, body)
        except ValueError as error:
            if (self._job.id, signal.number) not in warned:
                warned.add((self._job.id, signal.number))
                _log.warning(
                    "%s: passed over, since it does not fit %s (%s)",
                    what, inspect.formatannotation(event.kind), cause_of(error),
                )  # fmt: skip
            return False
        return event.where is None or bool(event.where(value))

    def call(self, calls: Any, on_failure: OnFailure, *, detach: bool) -> Part[Any]:
        """Return the wait of ``durable.call``."""
        number = self.number(CALL, Form.CALL)
        is_single = isinstance(calls, Call)
        some: list[Call[Any]] = [calls] if is_single else list(calls)
        enqueued = partial(self._enqueued, number, some, detach=detach)
        look = partial(self._look_at_call, enqueued)
        return Part(
            (CALL, number), look, self._call(enqueued, some, on_failure, is_single=is_single)
        )

    async def _call(
        self, enqueued: Enqueued, some: list[Call[Any]], on_failure: OnFailure, *, is_single: bool
    ) -> Any:
        done = await enqueued()
        if done is None:
            return []
        failed = self._failed.get(done.number)
        ends = await self._ends(done, failed or {})
        if ends is None:
            await self._wait(Wait(Form.CALL, CALL, done.number, 0, done.first, done.jobs))
            raise AssertionError("a run that waits does not come back")
        if on_failure == "run" and failed is None:
            await self._keep_failed(done, ends)
        results: list[Any] = []
        for end, made in zip(ends, some, strict=True):
            results.append(await self._result(end, made, on_failure))
            if not len(results) % _TURN_JOBS:
                await asyncio.sleep(0)
        return results[0] if is_single else results

    async def _look_at_call(self, enqueued: Enqueued) -> Arrival | Wait:
        done = await enqueued()
        if done is None:
            return Arrival(1, 0)
        ends = await self._ends(done, self._failed.get(done.number) or {})
        if ends is None:
            return Wait(Form.CALL, CALL, done.number, 0, done.first, done.jobs)
        return Arrival(1, max(end.location for end in ends))

    async def _enqueued(
        self, number: int, some: list[Call[Any]], *, detach: bool
    ) -> Stepped | None:
        """Return the step that enqueued these jobs; None without jobs."""
        done = await self._begin(Form.CALL, CALL, number)
        if done is None and some:
            items = await self._items(some)
            done = await self._record(Form.CALL, CALL, number, items=items, detach=detach)
        count = 0 if done is None else done.jobs
        if count != len(some):
            raise errors.InvalidStep(
                f"step {CALL}#{number} of job {self._job.id} enqueued {count} jobs, and is asked "
                f"for {len(some)} now: calls must be the same in every attempt, so make what they "
                f"depend on a step"
            )
        return done

    def first(self, parts: Sequence[Any]) -> Coroutine[Any, Any, Any]:
        """Return the wait of ``durable.first``."""
        for part in parts:
            if not isinstance(part, Part):
                raise errors.InvalidStep(
                    f"durable.first() takes what durable.event(), sleep() and call() return, got "
                    f"{part!r:.60}"
                )
        if not parts:
            raise errors.InvalidStep("durable.first() waits for nothing: give it a wait at least")
        return self._first(self.number(FIRST, Form.FIRST), parts)

    async def _first(self, number: int, parts: Sequence[Part[Any]]) -> Any:
        try:
            chosen = await self._chosen(number, parts)
            for at, part in enumerate(parts):
                if at != chosen:
                    self._unasked.discard(part.title)
            return await parts[chosen]
        finally:
            for part in parts:
                part.close()

    async def _chosen(self, number: int, parts: Sequence[Part[Any]]) -> int:
        """Return the index of the wait that ended first; it is decided once."""
        done = await self._begin(Form.FIRST, FIRST, number)
        if done is not None:
            chosen = int(await self._unpacked(done))
            if chosen >= len(parts):
                raise errors.InvalidStep(
                    f"step {FIRST}#{number} of job {self._job.id} was decided for wait "
                    f"{chosen + 1}, and has {len(parts)} now: add waits at the end, and leave none "
                    f"out"
                )
            return chosen
        arrivals, waits = list[tuple[Arrival, int]](), list[Wait]()
        for at, part in enumerate(parts):
            latest = await part.look()
            if isinstance(latest, Wait):
                waits.append(latest)
            else:
                arrivals.append((latest, at))
        if not arrivals:
            await self._wait(*waits)
        _, chosen = min(arrivals)
        await self._record(Form.FIRST, FIRST, number, b"%d" % chosen)
        return chosen

    async def version(self, current: str, before: str | None) -> str:
        """Do as ``durable.version``."""
        async with self._versioning:
            done = await self._begin(Form.VERSION, VERSION, 1)
            if done is not None:
                return str(json.loads(await self._unpacked(done)))
            chosen = current if before is None or not self._had_steps else before
            await self._record(Form.VERSION, VERSION, 1, json.dumps(chosen).encode())
            return chosen

    async def _keep_failed(self, done: Stepped, ends: list[InputEnd]) -> None:
        """Write the failed jobs, since a requeued job may succeed before the next attempt."""
        failed = [
            (end.job - done.first, int(end.state), _reason(end))
            for end in ends
            if end.state is not model.State.SUCCEEDED
        ]
        if failed:
            await self._record(Form.FAILED, CALL, done.number, json.dumps(failed).encode())

    async def _items(self, calls: list[Call[Any]]) -> tuple[Item, ...]:
        job, loose = self._job, list[Loose]()
        flow = FlowPart(parent=job.delivery.job)
        for made in calls:
            if not isinstance(made, Call):
                raise errors.InvalidStep(
                    f"durable.call() takes what task.call(...) returns, got {made!r:.60}"
                )
            if made.extras is not None and (made.extras.key or made.extras.flow) is not None:
                raise errors.InvalidStep(
                    f"{made.name}: a job that another waits for takes no dedup key, for the job "
                    f"that holds it might be another's: use .options(key=None)"
                )
            child = telemetry.created(made)
            extras = model.Extras() if child.extras is None else replace(child.extras)
            extras.flow = flow
            loose.append(self._connection.packer.loose(child._with_extras(extras)))
            if not len(loose) % _TURN_JOBS:
                await asyncio.sleep(0)
        items = tuple(await self._connection.patiently(lambda _: self._connection.pack_many(loose)))
        size = transaction_bytes(items)
        if size > model.TRANSACTION_BYTES_MAX:
            raise errors.InvalidStep(
                f"the {len(items)} jobs that {job.task} {job.id} calls have {size} bytes, the "
                f"limit is {model.TRANSACTION_BYTES_MAX}: call them in several goes"
            )
        return items

    async def _ends(self, done: Stepped, failed: dict[int, InputEnd]) -> list[InputEnd] | None:
        """Return the ends of a call's jobs; None while a job has not ended.

        ``failed`` are ends that an earlier attempt recorded.
        """
        ends: list[InputEnd] = []
        jobs = [*range(done.first, done.first + done.jobs)]
        for start in range(0, len(jobs), ENDS_MAX):
            port = await self._connection.port()
            some = await port.look(partial(look_at_ends, jobs=jobs[start : start + ENDS_MAX]))
            ends += [failed.get(end.job, end) for end in some]
            if any(end.state in model.LIVE_STATES for end in ends):
                return None
        return ends

    async def _result(self, end: InputEnd, made: Call[Any], on_failure: OnFailure) -> Any:
        job_id = self._connection.tag.id(end.job)
        if end.state is model.State.SUCCEEDED:
            if end.body is None:
                return None
            what = f"the result of job {job_id}"
            body = await self._connection.packer.unpacked(end.body, end.flags, what)
            task = made.task
            return decode_loose(body) if task is None else task.decode_result(body)
        reason = _reason(end)
        if on_failure == "run":
            return Failed(job_id=job_id, reason=reason)
        if end.state is model.State.CANCELLED:
            raise errors.JobCancelled(job_id)
        if end.state is model.State.EXPIRED:
            raise errors.JobExpired(job_id)
        raise errors.JobFailed(job_id, reason)

    def _read(self, done: Stepped, kind: Any, body: bytes) -> Any:
        try:
            return _valid(kind, body)
        except ValueError as error:
            kind = inspect.formatannotation(kind)
            problem = f"the signal does not fit {kind} ({cause_of(error)})"
            raise self._about(done.name, done.number, problem) from None


def _valid(kind: Any, body: bytes) -> Any:
    return decode_loose(body) if kind is None else way_of(kind).read(body)


def _reason(end: InputEnd) -> str:
    if end.state is model.State.DEAD:
        return (end.body or b"").decode("utf-8", "replace")
    if end.state is model.State.ABSENT:
        return "the log has no such job any more: it is kept for as long as the job that called it"
    return end.state.name.lower()
