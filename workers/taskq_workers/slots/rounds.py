"""Several logs behind one worker's slots: each has its feed, and they take turns by weight.

A log whose last claim found jobs is asked again only for slots that are its turn, and says at once
how many it has; one that had none lets its claim wait, at no cost, for whatever comes first. So no
slot stays free beside a ready job of any log, and no log takes more than its share from the others.
A worker of one log knows nothing of all this.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from taskq.app.context import JobContext
from taskq.core.errors import TaskqError
from taskq.core.values import dataclass
from taskq_workers.slots.inputs import Inputs
from taskq_workers.slots.settling import settled

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from taskq.app.app import TaskQ
    from taskq.app.tasks import Task
    from taskq.log.requests import Ask, Delivery, Settlement
    from taskq.log.store.port import LoopPort
    from taskq_workers.slots.feed import Feed, Quota
    from taskq_workers.slots.hands import Gatekeeper
    from taskq_workers.slots.settling import Settled, Settler
    from taskq_workers.slots.slot import Slot
    from taskq_workers.slots.slots import Slots

    OnError: TypeAlias = Callable[[Settlement, TaskqError], None]

T = TypeVar("T")
#: While no slot is free for so long, no claim waits that might take a job from another worker.
BUSY_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One log, as the slots of a worker see it.

    Attributes:
        app: the app over this log.
        port: of this loop.
        clock: of claims that are to be answered at once.
        weight: its share of the turns.
        failed: called when it cannot be used any more and others can.
    """

    app: TaskQ
    port: LoopPort
    clock: Callable[[], int]
    weight: int = 1
    failed: Callable[[BaseException], None]


class Share:
    """What one log has of the slots: the ``FeedHost`` of its feed and its gates.

    Attributes:
        gates: what keeps its jobs back; None while nothing ever does.
        turn: how far it is, in jobs by its weight; the least is the next.
        done: outcomes that were handed to it since its feed was last told.
        dry_at: how many jobs all logs had begun when it was found dry; -1: it is not.
    """

    feed: Feed

    def __init__(self, rounds: Rounds, source: Source) -> None:
        self.source = source
        self.port = source.port
        self.gates: Gatekeeper | None = None
        self.turn = 0.0
        self.done = 0
        self.dry_at = -1
        self.opened = Inputs(source.app).payload
        self._rounds = rounds

    @property
    def settler(self) -> Settler:
        """That of all logs."""
        return self._rounds.slots.settler

    @property
    def slots(self) -> Iterable[Slot]:
        """Those of all logs."""
        return self._rounds.slots.slots

    def free(self) -> int:
        """How many deliveries it may hold now: those that lie there, and slots in its turn."""
        return len(self.feed.buffer) + self._rounds.room(self)

    def wake(self) -> None:
        """Let slots look: a log that had nothing takes part from here on, with no turns owed."""
        if self.feed.stands:
            self.feed.stands = self.feed.asked > 0
            self.turn = max(self.turn, self._rounds.turn)
        self._rounds.waiting[self] = None
        self._rounds.slots.wake()
        self._rounds.refill_soon()

    def quiet(self) -> bool:
        """Whether a worker that is to end by itself has nothing left that it began."""
        return self._rounds.is_ending() and self._rounds.slots.quiet()

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Release deliveries that no slot took; burns no attempt."""
        self.settler.give_back(deliveries)

    def ran_dry(self) -> None:
        """No job of it is ready, and none of any log runs."""
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
        """A claim brought nothing: it is another log's turn."""
        self._rounds.refill_soon()

    def fail(self, error: BaseException) -> None:
        """The log cannot be used any more."""
        self._rounds.leave(self, error)


