"""A device that rests holds a question at its hub: what is there for it comes within seconds."""

from __future__ import annotations

import asyncio
import contextlib
import random
from time import monotonic
from typing import TYPE_CHECKING, Final

from taskq_plugins.hub.messages import Answer, Question, Refused
from taskq_plugins.hub.wire import HubError

if TYPE_CHECKING:
    from taskq_plugins.hub.device.line import Line

#: An answer that comes sooner, and says nothing, is of a hub that lets nobody wait just now.
_SOON_SECONDS: Final = 5.0
#: Longest pause of one that is not answered.
_PAUSE_SECONDS_MAX: Final = 600.0
_CHANCE: Final = random.SystemRandom()


def backoff(seconds: float, failures: int) -> float:
    longest = min(seconds * 2.0 ** min(failures, 20), _PAUSE_SECONDS_MAX)
    return _CHANCE.uniform(1.0, max(longest, 1.0))


class Holding:
    """The question of one device, on a connection of its own, beside its sessions.

    What comes says only that a session is due, in which it is asked for again and taken.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._question: Question | None = None
        self._asks, self._answered = asyncio.Event(), asyncio.Event()
        self._before: Answer | None = None

    def ask(self, question: Question | None) -> None:
        self._question = question
        self._asks.set()

    def begin(self) -> None:
        self._answered.clear()

    @property
    def is_answered(self) -> bool:
        return self._answered.is_set()

    async def wait(self, seconds: float) -> None:
        await _wait(self._answered, seconds)

    async def run(self) -> None:
        while True:
            await self._asks.wait()
            self._asks.clear()
            if await self._hold():
                self._answered.set()

    async def _hold(self) -> bool:
        """Ask until something is there, or the hub wants another session; False: no question."""
        failures, every = 0, self._line.hub.every
        while (asked := self._question) is not None:
            began = monotonic()
            try:
                answer = await self._line.hold(asked)
            except HubError as error:
                failures += 1
                pause = max(error.seconds, backoff(every, failures))
            else:
                failures, is_soon = 0, monotonic() - began < _SOON_SECONDS
                if isinstance(answer, Refused):
                    if asked is self._question:
                        return True
                    continue
                if answer is not None and answer != self._before:
                    self._before = answer
                    return True
                # What is there again was taken up, and the log has not told so yet.
                pause = every if answer is not None or is_soon else 0.0
            if await self._pause(pause):
                failures = 0
        return False

    async def _pause(self, seconds: float) -> bool:
        await _wait(self._asks, seconds)
        has_come = self._asks.is_set()
        self._asks.clear()
        return has_come


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
