"""Batches of columns from a piece of a segment."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskq import engine
from taskq.arrow import arrays, frames, problems
from taskq.arrow.rows import RecordOptions, RecordRows, headers_of
from taskq.arrow.schema import (
    AS_BYTES,
    BREAK,
    DAMAGED,
    DETAILS,
    ROWS_MAX,
    UNKNOWN,
    Break,
    Corrupt,
    Piece,
)
from taskq.arrow.values import UNLIMITED, UNPACKED_BYTES_MAX, Values, unpacked_sizes
from taskq.core import errors, model, parsing
from taskq.core.folds.steps import Form
from taskq.log.format import codec

if TYPE_CHECKING:
    import numpy.typing as npt


_NUMBER_SIZE: Final = 4
_INT: Final = pa.int32()
_LONG: Final = pa.int64()
_BYTES: Final = pa.binary()
_MOMENT: Final = DETAILS.field("timestamp").type
_KIND_NAMES: Final = pa.array([*(row.name for row in engine.kinds.ROWS.values()), UNKNOWN])
_WITH_CAUSE: Final = arrays.table(engine.kinds.WITH_CAUSE)
_BACK: Final = arrays.table(engine.kinds.RETURNS)


def _index(members: list[Any], other: int) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Return each number's position in the list; ``other`` for numbers outside the list."""
    index = np.full(256, other, np.int8)
    for place, member in enumerate(members):
        index[int(member)] = place
    return index


_KIND_INDEX: Final = _index(list(engine.kinds.ROWS), len(engine.kinds.ROWS))
_CAUSES: Final = sorted(engine.Cause)
_CAUSE_NAMES: Final = pa.array([cause.name.lower() for cause in _CAUSES])
_CAUSE_INDEX: Final = _index(_CAUSES, _CAUSES.index(engine.Cause.CALLER))
_STATES: Final = sorted(model.State)
_STATE_NAMES: Final = pa.array([state.name.lower() for state in _STATES])
_STATE_INDEX: Final = _index(_STATES, 0)
_FORM_NAMES: Final = pa.array([form.name.lower() for form in Form])
_DONE_STEPS: Final = frozenset({int(engine.kinds.STEP)})


def _repeated(name: str) -> Callable[[Piece, int], pa.Array]:
    def build(piece: Piece, count: int) -> pa.Array:
        return pa.repeat(pa.scalar(getattr(piece, name), DETAILS.field(name).type), count)

    return build


def _name(rows: RecordRows, *, is_task: bool) -> pa.Array:
    (start, end), valid = rows.route[is_task : is_task + 2], rows.is_birth
    if rows.has(engine.kinds.OF_QUEUES) and not is_task:
        named = rows.is_among(engine.kinds.OF_QUEUES)
        body = rows.at + arrays.FIXED_SIZES[rows.kind]
        start, end = np.where(named, body, start), np.where(named, rows.end, end)
        valid = valid | named
    if rows.has(engine.kinds.OF_LANES):
        tallied = rows.is_among(engine.kinds.OF_LANES)
        body = rows.at + arrays.FIXED_SIZES[rows.kind] + 2
        size = rows.data[np.where(tallied, body - 2, 0)]
        middle = np.minimum(body + size, rows.end)
        start = np.where(tallied, middle if is_task else np.minimum(body, rows.end), start)
        end = np.where(tallied, rows.end if is_task else middle, end)
        valid = valid | tallied
    return arrays.slices(rows.data, start, end, valid & (end > start), is_text=True)


def _option_bytes(option: engine.Option, holder: str) -> Callable[[RecordRows], pa.Array]:
    def build(rows: RecordRows) -> pa.Array:
        options: RecordOptions = getattr(rows, holder)
        count = len(rows)
        if not options:
            return arrays.nothing(_BYTES, count)
        start, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
        valid = np.zeros(count, np.bool_)
        options.bytes_of(option, start, end, valid)
        return arrays.slices(rows.data, start, end, valid)

    return build


def _option_number(
    option: engine.Option, holder: str, *, strict: frozenset[int] = frozenset()
) -> Callable[[RecordRows], pa.Array]:
    """Take the first number of each row; in ``strict`` kinds another size is an error."""

    def build(rows: RecordRows) -> pa.Array:
        options: RecordOptions = getattr(rows, holder)
        if not options:
            return arrays.nothing(_LONG, len(rows))
        out = np.zeros(len(rows), np.int64)
        options.find_numbers(option, out, rows.is_among(strict))
        return arrays.somewhere(out)

    return build


