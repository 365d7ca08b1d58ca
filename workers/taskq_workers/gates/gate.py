"""Gates: jobs that are kept back as a group, and let through few at first when they may run again.

A gate claims by itself while its jobs are not in the worker's common claim: one job to learn that
there are any, and then 1, 2, 4 … at a time until all slots may take part (slow start). So what has
just come back is not met by all that waited for it at once.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from anyio import CancelScope, move_on_after, sleep

from taskq.engine import Cause
from taskq.errors import TaskqError

if TYPE_CHECKING:
    from taskq import Delivery
    from taskq.conditions.base import Condition
    from taskq.engine import Ask, LoopPort, Settlement
    from taskq.views import Hold
    from taskq_workers.gates.probes import Probes
    from taskq_workers.slots.feed import Feed

_log: Final = logging.getLogger("taskq.worker")

#: The next step of a slow start comes once the jobs of the last one have ended, or after so long.
STEP_SECONDS: Final = 1.0
#: How long a gate rests whose log refused it.
REST_SECONDS: Final = 1.0


class Mode(enum.Enum):
    """Ways of a gate to treat its jobs."""

    #: there are none, as far as it knows: it waits for the first
    IDLE = enum.auto()
    #: it finds out whether they may run
    CHECKING = enum.auto()
    #: they wait
    SHUT = enum.auto()
    #: a few of them run
    RAMPING = enum.auto()
    #: they are claimed as all others are
    OPEN = enum.auto()


class GateHost(Protocol):
    """The worker, as its gates see it."""

    port: LoopPort
    feed: Feed
    concurrency: int
    #: "now" is told to be different whenever a gate changes its mode
    moved: asyncio.Event
    probes: Probes

    def open_queues(self) -> frozenset[str] | None:
        """Return the queues that may be claimed from now."""

    def open_tasks(self) -> frozenset[str]:
        """Return the tasks whose jobs may be claimed now."""

    def changed(self) -> None:
        """Note that what may be claimed has changed, or why it may not."""

    def passed(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Return those that may run; the others are given back."""

    def wall_ns(self) -> int:
        """Return the log's time."""

    def give_back(self, deliveries: list[Delivery], cause: Cause) -> None:
        """Release deliveries; burns no attempt."""

    def is_running(self, tasks: set[str]) -> bool:
        """Return whether a job of these tasks runs here."""

    def stop_running(self, tasks: set[str]) -> None:
        """Stop and release what runs of these tasks, where they asked for it."""

    def network_conditions(self, queue: str) -> list[Condition]:
        """Return the hosts that tasks of a queue say they need."""


