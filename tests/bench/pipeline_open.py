"""``taskq pipeline run --keep-open`` for an hour: an increment every five seconds, flat in memory.

``python -m tests.bench.pipeline_open --minutes 60`` has a log grow by 1 000 records again and
again, and tells by quarters of the time how long the pipeline took for an increment, by the clock
and of a processor, and how much memory it has. At the end every job is in the tables.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq import Put, TaskLog
from taskq_plugins.spark.lake import Lake
from tests.bench.process import MIB, ROOT, cpu_seconds, rss_bytes
from tests.bench.tables import Table, percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Three records each, and some of the log's own.
JOBS: Final = 333
EVERY_SECONDS: Final = 5.0
SECONDS_MAX: Final = 2.0
#: Memory of the last quarter beside that of the second.
GROWTH_MAX: Final = 1.1
_PARTS: Final = 4


class Increment(NamedTuple):
    """One increment as the pipeline took it."""

    records: int
    seconds: float
    cpu_seconds: float
    bytes: int


async def grow(log: TaskLog) -> None:
    """Run so many jobs."""
    await log.put_many([Put(payload=b"x" * 60, queue="mail") for _ in range(JOBS)])
    deliveries = await log.claim(JOBS)
    assert len(deliveries) == JOBS
    async with log.transaction() as settled:
        for delivery in deliveries:
            settled.ack(delivery)


async def take(
    process: subprocess.Popen[str], data_dir: Path, minutes: float
) -> tuple[int, list[Increment]]:
    """Let the log grow, and see what comes of it; how often it grew, and what was taken."""
    loop = asyncio.get_running_loop()
    assert process.stdout is not None
    lines = process.stdout
    found: list[Increment] = []

    def read() -> None:
        for line in lines:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "done" and event["records"]:
                spent, resident = cpu_seconds(process.pid), rss_bytes(process.pid)
                found.append(Increment(event["records"], event["seconds"], spent, resident))

    reading = loop.run_in_executor(None, read)
    grown, began = 1, time.monotonic()
    async with TaskLog.open(data_dir, durability="os", upkeep=False) as log:
        while time.monotonic() - began < minutes * 60:
            await grow(log)
            grown += 1
            await asyncio.sleep(EVERY_SECONDS)
        # What came last is taken at the next look.
        for _ in range(60):
            if sum(one.records for one in found) >= 3 * JOBS * grown:
                break
            await asyncio.sleep(1)
    process.send_signal(signal.SIGINT)
    await reading
    return grown, found


def told(found: Sequence[Increment]) -> None:
    """Print it by quarters."""
    table = Table(
        f"{len(found)} increments of {found[len(found) // 2].records:,} records",
        ("quarter", "s p50", "s p99", "CPU s each", "MiB"),
    )
    size = len(found) // _PARTS
    for part in range(_PARTS):
        ones = found[part * size : (part + 1) * size]
        spent = (ones[-1].cpu_seconds - ones[0].cpu_seconds) / (len(ones) - 1)
        seconds = [one.seconds for one in ones]
        table.row(
            str(part + 1),
            f"{percentile(seconds, 50):.2f}",
            f"{percentile(seconds, 99):.2f}",
            f"{spent:.2f}",
            f"{max(one.bytes for one in ones) / MIB:.0f}",
        )
    table.print()


def main() -> None:
    """Run it, print the table, and check what it is to show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--dir", type=Path, default=None, help="where all is made")
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="taskq-open-", dir=chosen.dir))
    data_dir, lake = directory / "hub" / "device", directory / "lake"
    command = [sys.executable, "-m", "taskq", "pipeline", "run", "--json", "--keep-open"]
    try:
        asyncio.run(_begin(data_dir))
        with subprocess.Popen(
            [*command, "--journals", str(directory / "hub"), "--lake", str(lake)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                grown, found = asyncio.run(take(process, data_dir, chosen.minutes))
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        told(found)
        states = Lake.open(lake).dataset("jobs").to_table(columns=["state"])["state"]
        counts = {one["values"]: one["counts"] for one in states.value_counts().to_pylist()}
        assert counts == {"succeeded": grown * JOBS}, counts
        size = len(found) // _PARTS
        second, last = found[size : 2 * size], found[-size:]
        growth = max(one.bytes for one in last) / max(one.bytes for one in second)
        late = sum(one.seconds > SECONDS_MAX for one in found)
        print(
            f"\n{late} of {len(found)} took over {SECONDS_MAX:g} s; memory grew {growth:.2f} fold"
        )
        assert growth <= GROWTH_MAX, f"memory grows: {growth:.2f}"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _begin(data_dir: Path) -> None:
    async with TaskLog.open(data_dir, durability="os", upkeep=False) as log:
        await grow(log)


if __name__ == "__main__":
    main()
