"""One sample of one scenario, in a process of its own; the result is a line of JSON.

``bench.py`` starts these in turn, so that no contender inherits another's heap or settings:
``python -m tests.bench.one SCENARIO CONTENDER MODE JOBS DIRECTORY``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.baseline_disk import RECORD_BYTES, write_seconds
from tests.bench.baseline_sqlite import SqliteContender
from tests.bench.load import SUBJECT, Contender, fill, produce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@dataclass(slots=True, kw_only=True)
class Sample:
    """What one run showed. ``latencies`` are seconds of each job, where jobs went one by one."""

    jobs: int
    seconds: float
    batches: int = 0
    latencies: list[float] = field(default_factory=list)


def make(name: str, mode: str, directory: Path, *, shared: bool = False) -> Contender:
    """The contender of that name; ``mode`` is fsync or os, ``shared`` if others write too."""
    if name == "taskq":
        # Imported here so that the baselines can be measured alone.
        from tests.bench.taskq_contender import TaskqContender  # noqa: PLC0415

        return TaskqContender(directory, mode)
    tuned = name == "sqlite-tuned"
    return SqliteContender(directory, full=mode == "fsync", tuned=tuned, shared=shared)


async def one_by_one(contender: Contender, jobs: int) -> Sample:
    """Return one caller, each enqueue awaited before the next."""
    latencies = []
    begin = time.perf_counter()
    for number in range(jobs):
        start = time.perf_counter()
        await contender.enqueue(number, SUBJECT)
        latencies.append(time.perf_counter() - start)
    seconds = time.perf_counter() - begin
    assert await contender.counts() == (0, jobs)
    return Sample(jobs=jobs, seconds=seconds, latencies=latencies)


async def enqueue_concurrently(contender: Contender, jobs: int, producers: int) -> Sample:
    """Many callers, no worker."""
    start = time.perf_counter()
    await produce(contender.enqueue, jobs, producers)
    seconds = time.perf_counter() - start
    assert await contender.counts() == (0, jobs)
    return Sample(jobs=jobs, seconds=seconds, batches=contender.batches())


async def enqueue_many(contender: Contender, jobs: int) -> Sample:
    """Return one caller, transactions of 1 000."""
    start = time.perf_counter()
    await fill(contender, jobs)
    seconds = time.perf_counter() - start
    assert await contender.counts() == (0, jobs)
    return Sample(jobs=jobs, seconds=seconds, batches=contender.batches())


async def drain(contender: Contender, jobs: int) -> Sample:
    """Claim, run and settle a backlog."""
    await fill(contender, jobs)
    before = contender.batches()
    contender.tally.expect(jobs)
    start = time.perf_counter()
    async with contender.worker():
        await contender.tally.reached.wait()
    seconds = time.perf_counter() - start
    assert await contender.counts() == (jobs, 0)
    return Sample(jobs=jobs, seconds=seconds, batches=contender.batches() - before)


async def full_cycle(contender: Contender, jobs: int, producers: int) -> Sample:
    """Enqueue, claim, run and settle, all at the same time in this process."""
    contender.tally.expect(jobs)
    start = time.perf_counter()
    async with contender.worker():
        await produce(contender.enqueue, jobs, producers)
        await contender.tally.reached.wait()
    seconds = time.perf_counter() - start
    assert await contender.counts() == (jobs, 0)
    return Sample(jobs=jobs, seconds=seconds, batches=contender.batches())


async def full_cycle_beside_cpu(contender: Contender, jobs: int, producers: int) -> Sample:
    """As ``full_cycle``, while one CPU-bound sync task runs in a thread."""
    async with contender.worker(), contender.busy_thread():
        before = contender.batches()
        contender.tally.expect(jobs)
        start = time.perf_counter()
        await produce(contender.enqueue, jobs, producers)
        await contender.tally.reached.wait()
        seconds = time.perf_counter() - start
        batches = contender.batches() - before
    assert await contender.counts() == (jobs, 0)
    return Sample(jobs=jobs, seconds=seconds, batches=batches)


async def two_processes(contender: Contender, jobs: int, producers: int) -> Sample:
    """Producers here, the worker in a process of its own; ends when the worker settled all."""
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.one", "worker", *sys.argv[2:]),
        stdout=asyncio.subprocess.PIPE,
    )
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"ready\n"
    start = time.perf_counter()
    await produce(contender.enqueue, jobs, producers)
    assert await worker.stdout.readline() == b"done\n"
    seconds = time.perf_counter() - start
    assert await worker.wait() == 0
    assert await contender.counts() == (jobs, 0)
    return Sample(jobs=jobs, seconds=seconds, batches=contender.batches())


async def work(contender: Contender, jobs: int) -> None:
    """The worker process of ``two_processes``."""
    await contender.open()
    contender.tally.expect(jobs)
    async with contender.worker():
        print("ready", flush=True)
        await contender.tally.reached.wait()
    print("done", flush=True)
    await contender.close()


SCENARIOS: dict[str, Callable[[Contender, int], Awaitable[Sample]]] = {
    "one_by_one": one_by_one,
    "enqueue_64": lambda contender, jobs: enqueue_concurrently(contender, jobs, 64),
    "enqueue_1000": lambda contender, jobs: enqueue_concurrently(contender, jobs, 1_000),
    "enqueue_many": enqueue_many,
    "drain": drain,
    "cycle_64": lambda contender, jobs: full_cycle(contender, jobs, 64),
    "cycle_1000": lambda contender, jobs: full_cycle(contender, jobs, 1_000),
    "two_processes_64": lambda contender, jobs: two_processes(contender, jobs, 64),
    "two_processes_1000": lambda contender, jobs: two_processes(contender, jobs, 1_000),
    "cycle_cpu_64": lambda contender, jobs: full_cycle_beside_cpu(contender, jobs, 64),
}


async def run(scenario: str, name: str, mode: str, jobs: int, directory: Path) -> Sample | None:
    """Return the sample, or None from a worker process."""
    if name == "disk":
        durable = mode == "fsync"
        latencies = write_seconds(directory / "raw", RECORD_BYTES, jobs, durable=durable)
        return Sample(jobs=jobs, seconds=sum(latencies), latencies=latencies)
    shared = scenario == "worker" or scenario.startswith("two_processes")
    contender = make(name, mode, directory, shared=shared)
    if scenario == "worker":
        await work(contender, jobs)
        return None
    await contender.open()
    sample = await SCENARIOS[scenario](contender, jobs)
    await contender.close()
    return sample


def main() -> None:
    """Run what the arguments say; fails loudly if the end state is wrong."""
    scenario, name, mode, jobs, directory = sys.argv[1:]
    sample = asyncio.run(run(scenario, name, mode, int(jobs), Path(directory)))
    if sample is not None:
        print(json.dumps(asdict(sample)))


if __name__ == "__main__":
    main()
