"""Two lakes held against each other, row by row, as pyarrow reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

from taskq_plugins.spark.lake.store import Lake

#: Columns that identify a row of a table.
KEYS: Final = {
    "records": ("log_id", "branch", "epoch", "lsn"),
    "jobs": ("log_id", "job"),
    "attempts": ("log_id", "job", "number", "started_ns"),
    "rollup_hour": ("device", "queue", "task", "hour"),
    "failures": ("fingerprint",),
    "duplicates": ("queue", "key"),
    "device_lag": ("log_id",),
    "breaks": ("log_id", "kind", "lsn"),
    "steps": ("log_id", "branch", "job", "place"),
    "erased": ("job_id",),
    "_open": ("log_id", "branch", "job", "kind", "segment", "lsn"),
}
#: Columns with the moment at which the table was made.
_OF_THE_MOMENT: Final = (
    "record_lag_seconds", "arrival_lag_seconds", "oldest_waiting_seconds", "erased_at",
)  # fmt: skip


def rows_of_equal_tables(item: Path, other: Path) -> dict[str, int]:
    """Return how many rows each table has, in either lake.

    Raises:
        AssertionError: a row differs, is missing or stands twice.
    """
    counts = {}
    names = set(Lake.open(item).tables())
    assert {"records", "jobs", "attempts"} <= names == set(Lake.open(other).tables())
    for name, keys in KEYS.items():
        if name not in {*names, "_open"}:
            continue
        left, right = (_sorted(Lake.open(path), name, keys) for path in (item, other))
        assert left.num_rows == right.num_rows, (name, left.num_rows, right.num_rows)
        assert left.group_by(list(keys)).aggregate([]).num_rows == left.num_rows, name
        assert left.equals(right), name
        counts[name] = left.num_rows
    return counts


def _sorted(lake: Lake, name: str, keys: tuple[str, ...]) -> pa.Table:
    rows: pa.Table = lake.dataset(name).to_table()
    rows = rows.drop_columns([column for column in _OF_THE_MOMENT if column in rows.column_names])
    return rows.sort_by([(key, "ascending") for key in keys])
