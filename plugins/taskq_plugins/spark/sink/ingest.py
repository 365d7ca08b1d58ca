"""Uploads: calls in Parquet files in the log's directory, ingested part by part by one process.

``write_parts`` runs on any machine that reaches the log's directory. ``finish`` publishes the list
of valid parts in one step and ingests their jobs. Each transaction includes the position that it
reaches, so an ingest can be killed and repeated. No Spark.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import stat
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from taskq import Call, TaskQ
from taskq.engine import Extras, Flag
from taskq.errors import LogError, SourceMoved
from taskq.hooks import Options

#: Folder of the uploads, in the log's directory.
FOLDER: Final = "uploads"
_MANIFEST: Final = "manifest.json"
#: Jobs of a part, and of one transaction; and bytes of their payloads.
PART_JOBS_MAX: Final = 1_000_000
_ROWS: Final = 2_000
_ROWS_BYTES: Final = 8 * 1024 * 1024
#: Unpublished uploads are removed after this time.
_LEFT_SECONDS: Final = 7 * 86_400
_SCHEMA: Final = pa.schema(
    [
        ("task", pa.string()), ("queue", pa.string()), ("priority", pa.int8()),
        ("attempts", pa.int32()), ("flags", pa.int32()), ("compress", pa.string()),
        ("extras", pa.string()), ("key", pa.binary()), ("body", pa.binary()),
    ]
)  # fmt: skip
_PLAIN: Final = Extras()


class Part(NamedTuple):
    """A file with jobs."""

    name: str
    jobs: int


class Ingested(NamedTuple):
    """Result of an upload.

    Attributes:
        jobs: number of jobs in its parts.
        is_new: False if the whole upload was ingested before; then nothing was done.
        duplicates: jobs left out because of a held key.
    """

    jobs: int
    is_new: bool
    duplicates: int = 0


class Upload(NamedTuple):
    """Jobs that belong together.

    Attributes:
        data_dir: directory of the log.
        source: name of their source, for the log's positions.
        batch: number of the source's batch; 0 if there is only one.
    """

    data_dir: Path
    source: str
    batch: int = 0

    @property
    def folder(self) -> Path:
        return self.data_dir / FOLDER / f"{self.source}@{self.batch}"

    # -- on any machine ---------------------------------------------------------------------------

    def write_parts(self, calls: Iterable[list[Call[Any]]]) -> list[Part]:
        """Write calls into parts; all are durable when this returns."""
        parts: list[Part] = []
        writer: pq.ParquetWriter | None = None
        path, count = self.folder, 0
        try:
            for some in calls:
                if not some:
                    continue
                if writer is None:
                    path, count = self.folder / f"{secrets.token_hex(8)}.parquet", 0
                    writer = self._writer(path)
                writer.write_batch(_staged(some))
                count += len(some)
                if count >= PART_JOBS_MAX:
                    parts.append(_closed(writer, path, count))
                    writer = None
            if writer is not None:
                parts.append(_closed(writer, path, count))
                writer = None
        except BaseException:
            if writer is not None:
                writer.close()
                path.unlink(missing_ok=True)
            self.discard(parts)
            raise
        return parts

    def _writer(self, path: Path) -> pq.ParquetWriter:
        try:
            return pq.ParquetWriter(path, _SCHEMA, compression="zstd")
        except FileNotFoundError:  # the first part, or another process finished the upload
            self._make_folder()
            return pq.ParquetWriter(path, _SCHEMA, compression="zstd")

    def _make_folder(self) -> None:
        """Create the folder, accessible only to users of the log's directory."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(self.data_dir.stat().st_mode) & 0o770 | 0o700
        for path in (self.folder.parent, self.folder):
            with suppress(FileExistsError):
                path.mkdir()
                path.chmod(mode)

    def discard(self, parts: Iterable[Part] | None = None) -> None:
        """Remove unpublished parts; None: all of them."""
        names = {part.name for part in self.published() or ()}
        paths = self.folder.glob("*.parquet") if parts is None else map(self._path, parts)
        with suppress(FileNotFoundError):  # the folder may vanish while it is listed
            for path in [path for path in paths if path.name not in names]:
                path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _path(self, part: Part) -> Path:
        return self.folder / part.name

    # -- in one process ---------------------------------------------------------------------------

    def published(self) -> list[Part] | None:
        """Return the published parts, or None."""
        with suppress(FileNotFoundError):
            return self._manifest()
        return None

    def _manifest(self) -> list[Part]:
        return [Part(*part) for part in json.loads((self.folder / _MANIFEST).read_bytes())]

    def bring(self, calls: Iterable[list[Call[Any]]]) -> Ingested:
        """Write and ingest calls; parts that a killed run published are ingested instead."""
        return self.finish(self.write_parts(calls) if self.published() is None else None)

    def finish(self, parts: list[Part] | None) -> Ingested:
        """Publish the parts, unless others were published before, and ingest the missing jobs.

        Args:
            parts: parts to publish; None if the upload was published before.

        Raises:
            LogError: the log cannot be written; repeat the upload under the same name.
        """
        with ThreadPoolExecutor(1, "taskq-ingest") as pool:  # this thread may run an event loop
            return pool.submit(asyncio.run, self._finish(parts)).result()

    async def _finish(self, parts: list[Part] | None) -> Ingested:
        if parts == [] and self.published() is None:
            return Ingested(0, is_new=False)
        # This process leaves the log's upkeep to workers.
        app = TaskQ(self.data_dir, upkeep=False)
        try:
            lost: FileNotFoundError | None = None
            while True:
                # Another process may ingest the same upload and remove the folder at the end.
                at = await app.position(self.source)
                begun = _place(at, self.batch)
                if begun is None:
                    counted = self.published() or parts
                    jobs = at["jobs"] if counted is None else sum(part.jobs for part in counted)
                    shutil.rmtree(self.folder, ignore_errors=True)
                    return Ingested(jobs, is_new=False)
                if lost is not None:
                    raise LogError(f"{lost.filename}: the upload's file is gone") from lost
                try:
                    return await self._ingest(app, self._publish(parts), at, begun)
                except SourceMoved:
                    continue
                except FileNotFoundError as error:
                    lost = error
        finally:
            await app.close()
            self.discard(parts or [])
            _sweep(self.folder.parent)

    def _publish(self, parts: list[Part] | None) -> list[Part]:
        """Publish these parts, unless others were published before; return the published ones."""
        if parts is None or self.published() is not None:
            return self._manifest()
        for part in parts:
            self._path(part).stat()  # fail now: a published upload without its parts stays broken
        own = self.folder / f"{secrets.token_hex(8)}.json"
        with own.open("w") as file:
            json.dump(parts, file)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(own, self.folder / _MANIFEST)
        own.unlink()
        return self._manifest()

    async def _ingest(
        self, app: TaskQ, parts: list[Part], at: Any, begun: tuple[int, int, int]
    ) -> Ingested:
        part, row, duplicates = begun
        for number in range(part, len(parts)):
            for calls, next_row in _calls(self._path(parts[number]), row):
                position = {
                    "batch": self.batch, "part": number, "row": next_row, "duplicates": duplicates
                }  # fmt: skip
                handles = await app.ingest(self.source, calls, position, after=at)
                # Duplicates in the last transaction before a kill are unknown and not counted.
                duplicates += sum(handle.duplicate for handle in handles)
                at = position
            row = 0
        jobs = sum(part.jobs for part in parts)
        end = {"batch": self.batch, "jobs": jobs, "duplicates": duplicates}
        await app.ingest(self.source, [], end, after=at)
        shutil.rmtree(self.folder, ignore_errors=True)
        return Ingested(jobs, is_new=True, duplicates=duplicates)


