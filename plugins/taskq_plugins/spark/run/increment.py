"""Fold what is new in the logs into the tables, batch by batch; in this process, or by Spark."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from taskq.arrow import DETAILS, UNLIMITED, Corrupt, as_bytes
from taskq.errors import TaskqError
from taskq_plugins.spark.lake.errors import LakeError
from taskq_plugins.spark.lake.files import Staged
from taskq_plugins.spark.lake.store import (
    ATTEMPTS,
    DERIVED,
    JOBS,
    OPEN_RECORDS,
    RECORDS,
    STEPS,
    TOMBSTONES,
    LakeBatch,
    LakeWriter,
    compact,
    tombstones,
)
from taskq_plugins.spark.run.batch import (
    BatchResult,
    StagedPart,
    commit_batch,
    stage_records,
    write_part,
)
from taskq_plugins.spark.run.derived import refresh_tables
from taskq_plugins.spark.run.errors import failure_of
from taskq_plugins.spark.run.executor import (
    PART_BYTES,
    LocalExecutor,
    StepExecutor,
    give_back_memory,
)
from taskq_plugins.spark.run.progress import reached, tries, trying
from taskq_plugins.spark.source.options import ReadOptions, read_options
from taskq_plugins.spark.source.planning import SHARE_BYTES_MIN, Following, ReadLimits
from taskq_plugins.spark.source.positions import Offsets
from taskq_plugins.spark.source.rows import RowReader
from taskq_plugins.spark.source.snapshot import FleetSnapshot, look


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[threading.Event]:
    """Inside, Ctrl-C sets the event and calls ``stop`` in a thread; a second one raises at once."""
    asked = threading.Event()

    def note(_number: int, _frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        threading.Thread(target=stop, name="taskq-interrupt", daemon=True).start()

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, note) if is_main else None
    try:
        yield asked
    except Exception:
        if asked.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    if asked.is_set():
        raise KeyboardInterrupt


#: Larger bodies are stored as hash and size.
_BODY_BYTES_MAX: Final = 64 * 1024
#: Time between two removals of old files by a run with ``--every``: each lists every file.
_VACUUM_SECONDS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run."""

    journals: Path
    max_bytes: int
    tables: Sequence[str] = DERIVED
    corrupt: str = "fail"
    fail_on_data_loss: bool = True
    #: "drop": ``records`` lacks payloads and results; "full": large ones are not left out
    payloads: str = "keep"
    #: days to keep, by table; missing: all days
    keep_days: Mapping[str, int] = field(default_factory=dict)

    @property
    def drops(self) -> bool:
        return self.payloads == "drop"

    def kept_from(self, table: str) -> str:
        if table not in self.keep_days:
            return ""
        return str(datetime.now(UTC).date() - timedelta(days=self.keep_days[table]))

    def of_source(self) -> ReadOptions:
        return read_options(
            {
                "path": str(self.journals),
                "corruptMode": self.corrupt,
                "failOnDataLoss": "hold" if self.fail_on_data_loss else "false",
                "targetPartitionBytes": str(PART_BYTES),
            }
        )

    def reading(self) -> RowReader:
        return RowReader(
            as_bytes(DETAILS), Corrupt(self.corrupt), payload=True, headers=True,
            fails_on_loss=self.fail_on_data_loss,
            body_bytes_max=UNLIMITED if self.payloads == "full" else _BODY_BYTES_MAX,
        )  # fmt: skip


class Summary(NamedTuple):
    """Result of a run."""

    batches: int
    records: int
    refreshed: tuple[str, ...]
    seconds: float


class RunListener(Protocol):
    """Hears how it goes on."""

    def on_batch(self, number: int, folded: BatchResult, seconds: float) -> None: ...

    def on_table(self, name: str) -> None: ...


