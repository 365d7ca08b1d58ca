"""Time limits that do not count a stall of the event loop or of the whole process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Alarm:
    """Calls a function of the loop after some seconds.

    After a stall the loop runs its timers before the callbacks of its tasks: an answer that came in
    time would be ignored. So a late alarm extends the time once, by its delay, and at most by its
    own length.
    """

    __slots__ = ("_loop", "_ring", "_seconds", "_timer")

    def __init__(self, seconds: float, ring: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._ring = ring
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        late = self._loop.time() - self._timer.when()
        self._timer = self._loop.call_later(min(max(late, 0.0), self._seconds), self._ring)

    def cancel(self) -> None:
        self._timer.cancel()


class Deadline:
    """Like ``asyncio.timeout``, with such an alarm; None for no limit."""

    __slots__ = ("_alarm", "_seconds", "_timeout")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)
        self._alarm: Alarm | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        if self._seconds is not None:
            now = float("-inf")
            self._alarm = Alarm(self._seconds, lambda: self._timeout.reschedule(now))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        await self._timeout.__aexit__(kind, error, traceback)

    def expired(self) -> bool:
        return self._timeout.expired()
