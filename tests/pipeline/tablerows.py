"""Rows of the tables that a test writes by hand: only what matters to it, the rest is plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from taskq.arrow import DETAILS
from taskq.arrow.schema import as_bytes
from taskq_plugins.spark.run.progress import READ
from taskq_plugins.spark.tables.aggregates import SEGMENTS
from taskq_plugins.spark.tables.fold import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable

SECOND: Final = 1_000_000_000
HOUR: Final = 3_600 * SECOND
#: 2024-05-01, 12:00 UTC, and its number of hours since 1970.
NOON: Final = 1_714_564_800 * SECOND
NOON_HOUR: Final = NOON // HOUR


def job(number: int, /, **shown: Any) -> dict[str, Any]:
    """Return a row of ``jobs``: a job of device "d1" that was enqueued at noon and is ready."""
    device = shown.get("device", "d1")
    log_id = shown.get("log_id", f"log-{device}")
    plain = {
        "device": device,
        "log_id": log_id,
        "job_id": f"{log_id}-{number}",
        "job": number,
        "queue": "default",
        "task": "app.send",
        "priority": 5,
        "state": "ready",
        "attempt": 0,
        "enqueued_ns": NOON,
        "attempts": [],
    }
    return plain | shown


def attempt(number: int, /, **shown: Any) -> dict[str, Any]:
    """Return a row of ``attempts``: of the job of this number, succeeded a second after noon."""
    device = shown.get("device", "d1")
    log_id = shown.get("log_id", f"log-{device}")
    plain = {
        "device": device,
        "log_id": log_id,
        "job_id": f"{log_id}-{number}",
        "job": number,
        "queue": "default",
        "task": "app.send",
        "number": 1,
        "owner": f"{1:016x}",
        "ended_ns": NOON + SECOND,
        "outcome": "succeeded",
    }
    return plain | shown | {"owner": f"{shown.get('owner', 1):016x}"}


def tried(outcome: str, owner: int, reason: str | None = None, **shown: Any) -> dict[str, Any]:
    """Return an attempt within a row of ``jobs``."""
    plain = {"number": 1, "owner": f"{owner:016x}", "started_ns": NOON, "ended_ns": NOON + SECOND}
    return plain | {"outcome": outcome, "reason": reason} | shown


def tables(**rows: Iterable[dict[str, Any]]) -> duckdb.DuckDBPyConnection:
    """Yield DuckDB with tables of these rows; a column that a row does not name is null."""
    made = rows_of(as_bytes(DETAILS).empty_table(), {})
    schemas = {"jobs": made.jobs.schema, "attempts": made.attempts.schema}
    schemas |= {"segments": SEGMENTS, "read": READ}
    duck = duckdb.connect(":memory:")
    duck.execute("SET TimeZone = 'UTC'")
    for name, schema in schemas.items():
        duck.register(name, pa.Table.from_pylist(list(rows.get(name, ())), schema))
    return duck
