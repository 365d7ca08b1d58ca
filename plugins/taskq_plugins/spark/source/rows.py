"""Decode pieces into batches for Spark, on executors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import pyarrow as pa

from taskq.arrow import (
    UNLIMITED,
    Break,
    Corrupt,
    Piece,
    SegmentMissing,
    break_row,
    decode,
    decode_together,
    is_small,
)
from taskq.arrow.problems import SegmentUnreadable, shown
from taskq.arrow.schema import DAMAGED
from taskq.errors import FormatError
from taskq_plugins.spark.source.positions import Unreadable, loss_of

_log: Final = logging.getLogger("taskq")
#: Small pieces decoded together at most.
_TOGETHER_MAX: Final = 256


class RowReader(NamedTuple):
    """Reads rows on an executor; ``schema`` is exactly the schema that Spark expects."""

    schema: pa.Schema
    skips_damage: bool
    fails_on_loss: bool
    payload: bool = True
    body_bytes_max: int = UNLIMITED


def read_pieces(pieces: Sequence[Piece], reading: RowReader) -> Iterator[pa.RecordBatch]:
    for are_small, group in groupby(pieces, is_small):
        chosen, count = list(group), _TOGETHER_MAX if are_small else 1
        for at in range(0, len(chosen), count):
            yield from _rows_of(chosen[at : at + count], reading)


def _rows_of(pieces: Sequence[Piece], reading: RowReader) -> Iterator[pa.RecordBatch]:
    if len(pieces) > 1:
        rows = decode_together(
            pieces,
            reading.schema,
            payload=reading.payload,
            body_bytes_max=reading.body_bytes_max,
        )
        if rows is not None:
            yield rows
            return
    for piece in pieces:
        if piece.break_before is not None:
            yield break_row(piece, reading.schema, piece.break_before)
        if piece.start < piece.end:
            yield from _decoded(piece, reading)


def _decoded(piece: Piece, reading: RowReader) -> Iterator[pa.RecordBatch]:
    schema = reading.schema
    try:
        yield from decode(
            piece,
            schema,
            corrupt=Corrupt.BREAK if reading.skips_damage else Corrupt.FAIL,
            payload=reading.payload,
            body_bytes_max=reading.body_bytes_max,
        )
    except SegmentMissing:
        where = f"{shown(piece.path)}, bytes {piece.start} to {piece.end}"
        loss = loss_of(piece.device, where, piece.segment, "without it")
        if reading.fails_on_loss:
            raise loss from None
        _log.warning("failOnDataLoss=false: %s", loss)
        yield break_row(piece, schema, Break("gap", piece.segment, cause=str(loss)))
    except (SegmentUnreadable, FormatError) as error:
        if not reading.skips_damage:
            raise Unreadable(error) from error
        _log.warning("corruptMode=skip, left out: %s", error)
        yield break_row(piece, schema, Break(DAMAGED, piece.segment, cause=str(error)))
