"""A data frame's rows as entries of an inbox: what stands before each payload, and the payload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pydantic_core import to_json

from taskq.errors import TaskqError, UsageError
from taskq.hooks import encode_loose
from taskq_plugins.spark.sink.options import (
    FrameColumns,
    Recipe,
    Recipes,
    SinkOptions,
    check_payload,
    shape_of,
    span,
)

if TYPE_CHECKING:
    from taskq import TaskQ
    from taskq.engine import PartWriter

#: Rows that are turned into entries at a time, and bytes of them.
ROWS_MAX: Final = 16_384
ROWS_BYTES_MAX: Final = 64 * 1024 * 1024
_SPANS: Final = frozenset({"window", "delay", "expires"})
#: Characters of a row, and of one value in it, that an error shows.
_SHOWN_MAX: Final = 240
_VALUE_SHOWN_MAX: Final = 60
_OPENING: Final = ord("{")


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = batch.num_rows
    if not count:
        return
    if count > 1 and (count > ROWS_MAX or batch.nbytes > ROWS_BYTES_MAX):
        half = count // 2
        yield from pieces(batch.slice(0, half))
        yield from pieces(batch.slice(half))
        return
    yield batch


def reserved_values(name: str, column: pa.Array) -> list[Any]:
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if name == "key":
        return cast("list[Any]", binary_of(column).to_pylist())
    values = python_values(column)
    if name == "eta":
        return [_moment(name, value) for value in values]
    if name in _SPANS:
        return [_span(name, value) for value in values]
    if name == "headers":
        return [None if value is None else tuple(value.items()) for value in values]
    return values


def given_payloads(column: pa.Array, *, named: bool) -> list[bytes]:
    binary = binary_of(column)
    if binary.null_count:
        raise no_value()
    check_payload("column 'value'", pc.max(pc.binary_length(binary)).as_py() or 0)
    payloads = cast("list[bytes]", binary.to_pylist())
    if named:
        for payload in payloads:
            if not payload or payload[0] != _OPENING:
                check_object(payload)
    return payloads


def check_object(payload: bytes) -> None:
    if not payload.lstrip().startswith(b"{"):
        raise UsageError(
            f"column 'value' is {payload[:40]!r}, the payload of a task's job must be a JSON "
            f"object of its arguments: write it with to_json(struct(...))"
        )


def no_value() -> UsageError:
    return UsageError("column 'value' is null: leave such rows out, or write '{}' for no arguments")


def binary_of(column: pa.Array) -> pa.Array:
    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_large_string(kind) or types.is_string_view(kind) or types.is_string(kind):
        column = column.cast(pa.large_string())
    return column if types.is_large_binary(column.type) else column.cast(pa.large_binary())


def shown(batch: pa.RecordBatch) -> str:
    texts = []
    for name in batch.schema.names:
        try:
            value = batch.column(name)[0].as_py()
        except (ValueError, pa.ArrowException):
            value = "…"
        texts.append(f"{name}={_cut(repr(value), _VALUE_SHOWN_MAX)}")
    return _cut(", ".join(texts), _SHOWN_MAX)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _span(name: str, value: Any) -> Any:
    if isinstance(value, str):
        length = span(value)
        # Files have moments as text; a span of time has no colon.
        return _moment(name, value) if name == "expires" and ":" in value else length
    return float(value) if isinstance(value, Decimal) else value


def _moment(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise UsageError(
            f"column {name!r} is {value[:60]!r}: write a time such as 2024-05-01T12:00:00+02:00"
        ) from None


#: Characters that JSON cannot hold as they are.
_ESCAPED: Final = r'["\\\x00-\x1f]'
_EMPTY: Final = b"{}"


def payloads_of(batch: pa.RecordBatch, names: Sequence[str]) -> list[bytes]:
    if not names:
        return [_EMPTY] * batch.num_rows
    pieces: list[pa.Array | pa.Scalar] = []
    opening = "{"
    for name in names:
        pieces.append(pa.scalar(f"{opening}{to_json(name).decode()}:", pa.large_binary()))
        pieces.append(_fragments(name, batch.column(name)))
        opening = ","
    pieces.append(pa.scalar(b"}", pa.large_binary()))
    joined = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
    return cast("list[bytes]", joined.to_pylist())


def values_of(batch: pa.RecordBatch, names: Sequence[str]) -> list[dict[str, Any]]:
    columns = [python_values(batch.column(name)) for name in names]
    if not columns:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_values(column: pa.Array) -> list[Any]:
    try:
        return _plain(_whole_microseconds(column), column.type)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{error}") from None


def _plain(column: pa.Array, kind: pa.DataType) -> list[Any]:
    if not _holds_map(kind):
        return cast("list[Any]", column.to_pylist())
    return [_unmapped(value, kind) for value in column.to_pylist()]


def _whole_microseconds(column: pa.Array) -> pa.Array:
    kind = column.type
    if types.is_timestamp(kind) and kind.unit == "ns":
        return column.cast(pa.timestamp("us", kind.tz))
    if types.is_duration(kind) and kind.unit == "ns":
        return column.cast(pa.duration("us"))
    if types.is_time64(kind) and kind.unit == "ns":
        return column.cast(pa.time64("us"))
    return column


def _holds_map(kind: pa.DataType) -> bool:
    if types.is_map(kind):
        return True
    if not types.is_nested(kind):
        return False
    return any(_holds_map(kind.field(at).type) for at in range(kind.num_fields))


def _unmapped(value: Any, kind: pa.DataType) -> Any:
    if value is None or not _holds_map(kind):
        return value
    if types.is_map(kind):
        return {name: _unmapped(item, kind.item_type) for name, item in value}
    if types.is_struct(kind):
        return {field.name: _unmapped(value[field.name], field.type) for field in kind}
    return [_unmapped(item, kind.value_type) for item in value]


def _fragments(name: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    try:
        if types.is_integer(kind) or types.is_boolean(kind):
            written = column.cast(pa.string()).cast(pa.large_binary())
        elif types.is_string(kind) or types.is_large_string(kind):
            written = _quoted(column.cast(pa.large_string()))
        else:
            texts = [_json(value) for value in python_values(column)]
            return pa.array(texts, pa.large_binary())
    except (ValueError, pa.ArrowException) as error:
        raise UsageError(f"column {name!r} cannot be written as JSON: {error}") from None
    return pc.fill_null(written, pa.scalar(b"null", pa.large_binary()))


def _quoted(column: pa.Array) -> pa.Array:
    column.validate(full=True)  # other than UTF-8 would be no JSON, and be found by a worker only
    quote = pa.scalar(b'"', pa.large_binary())
    nothing = pa.scalar(b"", pa.large_binary())
    quoted = pc.binary_join_element_wise(quote, column.cast(pa.large_binary()), quote, nothing)
    special = pc.match_substring_regex(column, _ESCAPED)
    if not pc.any(special).as_py():
        return quoted
    special = pc.fill_null(special, False)
    texts = [_json(value) for value in column.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special, pa.array(texts, pa.large_binary()))


def _json(value: Any) -> bytes:
    # As serialization.encode_loose has it.
    return to_json(value, bytes_mode="base64", inf_nan_mode="strings")


class BadRow(UsageError):
    """A row that cannot become a job; nothing of its data frame was enqueued.

    Attributes:
        row: its number among those given to the encoder, from 0.
        values: what stood in it, cut short.
    """

    def __init__(self, row: int, values: str, problem: str, place: str = "") -> None:
        where = f"{place}: " if place else ""
        super().__init__(f"{where}the row with {values}: {problem}; nothing was enqueued")
        self.row = row
        self.values = values


class Entries(NamedTuple):
    """Some rows as entries: ``tail`` stands before every payload, or ``tails`` one by one."""

    payloads: list[bytes]
    tail: bytes | None
    tails: list[bytes] | None

    def write_to(self, writer: PartWriter) -> None:
        if self.tails is None:
            assert self.tail is not None
            writer.add_many(self.tail, self.payloads)
            return
        add = writer.add
        for tail, payload in zip(self.tails, self.payloads, strict=True):
            add(tail, payload)


class Encoder:
    """Turns the batches of one data frame into entries.

    Args:
        options: defaults of all rows.
        app: source of defaults and argument checks, or None.
        place: name of the data frame in errors, with a row number; "" for none.
    """

    def __init__(self, options: SinkOptions, app: TaskQ | None = None, place: str = "") -> None:
        self._options = options
        self._app = app
        self._place = place
        self._row = 0
        self._schema: pa.Schema | None = None

    def _learn(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._shape: FrameColumns = shape_of(schema, task=self._options.task)
        self._names = tuple(name for name in self._shape.reserved if name != "key")
        self._must_name_task = "task" in self._names and not self._options.task
        self._recipes = Recipes(self._options, self._app, self._names)

    def entries(self, batch: pa.RecordBatch) -> Iterator[Entries]:
        if self._schema is None or not batch.schema.equals(self._schema):
            self._learn(batch.schema)
        for piece in pieces(batch):
            yield self._encoded(piece)
            self._row += piece.num_rows

    def all_entries(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Entries]:
        for batch in batches:
            yield from self.entries(batch)

    def _encoded(self, batch: pa.RecordBatch) -> Entries:
        try:
            if self._app is None:
                fast = self._of_columns(batch)
                if fast is not None:
                    return fast
            return self._of_rows(batch)
        except BadRow:
            raise
        except TaskqError as error:
            raise self._blame(batch, error) from error

    # -- column by column -------------------------------------------------------------------------

    def _of_columns(self, batch: pa.RecordBatch) -> Entries | None:
        rows, keys = self._rows(batch)
        if rows is None and keys is None:
            only = self._recipes.of((), has_key=False)
            if not only.is_plain:
                return None
            return Entries(self._payloads(batch, named=bool(only.task)), only.tail, None)
        recipes = self._recipes.each(rows or repeat((), batch.num_rows), keys)
        kinds = set(recipes)
        if not all(recipe.is_plain for recipe in kinds):
            return None
        named = {bool(recipe.task) for recipe in kinds}
        if len(named) > 1:
            return None
        payloads = self._payloads(batch, named=True in named)
        if keys is None:
            return Entries(payloads, None, [recipe.tail for recipe in recipes])
        tails = [
            recipe.tail if key is None else recipe.keyed_tail(key)
            for recipe, key in zip(recipes, keys, strict=True)
        ]
        return Entries(payloads, None, tails)

    def _payloads(self, batch: pa.RecordBatch, *, named: bool) -> list[bytes]:
        if self._shape.has_value:
            return given_payloads(batch.column("value"), named=named)
        if not named:
            raise _no_task()
        payloads = payloads_of(batch, self._shape.arguments)
        check_payload("the arguments", max(map(len, payloads), default=0))
        return payloads

    # -- row by row -------------------------------------------------------------------------------

    def _of_rows(self, batch: pa.RecordBatch) -> Entries:
        rows, keys = self._rows(batch)
        recipes = self._recipes.each(rows or repeat((), batch.num_rows), keys)
        bodies = self._bodies(batch)
        pairs = [
            _entry(recipe, key, body)
            for recipe, key, body in zip(recipes, keys or repeat(None), bodies, strict=False)
        ]
        return Entries([payload for _, payload in pairs], None, [tail for tail, _ in pairs])

    def _bodies(self, batch: pa.RecordBatch) -> Sequence[bytes | dict[str, Any] | None]:
        if self._shape.has_value:
            return cast("list[bytes | None]", binary_of(batch.column("value")).to_pylist())
        return values_of(batch, self._shape.arguments)

    def _rows(self, batch: pa.RecordBatch) -> tuple[list[tuple[Any, ...]] | None, list[Any] | None]:
        keys = (
            reserved_values("key", batch.column("key")) if "key" in self._shape.reserved else None
        )
        if not self._names:
            return None, keys
        columns = [reserved_values(name, batch.column(name)) for name in self._names]
        if self._must_name_task and None in columns[self._names.index("task")]:
            raise UsageError(
                "column 'task' is null: fill it in, or give option 'task' for such rows "
                '("" stands for a job without a task)'
            )
        return list(zip(*columns, strict=True)), keys

    # -- what is wrong ----------------------------------------------------------------------------

    def _blame(self, batch: pa.RecordBatch, error: TaskqError) -> BadRow:
        start, count = 0, batch.num_rows
        while count > 1:
            half = count // 2
            failed = self._failure(batch.slice(start, half))
            if failed is None:
                start, count = start + half, count - half
            else:
                count, error = half, failed
        error = self._failure(batch.slice(start, 1)) or error
        row = self._row + start
        place = f"{self._place}, row {row + 1}" if self._place else ""
        return BadRow(row, shown(batch.slice(start, 1)), str(error), place)

    def _failure(self, batch: pa.RecordBatch) -> TaskqError | None:
        try:
            if self._app is not None or self._of_columns(batch) is None:
                self._of_rows(batch)
        except TaskqError as error:
            return error
        return None


def _entry(recipe: Recipe, key: object, body: bytes | dict[str, Any] | None) -> tuple[bytes, bytes]:
    if body is None:
        raise no_value()
    if recipe.known is not None:
        call = recipe.call(body)
        return recipe.entry(call.body, key, call.extras)
    if isinstance(body, dict):
        if not recipe.task:
            raise _no_task()
        return recipe.entry(encode_loose(recipe.task, (), body), key)
    if recipe.task:
        check_object(body)
    return recipe.entry(body, key)


def _no_task() -> UsageError:
    return UsageError("the row has arguments, but no task: name one in column 'task'")
