"""Options that many commands share, and the directory that they name."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource
from click.exceptions import Exit

import taskq.cli.render as render
from taskq import text, values
from taskq.calls.habits import check_directory
from taskq.cli import errors
from taskq.errors import TaskqError

if TYPE_CHECKING:
    from taskq import engine

F = TypeVar("F", bound="Callable[..., object]")

#: A directory with this file is a task log.
_MARK: Final = "taskq.json"
#: Most entries of a folder that are searched for logs, to suggest them.
_NEARBY_MAX: Final = 200
#: Most logs that are suggested.
_OFFERED_MAX: Final = 3
_COUNT_MAX: Final = 1_000_000_000


def of_group(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Return a command's directory from its own ``-d``, from ``taskq -d DIR``, or the variable.

    Raises:
        WrongUsage: two different directories were given.
    """
    given: str | None = context.find_root().params.get("data_dir")
    if given is None:
        return value
    return _one(Path(given), value if _is_typed(context, parameter.name) else None)


def _is_typed(context: click.Context, name: str | None) -> bool:
    return context.get_parameter_source(name or "") is ParameterSource.COMMANDLINE


def _one(first: Path, second: Path | None) -> Path:
    if second is not None and second != first:
        both = " and ".join(sorted((str(first), str(second))))
        raise errors.WrongUsage(f"two directories were given, {both}: give the one you mean")
    return first


class Directory(click.Path):
    """The directory of a log; an empty name, as from an unset variable, is none."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the directory as a path."""
        if value == "":
            self.fail("it is empty: name a directory, or leave it out", param, ctx)
        check_directory(os.fspath(value))
        return super().convert(value, param, ctx)


# Options by the names that all commands use.

#: None if neither the option nor the variable names a directory.
data_dir_option: Final = click.option(
    "-d",
    "--data-dir",
    envvar="TASKQ_DATA_DIR",
    show_envvar=True,
    type=Directory(),
    callback=of_group,
    help="The task log's directory.",
)
utc_option: Final = click.option(
    "--utc", is_flag=True, expose_value=False, help="Times in UTC, not in this machine's zone.",
    callback=lambda context, _, given: context.meta.update({render.UTC_WANTED: given}),
)  # fmt: skip
json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document."
)
#: Read the log as it was at a moment.
at_option: Final = click.option(
    "--at",
    "at_text",
    metavar="MOMENT",
    help='As it was then: a span back from now ("2h"), a time, or an lsn.',
)
queue_option: Final = click.option("-Q", "--queue", help="Only this queue.")
task_option: Final = click.option("-t", "--task", help="Only this task.")
since_option: Final = click.option(
    "--since", metavar="MOMENT", help='Enqueued then or later: "2h" ago, or a time.'
)
before_option: Final = click.option(
    "--before", metavar="MOMENT", help='Enqueued before then: "2h" ago, or a time.'
)
limit_option: Final = click.option(
    "-n", "--limit", type=click.IntRange(1, _COUNT_MAX), help="Largest number, the oldest first."
)
dry_run_option: Final = click.option("--dry-run", is_flag=True, help="Change nothing, and count.")
yes_option: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask first.")

# Docstrings of the options in ``taskq.cli``.
data_dir_option.__doc__ = "Take ``-d/--data-dir``, or the variable; None without either."
json_option.__doc__ = "Take ``--json``: one JSON document instead of text for people."
utc_option.__doc__ = "Take ``--utc``: times for people in UTC, not in the machine's zone."
dry_run_option.__doc__ = "Take ``--dry-run``: count, and change nothing."
yes_option.__doc__ = "Take ``--yes``: no question."


def states_option(names: Iterable[str]) -> Callable[[F], F]:
    """Return ``--state``, which may be given several times, for these states."""
    kind = click.Choice(list(names))
    return click.option("-s", "--state", "states", multiple=True, type=kind, help="Only these.")


def newest_option(count: int) -> Callable[[F], F]:
    """Return ``--limit`` for a list, with this default."""
    kind = click.IntRange(1, _COUNT_MAX)
    return click.option(
        "-n", "--limit", type=kind, default=count, show_default=True, help="Largest number of rows."
    )


def latest_option(what: str, most: int) -> Callable[[F], F]:
    """Return ``--limit`` for parts of one job: the latest ones, 0 for all; with this default."""
    return click.option(
        "-n", "--limit", "count", type=click.IntRange(0, _COUNT_MAX), default=most,
        show_default=True,
        help=f"Number of its latest {what}; 0 for all.",
    )  # fmt: skip


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return these options as one decorator, in this order."""
    return lambda command: functools.reduce(lambda made, add: add(made), options[::-1], command)


def log_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Make a command about a whole log accept ``taskq ls DIR``; ``-d DIR`` works too."""

    @data_dir_option
    @click.argument("directory", metavar="[DIR]", required=False, type=Directory())
    @functools.wraps(command)
    def run(*args: Any, directory: Path | None, data_dir: Path | None, **rest: Any) -> Any:
        if directory is not None:
            context = click.get_current_context()
            typed = _is_typed(context, "data_dir") or context.find_root().params.get("data_dir")
            data_dir = _one(directory, data_dir if typed else None)
        return command(*args, data_dir=data_dir, **rest)

    return run


