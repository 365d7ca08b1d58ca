"""Lakes that tests fill: by hand, by a run in the session of all tests, or without Java."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from taskq_plugins.spark.lake.state import BATCH, FOLDED, POSITION, RECORD
from taskq_plugins.spark.lake.store import (
    OPEN,
    PARTED,
    POSITIONS,
    POSITIONS_APP,
    RECORDS,
    Lake,
    cleared,
    erased_jobs,
)
from taskq_plugins.spark.run import batch as batches
from taskq_plugins.spark.run import command, frames, pipeline
from taskq_plugins.spark.run.pipeline import RunOptions, update
from taskq_plugins.spark.tables import queries
from taskq_plugins.spark.tables.logs import CONCERNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from taskq_plugins.spark.run.pipeline import Summary
    from taskq_plugins.spark.tables.logs import Lineage

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
#: Columns of a run, and what hangs on the moment at which a table is made.
_BY_RUN: Final = frozenset(
    {BATCH, "record_lag_seconds", "arrival_lag_seconds", "oldest_waiting_seconds"}
)


def put(lake: Lake, name: str, rows: pa.Table, batch: int | None = None) -> None:
    """Let a table have these rows alone; they are of no day, and may change."""
    for column in PARTED.get(name, ()):
        if column not in rows.column_names:
            plain = pa.scalar(False) if column == "is_over" else pa.scalar(None, pa.date32())
            rows = rows.append_column(column, pa.repeat(plain, rows.num_rows))
    with lake.writer() as writer:
        writer.commit(name, writer.write(name, rows), lake.files(name), rows.schema, batch)


def fill(path: Path, **tables: Iterable[dict[str, Any]]) -> Lake:
    lake = Lake.open(path, create=True)
    for name, rows in tables.items():
        columns = COLUMNS[name]
        plain = {column: value for column, (_, value) in columns.items()}
        schema = pa.schema([(column, kind) for column, (kind, _) in columns.items()])
        put(lake, name, pa.Table.from_pylist([plain | row for row in rows], schema))
    return lake


def fold_rows(lake: Lake, records: pa.Table) -> None:
    """Add records as a batch, and fold it without Spark."""
    add_records(lake, records)
    fold_here(lake)


def run(spark: SparkSession | None, journals: Path, lake: Path | str, **options: Any) -> Summary:
    with Lake.open(lake, create=True).writer() as writer:
        session = spark or mock.Mock()  # as within no_spark()
        return update(session, writer, RunOptions(journals=journals, **options))


def rows_of(lake: Path | str, *names: str) -> dict[str, list[str]]:
    """Return the rows of tables, by default of all, in an order of their own."""
    opened = Lake.open(lake)
    made = {}
    for name in names or opened.tables():
        table = opened.dataset(name).to_table()
        plain = table.drop_columns([column for column in table.column_names if column in _BY_RUN])
        rows = plain.select(sorted(plain.column_names)).to_pylist()
        made[name] = sorted(json.dumps(row, default=repr, sort_keys=True) for row in rows)
    return made


def add_records(lake: Lake, records: pa.Table, lineage: Lineage | None = None) -> None:
    """Append records as a batch of their own, as a run does."""
    with lake.writer() as writer:
        number = lake.batch(RECORDS) + 1
        full = {field.name: _column(records, field) for field in RECORD}
        full[BATCH] = pa.repeat(pa.scalar(number, pa.int64()), len(records))
        full["date"] = records["timestamp"].cast(pa.date32())
        parents_rows = [
            {"log_id": log_id, "position": "{}", "parents": json.dumps(parents)}
            for log_id, parents in (lineage or {}).items()
        ]
        positions = writer.write(POSITIONS, pa.Table.from_pylist(parents_rows, POSITION))
        writer.commit(POSITIONS, positions, lake.files(POSITIONS), POSITION)
        versions = {POSITIONS_APP: lake.delta(POSITIONS).version()}
        if lake.has("jobs"):
            versions[batches._JOBS_APP] = lake.delta("jobs").version()
        rows = cleared(pa.table(full, RECORD), erased_jobs(lake))
        files = writer.write(RECORDS, rows)
        writer.commit(RECORDS, files, (), RECORD, number, versions)


def _column(records: pa.Table, field: pa.Field) -> Any:
    if field.name in records.column_names:
        return records[field.name]
    return pa.nulls(len(records), field.type)


def fold_here(lake: Lake) -> None:
    """Fold the last batch of records without Spark: its steps run in this process."""
    with no_spark(), lake.writer() as writer:
        batches.fold_batch(mock.Mock(), writer)


def on_executors(_spark: object, step: Any, parts: Any) -> list[Any]:
    return [item for part in parts for item in step(part)]


def _touched(_spark: object, batch: batches._Batch) -> pa.Table:
    lake = batch.lake
    kinds = pc.field("kind").isin(sorted(CONCERNING))
    rows = [
        lake.rows(RECORDS, FOLDED.names, kinds & (pc.field(BATCH) == batch.number), batch.files)
    ]
    kept = (
        lake.rows(OPEN, FOLDED.names, None, batch.hits[OPEN])
        if batch.hits[OPEN]
        else rows[0].slice(0, 0)
    )
    rows.append(kept.filter(batches._are_in(kept, batch.touched)))
    if batch.born:
        every = lake.rows(RECORDS, FOLDED.names, kinds)
        kept = (
            lake.rows(OPEN, FOLDED.names, None, batch.open_files)
            if lake.has(OPEN)
            else every.slice(0, 0)
        )
        with duckdb.connect() as duck:
            tables = {"every": every, "kept": kept, "spans": batch.inherited()}
            for name, table in tables.items():
                duck.register(f"{name}_rows", table)
            query = queries.HEIRS.format(**{name: f"{name}_rows" for name in tables})
            heirs = duck.sql(
                f"SELECT DISTINCT ON (child, job, lsn, kind) * FROM ({query})"  # noqa: S608 - ours
            ).to_arrow_table()
        heirs = heirs.set_column(heirs.schema.get_field_index("log_id"), "log_id", heirs["child"])
        rows.append(heirs.select(FOLDED.names).cast(FOLDED))
    return pa.concat_tables(rows)


@contextmanager
def no_spark() -> Iterator[None]:
    """Let this process do what the executors do; steps and derived tables stay empty.

    DuckDB finds a job's heirs.
    """
    instead: tuple[tuple[Any, str, Any], ...] = (
        (frames, "on_executors", on_executors),
        (frames, "on_partitions", lambda rows, step: step(rows)),
        (batches, "_touched_records", _touched),
        (batches, "_with_maps", lambda rows: rows),
        (batches, "_add_steps", _no_steps),
        (pipeline, "refresh_tables", lambda *_: []),
        (command, "spark_session", lambda *_, **__: nullcontext(mock.Mock())),
    )
    with ExitStack() as stack:
        for owner, name, other in instead:
            stack.enter_context(mock.patch.object(owner, name, other))
        yield


def _no_steps(_spark: object, writer: Any, batch: batches._Batch) -> None:
    if writer.lake.batch("steps") < batch.number:
        schema = pa.schema([("place", pa.int64()), ("date", pa.date32())])
        writer.commit("steps", (), (), schema, batch.number)
