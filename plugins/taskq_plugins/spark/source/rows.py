"""Pieces into the batches that Spark takes: runs on the executors."""

from __future__ import annotations

import json
import logging
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from taskq.core.errors import FormatError, LogError
from taskq_plugins.fleet.problems import SegmentUnreadable, shown
from taskq_plugins.spark.decode import (
    BREAK,
    DETAILS,
    ROWS_MAX,
    Break,
    Corrupt,
    SegmentMissing,
    decode,
)
from taskq_plugins.spark.source.problems import DataLoss, Unreadable
from taskq_plugins.spark.source.queues import NEEDED, QueueFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from taskq_plugins.spark.decode import Piece

_log: Final = logging.getLogger("taskq")
#: Batches are joined up to so many bytes: a few compressed payloads may be as much.
JOINED_BYTES_MAX: Final = 16 * 1024 * 1024


class Reading(NamedTuple):
    """How rows are read; everything that an executor needs to know.

    ``schema`` is what Spark expects, exactly.
    """

    schema: pa.Schema
    corrupt: Corrupt
    payload: bool
    headers: bool
    fails_on_loss: bool
    queues: frozenset[str] | None = None


#: Cuts a piece into those that are wanted, and drops rows; for filters that Spark hands down.
Sieve = tuple["Callable[[Piece], Iterator[Piece]]", "Callable[[pa.RecordBatch], pa.RecordBatch]"]


def read_pieces(
    pieces: Sequence[Piece], reading: Reading, sieve: Sieve | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of some pieces; small batches are joined, since each costs as much as a large one.

    Raises:
        DataLoss: a segment is gone, and failOnDataLoss is true.
        Unreadable: one cannot be read, and corruptMode is fail.
        SegmentDamaged: likewise for some of its bytes.
    """
    return _joined(_all_rows(pieces, reading, sieve), reading.schema)


def _all_rows(
    pieces: Sequence[Piece], reading: Reading, sieve: Sieve | None
) -> Iterator[pa.RecordBatch]:
    queues = QueueFilter(reading.queues) if reading.queues is not None else None
    schema = reading.schema if queues is None else _with_needed(reading.schema)
    for piece in pieces:
        parts: Iterable[Piece] = (piece,) if piece.start < piece.end else ()
        if sieve is not None and parts:
            parts = sieve[0](piece)
        told = () if piece.behind is None else (_break_row(piece, schema, piece.behind),)
        for batch in chain(told, *(_decoded(part, schema, reading) for part in parts)):
            kept = batch if queues is None else queues.keep(piece, batch)
            if sieve is not None:
                kept = sieve[1](kept)
            yield kept if queues is None else kept.select(reading.schema.names)
    if queues is not None:
        queues.close()


def _with_needed(schema: pa.Schema) -> pa.Schema:
    missing = [DETAILS.field(name) for name in NEEDED if name not in schema.names]
    return pa.schema([*schema, *missing])


def _decoded(piece: Piece, schema: pa.Schema, reading: Reading) -> Iterator[pa.RecordBatch]:
    try:
        yield from decode(
            piece,
            schema,
            corrupt=reading.corrupt,
            payload=reading.payload,
            headers=reading.headers,
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
            yield _damaged_row(piece, schema, error)


def _damaged_row(piece: Piece, schema: pa.Schema, error: LogError) -> pa.RecordBatch:
    return _row_of(piece, schema, kind="damaged", problem=str(error))


def _break_row(piece: Piece, schema: pa.Schema, told: Break) -> pa.RecordBatch:
    known = {name: value for name, value in told._asdict().items() if value is not None}
    return _row_of(piece, schema, kind=BREAK, lsn=told.lsn, value=json.dumps(known))


def _row_of(piece: Piece, schema: pa.Schema, **told: Any) -> pa.RecordBatch:
    row = piece._asdict() | {"offset": piece.start} | told
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
