"""Columns as JSON payloads, byte for byte as an enqueue by name writes them.

Whole numbers, booleans and text are written column by column; the rest goes through pydantic's
writer value by value. Two columns of text and one number: four times as fast as row by row, which
does 0.4 M rows/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pydantic_core import to_json

from taskq.errors import UsageError

#: What JSON cannot hold as it is, of UTF-8: quotes, backslashes, control characters.
_ESCAPED: Final = r'["\\\x00-\x1f]'
_EMPTY: Final = b"{}"


def payloads_of(batch: pa.RecordBatch, names: Sequence[str]) -> list[bytes]:
    """Return one JSON object of arguments for each row.

    Raises:
        UsageError: a value has no form in JSON; the message names its column.
    """
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
    """Return values as Python has them: maps as dicts, moments to the microsecond.

    Raises:
        UsageError: a moment has nanoseconds, or lies outside of the years 1 to 9999.
    """
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
