"""The command ``taskq top``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from taskq import values
from taskq.cli import log_argument, open_reader, resolve, utc_option

_SECONDS_MIN: Final = 0.2


@click.command()
@log_argument
@click.option("--read-only", is_flag=True, help="Let nobody change the log from here.")
@utc_option
@click.option("--once", is_flag=True, help="Print one look, and end.")
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(_SECONDS_MIN),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
def top(data_dir: Path | None, read_only: bool, once: bool, interval: float) -> None:
    """Show queues, running jobs, last ends and failures, and act on them by keys.

    Enter opens the chosen row, w shows why a job does not run, / filters, t shows the past (then
    the arrows move by a minute). c cancels, r requeues, n runs now, p pauses and resumes.
    """
    from taskq_plugins.top.screen import watch  # noqa: PLC0415 - help must not import it

    interval = values.seconds(interval, "--interval")
    path = resolve(data_dir)
    with open_reader(data_dir) as reader:
        watch(reader, str(path), interval, read_only=read_only or path.is_file(), once=once)