def run(
    writer: LakeWriter,
    options: RunOptions,
    listener: RunListener,
    executor: StepExecutor | None = None,
    sight: FleetSnapshot | None = None,
) -> Summary:
    """Read what is new, fold it into the tables, and refresh the derived ones.

    Args:
        writer: of the lake.
        options: what is read, and how.
        listener: told of each batch and table.
        executor: what runs the steps of a batch; by default this process.
        sight: the logs as they are now, if somebody has looked.
    """
    started = time.monotonic()
    executor = executor or LocalExecutor()
    batches = records = 0
    with interruptible(executor.cancel) as asked:
        stream = BatchStream(writer, options, executor, sight=sight)
        while not asked.is_set() and (batch := stream.plan()) is not None:
            began = time.monotonic()
            staged = stream.read(batch)
            folded = commit_batch(
                writer, staged, batch, executor, drops=options.drops, tries=stream.tries
            )
            batches += 1
            records += folded.records
            listener.on_batch(batch.number, folded, time.monotonic() - began)
        refreshed = [] if asked.is_set() else end_run(writer, options, listener, stream.sight)
    return Summary(batches, records, tuple(refreshed), time.monotonic() - started)


class BatchStream:
    """The batches of a run: up to where the logs ended when it began, or between given places."""

    def __init__(
        self,
        writer: LakeWriter,
        options: RunOptions,
        executor: StepExecutor,
        between: tuple[Offsets, Offsets] | None = None,
        erased: Sequence[str] = (),
        sight: FleetSnapshot | None = None,
    ) -> None:
        self._writer = writer
        self._erased = erased or tombstones(writer.lake)
        self._executor = executor
        self._reading = options.reading()
        self._limits = ReadLimits(min(options.max_bytes, executor.steps * PART_BYTES))
        #: how often the batch was begun before, or one before it, and did not end
        self.tries = 0
        at = reached(writer.lake)
        if between is not None and at.number < 0:
            at = at._replace(offsets=between[0])
        self._at = at
        self._planned: LakeBatch | None = None
        with _told_as_ours():
            source = options.of_source()
            #: the logs as they were when the run began
            self.sight = sight or look(source)
            self._logs = Following(source)
            self._logs.end_here(between and between[1], self.sight)

    def plan(self) -> LakeBatch | None:
        if self._planned is not None:
            self._at = self._at.then(self._planned)
        self.tries = max(self.tries, tries(self._writer.lake, self._at.number + 1))
        batch = self._at.begun  # an unfinished batch comes first
        if batch is None:
            size = self._limits.size_bytes
            smaller = max(size >> self.tries, min(size, SHARE_BYTES_MIN))
            with _told_as_ours():
                end = self._logs.next(self._at.offsets, ReadLimits(smaller))
            batch = None if end == self._at.offsets else self._at.next(end)
        if batch is not None:
            trying(self._writer.lake, batch.number, self.tries + 1)
        self._planned = batch
        return batch

    def read(self, batch: LakeBatch) -> Staged:
        with _told_as_ours():
            pieces = self._logs.pieces(self._at.offsets, self._at.ends(batch))

            def write(target: Path) -> None:
                parts = [
                    StagedPart(number, part, self._reading, target, self._erased)
                    for number, part in enumerate(pieces)
                ]
                self._executor.each(write_part, parts)

            return stage_records(self._writer, write, self._reading.schema)


@contextmanager
def _told_as_ours() -> Iterator[None]:
    try:
        yield
    except LakeError:
        raise
    except TaskqError as error:
        raise failure_of(error) from error


def end_run(
    writer: LakeWriter, options: RunOptions, listener: RunListener, sight: FleetSnapshot
) -> list[str]:
    if not writer.lake.has(JOBS):  # no log has a record yet
        return []
    # The rollups' sources may be gone: older days stay unchanged.
    since = max(options.kept_from(JOBS), options.kept_from(ATTEMPTS))
    refreshed = refresh_tables(writer, options.tables, sight, listener.on_table, since)
    keep_in_order(writer, options)
    return refreshed


def keep_in_order(writer: LakeWriter, options: RunOptions) -> None:
    """Let old days go, write small files together, and remove what nobody needs any more."""
    for table in options.keep_days:
        if writer.lake.has(table):
            writer.drop_days(table, options.kept_from(table))
    for table in (RECORDS, JOBS, ATTEMPTS, STEPS, OPEN_RECORDS, TOMBSTONES):
        compact(writer, table)
    tables = (OPEN_RECORDS, *writer.lake.tables())
    for table in tables:
        writer.keep_short(table)
    writer.note()
    if time.monotonic() >= writer.vacuum_due:
        writer.vacuum_due = time.monotonic() + _VACUUM_SECONDS
        for table in tables:
            writer.vacuum(table)
    give_back_memory()
