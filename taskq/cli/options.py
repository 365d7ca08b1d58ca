"""Options that many commands share, and the directory that they mean."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.log.reader import LogReader
    from taskq.log.timetravel import Moment

F = TypeVar("F", bound="Callable[..., object]")


def data_dir_option(command: F) -> F:
    """``-d/--data-dir``: None when neither the option nor the variable names a directory."""
    return click.option(
        "-d",
        "--data-dir",
        envvar="TASKQ_DATA_DIR",
        show_envvar=True,
        type=click.Path(path_type=Path),
        help="The task log's directory.",
    )(command)


def json_option(command: F) -> F:
    """``--json``: one JSON document instead of text for people."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def at_option(command: F) -> F:
    """``--at``: look at the log as it stood then."""
    return click.option(
        "--at",
        "at_text",
        metavar="MOMENT",
        help='As it was then: a span back from now ("2h"), a time, or an lsn.',
    )(command)


def moment(text: str | None) -> Moment | None:
    """The moment that ``--at`` names, None for now.

    Raises:
        UsageError: it names none.
    """
    from taskq.log.timetravel import Moment  # noqa: PLC0415 - help must not import the log

    return None if text is None else Moment.parse(text, time.time_ns(), "--at")


def moment_of(name: str, text: str | None) -> str | datetime | None:
    """A span back from now as it is, a time as a datetime; without a zone it is local.

    Raises:
        WrongUsage: it is neither.
    """
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        pass
    from taskq.cli.errors import WrongUsage  # noqa: PLC0415 - as below
    from taskq.core.durations import nanoseconds  # noqa: PLC0415 - help must not import it
    from taskq.core.errors import UsageError  # noqa: PLC0415

    try:
        nanoseconds(text)
    except UsageError:
        raise WrongUsage(
            f'{name} {text!r:.60}: give a span back from now ("2h") or a time ("2024-05-01T12:00")'
        ) from None
    return text


def resolve(data_dir: Path | None) -> Path:
    """The directory that was named, or the one of the settings (.env, pyproject, default)."""
    if data_dir is not None:
        return data_dir
    from taskq.settings import load_settings  # noqa: PLC0415 - loads pydantic; -d saves that

    return load_settings(None).data_dir


def open_reader(data_dir: Path | None) -> LogReader:
    """A reader of the directory: it takes no lock and writes nothing."""
    from taskq.cli.errors import Failure  # noqa: PLC0415
    from taskq.log.reader import LogReader  # noqa: PLC0415 - help must not import the log

    path = resolve(data_dir)
    if not (path / "taskq.json").is_file():
        raise Failure(
            f"{path}: is not a task log; give its directory with -d, "
            f"or start one with taskq demo / taskq put"
        )
    return LogReader.open(str(path))


def span(text: str) -> float | str:
    """A bare number as seconds, since on a command line all is text; other text as it is."""
    try:
        return float(text)
    except ValueError:
        return text
