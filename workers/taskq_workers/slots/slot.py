"""A slot: one long-lived asyncio task that runs one job after the other, each to its end.

The job's coroutine is awaited here, within the slot's own task. So one that never suspends costs no
task, no turn of the loop and no callback, and ``asyncio.current_task()`` and ``asyncio.timeout()``
are right from its first step. While a job suspends, the next slot takes the next delivery.

No cancel scope and no task group here: for each job the one would cost 3 µs and the other 5, about
as much as the rest of it.

Context variables that a job changes end with it. What a library keeps by ``current_task()`` does
not, since the next job runs in the same task: close such things within the job.
"""

from __future__ import annotations

from asyncio import current_task
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context, ContextVar, Token, copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from taskq import JobContext
from taskq import _native as native
from taskq.engine import Flag, Settlement, kinds
from taskq.hooks import running_job
from taskq.values import NamedTuple, is_a, is_cancellation, members
from taskq_workers.events import Hook, tell
from taskq_workers.slots.outcomes import (
    release,
    settle_bad_result,
    settle_failure,
    settle_suspended,
    settle_unreadable,
)
from taskq_workers.slots.settling import OUTCOMES_MAX, Settler, settled
from taskq_workers.slots.shipping import Ended, error_of
from taskq_workers.slots.storing import settle_success

if TYPE_CHECKING:
    from taskq import Delivery, Task, TaskQ
    from taskq_workers.runs.executors import Plan
    from taskq_workers.slots.feed import Feed
    from taskq_workers.slots.slots import Slots

    #: Of the first job since the slot rested.
    JobToken: TypeAlias = Token[JobContext] | None
    #: As ``taskq._native`` has it.
    RunJobs: TypeAlias = Callable[["Slot", float, JobToken, "Hot"], tuple[JobToken, Any]]

#: A member of an enum costs as much to look up as a call.
_SUCCESS: Final = kinds.SUCCESS
_FLAGS_AT: Final = 8
#: Payloads that are not simply what the record holds.
_OPENED: Final = int(Flag.ZLIB | Flag.ZSTD | Flag.FLOW)
#: Jobs of these flags are tied to others: their end frees a key, or lets a flow go on.
_TIED: Final = int(Flag.KEY_UNTIL_SETTLED | Flag.FLOW)
LEFT_BY_C: Final = _OPENED | _TIED
#: A slot whose jobs never suspend lets the loop turn after so long.
TURN_SECONDS: Final = 0.005


class Hot(NamedTuple):
    """Parts that each slot keeps at hand, in the order in which C reads them."""

    app: TaskQ
    #: makes a job's context
    made: Callable[[Delivery, TaskQ], JobContext]
    #: opens its payload
    opened: Callable[[Delivery], Awaitable[bytes]]
    buffer: deque[Delivery]
    feed: Feed
    plans: Mapping[str, Plan]
    settler: Settler
    #: gets each end
    hook: Hook | None
    running_job: ContextVar[JobContext]
    context_type: type[JobContext]
    monotonic: Callable[[], float]
    slots: Slots
    turn_seconds: float
    outcomes_max: int
    #: C leaves jobs of these flags to Python
    flags_python: int


def run_jobs_of(hook: Hook | None) -> RunJobs | None:
    """Return what runs plain jobs in C; None if Python does, or somebody hears of each end."""
    return native.plain.run_jobs if native.is_on and hook is None else None


