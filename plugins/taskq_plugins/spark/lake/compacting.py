"""Writing many small files together: a run every minute leaves thousands a day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import dataset, parquet

from taskq_plugins.spark.lake.deltalog import OPTIMIZE
from taskq_plugins.spark.lake.errors import LakeDiskError
from taskq_plugins.spark.lake.files import ROWS_MAX, DataFile, Staged, groups, written
from taskq_plugins.spark.lake.store import Change, LakeWriter
from taskq_plugins.spark.parts import DATE, OVER, PART_COLUMN

#: A file below this is small ...
SMALL_BYTES_MAX: Final = 8 * 1024 * 1024
#: ... and so many of a day are written together: each row is written again a few times at most.
SMALL_FILES_MAX: Final = 32
#: Of a row group in memory, unless a file has less.
GROUP_BYTES_MIN: Final = 16 * 1024 * 1024


def compact(writer: LakeWriter, table: str) -> int:
    """Write the small files of each day of a table together where there are many.

    What the table holds stays as it is. Returns how many files went.

    Raises:
        LakeDiskError: the disk refused; the version before stands.
        LakeDamaged: a file is missing or not whole.
    """
    days: defaultdict[tuple[str, str | None], list[DataFile]] = defaultdict(list)
    for file in writer.lake.data_files(table):
        if _is_small(file):
            days[file.part, file.date].append(file)
    old: list[DataFile] = []
    new: list[DataFile] = []
    for (part, _), small in days.items():
        if len(small) >= SMALL_FILES_MAX:
            old += small
            new += _merged(writer, table, part, small).files
    if old:
        writer.commit(table, Change(tuple(new), tuple(old), operation=OPTIMIZE))
    return len(old)


def _is_small(file: DataFile) -> bool:
    if file.part == OVER:
        return file.size_bytes < SMALL_BYTES_MAX
    return file.rows < ROWS_MAX // 2


def _merged(writer: LakeWriter, table: str, part: str, small: Sequence[DataFile]) -> Staged:
    chosen = frozenset(file.path for file in small)
    paths = writer.lake.paths(table, lambda file: file.path in chosen)
    directory = writer.new_directory(table)
    # As Spark names them, so that they are taken up in the same way.
    below = small[0].path.rpartition("/")[0]
    target = directory / f"{PART_COLUMN}={part}" / below
    schema = writer.lake.schema(table)
    if below:
        schema = schema.remove(schema.get_field_index(DATE))
    try:
        target.mkdir(parents=True)
        rows_max = None if part == OVER else ROWS_MAX
        _copy(paths, schema, target, rows_max)
    except OSError as error:
        raise LakeDiskError(directory, error) from error
    return writer.stage(table, directory)


def _copy(paths: Sequence[str], schema: pa.Schema, target: Path, rows_max: int | None) -> None:
    small = dataset.dataset(list(paths), schema=schema, format="parquet")
    total = rows = 0

    def number(batch: pa.RecordBatch) -> int:
        nonlocal total, rows
        total += batch.nbytes
        rows += batch.num_rows
        # Compressed, a file has about a fifth of it.
        return int(total // (SMALL_BYTES_MAX * 10)) if rows_max is None else rows // rows_max

    # One at a time: what is read ahead would be most of what a run that is kept open needs.
    ahead = small.to_batches(batch_readahead=1, fragment_readahead=1, use_threads=False)
    for index, batches in groupby(ahead, number):
        with parquet.ParquetWriter(target / f"{index}.parquet", schema, **written(schema)) as file:
            # Each row group has statistics of every column.
            for group in groups(batches, GROUP_BYTES_MIN):
                file.write_table(pa.Table.from_batches(group, schema))
