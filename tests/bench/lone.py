"""A lone enqueue beside one small write of the bare disk, and what it asks of the system.

Run: ``python -m tests.bench.lone``. No queue can answer a lone durable enqueue faster than a small
write + fdatasync. Both ways to enqueue take turns with it in one process, one call after another
and 2 ms apart; nobody works. System calls are counted by strace, where it is installed, between two
marks that the program writes. Every job must wait in the log afterwards.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from taskq import Task, TaskQ
from tests.bench.harness import ROOT, Table, microseconds, options, percentile, scratch
from tests.bench.load import SUBJECT

RECORD_BYTES: Final = 200
MODES: Final = ("fsync", "os")
PAUSES_SECONDS: Final = (0.0, 0.002)
#: Calls of each in one turn.
TURN: Final = 10
_BEGIN: Final = b"tq-begin\n"
_END: Final = b"tq-end\n"
_WARM_UP: Final = 100
_CALL: Final = re.compile(r"\d+ +(\w+)\(")

#: macOS keeps fsynced data in the drive's cache, so there the honest call is another.
sync = getattr(os, "fdatasync", os.fsync)


def opened(directory: Path, mode: str) -> tuple[TaskQ, Task[[int, str], None]]:
    """Return an app and its no-op."""
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


async def _enqueue(directory: Path, mode: str, jobs: int) -> None:
    app, work = opened(directory, mode)
    async with app:
        for number in range(_WARM_UP):
            await work.enqueue(number, SUBJECT)
        os.write(2, _BEGIN)
        for number in range(jobs):
            await work.enqueue(number, SUBJECT)
        os.write(2, _END)
        (queue,) = (await app.stats()).queues
    assert queue.ready == _WARM_UP + jobs


def counted(lines: Iterable[str]) -> Counter[str]:
    """Return how often each call was made between the marks.

    Args:
        lines: as ``strace -f -o`` writes them; a call that another thread interrupted has two.
    """
    calls: Counter[str] = Counter()
    begun = False
    for line in lines:
        if not begun:
            begun = _BEGIN.decode().strip() in line
        elif _END.decode().strip() in line:
            break
        elif match := _CALL.match(line):
            calls[match[1]] += 1
    return calls


def traced(place: Path, mode: str, jobs: int) -> Counter[str]:
    """Trace a process that awaits ``count`` enqueues."""
    with scratch(place) as directory:
        trace = directory / "trace"
        words = ("-m", "tests.bench.lone", "traced", directory / "data", mode, jobs)
        subprocess.run(
            ["strace", "-f", "-o", trace, sys.executable, *map(str, words)],
            check=True, cwd=ROOT, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with trace.open(errors="replace") as lines:
            return counted(lines)


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["traced"]:
        asyncio.run(_enqueue(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
        return
    given = options(__doc__, count=1_000, jobs=500, calls=False)
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
    if not given.calls:
        return
    if shutil.which("strace") is None:
        sys.exit("strace is not installed: apt-get install strace")
    counts = {mode: traced(given.dir, mode, given.jobs) for mode in MODES}
    table = Table("system calls of an awaited one", "", *counts)
    for call in sorted(set().union(*counts.values())):
        row = [calls[call] / given.jobs for calls in counts.values()]
        if max(row) >= 0.05:
            table.row(call, *(f"{number:.2f}" for number in row))
    table.print()


if __name__ == "__main__":
    main()
