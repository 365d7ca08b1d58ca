"""``taskq pipeline enqueue FILE --task NAME --to DIR``: one job for each row, and no Java."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskq.cli import WrongUsage, count_of, dry_run_option, json_option, render
from taskq.values import PRIORITY_MAX
from taskq_plugins.spark.bulk.telling import progress, tell_rest, where_to

if TYPE_CHECKING:
    from taskq import TaskQ
    from taskq_plugins.spark.bulk.files import Rows
    from taskq_plugins.spark.sink.options import SinkOptions
    from taskq_plugins.spark.sink.uploads import Published

_NAME_DIGITS: Final = 32
_AGAIN_BYTES: Final = 4


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@where_to
@click.option("-t", "--task", help="Name of the task that the rows are calls of.")
@click.option(
    "--app", metavar="MODULE:APP", help="Check arguments with its tasks, and take theirs."
)
@click.option("-Q", "--queue", help="Name of the queue.  [default: default, or the task's]")
@click.option("--priority", type=click.IntRange(0, PRIORITY_MAX), help="Higher first.")
@click.option("--attempts", type=click.IntRange(0), help="How often it may run; 0: no limit.")
@click.option("--delay", help='Not before so long from now, for example "30s" or "2h".')
@click.option("--expires", help="Give up unless it ran by then.")
@click.option("--key", metavar="COLUMN", help="One job of the queue at a time may hold its value.")
@click.option("--window", help="How long the key is held.  [default: until the job is settled]")
@click.option("--until", type=click.Choice(["settled"]), help="With a window: until both are over.")
@click.option("--keep", help='How long it is kept after its end, for example "30d".')
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--text", multiple=True, metavar="COLUMN", help="In CSV: text, not a number or date.")
@click.option("--name", metavar="NAME", help="Of this upload.  [default: from content and options]")
@click.option("--again", is_flag=True, help="Enqueue even what was enqueued before.")
@dry_run_option
@json_option
def enqueue(
    file: Path,
    text: tuple[str, ...],
    name: str | None,
    again: bool,
    dry_run: bool,
    as_json: bool,
    key: str | None,
    **given: Any,
) -> None:
    """Enqueue one job for each row of FILE (.parquet, .csv or .jsonl): all of them, or none.

    Columns named task, queue, key, priority, attempts, window, delay, eta, expires and headers say
    how a row is enqueued; "value" is a ready payload; all others are the task's arguments. In CSV,
    an empty cell is null. A second run with the same file and options enqueues nothing.
    """
    from taskq_plugins.spark.bulk.files import digest, open_rows  # noqa: PLC0415 - loads pyarrow
    from taskq_plugins.spark.sink.options import parse_options  # noqa: PLC0415

    options = _options(given)
    before = _version(file)
    upload = name or _name(digest(file), {**options, "key": key or "", "text": ",".join(text)})
    if again:
        upload = f"{upload}-{secrets.token_hex(_AGAIN_BYTES)}"
    rows = open_rows(file, key=key, as_text=text)
    sink = parse_options({**options, "upload": upload})
    app = sink.load_app()
    if dry_run:
        count = _count(file, rows, sink, app)
        _tell_dry_run(sink, count, upload, as_json=as_json)
        return
    done = _enqueue(file, rows, sink, app, lambda: _check_unchanged(file, before))
    _tell(sink, done, upload, as_json=as_json)


def _options(given: dict[str, Any]) -> dict[str, str]:
    headers = dict(_header(header) for header in given.pop("headers"))
    options = {"path": str(given.pop("data_dir")), "adopt": str(not given.pop("no_adopt"))}
    options |= {name: str(value) for name, value in given.items() if value is not None}
    if headers:
        options["headers"] = json.dumps(headers)
    return options


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise WrongUsage(f"--header {text!r}: write it as NAME=VALUE")
    return name, value


def _name(content: str, options: dict[str, str]) -> str:
    # Where the jobs go is not part of it: a directory remembers its own uploads.
    said = {name: value for name, value in options.items() if name not in {"path", "adopt"}}
    text = f"{content} {json.dumps(said, sort_keys=True)}"
    return f"file-{hashlib.sha256(text.encode()).hexdigest()[:_NAME_DIGITS]}"


def _version(file: Path) -> tuple[int, int, int]:
    facts = file.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _check_unchanged(file: Path, before: tuple[int, int, int]) -> None:
    from taskq_plugins.spark.bulk.files import BadFile  # noqa: PLC0415

    if _version(file) != before:
        raise BadFile(f"{file}: was changed while it was read; nothing was enqueued, try again")


def _count(file: Path, rows: Rows, sink: SinkOptions, app: TaskQ | None) -> int:
    from taskq_plugins.spark.sink.encoding import Encoder  # noqa: PLC0415

    encoder = Encoder(sink, app=app, place=file.name)
    count = 0
    with progress(rows.total, "reading rows") as advance:
        for entries in encoder.all_entries(rows.batches):
            count += len(entries.payloads)
            advance(len(entries.payloads))
    return count


def _enqueue(
    file: Path, rows: Rows, sink: SinkOptions, app: TaskQ | None, check: Callable[[], None]
) -> Published:
    from taskq_plugins.spark.sink.encoding import Encoder  # noqa: PLC0415
    from taskq_plugins.spark.sink.uploads import upload  # noqa: PLC0415

    entries = Encoder(sink, app=app, place=file.name).all_entries(rows.batches)
    with progress(rows.total, "reading rows") as advance:
        return upload(
            sink.data_dir, sink.upload, entries, adopts=sink.adopt, on_rows=advance, check=check
        )


def _tell_dry_run(sink: SinkOptions, count: int, upload: str, *, as_json: bool) -> None:
    if as_json:
        render.print_json({"dry_run": True, "upload": upload, "jobs": count})
        return
    render.echo(f"would enqueue {count_of(count)} in {sink.data_dir}, enqueued nothing")


def _tell(sink: SinkOptions, done: Published, upload: str, *, as_json: bool) -> None:
    if as_json:
        render.print_json(
            {
                "dry_run": False,
                "upload": upload,
                "jobs": done.jobs if done.is_new else 0,
                "enqueued_before": bool(done.jobs) and not done.is_new,
                "duplicates": done.duplicates,
            }
        )
        return
    if not done.jobs:
        render.echo("the file has no rows: enqueued nothing")
    elif not done.is_new:
        render.echo(
            f"these {count_of(done.jobs)} were enqueued before (upload {upload}), so nothing was "
            f"done; add --again to enqueue them once more"
        )
    else:
        waits = "" if sink.adopt else "; running workers take them up"
        render.echo(f"enqueued {count_of(done.jobs - done.duplicates)} in {sink.data_dir}{waits}")
        tell_rest(done)
