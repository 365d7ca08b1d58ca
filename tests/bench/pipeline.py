"""Measure time and memory of ``taskq pipeline run``: ``python -m tests.bench.pipeline``.

``growth`` enqueues jobs in bulk into four logs, runs the pipeline over them, and measures its
processes. ``open`` keeps a pipeline open while a log grows by 1 000 records every five
seconds. Every job must be in the tables once.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from taskq import Put, TaskLog, TaskQ
from taskq_plugins.spark.lake.store import Lake
from taskq_plugins.spark.sink.ingest import Upload
from tests.bench import harness
from tests.bench.harness import MIB, ROOT, Table, percentile, scratch

LOGS = 4
JOBS = (1_000_000, 2_500_000, 5_000_000, 10_000_000)
#: Three records each, and some of the log's own.
OPEN_JOBS = 333
OPEN_SECONDS = 5.0
#: Memory of the last quarter beside the second quarter.
GROWTH_MAX = 1.1
QUARTERS = 4
PART_JOBS = 500_000


def fill(journals: Path, jobs: int) -> None:
    """Enqueue jobs in bulk, a fourth into each log."""
    app = TaskQ("never-made")
    for device in range(LOGS):
        mine = range(device, jobs, LOGS)
        for at in range(0, len(mine), PART_JOBS):
            upload = Upload(journals / f"device-{device}", f"growth-{at}")
            calls = [
                app.call_by_name("mail.send", to=f"ada-{number}@example", number=number)
                for number in mine[at : at + PART_JOBS]
            ]
            assert upload.finish(upload.write_parts([calls])).jobs == len(calls)


async def work(path: Path, jobs: int) -> None:
    """Enqueue, claim and end jobs."""
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        await log.put_many([Put(payload=b"x" * 60)] * jobs)
        async with log.transaction() as settled:
            for delivery in await log.claim(jobs):
                settled.ack(delivery)


@contextmanager
def pipeline(journals: Path, lake: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``taskq pipeline run`` in a process of its own, which prints an event a line."""
    command = [sys.executable, "-m", "taskq", "pipeline", "run", "--json", *words]
    command += ["--journals", str(journals), "--lake", str(lake)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def check(lake: Path, jobs: int, state: str) -> None:
    """Assert that every job is in the tables once."""
    rows = Lake.open(lake).dataset("jobs").to_table(columns=["log_id", "job", "state"])
    assert rows["state"].value_counts().to_pylist() == [{"values": state, "counts": jobs}]
    assert rows.group_by(["log_id", "job"]).aggregate([]).num_rows == jobs


def mebibytes(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / MIB


def growth(given: Any) -> None:
    """Print a run for each count, from nothing."""
    who = ("driver", "java", "python", "all")
    table = Table(
        f"taskq pipeline run --master {given.master}: bulk-enqueued jobs, from nothing",
        *("jobs", "log MiB", "lake MiB", "batches", "s", "CPU s", "µs/job"),
        *(f"{name} MiB" for name in who),
    )
    for jobs in (given.jobs,) if given.jobs else JOBS:
        with scratch(given.dir) as place:
            journals, lake = place / "hub", place / "lake"
            fill(journals, jobs)
            began = time.monotonic()
            with (
                pipeline(journals, lake, "--master", given.master) as process,
                harness.Watch(process.pid) as watch,
            ):
                assert process.stdout is not None
                events = [json.loads(line)["event"] for line in process.stdout]
                assert process.wait() == 0, process.returncode
            took, cpu = time.monotonic() - began, sum(watch.cpu_seconds.values())
            check(lake, jobs, "ready")
            table.row(
                f"{jobs:,}",
                *(f"{mebibytes(folder):,.0f}" for folder in (journals, lake)),
                *(events.count("batch"), f"{took:.0f}", f"{cpu:.0f}", f"{cpu / jobs * 1e6:.1f}"),
                *(f"{watch.peak_bytes[name] / MIB:,.0f}" for name in who),
            )
    table.print()


class Increment(NamedTuple):
    """The cost of an increment."""

    records: int
    seconds: float
    cpu_seconds: float
    bytes: int


async def take(
    process: subprocess.Popen[str], log: Path, minutes: float
) -> tuple[int, list[Increment]]:
    """Let the log grow; return how often it grew, and what the pipeline took."""
    assert process.stdout is not None
    lines, pid, taken = process.stdout, process.pid, list[Increment]()

    def read() -> None:
        for line in lines:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "done" and event["records"]:
                spent, resident = harness.cpu_seconds(pid), harness.rss_bytes(pid)
                taken.append(Increment(event["records"], event["seconds"], spent, resident))

    reading = asyncio.get_running_loop().run_in_executor(None, read)
    grown, began = 1, time.monotonic()
    while time.monotonic() - began < minutes * 60:
        await work(log, OPEN_JOBS)
        grown += 1
        await asyncio.sleep(OPEN_SECONDS)
    # The newest jobs come with the next look.
    for _ in range(60):
        if sum(increment.records for increment in taken) >= 3 * OPEN_JOBS * grown:
            break
        await asyncio.sleep(1)
    process.send_signal(signal.SIGINT)
    await reading
    return grown, taken


def keep_open(given: Any) -> None:
    """Print by quarters of the time what an increment takes; memory must not grow."""
    with scratch(given.dir) as place:
        log, lake = place / "hub" / "device", place / "lake"
        asyncio.run(work(log, OPEN_JOBS))
        with pipeline(place / "hub", lake, "--keep-open") as process:
            grown, taken = asyncio.run(take(process, log, given.minutes))
        check(lake, grown * OPEN_JOBS, "succeeded")
    size = len(taken) // QUARTERS
    quarters = [taken[part * size : (part + 1) * size] for part in range(QUARTERS)]
    peaks = [max(increment.bytes for increment in quarter) for quarter in quarters]
    table = Table(f"{len(taken)} increments", "quarter", "s p50", "s p99", "CPU s each", "MiB")
    for number, (quarter, peak) in enumerate(zip(quarters, peaks, strict=True), 1):
        spent = (quarter[-1].cpu_seconds - quarter[0].cpu_seconds) / max(len(quarter) - 1, 1)
        seconds = [increment.seconds for increment in quarter]
        figures = (percentile(seconds, 50), percentile(seconds, 99), spent)
        table.row(number, *(f"{figure:.2f}" for figure in figures), f"{peak / MIB:.0f}")
    table.print()
    assert peaks[-1] / peaks[1] <= GROWTH_MAX, f"memory grows: {peaks[-1] / peaks[1]:.2f}"


LOADS = {"growth": growth, "open": keep_open}


def main() -> None:
    """Run the benchmarks."""
    given = harness.options(__doc__, jobs=int, minutes=60.0, master="local[2]", only=tuple(LOADS))
    for load in given.only or LOADS:
        LOADS[load](given)


if __name__ == "__main__":
    main()