def _attempt(rows: RecordRows) -> pa.Array:
    attempt = np.where(rows.is_of_job, rows.of_job["attempt"], 0).astype(np.int32)
    return arrays.numbers(attempt, rows.is_of_job | rows.is_birth, _INT)


def _priority(rows: RecordRows) -> pa.Array:
    valid = rows.is_birth
    if rows.has(engine.kinds.OF_LANES):
        valid = valid | rows.is_among(engine.kinds.OF_LANES)
    return arrays.numbers(rows.birth["byte"].astype(np.int32), valid, _INT)


def _cause(rows: RecordRows) -> pa.Array:
    if not rows.counts[_WITH_CAUSE].any():
        return arrays.nothing(_CAUSE_NAMES.type, len(rows))
    index = _CAUSE_INDEX[rows.of_job["byte"]]
    return arrays.named(_CAUSE_NAMES, index, _WITH_CAUSE[rows.kind])


def _attempts_max(rows: RecordRows) -> pa.Array:
    attempts = np.where(rows.is_birth, rows.birth["attempts_max"], 0).astype(np.int32)
    return arrays.somewhere(attempts, _INT)


def _due(rows: RecordRows) -> tuple[arrays.Ints, arrays.Mask]:
    due, is_wall = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    for step in rows.birth_options.each(engine.Option.DUE, engine.Option.DUE_WALL):
        due[step.row] = arrays.numbers_at(rows.data, step.at, "<i8")
        is_wall[step.row] |= step.tag == engine.Option.DUE_WALL
    if rows.carries:
        due[rows.is_carrying], is_wall[rows.is_carrying] = 0, False
        np.copyto(due, rows.of_job["due_ns"], where=rows.is_carrying)
        _carried_only(rows, engine.Option.DUE_WALL, due, is_wall)
    np.copyto(due, rows.of_job["due_ns"], where=_BACK[rows.kind])
    return due, is_wall


def _expires(rows: RecordRows) -> tuple[arrays.Ints, arrays.Mask]:
    expires, is_wall = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    for step in rows.birth_options.each(engine.Option.EXPIRES, engine.Option.EXPIRES_RELATIVE):
        expires[step.row] = arrays.numbers_at(rows.data, step.at, "<i8")
        is_wall[step.row] |= step.tag == engine.Option.EXPIRES
    if rows.carries:
        later = np.zeros(len(rows), np.int64)
        _carried_only(rows, engine.Option.EXPIRES_RELATIVE, later)
        np.copyto(expires, later, where=later != 0)
    return expires, is_wall


def _carried_only(
    rows: RecordRows, option: engine.Option, out: arrays.Ints, had: arrays.Mask | None = None
) -> None:
    """Overwrite ``out`` with the option's numbers from records that carry another record."""
    value, has = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    rows.carried_options.numbers(option, value, has)
    np.copyto(out, value, where=has)
    if had is not None:
        had |= has


def _moments(rows: RecordRows) -> pa.Array:
    moments = _due(rows)[1].astype(np.int32) | (_expires(rows)[1].astype(np.int32) << 1)
    return arrays.numbers(moments, rows.is_birth | _BACK[rows.kind], _INT)


def _flags(rows: RecordRows) -> pa.Array:
    return arrays.numbers(rows.birth_flags.astype(np.uint32).view(np.int32), None, _INT)


def _state(rows: RecordRows) -> pa.Array:
    byte = rows.of_job["byte"]
    if not rows.has(_DONE_STEPS):
        return arrays.named(_STATE_NAMES, _STATE_INDEX[byte], rows.is_carrying)
    is_form = rows.is_among(_DONE_STEPS) & (byte < len(_FORM_NAMES))
    index = np.where(is_form, byte.astype(np.int64) + len(_STATES), _STATE_INDEX[byte])
    names = pa.concat_arrays([_STATE_NAMES, _FORM_NAMES])
    return arrays.named(names, index, rows.is_carrying | is_form)


def _step(rows: RecordRows) -> pa.Array:
    count = len(rows)
    if not rows.has(engine.kinds.OF_STEPS):
        return arrays.nothing(pa.string(), count)
    start, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    valid = np.zeros(count, np.bool_)
    rows.plain_options.bytes_of(engine.Option.STEP, start, end, valid)
    valid &= (end - start >= _NUMBER_SIZE) & rows.is_among(engine.kinds.OF_STEPS)
    names = arrays.slices(rows.data, start + _NUMBER_SIZE, end, valid, is_text=True)
    number = arrays.numbers_at(rows.data, np.where(valid, start, 0), "<u4")
    titles = pc.binary_join_element_wise(names, pa.array(number).cast(pa.string()), "#")
    return pc.if_else(pa.array(number > 0), titles, names)


