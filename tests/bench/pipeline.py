"""Measure what ``taskq pipeline run`` and a read through Spark take: time and memory.

``python -m tests.bench.pipeline growth`` enqueues jobs in bulk into four logs, runs the pipeline
over them, and looks at what its processes take. ``waiting`` measures one small batch while many
other jobs wait in the lake. ``open`` keeps a pipeline open while a log
grows by 1 000 records every five seconds. ``read`` reads all columns, and two of them, through
Spark. ``devices`` measures an increment beside many silent devices. Every job must be in every
table.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq import Put, TaskLog, TaskQ
from taskq_plugins.spark.lake.store import Lake
from taskq_plugins.spark.run.pipeline import RunOptions, update
from taskq_plugins.spark.session import open_session
from taskq_plugins.spark.sink.ingest import Upload
from tests.bench.harness import (
    MIB,
    ROOT,
    Table,
    Watch,
    cpu_seconds,
    family,
    median,
    options,
    percentile,
    rss_bytes,
    scratch,
)  # fmt: skip
from tests.fleet.made_logs import MadeLog, claimed, succeeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from taskq_plugins.spark.lake.store import LakeWriter

LOGS: Final = 4
JOBS: Final = (1_000_000, 2_500_000, 5_000_000, 10_000_000)
WAITING: Final = (0, 1_000_000, 5_000_000)
#: Jobs of a batch that is looked at, each enqueued, claimed and ended, and how many batches.
BATCH_JOBS: Final = 10_000
ROUNDS: Final = 3
#: Devices of which all but one are silent.
DEVICES: Final = (1_000, 10_000)
#: Three records each, and some of the log's own.
OPEN_JOBS: Final = 333
OPEN_SECONDS: Final = 5.0
#: Memory of the last quarter beside the second quarter.
GROWTH_MAX: Final = 1.1
TWO_COLUMNS: Final = "lsn long, kind string"
_PARTS: Final = 4
_PART_JOBS: Final = 500_000
_AT_A_TIME: Final = 500
_APP: Final = TaskQ("never-made")


class Taken(NamedTuple):
    """Hold what a run took, and how many batches it had."""

    seconds: float
    watch: Watch
    batches: int

    @property
    def cpu_seconds(self) -> float:
        """Return processor seconds of all its processes."""
        return sum(self.watch.cpu_seconds.values())


def fill(journals: Path, jobs: int) -> None:
    """Enqueue ``count`` jobs in bulk, a fourth into each log."""
    for device in range(LOGS):
        path = journals / f"device-{device}"
        mine = range(device, jobs, LOGS)
        for at in range(0, len(mine), _PART_JOBS):
            chosen = mine[at : at + _PART_JOBS]
            upload = Upload(path, f"growth-{at}")
            calls = [
                _APP.call_by_name("mail.send", to=f"ada-{n}@example", number=n) for n in chosen
            ]
            assert upload.finish(upload.write_parts([calls])).jobs == len(calls)


async def work(path: Path, jobs: int) -> None:
    """Enqueue, claim and end jobs of another queue."""
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        for at in range(0, jobs, _AT_A_TIME):
            count = min(_AT_A_TIME, jobs - at)
            await log.put_many([Put(payload=b"x" * 60, queue="small") for _ in range(count)])
            async with log.transaction() as settled:
                for delivery in await log.claim(count, queues=["small"]):
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


def run(journals: Path, lake: Path, *words: str) -> Taken:
    """Run the pipeline over all new records."""
    began = time.monotonic()
    with pipeline(journals, lake, *words) as process, Watch(process.pid) as watch:
        assert process.stdout is not None
        events = [json.loads(line) for line in process.stdout]
        assert process.wait() == 0, process.returncode
    batches = sum(event["event"] == "batch" for event in events)
    return Taken(time.monotonic() - began, watch, batches)


def check(lake: Path, jobs: int, over: int = 0) -> None:
    """Assert that every job is in the tables once, in the state that it is in."""
    rows = Lake.open(lake).dataset("jobs").to_table(columns=["log_id", "job", "state"])
    states = {row["values"]: row["counts"] for row in rows["state"].value_counts().to_pylist()}
    wanted = {"ready": jobs, "succeeded": over}
    assert states == {state: count for state, count in wanted.items() if count}, states
    assert rows.group_by(["log_id", "job"]).aggregate([]).num_rows == jobs + over


def size_of(directory: Path) -> int:
    """Return bytes of all files."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


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
            taken = run(journals, lake, "--master", given.master)
            check(lake, jobs)
            table.row(
                f"{jobs:,}",
                f"{size_of(journals) / MIB:,.0f}",
                f"{size_of(lake) / MIB:,.0f}",
                taken.batches,
                f"{taken.seconds:.0f}",
                f"{taken.cpu_seconds:.0f}",
                f"{taken.cpu_seconds / jobs * 1e6:.1f}",
                *(f"{taken.watch.peak_bytes[name] / MIB:,.0f}" for name in who),
            )
    table.print()


