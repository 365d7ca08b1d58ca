"""Tables computed from jobs and attempts, once at the end of a run, by DuckDB without Spark.

Each commit names its batch and the changed files of jobs and attempts since. Rollups are recomputed
for hours with other events than before, failures for tasks with new failures, duplicates for keys
that ran. Device lag grows by the rows of the changed files. Steps are appended from new records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, partial, reduce
from typing import Final, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from taskq.arrow import BREAK
from taskq_plugins.fleet import log_problem
from taskq_plugins.fleet.inventory import segment_rows
from taskq_plugins.fleet.places import Memory
from taskq_plugins.spark.lake.files import DATE, DEAD, OPEN, OVER, DataFile, in_part, write_rows
from taskq_plugins.spark.lake.store import (
    ATTEMPTS,
    DATED,
    JOBS,
    LOG_PART,
    OPEN_RECORDS,
    RECORDS,
    STEPS,
    Change,
    Lake,
    LakeBatch,
    LakeWriter,
)
from taskq_plugins.spark.run.progress import positions
from taskq_plugins.spark.source.snapshot import FleetSnapshot, LogInventory
from taskq_plugins.spark.tables.aggregates import (
    FAILED_OUTCOMES,
    KNOWN_BY,
    SEGMENTS,
    breaks,
    changed_hours,
    count_jobs,
    device_lag,
    duplicates,
    failures,
    rollup_hour,
    signed,
    steps,
)

#: By table: rows that came, of ``sign`` 1, and rows that went, of -1.
Changes: TypeAlias = "dict[str, duckdb.DuckDBPyRelation]"
ROLLUP: Final = "rollup_hour"
_DAY_HOURS: Final = 24
_HOUR_US: Final = 3_600 * 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_NS: Final = 86_400 * 1_000_000_000
#: Which rows of jobs and attempts some tables are made of, and which columns of these.
_TELLING: Final = {
    "failures": {
        JOBS: ("state = 'dead'", "job_id, device, queue, task, key, payload, reason, attempts"),
        ATTEMPTS: (
            f"outcome IN ({', '.join(map(repr, FAILED_OUTCOMES))})",
            "job_id, device, queue, task, owner, outcome, ended_ns, reason",
        ),
    },
    "duplicates": {
        JOBS: (
            "key IS NOT NULL AND first_started_ns IS NOT NULL",
            "job_id, device, queue, task, key, state, first_started_ns",
        )
    },
}
#: Group columns of such a table: a row depends only on rows with the same values.
_APART: Final = {"failures": ("task",), "duplicates": ("queue", "key")}
#: Segment rows by log; most logs have not changed since.
_segments_known: Final[Memory[str, tuple[LogInventory, list[dict[str, object]]]]] = Memory()
#: The columns that say on which days a row counts.
_MOMENTS: Final = {JOBS: ("enqueued_ns", "settled_ns"), ATTEMPTS: ("ended_ns",)}
#: Events shared by two branches of a log happened once, and count for the newer one.
_ONCE: Final = {
    JOBS: """
        SELECT * REPLACE (CASE WHEN row_number() OVER (
            PARTITION BY log_id, job, enqueued_ns ORDER BY branch DESC) = 1 THEN enqueued_ns END
            AS enqueued_ns) FROM all_jobs
    """,
    ATTEMPTS: """
        FROM all_attempts QUALIFY row_number() OVER (
            PARTITION BY log_id, job, number, started_ns, ended_ns, outcome ORDER BY branch DESC
        ) = 1
    """,
}


def refresh_tables(
    writer: LakeWriter,
    names: Iterable[str],
    sight: FleetSnapshot | None,
    on_table: Callable[[str], None] = lambda _: None,
    since: str = "",
) -> list[str]:
    """Compute the outdated derived tables and commit each; return their names.

    Args:
        writer: of the lake.
        names: tables to compute.
        sight: the logs as they were when the run began; None leaves the segments out of
            ``device_lag``.
        on_table: called with each name first.
        since: the first day of which all jobs and attempts are there; rollups of days before it
            stay as they are.
    """
    lake, batch = writer.lake, writer.lake.batch()
    behind = lake.stale(names)
    with duckdb.connect(":memory:") as duck:
        spill = writer.new_directory("spill")
        duck.execute("SET TimeZone = 'UTC'; SET temp_directory = $spill", {"spill": str(spill)})
        # Outdated tables mostly lack the same batches.
        since_batch = cache(partial(_changes, duck, lake))
        standings = [] if sight is None else sight.standings
        for name in behind:
            on_table(name)
            computed = lake.batch(name)
            changes = None if computed is None else since_batch(computed.number)
            gone = lake.data_files(name)
            if name == ROLLUP:
                rows, gone = _rolled_up(duck, lake, changes, since)
            elif name in _TELLING:
                same = computed and not any(
                    lake.lost_rows(table, computed.number) for table in _TELLING[name]
                )
                rows = _told(duck, lake, name, changes if same else None)
            elif name == STEPS:
                rows, gone = _stepped(duck, lake, computed), []
            elif name == "breaks":
                rows = breaks(_broken(lake), standings)
            else:
                as_of_ns = time.time_ns() if sight is None else sight.at_ns
                rows = _lag(duck, lake, changes, standings, as_of_ns)
            if rows is None:
                writer.commit(name, Change(schema=lake.schema(name)), batch)
                continue
            directory = writer.new_directory(name)
            write_rows(in_part(rows, OVER), directory, 0)
            staged = writer.stage(name, directory)
            change = Change(staged.files, tuple(gone), rows.schema)
            writer.commit(name, change, batch, dates=name in DATED)
    return behind


def _changes(duck: duckdb.DuckDBPyConnection, lake: Lake, number: int) -> Changes | None:
    """Return the rows that came and went since a batch, signed; None if nobody knows any more."""
    by_table = {}
    for table in (JOBS, ATTEMPTS):
        changes = lake.changes(table, number)
        if changes is None:
            return None
        rows = [
            signed(_read(duck, lake, table, paths), sign)
            for sign, paths in zip((1, -1), changes, strict=True)
        ]
        by_table[table] = rows[0].union(rows[1])
    return by_table


def _read(
    duck: duckdb.DuckDBPyConnection, lake: Lake, table: str, paths: list[str]
) -> duckdb.DuckDBPyRelation:
    if paths:
        # DuckDB's own reader takes a third of the time of Arrow's.
        return duck.read_parquet(paths, hive_partitioning=False)
    schema = lake.schema(table)
    return duck.from_arrow(schema.remove(schema.get_field_index(DATE)).empty_table())


def _show(
    duck: duckdb.DuckDBPyConnection,
    lake: Lake,
    table: str,
    want: Callable[[DataFile], bool],
    moved: str = "",
) -> None:
    _read(duck, lake, table, lake.paths(table, want)).create_view(f"all_{table}")
    view = _ONCE[table] if _is_forked(lake, table) else f"FROM all_{table}"
    if moved:
        view = f"SELECT * FROM ({view}) AS rows SEMI JOIN moved ON {moved}"  # noqa: S608 - ours
    duck.execute(f"CREATE OR REPLACE VIEW {table} AS {view}")


def _is_forked(lake: Lake, table: str) -> bool:
    return any(file.ranges.get("branch", (0, 0))[1] for file in lake.data_files(table))


def _told(
    duck: duckdb.DuckDBPyConnection, lake: Lake, name: str, changes: Changes | None
) -> pa.Table | None:
    """Return the rows of failures or duplicates; None if they are what they were.

    Args:
        duck: where they are asked for.
        lake: that has them as they were, and jobs and attempts as they are.
        name: of the table.
        changes: what came and went since it was made; None: all is made anew.
    """
    apart, where = _APART[name], ""
    if changes:
        net = (
            changes[table]
            .filter(chosen)
            .aggregate(f"{columns}, sum(sign) AS sign", columns)
            .filter("sign <> 0")
            .project(", ".join(apart))
            for table, (chosen, columns) in _TELLING[name].items()
        )
        duck.execute("DROP TABLE IF EXISTS moved")
        reduce(lambda rows, more: rows.union(more), net).distinct().create("moved")
        if not duck.table("moved").limit(1).fetchall():
            return None
        where = " AND ".join(
            f"rows.{column} IS NOT DISTINCT FROM moved.{column}" for column in apart
        )
    if name == "failures":
        _show(duck, lake, JOBS, lambda file: file.part == DEAD, where)
        _show(duck, lake, ATTEMPTS, lambda _: True, where)
        rows = failures(duck)
    else:
        _show(duck, lake, JOBS, lambda file: "first_started_ns" in file.ranges, where)
        rows = duplicates(duck)
    if changes:
        duck.register("old", lake.dataset(name).to_table())
        kept = duck.sql(f"SELECT * FROM old AS rows ANTI JOIN moved ON {where}")  # noqa: S608 - ours
        rows = pa.concat_tables(
            [rows, kept.to_arrow_table().select(rows.column_names).cast(rows.schema)]
        )
    return rows


def _rolled_up(
    duck: duckdb.DuckDBPyConnection, lake: Lake, changes: Changes | None, since: str
) -> tuple[pa.Table | None, list[DataFile]]:
    gone, hours, days = lake.data_files(ROLLUP), None, None
    if changes:
        hours = changed_hours(duck, changes[JOBS], changes[ATTEMPTS])
        if not hours:
            return None, []
        days = {hour // _DAY_HOURS for hour in hours}
        gone = [file for file in gone if _day(file) in days]
    for table in (JOBS, ATTEMPTS):
        _show(duck, lake, table, partial(_tells, table, days))
    rows = rollup_hour(duck, hours)
    if hours:  # other hours of these days stay
        paths = [str(lake.path / ROLLUP / file.path) for file in gone]
        old = dataset.dataset(paths, schema=rows.schema, format="parquet").to_table()
        at = pa.array([hour * _HOUR_US for hour in hours], pa.int64()).cast(old["hour"].type)
        rows = pa.concat_tables([rows, old.filter(pc.invert(pc.is_in(old["hour"], at)))])
    rows = rows.append_column(DATE, rows["hour"].cast(pa.date32()))
    if since:
        rows = rows.filter(pc.greater_equal(rows[DATE].cast(pa.string()), since))
        gone = [file for file in gone if (file.date or since) >= since]
    return rows, gone


def _stepped(
    duck: duckdb.DuckDBPyConnection, lake: Lake, computed: LakeBatch | None
) -> pa.Table | None:
    """Return the steps from new records, without known steps; None if there are none."""
    changes = None if computed is None else lake.changes(RECORDS, computed.number)
    came = lake.paths(RECORDS) if changes is None else changes[0]
    tells = {
        str(lake.path / RECORDS / file.path)
        for file in lake.data_files(RECORDS)
        if "place" in file.ranges
    }
    came = [path for path in came if path in tells]
    if computed is not None and not came:
        return None
    _read(duck, lake, RECORDS, came).create_view("new_records")
    if computed is None:
        return steps(duck)
    rows = steps(duck, lake.dataset(STEPS).to_table(columns=list(KNOWN_BY)))
    return rows if rows.num_rows else None


def _lag(
    duck: duckdb.DuckDBPyConnection,
    lake: Lake,
    changes: Changes | None,
    standings: Iterable[LogInventory],
    as_of_ns: int,
) -> pa.Table:
    if changes:
        count_jobs(duck, changes[JOBS], lake.dataset("device_lag").to_table(), _waiting(lake))
    else:
        _show(duck, lake, JOBS, lambda file: file.part != OVER)
        count_jobs(duck, signed(duck.view(JOBS), 1), None, [])
    duck.register("segments", pa.Table.from_pylist(_segments(standings), SEGMENTS))
    duck.register("read", positions(lake))
    return device_lag(duck, as_of_ns)


def _waiting(lake: Lake) -> list[tuple[int, str]]:
    return [
        (file.ranges["enqueued_ns"][0], str(lake.path / JOBS / file.path))
        for file in lake.data_files(JOBS)
        if file.part == OPEN and "enqueued_ns" in file.ranges
    ]


def _broken(lake: Lake) -> pa.Table:
    """Return the records of breaks, kept or purged."""
    paths = lake.paths(OPEN_RECORDS, lambda file: file.part == LOG_PART)
    data = dataset.dataset(paths, schema=lake.schema(OPEN_RECORDS), format="parquet")
    rows: pa.Table = data.to_table(
        columns=["device", "log_id", "branch", "lsn", "value"], filter=pc.field("kind") == BREAK
    )
    return rows


def _segments(standings: Iterable[LogInventory]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for standing in standings:
        known = _segments_known.get(standing.log.path)
        if known is None or known[0] is not standing:
            known = _segments_known[standing.log.path] = standing, list(_segments_of(standing))
        rows += known[1]
    return rows


def _segments_of(standing: LogInventory) -> Iterator[dict[str, object]]:
    log = standing.log
    for place in segment_rows(log, standing.places, standing.end, on_problem=log_problem):
        row = {"device": log.device, "log_id": log.log_id, "segment": place.first_lsn}
        if place.is_gap_before:
            yield row | {"is_missing": True}
        times = {"modified_ns": place.modified_ns, "last_record_ns": None, "is_missing": False}
        if place.next_lsn > place.first_lsn:
            times["last_record_ns"] = place.last_time_ns
        yield row | times | {"size_bytes": place.size_bytes}


def _tells(table: str, days: Collection[int] | None, file: DataFile) -> bool:
    spans = (file.ranges[name] for name in _MOMENTS[table] if name in file.ranges)
    return days is None or any(
        first // _DAY_NS <= day <= last // _DAY_NS for first, last in spans for day in days
    )


def _day(file: DataFile) -> int:
    if file.date is None:
        return -1
    return (datetime.fromisoformat(file.date).replace(tzinfo=UTC) - _EPOCH) // timedelta(days=1)
