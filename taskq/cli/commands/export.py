"""``taskq export``: jobs or records as JSON lines or Parquet, while workers go on."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

import click

import taskq.cli.render as render
from taskq import views
from taskq.cli import errors, options

if TYPE_CHECKING:
    from taskq import engine
    from taskq.reading.record import Choice

#: Mode of the output: a log is private to its user, and so is a copy.
_PRIVATE: Final = 0o600
_JSONL: Final = "jsonl"
_PARQUET: Final = "parquet"
#: Suffixes of names that promise another format.
_OTHERS: Final = {".arrow", ".csv", ".db", ".gz", ".tsv", ".xls", ".xlsx", ".xz", ".zip", ".zst"}


class Sink(Protocol):
    """A destination of jobs."""

    def job(self, view: views.JobView) -> None: ...


class JsonLines:
    """Writes a JSON object on each line."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def job(self, view: views.JobView) -> None:
        self.write(view.as_dict())

    def write(self, document: dict[str, Any]) -> None:
        self._file.write(json.dumps(document, allow_nan=False) + "\n")


@click.command()
@options.log_argument
@click.option(
    "--format",
    "kind",
    type=click.Choice([_JSONL, _PARQUET]),
    help="[default: what the name of FILE ends in, else jsonl]",
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file, not to standard output.")
@click.option(
    "--jobs/--records", "is_jobs", default=True, help="The kind of a line.  [default: jobs]"
)
@click.option("--since", metavar="MOMENT", help='Enqueued (written) then or later: "2h", a time.')
@click.option("--before", metavar="MOMENT", help="Enqueued (written) before then.")
@options.queue_option
@options.task_option
@options.states_option(views.STATES)
def export(
    data_dir: Path | None,
    kind: str | None,
    output: str | None,
    is_jobs: bool,
    since: str | None,
    before: str | None,
    queue: str | None,
    task: str | None,
    states: tuple[str, ...],
) -> None:
    """Write all jobs with their attempts, one a line: finished jobs first, as they ended.

    A job is as taskq show --json prints it. With --records the log's records are written, in
    their order, as taskq tail --json prints them. Parquet needs the extra parquet.
    """
    path = None if output in (None, "-") else Path(str(output))
    end = "" if path is None else path.suffix.lower()
    if kind is None and end in _OTHERS:
        raise errors.WrongUsage(
            f"-o {output!r:.60}: export writes no {end}: name it .jsonl or .parquet, "
            f"or add --format"
        )
    kind = kind or (_PARQUET if end == ".parquet" else _JSONL)
    if states and not is_jobs:
        raise errors.WrongUsage("--state is for jobs: records have none")
    if kind == _PARQUET and path is None:
        raise errors.WrongUsage("Parquet cannot be written to standard output: name a file with -o")
    now_ns = time.time_ns()
    since_ns, until_ns = _time(since, "--since", now_ns), _time(before, "--before", now_ns)
    with options.open_reader(data_dir) as reader:
        if not is_jobs:
            from taskq.reading.record import Choice  # noqa: PLC0415 - help must not import it

            queues, tasks = queue and [queue], task and [task]
            choice = Choice(None, queues, tasks, since_ns=since_ns, until_ns=until_ns)
            count = _write_records(reader, kind, path, choice)
        else:
            of_states = [views.STATES[name] for name in states]
            count = 0
            with _sink(kind, path) as sink:
                for view in reader.each_job(of_states, queue, task, since_ns, until_ns):
                    sink.job(view)
                    count += 1
    if path is not None:
        written = render.count_of(count, "job" if is_jobs else "record")
        render.echo(f"wrote {written} to {path}", err=True)


def _time(text: str | None, option: str, now_ns: int) -> int | None:
    if text is None:
        return None
    from taskq.engine import Moment  # noqa: PLC0415 - likewise
    from taskq.errors import UsageError  # noqa: PLC0415 - help must not import the log

    time_ns = None
    with suppress(UsageError):
        time_ns = Moment.parse(text, now_ns, option).time_ns
    if time_ns is None:  # an lsn is no time
        raise errors.WrongUsage(
            f'{option} {text!r:.60}: give a span back from now ("2h") or a time '
            f'("2024-05-01T12:00")'
        )
    return time_ns


@contextmanager
def _sink(kind: str, path: Path | None) -> Iterator[Sink]:
    if kind == _PARQUET and path is not None:
        from taskq.cli.commands.parquet import JobsFile  # noqa: PLC0415 - it imports pyarrow

        with _whole(path) as temporary, JobsFile(temporary) as sink:
            yield sink
    else:
        with _lines(path) as lines:
            yield lines


@contextmanager
def _lines(path: Path | None) -> Iterator[JsonLines]:
    """Yield the writer of lines to a file, or to standard output."""
    if path is None:
        yield JsonLines(sys.stdout)
        return
    with _whole(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield JsonLines(file)


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield a temporary name; the file is renamed once it is complete and on disk."""
    if path.exists() and not path.is_file():  # /dev/stdout or a pipe is written directly
        yield path
        return
    # In a shared directory, another user could create a link with a predictable name.
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}.tmp")
    temporary.touch(_PRIVATE, exist_ok=False)
    try:
        yield temporary
        with temporary.open("r+b") as written:  # Windows cannot flush a read-only file
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_records(reader: engine.LogReader, kind: str, path: Path | None, choice: Choice) -> int:
    if kind == _PARQUET and path is not None:
        from taskq.cli.commands.parquet import write_records  # noqa: PLC0415 - pyarrow

        with _whole(path) as temporary:
            return write_records(reader, temporary, choice)
    from taskq.reading.record import hand_out  # noqa: PLC0415 - help must not import it

    count = 0
    with _lines(path) as lines:
        for record in reader.records():
            names = choice.names(record, reader)
            if names is not None:
                lines.write(hand_out(record, reader.tag, names, reader.bodies).as_dict())
                count += 1
    return count