def _began_ns(rows: RecordRows) -> pa.Array:
    if not rows.has(engine.kinds.OF_STEPS):
        return arrays.nothing(_LONG, len(rows))
    out = np.zeros(len(rows), np.int64)
    rows.plain_options.find_numbers(engine.Option.BEGAN, out)
    return arrays.numbers(out, (out != 0) & rows.is_among(engine.kinds.OF_STEPS))


def _enqueued_ns(rows: RecordRows) -> pa.Array:
    if not rows.carries:
        return arrays.nothing(_LONG, len(rows))
    return arrays.somewhere(np.where(rows.is_carrying, rows.of_job["enqueued_ns"], 0))


def _ended_ns(rows: RecordRows) -> pa.Array:
    if not rows.carries:
        return arrays.nothing(_LONG, len(rows))
    out = np.zeros(len(rows), np.int64)
    _carried_only(rows, engine.Option.ENDED, out)
    return arrays.somewhere(out)


def _step_ns(rows: RecordRows) -> pa.Array:
    if not rows.has(engine.kinds.STEPS):
        return arrays.nothing(_LONG, len(rows))
    return arrays.numbers(rows.field("step_ns"), rows.is_among(engine.kinds.STEPS))


def _lease_ns(rows: RecordRows) -> pa.Array:
    if not rows.plain_options and not rows.carries:
        return arrays.nothing(_LONG, len(rows))
    out = np.zeros(len(rows), np.int64)
    rows.plain_options.find_numbers(engine.Option.LEASE, out)
    if rows.carries:
        _carried_only(rows, engine.Option.LEASE, out)
    return arrays.somewhere(out)


def _job_ids(tag: parsing.Tag, job: npt.NDArray[np.uint64]) -> pa.Array:
    """Return each row's job id, with the tag of the log that enqueued the job."""
    ids = arrays.ids(str(tag), job)
    for older, next_lsn in reversed(tag.parents):
        if not (job < next_lsn).any():
            break
        ids = pc.if_else(pa.array(job < next_lsn), arrays.ids(older, job), ids)
    return ids


