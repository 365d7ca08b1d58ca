"""Small lakes that a test fills by hand, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet

from taskq_plugins.spark.lake.files import OVER
from taskq_plugins.spark.lake.store import Change, Lake, LakeBatch, tombstones
from taskq_plugins.spark.run.batch import commit_batch, stage_records, write_records
from taskq_plugins.spark.run.executor import LocalExecutor

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_TIME: Final = pa.timestamp("us", "UTC")
_TEXT: Final = pa.list_(pa.string())
_OUTCOMES: Final = ("succeeded", "retried", "dead", "released", "lost", "ended")
_COUNTS: Final = (
    *("enqueued", "succeeded", "dead", "cancelled", "expired", "settled"),
    *(f"attempts_{name}" for name in _OUTCOMES),
)
#: Columns of the tables that are read without Spark, and what they hold unless told otherwise.
COLUMNS: Final[dict[str, dict[str, tuple[pa.DataType, Any]]]] = {
    "rollup_hour": {
        "device": (pa.string(), "d1"),
        "queue": (pa.string(), "default"),
        "task": (pa.string(), "app.send"),
        "hour": (_TIME, None),
        **{name: (pa.int64(), 0) for name in _COUNTS},
    },
    "attempts": {
        "device": (pa.string(), "d1"),
        "task": (pa.string(), "app.send"),
        "ended_ns": (pa.int64(), None),
        "wait_ns": (pa.int64(), None),
        "run_ns": (pa.int64(), None),
    },
    "device_lag": {"device": (pa.string(), "d1"), "clock": (pa.string(), "ok")},
    "jobs": {
        "job_id": (pa.string(), None),
        "task": (pa.string(), "app.send"),
        "state": (pa.string(), "dead"),
        "reason": (pa.string(), None),
    },
    "failures": {
        "fingerprint": (pa.string(), "0"),
        "task": (pa.string(), "app.send"),
        "pattern": (pa.string(), "ValueError: <n>"),
        **{
            name: (pa.int64(), 1)
            for name in ("failed_attempts", "jobs", "dead_jobs", "devices", "workers")
        },
        "first_seen": (_TIME, datetime(2024, 5, 1, tzinfo=UTC)),
        "last_seen": (_TIME, datetime(2024, 5, 1, tzinfo=UTC)),
        "queues": (_TEXT, ["default"]),
        "example_device": (pa.string(), "d1"),
        "example_job_id": (pa.string(), "0123abcd-7"),
        "example_reason": (pa.string(), "ValueError: 7"),
        "poison_jobs": (pa.int64(), 0),
        "poison": (pa.bool_(), False),
        "poison_job_ids": (_TEXT, []),
    },
}


def put(
    lake: Lake, name: str, rows: pa.Table, batch: LakeBatch | None = None, part: str = OVER
) -> None:
    with lake.writer() as writer:
        directory = writer.new_directory(name) / f"part={part}"
        directory.mkdir(parents=True)
        parquet.write_table(rows, directory / "rows.parquet")
        staged = writer.stage(name, directory.parent)
        old = tuple(lake.data_files(name))
        writer.commit(name, Change(staged.files, old, staged.schema), batch)


def fill(path: Path, **tables: Iterable[dict[str, Any]]) -> Lake:
    lake = Lake.open(path, create=True)
    for name, rows in tables.items():
        columns = COLUMNS[name]
        plain = {column: value for column, (_, value) in columns.items()}
        schema = pa.schema([(column, kind) for column, (kind, _) in columns.items()])
        put(lake, name, pa.Table.from_pylist([plain | row for row in rows], schema))
    return lake


def fold_rows(lake: Lake, records: pa.Table, number: int, offsets: str = "") -> None:
    batch = LakeBatch("s", number, offsets)

    def write(target: Path) -> None:
        write_records(records, target, 0, tombstones(lake))

    with lake.writer() as writer:
        staged = stage_records(writer, write, records.schema)
        commit_batch(writer, staged, batch, LocalExecutor())
