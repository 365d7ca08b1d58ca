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

    Spark reads exactly the files that the table's log names.

    Args:
        spark: the session.
        lake: the lake's directory.
        name: name of the table.
        version: Delta's version of the table; None for the newest.

    Raises:
        LakeError: the lake, table or version does not exist.
    """
    from taskq_plugins.spark.lake.store import Lake  # noqa: PLC0415 - it imports pyarrow
    from taskq_plugins.spark.run.frames import frame  # noqa: PLC0415 - it imports pyspark

    opened = Lake.open(lake)
    if version is not None:
        opened = Lake(opened.path, {name: version})
    opened.paths(name)  # checks that each file exists within the lake
    return frame(spark, opened, name)
