"""What the reserved columns of a batch say, as an enqueue takes it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from taskq.errors import UsageError
from taskq_plugins.spark.sink.options import span
from taskq_plugins.spark.sink.payloads import python_values
from taskq_plugins.spark.sink.recipes import check_payload

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
    """Return the values of one reserved column, None where there is none.

    Raises:
        UsageError: a moment is out of range.
    """
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
    """Return the payloads of a column ``value``; ``named``: all rows are calls of tasks.

    Raises:
        UsageError: one is null, or no JSON object where it must be one.
        PayloadTooLarge: one is over the limit.
    """
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
    """Refuse what is not meant as a JSON object; whether it is a good one is for the worker.

    Raises:
        UsageError: it begins with something else.
    """
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
