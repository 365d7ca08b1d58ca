"""Spark's part of a run: tables of a lake as frames, and steps on the executors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from taskq_plugins.spark.lake.files import DataFile, Folder, is_address, write_rows
from taskq_plugins.spark.lake.store import PARTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from taskq_plugins.spark.lake.store import Lake

T = TypeVar("T")
R = TypeVar("R")
_RESULT = "result binary"
#: Fewer rows are one partition: Spark shuffles nothing then, and a shuffle costs more than they do.
_FEW_ROWS: Final = 100_000


def frame(
    spark: SparkSession,
    lake: Lake,
    table: str,
    files: Sequence[DataFile] | None = None,
    schema: pa.Schema | None = None,
) -> DataFrame:
    """Return rows of a table's files, by default of all; the order of the columns may be any.

    Spark reads a directory by itself, without Delta's jar. In object storage it would need jars for
    that: there Python reads on the executors.

    Args:
        spark: the session.
        lake: that has the table.
        table: its name; it need not be there.
        files: of the table.
        schema: of the table, if it may not be there.
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
        # A lake's directory may be called what Spark would take for a pattern.
        reader = spark.read.option("__globPaths__", "false").option("basePath", folder.uri)
        rows = reader.schema(struct).parquet(*(f"{folder.uri}/{file.path}" for file in chosen))
        return few(rows, chosen)
    parted = PARTED.get(table, ())
    plain = pa.schema([field for field in columns if field.name not in parted])

    def read(file: DataFile) -> Iterator[pa.RecordBatch]:
        rows = file.placed(folder.rows([file], plain), columns)
        yield from rows.to_batches(max_chunksize=10_000)

    return of_parts(spark, read, chosen, struct)


def few(rows: DataFrame, files: Iterable[DataFile]) -> DataFrame:
    """Return the rows, in one partition if the files that they come from have few."""
    return rows.coalesce(1) if sum(file.rows for file in files) < _FEW_ROWS else rows


def local(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return rows of the driver's as a frame of one partition."""
    return spark.createDataFrame(rows).coalesce(1)


def of_parts(
    spark: SparkSession,
    step: Callable[[T], Iterator[pa.RecordBatch]],
    parts: Sequence[T],
    columns: StructType | str,
) -> DataFrame:
    """Return the rows that a step makes of each part, in a task each."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from step(parts[number])

    return spark.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(work, columns)


def on_executors(spark: SparkSession, step: Callable[[T], list[R]], parts: Sequence[T]) -> list[R]:
    """Run a step for each part, a task each, and return what the steps return, as one list."""
    if not parts:
        return []
    return gathered(of_parts(spark, lambda part: results([step(part)]), parts, _RESULT))


def on_partitions(rows: DataFrame, step: Callable[[pa.Table], list[R]]) -> list[R]:
    """Run a step for all rows of each partition, and return what the steps return."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        there = list(batches)
        return results([step(pa.Table.from_batches(there))] if there else [])

    return gathered(rows.mapInArrow(work, _RESULT))


def stage(
    rows: DataFrame,
    folder: Folder,
    parted: Sequence[str],
    finish: Callable[[pa.Table], pa.Table] = lambda table: table,
) -> tuple[list[DataFile], pa.Schema]:
    """Write the rows of a frame into a table's directory, by the executors.

    Args:
        rows: of the frame.
        folder: of the table.
        parted: the columns that the table is partitioned by.
        finish: adds columns that SQL has no function for.
    """
    plain: pa.Schema = to_arrow_schema(rows.schema, timezone="UTC")

    def write(table: pa.Table) -> list[DataFile]:
        return write_rows(folder, finish(table.select(plain.names).cast(plain)), parted)

    return on_partitions(rows, write), finish(plain.empty_table()).schema


def results(made: Iterable[list[Any]]) -> Iterator[pa.RecordBatch]:
    for result in made:
        yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})


def gathered(rows: DataFrame) -> list[Any]:
    return [item for row in rows.collect() for item in pickle.loads(row[0])]  # noqa: S301 - our executors made it
