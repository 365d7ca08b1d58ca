"""Steps within a task: what one costs beside a lone enqueue, and how soon a thousand are back.

Run: ``python -m tests.bench.steps``; ``--dbos`` adds a workflow of dbos on SQLite, installed on
demand. Ratios are taken in turn within one run; the rest is told with the seconds of processor
time, which others on the machine change less.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from taskq import TaskQ, durable, retry
from taskq.errors import JobFailed
from tests.bench.harness import installed, kept_for, median, options, scratch

LONE: Final = 300
JOBS: Final = 64
EACH: Final = 100
MANY: Final = 1_000
ROUNDS: Final = 5
CONTENDER: Final = Path(__file__).parent / "contenders" / "dbos_steps.py"


async def add(number: int) -> int:
    """Do nothing."""
    return number


class Bench:
    """An app whose tasks measure themselves."""

    def __init__(self, path: Path) -> None:
        self.app = TaskQ(path)
        self.spent: list[float] = []

        @self.app.task(name="lone")
        async def lone() -> float:
            await durable.step("first", add, 0)
            began = time.perf_counter()
            for number in range(LONE):
                await durable.step("add", add, number)
            return (time.perf_counter() - began) / LONE

        @self.app.task(name="noop")
        async def noop(number: int) -> None:
            del number

        @self.app.task(name="many")
        async def many() -> None:
            for number in range(EACH):
                await durable.step("add", add, number)

        @self.app.task(name="back", retry=retry.fixed(ROUNDS + 1, delay=0))
        async def back() -> None:
            began = time.perf_counter()
            for number in range(MANY):
                await durable.step("add", add, number)
            self.spent.append(time.perf_counter() - began)
            raise OSError("once more")

        self.lone, self.noop, self.many, self.back = lone, noop, many, back

    async def measure(self) -> dict[str, float]:
        """Return the figures."""
        figures: dict[str, float] = {}
        async with self.app, self.app.worker(concurrency=JOBS):
            ratios, steps = [], []
            for _ in range(ROUNDS):
                steps.append(await (await self.lone.enqueue()).result())
                began = time.perf_counter()
                for number in range(LONE):
                    await self.noop.enqueue(number)
                ratios.append(steps[-1] * LONE / (time.perf_counter() - began))
            figures["a lone step, µs"] = median(steps) * 1e6
            figures["beside a lone enqueue"] = median(ratios)
            began, cpu = time.perf_counter(), time.process_time()
            jobs = [await self.many.enqueue() for _ in range(JOBS)]
            for job in jobs:
                await job.result()
            figures["64 jobs, steps/s"] = JOBS * EACH / (time.perf_counter() - began)
            figures["of a second of processor time"] = JOBS * EACH / (time.process_time() - cpu)
            job = await self.back.enqueue()
            with contextlib.suppress(JobFailed):
                await job.result()
            figures["1 000 steps are back after, ms"] = median(self.spent[1:]) * 1e3
        return figures


def of_dbos(base: str, path: Path) -> float:
    """Return the µs of a step of dbos."""
    python, _ = installed(base, "dbos", directory=kept_for(base))
    words = [python, str(CONTENDER), str(path), str(LONE)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1]) * 1e6


def main() -> None:
    """Measure and print."""
    given = options(__doc__, dbos=False)
    with scratch(given.dir) as path:
        figures = asyncio.run(Bench(path / "log").measure())
        if given.dbos:
            figures["a step of dbos on SQLite, µs"] = of_dbos(sys.executable, path)
    for name, value in figures.items():
        print(f"{name:34} {value:10.2f}")


if __name__ == "__main__":
    main()
