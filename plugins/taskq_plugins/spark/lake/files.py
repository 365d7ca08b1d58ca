"""Data files of a table: any process may write them, and Delta's log lists them."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, fs, parquet

from taskq.engine import system
from taskq_plugins.spark.errors import LakeBusy, LakeDamaged, LakeDiskError, LakeError

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

#: Partition column of tables: a day, UTC.
DATE: Final = "date"
#: Column of jobs and attempts: whether the row is final.
IS_OVER: Final = "is_over"
#: ``kind`` of a row for a part of a log that was read: from the beginning of ``segment`` up to the
#: record ``lsn``, with the time ``ts_ns``.
POSITION: Final = "position"
#: Header of a replayed job, with the id of the original.
REPLAY_OF: Final = "replay_of"
LOCK: Final = "_lock"
#: File with the tables' versions after the last complete batch, a JSON line each, for checks.
LAST_BATCH: Final = "last_batch.json"
#: Rows at most of a file with rows that may still change.
ROWS_MAX: Final = 5_000
#: Bytes in memory of a file's rows, unless a single row has more.
BYTES_MAX: Final = 128 * 1024 * 1024
_PID_SIZE_MAX: Final = 20
#: Name of a null in directory names of Hive, Spark and Delta.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
#: Text columns with unique values, which gain nothing from a dictionary.
_UNIQUE: Final = frozenset({"job_id", "key"})
#: Text columns with statistics, for the selection of files.
_NAMES: Final = frozenset({"device", "task", "state"})
#: A bound that is cut to the millisecond loses at most this.
_ROUNDED_UP: Final = timedelta(microseconds=999)
_RETRY: Final[Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=15)}
_PROBE: Final[Any] = {"max_retries": 1, "retry_timeout": timedelta(seconds=3)}

Ranges = dict[str, tuple[Any, Any]]


def is_address(lake: str | Path) -> bool:
    """Return whether a lake is in object storage, such as ``s3://bucket/lake``."""
    return "://" in str(lake)


def check_store(uri: str) -> None:
    """Raise LakeError within seconds if a bucket is missing, denies access or does not answer."""
    import obstore  # noqa: PLC0415 - only for object storage
    from obstore.exceptions import BaseError  # noqa: PLC0415
    from obstore.store import from_url  # noqa: PLC0415

    try:
        next(iter(obstore.list(from_url(uri, retry_config=_PROBE), chunk_size=1)), None)
    except BaseError as error:
        text = str(error).strip().partition("\n")[0].rpartition(" - ")[2]
        reason = "".join(re.findall(r"<Message>(.*?)</Message>", str(error), re.DOTALL)[:1]) or text
        raise LakeError(
            f"{uri}: the store refuses, or does not answer ({reason:.300}): check the name of the "
            f"bucket, endpoint and credentials (AWS_… in the environment)"
        ) from error


def sync(path: Path) -> None:
    """Fsync a file or a directory."""
    if path.is_dir():
        system.sync_directory(str(path))
        return
    descriptor = os.open(path, os.O_RDWR)  # Windows flushes only writable files
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


@contextmanager
def writer_lock(lake: str) -> Iterator[None]:
    """Hold the lock of a lake in a directory; object storage has only Delta's log for conflicts."""
    if is_address(lake):
        yield
        return
    # A user with write access can lock writers out, or replace the file.
    own = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | system.NONBLOCK
    descriptor = os.open(Path(lake) / LOCK, os.O_RDWR | os.O_CREAT | own, 0o600)
    try:
        if not system.try_flock(system.Pace(), descriptor):
            noted = system.pread(descriptor, _PID_SIZE_MAX, 0).strip()
            raise LakeBusy(lake, int(noted) if noted.isdigit() else 0)
        os.ftruncate(descriptor, 0)
        system.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


