"""A batch folded in shares: each takes the jobs of a range of numbers, and writes files. No Spark.

A share runs wherever it can read and write the lake's files: here, or on an executor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, parquet

from taskq_plugins.spark.lake.files import placed, write_rows
from taskq_plugins.spark.lake.store import OPEN_RECORDS
from taskq_plugins.spark.run.tablenames import ATTEMPTS, JOBS
from taskq_plugins.spark.tables.batches import KEYS, logs_of, rows_of
from taskq_plugins.spark.tables.fold import CONCERNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from taskq_plugins.spark.lake.files import DataFile


class Share(NamedTuple):
    """What one share reads, and where it writes."""

    number: int
    #: the jobs from the first number on, before the last; None: no bound
    first: int | None
    last: int | None
    #: files of the batch's records, with their columns
    records: tuple[str, ...]
    columns: pa.Schema
    #: files that tell of logs as a whole, and which jobs are touched
    logs: str
    touched: str
    #: by table: the directory, and the files that hold rows of touched jobs
    tables: Mapping[str, Path]
    files: Mapping[str, Sequence[DataFile]]
    #: by table: where to write
    targets: Mapping[str, Path]


def fold_share(share: Share) -> None:
    """Fold the share's jobs, and write their rows beside those of the same files that stay."""
    logs = logs_of(parquet.read_table(share.logs))
    touched = parquet.read_table(share.touched)
    kept: dict[str, list[pa.Table]] = {table: [] for table in share.files}
    records = [_records(share)]
    for table, files in share.files.items():
        for file in files:
            path = share.tables[table] / file.path
            rows = parquet.read_table(path, partitioning=None, filters=_range(share))
            is_touched = touched_rows(rows, touched)
            if table == OPEN_RECORDS:
                records.append(rows.filter(is_touched).cast(share.columns))
            kept[table].append(placed(rows.filter(pc.invert(is_touched)), file))
    made = rows_of(pa.concat_tables(records), logs)
    for table, rows in ((JOBS, made.jobs), (ATTEMPTS, made.attempts), (OPEN_RECORDS, made.kept)):
        others = (one.select(rows.column_names).cast(rows.schema) for one in kept[table])
        write_rows(pa.concat_tables([*others, rows]), share.targets[table], share.number)


def fold_all(shares: Iterable[Share]) -> None:
    """Fold them one after the other, here."""
    for share in shares:
        fold_share(share)


def touched_rows(rows: pa.Table, touched: pa.Table) -> pa.Array:
    """Which rows are of these jobs."""
    keys = rows.select(KEYS).append_column("row", pa.array(np.arange(rows.num_rows)))
    found = keys.join(touched, KEYS, join_type="left semi")["row"]
    mask = np.zeros(rows.num_rows, dtype=bool)
    mask[found.to_numpy()] = True
    return pa.array(mask)


def _records(share: Share) -> pa.Table:
    if not share.records:
        return share.columns.empty_table()
    found = dataset.dataset(list(share.records), schema=share.columns, format="parquet")
    concerning = pc.field("kind").isin(sorted(CONCERNING))
    within = _range(share)
    return found.to_table(filter=concerning if within is None else concerning & within)


def _range(share: Share) -> pc.Expression | None:
    job = pc.field("job")
    if share.first is None:
        return None if share.last is None else job < share.last
    return job >= share.first if share.last is None else (job >= share.first) & (job < share.last)
