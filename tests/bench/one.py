"""Samples of one scenario for one contender, in a process of its own; each is a line of JSON.

``bench.py`` starts one of these for each contender and lets them go in turn, so that none inherits
another's heap or settings, and all are warm: ``python -m tests.bench.one SCENARIO CONTENDER MODE
DIRECTORY`` takes a sample of so many jobs for each number that it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.baseline_sqlite import SqliteContender
from tests.bench.disk import RECORD_BYTES, write_seconds
from tests.bench.harness import scratch
from tests.bench.load import (
    SUBJECT,
    WORKER_CONCURRENCY,
    Clock,
    Contender,
    Tally,
    fill,
    produce,
    spin,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from tests.bench.load import Enqueue


@dataclass(slots=True, kw_only=True)
class Sample:
    """What one run showed. ``latencies`` are seconds of each job, where jobs went one by one."""

    jobs: int
    seconds: float
    cpu_seconds: float
    batches: int = 0
    latencies: list[float] = field(default_factory=list)


class TaskqContender:
    """The full public API, validation included: an app with the no-op and a CPU-bound sync task."""

    def __init__(self, directory: Path, durability: str) -> None:
        # Imported here so that the baselines can be measured alone.
        from taskq import TaskQ  # noqa: PLC0415

        self.tally = Tally()
        self.directory = directory
        self.app = TaskQ(directory / "data", durability=durability)
        self.task = self.app.task(name="noop")(self.tally.noop)
        #: the task's own method: nothing of the benchmark lies between
        self.enqueue: Enqueue = self.task.enqueue
        self.spinning = asyncio.Event()
        self.stop = threading.Event()
        loop = asyncio.get_running_loop()

        @self.app.task(name="spin", queue="cpu")
        def spin_until_stopped() -> None:
            loop.call_soon_threadsafe(self.spinning.set)
            spin(self.stop.is_set)

        self.spin = spin_until_stopped

    async def open(self) -> None:
        """Open the log."""
        await self.app.open()

    async def close(self) -> None:
        """Close it."""
        await self.app.close()

    async def enqueue_many(self, numbers: range) -> None:
        """One transaction."""
        await self.task.enqueue_many([(i, SUBJECT) for i in numbers])

    def worker(self) -> AbstractAsyncContextManager[object]:
        """Return a worker of this process."""
        return self.app.worker(concurrency=WORKER_CONCURRENCY)

    @contextlib.asynccontextmanager
    async def busy_thread(self) -> AsyncIterator[None]:
        """The sync task as a job like any other, in the worker's threads."""
        job = await self.spin.enqueue()
        await self.spinning.wait()
        try:
            yield
        finally:
            # Also when a sample fails: the worker could not drain otherwise.
            self.stop.set()
        await job.result()

    async def counts(self) -> tuple[int, int]:
        """From the log's statistics; the sync task's queue is its own and not counted."""
        stats = await self.app.store().port().stats()
        for queue in stats.queues:
            assert queue.dead + queue.cancelled + queue.expired == 0, queue
        mine = [queue for queue in stats.queues if queue.queue == "default"]
        assert len(mine) == 1, stats.queues
        assert mine[0].running == 0, mine
        return mine[0].succeeded, mine[0].ready + mine[0].scheduled

    def batches(self) -> int:
        """Frames that this process wrote so far."""
        return self.app.store().batches


async def one_by_one(contender: Contender, jobs: int) -> Sample:
    """Return one caller, each enqueue awaited before the next."""
    latencies = []
    clock = Clock()
    for number in range(jobs):
        start = time.perf_counter()
        await contender.enqueue(number, SUBJECT)
        latencies.append(time.perf_counter() - start)
    sample = taken(contender, clock, jobs)
    sample.latencies = latencies
    assert await contender.counts() == (0, jobs)
    return sample


async def enqueue_concurrently(contender: Contender, jobs: int, producers: int) -> Sample:
    """Many callers, no worker."""
    clock = Clock()
    await produce(contender.enqueue, jobs, producers)
    sample = taken(contender, clock, jobs)
    assert await contender.counts() == (0, jobs)
    return sample


async def enqueue_many(contender: Contender, jobs: int) -> Sample:
    """Return one caller, transactions of 1 000."""
    clock = Clock()
    await fill(contender, jobs)
    sample = taken(contender, clock, jobs)
    assert await contender.counts() == (0, jobs)
    return sample


