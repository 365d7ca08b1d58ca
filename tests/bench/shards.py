"""One log beside two and four: do shards make it faster, and for how many processes?

``python -m tests.bench.shards [--jobs 4000] [--rounds 3] [--also DIR]``: each process has 64
callers that enqueue one after the other, each waiting until its job is on disk; then each works
until nothing is left. Calls have no key, so that those of one process go into one log, and the
processes are spread evenly over the logs. With ``--also`` every second log lies there: another
disk. All are measured in turn, and the medians of the rounds compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from taskq import Shards, TaskQ
from tests.bench.process import ROOT

CALLERS: Final = 64
BITS: Final = (0, 1, 2)
PROCESSES: Final = (1, 2, 4)
#: From which on the router is worth it for speed alone, on one disk.
WORTH: Final = 1.3


class Rates(NamedTuple):
    """Jobs a second, by all processes together."""

    enqueued: float
    drained: float


def make(directory: str, bits: int) -> TaskQ:
    """Return an app with so many logs."""
    return TaskQ(shards=Shards(directory, bits=bits)) if bits else TaskQ(directory)


async def child(directory: str, bits: int, jobs: int) -> None:
    """Enqueue, then work; each when told to, and tell when it is done."""
    app = make(directory, bits)

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


def start(directory: str, bits: int, processes: int, jobs: int) -> list[subprocess.Popen[str]]:
    """So many children, spread evenly over the logs."""
    words = [sys.executable, "-m", "tests.bench.shards", "--child", directory, str(bits), str(jobs)]
    kept: list[subprocess.Popen[str]] = []
    logs, spread = 1 << bits, Counter[int]()
    while len(kept) < processes:
        one = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if spread[one.pid % logs] < -(-processes // logs):
            spread[one.pid % logs] += 1
            kept.append(one)
        else:
            one.kill()
            one.communicate()
    return kept


def together(children: list[subprocess.Popen[str]]) -> float:
    """Return seconds that the next step takes all of them."""
    for one in children:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    begin = time.perf_counter()
    for one in children:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in children:
        assert one.stdout is not None
        assert one.stdout.readline() == "done\n"
    return time.perf_counter() - begin


def measure(bits: int, processes: int, jobs: int, also: str | None) -> Rates:
    """Return one sample."""
    root = tempfile.mkdtemp(dir=ROOT / "tests", prefix=".bench-shards-")
    other = tempfile.mkdtemp(dir=also) if also else ""
    try:
        for name in Shards(root, bits=bits).names()[1::2] if bits and other else ():
            Path(other, name).mkdir()
            Path(root, name).symlink_to(Path(other, name))
        children = start(root, bits, processes, jobs)
        try:
            seconds = together(children), together(children)
        finally:
            for one in children:
                one.kill()
                one.communicate()
    finally:
        shutil.rmtree(root)
        shutil.rmtree(other or root, ignore_errors=True)
    total = processes * (jobs // CALLERS) * CALLERS
    return Rates(total / seconds[0], total / seconds[1])


def _median(samples: list[Rates]) -> Rates:
    enqueued, drained = zip(*samples, strict=True)
    return Rates(median(enqueued), median(drained))


def main() -> None:
    """Measure all in turn, print the table and the verdict."""
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=4_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--also")
    options.add_argument("--child", nargs=3)
    given = options.parse_args()
    if given.child:
        directory, bits, jobs = given.child
        asyncio.run(child(directory, int(bits), int(jobs)))
        return
    found: dict[tuple[int, int], list[Rates]] = {}
    for _ in range(given.rounds):
        for processes in PROCESSES:
            for bits in BITS:
                rates = measure(bits, processes, given.jobs, given.also)
                found.setdefault((processes, bits), []).append(rates)
    print(f"{os.cpu_count()} cores, {'two disks' if given.also else 'one disk'}")
    print("| processes | logs | enqueued/s | beside one log | drained/s | beside one log |")
    print("| --- | --- | --- | --- | --- | --- |")
    best = 0.0
    for (processes, bits), samples in found.items():
        row, one = _median(samples), _median(found[processes, 0])
        more, faster = row.enqueued / one.enqueued, row.drained / one.drained
        best = max(best, more, faster) if bits == 1 else best
        print(
            f"| {processes} | {1 << bits} | {row.enqueued:,.0f} | {more:.2f} "
            f"| {row.drained:,.0f} | {faster:.2f} |"
        )
    worth = "worth it for speed" if best >= WORTH else "for isolation and several disks, not speed"
    print(f"two logs give {best:.2f}x of one at best (from {WORTH}x on they are {worth!r})")
    print(json.dumps({"best": best, "worth": best >= WORTH}))


if __name__ == "__main__":
    main()
