"""``taskq metrics``: the metrics of a log for Prometheus."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Final

import click

from taskq.cli import Failure, WrongUsage, log_argument, open_reader, render, resolve
from taskq.extras import missing

_PORTS: Final = 1 << 16


@click.command()
@log_argument
@click.option(
    "--serve",
    "address",
    metavar="[HOST:]PORT",
    help="Answer scrapes there until stopped; on 127.0.0.1 unless a host is given.",
)
def metrics(data_dir: Path | None, address: str | None) -> None:
    """Print metrics of the log for Prometheus: jobs by queue and state, size, processes.

    The text goes to stdout, for a file that node_exporter reads. It comes from the directory and
    covers all processes. Metrics of one worker come from taskq worker --metrics-port.
    """
    try:
        from taskq import Shards  # noqa: PLC0415 - help must not import the log
        from taskq_plugins import scrapes  # noqa: PLC0415 - help must not need the extra
        from taskq_plugins.prometheus import serving  # noqa: PLC0415 - as above
    except ImportError as error:
        raise Failure(missing("taskq metrics", error.name, "metrics")) from error
    path = str(resolve(data_dir))
    if Shards.of(path) is None:
        with open_reader(data_dir) as reader:  # fail now, not at a scrape
            path = reader.path
    if address is None:
        render.echo(serving.text_of(path), nl=False)
        return
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port[:9]) >= _PORTS:
        raise WrongUsage(f"--serve {address!r} is no place to listen: write 9750 or 0.0.0.0:9750")
    with scrapes.serve(serving.registry_of(path), host or serving.HOST_DEFAULT, int(port)) as place:
        render.echo(f"metrics at {place}")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
