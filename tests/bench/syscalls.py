"""System calls of one lone enqueue, counted by strace.

    python -m tests.bench.syscalls --mode os --jobs 1000

One caller, each enqueue awaited before the next, no worker. What opening and closing take is left
out: the calls are counted between two marks that the program writes. It asserts that every job
waits in the log afterwards.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq import TaskQ
from tests.bench.harness import Table, options, scratch

if TYPE_CHECKING:
    from collections.abc import Iterable

_BEGIN: Final = b"tq-begin\n"
_END: Final = b"tq-end\n"
_WARM_UP: Final = 100
_PADDING: Final = "x" * 100
_CALL: Final = re.compile(r"\d+ +(\w+)\(")


async def _enqueue(directory: Path, mode: str, jobs: int) -> None:
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


def main() -> None:
    """Trace one process of each mode, and print what each enqueue called."""
    if sys.argv[1:2] == ["traced"]:
        asyncio.run(_enqueue(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
        return
    given = options(__doc__, mode=("os", "fsync"), jobs=1_000)
    if shutil.which("strace") is None:
        sys.exit("strace is not installed: apt-get install strace")
    counts: dict[str, Counter[str]] = {}
    for mode in given.mode or ["os", "fsync"]:
        with scratch(given.dir) as directory:
            trace = directory / "trace"
            command = [
                sys.executable,
                "-m",
                "tests.bench.syscalls",
                "traced",
                str(directory / "data"),
            ]
            subprocess.run(
                ["strace", "-f", "-o", trace, *command, mode, str(given.jobs)],
                check=True,
                stderr=subprocess.DEVNULL,
            )
            with trace.open(errors="replace") as lines:
                counts[mode] = counted(lines)
    table = Table("calls an enqueue", "", *counts)
    for call in sorted(set().union(*counts.values())):
        row = [calls[call] / given.jobs for calls in counts.values()]
        if max(row) >= 0.05:
            table.row(call, *(f"{number:.2f}" for number in row))
    table.print()


if __name__ == "__main__":
    main()
