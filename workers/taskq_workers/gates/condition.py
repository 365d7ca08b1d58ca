"""The gate of all tasks that need the same conditions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from anyio import move_on_after, sleep

from taskq.conditions.base import INTERVAL_SECONDS
from taskq.views import Hold
from taskq_workers.gates.gate import Gate, GateHost, Mode
from taskq_workers.gates.probes import HELD_SECONDS, Probe

if TYPE_CHECKING:
    from taskq.conditions.base import Condition

#: What was found out so shortly after a job's network failure is not asked again.
_ALARM_AGE_SECONDS: Final = 0.25


class ConditionGate(Gate):
    """Lets the jobs of some tasks run while all their conditions hold."""

    def __init__(self, host: GateHost, conditions: tuple[Condition, ...]) -> None:
        super().__init__(host)
        self.tasks: set[str] = set()
        self.conditions = conditions
        self._alarm = asyncio.Event()
        self._shut_by: tuple[Probe, int] | None = None

    def selection(self) -> tuple[frozenset[str] | None, frozenset[str]]:
        """Return its tasks, in all queues that may be claimed from."""
        return self.host.open_queues(), frozenset(self.tasks)

    async def has_lost_network(self) -> bool:
        """Return whether the network that its jobs need is gone; asked at a network failure."""
        needed = [condition for condition in self.conditions if condition.is_network]
        if not needed:
            return False
        probes = self.host.probes
        # That it was there a moment ago says nothing; that it was not there does.
        unmet = probes.known_unmet(needed, INTERVAL_SECONDS) or await probes.unmet(needed, 0.0)
        if unmet is not None:
            self._alarm.set()
            self._landed.set()
        return unmet is not None

    async def _live(self) -> None:
        while True:
            # While it is shut, what was stopped is about to be given back, and waits then.
            stays = self.mode is Mode.SHUT and self.host.is_running(self.tasks)
            if not self._claimed and not stays and not await self.demand():
                self._enter(Mode.IDLE)
                await self._claim(1, None)
            if self.mode is not Mode.SHUT:
                self._enter(Mode.CHECKING)
            unmet = await self._unmet()
            if unmet is None:
                unmet = await self._let_through()
            if unmet is not None:
                # Shut first, lest what is given back be claimed again.
                self._shut(unmet)
                self._release(self.cause)
                self.host.stop_running(self.tasks)
                await sleep(unmet.condition.interval_seconds)

    async def _let_through(self) -> Probe | None:
        """Let jobs run until a condition is lost, or there are none; returns what was lost."""
        self._enter(Mode.CHECKING)
        if not await self._ramp():
            return await self._unmet()
        self._enter(Mode.OPEN)
        return await self._while_open()

    async def _is_passable(self) -> bool:
        return await self._unmet() is None

    async def _unmet(self) -> Probe | None:
        if self.mode is Mode.SHUT:
            return await self.host.probes.unmet(self.conditions)
        age = _ALARM_AGE_SECONDS if self._alarm.is_set() else HELD_SECONDS
        return await self.host.probes.unmet(self.conditions, age)

    async def _while_open(self) -> Probe | None:
        """Return once a condition is lost, or nothing of its tasks runs or waits any more."""
        while True:
            self._alarm.clear()
            with move_on_after(HELD_SECONDS):
                await self._alarm.wait()
            if not self.host.is_running(self.tasks) and not await self.demand():
                return None
            unmet = await self._unmet()
            if unmet is not None:
                return unmet

    def _shut(self, unmet: Probe) -> None:
        if self.mode is Mode.SHUT and self._shut_by == (unmet, unmet.since_ns):
            return  # perhaps for another reason by now; people were told the first
        self._shut_by = (unmet, unmet.since_ns)
        text = f"it waits for {unmet.condition.name}, which does not hold ({unmet.problem})"
        tasks = frozenset(self.tasks)
        hold = Hold(tasks=tasks, is_breaker=False, text=text, since_ns=unmet.since_ns)
        self._enter(Mode.SHUT, hold)
