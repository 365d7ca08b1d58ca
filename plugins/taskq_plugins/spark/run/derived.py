"""Tables that are computed from others by Spark SQL, once at the end of a run.

Each commit names its batch and the versions of jobs and attempts that it was made of. From then on
rollups are computed again for hours with other events than before, failures for tasks with other
failures, and duplicates for keys that ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql

from taskq.arrow import BREAK
from taskq.engine import FailureKind
from taskq_plugins.spark.lake.state import last_records, log_rows
from taskq_plugins.spark.lake.store import ATTEMPTS, DERIVED, JOBS, PARTED, ROLLUP
from taskq_plugins.spark.run import frames
from taskq_plugins.spark.source.plan import COMPACTION
from taskq_plugins.spark.tables import queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from taskq_plugins.spark.lake.files import DataFile
    from taskq_plugins.spark.lake.store import Lake, LakeWriter

_APPS: Final = {JOBS: "taskq-jobs", ATTEMPTS: "taskq-attempts"}
#: The columns that say on which days a row counts.
_MOMENTS: Final = {JOBS: ("enqueued_ns", "settled_ns"), ATTEMPTS: ("ended_ns",)}
_HOUR_NS: Final = 3_600 * 1_000_000_000
_DAY_HOURS: Final = 24
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Columns of the jobs and attempts that a table is made of, and which rows they are.
_FROM: Final = {
    "failures": {
        JOBS: (
            "state = 'dead'",
            ["log_id", "job_id", "queue", "reason", "settled_ns", "continued_in"],
        ),
        ATTEMPTS: (
            "outcome IN ('retried', 'dead', 'lost')",
            ["log_id", "job_id", "number", "owner", "outcome", "ended_ns", "reason"],
        ),
    },
    "duplicates": {
        JOBS: (
            "key IS NOT NULL AND first_started_ns IS NOT NULL",
            ["log_id", "job_id", "task", "state", "first_started_ns", "continued_in"],
        )
    },
}
#: Group columns of such a table: a row depends only on rows with the same values.
_APART: Final = {"failures": ["task"], "duplicates": ["queue", "key"]}
#: One row per segment file of every log on the hub, and one per gap: with ``is_missing`` only
#: device, log_id and segment (the first lsn that is not there) are known.
SEGMENTS: Final = pa.schema(
    [
        ("device", pa.string()), ("log_id", pa.string()), ("segment", pa.int64()),
        ("size_bytes", pa.int64()), ("modified_ns", pa.int64()), ("last_record_ns", pa.int64()),
        ("is_missing", pa.bool_()),
    ]
)  # fmt: skip
#: Last record of each log in the tables.
READ: Final = pa.schema([("device", pa.string()), ("log_id", pa.string()), ("ts_ns", pa.int64())])
DECLARED: Final = pa.schema(
    [
        ("device", pa.string()), ("log_id", pa.string()), ("kind", pa.string()),
        ("lsn", pa.int64()), ("goes_on_lsn", pa.int64()), ("end_lsn", pa.int64()),
        ("cause", pa.string()),
    ]
)  # fmt: skip


class Outside(NamedTuple):
    """What some tables need beside the lake: of the logs, and the time.

    Attributes:
        segments: as ``SEGMENTS``.
        declared: breaks that a hub's devices declared, as ``DECLARED``.
        at_ns: when that was so.
    """

    segments: Sequence[Mapping[str, Any]] = ()
    declared: Sequence[Mapping[str, Any]] = ()
    at_ns: int = 0


def refresh_tables(
    spark: SparkSession,
    writer: LakeWriter,
    names: Iterable[str],
    outside: Outside,
    on_table: Callable[[str], None] = lambda _: None,
    since: str = "",
) -> list[str]:
    """Compute the outdated derived tables and commit each; return their names.

    Args:
        spark: the session.
        writer: of the lake.
        names: tables to compute.
        outside: what they need beside the lake.
        on_table: called with each name first.
        since: the first day of which all jobs and attempts are there; rollups of days before it
            stay as they are.
    """
    lake, number = writer.lake, writer.lake.batch()
    wanted = frozenset(names)
    behind: list[str] = [name for name in DERIVED if name in wanted and lake.batch(name) < number]
    changes = _Changes(spark, lake)
    versions = {app: lake.delta(table).version() for table, app in _APPS.items()}
    for name in behind:
        on_table(name)
        gone = lake.files(name)
        if name == ROLLUP:
            rows, gone = _rollup(spark, lake, changes, since)
        elif name in _APART:
            rows = _apart(spark, lake, name, changes)
        elif name == "breaks":
            rows = _breaks(spark, lake, outside)
        else:
            rows = _lag(spark, lake, outside)
        if rows is None:
            writer.commit(name, (), (), None, number, versions)
            continue
        parted = PARTED.get(name, ())
        finish = _fingerprinted if name == "failures" else lambda table: table
        files, schema = frames.stage(rows.coalesce(2), lake.folder.below(name), parted, finish)
        writer.commit(name, files, gone, schema, number, versions)
    return behind


class _Changes:
    """Rows of jobs and attempts that came or went since a derived table was made."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark, self._lake = spark, lake
        self.since = cache(self._since)

    def of(self, name: str) -> dict[str, DataFrame] | None:
        """Return frames with the column ``sign``, 1 or -1; None if nobody knows any more."""
        there = {
            table: self.since(table, self._lake.batch(name, app)) for table, app in _APPS.items()
        }
        return (
            None
            if None in there.values()
            else {table: rows for table, rows in there.items() if rows is not None}
        )

    def _since(self, table: str, version: int) -> DataFrame | None:
        changes = None if version < 0 else self._lake.changes(table, version)
        if changes is None:
            return None
        signed = (
            frames.frame(self._spark, self._lake, table, files).withColumn("sign", sql.lit(sign))
            for sign, files in zip((1, -1), changes, strict=True)
        )
        return reduce(lambda some, more: some.unionAll(more), signed)


