"""Gates hold back groups of jobs: by conditions, or by a circuit breaker."""

from __future__ import annotations

import asyncio
import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final, Protocol

from anyio import CancelScope, move_on_after, sleep

from taskq import Delivery, engine, errors, values, views
from taskq.conditions import base, breakers
from taskq.conditions.network import is_anywhere_routed
from taskq_workers.gates.probes import HELD_SECONDS, Probe, Probes
from taskq_workers.runs.reasons import summary
from taskq_workers.slots.feed import Feed

_log: Final = logging.getLogger("taskq.worker")

#: Pause of a gate after the log refused a request.
REST_SECONDS: Final = 1.0
#: The longest trial of a job that needs conditions, and the longest wait for that job.
TRIAL_SECONDS: Final = 1.0
#: If a trial job has not failed after this time, the network is back.
BREAKER_TRIAL_SECONDS: Final = 10.0
#: A job's network failure causes a new probe only if the last one is older than this.
_ALARM_AGE_SECONDS: Final = 0.25
_REASON_CHARACTERS_MAX: Final = 120


class Mode(enum.Enum):
    """Ways of a gate to treat its jobs."""

    #: no jobs are known: it waits for the first
    IDLE = enum.auto()
    #: it checks whether the jobs may run
    CHECKING = enum.auto()
    #: the jobs wait
    SHUT = enum.auto()
    #: one of the jobs runs as a trial
    TRYING = enum.auto()
    #: the jobs are claimed like all others
    OPEN = enum.auto()


class _Host(Protocol):
    """The worker as seen by its gates."""

    port: engine.LoopPort
    feed: Feed
    moved: asyncio.Event
    probes: Probes

    def open_queues(self) -> frozenset[str] | None: ...
    def open_tasks(self) -> frozenset[str]: ...
    def changed(self) -> None: ...
    def passed(self, deliveries: list[Delivery]) -> list[Delivery]: ...
    def wall_ns(self) -> int: ...
    def give_back(self, deliveries: list[Delivery], cause: engine.Cause) -> None: ...
    def has_begun(self, tasks: set[str]) -> bool: ...
    def stop_running(self, tasks: set[str]) -> None: ...
    def network_conditions(self, queue: str) -> list[base.Condition]: ...


class Gate(ABC):
    """Base of both kinds of gates; each gate runs in a task of the worker.

    ``hold`` is shown to people while the gate is shut; ``cause`` is stored with jobs that the gate
    gives back.

    A gate is a filter of claims. While it holds jobs back it claims one itself, to learn that there
    are any. When they may run again, that job is tried first, and all others follow if it succeeds.
    """

    cause: engine.Cause

    def __init__(self, host: _Host) -> None:
        self.host = host
        self.mode = Mode.IDLE
        self.hold: views.Hold | None = None
        self._life: CancelScope | None = None
        self._is_drained = False
        #: claimed, neither running nor given back yet
        self._claimed: Delivery | None = None
        #: token of the trial job, and the event that ends its trial
        self._trial: int | None = None
        self._tried = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self.mode is Mode.OPEN

    async def run(self) -> None:
        """Run until drained; continue after errors of the log."""
        with CancelScope() as self._life:
            try:
                while not self._is_drained:
                    await self._live_once()
                    await sleep(REST_SECONDS)
            finally:
                self._release(engine.Cause.DRAIN)

    def drain(self) -> None:
        """Stop claiming; give back jobs that have not begun. Legal twice, and before ``run``."""
        self._is_drained = True
        if self._life is not None:
            self._life.cancel()
        self._release(engine.Cause.DRAIN)

    @abstractmethod
    def selection(self) -> tuple[frozenset[str] | None, frozenset[str]]:
        """Return queues and tasks of its jobs, without queues and tasks of another shut gate."""

    def flushed(self, settlements: list[engine.Settlement]) -> None:
        if any(settlement.delivery.token == self._trial for settlement in settlements):
            self._trial = None
            self._tried.set()

    def tries(self, delivery: Delivery) -> bool:
        return delivery.token == self._trial

    def withdraw(self, ask: engine.Ask) -> Delivery | None:
        """Take back a cancelled job that the gate has claimed; None if it has no such job."""
        delivery = self._claimed
        if delivery is None or (delivery.job, delivery.token) != ask:
            return None
        self._claimed = None
        return delivery

    async def demand(self) -> bool:
        queues, tasks = self.selection()
        return await self.host.port.look(
            lambda sight: sight.facets.need_agenda().order.has_ready(queues, tasks)
        )

    async def is_pending(self) -> bool:
        """Return whether its jobs run as a trial, or soon will, so that a burst continues."""
        if self.mode is Mode.CHECKING or self._trial is not None:
            return True
        return self.mode in {Mode.IDLE, Mode.TRYING} and await self.demand()

    # -- for both kinds ---------------------------------------------------------------------------

    @abstractmethod
    async def _live(self) -> None: ...
    def _enter(self, mode: Mode, hold: views.Hold | None = None) -> None:
        before, self.mode = (self.mode, self.hold), mode
        self.hold = hold
        if before != (mode, hold):
            self.host.moved.set()
            # The common claim depends only on open gates, and people see only holds.
            if Mode.OPEN in {before[0], mode} or before[1] != hold:
                self.host.changed()

    async def _claim(self, seconds: float | None) -> None:
        if self.host.feed.allowed(1) <= 0:
            # The worker is about to end: it has claimed its maximum of jobs.
            await sleep(REST_SECONDS)
            return
        queues, tasks = self.selection()
        claim = self.host.port.claim(self.host.feed.request(1, queues, tasks))
        try:
            with move_on_after(seconds):
                await claim
        finally:
            # A job that was claimed while the wait was cancelled must not be lost.
            if claim.done() and not claim.cancelled() and claim.exception() is None:
                self._claimed = next(iter(claim.result()), None)

    def _release(self, cause: engine.Cause) -> None:
        delivery, self._claimed = self._claimed, None
        if delivery is not None:
            self.host.give_back([delivery], cause)

    async def _try(self, wait_seconds: float | None, seconds: float) -> None:
        """Wait for one job, and let it run until it has ended, at most for ``seconds``."""
        self._enter(Mode.TRYING, self.hold)
        if self._claimed is None:
            await self._claim(wait_seconds)
        delivery, self._claimed = self._claimed, None
        if delivery is None:
            return
        self._trial = delivery.token
        self._tried.clear()
        # The queue may have begun to back off since the claim.
        self.host.feed.add(self.host.passed([delivery]))
        with move_on_after(seconds):
            await self._tried.wait()

    async def _live_once(self) -> None:
        try:
            await self._live()
        except errors.TaskqError as error:
            # The common claim gets the same error, and logs it.
            _log.debug("%r rests: %s", self, error)
        except Exception:  # noqa: BLE001 - a gate that died would hold back its jobs for ever
            _log.exception("%r failed; it goes on", self)
        self._release(engine.Cause.DRAIN)


