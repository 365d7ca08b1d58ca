"""Batches of columns from a piece of a segment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from taskq.arrow import arrays
from taskq.arrow.columns import BUILDERS, CONSTANTS
from taskq.arrow.frames import Damage, Found, PieceReader
from taskq.arrow.layout import Ints
from taskq.arrow.problems import shown
from taskq.arrow.rows import Rows
from taskq.arrow.schema import AS_BYTES, DAMAGED, DETAILS, ROWS_MAX, Corrupt, Piece
from taskq.arrow.values import UNLIMITED, UNPACKED_BYTES_MAX, Bodies, Values, unpacked_sizes
from taskq.core.errors import FormatError, UsageError

#: Of a longer gap only the beginning is kept as a row; a damaged frame is never as long.
QUARANTINED_BYTES_MAX: Final = 16 * 1024 * 1024
#: The column of bytes that damage stands in, where there is one.
_RAW: Final = pa.field("value", pa.binary())
_VALUES: Final = frozenset({"value", "value_bytes", "result", "result_bytes", "problem"})


def decode(
    piece: Piece,
    schema: pa.Schema,
    *,
    corrupt: Corrupt = Corrupt.FAIL,
    payload: bool = True,
    headers: bool = True,
    rows_max: int = ROWS_MAX,
    body_bytes_max: int = UNLIMITED,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a piece as batches of the columns of ``schema``, in the log's order.

    The file is read in chunks; memory is bounded by the largest frame (34 MiB), or by one
    decompressed body (100 MiB).

    Args:
        piece: which bytes of which segment.
        schema: some columns of DETAILS, in any order; others are not even computed.
        corrupt: what to do about bytes that are no whole frame.
        payload: whether value holds payloads; results and reasons are given anyhow.
        headers: whether headers are given; else they are null.
        rows_max: of a batch.
        body_bytes_max: larger bodies are given as their hash and size, and not even read if they
            are in files of their own.

    Raises:
        UsageError: a column is not one of DETAILS.
        SegmentMissing: there is no such file.
        SegmentUnreadable: the disk refuses.
        WrongSegment: the file is another segment than it is said to be.
        SegmentDamaged: some bytes are no whole frame, and ``corrupt`` is FAIL.
        FormatError: a newer taskq wrote it.
    """
    bodies = Bodies(piece.path, body_bytes_max)
    return _Decoder(
        piece, schema, corrupt, rows_max, bodies, payload=payload, headers=headers
    ).batches()


class _Decoder:
    """A piece on its way into batches."""

    def __init__(
        self,
        piece: Piece,
        schema: pa.Schema,
        corrupt: Corrupt,
        rows_max: int,
        bodies: Bodies,
        *,
        payload: bool,
        headers: bool,
    ) -> None:
        unknown = sorted(set(schema.names) - set(DETAILS.names))
        if unknown:
            raise UsageError(f"there is no column {unknown[0]!r}: {', '.join(DETAILS.names)}")
        self._piece = piece
        self._schema = schema
        self._corrupt = Corrupt(corrupt)
        self._rows_max = rows_max
        self._payload = payload
        self._headers = headers
        self._bodies = bodies
        self._constants: dict[str, pa.Array] = {}
        self._has_values = not _VALUES.isdisjoint(schema.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            with PieceReader(self._piece) as reader:
                yield from self._batches(reader)
        except FormatError as error:
            path = shown(self._piece.path)
            raise error if path in str(error) else FormatError(f"{path}: {error}") from error

    def _batches(self, reader: PieceReader) -> Iterator[pa.RecordBatch]:
        for item in reader.items():
            if not isinstance(item, Damage):
                yield from self._decoded(item)
                continue
            if self._corrupt is Corrupt.FAIL:
                raise reader.error(item)
            if self._corrupt is Corrupt.QUARANTINE:
                yield self._damaged(item, reader.raw(item.gap, QUARANTINED_BYTES_MAX))
            if item.salvaged is not None:
                yield from self._decoded(item.salvaged)

    def _decoded(self, records: Found) -> Iterator[pa.RecordBatch]:
        count = len(records.at)
        # Batches of equal size, so that none of a few rows remains of each chunk.
        step = -(-count // -(-count // self._rows_max)) if count else 1
        for first in range(0, count, step):
            rows = Rows(self._piece, records, first, min(first + step, count))
            sizes = unpacked_sizes(rows, self._bodies) if self._has_values else None
            if sizes is None:
                yield self._batch(rows)
                continue
            for begin, end in _cut(sizes):
                yield self._batch(Rows(self._piece, records, first + begin, first + end))

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        values = Values(rows, self._bodies, payload=self._payload)
        columns = [self._column(field, rows, values) for field in self._schema]
        return _assembled(columns, self._schema, len(rows))

    def _column(self, field: pa.Field, rows: Rows, values: Values) -> pa.Array:
        name, is_text = field.name, pa.types.is_string(field.type)
        if name in _VALUES:
            array = values.column(name, is_text=is_text)
        elif name in CONSTANTS:
            array = self._constant(name, len(rows))
        elif name == "headers" and not self._headers:
            array = arrays.nothing(field.type, len(rows))
        else:
            array = BUILDERS[name](rows)
            if name in AS_BYTES and is_text:
                text = arrays.whole_text(array)
                return arrays.shown(array, "backslashreplace") if text is None else text
        return array if array.type == field.type else array.cast(field.type)

    def _constant(self, name: str, count: int) -> pa.Array:
        array = self._constants.get(name)
        if array is None or len(array) < count:
            array = self._constants[name] = CONSTANTS[name](self._piece, count)
        return array if len(array) == count else array[:count]

    def _damaged(self, damage: Damage, raw: bytes) -> pa.RecordBatch:
        gap, piece = damage.gap, self._piece
        problem = damage.what
        if len(raw) < gap.resume - gap.offset:
            problem += f"; the first {len(raw)} of {gap.resume - gap.offset} bytes"
        row: dict[str, Any] = {
            "device": piece.device,
            "log_id": piece.log_id,
            "segment": piece.segment,
            "offset": gap.offset,
            "lsn": gap.first_lsn,
            "kind": DAMAGED,
            "timestamp": damage.time_ns // 1_000,
            "ts_ns": damage.time_ns,
            "epoch": f"{damage.epoch:016x}",
            "value_bytes": raw,
            "branch": piece.branch,
            "problem": problem,
        }
        columns = [
            pa.array([raw if field == _RAW else row.get(field.name)], field.type)
            for field in self._schema
        ]
        return _assembled(columns, self._schema, 1)


def _assembled(columns: list[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    # Whoever asks for no column wants to know how many rows there are.
    nothing = pa.Array.from_buffers(pa.struct([]), count, [None])
    return pa.RecordBatch.from_struct_array(nothing)


def _cut(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of runs of rows of no more than UNPACKED_BYTES_MAX together."""
    begin = total = 0
    for row, size in enumerate(sizes.tolist()):
        if total + size > UNPACKED_BYTES_MAX and row > begin:
            yield begin, row
            begin, total = row, 0
        total += size
    yield begin, len(sizes)
