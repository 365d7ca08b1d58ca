"""Pieces into the batches that Spark takes: runs on the executors."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from taskq.arrow import (
    BREAK,
    DETAILS,
    ROWS_MAX,
    UNLIMITED,
    Break,
    Corrupt,
    Piece,
    SegmentMissing,
    decode,
)
from taskq.arrow.problems import SegmentUnreadable, shown
from taskq.engine import LogReader
from taskq.errors import FormatError, LogError
from taskq_plugins.fleet.inventory import durable_end, segments
from taskq_plugins.fleet.places import LogPlace
from taskq_plugins.spark.source.positions import DataLoss, Unreadable
from taskq_plugins.spark.source.snapshot import LogInventory, at_lsn

#: Columns that the choice is made by.
NEEDED: Final = ("job", "queue")
_LOOKED_UP_BYTES: Final = 256 * 1024
#: Jobs of one log whose queue is remembered; beyond that all are forgotten and looked up again.
_JOBS_MAX: Final = 2_000_000
_NAMES: Final = pa.schema([DETAILS.field(name) for name in NEEDED])


class QueueFilter:
    """Drops the rows of other queues' jobs: a claim or an end does not name its job's queue.

    The queue is known from the job's enqueue, if the same partition read it before. Otherwise the
    enqueue is looked up in the log, 256 KiB at a time, since jobs are claimed about in the order of
    their enqueues. Jobs of removed segments are looked up one by one in the log's indexes, about a
    millisecond each. Records without job and queue (clock, owner, damage, ...) stay.
    """

    def __init__(self, queues: frozenset[str]) -> None:
        self._queues = pa.array(sorted(queues), pa.string())
        self._names = queues
        self._path = ""
        self._log: _LogJobs | None = None

    def keep(self, piece: Piece, batch: pa.RecordBatch) -> pa.RecordBatch:
        log = self._log
        if log is None or self._path != piece.path.rpartition("/log/")[0]:
            self.close()
            self._path = piece.path.rpartition("/log/")[0]
            log = self._log = _LogJobs(piece, self._path, self._names)
        queue, job = batch.column("queue"), batch.column("job")
        named = pc.is_in(queue, value_set=self._queues)
        is_named, has_job = pc.is_valid(queue), pc.is_valid(job)
        both = pc.and_(is_named, has_job)
        log.learn(job.filter(both).to_pylist(), named.filter(both).to_pylist())
        asked = pc.and_(has_job, pc.invert(is_named))
        wanted = log.are_wanted(job.filter(asked).to_pylist())
        stays = pc.if_else(is_named, named, pc.invert(has_job))
        if wanted:
            answers = pa.array(wanted, pa.bool_())
            stays = pc.replace_with_mask(stays, asked, answers)
        return batch.filter(stays)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


class _LogJobs:
    """Membership of one log's jobs in the queues."""

    def __init__(self, piece: Piece, path: str, queues: frozenset[str]) -> None:
        self._place = LogPlace(piece.device, path, piece.log_id, piece.tag, 0)
        self._queues = queues
        self._known: dict[int, bool] = {}
        self._standing: LogInventory | None = None
        self._reader: LogReader | None = None

    def learn(self, jobs: Iterable[int], wanted: Iterable[bool]) -> None:
        if len(self._known) > _JOBS_MAX:
            self._known.clear()
        self._known.update(zip(jobs, wanted, strict=True))

    def are_wanted(self, jobs: list[int]) -> list[bool]:
        known = self._known
        for job in sorted({asked for asked in jobs if asked not in known}):
            if job not in known:
                self._look_near(job)
            if job not in known:
                known[job] = self._look_up(job)
        return [known[job] for job in jobs]

    def _look_near(self, job: int) -> None:
        if self._standing is None:
            places = segments(self._place, on_problem=lambda _: None)
            self._standing = LogInventory(self._place, places, durable_end(self._place, places))
        standing = self._standing
        try:
            position = at_lsn(standing, job)
            place = standing.find(position.segment)
            if place is None or position.lsn > job:
                return
            with standing.open(place) as file:
                size = standing.size(place)
                behind = file.first_from((position.offset + _LOOKED_UP_BYTES + 7) & ~7, size)
            end = behind[0] if behind is not None else size
            log = self._place
            piece = Piece(
                place.path, log.device, log.log_id, log.tag, place.first_lsn, position.offset, end
            )
            for batch in decode(piece, _NAMES, corrupt=Corrupt.SKIP):
                both = pc.and_(pc.is_valid(batch.column("queue")), pc.is_valid(batch.column("job")))
                named = batch.filter(both)
                queues = named.column("queue").to_pylist()
                self.learn(
                    named.column("job").to_pylist(), (queue in self._queues for queue in queues)
                )
        except (FileNotFoundError, LogError):
            return

    def _look_up(self, job: int) -> bool:
        try:
            if self._reader is None:
                self._reader = LogReader.open(str(Path(self._place.path)))
            view = self._reader.job(job)
        except LogError:
            return False
        return view is not None and view.queue in self._queues

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


