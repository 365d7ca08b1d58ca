"""Read files of rows by pyarrow, a batch at a time: Parquet, CSV and JSON lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from pyarrow import types
from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError
from pydantic_core import to_json

from taskq.errors import TaskqError, UsageError
from taskq_plugins.spark.sink.options import RESERVED

if TYPE_CHECKING:
    from pathlib import Path

#: The rows of a file; their schema may change between batches.
Rows: TypeAlias = "Iterator[pa.RecordBatch]"
#: Rows of Parquet and JSON lines that are read at a time.
BATCH_ROWS: Final = 16_384
_BLOCK_BYTES: Final = 4 * 1024 * 1024
#: Longest line of JSON: a payload and the other columns.
LINE_BYTES_MAX: Final = 4 * 1024 * 1024
_WHOLE_NUMBERS: Final = ("priority", "attempts")
_OF_LINES: Final = pa.schema(
    [
        (name, pa.int64() if name in _WHOLE_NUMBERS else pa.string())
        for name in RESERVED
        if name not in {"headers", "value"}
    ]
    + [("headers", pa.map_(pa.string(), pa.string())), ("value", pa.binary())]
)
_WholeNumber: TypeAlias = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]


class _Line(BaseModel):
    """A line of JSON: reserved columns by name, and arguments."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)

    task: str | None = None
    queue: str | None = None
    key: str | None = None
    priority: _WholeNumber | None = None
    attempts: _WholeNumber | None = None
    window: str | None = None
    delay: str | None = None
    eta: str | None = None
    expires: str | None = None
    headers: dict[str, StrictStr] | None = None
    value: Any = None


class BadFile(TaskqError):
    """A file does not match its extension; nothing was enqueued."""


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_rows(path: Path, *, key: str | None = None, as_text: Sequence[str] = ()) -> Rows:
    """Open a file by its extension: .parquet, .csv, .jsonl or .ndjson.

    ``key`` names the column of keys. ``as_text`` names CSV columns to read as text.
    """
    ending = path.suffix.lower()
    if as_text and ending != ".csv":
        raise UsageError(f"--text is for CSV files: {path.name} knows the types of its values")
    if ending == ".parquet":
        rows = _parquet(path)
    elif ending == ".csv":
        rows = _csv(path, as_text)
    elif ending in {".jsonl", ".ndjson"}:
        return _lines(path, key)
    else:
        raise UsageError(f"{path.name}: give a file that ends in .parquet, .csv or .jsonl")
    return rows if key is None else _keyed(rows, key, path)


def _parquet(path: Path) -> Rows:
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowException as error:
        raise BadFile(f"{path}: is no Parquet file ({_first_line(error)})") from error
    return _safe(path, file.iter_batches(BATCH_ROWS))


def _csv(path: Path, as_text: Sequence[str]) -> Rows:
    kinds: dict[str, pa.DataType] = {
        name: pa.int64() if name in _WHOLE_NUMBERS else pa.string() for name in RESERVED
    }
    kinds |= dict.fromkeys(as_text, pa.string())
    try:
        reader = arrow_csv.open_csv(
            path,
            read_options=arrow_csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=kinds,
                # An empty cell is null; a quoted "" is empty text.
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowException as error:
        raise BadFile(f"{path}: does not read as CSV: {_first_line(error)}") from error
    unknown = set(as_text) - set(reader.schema.names)
    if unknown:
        raise _no_column(path, min(unknown), reader.schema.names)
    return _safe(path, iter(reader))


def _safe(path: Path, batches: Rows) -> Rows:
    row = 0
    try:
        for batch in batches:
            yield batch
            row += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        hint = ""
        if path.suffix.lower() == ".csv":
            hint = ". The first rows decide the type of a column: name it with --text"
        raise BadFile(
            f"{path}: does not read after row {row}: {_first_line(error)}{hint}"
        ) from error


def _keyed(batches: Rows, key: str, path: Path) -> Rows:
    for batch in batches:
        if key not in batch.schema.names:
            raise _no_column(path, key, batch.schema.names)
        if key != "key" and "key" in batch.schema.names:
            raise UsageError(
                f"--key {key}: {path.name} has a column 'key' already: leave --key out"
            )
        column = batch.column(key)
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            text = pc.cast(column, pa.string())
        except pa.ArrowException as error:
            raise UsageError(
                f"--key {key}: values of type {column.type} are no keys ({_first_line(error)})"
            ) from error
        if key == "key":
            yield batch.set_column(batch.schema.get_field_index(key), "key", text)
        else:
            yield batch.append_column("key", text)


def _lines(path: Path, key: str | None) -> Rows:
    objects: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number, line in _numbered(file, path):
            objects.append(_object(path, number, line, key))
            if len(objects) >= BATCH_ROWS:
                yield _batch(objects)
                objects = []
    if objects:
        yield _batch(objects)


def _numbered(file: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise BadFile(f"{path}, line {number}: is longer than {LINE_BYTES_MAX} bytes")
        if not line.isspace():
            yield number, line


def _object(path: Path, number: int, line: bytes, key: str | None) -> dict[str, Any]:
    try:
        read = _Line.model_validate_json(line)
        values = read.model_extra or {}
        if key is not None and key in values:
            row_key = _Line(key=values[key]).key
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = "".join(f"{name}: " for name in problem["loc"])
        raise BadFile(f"{path}, line {number}: {where}{problem['msg']}") from None
    row = {name: getattr(read, name) for name in read.model_fields_set & _Line.model_fields.keys()}
    if key not in {None, "key"}:
        if key not in values:
            raise BadFile(f"{path}, line {number}: has no {key!r}, which --key names")
        if "key" in row:
            raise BadFile(f"{path}, line {number}: has a 'key' beside {key!r}, which --key names")
        row["key"] = row_key
    if "value" in row and values:
        raise BadFile(f"{path}, line {number}: has a 'value' and arguments: leave one of them out")
    payload = row.get("value", values)
    row["value"] = payload.encode() if isinstance(payload, str) else to_json(payload)
    if row.get("headers") is not None:
        row["headers"] = [*row["headers"].items()]
    return row


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = {name for row in rows for name in row}
    return pa.RecordBatch.from_pylist(
        rows, pa.schema([field for field in _OF_LINES if field.name in names])
    )


def _no_column(path: Path, name: str, names: Sequence[str]) -> UsageError:
    return UsageError(f"{path.name} has no column {name!r}; it has {', '.join(names)}")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
