"""Several logs of one worker: each has a feed, and they take turns by weight."""

from __future__ import annotations

import math
from asyncio import Future, TimerHandle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from taskq import JobContext, engine, values
from taskq.errors import TaskqError
from taskq.hooks import Inputs
from taskq_workers.slots import feed, settling
from taskq_workers.slots.settling import as_settlement

if TYPE_CHECKING:
    from taskq import Delivery, Task, TaskQ
    from taskq_workers.slots.slots import Slot, Slots

    OnError: TypeAlias = Callable[[engine.Settlement, TaskqError], None]

T = TypeVar("T")
#: After this time without a free slot, waiting claims are withdrawn, since they might take a job
#: from another worker. Other logs wait no longer than this for the answer to a claim.
BUSY_SECONDS: Final = 0.02
#: A lap ends when twice as many jobs have begun as there are slots. If it takes less time than
#: this, jobs are claimed ahead.
LAP_SECONDS: Final = 0.1


@values.dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """A log of a worker's slots.

    Attributes:
        clock: clock of claims that return at once.
        weight: its share of the turns.
        failed: called when the log has failed while others go on.
    """

    app: TaskQ
    port: engine.LoopPort
    clock: Callable[[], int]
    weight: int = 1
    failed: Callable[[BaseException], None]


class LogFeed(feed.Feed):
    """The feed of one of several logs; the rounds decide when it claims."""

    _runner: LogShare

    def refill(self) -> None:
        self._runner.came_empty()


class LogShare:
    """The share of one log in the slots: the ``FeedHost`` of its feed and its gates.

    Attributes:
        gates: hold back its jobs; None without conditions and breakers.
        turn: number of begun jobs divided by its weight; the log with the least is next.
        done: outcomes since the last call of ``feed.finished``.
        dry_at: number of begun jobs of all logs when it was found dry; -1: it is not dry.
    """

    feed: LogFeed

    def __init__(self, rounds: Rounds, source: LogSource) -> None:
        self.source = source
        self.port = source.port
        self.gates: feed.Gatekeeper | None = None
        self.turn = 0.0
        self.done = 0
        self.dry_at = -1
        self.weight = source.weight
        self._asked_at = 0.0
        self.opened = Inputs(source.app).payload
        self._rounds = rounds

    @property
    def settler(self) -> settling.Settler:
        return self._rounds.slots.settler

    @property
    def slots(self) -> Iterable[Slot]:
        return self._rounds.slots.slots

    def free(self) -> int:
        return self._rounds.slots.free()

    @property
    def held(self) -> int:
        """Return how many of its deliveries wait for a slot, or were requested."""
        return len(self.feed.buffer) + self.feed.asked

    def is_rival(self, now: float) -> bool:
        feed = self.feed
        if feed.is_idle:
            return False
        return feed.may_ask or (feed.asked > 0 and now - self._asked_at <= BUSY_SECONDS)

    def ask(self, more: int, now: float) -> None:
        if self.feed.may_ask:
            self._asked_at = now
        self.feed.ask(self.feed.asked + more)

    def wake(self) -> None:
        """Call slots to its deliveries; an empty or late log does not catch up its turns."""
        rounds, feed = self._rounds, self.feed
        if feed.is_idle:
            feed.is_idle = feed.asked > 0
            self.turn = max(self.turn, rounds.turn)
        elif rounds.slots.loop.time() - self._asked_at > BUSY_SECONDS:
            self.turn = max(self.turn, rounds.turn - rounds.window)
        rounds.waiting[self] = None
        rounds.slots.wake()
        rounds.refill_soon()

    def quiet(self) -> bool:
        """Return whether a worker that ends by itself has settled every job."""
        return self._rounds.is_ending() and self._rounds.slots.quiet()

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Release deliveries that no slot took, without using up their attempts."""
        self.settler.give_back(deliveries)

    def ran_dry(self) -> None:
        """Note that none of its jobs is ready, and no job of any log runs."""
        begun = self._rounds.begun

        def on_dry(error: BaseException | None) -> None:
            if error is not None:
                self.fail(error)
                return
            self.dry_at = begun
            self.feed.linger()
            self._rounds.ran_dry(self._rounds.stop)

        if self.gates is None:
            on_dry(None)
        else:
            self.gates.ran_dry(on_dry)

    def came_empty(self) -> None:
        """Let another log claim, since this log's claim returned nothing."""
        self._rounds.refill_soon()

    def fail(self, error: BaseException) -> None:
        self._rounds.leave(self, error)


