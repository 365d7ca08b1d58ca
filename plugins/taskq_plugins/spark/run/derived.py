"""Tables that are computed from jobs and attempts, once at the end of a run.

Rollups are computed again only for the days that something happened on since they were last
computed; the files that tell of no such day are not read. The others are small and made of all
jobs, from the columns that they need.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq_plugins.fleet import find_logs, inventory, log_problem
from taskq_plugins.spark.lake import Change
from taskq_plugins.spark.lake.errors import LakeError
from taskq_plugins.spark.lake.files import DATE
from taskq_plugins.spark.run.storage import read_files, tune, write_table
from taskq_plugins.spark.run.tablenames import ATTEMPTS, JOBS, stale
from taskq_plugins.spark.tables.device_lag import device_lag
from taskq_plugins.spark.tables.duplicates import duplicates
from taskq_plugins.spark.tables.failures import failures
from taskq_plugins.spark.tables.rollups import rollup_hour
from taskq_plugins.spark.tables.schemas import SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from taskq_plugins.spark.lake import Lake, LakeWriter
    from taskq_plugins.spark.lake.files import DataFile

ROLLUP: Final = "rollup_hour"
#: More touched days than these (over a year) and the whole table is computed anew.
_DAYS_MAX: Final = 400
_DAY_HOURS: Final = 24
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_NS: Final = 86_400 * 1_000_000_000
#: The columns that say on which days a row counts.
_MOMENTS: Final = {JOBS: ("enqueued_ns", "settled_ns"), ATTEMPTS: ("ended_ns",)}


class _Source(NamedTuple):
    spark: SparkSession
    lake: Lake
    journals: Path | None

    def read(self, table: str, want: Callable[[DataFile], bool] = lambda _: True) -> DataFrame:
        return read_files(self.spark, self.lake, table, want)


def _failures(source: _Source) -> DataFrame:
    return failures(source.read(JOBS), source.read(ATTEMPTS))


def _duplicates(source: _Source) -> DataFrame:
    return duplicates(source.read(JOBS))


def _device_lag(source: _Source) -> DataFrame:
    rows: list[tuple[object, ...]] = []
    if source.journals is not None:
        logs = find_logs(source.journals, on_problem=log_problem)
        for one in inventory(logs, on_problem=log_problem):
            if one.is_gap_before:
                rows.append((one.device, one.log_id, one.first_lsn, *[None] * 6, True))
            last_lsn = one.next_lsn - 1 if one.next_lsn > one.first_lsn else None
            rows.append(
                (
                    one.device, one.log_id, one.first_lsn, one.size_bytes, one.modified_ns,
                    f"{one.epoch:016x}", last_lsn, one.next_lsn,
                    one.last_time_ns if last_lsn is not None else None, False,
                )
            )  # fmt: skip
    segments = source.spark.createDataFrame(rows, SEGMENTS)
    return device_lag(source.read(JOBS), segments, time.time_ns())


_OTHERS: Final = {"failures": _failures, "duplicates": _duplicates, "device_lag": _device_lag}


def refresh_tables(
    spark: SparkSession,
    writer: LakeWriter,
    names: Iterable[str],
    journals: Path | None,
    on_table: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Compute those derived tables that are behind, and commit each; returns which.

    Args:
        spark: the session.
        writer: of the lake.
        names: of the tables that are wanted.
        journals: where the logs are; None leaves the segments out of ``device_lag``.
        on_table: told of each before it is computed.

    Raises:
        LakeError: the lake failed.
    """
    lake = writer.lake
    behind = stale(lake, names)
    if not behind:
        return []
    tune(spark, sum(file.rows for file in lake.data_files(JOBS)))
    source = _Source(spark, lake, journals)
    batch = lake.batch()
    for name in behind:
        on_table(name)
        days = _touched(lake, name) if name == ROLLUP else None
        frame = _OTHERS[name](source) if name != ROLLUP else _rollup(source, days)
        staged = write_table(writer, name, frame.coalesce(1))
        gone = (file for file in lake.data_files(name) if days is None or _day(file) in days)
        change = Change(staged.files, tuple(gone), staged.schema)
        writer.commit(name, change, batch, dates=name == ROLLUP)
    return behind


def _rollup(source: _Source, days: frozenset[int] | None) -> DataFrame:
    """The rows of these days, of all if None."""
    if days is None:
        frame = rollup_hour(source.read(JOBS), source.read(ATTEMPTS))
    else:

        def tells(table: str) -> Callable[[DataFile], bool]:
            return lambda file: any(
                first <= day <= last for first, last in _spans(table, file) for day in days
            )

        hours = [day * _DAY_HOURS + hour for day in days for hour in range(_DAY_HOURS)]
        jobs, attempts = (source.read(table, tells(table)) for table in (JOBS, ATTEMPTS))
        frame = rollup_hour(jobs, attempts, hours)
    return frame.withColumn(DATE, frame["hour"].cast("date"))


def _touched(lake: Lake, name: str) -> frozenset[int] | None:
    """The days whose rows may have changed since the table was computed; None: all of them."""
    computed = lake.batch(name)
    if computed is None:
        return None
    try:
        then = lake.pinned(computed.number)
        days: set[int] = set()
        for table in (JOBS, ATTEMPTS):
            files = {file.path: file for file in (*lake.data_files(table), *then.data_files(table))}
            now, before = ({file.path for file in one.data_files(table)} for one in (lake, then))
            for path in now ^ before:
                for first, last in _spans(table, files[path]):
                    days.update(range(first, min(last, first + _DAYS_MAX) + 1))
                if len(days) > _DAYS_MAX:
                    return None
    except LakeError:  # its log tells no more of so long ago
        return None
    return frozenset(days)


def _spans(table: str, file: DataFile) -> list[tuple[int, int]]:
    """From which day to which, since 1970, rows of the file may tell of something."""
    told = (file.ranges[name] for name in _MOMENTS[table] if name in file.ranges)
    return [(first // _DAY_NS, last // _DAY_NS) for first, last in told]


def _day(file: DataFile) -> int:
    if file.date is None:
        return -1
    return (datetime.fromisoformat(file.date).replace(tzinfo=UTC) - _EPOCH) // timedelta(days=1)