#: Functions that build columns with the same value in all rows of a piece.
CONSTANTS: Final[dict[str, Callable[[Piece, int], pa.Array]]] = {
    name: _repeated(name) for name in ("device", "log_id", "segment")
}
#: Functions that build the other columns; ``values`` builds value, result and problem.
BUILDERS: Final[dict[str, Callable[[RecordRows], pa.Array]]] = {
    "offset": lambda rows: arrays.numbers(rows.at + rows.base),
    "lsn": lambda rows: arrays.numbers(rows.lsn),
    "kind": lambda rows: arrays.named(_KIND_NAMES, _KIND_INDEX[rows.kind]),
    "job_id": lambda rows: _job_ids(rows.piece.tag, rows.job),
    "task": partial(_name, is_task=True),
    "queue": partial(_name, is_task=False),
    "timestamp": lambda rows: arrays.numbers(rows.time_ns // 1_000, None, _MOMENT),
    "ts_ns": lambda rows: arrays.numbers(rows.time_ns),
    "key": _option_bytes(engine.Option.KEY, "birth_options"),
    "attempt": _attempt,
    "priority": _priority,
    "owner": lambda rows: arrays.hexadecimal(rows.owner, rows.owner != 0),
    "epoch": lambda rows: arrays.hexadecimal(rows.epoch),
    "headers": lambda rows: headers_of(rows.data, rows.birth_options, len(rows)),
    "job": lambda rows: arrays.somewhere(rows.job.view(np.int64)),
    "token": lambda rows: arrays.somewhere(rows.field("token")),
    "cause": _cause,
    "attempts_max": _attempts_max,
    "due_ns": lambda rows: arrays.somewhere(_due(rows)[0]),
    "expires_ns": lambda rows: arrays.somewhere(_expires(rows)[0]),
    "moments": _moments,
    "flags": _flags,
    "state": _state,
    "enqueued_ns": _enqueued_ns,
    "ended_ns": _ended_ns,
    "step_ns": _step_ns,
    "history": _option_bytes(engine.Option.HISTORY, "carried_options"),
    "key_hash": _option_number(engine.Option.KEY_HASH, "plain_options", strict=engine.kinds.ENDS),
    "replaces": _option_number(engine.Option.REPLACES, "birth_options"),
    "concurrency_key": _option_bytes(engine.Option.CONCURRENCY_KEY, "birth_options"),
    "lease_ns": _lease_ns,
    "step": _step,
    "place": lambda rows: arrays.numbers(rows.field("place"), rows.is_among(_DONE_STEPS)),
    "began_ns": _began_ns,
}


_VALUES: Final = frozenset({"value", "value_bytes", "result", "result_bytes", "problem"})


def decode(
    piece: Piece,
    schema: pa.Schema,
    *,
    corrupt: Corrupt = Corrupt.FAIL,
    payload: bool = True,
    body_bytes_max: int = UNLIMITED,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a piece as batches of the columns of ``schema``, in the log's order.

    The file is read in chunks; memory is bounded by the largest frame (34 MiB), or by one
    decompressed body (100 MiB).

    Args:
        piece: the bytes of a segment to decode.
        schema: some columns of DETAILS, in any order; others are not computed.
        corrupt: the treatment of bytes that are no whole frame.
        payload: whether value holds payloads; results and reasons are always included.
        body_bytes_max: larger bodies are replaced by hash and size.

    Raises:
        UsageError: a column is not one of DETAILS.
        SegmentMissing: the file does not exist.
        SegmentUnreadable: the file cannot be read.
        WrongSegment: the file holds another segment than named.
        SegmentDamaged: some bytes are no whole frame, and ``corrupt`` is FAIL.
        FormatError: a newer taskq wrote it.
    """
    return _Decoder(piece, schema, corrupt, body_bytes_max, payload=payload).batches()


class _Decoder:
    def __init__(
        self,
        piece: Piece,
        schema: pa.Schema,
        corrupt: Corrupt,
        body_bytes_max: int,
        *,
        payload: bool,
    ) -> None:
        unknown = sorted(set(schema.names) - set(DETAILS.names))
        if unknown:
            raise errors.UsageError(
                f"there is no column {unknown[0]!r}: {', '.join(DETAILS.names)}"
            )
        self._piece = piece
        self._schema = schema
        self._corrupt = Corrupt(corrupt)
        self._payload = payload
        self._body_bytes_max = body_bytes_max
        self._constants: dict[str, pa.Array] = {}
        self._has_values = not _VALUES.isdisjoint(schema.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            with frames.PieceReader(self._piece) as reader:
                yield from self._batches(reader)
        except errors.FormatError as error:
            path = problems.shown(self._piece.path)
            raise error if path in str(error) else errors.FormatError(f"{path}: {error}") from error

    def _batches(self, reader: frames.PieceReader) -> Iterator[pa.RecordBatch]:
        for item in reader.items():
            if not isinstance(item, frames.DamagedBytes):
                yield from self._decoded(item)
                continue
            if self._corrupt is Corrupt.FAIL:
                raise reader.error(item)
            if self._corrupt is Corrupt.BREAK:
                piece = self._piece._replace(start=item.gap.offset)
                gone = Break(DAMAGED, item.gap.first_lsn, cause=item.what)
                yield break_row(piece, self._schema, gone)
            if item.salvaged is not None:
                yield from self._decoded(item.salvaged)

    def _decoded(self, records: frames.RecordStretch) -> Iterator[pa.RecordBatch]:
        count = len(records.at)
        # Batches of equal size, so that no chunk ends in a batch of a few rows.
        step = -(-count // -(-count // ROWS_MAX)) if count else 1
        for first in range(0, count, step):
            rows = RecordRows(self._piece, records, first, min(first + step, count))
            sizes = unpacked_sizes(rows) if self._has_values else None
            if sizes is None:
                yield self._batch(rows)
                continue
            for begin, end in _cut(sizes):
                yield self._batch(RecordRows(self._piece, records, first + begin, first + end))

    def _batch(self, rows: RecordRows) -> pa.RecordBatch:
        values = Values(rows, self._body_bytes_max, payload=self._payload)
        columns = [self._column(field, rows, values) for field in self._schema]
        return _assembled(columns, self._schema, len(rows))

    def _column(self, field: pa.Field, rows: RecordRows, values: Values) -> pa.Array:
        name, is_text = field.name, pa.types.is_string(field.type)
        if name in _VALUES:
            array = values.column(name, is_text=is_text)
        elif name in CONSTANTS:
            array = self._constant(name, len(rows))
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


def break_row(piece: Piece, schema: pa.Schema, gone: Break) -> pa.RecordBatch:
    """Return the row of a break, at the start of a piece."""
    known = {name: value for name, value in gone._asdict().items() if value is not None}
    row = piece._asdict() | {"offset": piece.start, "kind": BREAK, "lsn": gone.lsn}
    row["value"] = json.dumps(known)
    columns = [pa.array([row.get(field.name)]).cast(field.type) for field in schema]
    return _assembled(columns, schema, 1)


#: Smaller pieces are decoded together: columns of a few rows cost as much as of thousands.
SMALL_BYTES_MAX: Final = 16 * 1024


def is_small(piece: Piece) -> bool:
    """Return whether ``decode_together`` may take a piece."""
    is_plain = piece.break_before is None and not piece.tag.parents
    return is_plain and piece.end - piece.start <= SMALL_BYTES_MAX


def decode_together(
    pieces: Sequence[Piece],
    schema: pa.Schema,
    *,
    payload: bool = True,
    body_bytes_max: int = UNLIMITED,
) -> pa.RecordBatch | None:
    """Return the records of small pieces as one batch; None if each needs ``decode``.

    ``decode`` is needed if a piece is damaged, missing or of a newer taskq, or has packed or
    large bodies.

    Args:
        pieces: at least one, each with ``is_small``.
        schema: as in ``decode``.
        payload: as in ``decode``.
        body_bytes_max: as in ``decode``.
    """
    if body_bytes_max < SMALL_BYTES_MAX:
        return None
    try:
        return _Together(pieces, schema, body_bytes_max, payload=payload).batch()
    except errors.LogError:
        return None


class _Together(_Decoder):
    """Decodes small pieces into one batch."""

    def __init__(
        self, pieces: Sequence[Piece], schema: pa.Schema, body_bytes_max: int, *, payload: bool
    ) -> None:
        super().__init__(pieces[0], schema, Corrupt.FAIL, body_bytes_max, payload=payload)
        self._pieces = pieces

    def batch(self) -> pa.RecordBatch | None:
        stretches: list[frames.RecordStretch] = []
        counts = []
        for piece in self._pieces:
            with frames.PieceReader(piece) as reader:
                items = list(reader.items())
            # The second stretch would overwrite the buffer of the first.
            if len(items) != 1 or isinstance(items[0], frames.DamagedBytes):
                return None
            stretches.append(items[0])
            counts.append(len(items[0].at))
        rows = RecordRows(self._piece, frames.joined(stretches), 0, sum(counts))
        if self._has_values and unpacked_sizes(rows) is not None:
            return None
        self._of = pa.array(np.repeat(np.arange(len(counts)), counts))
        return self._batch(rows)

    def _column(self, field: pa.Field, rows: RecordRows, values: Values) -> pa.Array:
        if field.name != "job_id":
            return super()._column(field, rows, values)
        tags = self._of_pieces(str(piece.tag) for piece in self._pieces)
        numbers = pa.array(rows.job, mask=rows.job == 0).cast(pa.string())
        return pc.binary_join_element_wise(tags, numbers, "-")

    def _constant(self, name: str, count: int) -> pa.Array:
        values = self._of_pieces(getattr(piece, name) for piece in self._pieces)
        assert len(values) == count
        return values.cast(DETAILS.field(name).type)

    def _of_pieces(self, values: Iterable[Any]) -> pa.Array:
        return pa.array(values).take(self._of)


def _assembled(columns: list[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    # A schema without columns still has a number of rows.
    nothing = pa.Array.from_buffers(pa.struct([]), count, [None])
    return pa.RecordBatch.from_struct_array(nothing)


def _cut(sizes: arrays.Ints) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of runs of rows with at most UNPACKED_BYTES_MAX together."""
    begin = total = 0
    for row, size in enumerate(sizes.tolist()):
        if total + size > UNPACKED_BYTES_MAX and row > begin:
            yield begin, row
            begin, total = row, 0
        total += size
    yield begin, len(sizes)


def batches_of(reader: engine.LogReader) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return (schema, batches) of every record up to the reader's known end.

    The name of the directory is the device's name.
    """
    return DETAILS, _batches(reader)


def _batches(reader: engine.LogReader) -> Iterator[pa.RecordBatch]:
    journal = reader.journal
    end, files, identity = journal.end(), journal.files, journal.identity
    device = Path(journal.path).resolve().name
    cursor = journal.start()
    segment: int | None = cursor.segment
    while segment is not None:
        size = end.offset if segment == end.segment else files.size(segment)
        path = files.file_path(segment)
        if size > codec.SEGMENT_HEADER.size:
            owner = identity.owner(segment)
            piece = Piece(path, device, str(owner.log_id), owner.tag, segment, 0, size)
            yield from decode(piece, DETAILS, corrupt=Corrupt.SKIP)
        segment = files.after(segment, end.segment)