class _Waiting:
    """The deliveries of all logs, in place of one feed's buffer."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def __bool__(self) -> bool:
        return any(share.feed.buffer for share in self._rounds.waiting)

    def __len__(self) -> int:
        return sum(len(share.feed.buffer) for share in self._rounds.waiting)

    def __iter__(self) -> Iterator[Delivery]:
        return chain.from_iterable(share.feed.buffer for share in list(self._rounds.waiting))

    def popleft(self) -> Delivery:
        rounds = self._rounds
        waiting = rounds.waiting
        while waiting:
            share = min(waiting, key=_turn)
            if share.feed.buffer:
                rounds.begin(share)
                return share.feed.buffer.popleft()
            del waiting[share]
        raise IndexError

    def remove(self, delivery: Delivery) -> None:
        self._rounds.shares[delivery.tag].feed.buffer.remove(delivery)


class Rounds:
    """The feeds of several logs, in place of one; also their ports and gates.

    A log's turn is the number of its begun jobs, divided by its weight; the log with the least turn
    is next. Slow jobs are claimed for free slots only. Fast jobs are claimed ahead, up to a common
    window of turns, so that no log gets far ahead of another, and none holds more than twice as
    many jobs as there are slots.

    An empty log waits for one job, at no cost, and does not catch up its turns afterwards. No log
    waits for a log that does not answer: claimed jobs begin out of turn while a claim of
    another log is pending. Their log then waits until the other log has had as many turns. A worker
    of one log uses none of this.

    Attributes:
        shares: shares by the tag of the log; a failed log's share is kept.
        waiting: shares with deliveries that no slot has taken.
        turn: the greatest turn at which a job was begun.
        window: how far a log may claim ahead of the least turn; 0 while jobs are slow.
        begun: number of begun jobs.
    """

    low = 0

    def __init__(
        self,
        slots: Slots,
        sources: Sequence[LogSource],
        feed: Callable[[LogSource, LogShare], LogFeed],
        quota: feed.Quota,
        stop: Callable[[BaseException | None], None],
        *,
        burst: bool,
    ) -> None:
        self.slots = slots
        self.stop = stop
        self.shares: dict[str, LogShare] = {}
        self.waiting: dict[LogShare, None] = {}
        self.turn = 0.0
        self.window = 0.0
        self.begun = 0
        self.buffer = _Waiting(self)
        self._alive: list[LogShare] = []
        self._quota = quota
        self._burst = burst
        self._is_asked = False
        self._timer: TimerHandle | None = None
        #: number of begun jobs when the timer last fired; whether none has begun since, for lack of
        #: a free slot, so that no claim waits for empty logs
        self._mark = 0
        self._stuck = False
        #: when the last lap ended, and its length
        self._lap_at = slots.loop.time()
        self._lap = math.inf
        for source in sources:
            share = LogShare(self, source)
            share.feed = feed(source, share)
            self.shares[source.app.connection.tag] = share
            self._alive.append(share)

    # -- as a feed --------------------------------------------------------------------------------

    def refill(self) -> None:
        now = self.slots.loop.time()
        rivals = [share for share in self._alive if share.is_rival(now)]
        if rivals:
            self._split(rivals, now)
        free = self._free()
        if free > 0:
            self._stuck = False
        if not self._stuck:
            for share in self._alive:
                if share.feed.is_idle:
                    share.feed.ask(1)
        if self._timer is None and ((free <= 0 and not self._stuck) or _asked(rivals)):
            self._timer = self.slots.loop.call_later(BUSY_SECONDS, self._look)

    def _split(self, rivals: list[LogShare], now: float) -> None:
        """Let logs with jobs claim more: ahead of the slots, or only for free slots."""
        if max(self._lap, now - self._lap_at) < LAP_SECONDS:
            weights = [share.weight for share in rivals]
            self.window = 2 * self.slots.concurrency / max(*weights, sum(weights) / 2)
            end = min(map(_turn, rivals)) + self.window
            for share in rivals:
                # Rounded, because sums of thirds are not exact.
                more = math.ceil(round((end - share.turn) * share.weight, 6)) - share.held
                if more > 0:
                    share.ask(more, now)
            return
        self.window = 0.0
        turns = {share: share.turn + share.held / share.weight for share in rivals}
        places = Counter[LogShare]()
        for _ in range(self._free() - _asked(rivals)):
            first = min(turns, key=turns.__getitem__)
            turns[first] += 1 / first.weight
            places[first] += 1
        for share, count in places.items():
            share.ask(count, now)

    def refill_soon(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self.slots.loop.call_soon(self._refill_now)

    def _refill_now(self) -> None:
        self._is_asked = False
        if not self.slots.leaving:
            self.refill()

    def _look(self) -> None:
        """Stop waiting for jobs while nothing changes, and for a log that is late."""
        self._timer = None
        if self._mark == self.begun and self._free() <= 0:
            self._stuck = True
            for share in self._alive:
                if share.feed.is_idle:
                    share.feed.withdraw()
        self._mark = self.begun
        self.refill()

    def _free(self) -> int:
        return self.slots.free() - len(self.buffer)

    def begin(self, share: LogShare) -> None:
        """Count a delivery of this log that a slot takes, and claim more in time."""
        self.begun += 1
        self.turn = max(self.turn, share.turn)
        share.turn += 1 / share.weight
        if self.begun % (2 * self.slots.concurrency) == 0:
            now = self.slots.loop.time()
            self._lap, self._lap_at = now - self._lap_at, now
        if self._stuck or len(share.feed.buffer) == self.window * share.weight // 2:
            self._stuck = False
            self.refill_soon()

    def finished(self, count: int) -> None:
        del count
        for share in self._alive:
            done, share.done = share.done, 0
            if done:
                share.feed.finished(done)
        if self._burst:
            for share in list(self._alive):
                share.feed.rested()

    def resize(self, concurrency: int) -> None:
        for share in list(self._alive):
            share.feed.resize(concurrency)

    def reconsider(self) -> None:
        for share in list(self._alive):
            share.feed.reconsider()

    def look_anew(self) -> None:
        """Check in all logs at once whether a burst has any job left."""
        for share in list(self._alive):
            share.feed.look_anew()

    def allowed(self, count: int) -> int:
        return self._quota.allowed(count)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for share in self._alive:
            share.feed.close()

    def surrender(self) -> list[Delivery]:
        """Take all jobs that no slot has begun; from a thread, while the loop is blocked."""
        return [delivery for share in self._alive for delivery in share.feed.surrender()]

    # -- ends -------------------------------------------------------------------------------------

    def is_ending(self) -> bool:
        return (self._burst or self._quota.is_used_up()) and not self.buffer

    def ran_dry(self, stop: Callable[[BaseException | None], None]) -> None:
        """End a burst if all logs are dry since the last job began, which may enqueue into any."""
        if self._quota.is_used_up() or all(share.dry_at == self.begun for share in self._alive):
            stop(None)
        else:
            self.refill_soon()

    def leave(self, share: LogShare, error: BaseException) -> None:
        """Continue without a failed log; the worker ends with the last log."""
        if share not in self._alive:
            return
        self._alive.remove(share)
        share.feed.close()
        if self._alive:
            share.source.failed(error)
            self.refill_soon()
        else:
            self.stop(error)

    def failed(self, error: TaskqError, delivery: Delivery) -> None:
        self.leave(self.shares[delivery.tag], error)

    # -- for slots --------------------------------------------------------------------------------

    def context(self, delivery: Delivery, _: TaskQ) -> JobContext:
        return JobContext(delivery, self.shares[delivery.tag].source.app)

    async def opened(self, delivery: Delivery) -> bytes:
        return await self.shares[delivery.tag].opened(delivery)

    def app_of(self, delivery: Delivery) -> TaskQ:
        return self.shares[delivery.tag].source.app

    def port_of(self, delivery: Delivery) -> engine.LoopPort:
        return self.shares[delivery.tag].port

    async def judge(
        self, task: Task[..., Any], error: BaseException, settlement: engine.Settlement
    ) -> engine.Settlement:
        gates = self.shares[settlement.delivery.tag].gates
        return settlement if gates is None else await gates.judge(task, error, settlement)

    def withdraw(self, ask: engine.Ask) -> Delivery | None:
        """Return a cancelled job that a gate of any log holds."""
        gates = (share.gates for share in self._alive)
        held = (gate.withdraw(ask) for gate in gates if gate is not None)
        return next((delivery for delivery in held if delivery is not None), None)

    # -- as a port, for the settler ---------------------------------------------------------------

    def succeed_soon(self, deliveries: list[Delivery], on_error: OnError) -> None:
        for share, some in self._apart(deliveries, lambda delivery: delivery.tag):
            try:
                share.port.succeed_soon(some, on_error)
            except TaskqError as error:
                _refuse(map(as_settlement, some), on_error, error)

    def settle_soon(self, items: list[engine.Settlement], on_error: OnError) -> None:
        for share, some in self._apart(items, lambda settlement: settlement.delivery.tag):
            try:
                share.port.settle_soon(some, on_error)
            except TaskqError as error:
                _refuse(some, on_error, error)

    def settle(self, items: list[engine.Settlement]) -> Future[list[settling.Settled]]:
        """Send outcomes to their logs; return the logs' answers in the same order."""
        answer: Future[list[settling.Settled]] = self.slots.loop.create_future()
        results: dict[int, settling.Settled] = {}

        def answered(some: list[engine.Settlement], done: Future[list[settling.Settled]]) -> None:
            error = done.exception()
            if isinstance(error, TaskqError):
                results.update(dict.fromkeys(map(id, some), error))
            else:
                results.update(zip(map(id, some), done.result(), strict=True))
            if len(results) == len(items) and not answer.done():
                answer.set_result([results[id(item)] for item in items])

        for share, some in self._apart(items, lambda settlement: settlement.delivery.tag):
            try:
                share.port.settle(some).add_done_callback(partial(answered, some))
            except TaskqError as error:
                results.update(dict.fromkeys(map(id, some), error))
        if len(results) == len(items):
            answer.set_result([results[id(item)] for item in items])
        return answer

    def _apart(
        self, items: Iterable[T], tag_of: Callable[[T], str]
    ) -> list[tuple[LogShare, list[T]]]:
        apart: dict[str, list[T]] = {}
        for item in items:
            apart.setdefault(tag_of(item), []).append(item)
        for tag, some in apart.items():
            self.shares[tag].done += len(some)
        return [(self.shares[tag], some) for tag, some in apart.items()]


def _refuse(items: Iterable[engine.Settlement], on_error: OnError, error: TaskqError) -> None:
    for item in items:
        on_error(item, error)


def _turn(share: LogShare) -> float:
    return share.turn


def _asked(shares: list[LogShare]) -> int:
    return sum(share.feed.asked for share in shares)
