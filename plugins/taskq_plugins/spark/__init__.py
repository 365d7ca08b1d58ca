"""The data pipeline: task logs on Spark. Importing this package imports no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def read_table(
    spark: SparkSession, lake: Path | str, name: str, version: int | None = None
) -> DataFrame:
    """Read a table of a lake in a session that has no jar of Delta.

    Spark is given exactly the files that the table's log names.

    Args:
        spark: the session.
        lake: the lake's directory.
        name: of the table.
        version: of the table, as Delta counts; the newest if None.

    Raises:
        LakeError: there is no such lake, table or version.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - whoever has a session

    from taskq_plugins.spark.lake.store import Lake  # noqa: PLC0415 - it imports pyarrow

    opened = Lake.open(lake)
    if version is not None:
        opened = Lake(opened.path, {name: version})
    struct = from_arrow_schema(opened.schema(name))
    paths = opened.paths(name)
    if not paths:
        return spark.createDataFrame([], struct)
    # A lake's directory may be called what Spark would take for a pattern.
    reader = spark.read.option("__globPaths__", "false").option("basePath", str(opened.path / name))
    return reader.schema(struct).parquet(*paths)
