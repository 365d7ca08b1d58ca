"""What the disk alone does, and what a lone enqueue asks of the system.

Run: ``python -m tests.bench.disk``. No queue can answer a lone durable enqueue faster than a small
write + fdatasync, nor move more bytes than batches of 256 KiB. System calls are counted by strace,
where it is installed: of one caller, each enqueue awaited before the next, no worker, between two
marks that the program writes. Every job must wait in the log afterwards.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench.harness import ROOT, Table, microseconds, options, percentile, scratch

if TYPE_CHECKING:
    from collections.abc import Iterable

RECORD_BYTES: Final = 200
BATCH_BYTES: Final = 256 * 1_024
_BEGIN: Final = b"tq-begin\n"
_END: Final = b"tq-end\n"
_WARM_UP: Final = 100
_PADDING: Final = "x" * 100
_CALL: Final = re.compile(r"\d+ +(\w+)\(")

#: macOS keeps fsynced data in the drive's cache, so there the honest call is another.
sync = getattr(os, "fdatasync", os.fsync)


def write_seconds(path: Path, size: int, count: int, *, durable: bool = True) -> list[float]:
    """Return seconds of each of ``count`` appends of ``size`` bytes, made durable or not."""
    block = os.urandom(size)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, 0o600)
    seconds = []
    try:
        for _ in range(count):
            start = time.perf_counter()
            written = os.write(descriptor, block)
            if durable:
                sync(descriptor)
            seconds.append(time.perf_counter() - start)
            assert written == size, f"{path}: {written} of {size} bytes written"
        assert os.fstat(descriptor).st_size == size * count
    finally:
        os.close(descriptor)
        path.unlink()
    return seconds


async def _enqueue(directory: Path, mode: str, jobs: int) -> None:
    from taskq import TaskQ  # noqa: PLC0415 - the baselines are measured without it

    app = TaskQ(directory, durability=mode)

    @app.task
    async def work(number: int, padding: str) -> None: ...

    async with app:
        for number in range(_WARM_UP):
            await work.enqueue(number, _PADDING)
        os.write(2, _BEGIN)
        for number in range(jobs):
            await work.enqueue(number, _PADDING)
        os.write(2, _END)
        stats = await app.stats()
    assert sum(queue.ready for queue in stats.queues) == _WARM_UP + jobs


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
    """Trace a process that enqueues so many."""
    with scratch(place) as directory:
        trace = directory / "trace"
        words = ("-m", "tests.bench.disk", "traced", directory / "data", mode, jobs)
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
    given = options(__doc__, count=2_000, jobs=1_000)
    table = Table("raw disk", "what", "p50 µs", "p99 µs", "writes/s", "MB/s")
    with scratch(given.dir) as directory:
        for what, size, count, durable in (
            (f"{RECORD_BYTES} B write+fdatasync", RECORD_BYTES, given.count, True),
            (f"{RECORD_BYTES} B write", RECORD_BYTES, given.count, False),
            (f"{BATCH_BYTES // 1024} KiB write+fdatasync", BATCH_BYTES, given.count // 10, True),
        ):
            seconds = write_seconds(directory / "raw", size, count, durable=durable)
            rate = count / sum(seconds)
            p50, p99 = (microseconds(percentile(seconds, percent)) for percent in (50, 99))
            table.row(what, p50, p99, f"{rate:,.0f}", f"{rate * size / 1e6:,.1f}")
    table.print()
    if shutil.which("strace") is None:
        sys.exit("strace is not installed: apt-get install strace")
    counts = {mode: traced(given.dir, mode, given.jobs) for mode in ("os", "fsync")}
    table = Table("calls of a lone enqueue", "", *counts)
    for call in sorted(set().union(*counts.values())):
        row = [calls[call] / given.jobs for calls in counts.values()]
        if max(row) >= 0.05:
            table.row(call, *(f"{number:.2f}" for number in row))
    table.print()


if __name__ == "__main__":
    main()
