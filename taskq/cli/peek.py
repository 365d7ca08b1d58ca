"""``taskq peek``: what would be claimed next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from taskq.cli import render
from taskq.cli.options import at_option, json_option, log_argument, moment, open_reader
from taskq.core import views as documents

if TYPE_CHECKING:
    from pathlib import Path

    from taskq.core.views import JobView

_LIMIT_DEFAULT: Final = 10
_PAYLOAD_COLUMNS: Final = 60
#: Bytes of a payload that its columns may need.
_PAYLOAD_BYTES: Final = 4 * _PAYLOAD_COLUMNS


@click.command()
@log_argument
@json_option
@click.option("-Q", "--queue", help="Only this queue.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=_LIMIT_DEFAULT,
    show_default=True,
    help="At most so many.",
)
@at_option
def peek(
    data_dir: Path | None, as_json: bool, queue: str | None, limit: int, at_text: str | None
) -> None:
    """Show the jobs that are claimed next, in that order, with their payloads.

    Nothing is claimed. Jobs that are not due yet, and those of paused queues, are not among them.
    """
    at = moment(at_text)
    with open_reader(data_dir) as reader:
        jobs = reader.peek(limit, queue, at)
    if as_json:
        render.print_json(
            [
                {**documents.job_head(job), "payload": documents.body_document(job.payload)}
                for job in jobs
            ]
        )
        return
    if not jobs:
        click.echo("No job is ready." if queue is None else "No job of that queue is ready.")
        return
    now_ns = at.time_ns if at is not None and at.time_ns is not None else time.time_ns()
    render.print_table(
        ("ID", "QUEUE~?", "TASK~", ">PRIO??", ">ENQUEUED?", "PAYLOAD~"),
        [
            (
                job.job_id,
                job.queue,
                job.task or "-",
                str(job.priority),
                render.when(job.enqueued_ns, now_ns),
                _payload(job),
            )
            for job in jobs
        ],
    )


def _payload(job: JobView) -> str:
    """The payload's beginning, in one line."""
    if job.problem:
        return job.problem
    text = job.payload[:_PAYLOAD_BYTES].decode(errors="backslashreplace").replace("\n", " ")
    if len(text) <= _PAYLOAD_COLUMNS and len(job.payload) <= _PAYLOAD_BYTES:
        return text
    return f"{text[:_PAYLOAD_COLUMNS]}…"