def _rollup(
    spark: SparkSession, lake: Lake, changes: _Changes, since: str
) -> tuple[DataFrame | None, list[DataFile]]:
    changed = changes.of(ROLLUP)
    gone = [file for file in lake.files(ROLLUP) if (file.date or since) >= since]
    chosen = {table: lake.files(table) for table in _MOMENTS}
    hours: list[int] = []
    if changed:
        events = spark.sql(queries.EVENTS, jobs=changed[JOBS], attempts=changed[ATTEMPTS])
        changed_rows = spark.sql(queries.CHANGED_HOURS, events=events).collect()
        hours = sorted(row.hour for row in changed_rows if _day(row.hour) >= since)
        if not hours:
            return None, []
        days = {_day(hour) for hour in hours}
        gone = [file for file in gone if file.date in days]
        chosen = {
            table: [file for file in files if _tells(table, hours, file)]
            for table, files in chosen.items()
        }
    signed = {
        table: frames.frame(spark, lake, table, files).withColumn("sign", sql.lit(1))
        for table, files in chosen.items()
    }
    events = spark.sql(queries.EVENTS, jobs=signed[JOBS], attempts=signed[ATTEMPTS])
    if changed:
        events = events.where(sql.col("hour").isin(hours))
    rows = spark.sql(queries.ROLLUP_HOUR, events=events)
    if since:
        rows = rows.where(sql.col("date") >= since)
    if changed and gone:  # other hours of these days stay
        old = frames.frame(spark, lake, ROLLUP, gone)
        at = [_EPOCH + timedelta(hours=hour) for hour in hours]
        rows = rows.unionByName(old.where(~sql.col("hour").isin(at)))
    return rows, gone


