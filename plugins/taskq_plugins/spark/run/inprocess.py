"""A run without Java: the same stream, the same checkpoint, for what is read before Spark starts.

The source's stream reader is asked as Spark asks it, and what is planned and what ran is noted as
Spark notes it. So the next run may be Spark's, and this one may finish what Spark began.
"""

from __future__ import annotations

import ctypes
import json
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import pyarrow as pa

from taskq.errors import TaskqError
from taskq_plugins.spark.lake.compacting import compact
from taskq_plugins.spark.lake.durable import publish
from taskq_plugins.spark.lake.errors import LakeError
from taskq_plugins.spark.lake.store import (
    ATTEMPTS,
    DERIVED,
    JOBS,
    KEEP_HOURS,
    OPEN_RECORDS,
    RECORDS,
)
from taskq_plugins.spark.run.batch import commit_batch, fold_all, is_committed, stage_records
from taskq_plugins.spark.run.checkpoint import RAN, batch_of, check, read_checkpoint, read_offsets
from taskq_plugins.spark.run.derived import refresh_tables
from taskq_plugins.spark.run.interrupting import interruptible
from taskq_plugins.spark.run.reasons import failure_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from taskq_plugins.spark.lake import LakeWriter
    from taskq_plugins.spark.run.batch import Folded
    from taskq_plugins.spark.source.stream import StreamReader

