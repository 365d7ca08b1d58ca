"""What both commands share: where jobs go, how far they have come, and what became of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskq.cli import count_of, render
from taskq.text import flat

if TYPE_CHECKING:
    from taskq_plugins.spark.sink.uploads import Published


def where_to(command: Callable[..., None]) -> Callable[..., None]:
    to = click.option(
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
    )
    words = "Leave it to running workers to take the jobs up."
    return to(click.option("--no-adopt", is_flag=True, help=words)(command))


@contextmanager
def progress(total: int | None, what: str) -> Iterator[Callable[[int], None]]:
    """Show how many of ``total`` are done; gives what to call with how many more.

    Nothing is shown where standard error is no terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - as in render
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def tell_rest(done: Published) -> None:
    if done.duplicates:
        render.echo(f"{count_of(done.duplicates)} left out: another job holds the key")
    if done.problem:
        text = f"the jobs stand, but wait until a worker takes them up: {done.problem}"
        render.echo(f"taskq: {flat(text)}", err=True)
