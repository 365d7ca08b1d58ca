"""``taskq pipeline enqueue FILE --task NAME --to DIR``: one job for each row, and no Java."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskq.cli import Failure, WrongUsage, count_of, dry_run_option, json_option, render, yes_option
from taskq.values import PRIORITY_MAX, as_typed
from taskq_plugins.spark.cli import lake_option

if TYPE_CHECKING:
    from taskq import Call
    from taskq_plugins.spark.bulk_files import Rows
    from taskq_plugins.spark.past_jobs import Counted, PastJobs
    from taskq_plugins.spark.sink.ingest import Ingested
    from taskq_plugins.spark.sink.options import SinkOptions


def where_to(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--to",
        "-d",
        "--data-dir",
        "data_dir",
        type=click.Path(path_type=Path),
        required=True,
        envvar="TASKQ_DATA_DIR",
        show_envvar=True,
        metavar="DIR",
        help="The task log's directory; made when it is missing.",
    )(command)


def print_duplicates(done: Ingested) -> None:
    if done.duplicates:
        render.echo(f"{count_of(done.duplicates)} left out: another job holds the key")


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
@click.option("--delay", help='Run after this time, for example "30s" or "2h".')
@click.option("--expires", help="Give up unless it ran by then.")
@click.option("--key", metavar="COLUMN", help="One job of the queue at a time may hold its value.")
@click.option("--window", help="How long the key is held.  [default: until the job is settled]")
@click.option("--until", type=click.Choice(["settled"]), help="With a window: until both are over.")
@click.option("--keep", help='How long it is kept after its end, for example "30d".')
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--text", multiple=True, metavar="COLUMN", help="In CSV: text, not a number or date.")
@click.option(
    "--name", metavar="NAME", help="Name of this upload.  [default: from content and options]"
)
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
    from taskq_plugins.spark.bulk_files import digest, open_rows  # noqa: PLC0415 - loads pyarrow
    from taskq_plugins.spark.sink.ingest import Upload  # noqa: PLC0415
    from taskq_plugins.spark.sink.options import parse_options  # noqa: PLC0415

    options = _options(given)
    before = _version(file)
    upload = name or _name(digest(file), {**options, "key": key or "", "text": ",".join(text)})
    if again:
        upload = f"{upload}-{secrets.token_hex(_AGAIN_BYTES)}"
    sink = parse_options({**options, "upload": upload})
    calls = _calls(file, open_rows(file, key=key, as_text=text), sink, before)
    if dry_run:
        count = sum(map(len, calls))
        if as_json:
            render.print_json({"dry_run": True, "upload": upload, "jobs": count})
        else:
            render.echo(f"would enqueue {count_of(count)} in {sink.data_dir}, enqueued nothing")
        return
    done = Upload(sink.data_dir, f"upload-{upload}").bring(calls)
    _print_upload(sink, done, upload, as_json=as_json)


def _options(given: dict[str, Any]) -> dict[str, str]:
    headers = dict(_header(header) for header in given.pop("headers"))
    options = {"path": str(given.pop("data_dir"))}
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
    # Without the target, since each directory remembers its own uploads.
    named = {name: value for name, value in options.items() if name != "path"}
    text = f"{content} {json.dumps(named, sort_keys=True)}"
    return f"file-{hashlib.sha256(text.encode()).hexdigest()[:_NAME_DIGITS]}"


def _version(file: Path) -> tuple[int, int, int]:
    facts = file.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _calls(
    file: Path, rows: Rows, sink: SinkOptions, before: tuple[int, int, int]
) -> Iterator[list[Call[Any]]]:
    from taskq_plugins.spark.bulk_files import BadFile  # noqa: PLC0415
    from taskq_plugins.spark.sink.rows import RowCalls  # noqa: PLC0415

    checked = RowCalls(sink, sink.load_app(), file.name)
    yield from chain.from_iterable(map(checked.calls, rows))
    if _version(file) != before:
        raise BadFile(f"{file}: was changed while it was read; nothing was enqueued, try again")


def _print_upload(sink: SinkOptions, done: Ingested, upload: str, *, as_json: bool) -> None:
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
        render.echo(f"enqueued {count_of(done.jobs - done.duplicates)} in {sink.data_dir}")
        print_duplicates(done)


_SAMPLE_ROWS: Final = 10
_RUN_DIGITS: Final = 16
_PROBLEMS_SHOWN_MAX: Final = 20


@click.command()
@lake_option
@click.option("--where", required=True, metavar="SQL", help="Which rows of jobs, those over only.")
@where_to
@click.option("--run", "run_name", metavar="NAME", help="Options of an upload with a name.")
@yes_option
@json_option
@click.pass_context
def replay(
    context: click.Context,
    /,
    lake_path: Path | str,
    where: str,
    data_dir: Path,
    run_name: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Enqueue past jobs of a lake once more, each with a header replay_of.

    Shows the plan; --yes carries it out. A run is done once: its name is made from the lake and
    the condition unless --run gives another. The old jobs stay as they are. For example
    --where "state = 'dead' AND task = 'mail.send' AND settled_at > now() - INTERVAL 1 DAY".
    """
    from taskq_plugins.spark.lake.store import Lake  # noqa: PLC0415 - loads pyarrow
    from taskq_plugins.spark.past_jobs import PastJobs  # noqa: PLC0415 - loads duckdb
    from taskq_plugins.spark.sandbox import chosen  # noqa: PLC0415 - as above
    from taskq_plugins.spark.sink.ingest import Upload  # noqa: PLC0415 - as above
    from taskq_plugins.spark.sink.options import check_upload_name  # noqa: PLC0415 - as above

    run = check_upload_name(run_name, "run") if run_name else _run_of(lake_path, where)
    with chosen(Lake.open(lake_path), "jobs", where) as connection:
        past = PastJobs(connection, where)
        counted = past.counted(_SAMPLE_ROWS)
        if not yes:
            _print_plan(counted, _command(lake_path, where, data_dir, run), run, as_json=as_json)
            return
        done = Upload(data_dir.absolute(), f"replay-{run}").bring(past.calls())
    _print_replay(counted, past, done, run, as_json=as_json)
    if past.problem_count:
        context.exit(Failure.exit_code)