def waiting(given: Any) -> None:
    """Print the cost of a batch beside ``waiting`` jobs."""
    table = Table(
        f"one run with {BATCH_JOBS:,} jobs from enqueue to end, medians of {ROUNDS}",
        *("waiting", "s", "CPU s", "driver MiB"),
    )
    for jobs in (given.jobs,) if given.jobs else WAITING:
        with scratch(given.dir) as place:
            journals, lake = place / "hub", place / "lake"
            fill(journals, jobs)
            run(journals, lake, *(("--master", given.master) if jobs else ()))
            runs = []
            # The first warms the caches.
            for _ in range(1 + ROUNDS):
                asyncio.run(work(journals / "device-0", BATCH_JOBS))
                runs.append(run(journals, lake))
            check(lake, jobs, len(runs) * BATCH_JOBS)
            taken = sorted(runs[1:], key=lambda run: run.cpu_seconds)[ROUNDS // 2]
            figures = (f"{taken.seconds:.1f}", f"{taken.cpu_seconds:.1f}")
            table.row(f"{jobs:,}", *figures, f"{taken.watch.peak_bytes['driver'] / MIB:,.0f}")
    table.print()


class Increment(NamedTuple):
    """Hold an increment as the pipeline took it."""

    records: int
    seconds: float
    cpu_seconds: float
    bytes: int


async def take(
    process: subprocess.Popen[str], data_dir: Path, minutes: float
) -> tuple[int, list[Increment]]:
    """Let the log grow; return how often it grew, and what the pipeline took."""
    assert process.stdout is not None
    lines = process.stdout
    taken: list[Increment] = []

    def read() -> None:
        for line in lines:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "done" and event["records"]:
                spent, resident = cpu_seconds(process.pid), rss_bytes(process.pid)
                taken.append(Increment(event["records"], event["seconds"], spent, resident))

    reading = asyncio.get_running_loop().run_in_executor(None, read)
    grown, began = 1, time.monotonic()
    while time.monotonic() - began < minutes * 60:
        await work(data_dir, OPEN_JOBS)
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
        data_dir, lake = place / "hub" / "device", place / "lake"
        asyncio.run(work(data_dir, OPEN_JOBS))
        with pipeline(place / "hub", lake, "--keep-open") as process:
            grown, taken = asyncio.run(take(process, data_dir, given.minutes))
        check(lake, 0, grown * OPEN_JOBS)
    size = len(taken) // _PARTS
    quarters = [taken[part * size : (part + 1) * size] for part in range(_PARTS)]
    peaks = [max(increment.bytes for increment in quarter) for quarter in quarters]
    table = Table(f"{len(taken)} increments", "quarter", "s p50", "s p99", "CPU s each", "MiB")
    for number, (quarter, peak) in enumerate(zip(quarters, peaks, strict=True), 1):
        spent = (quarter[-1].cpu_seconds - quarter[0].cpu_seconds) / max(len(quarter) - 1, 1)
        seconds = [increment.seconds for increment in quarter]
        figures = (percentile(seconds, 50), percentile(seconds, 99), spent)
        table.row(number, *(f"{figure:.2f}" for figure in figures), f"{peak / MIB:.0f}")
    table.print()
    assert peaks[-1] / peaks[1] <= GROWTH_MAX, f"memory grows: {peaks[-1] / peaks[1]:.2f}"


def cpu_below(java: int) -> float:
    """Return processor seconds of Java and its children, ended or not."""
    spent = 0
    for pid in family(java):
        with suppress(OSError):
            values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            spent += sum(map(int, values[11:15]))
    return spent / os.sysconf("SC_CLK_TCK")


def read(given: Any) -> None:
    """Print what Spark takes for a read of all columns, and of two."""
    taken: dict[str, list[tuple[float, float]]] = {"all columns": [], TWO_COLUMNS: []}
    jobs = given.jobs or JOBS[0]
    with scratch(given.dir) as place:
        fill(place, jobs)
        spark = open_session("bench", master=given.master)
        gateway: Any = spark.sparkContext._gateway
        java = gateway.proc.pid
        for _ in range(1 + ROUNDS):
            for columns, figures in taken.items():
                reader = spark.read.format("taskq").option("targetPartitionBytes", "32m")
                if columns == TWO_COLUMNS:
                    reader = reader.schema(columns)
                cpu, began = cpu_below(java), time.perf_counter()
                frame = reader.load(str(place))
                frame.write.format("noop").mode("overwrite").save()
                wall, cpu = time.perf_counter() - began, cpu_below(java) - cpu
                figures.append((wall, cpu))
        assert frame.where("kind = 'enqueued'").count() == jobs
        spark.stop()
    table = Table(f"{jobs:,} jobs through Spark to noop", "columns", "s", "CPU s")
    for columns, figures in taken.items():
        # The first round warms Java and the page cache.
        medians = (median(values) for values in zip(*figures[1:], strict=True))
        table.row(columns, *(f"{value:.2f}" for value in medians))
    table.print()


def increment(
    spark: SparkSession, writer: LakeWriter, journals: Path, logs: list[MadeLog]
) -> tuple[float, float]:
    """Return processor seconds and KiB of Delta's logs that three records of each log take."""

    def size() -> int:
        return sum(
            path.stat().st_size for path in Path(writer.lake.path).rglob("_delta_log/*.json")
        )

    for log in logs:
        first = log.next_lsn
        log.enqueue()
        log.frame(claimed(first), succeeded(first, first + 1, first + 2))
    gateway: Any = spark.sparkContext._gateway
    before, began = size(), time.process_time() + cpu_below(gateway.proc.pid)
    update(spark, writer, RunOptions(journals=journals))
    spent = time.process_time() + cpu_below(gateway.proc.pid) - began
    return spent, (size() - before) / 1_024


def devices(given: Any) -> None:
    """Print what an increment takes if each device has three records, in a session kept open."""
    table = Table("an increment of three records a device", "devices", "CPU s", "Delta's logs, KiB")
    spark = open_session("bench", master=given.master)
    for count in (given.jobs,) if given.jobs else DEVICES:
        with scratch(given.dir) as place:
            logs = [MadeLog(place / "hub" / f"edge-{number}") for number in range(count)]
            with Lake.open(place / "lake", create=True).writer() as writer:
                # The first two read all, and warm Java.
                taken = [increment(spark, writer, place / "hub", logs) for _ in range(3 + ROUNDS)]
        medians = (median(values) for values in zip(*taken[3:], strict=True))
        table.row(f"{count:,}", *(f"{value:.2f}" for value in medians))
    table.print()


LOADS: Final = {
    "growth": growth,
    "waiting": waiting,
    "open": keep_open,
    "read": read,
    "devices": devices,
}


def main() -> None:
    """Run one of the benchmarks."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in LOADS:
        sys.exit(f"{__doc__}\nName one of {', '.join(LOADS)}.")
    LOADS[name](options(__doc__, jobs=int, minutes=60.0, master="local[2]"))


if __name__ == "__main__":
    main()