class Gate(ABC):
    """Parts that gates of both kinds share; each lives in a task of the worker's.

    Attributes:
        mode: what becomes of its jobs now.
        hold: what people are told while it is shut.
        cause: why it gives jobs back.
        wait_seconds: how long a slow start waits for its first job; None for ever.
        trial_seconds: how long it waits for the end of that job before it goes on.
    """

    cause: Cause = Cause.CONDITION
    wait_seconds: float | None = STEP_SECONDS
    trial_seconds: float = STEP_SECONDS

    def __init__(self, host: GateHost) -> None:
        self.host = host
        self.mode = Mode.IDLE
        self.hold: Hold | None = None
        self._life: CancelScope | None = None
        self._is_drained = False
        #: claimed, and neither running nor given back
        self._claimed: list[Delivery] = []
        #: tokens of those that run in the present step, and what ends it
        self._flying: set[int] = set()
        self._landed = asyncio.Event()

    async def run(self) -> None:
        """Live until drained, also after the log refused something for a while."""
        with CancelScope() as self._life:
            try:
                while not self._is_drained:
                    await self._live_once()
                    await sleep(REST_SECONDS)
            finally:
                self._release(Cause.DRAIN)

    def drain(self) -> None:
        """Claim no more, and give back what does not run yet. Legal twice, and before ``run``."""
        self._is_drained = True
        if self._life is not None:
            self._life.cancel()
        self._release(Cause.DRAIN)

    @abstractmethod
    def selection(self) -> tuple[frozenset[str] | None, frozenset[str]]:
        """Return queues and tasks of its jobs, less what another gate keeps back."""

    def flushed(self, settlements: list[Settlement]) -> None:
        """Learn that jobs of the worker ended."""
        if self._flying:
            self._flying.difference_update(settlement.delivery.token for settlement in settlements)
            if not self._flying:
                self._landed.set()

    @property
    def is_flying(self) -> bool:
        """Return whether jobs run that it let through a few at a time."""
        return bool(self._flying)

    def lets_fly(self, delivery: Delivery) -> bool:
        """Return whether it let this very job through."""
        return delivery.token in self._flying

    def withdraw(self, ask: Ask) -> Delivery | None:
        """Take a job that somebody cancelled out of what it claimed; None if that is not there."""
        for delivery in self._claimed:
            if (delivery.job, delivery.token) == ask:
                self._claimed.remove(delivery)
                return delivery
        return None

    async def demand(self) -> bool:
        """Return whether jobs wait that it keeps back."""
        queues, tasks = self.selection()
        return await self.host.port.look(
            lambda sight: sight.facets.need_agenda().taking.has_ready(queues, tasks)
        )

    # -- for the two kinds ------------------------------------------------------------------------

    @abstractmethod
    async def _live(self) -> None:
        """Watch what it waits for, until it is cancelled."""

    @abstractmethod
    async def _is_passable(self) -> bool:
        """Return whether a slow start may go on."""

    def _enter(self, mode: Mode, hold: Hold | None = None) -> None:
        before, self.mode = (self.mode, self.hold), mode
        self.hold = hold
        if before != (mode, hold):
            self.host.moved.set()
            # The common claim concerns only what is open, and people only what is held.
            if Mode.OPEN in {before[0], mode} or before[1] != hold:
                self.host.changed()

    async def _claim(self, count: int, seconds: float | None) -> None:
        """Claim up to so many of its jobs into ``_claimed``, waiting for the first so long."""
        count = self.host.feed.allowed(count)
        if count <= 0:
            # The worker is about to end: it has claimed as many jobs as it may.
            await sleep(REST_SECONDS)
            return
        queues, tasks = self.selection()
        claim = self.host.port.claim(self.host.feed.request(count, queues, tasks))
        try:
            with move_on_after(seconds):
                await claim
        finally:
            # Jobs that came at the very moment when the wait was given up must not be lost.
            if claim.done() and not claim.cancelled() and claim.exception() is None:
                self._claimed = claim.result()

    def _release(self, cause: Cause) -> None:
        deliveries, self._claimed = self._claimed, []
        if deliveries:
            self.host.give_back(deliveries, cause)

    async def _ramp(self) -> bool:
        """Let jobs through, 1, 2, 4 …, those in ``_claimed`` first; whether all may run now."""
        self._enter(Mode.RAMPING, self.hold)
        count, wait_seconds, seconds = 1, self.wait_seconds, self.trial_seconds
        while True:
            if not self._claimed:
                await self._claim(count, wait_seconds)
            if not self._claimed:
                return True  # none wait any more
            await self._fly(seconds)
            if not await self._is_passable():
                return False
            self._enter(Mode.RAMPING)
            count, wait_seconds, seconds = count * 2, STEP_SECONDS, STEP_SECONDS
            if count >= self.host.concurrency:
                return True

    async def _fly(self, seconds: float) -> None:
        """Let run what was claimed, until all of it has ended, or for so long."""
        deliveries, self._claimed = self._claimed, []
        self._flying = {delivery.token for delivery in deliveries}
        self._landed.clear()
        # A queue may have begun to back off since they were claimed.
        self.host.feed.add(self.host.passed(deliveries))
        with move_on_after(seconds):
            await self._landed.wait()

    async def _live_once(self) -> None:
        """Live until something fails."""
        try:
            await self._live()
        except TaskqError as error:
            # The common claim meets the same error, and says so.
            _log.debug("%r rests: %s", self, error)
        except Exception:  # noqa: BLE001 - a gate that died would keep its jobs for ever
            _log.exception("%r failed; it goes on", self)
        self._release(Cause.DRAIN)
