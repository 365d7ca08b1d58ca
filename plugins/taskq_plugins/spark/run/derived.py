"""Tables computed from others by Spark SQL, once at the end of a run.

Each commit names its batch and its source versions of jobs and attempts. Files added or removed
since then decide the rows to recompute. These are the days of the files' events in ``rollup_hour``,
and all of ``failures`` or ``duplicates`` if a file has a row for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from taskq.arrow import BREAK
from taskq.engine import FailureKind
from taskq_plugins.spark.lake.store import (
    ATTEMPTS,
    DERIVED,
    JOBS,
    MADE_OF,
    PARTED,
    ROLLUP,
    last_records,
    log_rows,
)
from taskq_plugins.spark.run import frames
from taskq_plugins.spark.source.plan import COMPACTION
from taskq_plugins.spark.tables import queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from taskq_plugins.spark.lake.files import DataFile
    from taskq_plugins.spark.lake.store import Lake, LakeWriter

#: Columns with the moments, and so the days, in which a row counts.
_MOMENTS: Final = {JOBS: ("enqueued_ns", "settled_ns"), ATTEMPTS: ("ended_ns",)}
_DAY_NS: Final = 86_400 * 1_000_000_000
_TEXT: Final = pa.string()
_EPOCH: Final = date(1970, 1, 1)
#: Source rows of tables; ``rollup_hour`` uses all rows.
_MADE_OF: Final = {
    "failures": {
        JOBS: pc.field("state") == "dead",
        ATTEMPTS: pc.field("outcome").isin(["retried", "dead", "lost"]),
    },
    "duplicates": {JOBS: pc.field("key").is_valid() & pc.field("first_started_ns").is_valid()},
}
#: One row for each segment of each log, as ``SegmentRow``.
SEGMENTS: Final = pa.schema(
    [
        ("device", pa.string()), ("log_id", pa.string()), ("segment", pa.int64()),
        ("size_bytes", pa.int64()), ("modified_ns", pa.int64()), ("last_record_ns", pa.int64()),
        ("gap_from", pa.int64()),
    ]
)  # fmt: skip
#: Last record of each log in the tables.
READ: Final = pa.schema([("device", pa.string()), ("log_id", pa.string()), ("ts_ns", pa.int64())])
DECLARED: Final = pa.schema(
    [
        ("device", pa.string()), ("log_id", pa.string()), ("kind", pa.string()),
        ("lsn", pa.int64()), ("next_lsn", pa.int64()), ("end_lsn", pa.int64()),
        ("cause", pa.string()),
    ]
)  # fmt: skip


class Outside(NamedTuple):
    """Input of some tables from outside the lake: facts about the logs, and the time.

    Attributes:
        segments: as ``SEGMENTS``.
        declared: breaks declared by a hub's devices, as ``DECLARED``.
        at_ns: time of these facts.
    """

    segments: Sequence[Mapping[str, Any]] = ()
    declared: Sequence[Mapping[str, Any]] = ()
    at_ns: int = 0


#: Files added or removed since a table's last version, by source table; None: all rows may differ.
Changes: TypeAlias = "dict[str, list[DataFile]] | None"


def refresh_tables(
    spark: SparkSession,
    writer: LakeWriter,
    outside: Outside,
    on_table: Callable[[str], None] = lambda _: None,
    since: str = "",
) -> list[str]:
    """Compute the outdated derived tables and commit each; return their names.

    Args:
        spark: the session.
        writer: writer of the lake.
        outside: input from outside the lake.
        on_table: called with each table's name before its computation.
        since: the first day with all its jobs and attempts; rollups of earlier days stay unchanged.
    """
    lake, number = writer.lake, writer.lake.batch()
    stale: list[str] = [name for name in DERIVED if lake.batch(name) < number]
    versions = {app: lake.delta(table).version() for table, app in MADE_OF.items()}
    changes = cache(lake.changes)
    for name in stale:
        on_table(name)
        made = _made(spark, lake, name, outside, _changed(lake, name, changes), since)
        if made is None:
            writer.commit(name, (), (), None, number, versions)
            continue
        rows, gone = made
        folder, parted = lake.folder.below(name), PARTED.get(name, ())
        files, schema = frames.stage(rows.coalesce(2), folder, parted)
        writer.commit(name, files, gone, schema, number, versions)
    return stale


def _changed(
    lake: Lake,
    name: str,
    changes: Callable[[str, int], tuple[list[DataFile], list[DataFile]] | None],
) -> Changes:
    changed = {}
    for table, app in MADE_OF.items():
        version = lake.batch(name, app)
        since = None if version < 0 else changes(table, version)
        if since is None:
            return None
        changed[table] = [*chain.from_iterable(since)]
    return changed


def _made(
    spark: SparkSession, lake: Lake, name: str, outside: Outside, changed: Changes, since: str
) -> tuple[DataFrame, list[DataFile]] | None:
    """Return new rows of a table, and the files to replace; None if the table stays unchanged."""
    if name == ROLLUP:
        return _rollup(spark, lake, changed, since)
    if name in _MADE_OF:
        return _of_jobs(spark, lake, name, changed)
    if name == "device_lag":
        return _lag(spark, lake, outside), lake.files(name)
    gaps = log_rows(lake, pc.field("kind") == BREAK)
    if not gaps.num_rows and not outside.declared and lake.has(name):
        return None
    return _breaks(spark, gaps, outside), lake.files(name)


def _of_jobs(
    spark: SparkSession, lake: Lake, name: str, changed: Changes
) -> tuple[DataFrame, list[DataFile]] | None:
    """Return failures or duplicates; None if no changed file has a row for them."""
    if changed is not None and not any(
        lake.rows(table, ["job"], where, [file]).num_rows
        for table, where in _MADE_OF[name].items()
        for file in changed[table]
    ):
        return None
    jobs = lake.files(JOBS)
    if name == "duplicates":
        there = frames.frame(spark, lake, JOBS, jobs)
        return spark.sql(queries.DUPLICATES, jobs=there), lake.files(name)
    # Files with only final rows have no dead jobs.
    dead = frames.frame(spark, lake, JOBS, [file for file in jobs if not file.is_over])
    attempts = frames.frame(spark, lake, ATTEMPTS)
    return _failures(spark, {JOBS: dead, ATTEMPTS: attempts}), lake.files(name)


def _rollup(
    spark: SparkSession, lake: Lake, changed: Changes, since: str
) -> tuple[DataFrame, list[DataFile]] | None:
    gone = [file for file in lake.files(ROLLUP) if (file.date or since) >= since]
    chosen = {table: lake.files(table) for table in _MOMENTS}
    days = None
    if changed is not None:
        days = set[str]().union(*(_days(*item) for item in changed.items()))
        days = {day for day in days if day >= since}
        if not days:
            return None
        gone = [file for file in gone if file.date in days]
        chosen = {
            table: [file for file in files if days & _days(table, [file])]
            for table, files in chosen.items()
        }
    there: dict[str, Any] = {
        table: frames.frame(spark, lake, table, files) for table, files in chosen.items()
    }
    events = frames.few(spark.sql(queries.EVENTS, **there), chain.from_iterable(chosen.values()))
    rows = spark.sql(queries.ROLLUP_HOUR, events=events)
    if days is not None:
        rows = rows.where(sql.col("date").isin(sorted(map(date.fromisoformat, days))))
    elif since:
        rows = rows.where(sql.col("date") >= since)
    return rows, gone


def _days(table: str, files: Sequence[DataFile]) -> set[str]:
    """Return the days between the first and the last event of each file."""
    spans = {
        (file.ranges[name][0] // _DAY_NS, file.ranges[name][1] // _DAY_NS)
        for file in files
        for name in _MOMENTS[table]
        if name in file.ranges
    }
    days = {day for first, last in spans for day in range(first, last + 1)}
    return {str(_EPOCH + timedelta(days=day)) for day in days}


def _failures(spark: SparkSession, there: Mapping[str, DataFrame]) -> DataFrame:
    lost = FailureKind.pattern_of("", lost=True)
    ends = spark.sql(queries.FAILED_ATTEMPTS, args={"lost": lost}, **there)
    columns = StructType([*ends.schema]).add("pattern", "string")
    kinds = spark.sql(queries.FAILURES, ends=ends.mapInArrow(_patterned, columns))
    columns = StructType([*kinds.schema]).add("fingerprint", "string")
    return kinds.mapInArrow(_fingerprinted, columns).select("fingerprint", *kinds.columns)


def _patterned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        reasons = batch.column("reason").dictionary_encode()
        patterns = pa.array(map(FailureKind.pattern_of, reasons.dictionary.to_pylist()), _TEXT)
        yield batch.append_column("pattern", patterns.take(reasons.indices))


def _fingerprinted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        tasks, patterns = (batch.column(name).to_pylist() for name in ("task", "pattern"))
        names = [kind.fingerprint for kind in map(FailureKind, tasks, patterns)]
        yield batch.append_column("fingerprint", pa.array(names, _TEXT))


def _lag(spark: SparkSession, lake: Lake, outside: Outside) -> DataFrame:
    files = [file for file in lake.files(JOBS) if not file.is_over]
    known = {
        "segments": frames.local(spark, pa.Table.from_pylist([*outside.segments], SEGMENTS)),
        "read": frames.local(spark, last_records(lake).select(READ.names)),
        "jobs": frames.frame(spark, lake, JOBS, files),
    }
    now = outside.at_ns or time.time_ns()
    return spark.sql(queries.DEVICE_LAG, args={"now": now}, **known)


def _breaks(spark: SparkSession, gaps: pa.Table, outside: Outside) -> DataFrame:
    known = {
        "found": frames.local(spark, gaps.select(["device", "log_id", "lsn", "value"])),
        "declared": frames.local(spark, pa.Table.from_pylist([*outside.declared], DECLARED)),
    }
    return spark.sql(queries.BREAKS, args={"compaction": COMPACTION}, **known)
