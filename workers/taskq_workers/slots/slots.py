"""The slots of one worker: how they rest, are called, and end."""

from __future__ import annotations

import asyncio
import logging
from asyncio import current_task
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import Context, ContextVar, Token, copy_context
from functools import partial
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar, cast

import taskq._native as native
from taskq import Delivery, JobContext, Task, TaskQ, engine, values
from taskq.engine import Settlement, kinds
from taskq.hooks import Inputs, running_job
from taskq.values import is_a, is_cancellation, members
from taskq_workers.events import Hook, call_hook
from taskq_workers.runs import executors
from taskq_workers.runs.joblogs import with_lines
from taskq_workers.slots.feed import Feed, Gatekeeper, Quota
from taskq_workers.slots.outcomes import (
    Overlap,
    release,
    settle_bad_result,
    settle_failure,
    settle_slot_error,
    settle_suspended,
    settle_unreadable,
    unless_too_old,
    unwind_steps,
)
from taskq_workers.slots.rounds import LogFeed, LogShare, LogSource, Rounds
from taskq_workers.slots.settling import OUTCOMES_MAX, Settler, as_settlement, settle_success
from taskq_workers.slots.shipping import RemoteOutcome, error_of

Making: TypeAlias = Callable[[Delivery, TaskQ], JobContext]
Opening: TypeAlias = Callable[[Delivery], Awaitable[bytes]]

JobToken: TypeAlias = Token[JobContext] | None
RunJobs: TypeAlias = Callable[["Slot", float, JobToken, "Hot"], tuple[JobToken, Any]]


#: A module constant, since the lookup of an enum's member costs as much as a call.
_SUCCESS: Final = kinds.SUCCESS
_FLAGS_AT: Final = 8
#: Set by a job that raised ``GeneratorExit``, so that its slot ends: a future that raised it also
#: closes the coroutines of the slot.
_was_closed: Final[ContextVar[bool]] = ContextVar("taskq_was_closed")
#: Flags of payloads that differ from the body of the record.
_OPENED: Final = int(engine.Flag.ZLIB | engine.Flag.ZSTD | engine.Flag.FLOW)
#: Flags of jobs that are tied to others: their end frees a key, or lets a flow go on.
_TIED: Final = int(engine.Flag.KEY_UNTIL_SETTLED | engine.Flag.FLOW)
LEFT_BY_C: Final = _OPENED | _TIED
#: A slot whose jobs never suspend lets the loop turn after this time.
TURN_SECONDS: Final = 0.005


class Hot(values.NamedTuple):
    """Objects that each slot keeps at hand, in the order in which C reads them."""

    app: TaskQ
    #: makes a job's context
    made: Callable[[Delivery, TaskQ], JobContext]
    #: opens its payload
    opened: Callable[[Delivery], Awaitable[bytes]]
    buffer: deque[Delivery]
    feed: Feed
    plans: Mapping[str, executors.RunPlan]
    settler: Settler
    #: called with each end
    hook: Hook | None
    running_job: ContextVar[JobContext]
    context_type: type[JobContext]
    monotonic: Callable[[], float]
    slots: Slots
    turn_seconds: float
    outcomes_max: int
    #: flags of jobs that C leaves to Python
    flags_python: int


def run_jobs_of(hook: Hook | None) -> RunJobs | None:
    """Return the C function for plain jobs; None if Python runs them, or a hook needs each end."""
    return native.plain.run_jobs if native.is_on and hook is None else None


class Spare(Exception):
    """A slot is superfluous, and ends between two jobs."""


