"""Data files of a table: as Spark wrote them, described for Delta's log, and on disk for good."""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from taskq_plugins.spark.lake.errors import LakeBusy, LakeDamaged

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: The column that tables are partitioned by: a day, UTC.
DATE: Final = "date"
#: Name of Spark's partition directory: ``part=over``.
PART_COLUMN: Final = "part"
#: Parts of a table: final rows, and rows that a batch may replace. The part is the first word of a
#: file's name.
OVER: Final = "over"
OPEN: Final = "open"
DEAD: Final = "dead"
#: The ``kind`` of a row that stands for a stretch of a log that was read: from the beginning of
#: ``segment`` up to ``lsn``, whose record was of ``ts_ns``.
POSITION: Final = "position"
#: Header with the id of the job that this one repeats.
REPLAY_OF: Final = "replay_of"


def sync_file(path: Path) -> None:
    with _opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def publish(path: Path, data: bytes, beside: Path, *, over: bool = False) -> None:
    """Write a complete, synced file, visible only then.

    ``beside`` is the temporary path, on the same file system. ``over`` replaces an existing file.
    """
    beside.parent.mkdir(exist_ok=True)
    try:
        beside.write_bytes(data)
        sync_file(beside)
        (os.replace if over else os.link)(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# One writer at a time.

LOCK: Final = "_lock"
#: The tables as of the last batch that all have, a line of JSON each: they are held against it.
LAST_BATCH: Final = "last_batch.json"
_PID_SIZE_MAX: Final = 20


@contextmanager
def writer_lock(lake: Path) -> Iterator[None]:
    path = lake / LOCK
    # A user with write access can lock out writers, or put another file here.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            noted = os.pread(descriptor, _PID_SIZE_MAX, 0).strip()
            raise LakeBusy(lake, int(noted) if noted.isdigit() else 0) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


#: Rows of a file, at most, that a batch may have to write again.
ROWS_MAX: Final = 5_000
#: Bytes of any file's rows, in memory, unless a single row has more.
BYTES_MAX: Final = 128 * 1024 * 1024
#: How Hive, Spark and Delta write a null in a directory's name.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"

#: Columns whose text is another in each row: a dictionary of it is made in vain.
_UNIQUE: Final = frozenset({"job_id", "key"})
#: Columns of text that files are chosen by.
_NAMES: Final = frozenset({"device", "task", "state"})
#: Maximal loss of a bound that is cut to the millisecond.
_ROUNDED_UP: Final = timedelta(microseconds=999)

Ranges = dict[str, tuple[Any, Any]]


class DataFile(NamedTuple):
    """One Parquet file of a table."""

    #: relative to the table's directory
    path: str
    rows: int
    size_bytes: int
    #: None: of rows without a moment, or of a table without dates
    date: str | None
    #: (least, largest) of each column that is not all null; for integers taken from the list
    ranges: Ranges
    #: how many nulls each of them has
    nulls: dict[str, int]

    @property
    def part(self) -> str:
        return self.path.rpartition("/")[2].partition("-")[0]


class Staged(NamedTuple):
    """Files that lie on disk and are in no version of the table yet."""

    files: tuple[DataFile, ...]
    schema: pa.Schema


def adopt(directory: Path, table: Path) -> Staged:
    """Move the Parquet files of a directory into the table, durably.

    Empty files and the writer's leftovers are removed.
    """
    files: list[DataFile] = []
    schema: pa.Schema | None = None
    places: dict[str, int] = {}
    batch = uuid.uuid4().hex[:12]
    for path in sorted(directory.rglob("*.parquet")):
        if path.name[0] in "._":
            continue
        footer = _footer(path)
        if schema is None:
            schema = footer.schema.to_arrow_schema().remove_metadata()
            leaves = [footer.schema.column(index).path for index in range(footer.num_columns)]
            places = {name: leaves.index(name) for name in indexed(schema)}
        if not footer.num_rows:
            continue
        values = dict(part.partition("=")[::2] for part in path.relative_to(directory).parts[:-1])
        part, date = values.get(PART_COLUMN, OVER), values.get(DATE)
        target = table / (f"{DATE}={date}" if date else "")
        target.mkdir(parents=True, exist_ok=True)
        moved = target / f"{part}-{batch}-{len(files)}.parquet"
        path.rename(moved)
        sync_file(moved)
        name = moved.relative_to(table).as_posix()
        day = None if date == _NULL else date
        ranges, nulls = _stats_of(moved, footer, places)
        size = moved.stat().st_size
        files.append(DataFile(name, footer.num_rows, size, day, ranges, nulls))
    if files:
        for parent in {(table / file.path).parent for file in files} | {table}:
            sync_directory(parent)
    return Staged(tuple(files), schema or pa.schema([]))


def _footer(path: Path) -> parquet.FileMetaData:
    try:
        return parquet.read_metadata(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise LakeDamaged(path, f"is no whole Parquet file ({error})") from error


def indexed(schema: pa.Schema) -> list[str]:
    """Return the columns with statistics: numbers, moments, and some short names.

    delta-rs skips a file without statistics for a column, unless the table lists its indexed
    columns. So the table lists these, and each file has statistics for all of them.
    """
    return [
        field.name
        for field in schema
        if pa.types.is_integer(field.type)
        or pa.types.is_timestamp(field.type)
        or field.name in _NAMES
    ]


def _stats_of(
    path: Path, footer: parquet.FileMetaData, places: Mapping[str, int]
) -> tuple[Ranges, dict[str, int]]:
    ranges: Ranges = {}
    nulls: dict[str, int] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for name, place in places.items():
        statistics = [group.column(place).statistics for group in groups]
        if all(group is not None and group.has_null_count for group in statistics):
            nulls[name] = sum(group.null_count for group in statistics)
            known = [group for group in statistics if group.has_min_max]
            if known:
                ranges[name] = (
                    min(group.min for group in known),
                    max(group.max for group in known),
                )
            if known or nulls[name] == footer.num_rows:
                continue
        column = parquet.read_table(path, columns=[name], partitioning=None)[name]
        nulls[name] = column.null_count
        bounds = pc.min_max(column).as_py()
        if bounds["min"] is not None:
            ranges[name] = (bounds["min"], bounds["max"])
    return ranges, nulls


def added(files: Iterable[DataFile], *, dates: bool, is_change: bool) -> list[dict[str, Any]]:
    return [
        {
            "add": _action(file, dates=dates, is_change=is_change)
            | {
                "modificationTime": time.time_ns() // 1_000_000,
                "stats": json.dumps(
                    {
                        "numRecords": file.rows,
                        "minValues": {name: _low(low) for name, (low, _) in file.ranges.items()},
                        "maxValues": {name: _high(high) for name, (_, high) in file.ranges.items()},
                        "nullCount": file.nulls,
                    }
                ),
            }
        }
        for file in files
    ]


def removed(files: Iterable[DataFile], *, dates: bool, is_change: bool) -> list[dict[str, Any]]:
    now_ms = time.time_ns() // 1_000_000
    return [
        {
            "remove": _action(file, dates=dates, is_change=is_change)
            | {"deletionTimestamp": now_ms, "extendedFileMetadata": True}
        }
        for file in files
    ]


def _action(file: DataFile, *, dates: bool, is_change: bool) -> dict[str, Any]:
    return {
        "path": quote(file.path, safe="/="),
        "size": file.size_bytes,
        "partitionValues": {DATE: file.date} if dates else {},
        "dataChange": is_change,
    }


def _low(bound: Any) -> Any:
    if not isinstance(bound, datetime):
        return bound
    return bound.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _high(bound: Any) -> Any:
    return _low(bound + _ROUNDED_UP if isinstance(bound, datetime) else bound)


def named(path: str) -> str:
    return unquote(path)


def _listed(action: Mapping[str, object]) -> DataFile:
    date = action.get(f"partition.{DATE}")
    lows = {name[4:]: value for name, value in action.items() if name.startswith("min.")}
    ranges = {
        name: (low, high)
        for name, low in lows.items()
        if isinstance(low, int) and isinstance(high := action.get(f"max.{name}"), int)
    }
    nulls = {name[11:]: value for name, value in action.items() if name.startswith("null_count.")}
    rows, size = action["num_records"], action["size_bytes"]
    return DataFile(
        path=named(str(action["path"])),
        rows=rows if isinstance(rows, int) else 0,
        size_bytes=size if isinstance(size, int) else 0,
        date=None if date is None else str(date),
        ranges=ranges,
        nulls={name: value for name, value in nulls.items() if isinstance(value, int)},
    )


class Listing(NamedTuple):
    """The files of one version of a table, by path."""

    version: int
    files: dict[str, DataFile]

    @classmethod
    def of(cls, delta: DeltaTable, known: Listing | None) -> Listing:
        actions = pa.table(delta.get_add_actions(flatten=True))
        paths = [named(path) for path in actions["path"].to_pylist()]
        old = known.files if known is not None else {}
        new = pa.array([path not in old for path in paths], pa.bool_())
        fresh = {file.path: file for file in map(_listed, actions.filter(new).to_pylist())}
        return cls(delta.version(), {path: fresh.get(path) or old[path] for path in paths})


def write_rows(rows: pa.Table, target: Path, number: int) -> None:
    names = [name for name in (PART_COLUMN, DATE) if name in rows.column_names]
    places = rows.select(names).group_by(names).aggregate([]).to_pylist()
    plain = rows.drop_columns(names)
    for place in places:
        below = target / f"{PART_COLUMN}={place[PART_COLUMN]}"
        if DATE in place:
            below /= f"{DATE}={place[DATE] or _NULL}"
        chosen = plain if len(places) == 1 else plain.filter(_are_at(rows, place))
        below.mkdir(parents=True, exist_ok=True)
        step = chosen.num_rows if place[PART_COLUMN] == OVER else ROWS_MAX
        slices = (chosen.slice(at, step) for at in range(0, chosen.num_rows, step))
        for turn, some in enumerate(chain.from_iterable(map(_split, slices))):
            path = below / f"{number:06d}-{turn:06d}.parquet"
            parquet.write_table(some, path, **written(some.schema))


def _are_at(rows: pa.Table, place: Mapping[str, Any]) -> pa.ChunkedArray:
    masks = (
        pc.is_null(rows[name]) if value is None else pc.equal(rows[name], value)
        for name, value in place.items()
    )
    return reduce(pc.and_, masks)


def written(schema: pa.Schema) -> dict[str, Any]:
    counts = (
        field.name
        for field in schema
        if pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)
    )
    return {
        "compression": "zstd",
        "column_encoding": dict.fromkeys(counts, "DELTA_BINARY_PACKED"),
        "use_dictionary": [
            field.name
            for field in schema
            if pa.types.is_string(field.type) and field.name not in _UNIQUE
        ],
    }


def _split(rows: pa.Table) -> Iterator[pa.Table]:
    if rows.nbytes <= BYTES_MAX or rows.num_rows == 1:
        yield rows
    else:
        half = rows.num_rows // 2
        yield from _split(rows.slice(0, half))
        yield from _split(rows.slice(half))


def groups(
    batches: Iterable[pa.RecordBatch], size_bytes: int | None = None
) -> Iterator[list[pa.RecordBatch]]:
    """Yield batches to hold in memory at once, each about ``BYTES_MAX`` or one file."""
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= (size_bytes or BYTES_MAX):
            yield group
            group, size = [], 0
    if group:
        yield group


def in_part(rows: pa.Table, part: str) -> pa.Table:
    return rows.append_column(PART_COLUMN, pa.repeat(part, rows.num_rows))


def placed(rows: pa.Table, file: DataFile) -> pa.Table:
    rows = in_part(rows, file.part)
    if "/" not in file.path:
        return rows
    day = pa.scalar(file.date, pa.string()).cast(pa.date32())
    return rows.append_column(DATE, pa.repeat(day, rows.num_rows))


def checked(table: Path, file: DataFile) -> Path:
    path = table / file.path
    parts = Path(file.path).parts
    if Path(file.path).is_absolute() or ".." in parts or ":" in parts[0]:
        raise LakeDamaged(path, "is no path of a file in the table")
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise LakeDamaged(path, "is missing, although the table names it") from error
    if path.resolve() != table.resolve() / file.path:
        raise LakeDamaged(path, "is a symbolic link, or below one: it may be outside")
    if size != file.size_bytes:
        raise LakeDamaged(path, f"has {size} bytes, the table says {file.size_bytes}")
    return path
