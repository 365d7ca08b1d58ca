"""Writing many small files together: a run every minute leaves thousands a day."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import dataset, parquet

from taskq_plugins.spark.lake.errors import LakeDiskError
from taskq_plugins.spark.lake.manifest import OVER, Change
from taskq_plugins.spark.lake.staging import PART_COLUMN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskq_plugins.spark.lake.manifest import DataFile
    from taskq_plugins.spark.lake.store import LakeWriter

#: A file below this is small ...
SMALL_BYTES_MAX: Final = 8 * 1024 * 1024
#: ... and so many of a table are written together: each row is written again a few times at most.
SMALL_FILES_MAX: Final = 32
#: Files that are written together at a time, so that what a run may cost is bounded.
_MERGED_FILES_MAX: Final = 1_024


def merge_small_files(writer: LakeWriter, tables: Sequence[str]) -> int:
    """Write the small files of these tables together where there are many; returns how many went.

    Only rows that no batch replaces are moved. What a table holds stays as it is, and so does the
    version that its files count from, so nothing is computed anew.

    Raises:
        LakeDiskError: the disk refused; the version before stands.
        LakeDamaged: a file is missing or not whole.
    """
    changes: dict[str, Change] = {}
    manifest = writer.lake.manifest()
    for table in tables:
        small = [
            file
            for file in manifest.table(table).files
            if file.part == OVER and file.size_bytes < SMALL_BYTES_MAX
        ]
        if len(small) >= SMALL_FILES_MAX:
            changes[table] = _merged(writer, table, small[:_MERGED_FILES_MAX])
    if changes:
        writer.commit(changes)
    return sum(len(change.removed) for change in changes.values())


def _merged(writer: LakeWriter, table: str, files: Sequence[DataFile]) -> Change:
    lake = writer.lake
    chosen = frozenset(file.path for file in files)
    paths = lake.files(table, want=lambda file: file.path in chosen)
    directory = writer.new_directory(table)
    target = directory / f"{PART_COLUMN}={OVER}"
    try:
        target.mkdir(parents=True)
        _copy(paths, lake.schema(table), f"{target}/merged")
    except OSError as error:
        raise LakeDiskError(directory, error, lake.manifest().version) from error
    staged = writer.stage(table, directory)
    version = max(file.version for file in files)
    added = tuple(file._replace(version=version) for file in staged.files)
    return Change(added, removed=chosen)


def _copy(paths: Sequence[str], schema: pa.Schema, stem: str) -> None:
    """Into files of about the size from which on they are no longer small."""
    found = dataset.dataset(list(paths), schema=schema, format="parquet")
    sizes = {"bytes": 0}

    def number(batch: pa.RecordBatch) -> int:
        sizes["bytes"] += batch.nbytes
        # Compressed, a file has about a fifth of it.
        return int(sizes["bytes"] // (SMALL_BYTES_MAX * 10))

    for index, batches in groupby(found.to_batches(), number):
        path = f"{stem}-{index}.parquet"
        with parquet.ParquetWriter(path, schema, compression="zstd") as file:
            for batch in batches:
                file.write_batch(batch)
