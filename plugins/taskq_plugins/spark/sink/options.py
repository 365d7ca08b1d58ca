"""The options of ``df.write.format("taskq")``, checked once; every row starts from them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from taskq.connection.uploads import check_upload_name
from taskq.engine import Compression, Flag
from taskq.errors import UsageError
from taskq.hooks import OptionChanges, Options
from taskq.values import check_name, parse_json

if TYPE_CHECKING:
    from taskq import TaskQ

_SPANS: Final = ("delay", "expires", "window", "keep")
_NUMBERS: Final = ("priority", "attempts")
#: Options that may stand before a key is known: they are looked at once more with each key.
KEY_OPTIONS: Final = frozenset({"window", "until"})
#: As they are spelled in messages.
_KNOWN: Final = (
    "path", "task", "queue", "priority", "attempts", "delay", "expires", "window", "until",
    "headers", "keep", "compress", "app", "adopt", "upload", "idempotencyKey",
)  # fmt: skip
#: What Spark itself passes on to a sink.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
_PER_ROW: Final = frozenset({"key", "eta", "value"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where jobs go, and what stands for all rows that do not say otherwise.

    Attributes:
        data_dir: the task log's directory, absolute.
        task: name of the task, "" for none.
        changes: options of an enqueue.
        app: ``module:app`` whose tasks give defaults and check arguments; "" for none.
        adopt: whether the writer opens the log and adopts what it published.
        upload: the name by which a second writing of the same is known; "" for none given.
    """

    data_dir: Path
    task: str = ""
    changes: OptionChanges = field(default_factory=OptionChanges)
    app: str = ""
    adopt: bool = True
    upload: str = ""

    def load_app(self) -> TaskQ | None:
        """Return the app, if one is named.

        Raises:
            UsageError: it cannot be imported.
        """
        if not self.app:
            return None
        from taskq_workers.runs.loader import load_app  # noqa: PLC0415 - few name an app

        return load_app(self.app)


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options as Spark hands them over: all text, in any case.

    Raises:
        UsageError: one is unknown, wrong or missing.
    """
    options = {name.lower(): text for name, text in given.items()}
    _check_names(options)
    path = options.get("path", "")
    if not path:
        raise UsageError(
            'the sink "taskq" does not know where to put jobs: add .option("path", DIRECTORY)'
        )
    task = options.get("task", "")
    if task:
        check_name("task name", task)
    return SinkOptions(
        data_dir=_directory(path),
        task=task,
        changes=_changes(options),
        app=options.get("app", ""),
        adopt=_read("adopt", options.get("adopt", "true")),
        upload=_upload(options),
    )


def span(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _KNOWN}
    for name in options:
        if name in _PER_ROW:
            raise UsageError(f"option {name!r}: it differs from row to row, so make it a column")
        if name not in known and name not in _OF_SPARK:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {known[near[0]]!r}?" if near else f"there are {', '.join(_KNOWN)}"
            raise UsageError(f'the sink "taskq" has no option {name!r}: {hint}')


def _directory(path: str) -> Path:
    plain = path.removeprefix("file://") if path.startswith("file:///") else path
    plain = plain.removeprefix("file:")
    if "://" in plain:
        raise UsageError(
            f"path is {path!r}: a task log is a directory that driver and executors reach under "
            f"the same name, such as a mounted one"
        )
    return Path(plain).absolute()


def _changes(options: Mapping[str, str]) -> OptionChanges:
    if "queue" in options:
        check_name("queue name", options["queue"])
    names = ("queue", *_NUMBERS, *_SPANS, "until", "compress", "headers")
    values = {name: _read(name, options[name]) for name in names if name in options}
    changes: OptionChanges = values  # type: ignore[assignment]
    probe: OptionChanges = {**changes, "key": "k"} if KEY_OPTIONS & values.keys() else changes
    # Checked here, so that a wrong option fails before a single row is read.
    Options().changed(probe).spec("", Flag(0))
    return changes


def _read(name: str, text: str) -> Any:
    if name not in _READS:
        return span(text) if name in _SPANS else text
    read, wanted = _READS[name]
    try:
        return read(text)
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"option {name!r} is {text[:60]!r}, it must be {wanted}") from None


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _object(text: str) -> dict[str, str]:
    headers: dict[str, str] = parse_json(text)
    if not isinstance(headers, dict):
        raise TypeError(text)
    return headers


def _one_of(known: Sequence[str]) -> tuple[Callable[[str], str], str]:
    return {name: name for name in known}.__getitem__, " or ".join(known)


#: What reads an option, and what it must be; others are text as it is.
_READS: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "priority": (int, "a whole number"),
    "attempts": (int, "a whole number"),
    "until": _one_of(("settled",)),
    "compress": _one_of(get_args(Compression)),
    "adopt": (_flag, "true or false"),
    "headers": (_object, 'one JSON object of text by name, such as {"source": "import"}'),
}


def _upload(options: Mapping[str, str]) -> str:
    names = [options[name] for name in ("upload", "idempotencykey") if options.get(name)]
    if len(set(names)) > 1:
        raise UsageError("options 'upload' and 'idempotencyKey' mean the same: give one of them")
    return check_upload_name(names[0]) if names else ""
