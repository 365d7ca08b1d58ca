"""taskq beside a hand-written SQLite queue, in turn, in one run: jobs a second.

Run: ``python -m tests.bench.bench [--quick]``. Each contender has a process of its own for each
scenario, so that none inherits another's heap or settings, and has run a tenth of the jobs before
the clock runs. Each sample checks by the store's own counts that every job ended well. See
README.md for the columns.
"""

import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from tests.bench.baseline_sqlite import SqliteContender
from tests.bench.harness import Others, Table, median, microseconds, options, say, scratch, start
from tests.bench.load import (
    SUBJECT,
    WORKER_CONCURRENCY,
    Clock,
    Contender,
    Enqueue,
    Tally,
    fill,
    produce,
)

#: Scenario -> jobs of a sample.
JOBS: Final = {
    "enqueue_64": 50_000, "enqueue_many": 100_000, "drain": 100_000, "cycle_64": 50_000,
    "cycle_1000": 100_000,
}  # fmt: skip
#: A sample takes a few seconds; after this time it hangs.
SAMPLE_SECONDS_MAX: Final = 120
#: Run where ``--only`` asks for them; the first by taskq alone.
ASKED: Final = {"mixed_1000": 50_000, "busy_1000": 30_000}
CONTENDERS: Final = ("taskq", "sqlite", "sqlite-tuned")
#: taskq without its extension, beside taskq with it.
PYTHON: Final = "taskq-python"
Sample = dict[str, float]