class ConditionGate(Gate):
    """Lets the jobs of some tasks run while all their conditions hold."""

    cause = engine.Cause.CONDITION

    def __init__(self, host: _Host, conditions: tuple[base.Condition, ...]) -> None:
        super().__init__(host)
        self.tasks: set[str] = set()
        self.conditions = conditions
        self._alarm = asyncio.Event()
        self._shut_by: tuple[Probe, int] | None = None

    def selection(self) -> tuple[frozenset[str] | None, frozenset[str]]:
        return self.host.open_queues(), frozenset(self.tasks)

    async def has_lost_network(self) -> bool:
        """Return whether the network that its jobs need is gone; called after a network failure."""
        needed = [condition for condition in self.conditions if condition.is_network]
        if not needed:
            return False
        probes = self.host.probes
        # A recent good probe proves nothing now; a recent bad probe does.
        unmet = probes.known_unmet(needed, base.INTERVAL_SECONDS) or await probes.unmet(needed, 0.0)
        if unmet is not None:
            self._alarm.set()
            self._tried.set()
        return unmet is not None

    async def _live(self) -> None:
        while True:
            # While the gate is shut, stopped jobs are being given back, and then wait.
            if self._claimed is None and not await self._is_needed():
                self._enter(Mode.IDLE)
                await self._claim(None)
            if self.mode is not Mode.SHUT:
                self._enter(Mode.CHECKING)
            unmet = await self._unmet()
            if unmet is None:
                self._enter(Mode.CHECKING)
                await self._try(TRIAL_SECONDS, TRIAL_SECONDS)
                unmet = await self._unmet()
            if unmet is None:
                self._enter(Mode.OPEN)
                unmet = await self._while_open()
            if unmet is not None:
                # Shut first, or the returned jobs could be claimed again.
                self._shut(unmet)
                self._release(self.cause)
                self.host.stop_running(self.tasks)
                await sleep(unmet.condition.interval_seconds)

    async def _is_needed(self) -> bool:
        # Checked before and after the look: a job may be given back or claimed meanwhile.
        begun = self.host.has_begun
        return begun(self.tasks) or await self.demand() or begun(self.tasks)

    async def _unmet(self) -> Probe | None:
        if self.mode is Mode.SHUT:
            return await self.host.probes.unmet(self.conditions)
        age = _ALARM_AGE_SECONDS if self._alarm.is_set() else HELD_SECONDS
        return await self.host.probes.unmet(self.conditions, age)

    async def _while_open(self) -> Probe | None:
        """Return once a condition is lost, or no job of its tasks runs or waits."""
        while True:
            self._alarm.clear()
            with move_on_after(HELD_SECONDS):
                await self._alarm.wait()
            if not await self._is_needed():
                return None
            unmet = await self._unmet()
            if unmet is not None:
                return unmet

    def _shut(self, unmet: Probe) -> None:
        if self.mode is Mode.SHUT and self._shut_by == (unmet, unmet.since_ns):
            return  # the reason may have changed, but the first was shown already
        self._shut_by = (unmet, unmet.since_ns)
        text = f"it waits for {unmet.condition.name}, which does not hold ({unmet.problem})"
        tasks = frozenset(self.tasks)
        hold = views.Hold(tasks=tasks, is_breaker=False, text=text, since_ns=unmet.since_ns)
        self._enter(Mode.SHUT, hold)


