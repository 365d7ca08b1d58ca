"""System calls of one lone enqueue, counted by strace.

    python -m tests.bench.syscalls --mode os --jobs 1000

One caller, each enqueue awaited before the next, no worker. What opening and closing take is left
out: the calls are counted between two marks that the program writes. It asserts that every job
waits in the log afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq import TaskQ

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
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--mode", choices=["os", "fsync"], action="append")
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--traced", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.traced:
        asyncio.run(_enqueue(Path(args.traced), args.mode[0], args.jobs))
        return
    if shutil.which("strace") is None:
        parser.exit(1, "strace is not installed: apt-get install strace\n")
    tables = {}
    for mode in args.mode or ["os", "fsync"]:
        with tempfile.TemporaryDirectory(dir=args.dir) as name:
            trace = Path(name) / "trace"
            command = [sys.executable, "-m", "tests.bench.syscalls", "--mode", mode]
            command += ["--jobs", str(args.jobs), "--traced", f"{name}/data"]
            subprocess.run(
                ["strace", "-f", "-o", trace, *command], check=True, stderr=subprocess.DEVNULL
            )
            with trace.open(errors="replace") as lines:
                tables[mode] = counted(lines)
    print(f"{'calls an enqueue':18}" + "".join(f"{mode:>8}" for mode in tables))
    for call in sorted({call for table in tables.values() for call in table}):
        row = [table[call] / args.jobs for table in tables.values()]
        if max(row) >= 0.05:
            print(f"{call:18}" + "".join(f"{number:8.2f}" for number in row))


if __name__ == "__main__":
    main()