def _apart(spark: SparkSession, lake: Lake, name: str, changes: _Changes) -> DataFrame | None:
    """Return the rows of failures or duplicates; None if they are what they were."""
    changed, keys = changes.of(name), _APART[name]
    # No job that is over fails or is dead.
    files = [file for file in lake.files(JOBS) if name != "failures" or not file.is_over]
    there = {
        JOBS: frames.frame(spark, lake, JOBS, files),
        ATTEMPTS: frames.frame(spark, lake, ATTEMPTS),
    }
    moved = None
    if changed:
        net = [
            changed[table].where(where).groupBy(*keys, *columns).agg(sql.sum("sign").alias("net"))
            .where("net <> 0").select(*keys)
            for table, (where, columns) in _FROM[name].items()
        ]  # fmt: skip
        changed_rows = reduce(lambda some, more: some.unionAll(more), net).distinct().toArrow()
        if not changed_rows.num_rows:
            return None
        moved = spark.createDataFrame(changed_rows)
        there = {table: _among(rows, moved, keys, "left_semi") for table, rows in there.items()
                 if table in _FROM[name]}  # fmt: skip
    rows = (
        _failures(spark, there)
        if name == "failures"
        else spark.sql(queries.DUPLICATES, jobs=there[JOBS])
    )
    if moved is not None:
        old = _among(frames.frame(spark, lake, name), moved, keys, "left_anti")
        rows = rows.unionByName(old.select(rows.columns))
    return rows


def _among(rows: DataFrame, moved: DataFrame, keys: Sequence[str], how: str) -> DataFrame:
    is_same = reduce(
        lambda some, more: some & more, (rows[key].eqNullSafe(moved[key]) for key in keys)
    )
    return rows.join(sql.broadcast(moved), is_same, how)


def _failures(spark: SparkSession, there: Mapping[str, DataFrame]) -> DataFrame:
    lost = FailureKind.pattern_of("", lost=True)
    seen = spark.sql(queries.SEEN, args={"lost": lost}, **there)
    reasons = seen.select("reason").distinct().toArrow()["reason"]
    patterns = pa.array(map(FailureKind.pattern_of, reasons.to_pylist()), pa.string())
    known = pa.table({"reason": reasons, "pattern": patterns})
    return spark.sql(queries.FAILURES, seen=seen, patterns=spark.createDataFrame(known))


def _fingerprinted(kinds: pa.Table) -> pa.Table:
    if "fingerprint" in kinds.column_names:
        kinds = kinds.drop_columns(["fingerprint"])
    names = map(FailureKind, kinds["task"].to_pylist(), kinds["pattern"].to_pylist())
    fingerprints = pa.array((kind.fingerprint for kind in names), pa.string())
    return kinds.add_column(0, "fingerprint", fingerprints)


def _lag(spark: SparkSession, lake: Lake, outside: Outside) -> DataFrame:
    files = [file for file in lake.files(JOBS) if not file.is_over]
    known = {
        "segments": spark.createDataFrame(pa.Table.from_pylist([*outside.segments], SEGMENTS)),
        "read": spark.createDataFrame(last_records(lake).select(READ.names)),
        "jobs": frames.frame(spark, lake, JOBS, files),
    }
    now = outside.at_ns or time.time_ns()
    return spark.sql(queries.DEVICE_LAG, args={"now": now}, **known)


def _breaks(spark: SparkSession, lake: Lake, outside: Outside) -> DataFrame | None:
    changed_rows = log_rows(lake, pc.field("kind") == BREAK)
    if not changed_rows.num_rows and not outside.declared and lake.has("breaks"):
        return None
    names = ["device", "log_id", "lsn", "value"]
    known = {
        "found": spark.createDataFrame(changed_rows.select(names)),
        "declared": spark.createDataFrame(pa.Table.from_pylist([*outside.declared], DECLARED)),
    }
    return spark.sql(queries.BREAKS, args={"compaction": COMPACTION}, **known)


def _tells(table: str, hours: Sequence[int], file: DataFile) -> bool:
    spans = (file.ranges[name] for name in _MOMENTS[table] if name in file.ranges)
    return any(
        first // _HOUR_NS <= hours[-1] and hours[0] <= last // _HOUR_NS for first, last in spans
    )


def _day(hour: int) -> str:
    return str((_EPOCH + timedelta(hours=hour)).date())