def _run_of(lake: Path | str, where: str) -> str:
    text = f"{lake if isinstance(lake, str) else lake.resolve()}\0{' '.join(where.split())}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_RUN_DIGITS]


def _command(lake: Path | str, where: str, data_dir: Path, run: str) -> str:
    words = ["--lake", str(lake), "--where", where, "--to", str(data_dir), "--run", run, "--yes"]
    return f"taskq pipeline replay {as_typed(*words)}"


def _print_plan(chosen: Counted, command: str, run: str, *, as_json: bool) -> None:
    if as_json:
        render.print_json(
            {
                "dry_run": True,
                "run": run,
                "count": chosen.jobs,
                "states": chosen.over,
                "not_over": chosen.live,
                "jobs": chosen.sample.column("job_id").to_pylist(),
            }
        )
        return
    from taskq_plugins.spark.sql import print_rows  # noqa: PLC0415

    if not chosen.jobs:
        render.echo("no job that is over fits: nothing to replay")
    else:
        print_rows(chosen.sample)
        if chosen.jobs > chosen.sample.num_rows:
            render.echo(f"and {chosen.jobs - chosen.sample.num_rows} more")
        states = ", ".join(f"{count} {state}" for state, count in chosen.over.items())
        render.echo(f"would enqueue {count_of(chosen.jobs)} once more ({states}), enqueued nothing")
    _print_live(chosen)
    if chosen.jobs:
        render.echo(f"to do it:\n  {command}")


def _print_live(chosen: Counted) -> None:
    if chosen.live:
        render.echo(f"{count_of(chosen.live)} that fit are not over yet, and are left alone")


def _print_replay(
    chosen: Counted, past: PastJobs, done: Ingested, run: str, *, as_json: bool
) -> None:
    if as_json:
        render.print_json(
            {
                "dry_run": False,
                "run": run,
                "count": done.jobs if done.is_new else 0,
                "done_before": bool(done.jobs) and not done.is_new,
                "problems": past.problem_count,
                "errors": [{"id": job_id, "error": reason} for job_id, reason in past.problems],
            }
        )
        return
    if not done.jobs:
        render.echo("no job that is over fits: enqueued nothing")
    elif done.is_new:
        render.echo(f"enqueued {count_of(done.jobs)} once more (run {run})")
        print_duplicates(done)
    else:
        render.echo(f"run {run} was done before, so nothing was enqueued; name another with --run")
    _print_live(chosen)
    for job_id, reason in past.problems[:_PROBLEMS_SHOWN_MAX]:
        render.echo(f"taskq: {job_id}: {reason}", err=True)
    if past.problem_count > _PROBLEMS_SHOWN_MAX:
        render.echo(f"taskq: and {past.problem_count - _PROBLEMS_SHOWN_MAX} more", err=True)
