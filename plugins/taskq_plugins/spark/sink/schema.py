"""Which column means what, and whether its type can: told before a row is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyarrow import types

from taskq.errors import UsageError

if TYPE_CHECKING:
    Check = Callable[[pa.DataType], bool]


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _is_span(kind: pa.DataType) -> bool:
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return bool(numbers or types.is_duration(kind) or _is_text(kind))


def _is_moment(kind: pa.DataType) -> bool:
    return bool((types.is_timestamp(kind) and kind.tz is not None) or _is_text(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if types.is_struct(kind):
        return all(_is_text(field.type) for field in kind)
    return bool(types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type))


#: Columns that are no arguments: what they may be, in words, and by a test of their type.
RESERVED: Final[dict[str, tuple[str, Check]]] = {
    "task": ("text", _is_text),
    "queue": ("text", _is_text),
    "key": ("text or binary", lambda kind: _is_text(kind) or _is_bytes(kind)),
    "priority": ("a whole number", types.is_integer),
    "attempts": ("a whole number", types.is_integer),
    "window": ('seconds, an interval, or text such as "5m"', _is_span),
    "delay": ('seconds, an interval, or text such as "5m"', _is_span),
    "eta": ("a timestamp with a time zone, or text such as 2024-05-01T12:00:00Z", _is_moment),
    "expires": (
        'a timestamp with a time zone, seconds, an interval, or text such as "5m"',
        lambda kind: _is_moment(kind) or _is_span(kind),
    ),
    "headers": ("a map from text to text", _is_headers),
    "value": ("text or binary", lambda kind: _is_text(kind) or _is_bytes(kind)),
}


class Shape(NamedTuple):
    """The columns of a data frame, told apart.

    Attributes:
        reserved: those that say how a row is enqueued, ``value`` not among them.
        arguments: those that are arguments of the task, in order.
        has_value: whether payloads are given ready.
    """

    reserved: tuple[str, ...]
    arguments: tuple[str, ...]
    has_value: bool


def shape_of(schema: pa.Schema, *, task: str) -> Shape:
    """Return the columns' parts. ``task`` is the name that stands for all rows, "" for none.

    Raises:
        UsageError: a column has a type that cannot be meant so, or what would be enqueued is not
            said.
    """
    names = list(schema.names)
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UsageError(f"column {min(twice)!r} is there twice: rename or drop one of them")
    for field in schema:
        _check(field.name, field.type)
    arguments = tuple(name for name in names if name not in RESERVED)
    has_value = "value" in names
    if has_value and arguments:
        raise UsageError(
            f"column 'value' is the payload, but there are arguments beside it "
            f"({', '.join(arguments[:5])}): drop one or the other"
        )
    if not task and "task" not in names and not has_value:
        raise UsageError(
            "it is not said which task the rows are calls of: add option 'task' or a column "
            "'task', or give payloads of jobs without one in a column 'value'"
        )
    reserved = tuple(name for name in names if name in RESERVED and name != "value")
    if "delay" in reserved and "eta" in reserved:
        raise UsageError("columns 'delay' and 'eta' are both there: a job has one due time")
    return Shape(reserved, arguments, has_value)


def _check(name: str, kind: pa.DataType) -> None:
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_null(kind):  # a column of nulls alone, as files have them
        return
    if name in RESERVED:
        words, fits = RESERVED[name]
        if not fits(kind):
            raise UsageError(
                f"column {name!r} is {kind}, it must be {words}: cast it, or rename it if it is "
                f"an argument (columns named {', '.join(RESERVED)} are not)"
            )
        return
    problem = _unwritable(kind)
    if problem:
        raise UsageError(f"column {name!r} is {kind}: {problem}")


def _unwritable(kind: pa.DataType) -> str:
    if types.is_dictionary(kind):
        return _unwritable(kind.value_type)
    if types.is_nested(kind):
        if types.is_map(kind) and not _is_text(kind.key_type):
            return "names of a JSON object are text, so cast the map's keys to string"
        if types.is_union(kind):
            return "a union has no form in JSON, so cast it"
        parts = (kind.field(at).type for at in range(kind.num_fields))
        return next(filter(None, map(_unwritable, parts)), "")
    if types.is_interval(kind):
        return "months have no length in JSON, so cast it to a number or text"
    known = (
        types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
        or types.is_decimal(kind) or types.is_temporal(kind) or types.is_null(kind)
        or _is_text(kind) or _is_bytes(kind)
    )  # fmt: skip
    return "" if known else "it has no form in JSON, so cast it to text or a number"
