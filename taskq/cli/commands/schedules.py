"""``taskq schedules``: what ticks, when it did last and will next; paused and resumed by hand.

The log knows a schedule from the worker that was started last with it: no app is imported.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import click

from taskq.cli import render
from taskq.cli.many import with_app
from taskq.cli.options import data_dir_option, json_option, log_argument, open_reader
from taskq.cli.shards import over_shards
from taskq.text import flat

_DONE = {"pause": "paused", "resume": "resumed", "reset": "counts from now", "forget": "forgotten"}
_ALREADY = {"pause": "was paused already", "resume": "was not paused"}


@click.group(invoke_without_command=True)
@data_dir_option
@json_option
@click.pass_context
def schedules(context: click.Context, data_dir: Path | None, as_json: bool) -> None:
    """List the schedules, or pause, resume, reset and forget one.

    A schedule is known to the log once a worker that has it was started. Every command takes
    -d/--data-dir.
    """
    if context.invoked_subcommand is None:
        _list(data_dir=data_dir, as_json=as_json, count=3)


@schedules.command("ls")
@log_argument
@json_option
@click.option(
    "-n", "--next", "count", type=click.IntRange(0, 1_000), default=3, show_default=True,
    help="Moments to come that are shown of each.",
)  # fmt: skip
def ls(data_dir: Path | None, as_json: bool, count: int) -> None:
    """List the schedules: task, rule, last tick and next ones."""
    _list(data_dir=data_dir, as_json=as_json, count=count)


@over_shards
def _list(*, data_dir: Path | None, as_json: bool, count: int) -> None:
    from taskq.schedules import views_of  # noqa: PLC0415 - help must not import the log

    now_ns = time.time_ns()
    with open_reader(data_dir) as reader:
        views = views_of(reader.schedules(), now_ns, count)
    if as_json:
        render.print_json([view.as_dict() for view in views])
        return
    if not views:
        render.echo("This log knows no schedule: it does once a worker with one was started.")
        return
    render.print_table(
        ("NAME~", "RULE", "ZONE??", "TASK~??", "LAST TICK???", "NEXT~", "STATE"),
        [
            (
                view.name,
                view.rule,
                view.tz,
                view.task,
                _time(view.last_tick),
                ", ".join(_time(moment) for moment in view.next_ticks),
                "paused" if view.paused else "active",
            )
            for view in views
        ],
    )


def _time(moment: datetime | None) -> str:
    return "never" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S%z")


def _command(action: str, says: str) -> click.Command:
    @schedules.command(action, help=says)
    @click.argument("name")
    @data_dir_option
    @json_option
    def act(name: str, data_dir: Path | None, as_json: bool) -> None:
        changed = with_app(data_dir, lambda app: getattr(app.schedules, action)(name))
        if as_json:
            render.print_json({"name": name, "action": action, "changed": changed})
            return
        render.echo(f"{flat(name)}: {_DONE[action] if changed else _ALREADY[action]}")

    return act


for _action, _says in (
    ("pause", "Let NAME tick no more, in any process, until it is resumed."),
    ("resume", "Let NAME tick again; what it missed is not made up for."),
    ("reset", "Let NAME count from now: for one that waits since the clock was wrong."),
    ("forget", "Forget NAME, which the code has no more; a worker that has it brings it back."),
):
    _command(_action, _says)
