"""Enqueue on a log whose calls of one kind are slow; print the longest pause of the event loop.

Usage: stand_still.py DIRECTORY CALL MILLISECONDS ROUNDS, with ``slow.c`` loaded before all else.

Prints the longest pause of the loop in milliseconds: up to the end of the first slow call, and
after it; and the number of slow calls.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time

from taskq import TaskLog

_TICK_SECONDS = 0.001


class Heart:
    """Beats in the event loop, and notes the longest time between two beats."""

    def __init__(self) -> None:
        self.pause = 0.0
        self._last = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        self._beat()

    def _beat(self) -> None:
        now = time.perf_counter()
        self.pause, self._last = max(self.pause, now - self._last), now
        self._loop.call_later(_TICK_SECONDS, self._beat)

    def read(self) -> float:
        """Return the longest pause since this was asked last, in milliseconds."""
        pause, self.pause = self.pause, 0.0
        return pause * 1_000


async def main(directory: str, call: str, milliseconds: float, rounds: int) -> None:
    slow = ctypes.CDLL(None)
    async with TaskLog.open(directory, durability="os") as log:
        for _ in range(20):
            await log.put(b"x")
        heart = Heart()
        await asyncio.sleep(0.01)
        heart.read()
        slow.slow_down(call.encode(), int(milliseconds * 1_000))
        await log.put(b"x")
        for _ in range(2):  # the heart beats after the ready callbacks
            await asyncio.sleep(0)
        first = heart.read()
        for _ in range(rounds):
            await log.put(b"x")
        after, count = heart.read(), slow.slow_calls()
        slow.slow_down(b"", 0)
    print(f"{first:.1f} {after:.1f} {count}", flush=True)  # noqa: T201 - for the test


asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
