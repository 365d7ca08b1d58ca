"""Tables that are computed from jobs and attempts, once at the end of a run, in one commit.

Rollups are computed again only for the hours that something happened in since they were last
computed; the files that tell of no such hour are not read. The others are small and made of all
jobs, from the columns that they need.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as all the world calls it

from taskq_plugins.fleet import find_logs, inventory, log_problem
from taskq_plugins.spark.lake import OPEN, OVER, Change
from taskq_plugins.spark.lake.hours import overlap, union
from taskq_plugins.spark.lake.manifest import Refresh
from taskq_plugins.spark.run.storage import read_table, tune, write_table
from taskq_plugins.spark.run.tablenames import ATTEMPTS, JOBS, base_version, stale
from taskq_plugins.spark.tables.device_lag import device_lag
from taskq_plugins.spark.tables.duplicates import duplicates
from taskq_plugins.spark.tables.failures import failures
from taskq_plugins.spark.tables.rollups import rollup_fleet_hour, rollup_hour
from taskq_plugins.spark.tables.schemas import SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from taskq_plugins.spark.lake import Lake, LakeWriter, Manifest
    from taskq_plugins.spark.lake.manifest import DataFile, Hours
    from taskq_plugins.spark.lake.staging import Staged

_ALL: Final = frozenset({OPEN, OVER})
#: More touched hours than these (over a year) and the whole table is computed anew.
_HOURS_MAX: Final = 10_000
_HOUR_SECONDS: Final = 3_600


class _Source(NamedTuple):
    spark: SparkSession
    lake: Lake
    manifest: Manifest
    journals: Path | None

    def read(self, table: str, want: Callable[[DataFile], bool] | None = None) -> DataFrame:
        return read_table(self.spark, self.lake, table, manifest=self.manifest, want=want)


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


_ROLLUPS: Final = {"rollup_hour": rollup_hour, "rollup_fleet_hour": rollup_fleet_hour}
_OTHERS: Final = {"failures": _failures, "duplicates": _duplicates, "device_lag": _device_lag}


def refresh_tables(
    spark: SparkSession,
    writer: LakeWriter,
    names: Iterable[str],
    journals: Path | None,
    on_table: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Compute those derived tables that are behind, and commit them together; returns which.

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
    manifest = lake.manifest()
    behind = stale(manifest, names)
    if not behind:
        return []
    tune(spark, manifest.table(JOBS).rows)
    source = _Source(spark, lake, manifest, journals)
    refresh = Refresh(base_version(manifest), _open_hours(manifest))
    changes: dict[str, Change] = {}
    for name in behind:
        on_table(name)
        frame = _rollup(source, name) if name in _ROLLUPS else _OTHERS[name](source)
        staged: Staged = write_table(writer, name, frame.coalesce(1))
        changes[name] = Change(staged.files, _ALL, schema=staged.schema, refresh=refresh)
    writer.commit(changes)
    return behind


def _rollup(source: _Source, name: str) -> DataFrame:
    compute = _ROLLUPS[name]
    touched = _touched(source.manifest, name)
    if touched is None:
        return compute(source.read(JOBS), source.read(ATTEMPTS))

    def tells(file: DataFile) -> bool:
        return overlap(file.hours, touched)

    hours = [hour for first, last in touched for hour in range(first, last + 1)]
    new = compute(source.read(JOBS, tells), source.read(ATTEMPTS, tells), hours)
    old = source.read(name)
    hour = (F.unix_timestamp("hour") / _HOUR_SECONDS).cast("long")
    return old.where(~hour.isin(hours)).unionByName(new)


def _touched(manifest: Manifest, name: str) -> Hours | None:
    """The hours whose rows may have changed since the table was computed; None: all of them."""
    refresh = manifest.table(name).refresh
    if refresh is None:
        return None
    fresh = [
        file.hours
        for table in (JOBS, ATTEMPTS)
        for file in manifest.table(table).files
        if file.version > refresh.version
    ]
    touched = union([*fresh, refresh.open_hours])
    if sum(last - first + 1 for first, last in touched) > _HOURS_MAX:
        return None
    return touched


def _open_hours(manifest: Manifest) -> Hours:
    """The hours in which rows count that may still change, or go."""
    return union(
        file.hours
        for table in (JOBS, ATTEMPTS)
        for file in manifest.table(table).files
        if file.part == OPEN
    )