#: Bytes of log that are read here: about what Spark takes as long for to start.
BYTES_MAX: Final = 16 * 1024 * 1024
#: ... and of one batch, which is in memory as a whole.
_BATCH_BYTES: Final = 8 * 1024 * 1024
#: Batches whose notes are kept, as Spark keeps them.
_NOTES_KEPT: Final = 100
#: So long can be told what is new of a small table; of the others, how long a reader may take.
_KEEP_HOURS: Final = {"failures": 7 * 24}
#: So often a run that is kept open removes what is older: each time it looks at every file.
_VACUUM_SECONDS: Final = 600
_vacuum_due: Final[WeakKeyDictionary[LakeWriter, float]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What is read, and how."""

    journals: Path
    max_bytes: int
    tables: Sequence[str] = DERIVED
    corrupt: str = "fail"
    fail_on_data_loss: bool = True
    #: whether ``records`` lacks payloads and results
    drops_payloads: bool = False
    #: how many days of a table are kept; of one that is not named, all
    keep_days: Mapping[str, int] = field(default_factory=dict)

    def kept_from(self, table: str) -> str:
        """Return the first day of a table that is kept, "" for all."""
        if table not in self.keep_days:
            return ""
        return str(datetime.now(UTC).date() - timedelta(days=self.keep_days[table]))

    def of_source(self) -> dict[str, str]:
        """Return the source's options."""
        return {
            "path": str(self.journals),
            "includeDetails": "true",
            "binary": "true",
            "maxBytesPerTrigger": str(self.max_bytes),
            "corruptMode": self.corrupt,
            "failOnDataLoss": "hold" if self.fail_on_data_loss else "false",
        }


class Summary(NamedTuple):
    """What a run did."""

    batches: int
    records: int
    refreshed: tuple[str, ...]
    seconds: float


class Listener(Protocol):
    """Who is told how it goes on; maybe from another thread than the run's."""

    def on_batch(self, number: int, folded: Folded, seconds: float) -> None:
        """A micro-batch was committed."""
        ...

    def on_table(self, name: str) -> None:
        """A derived table is about to be computed."""
        ...


def run_here(writer: LakeWriter, options: RunOptions, listener: Listener) -> Summary:
    """Read what is new, fold it into the tables, and refresh the derived ones.

    Raises:
        CheckpointMismatch: checkpoint and tables do not belong together.
        LakeError: the lake failed, or a log cannot be read as asked.
    """
    started = time.monotonic()
    lake = writer.lake
    check(lake)
    batches = records = 0
    with interruptible(lambda: None) as asked:
        stream = _Stream(lake.checkpoint, options)
        while not asked.is_set() and (planned := stream.plan()) is not None:
            began = time.monotonic()
            batch = batch_of(lake, planned.number)
            if not is_committed(lake, batch):
                staged = stage_records(writer, stream.read(planned))
                folded = commit_batch(writer, staged, batch, fold_all, drops=options.drops_payloads)
                batches += 1
                records += folded.records
                listener.on_batch(planned.number, folded, time.monotonic() - began)
            stream.note(planned.number)
        refreshed = [] if asked.is_set() else end_run(writer, options, listener)
    return Summary(batches, records, tuple(refreshed), time.monotonic() - started)


def end_run(writer: LakeWriter, options: RunOptions, listener: Listener) -> list[str]:
    """Refresh the derived tables, and keep the lake in order; returns which were refreshed."""
    if not writer.lake.has(JOBS):  # no log has a record yet
        return []
    # What the rollups were made of may be gone: they stay as they are.
    since = max(options.kept_from(JOBS), options.kept_from(ATTEMPTS))
    refreshed = refresh_tables(writer, options.tables, options.journals, listener.on_table, since)
    for table in options.keep_days:
        if writer.lake.has(table):
            writer.drop_days(table, options.kept_from(table))
    for table in (RECORDS, JOBS, ATTEMPTS, OPEN_RECORDS):
        compact(writer, table)
    is_due = time.monotonic() >= _vacuum_due.get(writer, 0)
    if is_due:
        _vacuum_due[writer] = time.monotonic() + _VACUUM_SECONDS
    for table in (OPEN_RECORDS, *writer.lake.tables()):
        writer.keep_short(table)
        if is_due:
            writer.vacuum(table, keep_hours=_KEEP_HOURS.get(table, KEEP_HOURS))
    _give_back_memory()
    return refreshed


def _give_back_memory() -> None:
    """Give the system what is free in Arrow's pool, and in the heaps that each thread has."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # where the C library is another than glibc
        ctypes.CDLL(None).malloc_trim(0)


class _Planned(NamedTuple):
    number: int
    start: dict[str, Any]
    end: dict[str, Any]


class _Stream:
    """The stream as its checkpoint has it."""

    def __init__(self, path: Path, options: RunOptions) -> None:
        # They import pyspark, which takes a second.
        from taskq_plugins.spark.source.schema import arrow_schema  # noqa: PLC0415
        from taskq_plugins.spark.source.source import TaskqSource  # noqa: PLC0415

        limit = min(options.max_bytes, _BATCH_BYTES)
        source = TaskqSource(options.of_source() | {"maxBytesPerTrigger": str(limit)})
        columns = source.schema()
        reader: StreamReader = source.streamReader(columns)  # type: ignore[assignment]
        self._path = path
        self._reader = reader
        self._schema = arrow_schema(columns)
        self._is_prepared = False

    def plan(self) -> _Planned | None:
        """The next batch, noted before it is read; the one that was not finished comes first.

        Raises:
            LakeError: a log cannot be read as asked.
        """
        found = read_checkpoint(self._path)
        if found is None:
            for name in ("offsets", "commits"):
                (self._path / name).mkdir(parents=True, exist_ok=True)
            publish(self._path / "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
            last = -1
        elif found.planned > found.ran:
            return _Planned(found.planned, self._at(found.planned - 1), self._at(found.planned))
        else:
            last = found.planned
        start = self._at(last)
        try:
            if not self._is_prepared:
                self._reader.prepareForTriggerAvailableNow()
                self._is_prepared = True
            end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        except LakeError:
            raise
        except TaskqError as error:
            raise failure_of(error) from error
        if end == start:
            return None
        publish(self._path / "offsets" / str(last + 1), self._text(last, end).encode())
        return _Planned(last + 1, start, end)

    def read(self, planned: _Planned) -> pa.Table:
        """Return the batch's records.

        Raises:
            LakeError: a log cannot be read as asked.
        """
        try:
            batches = [
                batch
                for partition in self._reader.partitions(planned.start, planned.end)
                for batch in self._reader.read(partition)
            ]
        except TaskqError as error:
            raise failure_of(error) from error
        return pa.Table.from_batches(batches, self._schema)

    def note(self, number: int) -> None:
        """Note that the batch ran, and forget old ones."""
        publish(self._path / "commits" / str(number), RAN)
        for name in ("offsets", "commits"):
            (self._path / name / str(number - _NOTES_KEPT)).unlink(missing_ok=True)

    def _at(self, number: int) -> dict[str, Any]:
        """Return how far a batch went; where the stream begins if there is none."""
        if number < 0:
            return self._reader.initialOffset()
        found: dict[str, Any] = json.loads(read_offsets(self._path, number).split("\n")[2])
        return found

    def _text(self, last: int, end: dict[str, Any]) -> str:
        """Return what Spark would note of a batch: what it is set to stays as it noted it last."""
        told: dict[str, Any] = {"batchWatermarkMs": 0, "conf": {}}
        if last >= 0:
            told = json.loads(read_offsets(self._path, last).split("\n")[1])
        told["batchTimestampMs"] = time.time_ns() // 1_000_000
        return f"v1\n{json.dumps(told, separators=(',', ':'))}\n{json.dumps(end)}"
