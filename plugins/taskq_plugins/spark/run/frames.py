"""Spark's part of a run: tables of a lake as data frames, and steps on executors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from taskq_plugins.spark.lake.files import DataFile, Folder, is_address, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from taskq_plugins.spark.lake.store import Lake

T = TypeVar("T")
R = TypeVar("R")
_RESULT = "result binary"
#: Fewer rows form one partition, without a shuffle, which would cost more than the rows.
_FEW_ROWS: Final = 100_000


def frame(
    spark: SparkSession,
    lake: Lake,
    table: str,
    files: Sequence[DataFile] | None = None,
    schema: pa.Schema | None = None,
) -> DataFrame:
    """Return rows of a table's files, by default of all; columns may have any order.

    Spark reads files of a directory without Delta's jar. For object storage it would need further
    jars, so Python reads the files on the executors.

    Args:
        spark: the session.
        lake: lake of the table.
        table: name of the table, which may be missing.
        files: files of the table.
        schema: schema of the table, if it may be missing.
    """
    chosen = lake.files(table) if files is None else files
    columns = lake.schema(table) if lake.has(table) else schema
    if columns is None:
        columns = lake.schema(table)  # raises
    struct = from_arrow_schema(columns)
    if not chosen:
        return local(spark, columns.empty_table())
    folder = lake.folder.below(table)
    if not is_address(lake.path):
        # Spark could take the name of the lake's directory for a pattern.
        reader = spark.read.option("__globPaths__", "false").option("basePath", folder.uri)
        rows = reader.schema(struct).parquet(*(f"{folder.uri}/{file.path}" for file in chosen))
        return few(rows, chosen)

    def read(file: DataFile) -> Iterator[pa.RecordBatch]:
        yield from folder.rows([file], columns).to_batches(max_chunksize=10_000)

    return of_parts(spark, read, chosen, struct)


def few(rows: DataFrame, files: Iterable[DataFile]) -> DataFrame:
    """Return the rows, in one partition if their files have few rows."""
    return rows.coalesce(1) if sum(file.rows for file in files) < _FEW_ROWS else rows


def local(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return the driver's rows as a data frame of one partition."""
    return spark.createDataFrame(rows).coalesce(1)


def of_parts(
    spark: SparkSession,
    step: Callable[[T], Iterator[pa.RecordBatch]],
    parts: Sequence[T],
    columns: StructType | str,
) -> DataFrame:
    """Return the rows that a step makes from each part, in one Spark task for each."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from step(parts[number])

    return spark.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(work, columns)


def on_executors(spark: SparkSession, step: Callable[[T], list[R]], parts: Sequence[T]) -> list[R]:
    """Run a step for each part, in one Spark task for each; return all results as one list."""
    if not parts:
        return []
    return gathered(of_parts(spark, lambda part: results([step(part)]), parts, _RESULT))


def on_partitions(rows: DataFrame, step: Callable[[pa.Table], list[R]]) -> list[R]:
    """Run a step on the rows of each partition; return all results as one list."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        there = list(batches)
        return results([step(pa.Table.from_batches(there))] if there else [])

    return gathered(rows.mapInArrow(work, _RESULT))


def stage(
    rows: DataFrame, folder: Folder, parted: Sequence[str]
) -> tuple[list[DataFile], pa.Schema]:
    """Write a data frame into a table's directory, on the executors.

    Args:
        rows: the data frame.
        folder: directory of the table.
        parted: partition columns of the table.
    """
    plain: pa.Schema = to_arrow_schema(rows.schema, timezone="UTC")

    def write(table: pa.Table) -> list[DataFile]:
        return write_rows(folder, table.select(plain.names).cast(plain), parted)

    return on_partitions(rows, write), plain


def results(made: Iterable[list[Any]]) -> Iterator[pa.RecordBatch]:
    for result in made:
        yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})


def gathered(rows: DataFrame) -> list[Any]:
    return [item for row in rows.collect() for item in pickle.loads(row[0])]  # noqa: S301 - from our executors
