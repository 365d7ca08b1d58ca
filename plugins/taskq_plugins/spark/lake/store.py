"""The lake: Delta tables, written by one process at a time, batch by batch.

Every commit names its batch: as Delta's application transaction, so that a batch is committed once,
and in the commit's info for people and for ``pinned``. A batch commits one table after the other,
``jobs`` last: a batch in ``jobs`` is in all tables.

delta-rs does not sync its log. Data files are synced before a commit names them, the commit and its
directory right after it.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby, tee
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import dataset, parquet

from taskq.arrow import without_reasons
from taskq.errors import UsageError
from taskq_plugins.spark.lake import deltalog, files
from taskq_plugins.spark.lake.bucket import Bucket, is_address
from taskq_plugins.spark.lake.deltalog import DELTA_LOG, OPTIMIZE
from taskq_plugins.spark.lake.errors import (
    LakeBusy,
    LakeDamaged,
    LakeDiskError,
    LakeError,
    NotALake,
    TableLost,
)
from taskq_plugins.spark.lake.files import (
    DATE,
    LAST_BATCH,
    LOCK,
    OVER,
    PART_COLUMN,
    REPLAY_OF,
    ROWS_MAX,
    DataFile,
    Staged,
    groups,
    publish,
    writer_lock,
    written,
)

RECORDS: Final = "records"
JOBS: Final = "jobs"
ATTEMPTS: Final = "attempts"
STEPS: Final = "steps"
#: Tables that have days.
DATED: Final = (RECORDS, JOBS, ATTEMPTS, STEPS, "rollup_hour")
#: The tables that are computed from others, in that order.
DERIVED: Final = ("rollup_hour", "failures", "duplicates", "device_lag", "breaks", STEPS)
#: Raw records of jobs that are not over: of the pipeline alone.
OPEN_RECORDS: Final = "_open"
#: First and last table of a batch: their commits hold the place in each log.
BORDERS: Final = (RECORDS, JOBS)
#: Part of that table with the rows about whole logs.
LOG_PART: Final = "log"
STAGING: Final = "_staging"
#: Ids of the jobs that were erased.
TOMBSTONES: Final = "erased"
#: Operations of commits that add rows.
_FILLED: Final = frozenset({"WRITE", "MERGE"})
#: ... and what one does that takes rows away, or something of them.
_LOST: Final = frozenset({"DELETE", "UPDATE"})
#: Characters that delta-rs or Polars read as a pattern or as part of an address.
_UNREADABLE: Final = frozenset("%[]{}*?#")


class LakeBatch(NamedTuple):
    """A micro-batch of the stream that fills the lake."""

    #: id of the sequence that batches are numbered in
    stream: str
    number: int
    #: how far it read each log, as text ...
    offsets: str = ""
    #: ... or only those logs that moved
    is_whole: bool = True


class Change(NamedTuple):
    """Change of one table by a commit."""

    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    #: needed where the table may not be there yet
    schema: pa.Schema | None = None
    #: in Delta's words; "": a batch's
    operation: str = ""


class TableSize(NamedTuple):
    """Size of a table."""

    table: str
    rows: int
    files: int
    size_bytes: int
    version: int


class Lake:
    """One lake, for reading; ``writer()`` gives what writes.

    Attributes:
        path: its directory.
        bucket: where the directory is the copy of a lake in object storage.
    """

    bucket: Bucket | None = None

    def __init__(
        self,
        path: Path,
        versions: Mapping[str, int] | None = None,
        newest: Lake | None = None,
    ) -> None:
        self.path = path
        #: None: the newest of each table
        self._versions = versions
        self._newest = newest
        self._listings: dict[str, files.Listing] = {}
        self._told: dict[str, tuple[int, Iterator[dict[str, Any]]]] = {}
        #: open tables, while this process is the writer
        self._open: dict[str, DeltaTable] | None = None

    @classmethod
    def open(cls, path: str | Path, *, create: bool = False) -> Lake:
        """Open the lake in a directory; ``create`` makes a missing one.

        For an address such as ``s3://bucket/lake`` the local copy is brought up to date first.
        """
        bucket = Bucket(str(path)) if is_address(path) else None
        where = bucket.copy if bucket else Path(path).absolute()
        lake = cls(where)
        if bucket:
            lake.bucket = bucket
            where.mkdir(parents=True, exist_ok=True)
            # A running writer has the newest copy.
            with suppress(LakeBusy), writer_lock(where):
                bucket.pull()
        if create:
            if odd := _UNREADABLE & set(str(where)):
                raise UsageError(
                    f"{where}: not every reader of Delta tables takes a path with "
                    f"{' '.join(sorted(odd))} in it: name another with --lake"
                )
            where.mkdir(parents=True, exist_ok=True)
            others = sorted(entry.name for entry in where.iterdir() if entry.name[0] not in "._")
            # A run that was killed before its first commit left files, and its lock.
            if others and not lake.tables() and not (where / LOCK).exists():
                raise LakeError(
                    f"{where}: is not empty and holds no lake (there is {others[0]}): "
                    f"name another directory with --lake"
                )
        elif not lake.tables():
            raise NotALake(path)
        return lake

    def tables(self) -> list[str]:
        try:
            names = sorted(
                entry.name for entry in self.path.iterdir() if (entry / DELTA_LOG).is_dir()
            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        if self._versions is not None:
            names = [name for name in names if name in self._versions]
        return [name for name in names if name[0] != "_"]

    def has(self, table: str) -> bool:
        if self._versions is not None:
            return table in self._versions
        return (self.path / table / DELTA_LOG).is_dir()

    def check_columns(self, table: str, schema: pa.Schema) -> None:
        lacking = set(schema.names) - set(self.schema(table).names) if self.has(table) else set()
        if lacking:
            raise LakeError(
                f"{self.path / table}: an earlier version of taskq made it, without "
                f"{', '.join(sorted(lacking))}: fill a new lake from the same logs"
            )

    def delta(self, table: str) -> DeltaTable:
        where = self.path / table
        version = None if self._versions is None else self._versions.get(table, -1)
        if self._versions is None and table in self._noted and not self.has(table):
            raise TableLost(self.path, {table: self._lost(table)})
        if not self.has(table):
            known = ", ".join(self.tables()) or "none yet"
            raise LakeError(f"{self.path}: there is no table {table!r}; there are: {known}")
        try:
            if self._open is None or table not in self._open:
                delta = DeltaTable(str(where), version=version)
                if version is None and (problem := self._lost(table, delta)):
                    raise TableLost(self.path, {table: problem})
                if self._open is not None:
                    self._open[table] = delta
                return delta
            delta = self._open[table]
            if (where / DELTA_LOG / f"{delta.version() + 1:020}.json").exists():
                delta.update_incremental()
        except TableNotFoundError as error:
            raise LakeDamaged(where, f"has no log that reads ({error})") from error
        except (DeltaError, OSError) as error:
            raise LakeDamaged(where / DELTA_LOG, f"does not read ({error})") from error
        return delta

    def schema(self, table: str) -> pa.Schema:
        return _schema(self.delta(table))

    def dataset(self, table: str) -> dataset.Dataset:
        delta = self.delta(table)
        for file in self.data_files(table):
            files.checked(self.path / table, file)
        return delta.to_pyarrow_dataset()

    def data_files(self, table: str) -> list[DataFile]:
        if not self.has(table):
            return []
        newest, versions = self._newest, self._versions
        if newest and versions and newest.delta(table).version() == versions[table]:
            return newest.data_files(table)  # they are at hand
        delta, known = self.delta(table), self._listings.get(table)
        if known is None or known.version != delta.version():
            known = self._listings[table] = files.Listing.of(delta, known)
        return list(known.files.values())

    def paths(self, table: str, want: Callable[[DataFile], bool] = lambda _: True) -> list[str]:
        chosen = filter(want, self.data_files(table))
        return [str(files.checked(self.path / table, file)) for file in chosen]

    def holdings(self) -> list[TableSize]:
        holdings = []
        for name in self.tables():
            there, delta = self.data_files(name), self.delta(name)
            rows, size = sum(file.rows for file in there), sum(file.size_bytes for file in there)
            holdings.append(TableSize(name, rows, len(there), size, delta.version()))
        return holdings

    # -- batches ----------------------------------------------------------------------------------

    def _commits(self, table: str) -> Iterator[dict[str, Any]]:
        delta = self.delta(table)
        version, known = self._told.get(table, (-1, iter(())))
        if version != delta.version():
            known = deltalog.commits(delta)
        commits, rest = tee(known)
        self._told[table] = delta.version(), rest
        return commits

    def batch(self, table: str = JOBS) -> LakeBatch | None:
        return next(self.batches(table), None)

    def batches(self, table: str) -> Iterator[LakeBatch]:
        if not self.has(table):
            return
        for commit in self._commits(table):
            if "batch" in commit:
                moved = commit.get(deltalog.MOVED)
                offsets = commit.get("offsets", "") if moved is None else moved
                yield LakeBatch(commit["stream"], int(commit["batch"]), offsets, moved is None)

    def stale(self, names: Iterable[str]) -> list[str]:
        last, wanted = self.batch(), frozenset(names)
        if last is None:
            return []
        known = {name: self.batch(name) for name in DERIVED if name in wanted}
        return [name for name, at in known.items() if at is None or at.number < last.number]

    def committed_at(self) -> int:
        if not self.has(JOBS):
            return 0
        return int(next(self._commits(JOBS))["timestamp"]) * 1_000_000

    def version_at(self, table: str, number: int) -> int:
        candidate = -1
        for commit in self._commits(table):
            if candidate < 0:
                candidate = commit["version"]
            if "batch" not in commit:
                continue  # as the batch before it left the rows
            if int(commit["batch"]) <= number:
                break
            candidate = -1
        return candidate

    def pinned(self, number: int | None = None) -> Lake:
        last = self.batch()
        if number is None:
            number = -1 if last is None else last.number
        there = [*self.tables(), OPEN_RECORDS]
        versions = {table: self.version_at(table, number) for table in there if self.has(table)}
        known = {table: version for table, version in versions.items() if version >= 0}
        return Lake(self.path, known, self)

    def changes(self, table: str, number: int) -> tuple[list[str], list[str]] | None:
        """Return paths of the files added and removed after batch ``number``; None if unknown.

        Unknown: the table's log no longer has the batch, or a removed file is deleted.
        """
        came: set[str] = set()
        went: set[str] = set()
        beside: list[dict[str, Any]] = []
        for version in range(self.delta(table).version(), -1, -1):
            entry = self.path / table / DELTA_LOG / f"{version:020}.json"
            if not entry.exists():
                return None
            actions = [json.loads(line) for line in entry.read_text().splitlines()]
            batch = next(action["commitInfo"] for action in actions if "commitInfo" in action).get(
                "batch"
            )
            if batch is None:  # as the batch before it left the rows
                beside += actions
                continue
            if batch <= number:
                break
            for action in (*beside, *actions):
                if "remove" in action:
                    went.add(files.named(action["remove"]["path"]))
                elif "add" in action:
                    path = files.named(action["add"]["path"])
                    (went.remove if path in went else came.add)(path)
            beside = []
        gone = [self.path / table / path for path in went]
        if not all(path.is_file() for path in gone):
            return None
        return self.paths(table, lambda file: file.path in came), [*map(str, gone)]

    def lost_rows(self, table: str, number: int) -> bool:
        """Return whether rows of a table were let go or erased, beside all batches, since one."""
        for commit in self._commits(table):
            if commit["operation"] in _LOST:
                return True
            if "batch" in commit and int(commit["batch"]) <= number:
                break
        return False

    def as_of(self, table: str, moment_ns: int) -> Lake | None:
        commits = self._commits(table)
        filled = (commit for commit in commits if commit["operation"] in _FILLED)
        for number, commit in enumerate(filled):
            if commit["timestamp"] * 1_000_000 <= moment_ns:
                return Lake(self.path, {table: commit["version"]}) if number else None
        return None

    def forget(self, table: str) -> None:
        self._noted.pop(table, None)
        self._listings.pop(table, None)
        self._told.pop(table, None)
        if self._open is not None:
            self._open.pop(table, None)

    def check(self, but: Collection[str] = ()) -> None:
        problems = {table: self._lost(table) for table in self._noted if table not in but}
        if any(problems.values()):
            raise TableLost(
                self.path, {table: problem for table, problem in problems.items() if problem}
            )

    @cached_property
    def _noted(self) -> dict[str, dict[str, Any]]:
        try:
            lines = (self.path / LAST_BATCH).read_text().splitlines()
            return {row["table"]: row for row in map(json.loads, lines)}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LakeDamaged(self.path / LAST_BATCH, f"does not read ({error})") from error

    def _lost(self, table: str, delta: DeltaTable | None = None) -> str:
        noted = self._noted.get(table)
        if noted is None:
            return ""
        if not self.has(table):
            return "is gone"
        try:
            delta = delta or DeltaTable(str(self.path / table))
        except (DeltaError, OSError) as error:
            return f"does not read ({error})"
        if delta.metadata().id != noted["id"]:
            return "is another table than it was"
        if delta.version() < noted["version"]:
            return f"is an older copy (version {delta.version()}, it was at {noted['version']})"
        return ""

    @contextmanager
    def writer(self, anew: Collection[str] = ()) -> Iterator[LakeWriter]:
        """Yield what writes to the lake; there is one at a time.

        Args:
            anew: tables that are to be made anew: they are not looked at.
        """
        with writer_lock(self.path), self.bucket.lock() if self.bucket else nullcontext():
            if self.bucket:
                self.bucket.pull()
                self.__dict__.pop("_noted", None)
            self.check(anew)
            # Left by a killed run: nobody else writes here.
            shutil.rmtree(self.path / STAGING, ignore_errors=True)
            self._open = {}
            try:
                yield LakeWriter(self)
            finally:
                self._open = None


class LakeWriter:
    """Stages files and commits batches; its holder has the writer lock."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        #: time of the next vacuum, by ``time.monotonic``
        self.vacuum_due = 0.0

    def new_directory(self, table: str) -> Path:
        return self.lake.path / STAGING / f"{table}-{uuid.uuid4().hex[:12]}"

    def stage(self, table: str, directory: Path) -> Staged:
        try:
            return files.adopt(directory, self.lake.path / table)
        except OSError as error:
            raise LakeDiskError(directory, error) from error

    def commit(
        self, table: str, change: Change, batch: LakeBatch | None = None, *, dates: bool = False
    ) -> bool:
        """Commit the next version of a table; False if it has the batch, or there is no change.

        A missing table is made; ``dates`` partitions it by the column ``date``.
        """
        where = self.lake.path / table
        if change.schema is not None and not self.lake.has(table):
            deltalog.create(where, change.schema, dates=dates)
        delta = self.lake.delta(table)
        info: dict[str, Any] = {
            "timestamp": time.time_ns() // 1_000_000,
            "operation": change.operation or ("MERGE" if change.removed else "WRITE"),
            "operationParameters": {},
            "isBlindAppend": not change.removed,
            "engineInfo": "taskq",
        }
        actions: list[dict[str, Any]] = [{"commitInfo": info}]
        if batch is not None:
            known = self.lake.batch(table)
            if known and known.stream == batch.stream and known.number >= batch.number:
                return False
            info |= {"stream": batch.stream, "batch": batch.number}
            if table in BORDERS:
                info["offsets" if batch.is_whole else deltalog.MOVED] = batch.offsets
            app = f"{batch.stream}:{table}"
            actions.append({"txn": {"appId": app, "version": batch.number}})
        elif not change.added and not change.removed:
            return False
        # A reader of a stream passes over what is only written again.
        is_change = change.operation != deltalog.OPTIMIZE
        dates = bool(delta.metadata().partition_columns)
        actions += files.removed(change.removed, dates=dates, is_change=is_change)
        actions += files.added(change.added, dates=dates, is_change=is_change)
        deltalog.append(where, delta, actions, self.new_directory("commit"))
        self._send(table)
        return True

    def _send(self, *tables: str) -> None:
        if self.lake.bucket:
            self.lake.bucket.push(tables)

    def note(self) -> None:
        lake, rows = self.lake, []
        for table in (*filter(lake.has, (OPEN_RECORDS,)), *lake.tables()):
            delta, batch = lake.delta(table), lake.batch(table)
            rows.append(
                {
                    "table": table,
                    "version": delta.version(),
                    "id": str(delta.metadata().id),
                    "batch": None if batch is None else batch.number,
                }
            )
        text = "".join(json.dumps(row) + "\n" for row in rows)
        try:
            publish(lake.path / LAST_BATCH, text.encode(), self.new_directory("note"), over=True)
        except OSError as error:
            raise LakeDiskError(lake.path, error) from error
        lake.__dict__.pop("_noted", None)
        self._send(LAST_BATCH)

    def drop_days(self, table: str, before: str) -> int:
        """Let days of a table go, but for rows that may still change; returns how many files did.

        Args:
            table: its name.
            before: the first day that stays, as ISO 8601 has it.
        """
        gone = tuple(
            file
            for file in self.lake.data_files(table)
            if file.part == files.OVER and file.date is not None and file.date < before
        )
        if gone:
            self.commit(table, Change(removed=gone, operation="DELETE"))
        return len(gone)

    def keep_short(self, table: str) -> None:
        deltalog.keep_short(self.lake.path / table, self.lake.delta(table))
        self._send(table)

    def vacuum(self, table: str, *, keep_hours: int | None = None) -> int:
        count = deltalog.vacuum(self.lake.path / table, self.lake.delta(table), keep_hours)
        self._send(table)
        return count


