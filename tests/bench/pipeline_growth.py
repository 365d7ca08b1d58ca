"""What ``taskq pipeline run`` takes for 1 to 10 million jobs: time and memory grow as they do.

``python -m tests.bench.pipeline_growth`` enqueues jobs in bulk into four logs, runs the pipeline
over them through Spark, and looks at what its processes take. Every job must be in every table.
``--waiting`` asks what one batch of small work takes while so many other jobs wait in the lake.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq import Put, TaskLog
from taskq.log.inbox.parts import encode_tail
from taskq.log.inbox.writer import PartWriter, publish
from taskq.log.requests import EnqueueSpec
from taskq_plugins.spark.lake import Lake
from tests.bench.process import MIB, ROOT, Watch
from tests.bench.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGS: Final = 4
JOBS: Final = (1_000_000, 2_500_000, 5_000_000, 10_000_000)
WAITING: Final = (0, 1_000_000, 5_000_000)
#: Jobs of the one batch that is looked at, each enqueued, claimed and ended.
BATCH_JOBS: Final = 10_000
#: Batches before those that are looked at, and how many of these there are.
_WARM: Final = 1
_ROUNDS: Final = 3
_PART_JOBS: Final = 500_000
_AT_A_TIME: Final = 500
_TAIL: Final = encode_tail(EnqueueSpec("mail", "mail.send"))


class Taken(NamedTuple):
    """What a run took, and what it said at its end."""

    seconds: float
    watch: Watch
    done: dict[str, Any]
    batches: int

    @property
    def cpu_seconds(self) -> float:
        """Of all its processes."""
        return sum(self.watch.cpu_seconds.values())


def fill(journals: Path, jobs: int) -> None:
    """Enqueue so many jobs in bulk, a fourth into each log."""
    for device in range(LOGS):
        path = journals / f"device-{device}"
        mine = range(device, jobs, LOGS)
        for at in range(0, len(mine), _PART_JOBS):
            writer = PartWriter(path, "growth")
            chosen = mine[at : at + _PART_JOBS]
            writer.add_many(
                _TAIL, [b'{"to":"ada-%d@example","number":%d}' % (n, n) for n in chosen]
            )
            assert publish(path, f"growth@{at}", [writer.close()])
        asyncio.run(_adopt(path, len(mine)))


async def _adopt(path: Path, jobs: int) -> None:
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        assert await log.adopt() == jobs


async def _work(path: Path, jobs: int) -> None:
    """Jobs of another queue, enqueued, claimed and ended."""
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        for at in range(0, jobs, _AT_A_TIME):
            count = min(_AT_A_TIME, jobs - at)
            await log.put_many([Put(payload=b"x" * 60, queue="small") for _ in range(count)])
            async with log.transaction() as settled:
                for delivery in await log.claim(count, queues=["small"]):
                    settled.ack(delivery)


def run(journals: Path, lake: Path, *options: str) -> Taken:
    """``taskq pipeline run`` over all that is new."""
    command = [sys.executable, "-m", "taskq", "pipeline", "run", "--json", *options]
    command += ["--journals", str(journals), "--lake", str(lake)]
    began = time.monotonic()
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process,
        Watch(process.pid) as watch,
    ):
        assert process.stdout is not None
        events = [json.loads(line) for line in process.stdout]
    assert process.returncode == 0, process.returncode
    batches = sum(one["event"] == "batch" for one in events)
    return Taken(time.monotonic() - began, watch, events[-1], batches)


def size_of(directory: Path) -> int:
    """Return bytes of all files."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@contextmanager
def place(directory: Path | None) -> Iterator[tuple[Path, Path]]:
    """Where logs and a lake are made, for a while."""
    made = Path(tempfile.mkdtemp(prefix="taskq-growth-", dir=directory))
    try:
        (made / "hub").mkdir()
        yield made / "hub", made / "lake"
    finally:
        shutil.rmtree(made, ignore_errors=True)


def check(lake: Path, jobs: int, over: int = 0) -> None:
    """Every job is in the tables once, in the state that it is in.

    Raises:
        AssertionError: one is not.
    """
    rows = Lake.open(lake).dataset("jobs").to_table(columns=["log_id", "job", "state"])
    states = {one["values"]: one["counts"] for one in rows["state"].value_counts().to_pylist()}
    assert states == {"ready": jobs, "succeeded": over} or not jobs or not over, states
    assert sum(states.values()) == jobs + over, states
    assert rows.group_by(["log_id", "job"]).aggregate([]).num_rows == jobs + over


def grow(counts: list[int], directory: Path | None, master: str) -> None:
    """One run for each count, from nothing."""
    table = Table(
        f"taskq pipeline run --master {master}: bulk-enqueued jobs, from nothing",
        (
            *("jobs", "log MiB", "lake MiB", "batches", "s", "CPU s", "µs/job"),
            *("driver MiB", "java MiB", "python MiB", "all MiB"),
        ),
    )
    for jobs in counts:
        with place(directory) as (journals, lake):
            fill(journals, jobs)
            taken = run(journals, lake, "--master", master)
            check(lake, jobs)
            peaks = (taken.watch.peak_bytes[who] for who in ("driver", "java", "python", "all"))
            table.row(
                f"{jobs:,}",
                f"{size_of(journals) / MIB:,.0f}",
                f"{size_of(lake) / MIB:,.0f}",
                str(taken.batches),
                f"{taken.seconds:.0f}",
                f"{taken.cpu_seconds:.0f}",
                f"{taken.cpu_seconds / jobs * 1e6:.1f}",
                *(f"{peak / MIB:,.0f}" for peak in peaks),
            )
            print(f"{jobs:,}: {dict(taken.watch.cpu_seconds)}", flush=True)
    table.print()


def wait(counts: list[int], directory: Path | None, master: str) -> None:
    """One batch, with so many jobs waiting beside."""
    table = Table(
        f"one run with {BATCH_JOBS:,} jobs from enqueue to end, medians of {_ROUNDS}",
        ("waiting", "s", "CPU s", "driver MiB"),
    )
    for jobs in counts:
        with place(directory) as (journals, lake):
            fill(journals, jobs)
            run(journals, lake, *(("--master", master) if jobs else ()))
            found = []
            for _ in range(_WARM + _ROUNDS):
                asyncio.run(_work(journals / "device-0", BATCH_JOBS))
                found.append(run(journals, lake))
            check(lake, jobs, len(found) * BATCH_JOBS)
            taken = sorted(found[_WARM:], key=lambda one: one.cpu_seconds)[_ROUNDS // 2]
            table.row(
                f"{jobs:,}",
                f"{taken.seconds:.1f}",
                f"{taken.cpu_seconds:.1f}",
                f"{taken.watch.peak_bytes['driver'] / MIB:,.0f}",
            )
            print(f"{jobs:,}: {[round(one.cpu_seconds, 1) for one in found]}", flush=True)
    table.print()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=None)
    parser.add_argument("--waiting", action="store_true", help="look at one batch beside them")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--dir", type=Path, default=None, help="where all is made")
    chosen = parser.parse_args()
    jobs: list[int] | None = chosen.jobs
    if chosen.waiting:
        wait(jobs or list(WAITING), chosen.dir, chosen.master)
    else:
        grow(jobs or list(JOBS), chosen.dir, chosen.master)


if __name__ == "__main__":
    main()
