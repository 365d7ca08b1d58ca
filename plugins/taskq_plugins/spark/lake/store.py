"""The lake: Delta tables, committed by ``deltalake`` batch by batch.

A commit of a batch is a Delta application transaction (``APP``, number of the batch), so a repeated
batch changes a table only once. A batch commits one table after the other and is complete with the
last one, ``_open``. On this machine one process writes at a time. In object storage the second of
two writers fails at its first commit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
from pyarrow import dataset

from taskq.arrow import DETAILS, as_bytes, without_reasons
from taskq.errors import UsageError
from taskq_plugins.spark.errors import (
    LakeConflict,
    LakeDamaged,
    LakeDiskError,
    LakeError,
)
from taskq_plugins.spark.lake import files
from taskq_plugins.spark.lake.files import (
    DATE,
    IS_OVER,
    LAST_BATCH,
    LOCK,
    DataFile,
    Folder,
    check_store,
    indexed,
    is_address,
    sync,
    write_rows,
    writer_lock,
)

RECORDS: Final = "records"
JOBS: Final = "jobs"
ATTEMPTS: Final = "attempts"
STEPS: Final = "steps"
ROLLUP: Final = "rollup_hour"
#: Internal table: records of unfinished jobs, and rows about whole logs (``PART``).
OPEN: Final = "_open"
#: Internal table: the position in each log.
POSITIONS: Final = "_positions"
#: Ids of erased jobs.
TOMBSTONES: Final = "erased"
#: Tables in the order of a batch's commits.
BASE: Final = (RECORDS, ATTEMPTS, JOBS, STEPS, OPEN)
#: Tables computed from others, in this order.
DERIVED: Final = (ROLLUP, "failures", "duplicates", "device_lag", "breaks")
TABLES: Final = (RECORDS, JOBS, ATTEMPTS, STEPS, *DERIVED, TOMBSTONES)
#: Tables partitioned by day.
DATED: Final = (RECORDS, JOBS, ATTEMPTS, STEPS, ROLLUP)
#: Column of ``_open``: "job", or "log".
PART: Final = "part"
PARTED: Final[dict[str, tuple[str, ...]]] = {
    JOBS: (DATE, IS_OVER), ATTEMPTS: (DATE, IS_OVER), OPEN: (PART,),
    **dict.fromkeys((RECORDS, STEPS, ROLLUP), (DATE,)),
}  # fmt: skip
#: Application names of a batch's transactions, and of the version of ``_positions`` in ``records``.
APP: Final = "taskq"
POSITIONS_APP: Final = "taskq-positions"
#: Names of transactions by source table. In a derived table they hold the source's version, in
#: ``records`` the version of jobs before the batch.
MADE_OF: Final = {JOBS: "taskq-jobs", ATTEMPTS: "taskq-attempts"}
#: Transaction with the first day whose rows are all kept, as an ordinal.
KEPT_APP: Final = "taskq-kept-from"
#: Derived tables whose rows quote jobs.
QUOTING: Final = ("duplicates", "failures")
#: Transactions of a derived table that must be recomputed from all rows.
STALE: Final = dict.fromkeys((APP, *MADE_OF.values()), -1)
DELTA_LOG: Final = "_delta_log"
#: Commits between two checkpoints; a reader reads at most this number of commits.
_CHECKPOINT_EVERY: Final = 20
#: How long old versions stay readable.
_KEEP_HOURS: Final = 1
#: Small files of a partition that are merged at once; each row is rewritten a few times.
SMALL_FILES_MAX: Final = 32
#: Size of small files, and of files of rows that may change.
SMALL_BYTES_MAX: Final = 8 * 1024 * 1024
OPEN_BYTES: Final = 1024 * 1024
#: Characters that delta-rs or Polars take for a pattern or a part of an address.
_UNREADABLE: Final = frozenset("%[]{}*?#")


class TableSize(NamedTuple):
    """Size of a table."""

    table: str
    rows: int
    files: int
    size_bytes: int
    version: int


class Lake:
    """One lake, for reading; ``writer()`` yields its writer.

    Attributes:
        path: its directory, or its address.
        folder: the same as a ``Folder``.
    """

    def __init__(self, path: str | Path, versions: Mapping[str, int] | None = None) -> None:
        self.path = str(path).rstrip("/") if is_address(path) else str(Path(path).absolute())
        self.folder = Folder(self.path)
        #: pinned version of each table; None: the newest
        self._versions = versions
        self._listings: dict[str, tuple[int, dict[str, DataFile]]] = {}
        self._open: dict[str, DeltaTable] = {}

    @classmethod
    def open(cls, path: str | Path, *, create: bool = False) -> Lake:
        """Open the lake in a directory or at an address; ``create`` creates a missing one."""
        lake = cls(path)
        if is_address(path):
            check_store(lake.path)
        if not create:
            if not lake.tables():
                raise LakeError(
                    f"{path}: is not a lake (no directory in it is a Delta table of the pipeline); "
                    f"make one with taskq pipeline run --journals DIR --lake {path}"
                )
            return lake
        if is_address(path):
            return lake
        where = Path(lake.path)
        if odd := _UNREADABLE & set(str(where)):
            raise UsageError(
                f"{where}: not every reader of Delta tables takes a path with "
                f"{' '.join(sorted(odd))} in it: name another with --lake"
            )
        where.mkdir(parents=True, exist_ok=True)
        others = sorted(entry.name for entry in where.iterdir() if entry.name[0] not in "._")
        # A run that was killed before its first commit leaves files and its lock.
        if others and not lake.tables() and not (where / LOCK).exists():
            raise LakeError(
                f"{where}: is not empty and holds no lake (there is {others[0]}): "
                f"name another directory with --lake"
            )
        return lake

    def tables(self) -> list[str]:
        return [name for name in TABLES if self.has(name)]

    def has(self, table: str) -> bool:
        if self._versions is not None:
            return table in self._versions
        if table in self._open:
            return True
        if not is_address(self.path):
            return (Path(self.path) / table / DELTA_LOG).is_dir()
        return DeltaTable.is_deltatable(self.folder.below(table).uri)

    def delta(self, table: str) -> DeltaTable:
        """Return the newest version of a table, or the pinned one."""
        where = self.folder.below(table).uri
        version = None if self._versions is None else self._versions.get(table, -1)
        if not self.has(table):
            if version is None and table in self._noted:
                raise LakeDamaged(self.path, f"{table} is gone")
            known = ", ".join(self.tables()) or "none yet"
            raise LakeError(f"{self.path}: there is no table {table!r}; there are: {known}")
        try:
            if table not in self._open:
                self._open[table] = DeltaTable(where, version=version)
            elif version is None:
                self._open[table].update_incremental()
        except TableNotFoundError as error:
            raise LakeDamaged(where, f"has no log that reads ({error})") from error
        except (DeltaError, OSError) as error:
            raise LakeDamaged(where, f"has a log that does not read ({error})") from error
        return self._open[table]

    def schema(self, table: str) -> pa.Schema:
        """Return a table's columns, with nullability as in the table's own schema."""
        columns = pa.schema(self.delta(table).schema().to_arrow())
        return pa.schema([pa.field(field.name, field.type) for field in columns])

    def dataset(self, table: str) -> dataset.Dataset:
        delta = self.delta(table)
        for file in self.files(table):
            self._check(table, file)
        return delta.to_pyarrow_dataset()

    def files(self, table: str) -> list[DataFile]:
        """Return the files of a table; [] if the table does not exist."""
        if not self.has(table):
            return []
        delta = self.delta(table)
        version, known = self._listings.get(table, (-1, {}))
        if version != delta.version():
            actions = pa.table(delta.get_add_actions(flatten=True))
            paths = [unquote(path) for path in actions["path"].to_pylist()]
            new = pa.array([path not in known for path in paths], pa.bool_())
            fresh = {
                file.path: file for file in map(DataFile.listed, actions.filter(new).to_pylist())
            }
            known = {path: fresh.get(path) or known[path] for path in paths}
            self._listings[table] = delta.version(), known
        return list(known.values())

    def paths(self, table: str) -> list[str]:
        """Return the paths of a table's files, after a check that each is whole and within it."""
        return [self._check(table, file) for file in self.files(table)]

    def rows(
        self,
        table: str,
        names: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        files: Iterable[DataFile] | None = None,
    ) -> pa.Table:
        """Return rows of some files of a table, by default of all."""
        chosen = self.files(table) if files is None else files
        return self.folder.below(table).rows(chosen, self.schema(table), where, names)

    def _check(self, table: str, file: DataFile) -> str:
        uri = f"{self.path}/{table}/{file.path}"
        if is_address(self.path):
            return uri
        where = Path(self.path) / table
        path = where / file.path
        parts = Path(file.path).parts
        if Path(file.path).is_absolute() or ".." in parts or ":" in parts[0]:
            raise LakeDamaged(path, "is no path of a file in the table")
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise LakeDamaged(path, "is missing, although the table names it") from error
        if size != file.size_bytes:
            raise LakeDamaged(path, f"has {size} bytes, the table says {file.size_bytes}")
        return uri

    def holdings(self) -> list[TableSize]:
        holdings = []
        for name in self.tables():
            there, delta = self.files(name), self.delta(name)
            rows, size = sum(file.rows for file in there), sum(file.size_bytes for file in there)
            holdings.append(TableSize(name, rows, len(there), size, delta.version()))
        return holdings

    # -- batches ----------------------------------------------------------------------------------

    def batch(self, table: str = OPEN, app: str = APP) -> int:
        """Return the last batch of a table, by default the last complete batch; -1 for none."""
        if not self.has(table):
            return -1
        number = self.delta(table).transaction_version(app)
        return -1 if number is None else number

    def kept_from(self, table: str) -> str:
        """Return the first day whose rows are all kept, in ISO 8601; "" if all days are."""
        day = self.batch(table, KEPT_APP)
        return "" if day < 1 else str(date.fromordinal(day))

    def reached(self) -> tuple[int, int]:
        """Return (last batch of ``records``, last complete batch): equal, or one apart."""
        numbers = [self.batch(table) for table in BASE]
        if numbers != sorted(numbers, reverse=True) or numbers[0] - numbers[-1] > 1:
            stand = ", ".join(f"{table} {at}" for table, at in zip(BASE, numbers, strict=True))
            raise LakeDamaged(
                self.path, f"has tables that were filled up to other batches each ({stand})"
            )
        return numbers[0], numbers[-1]

    def committed_at(self) -> int:
        """Return when the last batch was completed, in nanoseconds since 1970; 0 for never."""
        if not self.has(OPEN):
            return 0
        return int(self.delta(OPEN).history(1)[0]["timestamp"]) * 1_000_000

    def pinned(self) -> Lake:
        """Return the lake as of the last complete batch."""
        versions = {table: row["version"] for table, row in self._noted.items()}
        return Lake(self.path, versions) if versions else self

    def changes(self, table: str, version: int) -> tuple[list[DataFile], list[DataFile]] | None:
        """Return the files added and removed since a version; None if it is no longer known."""
        try:
            then = Lake(self.path, {table: version}).files(table)
        except (LakeError, DeltaError):
            return None
        now = self.files(table)
        before, after = {file.path for file in then}, {file.path for file in now}
        gone = [file for file in then if file.path not in after]
        system = self.folder.below(table).filesystem
        kinds = system.get_file_info([file.path for file in gone])
        if not all(kind.is_file for kind in kinds):
            return None
        return [file for file in now if file.path not in before], gone

    def check(self) -> None:
        """Raise LakeDamaged if a table is missing, or is older than the last complete batch."""
        problems = {}
        for table, noted in self._noted.items():
            if not self.has(table):
                problems[table] = "is gone"
                continue
            delta = self.delta(table)
            if delta.metadata().id != noted["id"]:
                problems[table] = "is another table than it was"
            elif delta.version() < noted["version"]:
                was, is_now = noted["version"], delta.version()
                problems[table] = f"is an older copy (version {is_now}, it was at {was})"
        if problems:
            named = "; ".join(f"{table} {problem}" for table, problem in problems.items())
            raise LakeDamaged(self.path, named)

    @cached_property
    def _noted(self) -> dict[str, dict[str, Any]]:
        try:
            with self.folder.filesystem.open_input_stream(LAST_BATCH) as file:
                lines = file.read().decode().splitlines()
            return {row["table"]: row for row in map(json.loads, lines)}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LakeDamaged(f"{self.path}/{LAST_BATCH}", f"does not read ({error})") from error

    @contextmanager
    def writer(self) -> Iterator[LakeWriter]:
        """Yield the lake's writer; there is only one at a time."""
        with writer_lock(self.path):
            self.__dict__.pop("_noted", None)
            self.check()
            yield LakeWriter(self)


