"""Claims ahead of the slots, in batches sized by the speed of the jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from taskq.engine import ClaimRequest
from taskq.errors import AppendFailed, LogLocked, TaskqError
from taskq_workers.runs.system import Turns

if TYPE_CHECKING:
    import asyncio

    from taskq import Delivery, Task
    from taskq.engine import Ask, Limit, LoopPort, Settlement, Weights
    from taskq_workers.slots.settling import Settler


class FeedHost(Protocol):
    """Runs the jobs of a log's feed and gates."""

    @property
    def feed(self) -> Feed: ...
    @property
    def settler(self) -> Settler: ...
    def free(self) -> int:
        """Return how many deliveries could be taken now."""

    def wake(self) -> None: ...
    def quiet(self) -> bool: ...
    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Release deliveries that no slot took, without using up their attempts."""

    def ran_dry(self) -> None:
        """End a burst: no job is ready and none runs."""

    def came_empty(self) -> None:
        """Give other logs the free slots of a claim that returned nothing, or was withdrawn."""

    def fail(self, error: BaseException) -> None: ...


class Runner(FeedHost, Protocol):
    """Runs a worker's jobs: ``Slots`` here, or executors elsewhere.

    ``gone`` is set once no job runs, after ``leave``.
    """

    gone: asyncio.Event

    def running(self) -> int: ...
    def held(self) -> list[tuple[Delivery, float | None]]:
        """Return the running jobs, each with its start in monotonic seconds, None if unknown."""

    def leave(self) -> None:
        """Stop claiming, and give back jobs that do not run yet; running jobs go on."""

    def interrupt(self) -> None:
        """Cancel the running jobs; they are released without using up their attempts."""

    def abandon(self) -> None:
        """Release jobs that ignore their cancellation; they go on, with outcomes ignored."""


class ClaimFilter(Protocol):
    """Excludes jobs from claims: by conditions, and by queues that back off."""

    def claimable(
        self, queues: frozenset[str] | None, tasks: frozenset[str]
    ) -> tuple[frozenset[str] | None, frozenset[str]]: ...
    def passed(self, deliveries: list[Delivery]) -> list[Delivery]: ...


class Gatekeeper(Protocol):
    """Gates of a worker as seen by its slots."""

    async def judge(
        self, task: Task[..., Any], error: BaseException, settlement: Settlement
    ) -> Settlement:
        """Decide on a failed job: it is given back if the network failed, not the job."""

    def ran_dry(self, stop: Callable[[BaseException | None], None]) -> None:
        """Stop, since no claimable job is ready, unless a gate is about to open."""

    def withdraw(self, ask: Ask) -> Delivery | None:
        """Return a cancelled job that a gate has claimed and not passed on yet."""


#: Most deliveries in one claim, unless there are more than half as many slots.
BATCH_MAX: Final = 512
#: After a full batch that is done sooner, the next batch is twice as large.
BATCH_SECONDS_SHORT: Final = 0.020
#: After a batch that takes longer, the next batch has half the size.
BATCH_SECONDS_LONG: Final = 0.100
#: Pauses before a refused claim (disk full, log locked) is tried again: the first and the longest;
#: each is twice the one before.
PAUSE_SECONDS_FIRST: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5.0
#: Errors that end by themselves, or once a user has freed space.
PASSING: Final = (AppendFailed, LogLocked)


class ClaimPace:
    """The batch size: from the number of slots up to ``BATCH_MAX``, or twice the number of slots.

    One batch is measured at a time: from its arrival until as many jobs have finished as waited
    then. All jobs count, so that one slow job among many fast jobs does not make a batch look slow.

    Attributes:
        size: deliveries in the next claim.
        ahead: whether to claim before a slot is free.
    """

    __slots__ = ("_concurrency", "_full", "_goal", "_since", "_size_max", "ahead", "size")

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._size_max = max(BATCH_MAX, 2 * concurrency)
        self.size = concurrency
        self.ahead = False
        self._goal = 0
        self._full = False
        self._since = 0.0

    def claimed(self, *, waiting: int, full: bool, now: float) -> None:
        """Learn from a claim: ``waiting`` are in the buffer; ``full``: the claim got its count."""
        if self._goal <= 0:
            self._goal = waiting
            self._full = full
            self._since = now

    def finished(self, count: int, now: float) -> None:
        if self._goal <= 0:
            return
        self._goal -= count
        if self._goal > 0:
            return
        seconds = now - self._since
        if seconds > BATCH_SECONDS_LONG:
            self._resize(self.size // 2)
        elif seconds < BATCH_SECONDS_SHORT and self._full:
            self._resize(self.size * 2)

    def resize(self, concurrency: int) -> None:
        """Start again with another number of slots."""
        self._concurrency, self._size_max = concurrency, max(BATCH_MAX, 2 * concurrency)
        self.cut()

    def cut(self) -> None:
        """Claim only for free slots again: the jobs became slow, or there are none."""
        self._goal = 0
        self._resize(0)

    def _resize(self, size: int) -> None:
        self.size = max(self._concurrency, min(size, self._size_max))
        self.ahead = self.size > self._concurrency


class Pause:
    """Pauses before the next try: each is twice the last, unless that was long ago."""

    __slots__ = ("_last", "_seconds", "_time")

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._last = 0.0
        self._seconds = 0.0

    def next(self) -> float:
        now = self._time()
        if now - self._last > 2 * PAUSE_SECONDS_MAX:
            self._seconds = 0.0
        self._last = now
        self._seconds = min(max(self._seconds * 2, PAUSE_SECONDS_FIRST), PAUSE_SECONDS_MAX)
        return self._seconds


_log: Final = logging.getLogger("taskq.worker")

#: A delivery that no slot took for this long is given back, for another worker.
HOARD_SECONDS: Final = 0.5


class Quota:
    """Number of jobs that a worker may still begin, in all its logs; None for no limit."""

    def __init__(self, jobs_max: int | None = None) -> None:
        self._jobs_max = jobs_max
        #: claimed deliveries, except deliveries that were given back before they ran
        self.taken = 0

    def allowed(self, count: int) -> int:
        return count if self._jobs_max is None else min(count, self._jobs_max - self.taken)

    def is_used_up(self) -> bool:
        return self._jobs_max is not None and self.taken >= self._jobs_max


class Feed:
    """Deliveries that wait for a slot, and the claim for more.

    Fast jobs are claimed many at a time, and the next batch is requested while the current batch
    runs, since a claim takes as long as hundreds of no-ops. Slow jobs are claimed only for free
    slots, so that no job waits here if another worker could run it.

    Attributes:
        buffer: deliveries in claim order; slots pop from its left.
        low: a slot calls ``refill`` if fewer deliveries are left; 0 while a call would be useless.
        is_idle: the last claim found no job, so claims wait from now on.
        filter: excludes jobs from claims; None: all are allowed.
        limits: limits of the tasks, by name.
        weights: shares of the queues.

    Args:
        burst_clock: clock of claims that return at once, even if no job is ready.
        pace: number of jobs to claim ahead; measured if None.
        quota: after it the feed runs dry, like a burst; None for no limit.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        port: LoopPort,
        runner: FeedHost,
        *,
        concurrency: int,
        queues: frozenset[str] | None,
        tasks: Callable[[], frozenset[str]],
        burst_clock: Callable[[], int] | None = None,
        pace: ClaimPace | None = None,
        quota: Quota | None = None,
    ) -> None:
        self.buffer: deque[Delivery] = deque()
        self.low = 0
        self.is_idle = False
        self.filter: ClaimFilter | None = None
        self.limits: Mapping[str, Limit] | None = None
        self.weights: Weights | None = None
        self._loop = loop
        self._port = port
        self._runner = runner
        self._queues = queues
        self._tasks = tasks
        self._burst_clock = burst_clock
        self._pace = pace or ClaimPace(concurrency)
        self._pause = Pause(loop.time)
        self._turns = Turns()
        self._quota = quota or Quota()
        self._request = ClaimRequest(0)
        self._claim: asyncio.Future[list[Delivery]] | None = None
        self._closed = False
        self._paused = False
        self._asked_when_quiet = False
        #: number of the port's late answers when the claim was made
        self._late = 0
        #: number of received deliveries, and its value at the last look
        self._received = 0
        self._mark = 0
        self._timer: asyncio.TimerHandle | None = None

    def resize(self, concurrency: int) -> None:
        """Claim for another number of slots from now on."""
        self._pace.resize(concurrency)
        if self._claim is not None:
            self.ask(self._runner.free() - len(self.buffer))
        else:
            self.refill()

    def refill(self) -> None:
        """Claim more, unless a claim waits already or the jobs are too slow to claim ahead."""
        pace = self._pace
        free = self._runner.free() - len(self.buffer)
        if self._claim is not None:
            self.ask(free if self.is_idle else max(self._request.count, free))
        else:
            self.low = 0
            self.ask(max(pace.size, free) if pace.ahead else free)

    def ask(self, count: int) -> None:
        """Set the count of the waiting claim, or make a new claim; withdraw the claim for 0."""
        if self._closed or self._paused:
            return
        count = self.allowed(count)
        if count <= 0:
            # The store would skip a waiting claim with count 0, and not look again when the count
            # rises.
            self.withdraw()
        elif self._claim is not None:
            # The storage thread reads the count when it serves the claim, so it may still grow.
            self._request.count = count
        else:
            self._begin(count)

    def _begin(self, count: int) -> None:
        until_ns = None
        if self._burst_clock is not None:
            self._asked_when_quiet = self._is_quiet()
            self._late = self._port.late
            if not self.is_idle:
                until_ns = self._burst_clock()
        queues, tasks = self._queues, self._tasks()
        if self.filter is not None:
            queues, tasks = self.filter.claimable(queues, tasks)
        self._request = self.request(count, queues, tasks, until_ns)
        try:
            self._claim = self._port.claim(self._request)
        except TaskqError as error:
            self._rest(error)
        else:
            self._claim.add_done_callback(self._on_claimed)

    @property
    def is_asking(self) -> bool:
        return self._claim is not None or bool(self.buffer)

    @property
    def may_ask(self) -> bool:
        return not (self._closed or self._paused or self._claim is not None)

    @property
    def asked(self) -> int:
        return 0 if self._claim is None else self._request.count

    def finished(self, count: int) -> None:
        self._pace.finished(count, self._loop.time())
        if self._quota.is_used_up():
            if self._is_quiet():
                self._runner.ran_dry()
            return
        self.rested()

    def rested(self) -> None:
        """Note that a job has ended: a waiting burst looks again once no job runs."""
        if self.is_idle and self._is_quiet():
            self.look_anew()

    def request(
        self,
        count: int,
        queues: frozenset[str] | None,
        tasks: frozenset[str],
        until_ns: int | None = None,
    ) -> ClaimRequest:
        return ClaimRequest(count, queues, tasks, until_ns, 0, self.limits, self.weights)

    def allowed(self, count: int) -> int:
        return self._quota.allowed(count)

    def reconsider(self) -> None:
        if self.buffer and self.filter is not None:
            deliveries = list(self.buffer)
            self.buffer.clear()
            self.buffer.extend(self._passed(deliveries))
        self.withdraw()
        self.refill()

    def add(self, deliveries: list[Delivery]) -> None:
        """Let slots run deliveries that a gate has claimed."""
        deliveries = self._counted(deliveries)
        self.buffer.extend(deliveries)
        self._watch_soon()
        self._runner.wake()

    def surrender(self) -> list[Delivery]:
        """Take all jobs that no slot has begun; from a thread, while the loop is blocked."""
        taken: list[Delivery] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.buffer.pop())
        self._quota.taken -= len(taken)
        claim = self._claim
        if claim is not None and claim.done() and not claim.cancelled() and not claim.exception():
            # The claim is answered, but its callback waits for the loop; it will find an empty
            # list.
            deliveries = claim.result()
            with contextlib.suppress(IndexError):
                while True:
                    taken.append(deliveries.pop())
        return taken + self._port.surrender()

    def close(self) -> None:
        """Stop claiming, and give back deliveries that no slot took. Legal twice."""
        self._closed = True
        self._turns.rest()
        self.low = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        claim, self._claim = self._claim, None
        answered = claim is not None and not claim.cancel() and not claim.cancelled()
        if claim is not None and answered and claim.exception() is None:
            # The callback would come too late.
            self.buffer.extend(claim.result())
        self._give_back()

    def _on_claimed(self, claim: asyncio.Future[list[Delivery]]) -> None:
        if claim is not self._claim:
            return
        self._claim = None
        if claim.cancelled():
            self._rest(None)
            return
        error = claim.exception()
        if error is not None:
            self._rest(error)
            return
        deliveries = claim.result()
        if deliveries:
            self._supply(self._counted(deliveries))
        elif self._burst_clock is None:
            self._rest(None)
        else:
            self._look_again()

    def _counted(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Return the deliveries within the quota; gates use the same quota."""
        allowed = max(self.allowed(len(deliveries)), 0)
        self._received += len(deliveries)
        self._quota.taken += allowed
        if allowed < len(deliveries):
            self._runner.give_back(deliveries[allowed:])
            return deliveries[:allowed]
        return deliveries

    def _supply(self, deliveries: list[Delivery]) -> None:
        buffer, pace = self.buffer, self._pace
        full = len(deliveries) >= self._request.count
        if self.filter is not None:
            deliveries = self._passed(deliveries)
        buffer.extend(deliveries)
        pace.claimed(waiting=len(buffer), full=full, now=self._loop.time())
        if pace.ahead:
            if len(buffer) <= pace.size:
                self.refill()
            else:
                self.low = pace.size // 2
        self._watch_soon()
        self._runner.wake()

    def _watch_soon(self) -> None:
        if self._timer is None:
            self._turns.look()
            self._mark = self._received
            self._timer = self._loop.call_later(HOARD_SECONDS, self._watch)

    def _is_quiet(self) -> bool:
        return not self.buffer and self._runner.quiet()

    def _look_again(self) -> None:
        """End a burst that found no job, unless running jobs or other logs may bring more."""
        is_quiet = self._is_quiet()
        # Deliveries of a claim that was withdrawn at that moment become ready again only now.
        if is_quiet and self._asked_when_quiet and self._late == self._port.late:
            self._runner.ran_dry()
            return
        if is_quiet:
            self.look_anew()
        else:
            self.linger()

    def linger(self) -> None:
        """Claim new jobs while a burst that found none does not end yet."""
        self.is_idle = True
        self.refill()
        self._runner.came_empty()

    def look_anew(self) -> None:
        """Check at once whether a waiting burst has any job left."""
        self.is_idle = False
        self.withdraw()
        self.refill()
        self._runner.came_empty()

    def _passed(self, deliveries: list[Delivery]) -> list[Delivery]:
        assert self.filter is not None
        passed = self.filter.passed(deliveries)
        self._quota.taken -= len(deliveries) - len(passed)
        return passed

    def _rest(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, PASSING):
            self._runner.fail(error)
            return
        seconds = self._pause.next()
        if error is not None:
            _log.warning("no jobs are claimed for %.1f s, because: %s", seconds, error)
        self._paused = True
        self._loop.call_later(seconds, self._resume)
        self._runner.came_empty()

    def _resume(self) -> None:
        self._paused = False
        self.refill()

    def _watch(self) -> None:
        """Give back deliveries that waited since the last look; stop looking if nothing changes."""
        taken = self._received - len(self.buffer)
        if self.buffer and taken < self._mark:
            self._pace.cut()
            self.withdraw()
            self._give_back()
        elif not self.buffer and taken == self._mark:
            # Idle, or busy with slow jobs. The next jobs may be slow too, so claim few.
            self._pace.cut()
            self._request.count = min(self._request.count, max(self._runner.free(), 1))
            self._timer = None
            self._turns.rest()
            return
        self._turns.look()
        self._mark = self._received
        self._timer = self._loop.call_later(HOARD_SECONDS, self._watch)

    def withdraw(self) -> None:
        """Withdraw the claim, until the next ``refill``."""
        if self._claim is not None and self._claim.cancel():
            self._claim = None

    def _give_back(self) -> None:
        if self.buffer:
            deliveries = list(self.buffer)
            self.buffer.clear()
            self._quota.taken -= len(deliveries)
            self._runner.give_back(deliveries)
