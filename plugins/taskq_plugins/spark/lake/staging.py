"""Files that somebody wrote for a table: looked at, put on disk, and described for a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from taskq_plugins.spark.lake.durable import sync_directory, sync_file
from taskq_plugins.spark.lake.errors import LakeDamaged
from taskq_plugins.spark.lake.hours import HOUR_NS, ranges
from taskq_plugins.spark.lake.manifest import OVER, DataFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from taskq_plugins.spark.lake.manifest import Hours

#: The columns of a table that say in which hours a row counts.
HOUR_COLUMNS: Final = {"jobs": ("enqueued_ns", "settled_ns"), "attempts": ("ended_ns",)}
#: What Spark calls the directory of a part: ``part=over``.
PART_COLUMN: Final = "part"


class Staged(NamedTuple):
    """Files that lie on disk and are in no manifest yet."""

    files: tuple[DataFile, ...]
    #: an Arrow schema as IPC writes it
    schema: bytes


def stage(lake: Path, directory: Path, table: str, version: int) -> Staged:
    """Describe all Parquet files below a directory, after making them durable.

    Files without rows are left out, and removed with whatever else was left there by who wrote.

    Raises:
        LakeDamaged: a file is no whole Parquet file.
        OSError: the disk failed.
    """
    files: list[DataFile] = []
    schema = b""
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            continue
        if path.suffix != ".parquet" or path.name[0] in "._":
            path.unlink()
            continue
        footer = _footer(path)
        schema = (
            schema or footer.schema.to_arrow_schema().remove_metadata().serialize().to_pybytes()
        )
        if not footer.num_rows:
            path.unlink()
            continue
        sync_file(path)
        files.append(
            DataFile(
                path=path.relative_to(lake).as_posix(),
                rows=footer.num_rows,
                size_bytes=path.stat().st_size,
                part=_part(path),
                hours=_hours(path, HOUR_COLUMNS.get(table, ()), footer),
                version=version,
            )
        )
    for one in (*filter(_is_directory, directory.rglob("*")), directory, directory.parent, lake):
        sync_directory(one)
    return Staged(tuple(files), schema)


def _is_directory(path: Path) -> bool:
    return path.is_dir()


def _footer(path: Path) -> parquet.FileMetaData:
    try:
        return parquet.read_metadata(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise LakeDamaged(path, f"is no whole Parquet file ({error})") from error


def _part(path: Path) -> str:
    name, _, value = path.parent.name.partition("=")
    return value if name == PART_COLUMN else OVER


def _hours(path: Path, columns: Sequence[str], footer: parquet.FileMetaData) -> Hours:
    there = [name for name in columns if name in footer.schema.names]
    if not there:
        return ()
    read = parquet.ParquetFile(path).read(there)
    found: set[int] = set()
    for name in there:
        moments = pc.drop_null(read[name])
        # Division goes towards zero, which before 1970 is the future.
        below = pc.if_else(pc.less(moments, 0), pc.subtract(moments, HOUR_NS - 1), moments)
        found.update(pc.unique(pc.divide(below, HOUR_NS)).to_pylist())
    return ranges(found)
