"""The gate of a queue with a circuit breaker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from anyio import sleep

from taskq.conditions.base import INTERVAL_SECONDS
from taskq.conditions.network import is_anywhere_routed
from taskq.engine import Cause, kinds
from taskq.views import Hold
from taskq_workers.gates.gate import Gate, GateHost, Mode
from taskq_workers.runs.reasons import summary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskq.conditions.breakers import BreakerRule
    from taskq.engine import Settlement

#: A job that is tried and has not failed for so long has found the network.
TRIAL_SECONDS: Final = 10.0
_REASON_CHARACTERS_MAX: Final = 120


class Breaker(Gate):
    """Counts the network failures of a queue in a row, and keeps its jobs back after too many.

    Then one job is tried after a pause, and each pause is twice the last, up to a limit. It is
    tried at once when the network is seen to come back: the rule's probe, a host that tasks of the
    queue need, or a route to the world where there was none.
    """

    cause = Cause.BREAKER
    wait_seconds = None
    trial_seconds = TRIAL_SECONDS

    def __init__(self, host: GateHost, rule: BreakerRule) -> None:
        super().__init__(host)
        self.rule = rule
        self.mode = Mode.OPEN
        self._row = 0
        self._tripped = asyncio.Event()
        self._told = ""

    def selection(self) -> tuple[frozenset[str] | None, frozenset[str]]:
        """Return its queue, and whatever tasks may be claimed."""
        return frozenset({self.rule.queue}), self.host.open_tasks()

    def failed(self, error: BaseException, outcomes: Iterable[Settlement]) -> bool:
        """Return a job of the queue failed; whether it is given back, so that no attempt is burnt.

        Args:
            error: what it met.
            outcomes: those of this turn of the loop, the latest first, not handed over yet.
        """
        if not self.rule.is_failure(error):
            self._row = 0
            return False
        self._told = summary(error)[:_REASON_CHARACTERS_MAX]
        before = (outcome.kind for outcome in outcomes if self._counts(outcome))
        if next(before, None) is kinds.SUCCESS:
            self._row = 0
        if self.mode is Mode.OPEN:
            self._row += 1
            if self._row < self.rule.failures:
                return False
            self._trip()
        self._tripped.set()
        self._landed.set()
        return True

    def flushed(self, settlements: list[Settlement]) -> None:
        """End the row at a success, unless failures came after it: these were counted already."""
        super().flushed(settlements)
        last = next((end.kind for end in reversed(settlements) if self._counts(end)), None)
        if last is kinds.SUCCESS:
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
            if await self._ramp():
                self._row = 0
                self._enter(Mode.OPEN)

    def _counts(self, settlement: Settlement) -> bool:
        is_ended = settlement.kind is not kinds.RELEASE
        return is_ended and settlement.delivery.queue == self.rule.queue

    async def _is_passable(self) -> bool:
        return not self._tripped.is_set()

    def _trip(self) -> None:
        if self.mode is Mode.SHUT:
            return
        queue, hold = self.rule.queue, self.hold
        if hold is None:
            count = f"{self.rule.failures} network failure{'s' * (self.rule.failures > 1)} in a row"
            text = f"queue {queue!r} backs off after {count} ({self._told})"
            queues = frozenset({queue})
            hold = Hold(queues=queues, is_breaker=True, text=text, since_ns=self.host.wall_ns())
        self._enter(Mode.SHUT, hold)

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or until the network is back; with a probe, at least until that holds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        was_away = False
        while True:
            left = until - loop.time()
            # Without jobs nobody needs to know: the next one is tried when it comes.
            away = await self._is_away() if await self.demand() else False
            if was_away and not away:
                return
            if left <= 0 and not (away and self.rule.probe is not None):
                return
            was_away = away
            await sleep(min(left, INTERVAL_SECONDS) if left > 0 else INTERVAL_SECONDS)

    async def _is_away(self) -> bool:
        probe = self.rule.probe
        signals = self.host.network_conditions(self.rule.queue) if probe is None else [probe]
        if signals:
            return await self.host.probes.unmet(signals) is not None
        return not is_anywhere_routed()