def moment(text: str | None) -> engine.Moment | None:
    """Return the moment of ``--at``, None for now.

    Raises:
        UsageError: the text is no moment.
    """
    from taskq.engine import Moment  # noqa: PLC0415 - help must not import the log

    return None if text is None else Moment.parse(text, time.time_ns(), "--at")


def moment_of(name: str, text: str | None) -> str | datetime | None:
    """Return a span back from now unchanged, a time as a datetime; without a zone it is local.

    Raises:
        WrongUsage: the text is neither.
    """
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        pass
    from taskq.errors import UsageError  # noqa: PLC0415
    from taskq.values import nanoseconds  # noqa: PLC0415 - help must not import it

    try:
        nanoseconds(text)
    except UsageError:
        raise errors.WrongUsage(
            f'{name} {text!r:.60}: give a span back from now ("2h") or a time ("2024-05-01T12:00")'
        ) from None
    return text


def resolve(data_dir: Path | None) -> Path:
    """Return the given directory, or the directory of the settings."""
    if data_dir is not None:
        from taskq.engine import system  # noqa: PLC0415 - help must not import the log

        return Path(system.named(data_dir))
    from taskq.connection.settings import load_settings  # noqa: PLC0415 - loads pydantic; -d saves that

    return load_settings(None).data_dir


def open_reader(
    data_dir: Path | None, at: engine.Moment | None = None, *, warns: bool = True
) -> engine.LogReader:
    """Return a reader of the directory, or of a case file, now or at a moment of the past.

    It takes no lock and writes nothing. It warns of lost or damaged records, unless the
    command itself reports them.

    Raises:
        Failure: the directory is no task log; the message lists logs nearby.
    """
    from taskq.engine import LogReader  # noqa: PLC0415 - help must not import the log

    path = resolve(data_dir)
    if path.is_file():
        from taskq.cli.casefile import unpacked  # noqa: PLC0415 - few look at one

        path = unpacked(path) or path
    if not (path / _MARK).is_file() and not any((path / "log").glob("[0-9]" * 20 + ".log")):
        refuse_shards(path)
        raise errors.Failure(f"{path.absolute()} is not a task log{_offer(path)}")
    reader = LogReader.open(str(path), at=at)
    if reader.journal.identity.read_only:
        _print_copy(reader)
    if warns:
        for loss in reader.journal.lost:
            explained = loss.explain(reader.path, reader.resend_command)
            render.echo(f"taskq: {text.flat(explained)}", err=True)
        context = click.get_current_context(silent=True)
        if context is not None and not reader.journal.lost:
            context.call_on_close(functools.partial(_warn_if_damaged, reader))
    return reader


def _warn_if_damaged(reader: engine.LogReader) -> None:
    if reader.journal.files.is_damaged:
        warn_of_damage(reader.path)


def warn_of_damage(path: str) -> None:
    see = text.flat(values.command(path, "verify"))
    render.echo(f"taskq: a part of this log is damaged and was left out, see: {see}", err=True)


def refuse_shards(path: Path) -> None:
    """Refuse a root of shards and a hub, for a command about one log.

    Raises:
        Failure: the directory is either; the message names one of its logs.
    """
    if (path / "devices").is_dir() and (path / "registry.db").is_file():
        raise errors.Failure(
            f"{path.absolute()} is a hub, and this is asked of one log: name it, such as -d "
            f"{text.flat(values.as_typed(str(path / 'devices')))}/NAME/LOG; the devices are listed "
            f"by: {text.flat(values.as_typed('taskq', 'hub', 'devices', str(path)))}"
        )
    if not (path / "shards.json").is_file():
        return
    from taskq import Shards  # noqa: PLC0415 - as above

    layout = Shards.of(path)
    if layout is not None:
        first = text.flat(values.as_typed(str(path / layout.names()[0])))
        raise errors.Failure(
            f"{path.absolute()} has {layout.count} shards, and this is asked of one log: "
            f"name it, such as -d {first}"
        )


def _print_copy(reader: engine.LogReader) -> None:
    """Print that this is a hub's copy, and its age: later changes on the device are missing."""
    if copy_of := reader.copy_of:
        render.echo(copy_of, err=True)