class Folder(NamedTuple):
    """A directory of a lake, on this machine or in object storage."""

    uri: str

    @property
    def filesystem(self) -> fs.FileSystem:
        if not is_address(self.uri):
            return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - only for object storage

        return fs.PyFileSystem(DeltaStorageHandler(self.uri))

    def below(self, name: str) -> Folder:
        return Folder(f"{self.uri}/{name}")

    def write(self, path: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Write a whole file durably; an existing file is replaced."""
        if is_address(self.uri):
            import obstore  # noqa: PLC0415 - as above
            from obstore.store import from_url  # noqa: PLC0415

            obstore.put(from_url(self.uri, retry_config=_RETRY), path, bytes(data))
            return
        where = Path(self.uri) / path
        beside = where.with_name(f"{where.name}.{uuid.uuid4().hex}")
        try:
            make_directory(where.parent)
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.rename(where)
            sync(where.parent)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise LakeDiskError(where, error) from error

    def rows(
        self,
        files: Iterable[DataFile],
        schema: pa.Schema,
        where: pc.Expression | None = None,
        names: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return columns of some files of one table; partition columns come from their paths."""
        chosen = list(files)
        if not chosen:
            return schema.empty_table().select(schema.names if names is None else names)
        parted = pa.schema([field for field in schema if field.name in chosen[0].values])
        data = dataset.dataset(
            [file.path for file in chosen], schema=schema, format="parquet",
            filesystem=self.filesystem, partitioning=dataset.partitioning(parted, flavor="hive"),
        )  # fmt: skip
        try:
            return data.to_table(None if names is None else [*names], filter=where)
        except FileNotFoundError as error:
            raise LakeDamaged(self.uri, f"lacks a file that the table names ({error})") from error
        except (pa.ArrowInvalid, OSError) as error:
            raise LakeDamaged(self.uri, f"holds a file that does not read ({error})") from error


class DataFile(NamedTuple):
    """One Parquet file of a table.

    Attributes:
        path: path relative to the table's directory.
        rows, size_bytes: size of the file.
        values: values of the partition columns.
        ranges: (least, largest) of each column with a value; for integers from the table's log.
        nulls: number of nulls in each of these columns.
    """

    path: str
    rows: int
    size_bytes: int
    values: dict[str, str | None]
    ranges: Ranges
    nulls: dict[str, int]

    @property
    def date(self) -> str | None:
        return self.values.get(DATE)

    @property
    def is_over(self) -> bool:
        return self.values.get(IS_OVER) == "true"

    def added(self, *, is_change: bool) -> AddAction:
        from deltalake.transaction import AddAction  # noqa: PLC0415 - taskq sql does not need it

        stats = {
            "numRecords": self.rows,
            "minValues": {name: _low(low) for name, (low, _) in self.ranges.items()},
            "maxValues": {name: _high(high) for name, (_, high) in self.ranges.items()},
            "nullCount": self.nulls,
        }
        now_ms = time.time_ns() // 1_000_000
        path = quote(self.path, safe="/=")
        return AddAction(path, self.size_bytes, self.values, now_ms, is_change, json.dumps(stats))

    def removed(self, *, is_change: bool) -> RemoveAction:
        from deltalake.transaction import RemoveAction  # noqa: PLC0415 - as above

        now_ms = time.time_ns() // 1_000_000
        path = quote(self.path, safe="/=")
        return RemoveAction(path, is_change, now_ms, self.size_bytes, self.values)

    @classmethod
    def listed(cls, action: Mapping[str, object]) -> DataFile:
        """Return a file from deltalake's listing."""
        values = {
            name.partition(".")[2]: None if value is None else str(value).lower()
            for name, value in action.items()
            if name.startswith("partition.")
        }
        lows = {name[4:]: value for name, value in action.items() if name.startswith("min.")}
        ranges = {
            name: (low, high)
            for name, low in lows.items()
            if isinstance(low, int) and isinstance(high := action.get(f"max.{name}"), int)
        }
        nulls = {
            name[11:]: value
            for name, value in action.items()
            if name.startswith("null_count.") and isinstance(value, int)
        }
        rows, size = action["num_records"], action["size_bytes"]
        return cls(
            unquote(str(action["path"])),
            rows if isinstance(rows, int) else 0,
            size if isinstance(size, int) else 0,
            values,
            ranges,
            nulls,
        )


def indexed(schema: pa.Schema) -> list[str]:
    """Return the columns with statistics: numbers, moments, and some short names.

    delta-rs skips a file that lacks statistics for a column, unless the table lists its indexed
    columns. So the table lists these columns, and each file has statistics for all of them.
    """
    return [
        field.name
        for field in schema
        if pa.types.is_integer(field.type)
        or pa.types.is_timestamp(field.type)
        or field.name in _NAMES
    ]


def write_rows(
    folder: Folder, rows: pa.Table, parted: Sequence[str], rows_max: int | None = None
) -> list[DataFile]:
    """Write rows into a table's directory, and return the files, not yet part of a version.

    Args:
        folder: directory of the table.
        rows: rows with all columns.
        parted: partition columns of the table.
        rows_max: rows of a file at most; None: limited only by ``BYTES_MAX``. Files with rows that
            may change have at most ``ROWS_MAX``.
    """
    files = []
    for place in rows.select(parted).group_by(parted).aggregate([]).to_pylist() if parted else [{}]:
        chosen = rows if not place else rows.filter(_are_at(rows, place))
        plain = chosen.drop_columns(list(parted))
        values = {name: _named(value) for name, value in place.items()}
        below = "".join(f"{name}={value or _NULL}/" for name, value in values.items())
        step = ROWS_MAX if place.get(IS_OVER) is False else rows_max or plain.num_rows
        for at in range(0, plain.num_rows, max(step, 1)):
            for some in _split(plain.slice(at, step)):
                path = f"{below}{uuid.uuid4().hex}.parquet"
                files.append(_written(folder, path, some, values))
    return files


def _written(folder: Folder, path: str, rows: pa.Table, values: dict[str, str | None]) -> DataFile:
    sink = pa.BufferOutputStream()
    parquet.write_table(rows, sink, **_encoding(rows.schema))
    data = sink.getvalue()
    folder.write(path, data)
    ranges: Ranges = {}
    nulls: dict[str, int] = {}
    for name in indexed(rows.schema):
        nulls[name] = rows[name].null_count
        if nulls[name] < rows.num_rows:
            bounds = pc.min_max(rows[name]).as_py()
            ranges[name] = bounds["min"], bounds["max"]
    return DataFile(path, rows.num_rows, data.size, values, ranges, nulls)


def _named(value: object) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _are_at(rows: pa.Table, place: Mapping[str, Any]) -> pa.ChunkedArray:
    masks = (
        pc.is_null(rows[name]) if value is None else pc.equal(rows[name], value)
        for name, value in place.items()
    )
    return pc.fill_null(reduce(pc.and_, masks), fill_value=False)


def _encoding(schema: pa.Schema) -> dict[str, Any]:
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
    if rows.nbytes <= BYTES_MAX or rows.num_rows <= 1:
        yield rows
    else:
        half = rows.num_rows // 2
        yield from _split(rows.slice(0, half))
        yield from _split(rows.slice(half))


def _low(bound: Any) -> Any:
    if not isinstance(bound, datetime):
        return bound
    return bound.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _high(bound: Any) -> Any:
    return _low(bound + _ROUNDED_UP if isinstance(bound, datetime) else bound)
