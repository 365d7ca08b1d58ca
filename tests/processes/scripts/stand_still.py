"""Enqueue on a log whose calls of one kind are slow; count how often the event loop waits.

Usage: stand_still.py DIRECTORY CALL MILLISECONDS ROUNDS, with ``slow.c`` loaded before all else.

Prints three numbers of the rounds after the first slow call: the slow calls, the calls of them that
kept the loop waiting, and the seconds.
"""

import asyncio
import ctypes
import sys
import time

from taskq import TaskLog

_TICK_SECONDS = 0.001


async def beat(beats: ctypes.c_int) -> None:
    while True:
        beats.value += 1
        await asyncio.sleep(_TICK_SECONDS)


async def main(directory: str, call: str, milliseconds: float, rounds: int) -> None:
    slow = ctypes.CDLL(None)
    heart = asyncio.create_task(beat(ctypes.c_int.in_dll(slow, "beats")))
    async with TaskLog.open(directory, durability="os") as log:
        for _ in range(20):
            await log.put(b"x")
        slow.slow_down(call.encode(), int(milliseconds * 1_000))
        await log.put(b"x")
        first, waits, began = slow.slow_calls(), slow.loop_waits(), time.perf_counter()
        for _ in range(rounds):
            await log.put(b"x")
        count, waits = slow.slow_calls() - first, slow.loop_waits() - waits
        seconds = time.perf_counter() - began
        slow.slow_down(b"", 0)
    heart.cancel()
    print(count, waits, seconds, flush=True)  # noqa: T201 - for the test


asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
