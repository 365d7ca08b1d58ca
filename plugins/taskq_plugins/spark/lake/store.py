"""The lake: tables as Parquet files that a manifest names.

Whoever reads trusts the newest manifest and nothing else: a file that no manifest names is what a
killed writer left. A commit is one new manifest, so it is visible as a whole or not at all.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import dataset

from taskq_plugins.spark.lake import identity
from taskq_plugins.spark.lake.durable import publish, writer_lock
from taskq_plugins.spark.lake.errors import LakeConflict, LakeDamaged, LakeDiskError, LakeError
from taskq_plugins.spark.lake.history import History, manifest_path
from taskq_plugins.spark.lake.manifest import Change, Manifest, apply, encode
from taskq_plugins.spark.lake.staging import Staged, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from taskq_plugins.spark.lake.manifest import Batch, DataFile

#: Raw records of jobs that are not over: of the pipeline alone.
OPEN_RECORDS: Final = "_open"
#: ``kind`` of the rows of that table which say how far each log was read.
POSITION: Final = "position"
CHECKPOINT: Final = "_checkpoint"


class Lake:
    """One lake, for reading; ``writer()`` gives what writes.

    Attributes:
        path: its directory.
        lake_id: a UUID, made with the lake.
    """

    def __init__(self, path: Path, lake_id: str) -> None:
        self.path = path
        self._real_path = os.path.realpath(path)
        self.lake_id = lake_id
        self._history = History(path / identity.MANIFESTS)

    @classmethod
    def open(cls, path: str | Path, *, create: bool = False) -> Lake:
        """The lake in that directory, made anew with ``create`` where there is none.

        Raises:
            NotALake: there is none.
            LakeError: the directory holds something else.
        """
        where = Path(path).absolute()
        if create:
            identity.create(where, time.time_ns())
        return cls(where, identity.read_identity(where))

    @property
    def checkpoint(self) -> Path:
        """Where the stream that fills the lake keeps how far it came."""
        return self.path / CHECKPOINT

    def manifest(self, version: int | None = None) -> Manifest:
        """The newest version, or an older one.

        Raises:
            LakeDamaged: a manifest is missing or not as written.
            LakeError: that version is not kept any more.
        """
        return self._history.newest() if version is None else self._history.at(version)

    def versions_since(self, moment_ns: int) -> Iterator[Manifest]:
        """The versions that were the newest at that moment or later, rising.

        Raises:
            LakeDamaged: a manifest is missing or not as written.
        """
        return self._history.since(moment_ns)

    def files(
        self,
        table: str,
        part: str | None = None,
        manifest: Manifest | None = None,
        want: Callable[[DataFile], bool] | None = None,
    ) -> list[str]:
        """Paths of a table's files, or of one part of it.

        Raises:
            LakeDamaged: one is missing, or not as long as it was.
        """
        chosen = manifest or self.manifest()
        found = []
        for file in chosen.table(table).files:
            if part in (None, file.part) and (want is None or want(file)):
                self._check(file, chosen.version)
                found.append(str(self.path / file.path))
        return found

    def _check(self, file: DataFile, version: int) -> None:
        path = self.path / file.path
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise LakeDamaged(path, f"is missing, version {version} names it") from error
        if os.path.realpath(path) != f"{self._real_path}/{file.path}":
            raise LakeDamaged(path, "is a symbolic link, or below one: it may be outside")
        if size != file.size_bytes:
            raise LakeDamaged(path, f"has {size} bytes, version {version} says {file.size_bytes}")

    def schema(self, table: str, manifest: Manifest | None = None) -> pa.Schema:
        """A table's columns.

        Raises:
            LakeError: there is no such table.
        """
        chosen = manifest or self.manifest()
        data = chosen.table(table).schema
        if not data:
            known = ", ".join(sorted(chosen.tables)) or "none yet"
            raise LakeError(f"{self.path}: there is no table {table!r}; there are: {known}")
        return pa.ipc.read_schema(pa.py_buffer(data))

    def dataset(
        self, table: str, part: str | None = None, manifest: Manifest | None = None
    ) -> dataset.Dataset:
        """A table for pyarrow, and for all that reads pyarrow's datasets.

        Raises:
            LakeError: there is no such table.
            LakeDamaged: a file of it is missing.
        """
        chosen = manifest or self.manifest()
        schema = self.schema(table, chosen)
        return dataset.dataset(self.files(table, part, chosen), schema=schema, format="parquet")

    @contextmanager
    def writer(self) -> Iterator[LakeWriter]:
        """What writes to the lake; there is one at a time.

        Raises:
            LakeBusy: another process writes.
        """
        with writer_lock(self.path):
            yield LakeWriter(self)


class LakeWriter:
    """Stages files and commits versions; its holder has the writer lock."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def new_directory(self, table: str) -> Path:
        """A directory for files of a table that nobody used before; it is not made yet."""
        version = self.lake.manifest().version + 1
        return self.lake.path / table / f"{version:08d}-{uuid.uuid4().hex[:12]}"

    def stage(self, table: str, directory: Path) -> Staged:
        """Describe what was written to a directory, after making it durable.

        Raises:
            LakeDiskError: the disk failed.
            LakeDamaged: a file is not whole.
        """
        version = self.lake.manifest().version
        try:
            return stage(self.lake.path, directory, table, version + 1)
        except OSError as error:
            raise LakeDiskError(directory, error, version) from error

    def commit(self, changes: Mapping[str, Change], *, batch: Batch | None = None) -> Manifest:
        """Make the next version: all of the changes at once.

        Args:
            changes: by table.
            batch: the micro-batch that it came from; that of the version before if None.

        Raises:
            LakeConflict: somebody else made that version.
            LakeDiskError: the disk refused; the version before stands.
        """
        before = self.lake.manifest()
        after = Manifest(
            version=before.version + 1,
            created_ns=time.time_ns(),
            batch=batch or before.batch,
            tables=apply(before, changes),
        )
        data, _ = encode(before, after)
        path = manifest_path(self.lake.path / identity.MANIFESTS, after.version)
        try:
            publish(path, data)
        except FileExistsError as error:
            raise LakeConflict(path) from error
        except OSError as error:
            raise LakeDiskError(path, error, before.version) from error
        return self.lake.manifest()
