"""Exactly once: a run that is killed with -9 five times makes the tables of an undisturbed one.

``python -m tests.bench.pipeline_kills --records 2000000`` makes real logs, runs ``taskq pipeline
run`` over them undisturbed, and again while it is killed, driver and Java, at random moments: while
Spark starts, while a batch is read, folded, written or committed. Then every table is compared row
by row, as pyarrow reads it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskq import Put, TaskLog
from taskq_plugins.spark.lake import Lake
from tests.bench.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

LOGS: Final = 4
KILLS: Final = 5
#: Batches that the records are cut into, about, so that there are moments to be killed at.
BATCHES: Final = 12
_TURN_JOBS: Final = 500
#: What tells a row from all others.
_KEYS: Final = {
    "records": ("log_id", "epoch", "lsn"),
    "jobs": ("log_id", "job"),
    "attempts": ("log_id", "job", "number", "started_ns"),
    "rollup_hour": ("device", "queue", "task", "hour"),
    "failures": ("fingerprint",),
    "duplicates": (),
    "device_lag": ("log_id",),
}
#: Columns that tell how long ago something was when the table was made.
_OF_THE_MOMENT: Final = ("record_lag_seconds", "arrival_lag_seconds", "oldest_waiting_seconds")


async def make_log(path: Path, records: int, seed: int) -> None:
    """A log of about so many records: most jobs succeed, some fail, die, wait or run for ever."""
    draw = random.Random(seed)
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        left = records
        while left > 0:
            await log.put_many(
                [
                    Put(
                        payload=draw.randbytes(60),
                        queue=draw.choice(["mail", "reports"]),
                        attempts=draw.choice([1, 3]),
                        delay=draw.choice([0] * 50 + [86_400]),
                    )
                    for _ in range(_TURN_JOBS)
                ]
            )
            left -= _TURN_JOBS
            deliveries = await log.claim(_TURN_JOBS)
            left -= len(deliveries)
            async with log.transaction() as settled:
                for delivery in deliveries:
                    number = draw.randrange(100)
                    if number == 0:
                        continue
                    left -= 1
                    if number < 5:
                        settled.nack(delivery, f"ValueError: {number} is wrong", delay=0)
                    else:
                        settled.ack(delivery, result=b"1")


@contextlib.contextmanager
def pipeline(journals: Path, lake: Path, max_bytes: int) -> Iterator[subprocess.Popen[str]]:
    """``taskq pipeline run`` in a session of its own."""
    command = [
        *(sys.executable, "-m", "taskq", "pipeline", "run", "--json", "--master", "local[2]"),
        *("--journals", str(journals), "--lake", str(lake), "--max-bytes", str(max_bytes)),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                kill_all(process.pid)


def kill_all(pid: int) -> None:
    """Kill a process and all that it started, at one moment as far as that is possible."""
    family = [pid]
    for one in family:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                family += map(int, (task / "children").read_text().split())
    for one in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGSTOP)
    for one in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def undisturbed(journals: Path, lake: Path, max_bytes: int) -> tuple[float, float]:
    """Run to the end; returns seconds until the first batch was committed, and of a batch."""
    started = time.monotonic()
    seconds: list[float] = []
    first = 0.0
    with pipeline(journals, lake, max_bytes) as process:
        for event in events(process):
            if event["event"] == "batch":
                first = first or time.monotonic() - started
                seconds.append(event["seconds"])
    assert process.returncode == 0, process.returncode
    return first, sum(seconds) / max(len(seconds), 1)


def events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What it tells, as it tells it."""
    assert process.stdout is not None
    return map(json.loads, process.stdout)


def killed(
    journals: Path, lake: Path, max_bytes: int, start_seconds: float, draw: random.Random
) -> list[str]:
    """Run, killed five times, then to the end; returns what was committed at each death."""
    told: list[str] = []
    for number in range(KILLS):
        with pipeline(journals, lake, max_bytes) as process:
            if number % KILLS == 2:  # while Spark starts, or in the very first steps
                time.sleep(draw.uniform(0.2, start_seconds))
            else:
                batches = (one["seconds"] for one in events(process) if one["event"] == "batch")
                time.sleep(draw.uniform(0.0, next(batches)))
            assert process.poll() is None, "it ended before it was killed: take more batches"
            kill_all(process.pid)
        assert process.returncode == -signal.SIGKILL
        batch = Lake(lake).batch()
        told.append(f"batch {batch.number}" if batch is not None else "nothing")
    undisturbed(journals, lake, max_bytes)
    return told


def compare(left: Lake, right: Lake) -> Table:
    """Hold the tables of two lakes against each other, row by row.

    Raises:
        AssertionError: a row differs, is missing or stands twice.
    """
    table = Table("tables", ("table", "rows", "equal"))
    for name, keys in _KEYS.items():
        one, other = (_sorted(lake, name, keys) for lake in (left, right))
        assert one.num_rows == other.num_rows, (name, one.num_rows, other.num_rows)
        if keys:
            assert one.group_by(list(keys)).aggregate([]).num_rows == one.num_rows, name
        assert one.equals(other), name
        table.row(name, f"{one.num_rows:,}", "yes")
    return table


def _sorted(lake: Lake, name: str, keys: tuple[str, ...]) -> pa.Table:
    rows = lake.dataset(name).to_table()
    rows = rows.drop_columns([column for column in _OF_THE_MOMENT if column in rows.column_names])
    return rows.sort_by([(key, "ascending") for key in keys]) if keys else rows


def main() -> None:
    """Make the logs, run twice, compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=None, help="where all is made")
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="taskq-kills-", dir=chosen.directory))
    try:
        journals = directory / "journals"
        for number in range(LOGS):
            path = journals / f"device-{number}"
            asyncio.run(make_log(path, chosen.records // LOGS, chosen.seed + number))
        size = sum(path.stat().st_size for path in journals.rglob("*.log"))
        max_bytes = size // chosen.batches
        print(f"seed {chosen.seed}, {size / 2**20:.0f} MiB of log", flush=True)
        started = time.monotonic()
        pace = undisturbed(journals, directory / "whole", max_bytes)
        seconds = time.monotonic() - started
        whole = Lake.open(directory / "whole")
        records = sum(file.rows for file in whole.data_files("records"))
        print(f"undisturbed: {records:,} records, {seconds:.0f} s, {pace[1]:.1f} s a batch")
        draw = random.Random(chosen.seed)
        told = killed(journals, directory / "killed", max_bytes, pace[0], draw)
        print(f"killed {len(told)} times, behind: {', '.join(told)}")
        compare(whole, Lake.open(directory / "killed")).print()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