_log: Final = logging.getLogger("taskq")
#: Batches are joined up to this size: a few compressed payloads may be as large.
JOINED_BYTES_MAX: Final = 16 * 1024 * 1024


class RowReader(NamedTuple):
    """How rows are read; everything that an executor needs to know.

    ``schema`` is what Spark expects, exactly.
    """

    schema: pa.Schema
    corrupt: Corrupt
    payload: bool
    headers: bool
    fails_on_loss: bool
    queues: frozenset[str] | None = None
    body_bytes_max: int = UNLIMITED


def read_pieces(pieces: Sequence[Piece], reading: RowReader) -> Iterator[pa.RecordBatch]:
    return _joined(_all_rows(pieces, reading), reading.schema)


def _all_rows(pieces: Sequence[Piece], reading: RowReader) -> Iterator[pa.RecordBatch]:
    queues = QueueFilter(reading.queues) if reading.queues is not None else None
    missing = () if queues is None else set(NEEDED) - set(reading.schema.names)
    schema = pa.schema([*reading.schema, *map(DETAILS.field, sorted(missing))])
    for piece in pieces:
        rows = () if piece.behind is None else (_break_row(piece, schema, piece.behind),)
        decoded = _decoded(piece, schema, reading) if piece.start < piece.end else ()
        for batch in chain(rows, decoded):
            if queues is None:
                yield batch
            else:
                yield queues.keep(piece, batch).select(reading.schema.names)
    if queues is not None:
        queues.close()


def _decoded(piece: Piece, schema: pa.Schema, reading: RowReader) -> Iterator[pa.RecordBatch]:
    try:
        yield from decode(
            piece,
            schema,
            corrupt=reading.corrupt,
            payload=reading.payload,
            headers=reading.headers,
            body_bytes_max=reading.body_bytes_max,
        )
    except SegmentMissing:
        where = f"{shown(piece.path)}, bytes {piece.start} to {piece.end}"
        loss = DataLoss(piece.device, where, piece.segment, "without it")
        if reading.fails_on_loss:
            raise loss from None
        _log.warning("failOnDataLoss=false: %s", loss)
        yield _break_row(piece, schema, Break("gap", piece.segment))
    except (SegmentUnreadable, FormatError) as error:
        if reading.corrupt is Corrupt.FAIL:
            raise Unreadable(error) from error
        _log.warning("corruptMode=%s, left out: %s", reading.corrupt, error)
        if reading.corrupt is Corrupt.QUARANTINE:
            yield _row_of(piece, schema, kind="damaged", problem=str(error))


def _break_row(piece: Piece, schema: pa.Schema, gone: Break) -> pa.RecordBatch:
    known = {name: value for name, value in gone._asdict().items() if value is not None}
    return _row_of(piece, schema, kind=BREAK, lsn=gone.lsn, value=json.dumps(known))


def _row_of(piece: Piece, schema: pa.Schema, **details: Any) -> pa.RecordBatch:
    row = piece._asdict() | {"offset": piece.start} | details
    columns = [pa.array([row.get(field.name)]).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _joined(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        is_large = batch.num_rows >= ROWS_MAX // 2 or batch.nbytes >= JOINED_BYTES_MAX // 2
        if not waiting and is_large:
            yield batch
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= ROWS_MAX or size_bytes >= JOINED_BYTES_MAX:
            yield from pa.Table.from_batches(waiting, schema).combine_chunks().to_batches()
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield from pa.Table.from_batches(waiting, schema).combine_chunks().to_batches()