class LakeWriter:
    """Commits batches and runs upkeep, under the writer lock."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        #: time of the next vacuum, by ``time.monotonic``
        self.vacuum_due = 0.0
        self._synced: set[Path] = set()

    def write(self, table: str, rows: pa.Table) -> list[DataFile]:
        """Write rows into a table's directory; ``commit`` adds them to a version."""
        parted = PARTED.get(table, ())
        return write_rows(self.lake.folder.below(table), rows, parted)

    def commit(
        self,
        table: str,
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        schema: pa.Schema | None = None,
        batch: int | None = None,
        apps: Mapping[str, int] | None = None,
    ) -> None:
        """Commit the next version of a table, unless it has the batch, or nothing changes.

        Args:
            table: its name; a missing table is created with ``schema``.
            added: new files.
            removed: files that the new version no longer has.
            schema: schema of the table, including partition columns.
            batch: number of the batch.
            apps: further application transactions, by name.
        """
        lake = self.lake
        if schema is not None and not lake.has(table):
            self._create(table, schema)
        delta = lake.delta(table)
        if batch is None:
            if not (added or removed or apps):
                return
        elif lake.batch(table) >= batch:
            return
        if schema is not None and (lacking := set(schema.names) - set(lake.schema(table).names)):
            raise LakeError(
                f"{lake.path}/{table}: another version of taskq made it, without "
                f"{', '.join(sorted(lacking))}: fill a new lake from the same logs"
            )
        numbers = ({} if batch is None else {APP: batch}) | dict(apps or {})
        properties = CommitProperties(
            custom_metadata=None if batch is None else {"batch": str(batch)},
            max_commit_retries=0,
            app_transactions=[Transaction(app, number) for app, number in numbers.items()],
        )
        actions: list[AddAction | RemoveAction] = [file.removed(is_change=True) for file in removed]
        actions += [file.added(is_change=True) for file in added]
        try:
            delta.create_write_transaction(
                actions, "append", delta.schema(), list(PARTED.get(table, ())),
                commit_properties=properties,
            )  # fmt: skip
            self._sync(table)
        except CommitFailedError as error:
            raise LakeConflict(f"{lake.path}/{table}", str(error)) from error
        except (DeltaError, OSError) as error:
            raise LakeDiskError(f"{lake.path}/{table}", OSError(str(error))) from error

    def _sync(self, table: str, data: Iterable[Path] = ()) -> None:
        """Fsync data and all versions of a table; ``deltalake`` itself syncs nothing."""
        if is_address(self.lake.path):
            return
        root = Path(self.lake.path) / table
        log = root / DELTA_LOG
        paths = [path for path in (*data, *log.iterdir()) if path.is_file()]
        new = [path for path in paths if path not in self._synced]
        for path in new:
            sync(path)
        folders = {root.parent, root, *(path.parent for path in new)}
        for folder in folders - self._synced:
            sync(folder)
        self._synced |= {root.parent, root, *new} - {log / "_last_checkpoint"}

    def _create(self, table: str, schema: pa.Schema) -> None:
        parted = list(PARTED.get(table, ()))
        kept = f"interval {_KEEP_HOURS} hours"
        try:
            DeltaTable.create(
                self.lake.folder.below(table).uri,
                schema,
                mode="ignore",
                partition_by=parted,
                configuration={
                    "delta.checkpointInterval": str(_CHECKPOINT_EVERY),
                    "delta.logRetentionDuration": kept,
                    "delta.deletedFileRetentionDuration": kept,
                    "delta.dataSkippingStatsColumns": ",".join(
                        name for name in indexed(schema) if name not in parted
                    ),
                },
            )
        except (DeltaError, OSError) as error:
            raise LakeDiskError(f"{self.lake.path}/{table}", OSError(str(error))) from error

    def note(self) -> None:
        """Store the version of each table after the last batch."""
        lake, rows = self.lake, []
        for table in filter(lake.has, (*TABLES, OPEN, POSITIONS)):
            delta = lake.delta(table)
            row = {"table": table, "version": delta.version(), "id": str(delta.metadata().id)}
            rows.append(row | {"batch": lake.batch(table)})
        text = "".join(json.dumps(row) + "\n" for row in rows)
        lake.folder.write(LAST_BATCH, text.encode())
        lake.__dict__.pop("_noted", None)

    def drop_days(self, table: str, before: str) -> None:
        """Remove old days of a table, except rows that may still change.

        Args:
            table: its name.
            before: the first day to keep, in ISO 8601.
        """
        where = f"{DATE} < '{before}'"
        if IS_OVER in PARTED[table]:
            where += f" AND {IS_OVER} = true"
        is_old = (
            file.date is not None and file.date < before and (file.is_over or "AND" not in where)
            for file in self.lake.files(table)
        )
        if any(is_old):
            for name in filter(self.lake.has, QUOTING if table in MADE_OF else ()):
                self.commit(name, (), apps=STALE)
            if before > self.lake.kept_from(table):
                day = date.fromisoformat(before).toordinal()
                self.commit(table, (), apps={KEPT_APP: day})
            self.lake.delta(table).delete(where)
            self._sync(table)

    def upkeep(self, *, vacuum: bool) -> None:
        """Merge small files, and remove files that no version of the last hour names."""
        lake = self.lake
        for table in filter(lake.has, (*TABLES, OPEN, POSITIONS)):
            days: Counter[tuple[bool, tuple[tuple[str, str | None], ...]]] = Counter()
            for file in lake.files(table):
                is_open = (not file.is_over and IS_OVER in PARTED.get(table, ())) or table == OPEN
                if file.size_bytes < (OPEN_BYTES if is_open else SMALL_BYTES_MAX) // 2:
                    days[is_open, tuple(file.values.items())] += 1
            delta, before = lake.delta(table), {file.path for file in lake.files(table)}
            for (is_open, place), count in days.items():
                if count < SMALL_FILES_MAX:
                    continue
                delta.optimize.compact(
                    [(name, "=", value) for name, value in place if value is not None] or None,
                    target_size=OPEN_BYTES if is_open else SMALL_BYTES_MAX * 4,
                    max_concurrent_tasks=1,
                )
            new = [file.path for file in lake.files(table) if file.path not in before]
            self._sync(table, [Path(lake.path, table, path) for path in new])
        self.note()
        if vacuum:
            for table in filter(lake.has, (*TABLES, OPEN, POSITIONS)):
                self.vacuum(table)

    def vacuum(self, table: str, keep_hours: int = _KEEP_HOURS) -> None:
        """Remove files that no version of the last ``keep_hours`` names."""
        delta = self.lake.delta(table)
        delta.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False, full=True)
        delta.cleanup_metadata()