class Slot:
    """Runs deliveries from the slots' buffer until it is told to leave, or spoilt by a job.

    Attributes:
        delivery: what runs here now. since: when it began, in monotonic seconds. abandoned: its job
        was released although it goes on; what it does now counts for nothing. context: in which its
        jobs run; ``taskq.app.context.running_job`` there is the one that runs now.
    """

    __slots__ = ("_slots", "_stopped_as", "abandoned", "context", "delivery", "since", "task")

    def __init__(self, slots: Slots, context: Context, name: str) -> None:
        self._slots = slots
        self.delivery: Delivery | None = None
        self.since = 0.0
        self.abandoned = False
        self.context = context
        self._stopped_as: Callable[[Delivery], Settlement] | None = None
        self.task = slots.loop.create_task(self._run(), name=name, context=context)

    def stop(self, settle: Callable[[Delivery], Settlement]) -> None:
        """Cancel what runs here; unless it succeeds all the same, it ends as ``settle`` says.

        The first to stop a job decides. The slot ends with it, since it was cancelled.
        """
        if self.delivery is not None and self._stopped_as is None:
            self._stopped_as = settle
            self.task.cancel()

    async def _run(self) -> None:
        """Run what is ready, and rest, until the slot is to leave, or a job has spoilt it."""
        buffer = self._slots.begin(self)
        no_job: JobToken = None
        self.since = monotonic()
        while True:
            if buffer:
                no_job = await self._run_ready(no_job)
                if no_job is None:
                    return
            else:
                if no_job is not None:  # it rests as nobody's job
                    running_job.reset(no_job)
                no_job = None
                if not await self._slots.rest(self):
                    return
                self.since = monotonic()

    async def _run_ready(self, no_job: JobToken) -> JobToken:  # noqa: C901, PLR0912, PLR0915
        """Run jobs until none is ready; None at the slot's end. A call more would cost 0.1 µs."""
        slots, turn = self._slots, self.since
        run_jobs, hot = slots.run_jobs, slots.hot
        app, made, opened, buffer, feed, plans, settler, hook = hot[:8]
        outcomes = settler.outcomes
        while buffer:
            if run_jobs is None:
                self.delivery = delivery = buffer.popleft()
                if len(buffer) < feed.low:
                    feed.refill()
                plan = plans[delivery.lane.task]
                job = made(delivery, app)
                before_job = running_job.set(job)
                no_job = no_job or before_job
                before = copy_context()
                args = rest = None
            else:
                # As here, and on to the first job that is not plain or not over.
                no_job, begun = run_jobs(self, turn, no_job, hot)
                if type(begun) is not tuple:
                    if begun == native.SPOILT:
                        return None
                    turn = await self._turn() if begun == native.TURN else turn
                    continue
                delivery, plan, job, before, args, rest = begun
            decode, call, none_is_kept, _, task = plan
            try:
                flags = delivery.record[_FLAGS_AT]
                if rest is None:
                    payload = await opened(delivery) if flags & _OPENED else delivery.stored_payload
                    args, kwargs = decode(payload)
                    rest = call(*args, **kwargs)
                value = await rest
            except BaseException as error:  # noqa: BLE001 - no job may stop its worker
                settlement = self._failed(task, delivery, error, called=args is not None)
                outcome: Settlement | Delivery = await slots.judged(task, error, settlement)
            else:
                # For a success that concerns nobody else its delivery stands.
                is_plain = job.children is None and not flags & _TIED
                stands = value is None and none_is_kept and is_plain
                outcome = delivery if stands else await self._success(plan, delivery, job, value)
            if self.abandoned:
                return None
            self.delivery = None
            outcomes.append(outcome)
            if not settler.scheduled:
                settler.flush_soon()
            elif len(outcomes) >= OUTCOMES_MAX:
                settler.flush()
            self.since, since = monotonic(), self.since
            if hook is not None:
                tell(hook, settled(outcome), self.since - since)
            if _changed(before) or self.task.cancelling():
                # The job left context variables or a cancellation behind, that no other may meet.
                slots.replace(self)
                return None
            if self.since - turn > TURN_SECONDS:
                turn = await self._turn()
        return no_job

    async def _turn(self) -> float:
        """Let the loop turn; returns when it has, in monotonic seconds."""
        await self._slots.turn(self)
        self.since = monotonic()
        return self.since

    def _failed(
        self, task: Task[..., Any], delivery: Delivery, error: BaseException, *, called: bool
    ) -> Settlement:
        if is_a(error, GeneratorExit) and current_task(self._slots.loop) is not self.task:
            # Not raised by the job: its loop was closed, and whoever drops this coroutine ends it.
            raise error
        if self._slots.interrupting() and all(map(is_cancellation, members(error))):
            done = self._slots.blamed(delivery)
            return release(delivery) if done is None else settle_failure(task, delivery, done)
        if self._stopped_as is not None:
            return self._stopped_as(delivery)
        suspended = settle_suspended(running_job.get(None), delivery, error)
        if suspended is not None:
            return suspended
        if not called:
            settlement = settle_unreadable(delivery, error)
            if settlement is not None:
                if settlement.kind is kinds.RELEASE:
                    self._slots.warn_once(str(error))
                return settlement
        return settle_failure(task, delivery, error)

    async def _success(
        self, plan: Plan, delivery: Delivery, job: JobContext, value: Any
    ) -> Settlement:
        if value is None and plan.none_is_kept and job.children is None:
            return Settlement(_SUCCESS, delivery)
        if plan.packs or job.packs:
            return await self._packed(plan.task, delivery, job, value)
        try:
            body = plan.task.encode_result(value)
        except Exception as error:  # noqa: BLE001 - a result may raise what it likes when read
            return settle_bad_result(plan.task, delivery, value, error)
        if job.children is None:
            return Settlement(_SUCCESS, delivery, body)
        children = tuple(child[1:] for child in job.children)
        settlement = Settlement(_SUCCESS, delivery, body, children=children)
        self._slots.settler.parents[delivery] = job
        return settlement

    async def _packed(
        self, task: Task[..., Any], delivery: Delivery, job: JobContext, value: Any
    ) -> Settlement:
        try:
            settlement = await settle_success(job.app.connection, task, delivery, job, value)
            if type(value) is Ended and settlement.kind is not kinds.SUCCESS:
                settlement = await self._slots.judged(task, error_of(value), settlement)
        except BaseException as error:  # noqa: BLE001 - no job may stop its worker
            return self._failed(task, delivery, error, called=True)
        if settlement.children:
            self._slots.settler.parents[delivery] = job
        return settlement


def _changed(before: Context) -> bool:
    try:
        return copy_context() != before
    except Exception:  # noqa: BLE001 - the variables' values are compared, and theirs may raise
        return True
