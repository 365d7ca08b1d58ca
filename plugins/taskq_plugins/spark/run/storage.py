"""Tables of a lake as Spark's data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.pandas.types import from_arrow_schema

from taskq_plugins.spark.lake.files import DATE, PART_COLUMN
from taskq_plugins.spark.lake.store import Lake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from taskq_plugins.spark.lake import LakeWriter
    from taskq_plugins.spark.lake.files import DataFile, Staged

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
#: Fewer rows than these are gone through sooner than a plan is compiled.
COMPILED_ROWS_MIN: Final = 200_000


def prepare(spark: SparkSession) -> None:
    """Set what reading and writing tables relies on."""
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)


def tune(spark: SparkSession, rows: int) -> None:
    """Have Spark compile its plans to Java where there are rows enough for that to pay.

    Compiling took longer than anything else in a batch of some thousand records, each time.
    """
    spark.conf.set("spark.sql.codegen.wholeStage", str(rows >= COMPILED_ROWS_MIN).lower())


def write_table(writer: LakeWriter, table: str, frame: DataFrame) -> Staged:
    """Write a data frame to files of the table that are durable and in no version of it yet.

    Its columns ``part`` and ``date``, where it has them, say where a row belongs.

    Raises:
        LakeDiskError: the disk failed.
    """
    directory = writer.new_directory(table)
    options = frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    places = [name for name in (PART_COLUMN, DATE) if name in frame.columns]
    options.partitionBy(*places).parquet(str(directory))
    staged = writer.stage(table, directory)
    if staged.schema.names:
        return staged
    # Of no row Spark writes no file where there are days, and so nothing that tells the columns.
    columns = frame.drop(*places).schema
    frame.sparkSession.createDataFrame([], columns).write.mode("append").parquet(str(directory))
    return writer.stage(table, directory)


def read_staged(
    spark: SparkSession, lake: Lake, table: str, staged: Staged, part: str | None = None
) -> DataFrame:
    """What was written, before it is committed; without its days."""
    chosen = (file for file in staged.files if part in {None, file.part})
    return _read(spark, [str(lake.path / table / file.path) for file in chosen], staged.schema)


def read_files(
    spark: SparkSession, lake: Lake, table: str, want: Callable[[DataFile], bool] = lambda _: True
) -> DataFrame:
    """A table from exactly the files of its version, or some of them; without its days.

    Raises:
        LakeError: there is no such table.
        LakeDamaged: a file of it is missing.
    """
    return _read(spark, lake.paths(table, want), _stored(lake.schema(table)))


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
    return _read(spark, opened.paths(name), opened.schema(name), base=opened.path / name)


def _stored(schema: pa.Schema) -> pa.Schema:
    """The columns that its files have: the days stand in their directories' names."""
    index = schema.get_field_index(DATE)
    return schema if index < 0 else schema.remove(index)


def _read(
    spark: SparkSession, paths: Sequence[str], schema: pa.Schema, base: Path | None = None
) -> DataFrame:
    struct = from_arrow_schema(schema)
    if not paths:
        return spark.createDataFrame([], struct)
    # A lake's directory may be called what Spark would take for a pattern.
    reader = spark.read.option("__globPaths__", "false").schema(struct)
    if base is not None:
        reader = reader.option("basePath", str(base))
    return reader.parquet(*paths)
