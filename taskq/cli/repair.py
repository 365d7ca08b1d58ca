"""``taskq repair``: damaged segments are written anew, when a person says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskq.cli import render
from taskq.cli.errors import Failure, WrongUsage
from taskq.cli.options import json_option, log_argument, open_reader
from taskq.cli.read import damage_json, print_damage

if TYPE_CHECKING:
    from pathlib import Path

    from taskq.log.upkeep.repair import RepairReport


@click.command()
@log_argument
@json_option
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def repair(data_dir: Path | None, as_json: bool, dry_run: bool, yes: bool) -> None:
    """Write damaged segments anew from all that still reads, and keep the originals in torn/.

    Where segments are gone, or were cut, the loss is accepted: the log goes on without them.

    Nobody may have the log open meanwhile. What does not read is lost: a job whose record is
    damaged is gone, one whose outcome is damaged runs again.
    """
    from taskq.log.upkeep.repair import repair_directory, survey_damage  # noqa: PLC0415 - as in options

    if as_json and not (yes or dry_run):
        raise WrongUsage("--json asks nothing: add --yes, or --dry-run")
    with open_reader(data_dir) as reader:
        path = reader.journal.path
        report = survey_damage(reader.journal)
    if dry_run or not report.damage:
        _print(report, [], path, as_json=as_json)
        return
    if not yes:
        _print(report, [], path, as_json=False)
        if not _confirmed():
            raise Failure("nothing was changed; --yes does not ask")
    report, notes = repair_directory(path)
    _print(report, notes, path, as_json=as_json)


def _confirmed() -> bool:
    try:
        return click.confirm("Write damaged segments anew, accept what is lost?", err=True)
    except click.Abort:  # nobody is there to be asked
        click.echo(err=True)
        return False


def _print(report: RepairReport, notes: list[str], path: str, *, as_json: bool) -> None:
    if as_json:
        render.print_json(
            {
                "damage": [damage_json(damage) for damage in report.damage],
                "kept": list(report.kept),
                "accepted": [damage_json(loss) for loss in report.accepted],
                "lost_jobs": list(report.lost_jobs),
                "lost_records": report.lost_records,
                "notes": notes,
            }
        )
        return
    for note in notes:
        click.echo(note)
    if not report.damage:
        click.echo("no damage: nothing to repair")
        return
    saved = sum(damage.salvaged for damage in report.damage)
    if report.kept or report.accepted:
        click.echo(f"records in damaged frames: {saved} saved, {report.lost_records} lost")
    else:
        print_damage(report.damage, path)
        click.echo(f"records in damaged frames: {saved} to be saved, {report.lost_records} lost")
    for job in report.lost_jobs:
        click.echo(f"lost job {job}")
    for loss in report.accepted:
        click.echo(f"accepted: {loss.lost} records were lost at lsn {loss.first_lsn}")
    for kept in report.kept:
        click.echo(f"written anew; the original is {kept}")
