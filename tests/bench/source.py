"""Records a second through Spark: the source ``taskq`` to noop, beside one plain process of decode.

Run: ``python -m tests.bench.source [--records N] [--rounds N] [--partition-bytes SIZE]``. See
README.md. Both read the same files in the same run, all columns of SCHEMA, every CRC checked; Spark
reads two columns as well, and its processor time is told apart: Java's, and that of Python beside.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq_plugins import fleet
from taskq_plugins.spark.decode import SCHEMA, Piece, decode
from taskq_plugins.spark.session import jvm_pid, open_session
from tests.bench.decode import payloads
from tests.bench.tables import Table, median
from tests.pipeline.segmentfiles import Segments, finished_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

TARGET_PER_SECOND: Final = 2_000_000
TARGET_RATIO: Final = 0.9
MILLION: Final = 1_000_000
TWO: Final = "lsn long, kind string"
TICKS: Final = os.sysconf("SC_CLK_TCK")
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
    """Yield every segment as one piece."""
    for log in fleet.find_logs(directory):
        for place in fleet.segments(log):
            yield Piece(
                place.path, log.device, log.log_id, log.tag, place.first_lsn, 0, place.size_bytes
            )


def plain(directory: Path, records: int) -> float:
    """Return seconds of one process that decodes everything."""
    start = time.perf_counter()
    count = sum(batch.num_rows for piece in pieces(directory) for batch in decode(piece, SCHEMA))
    seconds = time.perf_counter() - start
    assert count == records, (count, records)
    return seconds


def frame_of(
    spark: SparkSession, directory: Path, partition_bytes: str, schema: str | None = None
) -> DataFrame:
    """These columns of all records; all if None."""
    reader = spark.read.format("taskq").option("targetPartitionBytes", partition_bytes)
    return (reader if schema is None else reader.schema(schema)).load(str(directory))


class Taken(NamedTuple):
    """What a read took, in seconds: by the clock, and of processors."""

    wall: float
    java: float
    python: float


def cpu_of(java: int) -> tuple[float, float]:
    """(seconds that Java took, those of the processes of Python that it began)."""
    found: dict[int, tuple[int, float, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        own, ended = (sum(map(int, values[at : at + 2])) / TICKS for at in (11, 13))
        found[int(path.parent.name)] = int(values[1]), own, ended
    below = {java}
    while more := {pid for pid, (parent, *_) in found.items() if parent in below} - below:
        below |= more
    return found[java][1], sum(sum(found[pid][1:]) for pid in below - {java})


def through_spark(
    spark: SparkSession, directory: Path, partition_bytes: str, schema: str | None = None
) -> Taken:
    """From the plan to the last row, handed to a sink that drops them."""
    before, start = cpu_of(jvm_pid(spark)), time.perf_counter()
    frame = frame_of(spark, directory, partition_bytes, schema)
    frame.write.format("noop").mode("overwrite").save()
    wall, after = time.perf_counter() - start, cpu_of(jvm_pid(spark))
    return Taken(wall, after[0] - before[0], after[1] - before[1])


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
        times: list[float] = []
        taken: dict[str, list[Taken]] = {"all columns": [], TWO: []}
        for _ in range(options.rounds):
            times.append(plain(directory, records))
            for columns, found in taken.items():
                schema = TWO if columns == TWO else None
                found.append(through_spark(spark, directory, options.partition_bytes, schema))
        partitions = frame.rdd.getNumPartitions()
        spark.stop()
    alone = records / median(times)
    spark_rate = records / median([one.wall for one in taken["all columns"]])
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
    costs = Table("CPU seconds of Spark for a million records", ["columns", "Java", "Python"])
    for columns, found in taken.items():
        parts = (median([one[part] for one in found]) * MILLION / records for part in (1, 2))
        costs.row(columns, *(f"{part:.2f}" for part in parts))
    costs.print()
    print(
        f"\nSpark at {spark_rate / alone:.2f} of one process (target {TARGET_RATIO}); "
        f"target {TARGET_PER_SECOND:,} records/s"
    )


if __name__ == "__main__":
    main()
