"""How far a lake is: positions in the logs, and rows about whole logs. No Spark."""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from taskq.arrow import DETAILS, as_bytes
from taskq_plugins.spark.lake import files
from taskq_plugins.spark.lake.store import OPEN, PART, POSITIONS, POSITIONS_APP, RECORDS, Lake

BATCH: Final = "batch"
#: Columns of the logs, and of ``records``.
READ: Final = as_bytes(DETAILS)
RECORD: Final = pa.schema([*READ, pa.field(BATCH, pa.int64()), pa.field(files.DATE, pa.date32())])
#: Columns that the fold and the rows about whole logs need.
_NEEDED: Final = (
    "device", "log_id", "segment", "lsn", "kind", "job_id", "task", "queue", "timestamp", "key",
    "attempt", "priority", "owner", "epoch", "value", "headers", "ts_ns", "job", "cause",
    "attempts_max", "due_ns", "expires_ns", "moments", "flags", "state", "enqueued_ns", "ended_ns",
    "result", "step_ns", "history",
)  # fmt: skip
FOLDED: Final = pa.schema([RECORD.field(name) for name in _NEEDED])
KEPT: Final = pa.schema([*FOLDED, pa.field(PART, pa.string())])
POSITION: Final = pa.schema(
    [(name, pa.string()) for name in ("log_id", "device", "position", "parents")]
)


def positions_of(lake: Lake) -> pa.Table:
    """Return how far each log was read by the last batch of ``records``."""
    version = lake.batch(RECORDS, POSITIONS_APP)
    if version < 0:
        return POSITION.empty_table()
    return Lake(lake.path, {POSITIONS: version}).rows(POSITIONS)


def lineage_of(positions: pa.Table) -> dict[str, list[tuple[str, int]]]:
    """Return the parents of the logs that have any."""
    return {
        row["log_id"]: [(log_id, lsn) for log_id, lsn in json.loads(row["parents"])]
        for row in positions.to_pylist()
        if row["parents"]
    }


def last_records(lake: Lake) -> pa.Table:
    """Return the last record of each log that the tables hold: device, log_id, lsn, ts_ns."""
    rows = log_rows(lake, (pc.field("kind") == files.POSITION) & pc.field("lsn").is_valid())
    rows = rows.select(["device", "log_id", "lsn", "ts_ns"])
    last = rows.group_by("log_id").aggregate([("lsn", "max")]).rename_columns(["log_id", "lsn"])
    return rows.join(last, ["log_id", "lsn"], join_type="left semi")


def log_rows(lake: Lake, where: pc.Expression | None = None) -> pa.Table:
    """Return the rows about whole logs."""
    if not lake.has(OPEN):
        return FOLDED.empty_table()
    files = [file for file in lake.files(OPEN) if file.values[PART] == "log"]
    return lake.rows(OPEN, FOLDED.names, where, files)
