"""Rows of the tables that a test writes by hand: only what matters to it, the rest is plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

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
        "enqueued_in": log_id,
        "settled_in": log_id,
        "is_over": shown.get("state") in {"succeeded", "cancelled", "expired"},
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


def tables(spark: SparkSession, **rows: Iterable[dict[str, Any]]) -> dict[str, DataFrame]:
    """Return frames of these rows; a column that a row does not name is null."""
    from taskq_plugins.spark.run.batch import SCHEMAS  # noqa: PLC0415 - 1 s to import
    from taskq_plugins.spark.run.derived import READ, SEGMENTS  # noqa: PLC0415

    schemas = {"jobs": SCHEMAS["jobs"], "attempts": SCHEMAS["attempts"]}
    schemas |= {"segments": SEGMENTS, "read": READ}
    return {
        name: spark.createDataFrame(pa.Table.from_pylist(list(rows.get(name, ())), schema))
        for name, schema in schemas.items()
    }


def rollup_hour(
    spark: SparkSession, frames: dict[str, DataFrame], hours: Iterable[int] | None = None
) -> pa.Table:
    """Return the rollups of such rows, by default of all hours."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - 1 s to import

    from taskq_plugins.spark.tables import queries  # noqa: PLC0415

    jobs, attempts = (frames[name].withColumn("sign", sql.lit(1)) for name in ("jobs", "attempts"))
    events = spark.sql(queries.EVENTS, jobs=jobs, attempts=attempts)
    if hours is not None:
        events = events.where(sql.col("hour").isin(list(hours)))
    return spark.sql(queries.ROLLUP_HOUR, events=events).toArrow()
