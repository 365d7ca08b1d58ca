"""``taskq compact``: let the oldest segments go, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskq.cli import render
from taskq.cli.many import count_of
from taskq.cli.options import json_option, log_argument, open_reader, resolve, span

if TYPE_CHECKING:
    from pathlib import Path

    from taskq.core.views import CompactReport


@click.command()
@log_argument
@json_option
@click.option("--keep", help='Keep finished jobs so long, for example "12h".  [default: settings]')
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
def compact(data_dir: Path | None, as_json: bool, keep: str | None, dry_run: bool) -> None:
    """Remove the oldest segments as far as the settings allow, beside live workers.

    Unsettled jobs, dead letters, held keys and finished jobs that are kept are written again first.
    Workers do this by themselves.
    """
    from taskq.app.app import TaskQ  # noqa: PLC0415 - loads pydantic, which help must not
    from taskq.connection.settings import settings_files  # noqa: PLC0415 - likewise

    limit = None if keep is None else span(keep)
    open_reader(data_dir).close()
    # Before anything goes: in a stranger's directory one obeys a stranger's settings.
    obeyed = [str(file) for file in settings_files()]
    if obeyed:
        click.echo(f"taskq: with the settings of {render.printable(', '.join(obeyed))}", err=True)
    app = TaskQ(resolve(data_dir), upkeep=False)
    try:
        report = app.compact_sync(keep=limit, dry_run=dry_run)
    finally:
        app.close_sync()
    if as_json:
        render.print_json(
            {
                "dry_run": report.dry_run,
                "settings_files": obeyed,
                "carried": report.carried,
                "freed_bytes": report.freed,
                "segments": [
                    {
                        "segment": one.segment,
                        "size_bytes": one.size,
                        "needed_bytes": one.needed,
                        "removed": one.removed,
                        "reason": one.reason,
                    }
                    for one in report.segments
                ],
            }
        )
        return
    _print(report)


def _print(report: CompactReport) -> None:
    if not report.segments:
        click.echo("Nothing to do: no segment is due.")
        return
    done = "would go" if report.dry_run else "gone"
    render.print_table(
        ("SEGMENT", ">SIZE?", ">NEEDED?", "", "WHY~"),
        [
            (
                one.segment,
                render.size(one.size),
                render.size(one.needed),
                done if one.removed else "stays",
                one.reason,
            )
            for one in report.segments
        ],
    )
    verb = "would be freed" if report.dry_run else "freed"
    carried = count_of(report.carried)
    click.echo(f"\n{render.size(max(report.freed, 0))} {verb}, {carried} written again")