class _Waiting:
    """The deliveries of all logs, in the place of one feed's buffer."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def __len__(self) -> int:
        return sum(len(share.feed.buffer) for share in self._rounds.waiting)

    def __iter__(self) -> Iterator[Delivery]:
        return chain.from_iterable(share.feed.buffer for share in list(self._rounds.waiting))

    def popleft(self) -> Delivery:
        """The next.

        Raises:
            IndexError: there is none.
        """
        rounds = self._rounds
        for empty in [share for share in rounds.waiting if not share.feed.buffer]:
            del rounds.waiting[empty]
        if not rounds.waiting:
            raise IndexError
        share = min(rounds.waiting, key=_turn)
        delivery = share.feed.buffer.popleft()
        rounds.turn = share.turn
        share.turn += 1 / share.source.weight
        rounds.begun += 1
        if len(share.feed.buffer) < share.feed.low:
            share.feed.refill()
        elif not share.feed.buffer:
            rounds.refill_soon()
        return delivery

    def remove(self, delivery: Delivery) -> None:
        """Take one out."""
        self._rounds.shares[delivery.tag].feed.buffer.remove(delivery)


class Rounds:
    """The feeds of several logs, in the place of one; likewise their ports and their gates.

    Attributes:
        shares: by the tag of the log; one that failed stays, and is among those that are ``left``.
        waiting: those with deliveries that no slot has taken.
        turn: that of the log whose job was begun last.
        begun: how many jobs were.
    """

    low = 0

    def __init__(
        self,
        slots: Slots,
        sources: Sequence[Source],
        feed: Callable[[Source, Share], Feed],
        quota: Quota,
        stop: Callable[[BaseException | None], None],
        *,
        burst: bool,
    ) -> None:
        self.slots = slots
        self.stop = stop
        self.shares: dict[str, Share] = {}
        self.waiting: dict[Share, None] = {}
        self.turn = 0.0
        self.begun = 0
        self.buffer = _Waiting(self)
        self._alive: list[Share] = []
        self._quota = quota
        self._burst = burst
        self._is_asked = False
        self._busy: TimerHandle | None = None
        for source in sources:
            share = Share(self, source)
            share.feed = feed(source, share)
            self.shares[source.app._connection.tag] = share
            self._alive.append(share)

    # -- as a feed --------------------------------------------------------------------------------

    def refill(self) -> None:
        """Let each log claim for the slots that are its turn."""
        for share in sorted(self._alive, key=_turn):
            # One that waits for more already, or has enough ahead, asks by itself.
            feed = share.feed
            if feed.stands or not (feed.asked or len(feed.buffer) >= feed.low > 0):
                feed.refill()
        if self._busy is None and self._free() <= 0:
            self._busy = self.slots.loop.call_later(BUSY_SECONDS, self._on_busy)

    def refill_soon(self) -> None:
        """Do as ``refill``, after this turn of the loop."""
        if not self._is_asked:
            self._is_asked = True
            self.slots.loop.call_soon(self._refill_now)

    def _refill_now(self) -> None:
        self._is_asked = False
        if not self.slots.leaving:
            self.refill()

    def _on_busy(self) -> None:
        self._busy = None
        if self._free() <= 0:
            for share in self._alive:
                if share.feed.stands:
                    share.feed.withdraw()

    def _free(self) -> int:
        return self.slots.free() - len(self.buffer)

    def room(self, share: Share) -> int:
        """How many of the free slots this log may claim for."""
        free = self._free()
        if share.feed.stands:
            # Nothing was there: one more is no burden, and needs no new claim when slots are free.
            return free if free > 0 or not share.feed.asked else 1
        if free < 0:
            # Others have claimed ahead of the slots, as their jobs are fast: so may it, as many.
            return max(one.feed.batch for one in self._alive)
        rivals = [one for one in self._alive if not one.feed.stands]
        free -= sum(one.feed.asked for one in rivals if one is not share)
        rivals = [one for one in rivals if one is share or one.feed.may_ask]
        turns = {one: one.turn + len(one.feed.buffer) / one.source.weight for one in rivals}
        room = 0
        for _ in range(free):
            first = min(turns, key=turns.__getitem__)
            turns[first] += 1 / first.source.weight
            room += first is share
        return room

    def finished(self, count: int) -> None:
        """So many outcomes were handed to the logs."""
        del count
        for share in self._alive:
            done, share.done = share.done, 0
            if done:
                share.feed.finished(done)
        if self._burst:
            for share in list(self._alive):
                share.feed.rested()

    def reconsider(self) -> None:
        """What may be claimed has changed."""
        for share in list(self._alive):
            share.feed.reconsider()

    def close(self) -> None:
        """Claim no more, and give back whatever no slot took."""
        if self._busy is not None:
            self._busy.cancel()
        for share in self._alive:
            share.feed.close()

    def surrender(self) -> list[Delivery]:
        """From another thread, while the loop stands still: take all that no slot has begun."""
        return [one for share in self._alive for one in share.feed.surrender()]

    # -- ends -------------------------------------------------------------------------------------

    def is_ending(self) -> bool:
        """Whether the worker is to end once nothing is left."""
        return (self._burst or self._quota.is_used_up()) and not self.buffer

    def ran_dry(self, stop: Callable[[BaseException | None], None]) -> None:
        """A burst is over once all logs were dry since the last job began, as it may add to any."""
        if self._quota.is_used_up() or all(one.dry_at == self.begun for one in self._alive):
            stop(None)
        else:
            self.refill_soon()

    def leave(self, share: Share, error: BaseException) -> None:
        """Go on without a log that failed; the worker ends with the last of them."""
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
        """The log of this delivery takes no outcomes any more."""
        self.leave(self.shares[delivery.tag], error)

    # -- for slots --------------------------------------------------------------------------------

    def context(self, delivery: Delivery, _: TaskQ) -> JobContext:
        """The job, with the app over its own log."""
        return JobContext(delivery, self.shares[delivery.tag].source.app)

    async def opened(self, delivery: Delivery) -> bytes:
        """The job's payload as its task takes it."""
        return await self.shares[delivery.tag].opened(delivery)

    def port_of(self, delivery: Delivery) -> LoopPort:
        """The port of its log."""
        return self.shares[delivery.tag].port

    async def judge(
        self, task: Task[..., Any], error: BaseException, settlement: Settlement
    ) -> Settlement:
        """What the gates of the job's own log make of its failure."""
        gates = self.shares[settlement.delivery.tag].gates
        return settlement if gates is None else await gates.judge(task, error, settlement)

    def withdraw(self, ask: Ask) -> Delivery | None:
        """A cancelled job that a gate of any log holds."""
        gates = (share.gates for share in self._alive)
        held = (one.withdraw(ask) for one in gates if one is not None)
        return next((delivery for delivery in held if delivery is not None), None)

    # -- as a port, for the settler ---------------------------------------------------------------

    def succeed_soon(self, deliveries: list[Delivery], on_error: OnError) -> None:
        """Hand successes to their logs."""
        for share, some in self._apart(deliveries, lambda one: one.tag):
            try:
                share.port.succeed_soon(some, on_error)
            except TaskqError as error:
                _refuse(map(settled, some), on_error, error)

    def settle_soon(self, items: list[Settlement], on_error: OnError) -> None:
        """Hand outcomes to their logs."""
        for share, some in self._apart(items, lambda one: one.delivery.tag):
            try:
                share.port.settle_soon(some, on_error)
            except TaskqError as error:
                _refuse(some, on_error, error)

    def settle(self, items: list[Settlement]) -> Future[list[Settled]]:
        """Hand outcomes to their logs; gives what these answer, in the same order."""
        answer: Future[list[Settled]] = self.slots.loop.create_future()
        told: dict[int, Settled] = {}

        def answered(some: list[Settlement], done: Future[list[Settled]]) -> None:
            error = done.exception()
            if isinstance(error, TaskqError):
                told.update(dict.fromkeys(map(id, some), error))
            else:
                told.update(zip(map(id, some), done.result(), strict=True))
            if len(told) == len(items) and not answer.done():
                answer.set_result([told[id(item)] for item in items])

        for share, some in self._apart(items, lambda one: one.delivery.tag):
            try:
                share.port.settle(some).add_done_callback(partial(answered, some))
            except TaskqError as error:
                told.update(dict.fromkeys(map(id, some), error))
        if len(told) == len(items):
            answer.set_result([told[id(item)] for item in items])
        return answer

    def _apart(self, items: Iterable[T], tag_of: Callable[[T], str]) -> list[tuple[Share, list[T]]]:
        """What each log gets of these."""
        apart: dict[str, list[T]] = {}
        for item in items:
            apart.setdefault(tag_of(item), []).append(item)
        for tag, some in apart.items():
            self.shares[tag].done += len(some)
        return [(self.shares[tag], some) for tag, some in apart.items()]


def _refuse(items: Iterable[Settlement], on_error: OnError, error: TaskqError) -> None:
    for item in items:
        on_error(item, error)


def _turn(share: Share) -> float:
    return share.turn
