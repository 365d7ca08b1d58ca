"""Rows of a data frame as calls, checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import pyarrow as pa
from pyarrow import types

from taskq import Call
from taskq.engine import Flag
from taskq.errors import PayloadTooLarge, TaskqError, UnknownTask, UsageError
from taskq.hooks import Options, encode_loose, key_bytes
from taskq.values import PAYLOAD_BYTES_MAX
from taskq_plugins.spark.sink.options import KEY_OPTIONS, SinkOptions, shape_of, span

if TYPE_CHECKING:
    from taskq import Task, TaskQ
    from taskq.hooks import Enqueuer, OptionChanges

#: Rows that are converted to calls at a time, and their bytes.
ROWS_MAX: Final = 4_096
ROWS_BYTES_MAX: Final = 64 * 1024 * 1024
#: Cached recipes.
RECIPES_MAX: Final = 4_096
_SPANS: Final = frozenset({"window", "delay", "expires"})
#: Characters of a row, and of one value in it, that an error shows.
_SHOWN_MAX: Final = 240
_VALUE_SHOWN_MAX: Final = 60
_SHOWN_TASKS_MAX: Final = 10
#: Placeholder for the row's key.
_SOME_KEY: Final = "k"


class BadRow(UsageError):
    """A row that cannot become a job; nothing of its data frame was enqueued.

    Attributes:
        row: number of the row, from 0.
        values: its content, cut short.
    """

    def __init__(self, row: int, values: str, problem: str, place: str = "") -> None:
        where = f"{place}: " if place else ""
        super().__init__(f"{where}the row with {values}: {problem}; nothing was enqueued")
        self.row = row
        self.values = values


class Recipe(NamedTuple):
    """Options of the enqueue for rows of one kind."""

    plain: Call[Any]
    known: Task[..., Any] | None
    enqueuer: Enqueuer[..., Any] | None

    def call(self, given: bytes | dict[str, Any] | None, key: object) -> Call[Any]:
        if given is None:
            raise UsageError(
                "column 'value' is null: leave such rows out, or write '{}' for no arguments"
            )
        plain, task = self.plain, self.plain.name
        check_payload(task, given)
        if self.known is not None and self.enqueuer is not None:
            args, kwargs = self.known.decode(given) if isinstance(given, bytes) else ((), given)
            call = self.enqueuer.call(*args, **kwargs)
        elif isinstance(given, bytes):
            if task and not given.lstrip().startswith(b"{"):
                raise UsageError(
                    f"column 'value' is {given[:40]!r}, the payload of a task's job must be a JSON "
                    f"object of its arguments: write it with to_json(struct(...))"
                )
            call = replace(plain, body=given)
        elif task:
            call = replace(plain, body=encode_loose(task, (), given))
        else:
            raise UsageError("the row has arguments, but no task: name one in column 'task'")
        check_payload(task, call.body)
        if key is None:
            return call
        encoded = key_bytes(task or "a job", key)
        assert call.extras is not None  # the recipe's call has a key
        return replace(call, extras=replace(call.extras, key=encoded))


class RowCalls:
    """Converts the batches of one data frame to calls.

    Args:
        options: defaults of all rows.
        app: source of defaults and argument checks, or None.
        place: name of the data frame for errors with a row number, or "".
    """

    def __init__(self, options: SinkOptions, app: TaskQ | None = None, place: str = "") -> None:
        self._options = options
        self._app = app
        self._place = place
        self._row = 0
        self._made: dict[tuple[Any, ...], Recipe] = {}

    def calls(self, batch: pa.RecordBatch) -> Iterator[list[Call[Any]]]:
        """Yield lists of a batch's calls.

        Raises:
            BadRow: a row cannot become a job.
        """
        shape_of(batch.schema, task=self._options.task)
        count = max(min(ROWS_MAX, ROWS_BYTES_MAX * batch.num_rows // max(batch.nbytes, 1)), 1)
        for first in range(0, batch.num_rows, count):
            some = batch.slice(first, count)
            yield self._calls(some)
            self._row += some.num_rows

    def _calls(self, batch: pa.RecordBatch) -> list[Call[Any]]:
        shape = shape_of(batch.schema, task=self._options.task)
        names = tuple(name for name in shape.reserved if name != "key")
        calls: list[Call[Any]] = []
        try:
            keys = (
                _reserved("key", batch.column("key")) if "key" in shape.reserved else repeat(None)
            )
            columns = [_reserved(name, batch.column(name)) for name in names]
            bodies = _bodies(batch, shape.arguments, has_value=shape.has_value)
            rows = zip(*columns, strict=True) if columns else repeat(())
            for row, key, body in zip(rows, keys, bodies, strict=False):
                known = self._made.get((key is not None, *row))
                recipe = known or self._recipe(names, row, has_key=key is not None)
                calls.append(recipe.call(body, key))
        except (TaskqError, pa.ArrowException, ValueError, OverflowError) as error:
            raise self._blame(batch, len(calls), error) from error
        return calls

    def _blame(self, batch: pa.RecordBatch, begun: int, error: Exception) -> Exception:
        """Return the error with its row: the row after the last call, or an earlier bad value."""
        if isinstance(error, BadRow):
            return error
        if batch.num_rows > 1 and not begun:
            for at in range(batch.num_rows):
                try:
                    self._calls(batch.slice(at, 1))
                except BadRow as bad:
                    return BadRow(self._row + at, bad.values, str(bad.__cause__), self._at(at))
        values = _shown(batch.slice(begun, 1))
        return BadRow(self._row + begun, values, str(error).partition("\n")[0], self._at(begun))

    def _at(self, row: int) -> str:
        return f"{self._place}, row {self._row + row + 1}" if self._place else ""

    def _recipe(self, names: Sequence[str], row: tuple[Any, ...], *, has_key: bool) -> Recipe:
        changes: dict[str, Any] = {
            name: value for name, value in zip(names, row, strict=True) if value is not None
        }
        if "task" in names and not self._options.task and "task" not in changes:
            raise UsageError(
                "column 'task' is null: fill it in, or give option 'task' for such rows "
                '("" stands for a job without a task)'
            )
        task = changes.pop("task", self._options.task)
        if "headers" in changes:
            changes["headers"] = dict(changes["headers"])
        if "eta" in changes:
            changes["delay"] = None  # the row's own moment overrides the delay of all rows
        changes = {**self._options.changes, **changes}
        if changes.get("delay", 0) is None:
            del changes["delay"]
        if has_key:
            changes["key"] = _SOME_KEY
        recipe = self._make(task, cast("OptionChanges", changes), has_key=has_key)
        if len(self._made) >= RECIPES_MAX:
            self._made.clear()
        self._made[has_key, *row] = recipe
        return recipe

    def _make(self, task: str, changes: OptionChanges, *, has_key: bool) -> Recipe:
        known = None if self._app is None or not task else self._app.tasks.get(task)
        if self._app is not None and known is None and task:
            raise UnknownTask(
                f"app {self._options.app!r} has no task {task!r}: it has "
                f"{', '.join(sorted(self._app.tasks)[:_SHOWN_TASKS_MAX]) or 'none'}"
            )
        chosen, flags = (Options(), Flag(0)) if known is None else known.kind()
        if not has_key and chosen.key is None:
            # Options about keys do not apply to a row without a key.
            for name in KEY_OPTIONS & changes.keys():
                del changes[name]  # type: ignore[misc]
        enqueuer = None
        if known is None:
            chosen = chosen.changed(changes)
        else:
            enqueuer = known.options(**changes)
            chosen, flags = enqueuer.kind()
        extras = None if known is not None else chosen.fixed_extras(task or "a job")
        plain: Call[Any] = Call(
            name=task, task=None, body=b"", flags=flags, chosen=chosen,
            spec=chosen.spec(task, flags), extras=extras,
        )  # fmt: skip
        return Recipe(plain, known, enqueuer)


def check_payload(task: str, body: object) -> None:
    if isinstance(body, bytes) and len(body) > PAYLOAD_BYTES_MAX:
        remedy = "put the data into a file and pass its path"
        raise PayloadTooLarge(
            f"{task or 'a job'}: the payload", len(body), PAYLOAD_BYTES_MAX, remedy
        )


# -- values of columns -----------------------------------------------------------------------------


def _bodies(batch: pa.RecordBatch, arguments: Sequence[str], *, has_value: bool) -> list[Any]:
    if has_value:
        return cast("list[Any]", _binary(batch.column("value")).to_pylist())
    columns = [_values(name, batch.column(name)) for name in arguments]
    if not columns:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(arguments, row, strict=True)) for row in zip(*columns, strict=True)]


def _reserved(name: str, column: pa.Array) -> list[Any]:
    if name == "key":
        return cast("list[Any]", _binary(column).to_pylist())
    values = _values(name, column)
    if name == "eta":
        return [_moment(name, value) for value in values]
    if name in _SPANS:
        return [_span(name, value) for value in values]
    if name == "headers":
        return [None if value is None else tuple(value.items()) for value in values]
    return values


def _binary(column: pa.Array) -> pa.Array:
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(
        pa.large_string() if types.is_string_view(column.type) else column.type
    ).cast(pa.large_binary())


def _values(name: str, column: pa.Array) -> list[Any]:
    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    for of_kind, plain in _MICROSECONDS:
        if of_kind(kind) and kind.unit == "ns":
            column = column.cast(plain(kind))
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        raise UsageError(f"column {name!r} cannot be written as JSON: Invalid UTF8") from None
    return [_unmapped(value, kind) for value in values] if types.is_nested(kind) else values


_MICROSECONDS: Final[tuple[tuple[Any, Callable[[pa.DataType], pa.DataType]], ...]] = (
    (types.is_timestamp, lambda kind: pa.timestamp("us", kind.tz)),
    (types.is_duration, lambda _: pa.duration("us")),
    (types.is_time64, lambda _: pa.time64("us")),
)


def _unmapped(value: Any, kind: pa.DataType) -> Any:
    if value is None or not types.is_nested(kind):
        return value
    if types.is_map(kind):
        return {name: _unmapped(item, kind.item_type) for name, item in value}
    if types.is_struct(kind):
        return {field.name: _unmapped(value[field.name], field.type) for field in kind}
    return [_unmapped(item, kind.value_type) for item in value]


def _span(name: str, value: Any) -> Any:
    if isinstance(value, str):
        # A file may have a moment as text; unlike a duration, it has a colon.
        return _moment(name, value) if name == "expires" and ":" in value else span(value)
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


def _shown(batch: pa.RecordBatch) -> str:
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
