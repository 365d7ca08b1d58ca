"""A data frame's rows as entries of an inbox: what stands before each payload, and the payload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from taskq.errors import TaskqError, UsageError
from taskq.hooks import encode_loose
from taskq_plugins.spark.sink.columns import (
    binary_of,
    check_object,
    given_payloads,
    no_value,
    pieces,
    reserved_values,
    shown,
)
from taskq_plugins.spark.sink.options import SinkOptions
from taskq_plugins.spark.sink.payloads import payloads_of, values_of
from taskq_plugins.spark.sink.recipes import Recipe, Recipes, check_payload
from taskq_plugins.spark.sink.schema import Shape, shape_of

if TYPE_CHECKING:
    from taskq import TaskQ
    from taskq.engine import PartWriter


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
        options: what stands for all rows.
        app: whose tasks give defaults and check arguments, if any.
        place: what errors call the data frame, "" for nothing; row numbers are told with it.
    """

    def __init__(self, options: SinkOptions, app: TaskQ | None = None, place: str = "") -> None:
        self._options = options
        self._app = app
        self._place = place
        self._row = 0
        self._schema: pa.Schema | None = None

    def _learn(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._shape: Shape = shape_of(schema, task=self._options.task)
        self._names = tuple(name for name in self._shape.reserved if name != "key")
        self._must_name_task = "task" in self._names and not self._options.task
        self._recipes = Recipes(self._options, self._app, self._names)

    def entries(self, batch: pa.RecordBatch) -> Iterator[Entries]:
        """Yield the rows' entries, some at a time.

        Raises:
            UsageError: the columns cannot be meant so.
            BadRow: a row cannot become a job.
        """
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