class Slot:
    """Runs deliveries from the slots' buffer until it must end, or a job has spoilt it.

    Attributes:
        delivery: delivery of the running job.
        since: when the job began, in monotonic seconds.
        abandoned: its job was released although it goes on; its outcome is ignored.
        context: context of its jobs; ``running_job`` in it is the running job.
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
        """Cancel the running job; unless it succeeds nevertheless, ``settle`` decides its outcome.

        The first caller to stop a job decides. The slot ends with it, since it was cancelled.
        """
        if self.delivery is not None and self._stopped_as is None:
            self._stopped_as = settle
            self.task.cancel()

    async def _run(self) -> None:
        """Run ready jobs, and rest, until the slot should end, or a job has spoilt it."""
        buffer = self._slots.begin(self)
        no_job: JobToken = None
        self.since = monotonic()
        while True:
            if buffer:
                try:
                    no_job = await self._run_ready(no_job)
                except Spare:
                    return
                if no_job is None:
                    return
            else:
                if no_job is not None:  # it rests outside any job
                    running_job.reset(no_job)
                no_job = None
                if not await self._slots.rest(self):
                    return
                self.since = monotonic()

    async def _run_ready(self, no_job: JobToken) -> JobToken:  # noqa: C901, PLR0912, PLR0915
        """Run jobs until none is ready; None at the slot's end. Inlined: a call costs 0.1 µs."""
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
                # Like the branch above, up to the first job that is not plain or does not end.
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
                is_alone = job.children is None and not flags & _TIED  # no job waits for it
                is_plain = value is None and none_is_kept and is_alone
                outcome = delivery if is_plain else await self._success(plan, delivery, job, value)
            if self.abandoned:
                return None
            self.delivery = None
            outcomes.append(outcome)
            if not settler.scheduled:
                settler.flush_soon()
            elif len(outcomes) >= OUTCOMES_MAX:
                settler.flush()
            now = monotonic()
            if hook is not None:
                call_hook(hook, as_settlement(outcome), now - self.since)
            self.since = now
            if _changed(before) or self.task.cancelling():
                # No other job may get the context variables or the cancellation that this job left.
                slots.replace(self)
                return None
            if now - turn > TURN_SECONDS:
                turn = await self._turn()
        return no_job

    async def _turn(self) -> float:
        """Let the loop turn; return the time after it, in monotonic seconds.

        Raises:
            Spare: there are more slots than needed.
        """
        await self._slots.turn(self)
        if self._slots.is_spare(self):
            raise Spare
        self.since = monotonic()
        return self.since

    def _failed(
        self, task: Task[..., Any], delivery: Delivery, error: BaseException, *, called: bool
    ) -> Settlement:
        if is_a(error, GeneratorExit):
            if current_task(self._slots.loop) is not self.task:
                # The job did not raise it: its loop was closed, and the coroutine is being
                # destroyed.
                raise error
            _was_closed.set(True)
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
        self, plan: executors.RunPlan, delivery: Delivery, job: JobContext, value: Any
    ) -> Settlement:
        if value is None and plan.none_is_kept and job.children is None:
            return Settlement(_SUCCESS, delivery)
        if plan.packs or job.packs:
            return await self._packed(plan.task, delivery, job, value)
        try:
            body = plan.task.encode_result(value)
        except BaseException as error:  # noqa: BLE001 - a result may raise what it likes when read
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
            if type(value) is RemoteOutcome and settlement.kind is not kinds.SUCCESS:
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


FeedT = TypeVar("FeedT", bound=Feed)
_log: Final = logging.getLogger("taskq.worker")