def _schema(delta: DeltaTable) -> pa.Schema:
    return pa.schema(delta.schema().to_arrow())


JOB_ID: Final = "job_id"
#: Columns with a job's data or quotes of it. Headers keep the id of the repeated job; attempts lose
#: their reasons.
_ERASED: Final = frozenset({
    "payload", "value", "value_bytes", "result", "result_bytes", "key", "key_hash", "headers",
    "concurrency_key", "reason", "history", "attempts", "size_bytes",
})  # fmt: skip
_SCHEMA: Final = pa.schema([(JOB_ID, pa.string()), ("erased_at", pa.timestamp("us", tz="UTC"))])


def bury(writer: LakeWriter, job_ids: Iterable[str]) -> None:
    known = set(erased_jobs(writer.lake.paths(TOMBSTONES)).to_pylist())
    fresh = sorted(set(job_ids) - known)
    if not fresh:
        return
    now = [datetime.now(UTC)] * len(fresh)
    rows = pa.table([pa.array(fresh, pa.string()), pa.array(now, _SCHEMA.types[1])], schema=_SCHEMA)
    directory = writer.new_directory(TOMBSTONES)
    target = directory / f"{PART_COLUMN}={OVER}"
    target.mkdir(parents=True)
    parquet.write_table(rows, target / "0.parquet")
    staged = writer.stage(TOMBSTONES, directory)
    writer.commit(TOMBSTONES, Change(staged.files, schema=_SCHEMA, operation="WRITE"))


