"""Tables of a lake as Spark's data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from taskq_plugins.spark.lake.store import RECORDS, Lake
from taskq_plugins.spark.parts import DATE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from taskq_plugins.spark.lake import LakeWriter
    from taskq_plugins.spark.lake.files import Staged

#: Settings that make Spark write what pyarrow reads as it was: times in UTC to the microsecond.
SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
    # No listing job: the table's log has told which files there are.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Rows of a few days need no sorting by day before they are written.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
}


def prepare(spark: SparkSession) -> None:
    """Set what reading and writing tables relies on."""
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)


def write_records(writer: LakeWriter, frame: DataFrame) -> Staged:
    """Write records, by day, to files that are durable and in no version of their table yet.

    Raises:
        LakeDiskError: the disk failed.
    """
    directory = writer.new_directory(RECORDS)
    dated = frame.withColumn(DATE, frame["timestamp"].cast("date"))
    dated.write.partitionBy(DATE).parquet(str(directory))
    # Of no row Spark writes no file that tells the columns.
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    return writer.stage(RECORDS, directory)._replace(schema=schema)


def read_table(
    spark: SparkSession, lake: Lake | Path | str, name: str, version: int | None = None
) -> DataFrame:
    """A table of a lake where Spark has no jar of Delta: from exactly the files of a version.

    Args:
        spark: the session.
        lake: its directory.
        name: of the table.
        version: of the table; the newest if None.

    Raises:
        LakeError: there is no such table.
        LakeDamaged: a file of it is missing.
    """
    opened = lake if isinstance(lake, Lake) else Lake.open(lake)
    if version is not None:
        opened = Lake(opened.path, {name: version})
    struct = from_arrow_schema(opened.schema(name))
    paths = opened.paths(name)
    if not paths:
        return spark.createDataFrame([], struct)
    # A lake's directory may be called what Spark would take for a pattern.
    reader = spark.read.option("__globPaths__", "false").option("basePath", str(opened.path / name))
    return reader.schema(struct).parquet(*paths)