class Slots:
    """Up to ``concurrency`` slots for one feed, or for the feeds of several logs.

    A slot is busy with a job, or it rests, or it was called to the buffer and has not run yet.
    All slots that are not busy are free, also slots that were not started yet. Two invariants
    ensure that no free slot rests while a job is ready:

    - as many slots are called as deliveries are in the buffer, as far as slots are free;
    - the feed was asked for a job for each other free slot.

    A slot that finds the buffer empty asks for a job as it rests. ``_spread`` restores both after
    other changes: new deliveries, and slots that end.

    New deliveries call one slot, which takes all of them if its jobs never suspend. After its
    first step the rest is spread over as many other slots as there are jobs.

    Attributes:
        concurrency: maximal number of slots, each started when first needed.
        leaving: slots end when they find no more work.
        gone: set once all slots have ended.
        run_jobs: runs plain jobs in C, or None. hot: objects that each slot keeps at hand.
        hosts: hosts of the feed and the gates of each log.

    Args:
        sources: the logs, at least one.
        is_cancelled: whether the worker itself is cancelled.
    """

    def __init__(
        self,
        app: TaskQ,
        sources: Sequence[LogSource],
        plans: executors.Plans,
        *,
        concurrency: int,
        queues: frozenset[str] | None,
        tasks: Callable[[], frozenset[str]],
        hook: Hook | None,
        stop: Callable[[BaseException | None], None],
        is_cancelled: Callable[[], bool],
        burst: bool = False,
        max_jobs: int | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        #: holds jobs back; None without conditions and breakers
        self.gates: Gatekeeper | None = None
        self.leaving = False
        self.gone = asyncio.Event()
        self.concurrency = concurrency
        self.run_jobs = run_jobs_of(hook)
        self._stop = stop
        # A job's changes of its context end with its slot; every new slot starts from this context.
        self._context = copy_context()
        self._interrupted = self._warned = False
        #: errors of jobs that ended the worker, by their tokens
        self._blamed: dict[int, BaseException] = {}
        self._overlap, self._is_cancelled = Overlap(), is_cancelled
        self._slots: set[Slot] = set()
        self._resting: dict[Slot, asyncio.Future[None]] = {}
        self._called: set[Slot] = set()
        self._spreading, self._entering = False, deque[asyncio.Future[None]]()
        self._started = self._reach = self._parked = 0
        quota = Quota(max_jobs)

        def feed(kind: type[FeedT], source: LogSource, host: Any, *, clocked: bool = True) -> FeedT:
            clock = source.clock if clocked else None
            return kind(
                self.loop, source.port, host, concurrency=concurrency, queues=queues, tasks=tasks,
                burst_clock=clock, quota=quota,
            )  # fmt: skip

        self._port = sources[0].port
        self._rounds: Rounds | None = None
        self.hosts: Sequence[Slots | LogShare] = (self,)
        if len(sources) == 1:
            app = sources[0].app
            self.feed = feed(Feed, sources[0], self, clocked=burst)
            self.settler = Settler(
                self.loop, self._port, self.feed.finished, lambda error, _: stop(error)
            )
            made, opened = _one_log(sources[0])
        else:
            rounds = Rounds(self, sources, partial(feed, LogFeed), quota, stop, burst=burst)
            made, opened = self._take_turns(rounds)
        self.hot = Hot(
            app, made, opened, self.feed.buffer, self.feed, plans, self.settler, hook,
            running_job, JobContext, monotonic, self, TURN_SECONDS, OUTCOMES_MAX, LEFT_BY_C,
        )  # fmt: skip

    def _take_turns(self, rounds: Rounds) -> tuple[Making, Opening]:
        """Use the rounds of several logs as feed, port and gates."""
        self._rounds = self.gates = rounds
        self.hosts = list(rounds.shares.values())
        self.feed = cast("Feed", rounds)
        port = cast("engine.LoopPort", rounds)
        self.settler = Settler(self.loop, port, rounds.finished, rounds.failed)
        return rounds.context, rounds.opened

    # For slots.

    def begin(self, slot: Slot) -> deque[Delivery]:
        self._called.discard(slot)
        return self.hot.buffer

    async def rest(self, slot: Slot) -> bool:
        if self.leaving or self.is_spare(slot):
            return False
        waiter = self._resting[slot] = self.loop.create_future()
        self.feed.refill()
        await waiter
        self._called.discard(slot)
        return True

    async def turn(self, slot: Slot) -> None:
        """Let the loop turn; the slot then reads the buffer again, like a called slot."""
        self._called.add(slot)
        await asyncio.sleep(0)
        self._called.discard(slot)

    def is_spare(self, slot: Slot) -> bool:
        """Return whether there are more slots than needed; this slot is then removed."""
        if not self._is_crowded():
            return False
        self._slots.discard(slot)
        self._let_in()
        return True

    def _is_crowded(self) -> bool:
        return len(self._slots) > self._most()

    def _most(self) -> int:
        """Return how many slots there may be; each batch waiting for a place reduces it by one."""
        return self.concurrency + self._parked - len(self._entering)

    def _has_place(self) -> bool:
        return len(self._slots) - self._parked < self.concurrency

    # For batches: ``_parked`` jobs wait for their batches and take no place, ``_entering`` batch
    # calls wait for a place.

    @property
    def context(self) -> Context:
        """Return the context from which each new slot starts."""
        return self._context

    def park(self) -> None:
        """Note that a job waits for its batch, so that another job may begin."""
        self._parked += 1
        if not self._spreading:
            self._spread_soon()

    def unpark(self) -> None:
        """Note that the job has stopped waiting; its slot ends with it."""
        self._parked -= 1

    async def take_place(self) -> None:
        """Wait until a call for parked jobs may run, and take a place for it."""
        while self._resting and not self._has_place():
            self._end_resting()
        if self._has_place():
            self._parked -= 1
            return
        waiter = self.loop.create_future()
        self._entering.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._entering:
                self._entering.remove(waiter)
            elif not waiter.cancelled():
                self.give_place()
            raise

    def give_place(self) -> None:
        """Give the place back."""
        self._parked += 1
        self._let_in()

    def _let_in(self) -> None:
        while self._entering and self._has_place():
            waiter = self._entering.popleft()
            if not waiter.done():
                self._parked -= 1  # before a slot takes the place
                waiter.set_result(None)

    def _end_resting(self) -> None:
        slot, waiter = self._resting.popitem()
        self._slots.discard(slot)
        waiter.cancel()

    def resize(self, concurrency: int) -> None:
        """Allow another number of slots; superfluous slots end after their jobs."""
        self.concurrency = concurrency
        while self._resting and self._is_crowded():
            self._end_resting()
        self._let_in()
        self.feed.resize(concurrency)

    def replace(self, slot: Slot) -> None:
        """Call another slot to the buffer in place of a spoilt slot."""
        self._slots.discard(slot)
        self._let_in()
        if self.feed.buffer:
            self.wake()

    def warn_once(self, problem: str) -> None:
        """Log, only once, that this worker cannot run a job that another worker might run."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "jobs wait for another worker, because this one cannot run them: %s", problem
            )

    def interrupting(self) -> bool:
        """Return whether a cancellation now comes from the worker's end, not from the job."""
        # The loop's own end cancels all tasks, including the worker's keeper.
        return self._interrupted or self._is_cancelled()

    def blamed(self, delivery: Delivery) -> BaseException | None:
        return self._blamed.get(delivery.token)

    async def judged(
        self, task: Task[..., Any], error: BaseException, settlement: Settlement
    ) -> Settlement:
        """Decide on a failed job, by its age and the network's state."""
        if settlement.kind is kinds.DEATH and settlement.delay_ns:
            rounds = self._rounds
            app = self.hot.app if rounds is None else rounds.app_of(settlement.delivery)
            settlement = await self._overlap.judge(app, settlement)
            if settlement.kind is kinds.RELEASE:
                self.warn_once(str(error))
        if self.gates is not None:
            settlement = await self.gates.judge(task, error, settlement)
        if task.retry.max_age_seconds is not None:
            rounds = self._rounds
            port = self._port if rounds is None else rounds.port_of(settlement.delivery)
            settlement = await unless_too_old(port, task, settlement)
        job = running_job.get(None)
        settlement = await unwind_steps(job, settlement)
        return with_lines(settlement, job) if task.keep_log else settlement

    def forsake(self) -> None:
        """Begin no other job in a forked child, and settle none."""
        for slot in self._slots:
            slot.abandoned = True

    # For the feed.

    def free(self) -> int:
        """Return how many slots are free, called to the buffer or not."""
        idle = len(self._resting) + len(self._called)
        return idle + self._most() - len(self._slots)

    def wake(self) -> None:
        """Let free slots read the buffer, unless the worker is about to give all of it back."""
        if not self._spreading and not self.interrupting() and self._call_one():
            self._reach = 1  # as many slots were called at once
            self._spread_soon()

    def quiet(self) -> bool:
        """Return whether no job runs and every outcome was sent to the log."""
        settler = self.settler
        return not (settler.outcomes or settler.refused or self.running())

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        self.settler.give_back(deliveries)

    def ran_dry(self) -> None:
        """End the burst: no job is ready and none runs."""
        if self.gates is None:
            self._stop(None)
        else:
            self.gates.ran_dry(self._stop)

    def came_empty(self) -> None: ...
    def fail(self, error: BaseException) -> None:
        self._stop(error)

    def surrender(self) -> list[Settlement]:
        """Release all jobs that no slot has begun; from a thread, while the loop is blocked."""
        return [release(delivery) for delivery in self.feed.surrender()]

    # For the worker.

    def delivery_of(self, task: asyncio.Task[Any]) -> Delivery | None:
        for slot in tuple(self._slots):
            if slot.task is task:
                return slot.delivery
        return None

    def runs(self, job: JobContext) -> bool:
        return any(slot.delivery is job.delivery for slot in self._slots)

    def blame(self, job: JobContext, error: BaseException) -> None:
        """Use up the attempt of a job here that ends the worker."""
        if self.runs(job):
            self._blamed[job.delivery.token] = error

    @property
    def slots(self) -> Iterable[Slot]:
        return self._slots

    def running(self) -> int:
        return sum(slot.delivery is not None for slot in self._slots)

    def held(self) -> list[tuple[Delivery, float | None]]:
        """Return the running jobs, each with its start in monotonic seconds."""
        return [(slot.delivery, slot.since) for slot in self._slots if slot.delivery is not None]

    def leave(self) -> None:
        """Stop claiming, and give back jobs that do not run; each slot ends with its job."""
        self.leaving = True
        self.feed.close()
        resting, self._resting = self._resting, {}
        for waiter in resting.values():
            if not waiter.done():
                waiter.set_result(None)
        self._check_gone()

    def interrupt(self) -> None:
        """Cancel the running jobs; they are released without using up their attempts."""
        self._interrupted = True
        for slot in self._slots:
            if slot.delivery is not None:
                slot.task.cancel()

    def abandon(self) -> None:
        """Release jobs that ignore their cancellation; they go on, with outcomes ignored."""
        for slot in self._slots:
            delivery = slot.delivery
            if delivery is not None:
                slot.abandoned = True
                _log.warning("job %s did not end when cancelled: released", delivery.job_id)
                self.put(release(delivery), slot.since)
        self._slots.clear()
        self._check_gone()

    def _spread_soon(self) -> None:
        """Check the buffer after the first steps of the slots that were just called."""
        self._spreading = True
        self.loop.call_soon(self._spread)

    def _spread(self) -> None:
        """Call more slots to the rest of the buffer, or none while a called slot runs on.

        Twice as many each time: if jobs suspend, all slots have a job after a few turns of the
            loop. If
        they do not, one slot runs them all and no other is called.
        """
        self._spreading = False
        if self.interrupting():
            return
        buffer = self.feed.buffer
        if not self._called:
            self._reach *= 2
            while len(self._called) < min(len(buffer), self._reach) and self._call_one():
                pass
        if buffer and self._called:
            self._spread_soon()
        if self.free() > len(buffer):
            # Resting slots have requested jobs already, and busy slots may run for long.
            self.feed.refill()

    def _call_one(self) -> bool:
        while self._resting:
            # The last slot to rest runs next: its objects are still in the processor's cache.
            slot, waiter = self._resting.popitem()
            if not waiter.done():
                waiter.set_result(None)
                self._called.add(slot)
                return True
        if len(self._slots) < self._most():
            self._start_slot()
            return True
        return False

    def _start_slot(self) -> None:
        self._started += 1
        slot = Slot(self, self._context.copy(), f"taskq-slot-{self._started}")
        self._slots.add(slot)
        self._called.add(slot)

        def ended(task: asyncio.Task[None]) -> None:
            self._on_slot_ended(slot, task)

        slot.task.add_done_callback(ended)

    def _on_slot_ended(self, slot: Slot, task: asyncio.Task[None]) -> None:
        self._slots.discard(slot)
        self._called.discard(slot)
        self._resting.pop(slot, None)
        self._let_in()
        error = None if task.cancelled() else task.exception()
        delivery, slot.delivery = slot.delivery, None
        # Without a job: the buffer was emptied while the loop was blocked, and all was given
        # back; or its last job closed it.
        if error is not None and not (
            delivery is None and isinstance(error, IndexError | GeneratorExit)
        ):
            # An error of the worker or of a policy, not of the job: log it, and continue.
            _log.error("a slot failed", exc_info=error)
        if delivery is not None and not slot.abandoned:
            lost = release(delivery) if error is None else settle_slot_error(delivery, error)
            self.put(lost, slot.since)
        self._spread()
        self._check_gone()

    def put(self, settlement: Settlement, since: float) -> None:
        self.settler.add(settlement)
        if self.hot.hook is not None:
            call_hook(self.hot.hook, settlement, monotonic() - since)

    def _check_gone(self) -> None:
        if self.leaving and not self._slots:
            self.gone.set()


def _one_log(source: LogSource) -> tuple[Making, Opening]:
    return JobContext, Inputs(source.app).payload