class TaskqContender:
    """The full public API, validation included: an app with the no-op."""

    def __init__(self, directory: Path, durability: str) -> None:
        # Imported here so that the baselines can be measured alone.
        from taskq import TaskQ  # noqa: PLC0415

        self.tally = Tally()
        self.app = TaskQ(directory / "data", durability=durability)
        self.task = self.app.task(name="noop")(self.tally.noop)
        #: the task's own method: nothing of the benchmark lies between
        self.enqueue: Enqueue = self.task.enqueue

    def mix(self) -> Enqueue:
        """Return what enqueues a tenth with a priority, a delay, a key, or a retry, in turn."""
        from taskq import Retry, current_job  # noqa: PLC0415 - likewise

        noop = self.tally.noop

        async def again(i: int, subject: str) -> None:
            if current_job().attempt == 1:
                raise Retry(delay=0)
            await noop(i, subject)

        async def keyed(i: int, subject: str) -> None:
            await noop(i, subject)

        odd: list[Enqueue] = [
            self.task.options(priority=9).enqueue,
            self.task.options(delay=0.001).enqueue,
            self.app.task(key=lambda i, subject: subject + f"{i}")(keyed).enqueue,
            self.app.task(again).enqueue,
        ]
        return lambda i, subject: (self.enqueue if i % 10 else odd[i // 10 % 4])(i, subject)

    async def open(self) -> None:
        await self.app.open()

    async def close(self) -> None:
        await self.app.close()

    async def enqueue_many(self, numbers: range) -> None:
        await self.task.enqueue_many([(i, SUBJECT) for i in numbers])

    def worker(self) -> AbstractAsyncContextManager[object]:
        return self.app.worker(concurrency=WORKER_CONCURRENCY)

    async def counts(self) -> tuple[int, int]:
        (queue,) = (await self.app.stats()).queues
        assert queue.running + queue.dead + queue.cancelled + queue.expired == 0, queue
        return queue.succeeded, queue.ready + queue.scheduled


async def enqueue_64(contender: Contender, jobs: int) -> Sample:
    clock = Clock()
    await produce(contender.enqueue, jobs, 64)
    return await taken(contender, clock, (0, jobs))


async def enqueue_many(contender: Contender, jobs: int) -> Sample:
    clock = Clock()
    await fill(contender, jobs)
    return await taken(contender, clock, (0, jobs))


async def drain(contender: Contender, jobs: int) -> Sample:
    """Claim, run and settle a backlog: from the start of its first job, with the worker's end."""
    await fill(contender, jobs)
    contender.tally.expect(jobs)
    async with contender.worker():
        await contender.tally.reached.wait()
    assert contender.tally.clock is not None
    return await taken(contender, contender.tally.clock, (jobs, 0))


async def cycle(
    contender: Contender, jobs: int, producers: int, enqueue: Enqueue | None = None
) -> Sample:
    """Enqueue, claim, run and settle, all at the same time in this process."""
    contender.tally.expect(jobs)
    async with contender.worker():
        clock = Clock()
        await produce(enqueue or contender.enqueue, jobs, producers)
        await contender.tally.reached.wait()
    return await taken(contender, clock, (jobs, 0))


async def mixed(contender: Contender, jobs: int) -> Sample:
    assert isinstance(contender, TaskqContender), "the others know neither keys nor retries"
    return await cycle(contender, jobs, 1_000, contender.mix())


async def busy(contender: Contender, jobs: int) -> Sample:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1_000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        return await cycle(contender, jobs, 1_000)
    finally:
        over.set()
        thread.join()


async def taken(contender: Contender, clock: Clock, counts: tuple[int, int]) -> Sample:
    """Stop the clock; check the counts of succeeded and waiting jobs."""
    seconds, cpu_seconds = clock.taken()
    assert await contender.counts() == counts
    return {"jobs": sum(counts), "seconds": seconds, "cpu_seconds": cpu_seconds}


SCENARIOS: Final[dict[str, Callable[[Contender, int], Awaitable[Sample]]]] = {
    "enqueue_64": enqueue_64,
    "enqueue_many": enqueue_many,
    "drain": drain,
    "cycle_64": lambda contender, jobs: cycle(contender, jobs, 64),
    "cycle_1000": lambda contender, jobs: cycle(contender, jobs, 1_000),
    "mixed_1000": mixed,
    "busy_1000": busy,
}


async def run(scenario: str, name: str, mode: str, jobs: int, directory: Path) -> Sample:
    """Take one sample in an empty directory; fails loudly if the end state is wrong."""
    if name == PYTHON:
        os.environ["TASKQ_NATIVE"] = "0"  # before anything of taskq is imported
    elif name == "taskq" and os.environ.get("TASKQ_NATIVE") != "0":
        from taskq import _native  # noqa: PLC0415 - likewise

        assert _native.is_on, "there is no extension: python -m taskq._native.build"
    contender: Contender = (
        TaskqContender(directory, mode)
        if name in {"taskq", PYTHON}
        else SqliteContender(directory, full=mode == "fsync", tuned=name == "sqlite-tuned")
    )
    await contender.open()
    sample = await SCENARIOS[scenario](contender, jobs)
    await contender.close()
    return sample


def serve(scenario: str, name: str, mode: str, place: str) -> None:
    """Take a sample of ``count`` jobs for each number, and print a line."""
    for line in sys.stdin:
        with scratch(Path(place)) as directory:
            gc.collect()
            sample = asyncio.run(run(scenario, name, mode, int(line), directory))
        print(json.dumps(sample), flush=True)


def take(process: subprocess.Popen[str], jobs: int) -> Sample:
    assert process.stdout is not None
    late = threading.Timer(SAMPLE_SECONDS_MAX, process.kill)
    late.start()
    say(process, str(jobs))
    line = process.stdout.readline()
    late.cancel()
    assert line, f"{process.args!r} ended with {process.wait()}"
    sample: Sample = json.loads(line)
    return sample


def samples_of(
    scenario: str, names: list[str], mode: str, jobs: int, rounds: int, place: Path
) -> dict[str, list[Sample]]:
    """Take ``count`` samples of each, in turn (A B C A B C …), after a warm-up."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(scratch(place))
        contenders = {}
        for name in names:
            process = start("tests.bench.bench", "sample", scenario, name, mode, directory)
            stack.callback(process.communicate)
            contenders[name] = process
            take(process, max(jobs // 10, 1))
        samples: dict[str, list[Sample]] = {name: [] for name in names}
        for _ in range(rounds):
            for name, process in contenders.items():
                samples[name].append(take(process, jobs))
    return samples


def rates_of(samples: list[Sample]) -> list[float]:
    return [sample["jobs"] / sample["seconds"] for sample in samples]


def beside(samples: list[Sample], base: list[Sample] | None) -> str:
    """Return the median over the rounds of how many times as fast it is, "-" without a base."""
    if not base:
        return "-"
    pairs = zip(rates_of(samples), rates_of(base), strict=True)
    return f"{median([mine / theirs for mine, theirs in pairs]):.2f}"


def summary(samples: dict[str, list[Sample]]) -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    for name, taken_ in samples.items():
        rates = rates_of(taken_)
        cpu = median([sample["cpu_seconds"] / sample["jobs"] for sample in taken_])
        rows[name] = {
            "jobs/s": f"{median(rates):,.0f}",
            "min": f"{min(rates):,.0f}",
            "max": f"{max(rates):,.0f}",
            "CPU µs/job": microseconds(cpu),
            "/ sqlite": beside(taken_, samples.get("sqlite")),
            "/ tuned": beside(taken_, samples.get("sqlite-tuned")),
            "/ Python": beside(taken_, samples.get(PYTHON)),
        }
    return rows


def main() -> None:
    if sys.argv[1:2] == ["sample"]:
        serve(*sys.argv[2:])
        return
    given = options(
        __doc__, quick=False, jobs=int, scale=1.0, rounds=5, mode=("fsync", "os"),
        only=tuple(SCENARIOS), contender=(*CONTENDERS, PYTHON), json=False,
    )  # fmt: skip
    rounds, scale = (1, 0.1) if given.quick else (given.rounds, given.scale)
    names = list(given.contender or CONTENDERS)
    table: Table | None = None
    for scenario in given.only or JOBS:
        for mode in given.mode or ("fsync", "os"):
            jobs = given.jobs or int((JOBS | ASKED)[scenario] * scale)
            others = Others()
            rows = summary(samples_of(scenario, names, mode, jobs, rounds, given.dir))
            if given.json:
                head = {"scenario": scenario, "mode": mode, "jobs": jobs, "others": str(others)}
                print(json.dumps(head | {"rows": rows}), flush=True)
                continue
            table = table or Table("", "", "", "", "jobs", *rows[names[0]])
            for name, row in rows.items():
                table.row(scenario, mode, name, f"{jobs:,}", *row.values())
    if table is not None:
        table.print()


if __name__ == "__main__":
    main()