JOB_ID: Final = "job_id"
#: Columns with a job's data or quotes of the data; attempts lose their reasons.
_ERASED: Final = frozenset({
    "payload", "value", "value_bytes", "result", "result_bytes", "key", "key_hash", "headers",
    "concurrency_key", "reason", "history", "attempts", "size_bytes", "replay_of",
})  # fmt: skip
_SCHEMA: Final = pa.schema([(JOB_ID, pa.string()), ("erased_at", pa.timestamp("us", tz="UTC"))])


def bury(writer: LakeWriter, job_ids: Iterable[str]) -> None:
    """Note jobs as erased, so that their data is not taken in again."""
    known = set(erased_jobs(writer.lake).to_pylist())
    fresh = sorted(set(job_ids) - known)
    if not fresh:
        return
    now = [datetime.now(UTC)] * len(fresh)
    rows = pa.table([pa.array(fresh, pa.string()), pa.array(now, _SCHEMA.types[1])], schema=_SCHEMA)
    writer.commit(TOMBSTONES, writer.write(TOMBSTONES, rows), schema=_SCHEMA)


def erased_jobs(lake: Lake) -> pa.Array:
    if not lake.has(TOMBSTONES):
        return pa.array([], pa.string())
    return lake.rows(TOMBSTONES, [JOB_ID])[JOB_ID].combine_chunks()


