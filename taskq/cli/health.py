"""``taskq health``: readiness and liveness for scripts, containers and service managers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskq.cli import render
from taskq.cli.errors import EXIT_FAILED
from taskq.cli.options import json_option, log_argument, resolve

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@log_argument
@json_option
@click.option(
    "--live",
    is_flag=True,
    help="Only what a restart would mend: a worker that starts or drains is well.",
)
@click.pass_context
def health(context: click.Context, data_dir: Path | None, as_json: bool, live: bool) -> None:
    """Exit with 0 if jobs are worked on, with 1 if not; nothing is locked or written.

    Looks whether the log reads, no failed write is marked, a process has it open and is not
    stopped, a worker claims jobs, none waits that no worker would take, and the disk has room. With
    --live the last three do not count.
    Tells, too, who could use the log's files.
    """
    from taskq.connection.settings import load_settings  # noqa: PLC0415 - as above
    from taskq.log.upkeep.health import check_health  # noqa: PLC0415 - help must not import the log

    path = resolve(data_dir)
    config = load_settings(None, data_dir=path).log_config()
    checks = check_health(path, config, with_jobs=not live)
    well = all(check.ok for check in checks if check.vital or not live)
    if as_json:
        render.print_json(
            {
                "ok": well,
                "checks": [
                    {"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks
                ],
            }
        )
    else:
        for check in checks:
            sign = "ok" if check.ok else "FAILED"
            click.echo(f"{sign:<7} {check.name:<8} {render.printable(check.detail)}")
    if not well:
        context.exit(EXIT_FAILED)
