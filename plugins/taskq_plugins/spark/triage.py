"""``taskq pipeline triage``: what fails, the worst first, and what to type next. Needs no Java."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from taskq.cli import render
from taskq.cli.many import count_of
from taskq.cli.options import json_option, moment_of
from taskq.core import views as documents
from taskq_plugins.spark.lake.command import lake_option

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.spark.triagedata import Finding, Found

_LIMIT_DEFAULT: Final = 10
_SINCE_DEFAULT: Final = "1d"
_REASON_CHARACTERS_MAX: Final = 160
#: What a document has of a kind of failure as the table has it.
_TOLD: Final = (
    "fingerprint", "task", "pattern", "failed_attempts", "jobs", "dead_jobs", "poison_jobs",
    "poison_job_ids", "devices", "workers",
)  # fmt: skip


@click.command()
@lake_option
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=_LIMIT_DEFAULT,
    show_default=True,
    help="At most so many kinds of failure.",
)
@click.option(
    "--since",
    metavar="MOMENT",
    default=_SINCE_DEFAULT,
    show_default=True,
    help='What is new is told since then: "2h" ago, or a time.',
)
@json_option
def triage(lake_path: Path, limit: int, since: str, as_json: bool) -> None:
    """Rank what fails, and what to do about it.

    Poison comes first: calls that were exhausted in two places, which no other worker will help.
    Then what is new, then what fails most now.
    """
    from taskq_plugins.spark.lake import Lake  # noqa: PLC0415 - help must not load pyarrow
    from taskq_plugins.spark.triagedata import find, moment_ns  # noqa: PLC0415 - nor duckdb

    now_ns = time.time_ns()
    lake = Lake.open(lake_path)
    found = find(lake, moment_ns(moment_of("--since", since) or _SINCE_DEFAULT, now_ns), limit)
    if as_json:
        render.print_json(_document(found, lake_path))
        return
    _tell(found, lake_path, now_ns)


def _tell(found: Found, lake: Path, now_ns: int) -> None:
    if not found.kinds:
        click.echo("Nothing fails: no attempt failed, and no job is dead.")
        return
    since = render.when(found.since_ns, now_ns)
    counts = [f"{count_of(found.kinds, 'kind')} of failure"]
    if found.new:
        counts.append(f"{found.new} new since {since}")
    if found.poison:
        counts.append(f"{found.poison} with poison")
    click.echo(", ".join(counts))
    for rank, one in enumerate(found.findings, start=1):
        click.echo()
        _tell_one(one, rank, lake, now_ns)
    if found.kinds > len(found.findings):
        more = count_of(found.kinds - len(found.findings), "more kind")
        click.echo(f"\nand {more}; --limit shows more")


def _tell_one(one: Finding, rank: int, lake: Path, now_ns: int) -> None:
    marks = ""
    if one.is_new:
        marks += click.style(" NEW", fg="yellow", bold=True)
    if one.poison_jobs:
        marks += click.style(" POISON", fg="red", bold=True)
    title = click.style(render.printable(f"{one.task or '-'}: {one.pattern}"), bold=True)
    click.echo(f"{rank}.{marks} {title}")
    grown = f" (+{one.grown:,})" if one.grown else ""
    click.echo(
        f"   {count_of(one.failed_attempts, 'failed attempt')}{grown}, {one.dead_jobs:,} dead of "
        f"{count_of(one.jobs, 'job')}, on {count_of(one.devices, 'device')}, last "
        f"{render.when(one.last_seen_ns, now_ns)}"
    )
    if one.poison_jobs:
        click.echo(f"   {one.poison_jobs:,} of the dead died in two places: no other worker helps")
    reason = render.printable(one.example_reason.strip().partition("\n")[0])
    click.echo(
        f"   for example {one.example_job_id} of {one.example_device}: "
        f"{reason[:_REASON_CHARACTERS_MAX]}"
    )
    for action in one.actions(lake):
        click.echo(f"   {action.what + ':':8} {render.printable(action.command)}")


def _document(found: Found, lake: Path) -> dict[str, object]:
    return {
        "since": documents.moment(found.since_ns),
        "kinds": found.kinds,
        "new": found.new,
        "poison": found.poison,
        "failures": [
            {name: getattr(one, name) for name in _TOLD}
            | {
                "new": one.is_new,
                "poison": one.poison_jobs > 0,
                "failed_attempts_since": one.grown,
                "first_seen": documents.moment(one.first_seen_ns),
                "last_seen": documents.moment(one.last_seen_ns),
                "example": {
                    name: getattr(one, f"example_{name}") for name in ("device", "job_id", "reason")
                },
                "next": [action._asdict() for action in one.actions(lake)],
            }
            for one in found.findings
        ],
    }
