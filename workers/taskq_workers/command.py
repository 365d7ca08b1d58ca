"""``taskq worker module:app``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taskq.cli.options import data_dir_option
from taskq_workers.choices import (
    ONLY_HERE,
    arguments_of,
    elsewhere_options,
    life_options,
    work_options,
)
from taskq_workers.elsewhere import Order
from taskq_workers.joblogs import LEVELS
from taskq_workers.limits import rss_bytes
from taskq_workers.running import run_guarded, run_one

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from taskq_workers.events import Hook


@click.command()
@click.argument("app", metavar="MODULE:APP")
@work_options
@data_dir_option
@life_options
@click.option("-q", "--quiet", is_flag=True, help="Print no line for each job.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    help="What goes to stderr, each line with its job's id.  [default: the setting, warning]",
)
@elsewhere_options
@click.pass_context
def worker(
    context: click.Context,
    /,
    *,
    app: str,
    queues: tuple[str, ...],
    data_dir: Path | None,
    processes: int | None,
    reload: bool,
    leash: int | None,
    place: int,
    quiet: bool,
    log_level: str | None,
    executor: str | None,
    **chosen: Any,
) -> None:
    """Run the jobs of an app until stopped.

    MODULE:APP is imported from the working directory, such as shop.jobs:app; MODULE alone will do
    where there is one app in it. Ctrl-C or SIGTERM lets running jobs finish; a second one cancels
    and gives them back; a third exits at once.

    With --processes or --reload the workers are processes of their own, and this one keeps them
    running: it starts again what dies, and SIGHUP replaces them one by one.

    With --executor this process claims and settles jobs, and others run them, -c async ones at a
    time in each place. Jobs run at least once: when this process dies, its jobs are claimed again
    at once by anyone, while an executor may still be busy with them.
    """
    _check(executor, chosen)
    names = _names(queues)
    if leash is None and (processes is not None or reload):
        context.exit(
            run_guarded(
                arguments_of(context.command, context.params),
                1 if processes is None else processes,
                concurrency=chosen["concurrency"],
                burst=chosen["burst"],
                reloads=reload,
                drain_seconds=chosen["drain_timeout"],
            )
        )

    def order_for(reporter: Hook) -> Order:
        return Order(
            target=app,
            queues=names,
            warns=place == 1,
            on_event=None if quiet else reporter,
            **chosen,
        )

    run_one(order_for, data_dir, executor, -1 if leash is None else leash, log_level)


def _check(executor: str | None, chosen: Mapping[str, Any]) -> None:
    """Refuse what means nothing, before several processes do."""
    rss_bytes(chosen["max_rss_per_child"], "--max-rss-per-child")
    if executor is None and (chosen["master"] or chosen["files"]):
        raise click.UsageError("--master and --py-files are for --executor: add --executor spark")
    if executor is not None and any(chosen[name] is not None for name in ONLY_HERE):
        raise click.UsageError(
            "--max-jobs, --threads and those of child processes are for jobs that run here: "
            "leave --executor out"
        )


def _names(queues: tuple[str, ...]) -> list[str] | dict[str, int] | None:
    names = [name.strip() for text in queues for name in text.split(",")]
    if not all(names):
        raise click.UsageError("-Q names an empty queue: write -Q mail,default")
    if not any("=" in name for name in names):
        return names or None
    weights: dict[str, int] = {}
    for text in names:
        name, _, weight = text.rpartition("=") if "=" in text else (text, "", "1")
        if name in weights:
            raise click.UsageError(f"-Q names the queue {name!r} twice: give it one weight")
        if not name or not weight.isascii() or not weight.isdecimal():
            raise click.UsageError(
                f"-Q {text!r} is no queue and its weight: write -Q mail=3,bulk=1"
            )
        weights[name] = int(weight)
    return weights