def _offer(path: Path) -> str:
    """Return the second line of an error: the logs nearby, if any."""
    logs = [text.flat(values.as_typed(str(log))) for log in _nearby(path)]
    if not logs:
        start = values.command(str(path.absolute()), "put", "BODY")
        return f": give its directory with -d, or start one with: {start}"
    if len(logs) == 1:
        return f"; there is one nearby:\n  -d {logs[0]}"
    return "; these are nearby:\n" + "\n".join(f"  -d {log}" for log in logs[:_OFFERED_MAX])


def _nearby(path: Path) -> list[Path]:
    """Return the logs above, in and next to a path and in the working directory, sorted.

    Also logs one folder further up or down with the wanted name.
    """
    near = path.absolute()
    is_gone = not Path().stat().st_nlink  # the working directory was removed
    here = near.parent if is_gone else Path.cwd()
    above = near.parents[1:3]
    places = {near.parent, here, *above, *(folder / near.name for folder in above)}
    for folder in {near, near.parent, here}:
        try:
            with os.scandir(folder) as entries:
                inside = [Path(entry.path) for entry in islice(entries, _NEARBY_MAX)]
        except OSError:
            continue
        places.update(inside, (place / near.name for place in inside))
    return sorted({place.resolve() for place in places if os.path.isfile(place / _MARK)})  # noqa: PTH113 - no error from folders of others


def span(text: str) -> float | str:
    """Return a bare number as seconds, since a command line holds only text; other text as is."""
    try:
        return float(text)
    except ValueError:
        return text


def logs_below(root: Path) -> list[Path]:
    """Return the logs of a root of shards, or the directory itself."""
    return [root / name for name in names_below(root)] or [root]


def names_below(root: Path) -> list[str]:
    if not (root / "shards.json").is_file():
        return []
    from taskq import Shards  # noqa: PLC0415 - few have shards

    layout = Shards.of(root)
    return [] if layout is None else layout.names()


def over_shards(command: Callable[..., Any]) -> Callable[..., Any]:
    """Make a command accept a root of shards as its directory, too."""

    @functools.wraps(command)
    def run(*args: Any, data_dir: Path | None, **rest: Any) -> Any:
        root = resolve(data_dir)
        paths = logs_below(root)
        # A command that follows a log, or uses a named reader, reads one log.
        if "job_id" in rest and (root / "registry.db").is_file():
            return command(*args, data_dir=_copy_with(root, rest["job_id"]), **rest)
        if paths == [root] or rest.get("follow") or rest.get("reader"):
            return command(*args, data_dir=data_dir, **rest)
        from taskq.shards import shard_with  # noqa: PLC0415 - few have shards

        if "job_id" in rest:
            from taskq.engine import Tag  # noqa: PLC0415 - help must not import the log

            tag, lsn = Tag.of_id(rest["job_id"])
            index = shard_with(list(map(str, paths)), tag, lsn) if tag else None
            if index is None:
                whole = "" if tag else ": give its whole id"
                raise errors.Failure(f"no shard of {root} has job {rest['job_id']}{whole}")
            return command(*args, data_dir=paths[index], **rest)
        begun = [path for path in paths if (path / "taskq.json").is_file()]
        read = None
        if rest.get("as_json"):
            # Commands with --follow print a document on each line.
            read = _documents if "follow" in rest else json.loads
        return _each(begun, functools.partial(command, *args, **rest), read)

    return run


def _copy_with(hub: Path, job_id: str) -> Path:
    """Return the log in a hub with a job: a log for devices, or a copy of a device's log.

    Raises:
        Failure: no log has the job.
    """
    from taskq.engine import Identity, LocalDisk, LogReader, Tag  # noqa: PLC0415 - few have a hub

    tag, lsn = Tag.of_id(job_id)
    for file in sorted([*hub.glob("outbox/*/taskq.json"), *hub.glob("devices/*/*/taskq.json")]):
        with contextlib.suppress(TaskqError, OSError):  # skip a damaged copy
            identity = Identity.read(LocalDisk(), str(file.parent))
            if identity is not None and identity.tag.takes(tag, lsn):
                with LogReader.open(str(file.parent)) as reader:
                    reader.find_job(job_id)
                    return file.parent
    whole = "" if tag else ": give its whole id"
    raise errors.Failure(f"no device of {hub} has job {job_id}{whole}")


def _documents(lines: str) -> list[Any]:
    return [json.loads(line) for line in lines.splitlines()]


def _each(
    paths: list[Path], command: Callable[..., Any], read: Callable[[str], Any] | None
) -> None:
    """Run the command on each; the exit code is the worst. Output for ``read`` is one document."""
    worst, documents = 0, {}
    for path in paths:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                command(data_dir=path)
        except Exit as end:
            worst = max(worst, end.exit_code)
        if read is not None:
            documents[path.name] = read(printed.getvalue())
        else:
            render.echo(f"{path.name}\n{printed.getvalue()}")
    if read is not None:
        render.print_json(documents)
    if not paths:
        render.echo("No jobs yet.")
    if worst:
        raise Exit(worst)
