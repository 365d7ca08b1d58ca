"""``taskq worker module:app``."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import click

from taskq.cli.options import data_dir_option
from taskq_workers.choices import arguments_of, elsewhere_options, life_options, work_options
from taskq_workers.elsewhere import Order
from taskq_workers.running import run_guarded, run_one

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_workers.events import Hook


@click.command()
@click.argument("app", metavar="MODULE:APP")
@work_options
@data_dir_option
@life_options
@click.option("-q", "--quiet", is_flag=True, help="Print no line for each job.")
@elsewhere_options
@click.pass_context
def worker(
    context: click.Context,
    *,
    app: str,
    concurrency: int,
    queues: tuple[str, ...],
    threads: int | None,
    process_limit: int | None,
    max_jobs_per_child: int | None,
    max_rss_per_child: str | None,
    data_dir: Path | None,
    burst: bool,
    max_jobs: int | None,
    drain_timeout: float,
    processes: int | None,
    reload: bool,
    leash: int | None,
    quiet: bool,
    executor: str | None,
    master: str | None,
    files: tuple[str, ...],
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
    if executor is None and (master or files):
        raise click.UsageError("--master and --py-files are for --executor: add --executor spark")
    child_options = process_limit or max_jobs_per_child or max_rss_per_child
    if executor is not None and (max_jobs or threads or child_options):
        raise click.UsageError(
            "--max-jobs, --threads and those of child processes are for jobs that run here: "
            "leave --executor out"
        )
    names = _names(queues)
    logging.basicConfig(format="taskq: %(levelname)s: %(message)s", level=logging.WARNING)
    if leash is None and (processes is not None or reload):
        count = 1 if processes is None else processes
        arguments = arguments_of(context.command, context.params)
        context.exit(
            run_guarded(arguments, count, burst=burst, reloads=reload, drain_seconds=drain_timeout)
        )
    order = partial(
        Order,
        target=app,
        master=master or "",
        files=files,
        concurrency=concurrency,
        queues=names,
        burst=burst,
        max_jobs=max_jobs,
        thread_limit=threads,
        process_limit=process_limit,
        max_jobs_per_child=max_jobs_per_child,
        max_rss_per_child=max_rss_per_child,
        drain_timeout=drain_timeout,
    )

    def order_for(reporter: Hook) -> Order:
        return order(on_event=None if quiet else reporter)

    run_one(order_for, data_dir, executor, -1 if leash is None else leash)


def _names(queues: tuple[str, ...]) -> list[str] | dict[str, int] | None:
    names = [name.strip() for text in queues for name in text.split(",")]
    if not all(names):
        raise click.UsageError("-Q names an empty queue: write -Q mail,default")
    if not any("=" in name for name in names):
        return names or None
    weights: dict[str, int] = {}
    for text in names:
        name, _, weight = text.rpartition("=") if "=" in text else (text, "", "1")
        if not name or not weight.isascii() or not weight.isdecimal() or name in weights:
            raise click.UsageError(
                f"-Q {text!r} is no queue and its weight: write -Q mail=3,bulk=1"
            )
        weights[name] = int(weight)
    return weights