class Breaker(Gate):
    """Counts successive network failures of a queue, and holds its jobs back after too many.

    Then one job is tried after a pause, and each pause is twice the last, up to a limit. It is
    tried at once when the network comes back, as shown by the rule's probe, by a host that the
    queue's tasks need, or by a new route to the internet.
    """

    cause = engine.Cause.BREAKER

    def __init__(self, host: _Host, rule: breakers.BreakerRule) -> None:
        super().__init__(host)
        self.rule = rule
        self.mode = Mode.OPEN
        self._row = 0
        self._tripped = asyncio.Event()
        self._error_text = ""

    def selection(self) -> tuple[frozenset[str] | None, frozenset[str]]:
        return frozenset({self.rule.queue}), self.host.open_tasks()

    def failed(self, error: BaseException, outcomes: Iterable[engine.Settlement]) -> bool:
        """Count a failed job of the queue; return whether it is given back, with its attempt.

        ``outcomes`` are from this turn of the loop, latest first, before they are flushed.
        """
        if not self._is_failure(error):
            self._row = 0
            return False
        self._error_text = summary(error)[:_REASON_CHARACTERS_MAX]
        before = (outcome.kind for outcome in outcomes if self._counts(outcome))
        if next(before, None) is engine.kinds.SUCCESS:
            self._row = 0
        if self.mode is Mode.OPEN:
            self._row += 1
            if self._row < self.rule.failures:
                return False
            self._trip()
        self._tripped.set()
        self._tried.set()
        return True

    def flushed(self, settlements: list[engine.Settlement]) -> None:
        """Reset the count at a success, unless failures came after it, which were counted."""
        super().flushed(settlements)
        last = next((end.kind for end in reversed(settlements) if self._counts(end)), None)
        if last is engine.kinds.SUCCESS:
            self._row = 0

    async def _live(self) -> None:
        pause = self.rule.pause_seconds
        while True:
            if self.mode is Mode.OPEN:
                await self._tripped.wait()
                pause = self.rule.pause_seconds
            self._trip()
            await self._rest(pause)
            pause = min(pause * 2, self.rule.pause_seconds_max)
            self._tripped.clear()
            await self._try(None, BREAKER_TRIAL_SECONDS)
            if not self._tripped.is_set():
                self._row = 0
                self._enter(Mode.OPEN)

    def _is_failure(self, error: BaseException) -> bool:
        asked = (
            (error, *values.failures(error)) if values.is_a(error, BaseExceptionGroup) else (error,)
        )
        try:
            return any(map(self.rule.is_failure, asked))
        except BaseException:  # noqa: BLE001 - it is somebody else's code
            _log.exception("is_failure of breaker(%r) failed: no network failure", self.rule.queue)
            return False

    def _counts(self, settlement: engine.Settlement) -> bool:
        is_ended = settlement.kind is not engine.kinds.RELEASE
        return is_ended and settlement.delivery.queue == self.rule.queue

    def _trip(self) -> None:
        if self.mode is Mode.SHUT:
            return
        queue, hold = self.rule.queue, self.hold
        if hold is None:
            count = f"{self.rule.failures} network failure{'s' * (self.rule.failures > 1)} in a row"
            text = f"queue {queue!r} backs off after {count} ({self._error_text})"
            queues = frozenset({queue})
            hold = views.Hold(
                queues=queues, is_breaker=True, text=text, since_ns=self.host.wall_ns()
            )
        self._enter(Mode.SHUT, hold)

    async def _rest(self, seconds: float) -> None:
        """Wait until the network is back, at most for ``seconds``; with a probe, until it holds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        was_away = False
        while True:
            left = until - loop.time()
            # Without jobs no check is needed: the next job is tried when it comes.
            away = await self._is_away() if await self.demand() else False
            if was_away and not away:
                return
            if left <= 0 and not (away and self.rule.probe is not None):
                return
            was_away = away
            await sleep(min(left, base.INTERVAL_SECONDS) if left > 0 else base.INTERVAL_SECONDS)

    async def _is_away(self) -> bool:
        probe = self.rule.probe
        signals = self.host.network_conditions(self.rule.queue) if probe is None else [probe]
        if signals:
            return await self.host.probes.unmet(signals) is not None
        return not is_anywhere_routed()
