"""Records a second through Spark: the source ``taskq`` to noop, beside one plain process of decode.

Run: ``python -m tests.bench.source [--records N] [--rounds N] [--partition-bytes SIZE]``. See
README.md. Both read the same files in the same run, all columns of SCHEMA, every CRC checked.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq_plugins import fleet
from taskq_plugins.spark.decode import SCHEMA, Piece, decode
from taskq_plugins.spark.session import open_session
from tests.bench.decode import payloads
from tests.bench.tables import Table, median
from tests.pipeline.segmentfiles import Segments, finished_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

TARGET_PER_SECOND: Final = 2_000_000
TARGET_RATIO: Final = 0.9
DEVICES: Final = 4
RECORDS_A_JOB: Final = 3
RECORDS_A_FRAME: Final = 1_000
JOBS_A_SEGMENT: Final = 100_000


def write_logs(directory: Path, records: int) -> int:
    """Finished jobs of four devices, three records each; returns how many records."""
    jobs = records // RECORDS_A_JOB // DEVICES
    for device in range(DEVICES):
        segments = Segments(directory / f"edge-{device}", uuid.uuid4())
        for begin in range(0, jobs, JOBS_A_SEGMENT):
            segments.begin()
            part = payloads(min(JOBS_A_SEGMENT, jobs - begin), equal=False)
            finished_jobs(segments, part, RECORDS_A_FRAME)
    return jobs * RECORDS_A_JOB * DEVICES


def pieces(directory: Path) -> Iterator[Piece]:
    """Every segment as one piece."""
    for log in fleet.find_logs(directory):
        for place in fleet.segments(log):
            yield Piece(
                place.path, log.device, log.log_id, log.tag, place.first_lsn, 0, place.size_bytes
            )


def plain(directory: Path, records: int) -> float:
    """Seconds of one process that decodes everything."""
    start = time.perf_counter()
    count = sum(batch.num_rows for piece in pieces(directory) for batch in decode(piece, SCHEMA))
    seconds = time.perf_counter() - start
    assert count == records, (count, records)
    return seconds


def frame_of(spark: SparkSession, directory: Path, partition_bytes: str) -> DataFrame:
    """All columns of all records."""
    reader = spark.read.format("taskq").option("targetPartitionBytes", partition_bytes)
    return reader.load(str(directory))


def through_spark(spark: SparkSession, directory: Path, partition_bytes: str) -> float:
    """Seconds from the plan to the last row, all columns handed to a sink that drops them."""
    start = time.perf_counter()
    frame = frame_of(spark, directory, partition_bytes)
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partition-bytes", default="32m")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--dir", type=Path, default=Path())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-source-") as name:
        directory = Path(name)
        records = write_logs(directory, options.records)
        spark = open_session("bench", master=f"local[{options.cores}]")
        frame = frame_of(spark, directory, options.partition_bytes)
        # Warms Java and the page cache, and shows that every record comes once.
        assert frame.select("log_id", "epoch", "lsn").distinct().count() == records
        assert frame.count() == records
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(options.rounds):
            times[0].append(plain(directory, records))
            times[1].append(through_spark(spark, directory, options.partition_bytes))
        partitions = frame.rdd.getNumPartitions()
        spark.stop()
    alone, spark_rate = (records / median(taken) for taken in times)
    table = Table(
        f"{records:,} records, all columns, CRCs checked", ["reader", "records/s", "seconds"]
    )
    table.row("decode, one process", f"{alone:,.0f}", f"{records / alone:.2f}")
    table.row(
        f"Spark local[{options.cores}] to noop, {partitions} partitions",
        f"{spark_rate:,.0f}",
        f"{records / spark_rate:.2f}",
    )
    table.print()
    print(
        f"\nSpark at {spark_rate / alone:.2f} of one process (target {TARGET_RATIO}); "
        f"target {TARGET_PER_SECOND:,} records/s"
    )


if __name__ == "__main__":
    main()
