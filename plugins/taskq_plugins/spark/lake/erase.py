"""``taskq pipeline erase``: remove jobs' data from a lake, including its older versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click
import pyarrow as pa
import pyarrow.compute as pc

from taskq.cli import WrongUsage, count_of, json_option, render, yes_option
from taskq.engine import kinds
from taskq_plugins.spark.cli import lake_option
from taskq_plugins.spark.errors import LakeError
from taskq_plugins.spark.lake.files import DataFile
from taskq_plugins.spark.lake.store import (
    ATTEMPTS,
    JOB_ID,
    JOBS,
    OPEN,
    QUOTING,
    RECORDS,
    STALE,
    STEPS,
    Lake,
    LakeWriter,
    bury,
    without,
)
from taskq_plugins.spark.sandbox import chosen

_REMAINS: Final = (
    "what remains: in the lake ids, times, states, and names of tasks, queues and steps. What the "
    "logs still have, or write again, is not taken in any more, but stands there, in what a hub "
    "set aside of them (old/), and in backups, until it goes:"
)
_ON_DEVICE: Final = (
    "on each device: taskq cancel what waits, taskq dead purge what is dead, and taskq compact "
    "--keep 0s once the segment with them is sealed"
)
_TABLES: Final = (RECORDS, OPEN, ATTEMPTS, JOBS, STEPS)


class Erased(NamedTuple):
    """Rows erased from one table."""

    table: str
    rows: int
    files: int


def chosen_jobs(
    lake: Lake, job_ids: Iterable[str], where: str | None, *, purged: bool = False
) -> list[str]:
    """Return the given ids and the ids of jobs that match the condition, in order.

    With ``purged`` add jobs purged from their log, unless a restored log has them again.
    """
    ids = set(job_ids)
    if where is not None:
        with chosen(lake, "jobs", where) as connection:
            hits = connection.table("rows").filter(where).project(JOB_ID)
            ids.update(job for (job,) in hits.fetchall())
    if purged:
        is_purged = pc.field("kind").isin([kinds.name_of(kind) for kind in kinds.REMOVALS])
        gone = lake.dataset("records").to_table(columns=[JOB_ID], filter=is_purged)
        there = lake.dataset("jobs").to_table(columns=[JOB_ID])
        ids.update(set(gone[JOB_ID].to_pylist()) - set(there[JOB_ID].to_pylist()))
    return sorted(ids)


def count_rows(lake: Lake, job_ids: Sequence[str]) -> list[Erased]:
    counts = []
    for table in _there(lake):
        hits = [int(pc.sum(mask).as_py()) for _, _, mask in _holding(lake, table, job_ids)]
        counts.append(Erased(table, sum(hits), len(hits)))
    return counts


def erase_jobs(writer: LakeWriter, job_ids: Sequence[str]) -> list[Erased]:
    """Set the columns of these jobs to null, and remove the files that had them.

    If killed in between, run it again: completed steps are not repeated.
    """
    lake = writer.lake
    committed, finished = lake.reached()
    if committed > finished:
        raise LakeError(f"{lake.path}: a batch is half committed: run taskq pipeline run first")
    bury(writer, job_ids)
    for table in filter(lake.has, QUOTING):
        writer.commit(table, (), lake.files(table), apps=STALE)
    erased: list[Erased] = []
    for table in _there(lake):
        new: list[DataFile] = []
        gone: list[DataFile] = []
        rows = 0
        for file, old, mask in _holding(lake, table, job_ids):
            new += writer.write(table, without(old, mask))
            gone.append(file)
            rows += int(pc.sum(mask).as_py())
        writer.commit(table, new, gone)
        erased.append(Erased(table, rows, len(gone)))
    writer.note()
    for table in filter(lake.has, (*_TABLES, *QUOTING)):
        writer.vacuum(table, keep_hours=0)
    return erased


def remains(lake: Lake, job_ids: Sequence[str]) -> dict[str, int]:
    """Return for each device the number of the jobs that its log may still have."""
    if not lake.has("jobs"):
        return {}
    of_jobs = pc.field(JOB_ID).isin(pa.array(job_ids, pa.string()))
    rows = lake.dataset("jobs").to_table(columns=["device"], filter=of_jobs)
    return dict(sorted(Counter(rows["device"].to_pylist()).items()))


def _there(lake: Lake) -> list[str]:
    return [table for table in _TABLES if lake.has(table)]


def _holding(
    lake: Lake, table: str, job_ids: Sequence[str]
) -> Iterable[tuple[DataFile, pa.Table, pa.ChunkedArray]]:
    ids = pa.array(job_ids, pa.string())
    # A job's id ends with its lsn.
    numbers = [
        int(number) for job_id in job_ids if (number := job_id.rpartition("-")[2]).isdecimal()
    ]
    for file in lake.files(table):
        low, high = file.ranges.get("job", (1, 0))
        if not any(low <= number <= high for number in numbers):
            continue
        mask = pc.is_in(lake.rows(table, [JOB_ID], None, [file])[JOB_ID], ids)
        if pc.any(mask).as_py():
            rows = lake.rows(table, None, None, [file])
            if not without(rows, mask).equals(rows):
                yield file, rows, mask


@click.command()
@lake_option
@click.option("--job", "job_ids", multiple=True, metavar="ID", help="A job; also one purged since.")
@click.option("--where", metavar="SQL", help="The jobs that a condition over jobs chooses.")
@click.option("--purged", is_flag=True, help="All jobs that their logs have purged.")
@yes_option
@json_option
def erase(
    lake_path: Path | str,
    job_ids: tuple[str, ...],
    where: str | None,
    purged: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Erase payloads, results, reasons, keys and headers of jobs from all tables.

    Shows the plan; --yes carries it out: rows are written anew without them, and files of older
    versions that had them are removed, so readers of older versions fail.
    """
    if not job_ids and where is None and not purged:
        raise WrongUsage("name jobs with --job, or choose them with --where or --purged")
    lake = Lake.open(lake_path)
    with lake.writer() as writer:
        jobs = chosen_jobs(lake, job_ids, where, purged=purged)
        erased = erase_jobs(writer, jobs) if yes and jobs else count_rows(lake, jobs)
    if as_json:
        tables = {
            of_table.table: {"rows": of_table.rows, "files": of_table.files} for of_table in erased
        }
        document = {"dry_run": not yes, "jobs": len(jobs), "tables": tables}
        render.print_json(document | {"remains": remains(lake, jobs)})
        return
    _print_erased(erased, len(jobs), yes=yes)
    for device, count in remains(lake, jobs).items():
        render.echo(f"  {device}: {count_of(count)}")
    render.echo(_ON_DEVICE)


def _print_erased(erased: list[Erased], jobs: int, *, yes: bool) -> None:
    rows = [(of_table.table, f"{of_table.rows:,}", str(of_table.files)) for of_table in erased]
    render.print_table(("table", ">rows", ">files"), rows)
    what = f"payloads, results, reasons, keys and headers of {count_of(jobs)}"
    if yes:
        render.echo(f"erased {what}, older versions included")
    else:
        render.echo(f"would erase {what}; erased nothing (--yes does it)")
    render.echo(_REMAINS)