def tombstones(lake: Lake) -> tuple[str, ...]:
    return tuple(lake.paths(TOMBSTONES))


def erased_jobs(paths: Sequence[str]) -> pa.Array:
    if not paths:
        return pa.array([], pa.string())
    rows = dataset.dataset(list(paths), format="parquet").to_table(columns=[JOB_ID])
    return rows[JOB_ID].combine_chunks()


def cleared(rows: pa.Table, paths: Sequence[str]) -> pa.Table:
    if not paths:
        return rows
    is_erased = pc.is_in(rows[JOB_ID], erased_jobs(paths))
    return without(rows, is_erased) if pc.any(is_erased).as_py() else rows


def without(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Return the rows; rows of the mask lose the data of their jobs.

    Erasing a record before the fold gives the same rows as erasing after it.
    """
    for index, field in enumerate(rows.schema):
        if field.name in _ERASED:
            column = rows[field.name].combine_chunks()
            kept = _KEPT.get(field.name, _nothing)(column)
            rows = rows.set_column(index, field, pc.if_else(mask, kept, column))
    return rows


def _nothing(column: pa.Array) -> pa.Array:
    return pa.nulls(len(column), column.type)


def _links(headers: pa.MapArray) -> pa.MapArray:
    ids = pc.map_lookup(headers, pa.scalar(REPLAY_OF), "first")
    is_link = pc.is_valid(ids).to_numpy(zero_copy_only=False)
    offsets = np.append(0, np.cumsum(is_link)).astype(np.int32)
    offsets = pa.array(offsets, mask=np.append(~is_link, [False]))
    links = pc.drop_null(ids)
    return pa.MapArray.from_arrays(offsets, pa.repeat(REPLAY_OF, len(links)), links)


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


#: Columns that are erased in part.
_KEPT: Final = {"headers": _links, "attempts": _tries, "history": _histories}


#: A file below this is small ...
SMALL_BYTES_MAX: Final = 8 * 1024 * 1024
#: ... and so many of a day are written together: each row is written again a few times at most.
SMALL_FILES_MAX: Final = 32
#: Row group size in memory, unless the file is smaller.
GROUP_BYTES_MIN: Final = 16 * 1024 * 1024


def compact(writer: LakeWriter, table: str) -> int:
    """Merge the small files of each day of a table; return the number of files removed.

    The rows stay the same.
    """
    days: defaultdict[tuple[str, str | None], list[DataFile]] = defaultdict(list)
    for file in writer.lake.data_files(table):
        if _is_small(file):
            days[file.part, file.date].append(file)
    old: list[DataFile] = []
    new: list[DataFile] = []
    for (part, _), small in days.items():
        if len(small) >= SMALL_FILES_MAX:
            old += small
            new += _merged(writer, table, part, small).files
    if old:
        writer.commit(table, Change(tuple(new), tuple(old), operation=OPTIMIZE))
    return len(old)


def _is_small(file: DataFile) -> bool:
    if file.part == OVER:
        return file.size_bytes < SMALL_BYTES_MAX
    return file.rows < ROWS_MAX // 2


def _merged(writer: LakeWriter, table: str, part: str, small: Sequence[DataFile]) -> Staged:
    chosen = frozenset(file.path for file in small)
    paths = writer.lake.paths(table, lambda file: file.path in chosen)
    directory = writer.new_directory(table)
    # As Spark names them, so that they are taken up in the same way.
    below = small[0].path.rpartition("/")[0]
    target = directory / f"{PART_COLUMN}={part}" / below
    schema = writer.lake.schema(table)
    if below:
        schema = schema.remove(schema.get_field_index(DATE))
    try:
        target.mkdir(parents=True)
        rows_max = None if part == OVER else ROWS_MAX
        _copy(paths, schema, target, rows_max)
    except OSError as error:
        raise LakeDiskError(directory, error) from error
    return writer.stage(table, directory)


def _copy(paths: Sequence[str], schema: pa.Schema, target: Path, rows_max: int | None) -> None:
    small = dataset.dataset(list(paths), schema=schema, format="parquet")
    total = rows = 0

    def number(batch: pa.RecordBatch) -> int:
        nonlocal total, rows
        total += batch.nbytes
        rows += batch.num_rows
        # Compressed, a file has about a fifth of it.
        return int(total // (SMALL_BYTES_MAX * 10)) if rows_max is None else rows // rows_max

    # No readahead: it would be most of the memory of a run with ``--every``.
    ahead = small.to_batches(batch_readahead=1, fragment_readahead=1, use_threads=False)
    for index, batches in groupby(ahead, number):
        with parquet.ParquetWriter(target / f"{index}.parquet", schema, **written(schema)) as file:
            # Each row group has statistics of every column.
            for group in groups(batches, GROUP_BYTES_MIN):
                file.write_table(pa.Table.from_batches(group, schema))
