"""Commands that take a log elsewhere: ``backup``, ``restore`` and ``report``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskq.cli import render
from taskq.cli.errors import Failure, WrongUsage
from taskq.cli.options import data_dir_option, json_option, log_argument, open_reader
from taskq.values import worker_command

if TYPE_CHECKING:
    from taskq.views import BackupReport


@click.command()
@click.argument("places", metavar="[DIR] DEST", nargs=-1, type=click.Path(path_type=Path))
@data_dir_option
@json_option
def backup(places: tuple[Path, ...], data_dir: Path | None, as_json: bool) -> None:
    """Copy a log to DEST as it stands, beside live workers.

    All that was acknowledged before is in it. Into a backup of the same log only what is new is
    copied. Read commands open it (-d DEST), and taskq restore makes a log of it.
    """
    from taskq.engine import back_up  # noqa: PLC0415 - help must not import the log

    if len(places) not in {1, 2}:
        raise WrongUsage("give the log's directory, then the backup's")
    *given, target = places
    source = given[0] if given else data_dir
    with open_reader(source) as reader:
        path = reader.journal.path
    _tell(back_up(path, str(target)), target, as_json=as_json)


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.argument("places", metavar="[DIR]", nargs=-1, type=click.Path(path_type=Path))
@data_dir_option
@click.option(
    "--above",
    metavar="ID",
    help="The last job that the lost log is known to have had: new ids are above it.",
)
@json_option
def restore(
    source: Path,
    places: tuple[Path, ...],
    data_dir: Path | None,
    above: str | None,
    as_json: bool,
) -> None:
    """Make a log of BACKUP in DIR, which is empty or not there.

    It goes on in an epoch of its own: whoever followed the log that was lost sees that this is
    another branch. Jobs that ran when the backup was made run again.
    """
    from taskq.engine import restore as restored  # noqa: PLC0415 - likewise

    if len(places) > 1 or (not places and data_dir is None):
        raise WrongUsage("give the backup, then the new directory")
    target = places[0] if places else data_dir
    assert target is not None
    with open_reader(source) as reader:
        path, lsn = reader.journal.path, 0 if above is None else reader.parse_id(above)
    _tell(restored(path, str(target), lsn), target, as_json=as_json)
    if not as_json:
        render.echo(f"Work goes on with: {worker_command(str(target.absolute()))}")


@click.command()
@log_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=Path("case.zip"),
    show_default=True,
    help="The file, which must not be there.",
)
@click.option(
    "--since", default="1h", show_default=True, metavar="MOMENT", help="Records from then on."
)
@click.option("--with-payloads", is_flag=True, help="With payloads and results, too.")
@click.option("--show-secrets", is_flag=True, help="With what names call secret, too.")
def report(
    data_dir: Path | None, output: Path, since: str, with_payloads: bool, show_secrets: bool
) -> None:
    """Write a case file: a zip of what somebody else needs to look into the log.

    In it are versions, settings without secrets, what health, verify, stats, workers, schedules,
    ls and dead tell, timelines of dead and running jobs, and the records since a moment as a log
    that read commands open: taskq ls -d case.zip. Keys, headers, reasons of failures and kept log
    lines are in it; payloads and results only with --with-payloads.
    """
    from taskq.cli.casefile import write_case  # noqa: PLC0415 - help must not import it
    from taskq.engine import Moment  # noqa: PLC0415 - likewise

    since_ns = Moment.parse(since, time.time_ns(), "--since").time_ns
    if since_ns is None:
        raise WrongUsage('--since takes a span back from now ("2h") or a time, and no lsn')
    with open_reader(data_dir) as reader:
        try:
            size = write_case(
                reader, output, since_ns, bodies=with_payloads, show_secrets=show_secrets
            )
        except FileExistsError:
            raise Failure(f"{output} is there already: name another file with -o") from None
    left_out = "" if with_payloads else ", without payloads and results"
    render.echo(f"{output}: {render.size(size)}{left_out}")


def _tell(report: BackupReport, target: Path, *, as_json: bool) -> None:
    if as_json:
        render.print_json(
            {
                "directory": str(target.absolute()),
                "log_id": report.log_id,
                "next_lsn": report.next_lsn,
                "segments": report.segments,
                "segments_copied": report.copied,
                "copied_bytes": report.copied_bytes,
            }
        )
        return
    segments = render.count_of(report.segments, "segment")
    size = render.size(report.copied_bytes)
    render.echo(f"{target} holds {segments} up to lsn {report.next_lsn - 1}; {size} were copied")
