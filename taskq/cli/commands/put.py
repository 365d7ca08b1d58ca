"""Commands that write: they become a writer of the directory for a moment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, get_args

import click

import taskq.cli.render as render
import taskq.extras as extras
from taskq import engine, text, values
from taskq.cli import errors
from taskq.cli.options import data_dir_option, json_option, refuse_shards, span

if TYPE_CHECKING:
    from taskq import Call, TaskQ
    from taskq.calls.call import OptionChanges

_SPANS: Final = ("delay", "expires", "window", "keep")


@click.command()
@click.argument("payload", required=False)
@data_dir_option
@json_option
@click.option("-t", "--task", help="Enqueue a call of this task; PAYLOAD is a JSON object.")
@click.option(
    "-A",
    "--app",
    "target",
    metavar="MODULE:APP",
    help="With --task: the app that has it, whose directory, checks and options hold.",
)
@click.option("-Q", "--queue", help="Name of the queue.  [default: default]")
@click.option("--priority", type=click.IntRange(0, values.PRIORITY_MAX), help="Higher first.")
@click.option("--attempts", type=click.IntRange(0), help="How often it may run; 0: no limit.")
@click.option("--delay", help='Run after this time, for example "30s" or "2h".')
@click.option("--expires", help="Give up unless it ran by then.")
@click.option("--key", help="One job of the queue at a time may hold it.")
@click.option("--window", help="How long the key is held.  [default: until the job is settled]")
@click.option("--until", type=click.Choice(["settled"]), help="With a window: until both are over.")
@click.option(
    "--on-conflict",
    type=click.Choice([choice.value for choice in engine.Conflict]),
    help="If the key is held: return the first job, replace it unless it runs, or fail.",
)
@click.option("--keep", help='How long it is kept after its end, for example "30d".')
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option(
    "--compress", type=click.Choice(get_args(engine.Compression)), help="Store it smaller."
)
def put(
    payload: str | None,
    data_dir: Path | None,
    as_json: bool,
    task: str | None,
    target: str | None,
    headers: tuple[str, ...],
    **options: Any,
) -> None:
    """Enqueue PAYLOAD, @FILE or standard input as bytes, and print the job's id.

    The job is on disk when the id shows up. A worker runs jobs with a --task; jobs without one
    are for TaskLog.claim. A missing directory is made.
    """
    body = _payload(payload, values.PAYLOAD_BYTES_MAX, has_task=bool(task)) or (
        b"{}" if task else b""
    )
    changes: OptionChanges = {  # type: ignore[assignment]
        name: span(value) if name in _SPANS else value
        for name, value in options.items()
        if value is not None
    }
    if headers:
        changes["headers"] = dict(_header(text) for text in headers)
    if target is not None and not task:
        raise errors.WrongUsage("-A/--app is given without -t/--task: bytes belong to no app")
    app = _app(data_dir, target, task)
    call = task_call(app, task, body) if task else _bytes_call(body, changes)
    new = not (app.data_dir / "taskq.json").exists()
    try:
        job = app.enqueue_sync(call.options(**changes) if task else call)
        is_known = not task or target is not None or _is_known(app, task)
    finally:
        app.close_sync()
    if not is_known:
        render.echo(
            f"taskq: no worker that runs here now knows the task {text.flat(str(task))}: it waits "
            f"until "
            f"one does. Name the app with -A module:app to check it and to use the task's own "
            f"options",
            err=True,
        )
    if new:
        render.echo(f"taskq: started a new task log in {app.data_dir}", err=True)
    if as_json:
        render.print_json({"id": job.id, "duplicate": job.duplicate})
        return
    render.echo(job.id)
    if job.duplicate:
        render.echo("taskq: put nothing, since this job holds the key", err=True)


def _app(data_dir: Path | None, target: str | None, task: str | None) -> TaskQ:
    """Return the app of that name, or an app without tasks.

    Raises:
        WrongUsage: the app has no such task.
    """
    from taskq import TaskQ  # noqa: PLC0415 - loads pydantic, which help must not

    if target is None:
        if data_dir is not None:
            refuse_shards(data_dir)
        return TaskQ(data_dir, upkeep=False)
    app: TaskQ = extras.workers().load_app(target)
    if data_dir is not None:
        app.data_dir = data_dir
    if task not in app.tasks:
        hint = (
            values.rather(task or "", app.tasks, "tasks")
            if app.tasks
            else "no task is registered with it; give -A the module that defines them"
        )
        raise errors.WrongUsage(f"{target} has no task {task!r}: {hint}")
    return app


def _is_known(app: TaskQ, task: str) -> bool:
    """Return whether a running worker claims jobs of the task."""
    from taskq.engine import LogReader  # noqa: PLC0415 - help must not import the log

    with LogReader.open(str(app.data_dir)) as reader:
        serving = [serving for owner in reader.owners() if owner.alive for serving in owner.serves]
    return any(served.tasks is None or task in served.tasks for served in serving)


def _payload(argument: str | None, limit: int, *, has_task: bool) -> bytes:
    """Return the bytes of the payload.

    Raises:
        WrongUsage: there are none, or too many.
    """
    if argument is None or argument == "-":
        if argument is None and sys.stdin.isatty():
            raise errors.WrongUsage(
                "give the payload as an argument, as @FILE or on standard input"
            )
        body = _read(sys.stdin.buffer, "standard input", limit)
        if argument is None and not body and not has_task:
            raise errors.WrongUsage(
                "nothing was given, and standard input is empty: give the payload as an argument, "
                "as @FILE or on standard input; '' is an empty one"
            )
    elif argument.startswith("@"):
        with Path(argument[1:]).open("rb") as file:
            body = _read(file, argument[1:], limit)
    else:
        body = argument.encode("utf-8", "surrogateescape")
    if len(body) > limit:
        raise errors.WrongUsage(
            f"the payload is over {limit} bytes: put the data into a file and pass its path"
        )
    return body


def _read(file: BinaryIO, name: str, limit: int) -> bytes:
    try:
        return file.read(limit + 1)
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from error


def task_call(app: TaskQ, task: str, body: bytes) -> Call[Any]:
    try:
        arguments = values.parse_json(body, parse_constant=values.refuse_constant)
    except ValueError as error:
        raise errors.WrongUsage(f"the arguments of {task} are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise errors.WrongUsage(
            f"the arguments of {task} must be one JSON object by parameter name, "
            f'for example {{"to": "a@b.c"}}'
        )
    return app.call_by_name(task, **arguments)


def _bytes_call(body: bytes, changes: OptionChanges) -> Call[Any]:
    from taskq import Call  # noqa: PLC0415
    from taskq.calls.call import Options  # noqa: PLC0415
    from taskq.engine import Flag  # noqa: PLC0415

    chosen = Options().changed(changes)
    return Call(
        name="put",
        task=None,
        body=body,
        flags=Flag(0),
        chosen=chosen,
        spec=chosen.spec("", Flag(0)),
        extras=chosen.fixed_extras("put"),
    )


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise errors.WrongUsage(f"--header {text!r}: write it as NAME=VALUE")
    return name, value