def _place(at: Any, batch: int) -> tuple[int, int, int] | None:
    """Return (part, row, duplicates) to continue from; None if the batch was ingested before."""
    if at is None or at["batch"] < batch:
        return 0, 0, 0
    if at["batch"] > batch or "jobs" in at:
        return None
    return at["part"], at["row"], at["duplicates"]


def _sweep(folder: Path) -> None:
    """Remove old, unpublished parts of killed writers."""
    with suppress(OSError):
        for path in folder.iterdir():
            is_old = path.stat().st_mtime < time.time() - _LEFT_SECONDS
            if is_old and not (path / _MANIFEST).exists():
                shutil.rmtree(path, ignore_errors=True)


def _closed(writer: pq.ParquetWriter, path: Path, jobs: int) -> Part:
    writer.close()
    with suppress(FileNotFoundError):  # ``_publish`` finds out whether the upload is complete
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return Part(path.name, jobs)


def _staged(calls: list[Call[Any]]) -> pa.RecordBatch:
    texts: dict[int, str | None] = {}
    rows = []
    for call in calls:
        spec, extras = call.spec, call.extras
        text = key = None
        if extras is not None:
            key = extras.key
            known = texts.get(id(extras))
            text = texts[id(extras)] = known or _text(extras)
        rows.append(
            (spec.task, spec.queue, spec.priority, spec.attempts, int(call.flags),
             call.chosen.compress, text, key, call.body)
        )  # fmt: skip
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _text(extras: Extras) -> str:
    plain = asdict(_PLAIN)
    values = {
        name: b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in asdict(extras).items()
        if value != plain[name] and name != "key"
    }
    return json.dumps(values)


def _extras(text: str | None, key: bytes | None) -> Extras | None:
    if text is None:
        return None
    values = json.loads(text)
    if "concurrency_key" in values:
        values["concurrency_key"] = b64decode(values["concurrency_key"])
    if "on_conflict" in values:
        values["on_conflict"] = type(_PLAIN.on_conflict)(values["on_conflict"])
    return Extras(**values, key=key)


def _calls(path: Path, row: int) -> Iterator[tuple[list[Call[Any]], int]]:
    """Yield lists of calls of a part from a row on, each with the row after it."""
    made: dict[tuple[Any, ...], Call[Any]] = {}
    next_row = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS):
            step = max(min(_ROWS, _ROWS_BYTES * batch.num_rows // max(batch.nbytes, 1)), 1)
            for first in range(0, batch.num_rows, step):
                some = batch.slice(first, step)
                next_row += some.num_rows
                if next_row > row:
                    skipped = max(row - (next_row - some.num_rows), 0)
                    yield _of_rows(some.slice(skipped), made), next_row


def _of_rows(batch: pa.RecordBatch, made: dict[tuple[Any, ...], Call[Any]]) -> list[Call[Any]]:
    columns = [column.to_pylist() for column in batch.columns]
    calls = []
    for *kind, key, body in zip(*columns, strict=True):
        plain = made.get(tuple(kind))
        if plain is None:
            if len(made) >= _ROWS:
                made.clear()
            plain = made[tuple(kind)] = _kind(*kind)
        extras = plain.extras if key is None else _extras(kind[-1], key)
        calls.append(replace(plain, body=body, extras=extras))
    return calls


def _kind(
    task: str, queue: str, priority: int, attempts: int, flags: int, compress: Any, text: str | None
) -> Call[Any]:
    chosen = Options(queue=queue, priority=priority, attempts=attempts, compress=compress)
    return Call(
        name=task, task=None, body=b"", flags=Flag(flags), chosen=chosen,
        spec=chosen.spec(task, Flag(flags)), extras=_extras(text, None),
    )  # fmt: skip
