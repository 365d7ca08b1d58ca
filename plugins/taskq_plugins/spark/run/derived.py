"""Tables that are computed from jobs and attempts, once at the end of a run: by DuckDB, no Spark.

Rollups are computed again only for the days that something happened on since they were last
computed; the files that tell of no such day are not read. Failures and duplicates are made of all
jobs, where a file that changed since tells of any; how far devices are, of the jobs that are not
over.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from taskq_plugins.fleet import find_logs, inventory, log_problem
from taskq_plugins.spark.decode import BREAK
from taskq_plugins.spark.lake import OVER, Change, Lake
from taskq_plugins.spark.lake.errors import LakeError
from taskq_plugins.spark.lake.files import DATE, PART_COLUMN, write_rows
from taskq_plugins.spark.lake.progress import positions
from taskq_plugins.spark.lake.store import LOG_PART, OPEN_RECORDS
from taskq_plugins.spark.run.tablenames import ATTEMPTS, JOBS, stale
from taskq_plugins.spark.tables.breaks import breaks
from taskq_plugins.spark.tables.device_lag import READ, SEGMENTS, device_lag
from taskq_plugins.spark.tables.duplicates import duplicates
from taskq_plugins.spark.tables.failures import failures
from taskq_plugins.spark.tables.rollups import FAILED_OUTCOMES, rollup_hour

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from taskq_plugins.fleet import LogPlace
    from taskq_plugins.spark.lake import LakeWriter
    from taskq_plugins.spark.lake.files import DataFile

ROLLUP: Final = "rollup_hour"
#: More touched days than these (over a year) and the whole table is computed anew.
_DAYS_MAX: Final = 400
_DAY_HOURS: Final = 24
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_NS: Final = 86_400 * 1_000_000_000
#: Which rows of jobs and attempts some tables are made of.
_TELLING: Final = {
    "failures": {
        JOBS: "state = 'dead'",
        ATTEMPTS: f"outcome IN ({', '.join(map(repr, FAILED_OUTCOMES))})",
    },
    "duplicates": {JOBS: "key IS NOT NULL AND first_started_ns IS NOT NULL"},
}
#: The columns that say on which days a row counts.
_MOMENTS: Final = {JOBS: ("enqueued_ns", "settled_ns"), ATTEMPTS: ("ended_ns",)}
#: What two branches of a log share happened once: it is told of the newer one.
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
    journals: Path | None,
    on_table: Callable[[str], None] = lambda _: None,
    since: str = "",
) -> list[str]:
    """Compute those derived tables that are behind, and commit each; returns which.

    Args:
        writer: of the lake.
        names: of the tables that are wanted.
        journals: where the logs are; None leaves the segments out of ``device_lag``.
        on_table: told of each before it is computed.
        since: the first day of which all jobs and attempts are there; rollups of days before it
            stay as they are.

    Raises:
        LakeError: the lake failed.
    """
    lake, batch = writer.lake, writer.lake.batch()
    behind = stale(lake, names)
    # Tables are mostly behind by the same batches.
    since_batch = cache(partial(_changed, lake))
    with duckdb.connect(":memory:") as duck:
        spill = writer.new_directory("spill")
        duck.execute("SET TimeZone = 'UTC'; SET temp_directory = $spill", {"spill": str(spill)})
        for name in behind:
            on_table(name)
            computed = lake.batch(name) if name in _TELLING or name == ROLLUP else None
            changed = None if computed is None else since_batch(computed.number)
            days = _days_of(changed) if name == ROLLUP else None
            if name in _TELLING and not _tells_any(duck, lake, name, changed):
                writer.commit(name, Change(schema=lake.schema(name)), batch)
            else:
                rows = _computed(duck, lake, name, days, journals)
                _commit(writer, name, rows, days, since)
    return behind


def _commit(
    writer: LakeWriter, name: str, rows: pa.Table, days: frozenset[int] | None, since: str
) -> None:
    """Put the rows in the place of all that the table has; of rollups of these days' alone."""
    lake, directory = writer.lake, writer.new_directory(name)
    if name == ROLLUP and since:
        rows = rows.filter(pc.greater_equal(rows[DATE].cast(pa.string()), since))
    parts = pa.array([OVER] * rows.num_rows, pa.string())
    write_rows(rows.append_column(PART_COLUMN, parts), directory, 0)
    staged = writer.stage(name, directory)
    gone = (file for file in lake.data_files(name) if days is None or _day(file) in days)
    if name == ROLLUP:
        gone = (file for file in gone if (file.date or since) >= since)
    change = Change(staged.files, tuple(gone), rows.schema)
    writer.commit(name, change, lake.batch(), dates=name == ROLLUP)


