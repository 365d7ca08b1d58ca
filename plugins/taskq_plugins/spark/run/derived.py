"""Tables that are computed from others by Spark SQL, once at the end of a run.

Each commit names its batch and the versions of jobs and attempts that it was made of. From then on
rollups are computed again for hours with other events than before, failures for tasks with other
failures, and duplicates for keys that ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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

#: The columns that say on which days a row counts.
_MOMENTS: Final = {JOBS: ("enqueued_ns", "settled_ns"), ATTEMPTS: ("ended_ns",)}
_HOUR_NS: Final = 3_600 * 1_000_000_000
_TEXT: Final = pa.string()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HAS_KEY: Final = pc.field("key").is_valid() & pc.field("first_started_ns").is_valid()
_FAILED: Final = pc.field("outcome").isin(["retried", "dead", "lost"])
#: Which rows a table is made of, and of what in them. Its rows are grouped by the first column or,
#: if that is a moment, by its hour; those of ``duplicates`` by the first two.
_MADE_OF: Final[dict[str, list[tuple[str, pc.Expression, list[str]]]]] = {
    ROLLUP: [
        (
            JOBS,
            pc.field("enqueued_ns").is_valid() & (pc.field("enqueued_in") == pc.field("log_id")),
            ["enqueued_ns", "device", "queue", "task"],
        ),
        (
            JOBS,
            pc.field("settled_ns").is_valid() & (pc.field("settled_in") == pc.field("log_id")),
            ["settled_ns", "device", "queue", "task", "state"],
        ),
        (
            ATTEMPTS,
            pc.field("ended_ns").is_valid(),
            ["ended_ns", "device", "queue", "task", "outcome", "wait_ns", "run_ns"],
        ),
    ],
    "failures": [
        (
            JOBS,
            pc.field("state") == "dead",
            ["task", "log_id", "job_id", "queue", "reason", "settled_ns", "continued_in"],
        ),
        (
            ATTEMPTS,
            _FAILED,
            ["task", "log_id", "job_id", "number", "owner", "outcome", "ended_ns", "reason"],
        ),
    ],
    "duplicates": [
        (
            JOBS,
            _HAS_KEY,
            ["queue", "key", "log_id", "job_id", "task", "state", "first_started_ns",
             "continued_in"],
        )
    ],
}  # fmt: skip
_KEYS: Final = {ROLLUP: ["hour"], "failures": ["task"], "duplicates": ["queue", "key"]}
#: One row per segment file of every log on the hub, as ``SegmentRow``.
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
    outside: Outside,
    on_table: Callable[[str], None] = lambda _: None,
    since: str = "",
) -> list[str]:
    """Compute the outdated derived tables and commit each; return their names.

    Args:
        spark: the session.
        writer: of the lake.
        outside: what they need beside the lake.
        on_table: called with each name first.
        since: the first day of which all jobs and attempts are there; rollups of days before it
            stay as they are.
    """
    lake, number = writer.lake, writer.lake.batch()
    behind: list[str] = [name for name in DERIVED if lake.batch(name) < number]
    versions = {app: lake.delta(table).version() for table, app in MADE_OF.items()}
    changes = cache(lake.changes)
    for name in behind:
        on_table(name)
        changed = _changed(lake, name, changes) if name in _MADE_OF else None
        if name == ROLLUP:
            made = _rollup(spark, lake, changed, since)
        elif name in _MADE_OF:
            made = _apart(spark, lake, name, changed)
        elif name == "breaks":
            made = _breaks(spark, lake, outside)
        else:
            made = _Made(_lag(spark, lake, outside), lake.files(name))
        if made is None:
            writer.commit(name, (), (), None, number, versions)
            continue
        finish = _fingerprinted if name == "failures" else lambda table: table
        folder, rows = lake.folder.below(name), made.rows.coalesce(2)
        files, schema = frames.stage(
            rows, folder, PARTED.get(name, ()), finish, is_empty=made.is_empty
        )
        writer.commit(name, files, made.gone, schema, number, versions)
    return behind


class _Made(NamedTuple):
    """New rows of a table, in place of some files; ``is_empty``: there are none."""

    rows: DataFrame
    gone: list[DataFile]
    is_empty: bool = False


def _changed(
    lake: Lake,
    name: str,
    changes: Callable[[str, int], tuple[list[DataFile], list[DataFile]] | None],
) -> pa.Table | None:
    """Return the keys of which rows came or went since a table was made; None for all keys."""
    keys, parts = _KEYS[name], []
    for table, where, columns in _MADE_OF[name]:
        version = lake.batch(name, MADE_OF[table])
        since = None if version < 0 else changes(table, version)
        if since is None:
            return None
        read = partial(lake.rows, table, columns, where)
        for rows in _net(read, columns, *since):
            if name == ROLLUP:
                hours = pc.divide(rows[columns[0]], _HOUR_NS)
                rows = pa.table({"hour": hours})  # noqa: PLW2901
            parts.append(rows.select(keys).group_by(keys).aggregate([]))
    return pa.concat_tables(parts).group_by(keys).aggregate([])


def _net(
    read: Callable[[Sequence[DataFile]], pa.Table],
    columns: list[str],
    added: Sequence[DataFile],
    gone: Sequence[DataFile],
) -> Iterator[pa.Table]:
    """Yield rows that came or went, but not both; holds the files that went, and one that came."""

    def counted(files: Sequence[DataFile], sign: int) -> pa.Table:
        rows = read(files)
        signs = pa.repeat(pa.scalar(sign, pa.int64()), rows.num_rows)
        return rows.append_column("count", signs).append_column("was", pc.less(signs, 0))

    rest = counted(gone, -1)
    for file in added:
        both = pa.concat_tables([rest, counted([file], 1)]).group_by(columns)
        rows = both.aggregate([("count", "sum"), ("was", "any")]).rename_columns(rest.column_names)
        yield rows.filter(pc.invert(rows["was"]))
        rest = rows.filter(rows["was"])
    yield rest.filter(pc.not_equal(rest["count"], 0))


def _has_any(lake: Lake, name: str) -> bool:
    return any(
        lake.rows(table, columns[:1], where, [file]).num_rows
        for table, where, columns in _MADE_OF[name]
        for file in lake.files(table)
    )


def _rollup(spark: SparkSession, lake: Lake, changed: pa.Table | None, since: str) -> _Made | None:
    gone = [file for file in lake.files(ROLLUP) if (file.date or since) >= since]
    chosen = {table: lake.files(table) for table in _MOMENTS}
    hours: list[int] = []
    if changed is not None:
        hours = sorted(hour for hour in changed["hour"].to_pylist() if _day(hour) >= since)
        if not hours:
            return None
        days = {_day(hour) for hour in hours}
        gone = [file for file in gone if file.date in days]
        chosen = {
            table: [file for file in files if _counts_in(table, hours, file)]
            for table, files in chosen.items()
        }
    there: dict[str, Any] = {
        table: frames.frame(spark, lake, table, files) for table, files in chosen.items()
    }
    events = frames.few(spark.sql(queries.EVENTS, **there), chain.from_iterable(chosen.values()))
    if hours:
        events = events.where(sql.col("hour").isin(hours))
    rows = spark.sql(queries.ROLLUP_HOUR, events=events)
    if since:
        rows = rows.where(sql.col("date") >= since)
    if hours and gone:  # other hours of these days stay
        old = frames.frame(spark, lake, ROLLUP, gone)
        at = [_EPOCH + timedelta(hours=hour) for hour in hours]
        rows = rows.unionByName(old.where(~sql.col("hour").isin(at)))
    return _Made(rows, gone)


def _apart(spark: SparkSession, lake: Lake, name: str, changed: pa.Table | None) -> _Made | None:
    """Return the rows of failures or duplicates; None if they are what they were."""
    if changed is not None and not changed.num_rows:
        return None
    # No job that is over fails or is dead.
    files = [file for file in lake.files(JOBS) if name != "failures" or not file.is_over]
    there = {
        JOBS: frames.frame(spark, lake, JOBS, files),
        ATTEMPTS: frames.frame(spark, lake, ATTEMPTS),
    }
    moved, keys = None, _KEYS[name]
    if changed is not None:
        moved = frames.local(spark, changed)
        there = {table: _among(rows, moved, keys, "left_semi") for table, rows in there.items()
                 if any(table == made_of[0] for made_of in _MADE_OF[name])}  # fmt: skip
    rows = (
        _failures(spark, there)
        if name == "failures"
        else spark.sql(queries.DUPLICATES, jobs=there[JOBS])
    )
    if moved is not None:
        old = _among(frames.frame(spark, lake, name), moved, keys, "left_anti")
        rows = rows.unionByName(old.select(rows.columns))
    return _Made(rows, lake.files(name), changed is None and not _has_any(lake, name))


def _among(rows: DataFrame, moved: DataFrame, keys: Sequence[str], how: str) -> DataFrame:
    is_same = reduce(
        lambda some, more: some & more, (rows[key].eqNullSafe(moved[key]) for key in keys)
    )
    return rows.join(sql.broadcast(moved), is_same, how)


def _failures(spark: SparkSession, there: Mapping[str, DataFrame]) -> DataFrame:
    lost = FailureKind.pattern_of("", lost=True)
    seen = spark.sql(queries.SEEN, args={"lost": lost}, **there)
    columns = StructType([*seen.schema]).add("pattern", "string")
    return spark.sql(queries.FAILURES, seen=seen.mapInArrow(_patterned, columns))


def _patterned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        reasons = batch.column("reason").dictionary_encode()
        patterns = pa.array(map(FailureKind.pattern_of, reasons.dictionary.to_pylist()), _TEXT)
        yield batch.append_column("pattern", patterns.take(reasons.indices))


def _fingerprinted(kinds: pa.Table) -> pa.Table:
    if "fingerprint" in kinds.column_names:
        kinds = kinds.drop_columns(["fingerprint"])
    names = map(FailureKind, kinds["task"].to_pylist(), kinds["pattern"].to_pylist())
    fingerprints = pa.array((kind.fingerprint for kind in names), pa.string())
    return kinds.add_column(0, "fingerprint", fingerprints)


def _lag(spark: SparkSession, lake: Lake, outside: Outside) -> DataFrame:
    files = [file for file in lake.files(JOBS) if not file.is_over]
    known = {
        "segments": frames.local(spark, pa.Table.from_pylist([*outside.segments], SEGMENTS)),
        "read": frames.local(spark, last_records(lake).select(READ.names)),
        "jobs": frames.frame(spark, lake, JOBS, files),
    }
    now = outside.at_ns or time.time_ns()
    return spark.sql(queries.DEVICE_LAG, args={"now": now}, **known)


def _breaks(spark: SparkSession, lake: Lake, outside: Outside) -> _Made | None:
    gaps = log_rows(lake, pc.field("kind") == BREAK)
    is_empty = not gaps.num_rows and not outside.declared
    if is_empty and lake.has("breaks"):
        return None
    names = ["device", "log_id", "lsn", "value"]
    known = {
        "found": frames.local(spark, gaps.select(names)),
        "declared": frames.local(spark, pa.Table.from_pylist([*outside.declared], DECLARED)),
    }
    rows = spark.sql(queries.BREAKS, args={"compaction": COMPACTION}, **known)
    return _Made(rows, lake.files("breaks"), is_empty)


def _counts_in(table: str, hours: Sequence[int], file: DataFile) -> bool:
    spans = (file.ranges[name] for name in _MOMENTS[table] if name in file.ranges)
    return any(
        first // _HOUR_NS <= hours[-1] and hours[0] <= last // _HOUR_NS for first, last in spans
    )


def _day(hour: int) -> str:
    return str((_EPOCH + timedelta(hours=hour)).date())
