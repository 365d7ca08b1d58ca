"""The manifest of a version: which files make up each table. This docstring is its format.

A manifest is a file of two lines of JSON. The first names the format, the size and the SHA-256 of
the second; the second says what is new against the version before, or, in every twentieth one,
everything. It names the SHA-256 of its predecessor, so that a chain that was pieced together from
two lakes is found out.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq.core.parsing import parse_json
from taskq_plugins.spark.lake.errors import LakeDamaged, LakeFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

FORMAT: Final = 1
#: Versions from one manifest that tells everything to the next: a bound for what a reader reads.
FULL_EVERY: Final = 20
#: A manifest of thousands of devices and files stays far below; more is no manifest of ours.
SIZE_MAX: Final = 256 * 1024 * 1024
#: Rows that nothing can change any more, and those that the next commit may replace.
OVER: Final = "over"
OPEN: Final = "open"

Hours = tuple[tuple[int, int], ...]


class DataFile(NamedTuple):
    """One Parquet file of a table."""

    #: relative to the lake
    path: str
    rows: int
    size_bytes: int
    part: str
    #: ranges (first, last) of hours since 1970 that its rows tell something of, in rising order
    hours: Hours
    #: in which it came
    version: int


class Batch(NamedTuple):
    """The micro-batch that a version committed last."""

    #: id of the stream: of its checkpoint
    stream: str
    number: int
    #: the text of the checkpoint's own entry, so that the checkpoint can be made anew
    offsets: str


class Refresh(NamedTuple):
    """Of what a derived table was computed."""

    #: the version of the other tables
    version: int
    #: hours of the rows that could still change then
    open_hours: Hours


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """The files of one table; ``schema`` is an Arrow schema as IPC writes it."""

    files: tuple[DataFile, ...] = ()
    schema: bytes = b""
    refresh: Refresh | None = None

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of the lake; version 0 is the empty lake, which has no file."""

    version: int = 0
    created_ns: int = 0
    #: SHA-256 of this manifest's second line, "" for version 0
    digest: str = ""
    batch: Batch | None = None
    tables: Mapping[str, TableFiles] = field(default_factory=dict)

    def table(self, name: str) -> TableFiles:
        """A table's files; none for one that nobody wrote yet."""
        return self.tables.get(name, TableFiles())


class Change(NamedTuple):
    """What a commit does to one table."""

    added: tuple[DataFile, ...] = ()
    #: all files of these parts go
    replaced: frozenset[str] = frozenset()
    #: these go too
    removed: frozenset[str] = frozenset()
    schema: bytes = b""
    refresh: Refresh | None = None


def apply(manifest: Manifest, changes: Mapping[str, Change]) -> dict[str, TableFiles]:
    """The tables after the changes."""
    tables = dict(manifest.tables)
    for name, change in changes.items():
        old = manifest.table(name)
        kept = [
            file
            for file in old.files
            if file.part not in change.replaced and file.path not in change.removed
        ]
        tables[name] = TableFiles(
            files=(*kept, *change.added),
            schema=change.schema or old.schema,
            refresh=change.refresh or old.refresh,
        )
    return tables


def encode(before: Manifest, after: Manifest) -> tuple[bytes, str]:
    """The bytes of a manifest, and its digest."""
    full = after.version % FULL_EVERY == 1
    base = Manifest() if full else before
    tables = {
        name: told
        for name, table in after.tables.items()
        if (told := _table_json(base.table(name), table)) or full
    }
    body = {
        "version": after.version,
        "before": before.digest,
        "created_ns": after.created_ns,
        "full": full,
        "batch": after.batch,
        "tables": tables,
    }
    line = json.dumps(body, separators=(",", ":")).encode()
    digest = hashlib.sha256(line).hexdigest()
    head = {"taskq_lake_manifest": FORMAT, "size": len(line), "sha256": digest}
    return json.dumps(head).encode() + b"\n" + line + b"\n", digest


def _table_json(old: TableFiles, new: TableFiles) -> dict[str, Any]:
    told: dict[str, Any] = {}
    before, after = set(old.files), set(new.files)
    if added := [file for file in new.files if file not in before]:
        told["added"] = added
    if removed := [file.path for file in old.files if file not in after]:
        told["removed"] = removed
    if new.schema != old.schema:
        told["schema"] = base64.b64encode(new.schema).decode()
    if new.refresh != old.refresh:
        told["refresh"] = new.refresh
    return told


class Told(NamedTuple):
    """What one manifest file says, not yet applied to the version before."""

    version: int
    before: str
    digest: str
    full: bool
    created_ns: int
    batch: Batch | None
    tables: dict[str, Change]


def decode(data: bytes, path: Path) -> Told:
    """Read a manifest's bytes.

    Raises:
        LakeFormatError: a newer taskq wrote it.
        LakeDamaged: they are not what was written.
    """
    head_line, _, rest = data.partition(b"\n")
    line = rest[:-1]
    try:
        head = parse_json(head_line)
        version, size, digest = head["taskq_lake_manifest"], int(head["size"]), str(head["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise LakeDamaged(path, "is no manifest (its first line does not read)") from error
    if version != FORMAT:
        raise LakeFormatError(path, version)
    if len(line) != size or hashlib.sha256(line).hexdigest() != digest:
        raise LakeDamaged(path, f"its checksum does not fit its {len(line)} bytes")
    try:
        return _told(parse_json(line), digest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LakeDamaged(path, f"does not read as a manifest ({error})") from error


def _told(body: dict[str, Any], digest: str) -> Told:
    batch = body["batch"]
    return Told(
        version=int(body["version"]),
        before=str(body["before"]),
        digest=digest,
        full=bool(body["full"]),
        created_ns=int(body["created_ns"]),
        batch=None if batch is None else Batch(str(batch[0]), int(batch[1]), str(batch[2])),
        tables={name: _change(told) for name, told in body["tables"].items()},
    )


def _change(told: dict[str, Any]) -> Change:
    refresh = told.get("refresh")
    return Change(
        added=tuple(_data_file(*file) for file in told.get("added", ())),
        removed=frozenset(told.get("removed", ())),
        schema=base64.b64decode(told.get("schema", "")),
        refresh=None if refresh is None else Refresh(int(refresh[0]), _hours(refresh[1])),
    )


def _data_file(
    path: str, rows: int, size_bytes: int, part: str, hours: Iterable[list[int]], version: int
) -> DataFile:
    parts = str(path).split("/")
    if len(parts) == 1 or {"", ".", ".."} & {*parts} or "\0" in path:
        raise ValueError(f"{path!r:.80} is no path of a file in the lake")
    return DataFile(str(path), int(rows), int(size_bytes), str(part), _hours(hours), int(version))


def _hours(pairs: Iterable[Iterable[int]]) -> Hours:
    return tuple((int(first), int(last)) for first, last in pairs)


def follow(manifest: Manifest, told: Told, path: Path) -> Manifest:
    """The version after ``manifest``, or the one that is told in full.

    Raises:
        LakeDamaged: what is told follows another version.
    """
    base = manifest
    if told.full:
        base = Manifest()
    elif told.version != manifest.version + 1 or told.before != manifest.digest:
        raise LakeDamaged(path, f"does not follow the version {manifest.version} that is here")
    return replace(
        base,
        version=told.version,
        created_ns=told.created_ns,
        digest=told.digest,
        batch=told.batch,
        tables=apply(base, told.tables),
    )