def cleared(rows: pa.Table, erased: pa.Array) -> pa.Table:
    """Return the rows without the data of erased jobs."""
    if not len(erased):
        return rows
    is_erased = pc.fill_null(pc.is_in(rows[JOB_ID], erased), fill_value=False)
    return without(rows, is_erased) if pc.any(is_erased).as_py() else rows


def without(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Return the rows, with the jobs' data removed from rows of the mask.

    Erasure before the fold gives the same rows as erasure after it.
    """
    for index, field in enumerate(rows.schema):
        if field.name in _ERASED:
            column = rows[field.name].combine_chunks()
            kept = _KEPT.get(field.name, _nothing)(column)
            rows = rows.set_column(index, field, pc.if_else(mask, kept, column))
    return rows


def _nothing(column: pa.Array) -> pa.Array:
    return pa.nulls(len(column), column.type)


def _tries(attempts: pa.ListArray) -> pa.ListArray:
    tries = attempts.flatten()
    columns = [
        _nothing(column) if field.name == "reason" else column
        for field, column in zip(tries.type, tries.flatten(), strict=True)
    ]
    sizes = pc.fill_null(pc.list_value_length(attempts), 0).to_numpy()
    offsets = pa.array(np.append(0, np.cumsum(sizes)), pa.int32())
    return pa.ListArray.from_arrays(
        offsets, pa.StructArray.from_arrays(columns, fields=list(tries.type))
    )


def _histories(history: pa.Array) -> pa.Array:
    plain = (value and without_reasons(value) for value in history.to_pylist())
    return pa.array(plain, history.type)


#: Columns with partial erasure.
_KEPT: Final = {"attempts": _tries, "history": _histories}


BATCH: Final = "batch"
#: Columns of the logs, and of ``records``.
READ: Final = as_bytes(DETAILS)
RECORD: Final = pa.schema([*READ, pa.field(BATCH, pa.int64()), pa.field(files.DATE, pa.date32())])
#: Columns for the fold and for the rows about whole logs.
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
    """Return the position in each log after the last batch of ``records``."""
    version = lake.batch(RECORDS, POSITIONS_APP)
    if version < 0:
        return POSITION.empty_table()
    return Lake(lake.path, {POSITIONS: version}).rows(POSITIONS)


def lineage_of(positions: pa.Table) -> dict[str, list[tuple[str, int]]]:
    """Return the parents of logs, for logs with parents."""
    return {
        row["log_id"]: [(log_id, lsn) for log_id, lsn in json.loads(row["parents"])]
        for row in positions.to_pylist()
        if row["parents"]
    }


def last_records(lake: Lake) -> pa.Table:
    """Return the last record of each log in the tables: device, log_id, lsn, ts_ns."""
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
