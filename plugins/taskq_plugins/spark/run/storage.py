"""Tables of a lake as Spark's data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.pandas.types import from_arrow_schema

from taskq_plugins.spark.lake.staging import PART_COLUMN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from taskq_plugins.spark.lake import Lake, LakeWriter, Manifest
    from taskq_plugins.spark.lake.manifest import DataFile
    from taskq_plugins.spark.lake.staging import Staged

#: Settings that make Spark write what pyarrow reads as it was: times in UTC to the microsecond.
SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
    # No listing job: the manifest has told which files there are.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.files.ignoreMissingFiles": "false",
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


def write_table(writer: LakeWriter, table: str, frame: DataFrame, *, parts: bool = False) -> Staged:
    """Write a data frame to files of the table that are durable and in no manifest yet.

    With ``parts`` its column ``part`` says which part a row belongs to.

    Raises:
        LakeDiskError: the disk failed.
    """
    directory = writer.new_directory(table)
    options = frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    if parts:
        options = options.partitionBy(PART_COLUMN)
    options.parquet(str(directory))
    staged = writer.stage(table, directory)
    if staged.schema:
        return staged
    # Of no row Spark writes no file where there are parts, and so nothing that tells the columns.
    columns = frame.drop(PART_COLUMN).schema
    frame.sparkSession.createDataFrame([], columns).write.mode("append").parquet(str(directory))
    return writer.stage(table, directory)


def read_staged(
    spark: SparkSession, lake: Lake, staged: Staged, part: str | None = None
) -> DataFrame:
    """What was written, before it is committed."""
    paths = [str(lake.path / file.path) for file in staged.files if part in {None, file.part}]
    return _read(spark, paths, staged.schema)


def read_table(
    spark: SparkSession,
    lake: Lake,
    table: str,
    part: str | None = None,
    manifest: Manifest | None = None,
    want: Callable[[DataFile], bool] | None = None,
) -> DataFrame:
    """A table, or a part of it, from exactly the files that the manifest names.

    Raises:
        LakeError: there is no such table.
        LakeDamaged: a file of it is missing.
    """
    chosen = manifest or lake.manifest()
    lake.schema(table, chosen)
    return _read(spark, lake.files(table, part, chosen, want), chosen.table(table).schema)


def _read(spark: SparkSession, paths: Sequence[str], schema: bytes) -> DataFrame:
    import pyarrow as pa  # noqa: PLC0415 - pyspark has loaded it by now

    struct = from_arrow_schema(pa.ipc.read_schema(pa.py_buffer(schema)))
    if not paths:
        return spark.createDataFrame([], struct)
    # A lake's directory may be called what Spark would take for a pattern.
    return spark.read.option("__globPaths__", "false").schema(struct).parquet(*paths)
