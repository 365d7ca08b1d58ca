"""The options of ``df.write.format("taskq")``, checked once; every row starts from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import pyarrow as pa
from pyarrow import types
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from taskq.engine import Compression, Flag
from taskq.errors import UsageError
from taskq.hooks import OptionChanges, Options
from taskq.values import parse_json
from taskq_plugins.spark.source.options import parsed, reads

if TYPE_CHECKING:
    from taskq import TaskQ

    Check = Callable[[pa.DataType], bool]

#: Options that need a key; they are checked again with each row's key.
KEY_OPTIONS: Final = frozenset({"window", "until"})
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@=+-]{0,149}")
_DURATION: Final = 'seconds, or text such as "5m"'
_ALLOWED: Final = {
    "path": "the task log's directory",
    "task": "the name of a task",
    "queue": "the name of a queue",
    "priority": "a whole number",
    "attempts": "a whole number",
    **dict.fromkeys(("delay", "expires", "window", "keep"), _DURATION),
    "until": "settled",
    "headers": 'one JSON object of text by name, such as {"source": "import"}',
    "compress": "none, zlib or zstd",
    "app": "an app, as module:app",
    "upload": "a name",
}
#: Options that Spark itself passes on to a sink.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
_PER_ROW: Final = frozenset({"key", "eta", "value"})


def span(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def check_upload_name(name: str, what: str = "upload") -> str:
    """Return the name of an upload if it is valid as a folder's name, too."""
    if name and not _NAME.fullmatch(name):
        raise UsageError(
            f"{what} name {name!r:.60} becomes a file's name: it may have up to 150 ASCII letters, "
            f"digits and any of ._@=+- and must begin with a letter or digit"
        )
    return name


def _directory(path: str) -> Path:
    plain = path.removeprefix("file://") if path.startswith("file:///") else path
    plain = plain.removeprefix("file:")
    if "://" in plain:
        raise UsageError(
            f"path is {path!r}: a task log is a directory that driver and executors reach under "
            f"the same name, such as a mounted one"
        )
    if not plain:
        raise ValueError("no directory")
    return Path(plain).absolute()


Span = Annotated[float | str | None, BeforeValidator(span)]


class SinkOptions(BaseModel):
    """Target and defaults of the rows of a data frame.

    Attributes:
        data_dir: the task log's directory, absolute.
        task: name of the task, or "".
        app: ``module:app`` with defaults and argument checks; "" for none.
        upload: name that makes a second write a repetition; "" for none.
    """

    model_config = ConfigDict(frozen=True)

    data_dir: Annotated[Path, BeforeValidator(_directory), Field(alias="path")]
    task: str = ""
    queue: str = ""
    priority: int | None = None
    attempts: int | None = None
    delay: Span = None
    expires: Span = None
    window: Span = None
    keep: Span = None
    until: Literal["settled"] | None = None
    headers: Annotated[dict[str, Any] | None, reads(parse_json)] = None
    compress: Compression | None = None
    app: str = ""
    upload: Annotated[str, AfterValidator(check_upload_name)] = ""

    @property
    def changes(self) -> OptionChanges:
        """Return the options of the enqueue."""
        chosen = self.model_fields_set - {"data_dir", "task", "app", "upload"}
        changes: OptionChanges = {name: getattr(self, name) for name in chosen}  # type: ignore[assignment]
        return changes

    def load_app(self) -> TaskQ | None:
        if not self.app:
            return None
        from taskq_workers.runs.loader import load_app  # noqa: PLC0415 - the option app is rare

        return load_app(self.app)


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    own = {name: text for name, text in given.items() if name.lower() not in _OF_SPARK}
    for name in own:
        if name.lower() in _PER_ROW:
            raise UsageError(f"option {name!r}: it differs from row to row, so make it a column")
    options = parsed(SinkOptions, _ALLOWED, own)
    changes = options.changes
    probe: OptionChanges = {**changes, "key": "k"} if KEY_OPTIONS & changes.keys() else changes
    # Check now, so that a wrong option fails before any row is read.
    Options().changed(probe).spec(options.task, Flag(0))
    return options


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


#: Reserved columns, which are not arguments: their types in words, and a test of the type.
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


class FrameColumns(NamedTuple):
    """The columns of a data frame by use.

    Attributes:
        reserved: columns with options of the job, without ``value``.
        arguments: columns with arguments of the task, in order.
        has_value: whether ``value`` holds whole payloads.
    """

    reserved: tuple[str, ...]
    arguments: tuple[str, ...]
    has_value: bool


def shape_of(schema: pa.Schema, *, task: str) -> FrameColumns:
    """Return the columns by use. ``task`` is the task's name for all rows, or ""."""
    names = list(schema.names)
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UsageError(f"column {min(twice)!r} is there twice: rename or drop one of them")
    for column in schema:
        _check(column.name, column.type)
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
    return FrameColumns(reserved, arguments, has_value)


def _check(name: str, kind: pa.DataType) -> None:
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_null(kind):  # files may have columns of only nulls
        return
    if name in RESERVED:
        words, fits = RESERVED[name]
        if not fits(kind):
            raise UsageError(
                f"column {name!r} is {kind}, it must be {words}: cast it, or rename it if it is "
                f"an argument (columns named {', '.join(RESERVED)} are not)"
            )
        return
