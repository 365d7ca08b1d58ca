"""Jobs a second through Spark: data frames into the files of an inbox, then adopted by the log.

Run: ``python -m tests.bench.sink [--jobs N] [--rounds N] [--cores N] [--dir DIR]``. See README.md.
All uploads of a run go into one log, which holds every job exactly once at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq import TaskLog
from taskq_plugins.spark.session import spark_session
from taskq_plugins.spark.sink.uploads import adopt_all
from tests.bench.tables import Table, median

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_TARGET_PER_SECOND: Final = 500_000
ADOPTED_TARGET_PER_SECOND: Final = 100_000
#: A ready payload of 100 bytes, JSON, with the row's number in it.
_VALUE: Final = """concat('{"n":', lpad(id, 9, ' '), ',"text":"', repeat('x', 75), '"}') AS value"""
#: What is written -> its columns. Every payload begins with the row's number.
KINDS: Final = {
    "ready payloads": (_VALUE,),
    "ready payloads, a key each": (_VALUE, "concat('key-', id, '-', uuid()) AS key"),
    "arguments": ("id AS n", "concat('user-', id, '@example.org') AS to", "'hello' AS subject"),
}


def frame(spark: SparkSession, jobs: int, cores: int, kind: str) -> DataFrame:
    """Return rows of one kind, made where they are written."""
    return spark.range(0, jobs, 1, cores).selectExpr(*KINDS[kind])


def write(rows: DataFrame, data_dir: Path) -> float:
    """Return seconds until the rows are published; nobody adopts them yet."""
    start = time.perf_counter()
    rows.write.format("taskq").mode("append").options(
        path=str(data_dir), task="bench.job", queue="bench", adopt="false"
    ).save()
    return time.perf_counter() - start


def adopted(data_dir: Path, jobs: int) -> float:
    """Return seconds of one process that adopts them."""
    start = time.perf_counter()
    count = adopt_all(data_dir)
    seconds = time.perf_counter() - start
    assert count == jobs, (count, jobs)
    return seconds


async def ready(data_dir: Path) -> int:
    """Return jobs of the log that may be claimed."""
    async with TaskLog.open(data_dir, upkeep=False) as log:
        (queue,) = (await log.stats()).queues
    return queue.ready


def check(spark: SparkSession, data_dir: Path, jobs: int, uploads: int) -> None:
    """Every row of every upload is one job, and all of them may be claimed."""
    records = spark.read.format("taskq").load(str(data_dir)).where("kind = 'enqueued'")
    numbers = records.selectExpr(
        "CAST(get_json_object(CAST(value AS string), '$.n') AS long) AS n", "lsn"
    )
    found = numbers.selectExpr(
        "count(*)", "count(DISTINCT lsn)", "count(DISTINCT n)", "min(n)", "max(n)"
    ).first()
    assert found is not None
    assert tuple(found) == (jobs * uploads, jobs * uploads, jobs, 0, jobs - 1), tuple(found)
    assert numbers.groupBy("n").count().where(f"count <> {uploads}").count() == 0
    assert asyncio.run(ready(data_dir)) == jobs * uploads


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--dir", type=Path, default=Path())
    options = parser.parse_args()
    kinds = options.kind or list(KINDS)
    files: dict[str, list[float]] = {kind: [] for kind in kinds}
    log: dict[str, list[float]] = {kind: [] for kind in kinds}
    with (
        tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-sink-") as name,
        spark_session("bench", master=f"local[{options.cores}]") as spark,
    ):
        warm = Path(name) / "warm"
        write(frame(spark, 10_000, options.cores, kinds[0]), warm)
        data_dir = Path(name) / "data"
        for _ in range(options.rounds):
            for kind in kinds:
                rows = frame(spark, options.jobs, options.cores, kind)
                files[kind].append(write(rows, data_dir))
                log[kind].append(adopted(data_dir, options.jobs))
        check(spark, data_dir, options.jobs, options.rounds * len(kinds))
    print_table(options.jobs, files, log)


def print_table(jobs: int, files: dict[str, list[float]], log: dict[str, list[float]]) -> None:
    """Medians of the rounds."""
    table = Table(
        f"{jobs:,} jobs an upload", ["rows", "jobs/s into files", "jobs/s adopted", "both"]
    )
    for kind, taken in files.items():
        written, adoption = median(taken), median(log[kind])
        rates = (jobs / written, jobs / adoption, jobs / (written + adoption))
        table.row(kind, *(f"{rate:,.0f}" for rate in rates))
    table.print()
    print(
        f"\ntargets {FILES_TARGET_PER_SECOND:,} into files, {ADOPTED_TARGET_PER_SECOND:,} adopted"
    )


if __name__ == "__main__":
    main()
