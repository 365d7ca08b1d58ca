"""What became of a job, and why it does not run."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskq import views as documents
from taskq.cli import render
from taskq.cli.commands.jobs import no_such_job
from taskq.cli.options import data_dir_option, json_option, latest_option, open_reader
from taskq.cli.shards import over_shards
from taskq.text import flat
from taskq.views import Why

if TYPE_CHECKING:
    from taskq.engine import LogReader
    from taskq.views import JobEvent, Reason

#: Characters of a moment down to its milliseconds.
_MILLISECONDS: Final = 23


@click.command()
@click.argument("job_id")
@data_dir_option
@json_option
@over_shards
def why(job_id: str, data_dir: Path | None, as_json: bool) -> None:
    """Tell the one reason why a job is not running."""
    with open_reader(data_dir) as reader:
        lsn = reader.find_job(job_id)
        job_id = f"{reader.tag}-{lsn}"
        reason = reader.why(lsn)
        if reason is None:
            raise no_such_job(reader, job_id)
        if reason.code is Why.PAUSED:
            reason = _of_device(reader, lsn) or reason
    if as_json:
        render.print_json({"id": job_id, **reason.as_dict()})
        return
    render.echo(flat(f"{job_id}: {reason.text}"))


def _of_device(reader: LogReader, lsn: int) -> Reason | None:
    """Return where a job is that waits in a hub's outbox for its device; None if it is none."""
    hub, view = Path(reader.path).absolute().parent, reader.job(lsn)
    is_outbox = Path(reader.path).name == "outbox" and (hub / "devices").is_dir()
    if view is None or not is_outbox or not view.queue.startswith("to:"):
        return None
    client: Any = importlib.import_module("taskq_plugins.hub.client")
    reason: Reason = client.why(hub, view)
    return reason


@click.command()
@click.argument("job_id")
@data_dir_option
@json_option
@latest_option("events", 1_000)
@over_shards
def timeline(job_id: str, data_dir: Path | None, as_json: bool, count: int) -> None:
    """Show everything that happened to one job, in order."""
    with open_reader(data_dir) as reader:
        events = reader.timeline(reader.find_job(job_id))
        if not events:
            raise no_such_job(reader, job_id)
    left, events = len(events), events[-count:]
    left -= len(events)
    if as_json:
        render.print_json([event.as_dict() for event in events])
        return
    rows = []
    before_ns = events[0].time_ns
    for event in events:
        rows.append(
            (
                (documents.moment(event.time_ns) or "")[:_MILLISECONDS],
                f"+{render.precise(event.time_ns - before_ns)}",
                event.kind + (f" ({event.cause})" if event.cause not in ("", "caller") else ""),
                str(event.attempt or ""),
                render.process(event.owner, event.pid, event.worker),
                _note(event),
            )
        )
        before_ns = event.time_ns
    render.print_table(("TIME (UTC)", ">AFTER?", "KIND~", ">ATTEMPT~?", "WORKER~??", "NOTE~"), rows)
    if left:
        render.echo(f"{left} earlier events are not shown: -n 0 shows all")


def _note(event: JobEvent) -> str:
    """Return until when it waits from then on, and why, in one line."""
    due = render.due(event.due_ns, event.time_ns) if event.due_ns else ""
    return ": ".join(part for part in (due, event.reason.partition("\n")[0]) if part)
