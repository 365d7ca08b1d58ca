"""``taskq pipeline erase``: what jobs brought along goes from a lake, older versions included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from taskq.cli import render
from taskq.cli.errors import WrongUsage
from taskq.cli.many import count_of, yes_option
from taskq.cli.options import json_option
from taskq_plugins.spark.lake.command import lake_option

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.spark.lake.erasing import Erased

_REMAINS: Final = (
    "what remains: in the lake ids, times, states, names of tasks and queues, and reasons (which "
    "may quote an argument); in the logs that it was read from (of purged jobs until they are "
    "compacted), in what a hub set aside of them (old/), and in backups of these, all of it"
)


@click.command()
@lake_option
@click.option("--job", "job_ids", multiple=True, metavar="ID", help="A job; also one purged since.")
@click.option("--where", metavar="SQL", help="The jobs that a condition over jobs chooses.")
@click.option("--purged", is_flag=True, help="All jobs that their logs have purged.")
@yes_option
@json_option
def erase(
    lake_path: Path,
    job_ids: tuple[str, ...],
    where: str | None,
    purged: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Erase payloads, results, keys and headers of jobs from all tables.

    Tells what would be done; --yes does it: rows are written anew without them, and files of older
    versions that had them are removed, so readers of older versions fail.
    """
    from taskq_plugins.spark.lake import Lake  # noqa: PLC0415 - help must not load pyarrow
    from taskq_plugins.spark.lake.erasing import chosen_jobs, count_rows  # noqa: PLC0415 - nor duckdb
    from taskq_plugins.spark.lake.erasing import erase as erase_jobs  # noqa: PLC0415

    if not job_ids and where is None and not purged:
        raise WrongUsage("name jobs with --job, or choose them with --where or --purged")
    lake = Lake.open(lake_path)
    with lake.writer() as writer:
        chosen = chosen_jobs(lake, job_ids, where, purged=purged)
        told = erase_jobs(writer, chosen) if yes else count_rows(lake, chosen)
    if as_json:
        tables = {one.table: {"rows": one.rows, "files": one.files} for one in told}
        render.print_json({"dry_run": not yes, "jobs": len(chosen), "tables": tables})
        return
    _tell(told, len(chosen), yes=yes)


def _tell(told: list[Erased], jobs: int, *, yes: bool) -> None:
    rows = [(one.table, f"{one.rows:,}", str(one.files)) for one in told]
    render.print_table(("table", ">rows", ">files"), rows)
    what = f"payloads, results, keys and headers of {count_of(jobs)}"
    if yes:
        click.echo(f"erased {what}, older versions included")
    else:
        click.echo(f"would erase {what}; erased nothing (--yes does it)")
    click.echo(_REMAINS)