def _look(
    duck: duckdb.DuckDBPyConnection, lake: Lake, name: str, days: frozenset[int] | None
) -> None:
    """Show DuckDB jobs and attempts as far as a table needs them: of these days, all if None."""

    def is_wanted(table: str, file: DataFile) -> bool:
        if name == "device_lag":
            return table == JOBS and file.part != OVER
        return _tells(table, file, days)

    for table in (JOBS, ATTEMPTS):
        paths = lake.paths(table, partial(is_wanted, table))
        if paths:
            # DuckDB's own reader takes a third of the time of Arrow's.
            found = duck.read_parquet(paths, hive_partitioning=False)
        else:
            found = duck.from_arrow(lake.schema(table).empty_table())
        found.create_view(f"all_{table}", replace=True)
        is_forked = any(file.ranges.get("branch", (0, 0))[1] for file in lake.data_files(table))
        view = _ONCE[table] if is_forked else f"FROM all_{table}"
        duck.execute(f"CREATE OR REPLACE VIEW {table} AS {view}")


def _computed(
    duck: duckdb.DuckDBPyConnection,
    lake: Lake,
    name: str,
    days: frozenset[int] | None,
    journals: Path | None,
) -> pa.Table:
    if name == "breaks":
        return breaks(_broken(lake), _logs(journals))
    _look(duck, lake, name, days)
    if name == "failures":
        return failures(duck)
    if name == "duplicates":
        return duplicates(duck)
    if name == "device_lag":
        duck.register("segments", pa.Table.from_pylist(_segments(journals), SEGMENTS))
        read = [one._asdict() for one in positions(lake).values()]
        duck.register("read", pa.Table.from_pylist(read, READ))
        return device_lag(duck, time.time_ns())
    hours = None
    if days is not None:
        hours = [day * _DAY_HOURS + hour for day in days for hour in range(_DAY_HOURS)]
    rows = rollup_hour(duck, hours)
    return rows.append_column(DATE, rows["hour"].cast(pa.date32()))


def _logs(journals: Path | None) -> list[LogPlace]:
    return [] if journals is None else find_logs(journals, on_problem=log_problem)


def _broken(lake: Lake) -> pa.Table:
    """The records that tell of breaks: those that are kept, whatever days are let go."""
    paths = lake.paths(OPEN_RECORDS, lambda file: file.part == LOG_PART)
    found = dataset.dataset(paths, schema=lake.schema(OPEN_RECORDS), format="parquet")
    rows: pa.Table = found.to_table(
        columns=["device", "log_id", "branch", "lsn", "value"], filter=pc.field("kind") == BREAK
    )
    return rows


def _segments(journals: Path | None) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for one in inventory(_logs(journals), on_problem=log_problem):
        row = {"device": one.device, "log_id": one.log_id, "segment": one.first_lsn}
        if one.is_gap_before:
            rows.append(row | {"is_missing": True})
        times = {"modified_ns": one.modified_ns, "last_record_ns": None, "is_missing": False}
        if one.next_lsn > one.first_lsn:
            times["last_record_ns"] = one.last_time_ns
        rows.append(row | times | {"size_bytes": one.size_bytes})
    return rows


def _tells(table: str, file: DataFile, days: frozenset[int] | None) -> bool:
    return days is None or any(
        first <= day <= last for first, last in _spans(table, file) for day in days
    )


def _changed(lake: Lake, number: int) -> list[tuple[str, DataFile]] | None:
    """The files, by table, that came or went since a batch; None: not known."""
    found: list[tuple[str, DataFile]] = []
    try:
        for table in (JOBS, ATTEMPTS):
            version = lake.version_at(table, number)
            then = Lake(lake.path, {table: version} if version >= 0 else {}, lake)
            now, before = ({one.path: one for one in at.data_files(table)} for at in (lake, then))
            found += [(table, (now | before)[path]) for path in now.keys() ^ before.keys()]
    except LakeError:  # its log tells no more of so long ago
        return None
    return found


def _days_of(changed: list[tuple[str, DataFile]] | None) -> frozenset[int] | None:
    """The days whose rows may have changed; None: all of them."""
    days: set[int] = set()
    for table, file in changed or ():
        for first, last in _spans(table, file):
            days.update(range(first, min(last, first + _DAYS_MAX) + 1))
        if len(days) > _DAYS_MAX:
            return None
    return None if changed is None else frozenset(days)


def _tells_any(
    duck: duckdb.DuckDBPyConnection,
    lake: Lake,
    name: str,
    changed: list[tuple[str, DataFile]] | None,
) -> bool:
    """Whether any row of the files that changed is one that a table is made of, or may be."""
    if changed is None:
        return True
    for table, where in _TELLING[name].items():
        paths = [lake.path / table / file.path for of, file in changed if of == table]
        if not all(path.exists() for path in paths):
            return True  # those that went are removed after an hour
        if paths and duck.read_parquet([*map(str, paths)]).filter(where).limit(1).fetchall():
            return True
    return False


def _spans(table: str, file: DataFile) -> list[tuple[int, int]]:
    """From which day to which, since 1970, rows of the file may tell of something."""
    told = (file.ranges[name] for name in _MOMENTS[table] if name in file.ranges)
    return [(first // _DAY_NS, last // _DAY_NS) for first, last in told]


def _day(file: DataFile) -> int:
    if file.date is None:
        return -1
    return (datetime.fromisoformat(file.date).replace(tzinfo=UTC) - _EPOCH) // timedelta(days=1)
