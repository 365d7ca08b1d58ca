"""What became of a job, and why it does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskq.cli import render
from taskq.cli.options import data_dir_option, json_option, open_reader
from taskq.cli.read import no_such_job

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("job_id")
@data_dir_option
@json_option
def why(job_id: str, data_dir: Path | None, as_json: bool) -> None:
    """Tell the one reason why a job is not running."""
    with open_reader(data_dir) as reader:
        lsn = reader.parse_id(job_id)
        reason = reader.why(lsn)
        if reason is None:
            raise no_such_job(reader, job_id)
    if as_json:
        render.print_json(
            {
                "id": job_id,
                "code": reason.code.value,
                "text": reason.text,
                "until": render.moment(reason.until_ns),
                "ahead": reason.ahead,
            }
        )
        return
    click.echo(render.printable(f"{job_id}: {reason.text}"))
