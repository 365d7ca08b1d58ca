"""One log beside two and four: do shards make it faster, and for how many processes?

``python -m tests.bench.shards [--jobs 4000] [--rounds 3] [--also DIR]``: each process has 64
callers that enqueue one after the other, each waiting until its job is on disk; then each works
until nothing is left. Calls have no key, so that all calls of one process go into one log, and the
processes are spread evenly over the logs. With ``--also`` every second log lies there: another
disk. All are measured in turn, and the medians of the rounds compared.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Final, NamedTuple

from taskq import Shards, TaskQ
from tests.bench.harness import Table, hear, median, options, say, scratch, start

MODULE: Final = "tests.bench.shards"
CALLERS: Final = 64
BITS: Final = (0, 1, 2)
PROCESSES: Final = (1, 2, 4)


class Rates(NamedTuple):
    """Jobs a second, by all processes together."""

    enqueued: float
    drained: float


async def child(directory: str, bits: int, jobs: int) -> None:
    """Enqueue, then work, each on a signal; report each end."""
    app = TaskQ(shards=Shards(directory, bits=bits)) if bits else TaskQ(directory)

    @app.task(name="no-op", store_result=False)
    async def no_op(number: int) -> None:
        del number

    async def call(count: int) -> None:
        for number in range(count):
            await no_op.enqueue(number)

    async with app:
        await asyncio.to_thread(_wait_for_word)
        await asyncio.gather(*(call(jobs // CALLERS) for _ in range(CALLERS)))
        print("done", flush=True)
        await asyncio.to_thread(_wait_for_word)
        async with app.worker(CALLERS, burst=True) as worker:
            await worker.stopped.wait()
    print("done", flush=True)


def _wait_for_word() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def start_evenly(root: Path, bits: int, count: int, jobs: int) -> list[subprocess.Popen[str]]:
    """Start ``count`` children, spread evenly over the logs."""
    kept: list[subprocess.Popen[str]] = []
    logs, spread = 1 << bits, Counter[int]()
    while len(kept) < count:
        process = start(MODULE, "child", root, bits, jobs)
        if spread[process.pid % logs] < -(-count // logs):
            spread[process.pid % logs] += 1
            kept.append(process)
        else:
            process.kill()
            process.communicate()
    return kept


def step_seconds(children: list[subprocess.Popen[str]]) -> float:
    """Return seconds that the next step takes all of them."""
    for process in children:
        hear(process, "ready")
    begin = time.perf_counter()
    for process in children:
        say(process, "go")
    for process in children:
        hear(process, "done")
    return time.perf_counter() - begin


def measure(place: Path, bits: int, processes: int, jobs: int, also: Path | None) -> Rates:
    """Return one sample."""
    with scratch(place) as root, scratch(also) if also else nullcontext() as other:
        if bits and other:
            for name in Shards(root, bits=bits).names()[1::2]:
                (other / name).mkdir()
                (root / name).symlink_to(other / name)
        children = start_evenly(root, bits, processes, jobs)
        try:
            seconds = step_seconds(children), step_seconds(children)
        finally:
            for process in children:
                process.kill()
                process.communicate()
    total = processes * (jobs // CALLERS) * CALLERS
    return Rates(total / seconds[0], total / seconds[1])


def main() -> None:
    """Measure all in turn and print the table, or be one of the processes."""
    if sys.argv[1:2] == ["child"]:
        directory, *numbers = sys.argv[2:]
        asyncio.run(child(directory, *map(int, numbers)))
        return
    given = options(__doc__, jobs=4_000, rounds=3, also=Path)
    taken: dict[tuple[int, int], list[Rates]] = {}
    for _ in range(given.rounds):
        for processes in PROCESSES:
            for bits in BITS:
                rates = measure(given.dir, bits, processes, given.jobs, given.also)
                taken.setdefault((processes, bits), []).append(rates)
    table = Table(
        f"{os.cpu_count()} cores, {'two disks' if given.also else 'one disk'}",
        *("processes", "logs", "enqueued/s", "beside one log", "drained/s", "beside one log"),
    )
    medians = {key: Rates(*map(median, zip(*rates, strict=True))) for key, rates in taken.items()}
    for (processes, bits), rates in medians.items():
        single = medians[processes, 0]
        table.row(
            processes, 1 << bits,
            f"{rates.enqueued:,.0f}", f"{rates.enqueued / single.enqueued:.2f}",
            f"{rates.drained:,.0f}", f"{rates.drained / single.drained:.2f}",
        )  # fmt: skip
    table.print()


if __name__ == "__main__":
    main()
