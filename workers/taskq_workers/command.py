"""``taskq worker module:app``."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

import click

import taskq
from taskq.cli.options import data_dir_option
from taskq.core.errors import TaskqError
from taskq_workers.elsewhere import Order, find_executor
from taskq_workers.lines import Facts, banner, style_for
from taskq_workers.loader import load_app
from taskq_workers.pool import CONCURRENCY_DEFAULT, DRAIN_SECONDS_DEFAULT, Worker
from taskq_workers.reporting import Reporter
from taskq_workers.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskq.app import TaskQ
    from taskq.log.store import Store


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(min=1),
    default=CONCURRENCY_DEFAULT,
    show_default=True,
    help="Jobs that run at a time.",
)
@click.option(
    "-Q",
    "--queues",
    multiple=True,
    metavar="NAME[,NAME]",
    help="Read these queues only. Repeatable.  [default: all]",
)
@data_dir_option
@click.option("--burst", is_flag=True, help="Stop once no job is ready and none runs.")
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0),
    default=DRAIN_SECONDS_DEFAULT,
    show_default=True,
    metavar="SECONDS",
    help="What running jobs get to finish when the worker is stopped.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no line for each job.")
@click.option(
    "--executor",
    metavar="NAME",
    help="Run the jobs elsewhere: spark, on the executors of --master. At least once.",
)
@click.option(
    "--master",
    metavar="URL",
    help="For --executor: where the executors are, local[2] or spark://host:7077.",
)
@click.option(
    "--py-files",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="For --executor: a .py, .zip or .egg that the executors need. Repeatable.",
)
def worker(
    app: str,
    concurrency: int,
    queues: tuple[str, ...],
    data_dir: Path | None,
    burst: bool,
    drain_timeout: float,
    quiet: bool,
    executor: str | None,
    master: str | None,
    files: tuple[str, ...],
) -> None:
    """Run the jobs of an app until stopped.

    MODULE:APP is imported from the working directory, such as shop.jobs:app; MODULE alone will do
    where there is one app in it. Ctrl-C or SIGTERM lets running jobs finish; a second one cancels
    and gives them back; a third exits at once.

    With --executor this process claims and settles jobs, and others run them, -c async ones at a
    time in each place. Jobs run at least once: when this process dies, its jobs are claimed again
    at once by anyone, while an executor may still be busy with them.
    """
    if executor is None and (master or files):
        raise click.UsageError("--master and --py-files are for --executor: add --executor spark")
    began = time.perf_counter()
    logging.basicConfig(format="taskq: %(levelname)s: %(message)s", level=logging.WARNING)
    loaded = load_app(app)
    if data_dir is not None:
        loaded.data_dir = data_dir
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    style = style_for(sys.stdout.encoding, colours=coloured)
    reporter = Reporter(sys.stdout, style)
    order = Order(
        target=app,
        master=master or "",
        files=files,
        concurrency=concurrency,
        queues=_names(queues),
        burst=burst,
        drain_timeout=drain_timeout,
        on_event=None if quiet else reporter,
    )
    started = _here(loaded, order) if executor is None else find_executor(executor)(loaded, order)
    with started as one:

        def on_ready(store: Store) -> None:
            facts = _facts(one, store, time.perf_counter() - began)
            reporter.open(banner(facts, style))

        _supervise(Supervisor(one, on_ready, reporter.say), reporter)


def _supervise(supervisor: Supervisor, reporter: Reporter) -> None:
    """Run the worker to its end, which always comes."""
    failure = None
    try:
        supervisor.run()
    except TaskqError as error:
        failure = error
    finally:
        reporter.close()
    supervisor.exit_despite_threads(failure)
    if failure is not None:
        raise failure


@contextlib.contextmanager
def _here(app: TaskQ, order: Order) -> Iterator[Worker]:
    """The worker that runs its jobs in this process."""
    yield Worker(
        app,
        concurrency=order.concurrency,
        queues=order.queues,
        burst=order.burst,
        drain_timeout=order.drain_timeout,
        on_event=order.on_event,
    )


def _names(queues: tuple[str, ...]) -> list[str] | None:
    names = [name.strip() for text in queues for name in text.split(",")]
    if not all(names):
        raise click.UsageError("-Q names an empty queue: write -Q mail,default")
    return names or None


def _facts(one: Worker, store: Store, ready_seconds: float) -> Facts:
    return Facts(
        version=taskq.__version__,
        pid=os.getpid(),
        directory=str(one.app.data_dir),
        durability=store.config.durability.value,
        recovered=store.taken_back,
        queues=one.queues,
        tasks=frozenset(one.app._tasks),
        concurrency=one.concurrency,
        ready_seconds=ready_seconds,
        executor=one.executor,
    )
