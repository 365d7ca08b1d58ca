"""A backlog on Spark's executors beside one ordinary worker, and through a killed driver.

``python -m tests.bench.backlog`` prints a table, and asserts that every job has exactly one success
record although the driver and all its processes were killed in the midst, that others could claim
within a second of that, and that two cores on Spark are at least 1.6 times as fast as one worker
process. Speeds are taken from the log: jobs ended over the time from the first claim to the last
success of an undisturbed stretch, starting Java and Python left out. That needs a machine with
nothing else to do: Linux shares busy cores among sessions, and all of Spark is one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq import TaskLog, TaskQ
from taskq.core.model import SECOND_NS
from tests.bench.backlog_jobs import count
from tests.bench.process import ROOT
from tests.bench.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET: Final = "tests.bench.backlog_jobs:app"
RATIO_MIN: Final = 1.6
RECLAIM_SECONDS_MAX: Final = 1.0
_ROWS: Final = 2_000
_LOOK_SECONDS: Final = 0.1


class Stretch(NamedTuple):
    """What one process did."""

    jobs: int
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs ended in a second."""
        return self.jobs / self.seconds


class Ends(NamedTuple):
    """What the log says of one queue."""

    successes: Counter[str]
    #: owner -> first claim and last success, and how many successes
    owners: dict[int, tuple[int, int, int]]


def calibrated(milliseconds: float) -> int:
    """Return how many rounds take so long here, now."""
    rounds = 20_000
    seconds = min(_timed(rounds) for _ in range(5))
    return max(int(rounds * milliseconds / 1e3 / seconds), 1)


def _timed(rounds: int) -> float:
    began = time.perf_counter()
    count(1, rounds)
    return time.perf_counter() - began


async def enqueue(directory: Path, queue: str, jobs: int, rounds: int) -> None:
    """Put the jobs into one queue of the log."""
    app = TaskQ(directory)
    task = app.task(name=count.name, queue=queue)(count.fn)
    async with app:
        for start in range(0, jobs, _ROWS):
            stop = min(start + _ROWS, jobs)
            await task.enqueue_many([(number, rounds) for number in range(start, stop)])


def worker(directory: Path, queue: str, *options: str) -> subprocess.Popen[bytes]:
    """Return a worker process, and the leader of a group of its own."""
    command = [sys.executable, "-m", "taskq", "worker", TARGET, "--burst", "--quiet", "-Q", queue]
    return subprocess.Popen(
        [*command, "-d", str(directory), *options],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def ends(directory: Path, queue: str) -> Ends:
    """Successes by job, and by owner how fast they came."""
    return asyncio.run(_ends(directory, queue))


async def _ends(directory: Path, queue: str) -> Ends:
    successes: Counter[str] = Counter()
    owners: dict[int, tuple[int, int, int]] = {}
    owner_of: dict[str, int] = {}
    app = TaskQ(directory, upkeep=False)
    async with app, app.stream(from_lsn=1, follow=False, queues=[queue], name_all=True) as records:
        async for record in records:
            if record.kind == "claimed":
                owner_of[record.job_id] = record.owner
                owners.setdefault(record.owner, (record.time_ns, record.time_ns, 0))
            elif record.kind == "succeeded":
                successes[record.job_id] += 1
                first, _, done = owners[owner_of[record.job_id]]
                owners[owner_of[record.job_id]] = first, record.time_ns, done + 1
    return Ends(successes, owners)


def stretches(found: Ends) -> Iterator[Stretch]:
    """Yield what each process did, in the order in which they began."""
    for first, last, done in sorted(one for one in found.owners.values() if one[2]):
        yield Stretch(done, max(last - first, 1) / SECOND_NS)


def kill_in_the_midst(
    process: subprocess.Popen[bytes], directory: Path, queue: str, at: int
) -> int:
    """Kill the driver's whole group once so many jobs succeeded; how many had, at the last look."""

    async def kill() -> int:
        async with TaskQ(directory, upkeep=False) as app:
            while process.poll() is None:
                stats = {one.queue: one for one in (await app.stats()).queues}
                if stats[queue].succeeded >= at:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return stats[queue].succeeded
                await asyncio.sleep(_LOOK_SECONDS)
        raise AssertionError("the worker ended before it could be killed: give more --jobs")

    return asyncio.run(kill())


def reclaim_seconds(directory: Path, queue: str) -> float:
    """Return how long until somebody else has a job of the driver that was just killed."""

    async def wait() -> float:
        began = time.perf_counter()
        async with TaskLog.open(directory) as log:
            (delivery,) = await log.claim(1, queues=[queue], wait=10.0)
            waited = time.perf_counter() - began
            # Those that it had are older than all that wait.
            assert delivery.attempt > 1
            await log.release(delivery)
        return waited

    return asyncio.run(wait())


def run(directory: Path, jobs: int, part: int, milliseconds: float, master: str) -> None:
    """Everything in turn, then the table and what it has to show."""
    rounds = calibrated(milliseconds)
    asyncio.run(enqueue(directory, "alone", part, rounds))
    asyncio.run(enqueue(directory, "spark", jobs, rounds))
    spark = ("--executor", "spark", "--master", master)
    killed = worker(directory, "spark", *spark)
    done = kill_in_the_midst(killed, directory, "spark", jobs // 4)
    waited = reclaim_seconds(directory, "spark")
    assert worker(directory, "alone", "-c", "1").wait() == 0
    assert worker(directory, "spark", *spark).wait() == 0
    found, (alone,) = ends(directory, "spark"), stretches(ends(directory, "alone"))
    before, after = stretches(found)
    table = Table(
        f"{jobs:,} jobs of {milliseconds:g} ms ({rounds:,} rounds), {master}",
        ("", "jobs", "seconds", "jobs/s", "ratio"),
    )
    for name, one in (
        ("one worker process", alone),
        ("spark, until the driver was killed", before),
        ("spark, from then on", after),
    ):
        ratio = f"{one.rate / alone.rate:.2f}"
        table.row(name, f"{one.jobs:,}", f"{one.seconds:.1f}", f"{one.rate:,.0f}", ratio)
    table.print()
    print(f"\nkilled after {done:,} successes; its claims were free again {waited:.2f} s later")
    assert len(found.successes) == jobs, f"{jobs - len(found.successes)} jobs never succeeded"
    twice = {job: times for job, times in found.successes.items() if times != 1}
    assert not twice, f"succeeded more than once: {twice}"
    assert waited <= RECLAIM_SECONDS_MAX, f"claims stayed for {waited:.2f} s"
    assert after.rate >= RATIO_MIN * alone.rate, f"only {after.rate / alone.rate:.2f} times"
    print(f"every one of {jobs:,} jobs has exactly one success record")


def main() -> None:
    """Run with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--part", type=int, default=3_000, help="jobs of the ordinary worker")
    parser.add_argument("--milliseconds", type=float, default=4.0, help="of one job, alone")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="taskq-backlog-"))
    try:
        run(directory / "log", given.jobs, given.part, given.milliseconds, given.master)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