async def drain(contender: Contender, jobs: int) -> Sample:
    """Claim, run and settle a backlog: from the start of its first job, with the worker's end."""
    await fill(contender, jobs)
    before = contender.batches()
    contender.tally.expect(jobs)
    async with contender.worker():
        await contender.tally.reached.wait()
    assert contender.tally.clock is not None
    sample = taken(contender, contender.tally.clock, jobs, before)
    assert await contender.counts() == (jobs, 0)
    return sample


async def full_cycle(contender: Contender, jobs: int, producers: int) -> Sample:
    """Enqueue, claim, run and settle, all at the same time in this process."""
    contender.tally.expect(jobs)
    async with contender.worker():
        before, clock = contender.batches(), Clock()
        await produce(contender.enqueue, jobs, producers)
        await contender.tally.reached.wait()
    sample = taken(contender, clock, jobs, before)
    assert await contender.counts() == (jobs, 0)
    return sample


async def full_cycle_beside_cpu(contender: Contender, jobs: int, producers: int) -> Sample:
    """As ``full_cycle``, while one CPU-bound sync task runs in a thread."""
    async with contender.worker(), contender.busy_thread():
        contender.tally.expect(jobs)
        before, clock = contender.batches(), Clock()
        await produce(contender.enqueue, jobs, producers)
        await contender.tally.reached.wait()
        sample = taken(contender, clock, jobs, before)
    assert await contender.counts() == (jobs, 0)
    return sample


async def two_processes(contender: Contender, jobs: int, producers: int) -> Sample:
    """Producers here, the worker in a process of its own; ends when the worker settled all."""
    _, name, mode, _ = sys.argv[1:]
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.one", "worker", name, mode),
        *(str(jobs), str(contender.directory)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"ready\n"
    clock = Clock()
    await produce(contender.enqueue, jobs, producers)
    assert await worker.stdout.readline() == b"done\n"
    sample = taken(contender, clock, jobs)
    assert await worker.wait() == 0
    assert await contender.counts() == (jobs, 0)
    return sample


async def work(name: str, mode: str, jobs: int, directory: Path) -> None:
    """Be the worker process of ``two_processes``."""
    contender = make(name, mode, directory, shared=True)
    await contender.open()
    contender.tally.expect(jobs)
    async with contender.worker():
        print("ready", flush=True)
        await contender.tally.reached.wait()
    print("done", flush=True)
    await contender.close()


def taken(contender: Contender, clock: Clock, jobs: int, batches: int = 0) -> Sample:
    """Stop the clock; ``batches`` are those that were written before it began."""
    seconds, cpu = clock.taken()
    return Sample(
        jobs=jobs, seconds=seconds, cpu_seconds=cpu, batches=contender.batches() - batches
    )


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


def make(name: str, mode: str, directory: Path, *, shared: bool) -> Contender:
    """The contender of that name; ``mode`` is fsync or os, ``shared`` if others write too."""
    if name == "taskq":
        return TaskqContender(directory, mode)
    tuned = name == "sqlite-tuned"
    return SqliteContender(directory, full=mode == "fsync", tuned=tuned, shared=shared)


async def run(scenario: str, name: str, mode: str, jobs: int, directory: Path) -> Sample:
    """Take one sample in an empty directory; fails loudly if the end state is wrong."""
    if name == "disk":
        clock = Clock()
        latencies = write_seconds(directory / "raw", RECORD_BYTES, jobs, durable=mode == "fsync")
        return Sample(
            jobs=jobs, seconds=sum(latencies), cpu_seconds=clock.taken()[1], latencies=latencies
        )
    contender = make(name, mode, directory, shared=scenario.startswith("two_processes"))
    await contender.open()
    sample = await SCENARIOS[scenario](contender, jobs)
    await contender.close()
    return sample


def main() -> None:
    """Take a sample for each line read, or be the worker of one."""
    scenario, name, mode, *rest = sys.argv[1:]
    if scenario == "worker":
        asyncio.run(work(name, mode, int(rest[0]), Path(rest[1])))
        return
    for line in sys.stdin:
        with scratch(Path(rest[0])) as directory:
            gc.collect()
            sample = asyncio.run(run(scenario, name, mode, int(line), directory))
        print(json.dumps(asdict(sample)), flush=True)


if __name__ == "__main__":
    main()
