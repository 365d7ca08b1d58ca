"""A lone enqueue beside one small write of the bare disk.

Run: ``python -m tests.bench.lone``. No queue can answer a lone durable enqueue faster than a small
write + fdatasync. Both ways to enqueue take turns with it in one process, one call after another
and 2 ms apart; nobody works. Every job must wait in the log afterwards.
"""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from taskq import Task, TaskQ
from tests.bench.harness import Table, microseconds, options, percentile, scratch
from tests.bench.load import SUBJECT

RECORD_BYTES: Final = 200
MODES: Final = ("fsync", "os")
PAUSES_SECONDS: Final = (0.0, 0.002)
#: Calls of each in one turn.
TURN: Final = 10
_WARM_UP: Final = 100

#: macOS keeps fsynced data in the drive's cache, so there the honest call is another.
sync = getattr(os, "fdatasync", os.fsync)


def opened(directory: Path, mode: str) -> tuple[TaskQ, Task[[int, str], None]]:
    app = TaskQ(directory, durability=mode)

    @app.task
    async def work(number: int, subject: str) -> None: ...

    return app, work


async def in_turn(place: Path, mode: str, pause_seconds: float, count: int) -> list[list[float]]:
    """Return the seconds of bare writes, of a thread's enqueues and of awaited enqueues."""
    app, work = opened(place / "data", mode)
    bare, calls, awaited = taken = [list[float]() for _ in range(3)]
    block = os.urandom(RECORD_BYTES)
    file = os.open(place / "bare", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def write() -> None:
        os.write(file, block)
        if mode == "fsync":
            sync(file)

    def timed(call: Callable[[], object], seconds: list[float]) -> None:
        for _ in range(TURN):
            if pause_seconds:
                time.sleep(pause_seconds)
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)

    with ThreadPoolExecutor(1) as thread:
        async with app:
            for _ in range((count + _WARM_UP) // TURN):
                await asyncio.wrap_future(thread.submit(timed, write, bare))
                call = thread.submit(timed, lambda: work.enqueue_sync(0, SUBJECT), calls)
                await asyncio.wrap_future(call)
                for number in range(TURN):
                    if pause_seconds:
                        await asyncio.sleep(pause_seconds)
                    begin = time.perf_counter()
                    await work.enqueue(number, SUBJECT)
                    awaited.append(time.perf_counter() - begin)
            (queue,) = (await app.stats()).queues
    os.close(file)
    assert queue.ready == len(calls) + len(awaited)
    return [seconds[_WARM_UP:] for seconds in taken]


def main() -> None:
    given = options(__doc__, count=1_000)
    table = Table("a lone enqueue", "", "apart", "", "p50 µs", "p99 µs", "p50 / bare write's")
    for mode in MODES:
        for pause_seconds in PAUSES_SECONDS:
            with scratch(given.dir) as place:
                taken = asyncio.run(in_turn(place, mode, pause_seconds, given.count))
            bare = percentile(taken[0], 50)
            names = ("a bare write", "enqueue_sync", "await enqueue")
            for name, seconds in zip(names, taken, strict=True):
                p50, p99 = (percentile(seconds, percent) for percent in (50, 99))
                words = (mode, f"{pause_seconds * 1e3:.0f} ms", name)
                table.row(*words, microseconds(p50), microseconds(p99), f"{p50 / bare:.2f}")
    table.print()


if __name__ == "__main__":
    main()
