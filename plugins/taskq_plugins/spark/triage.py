"""``taskq pipeline triage``: what fails, the worst first, and what to type next. Needs no Java."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import pyarrow as pa

from taskq import views as documents
from taskq.cli import count_of, json_option, moment_of, render
from taskq.core.fingerprints import LOST_REASON, NO_REASON, literals
from taskq.text import flat, printable
from taskq.values import nanoseconds
from taskq_plugins.spark.lake import Lake
from taskq_plugins.spark.lake.command import lake_option
from taskq_plugins.spark.lake.errors import LakeError

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

_LIMIT_DEFAULT: Final = 10
_SINCE_DEFAULT: Final = "1d"
_REASON_CHARACTERS_MAX: Final = 160
#: What a document has of a kind of failure as the table has it.
_TOLD: Final = (
    "fingerprint", "task", "pattern", "failed_attempts", "jobs", "dead_jobs", "poison_jobs",
    "poison_job_ids", "devices", "workers",
)  # fmt: skip
_TABLE: Final = "failures"
#: Poisonous jobs that a command names.
_POISON_SHOWN: Final = 5
#: What a shell reads into, within double quotes.
_SHELL_READS: Final = frozenset('"$`\\!')


class Action(NamedTuple):
    """A command to type: what it is for, and the whole line."""

    what: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One kind of failure: a row of the table ``failures``, and what is new about it."""

    fingerprint: str
    #: None: jobs that were put as bytes
    task: str | None
    pattern: str
    failed_attempts: int
    jobs: int
    dead_jobs: int
    devices: int
    workers: int
    first_seen_ns: int
    last_seen_ns: int
    example_device: str
    example_job_id: str
    example_reason: str
    poison_jobs: int
    poison_job_ids: list[str]
    #: whether it is not in the table as it was then
    is_new: bool
    #: failed attempts since then; None if the lake does not know any more how many there were
    grown: int | None

    def actions(self, lake: Path) -> list[Action]:
        """Return what to type about it: first to look, then to act.

        A poisonous job is not offered for replay, as it would be exhausted once more; where there
        are more of them than the table names, none of the kind is.
        """
        own = f"{_equals('task', self.task)} AND {_matches(self.pattern)}"
        dead = f"state = 'dead' AND {own}"
        actions = []
        if self.poison_jobs:
            ids = [_literal(job_id) for job_id in self.poison_job_ids]
            some = ", ".join(ids[:_POISON_SHOWN])
            actions.append(Action("poison", _show(lake, "jobs", f"job_id IN ({some})")))
            dead += f" AND job_id NOT IN ({', '.join(ids)})"
        if self.failed_attempts:
            failed = f"outcome IN ('retried', 'dead') AND {own}"
            if self.pattern == LOST_REASON:
                failed = f"outcome = 'lost' AND {_equals('task', self.task)}"
            actions.append(Action("look", _show(lake, "attempts", failed)))
        if self.dead_jobs > self.poison_jobs == len(self.poison_job_ids):
            words = f"taskq pipeline replay --lake {_quoted(str(lake))} --where {_quoted(dead)}"
            actions.append(Action("replay", f"{words} --to DIR"))
        return actions


class Found(NamedTuple):
    """What triage tells: the first findings, and how many there are of all kinds."""

    findings: list[Finding]
    kinds: int
    new: int
    poison: int
    since_ns: int


def find(lake: Lake, since_ns: int, limit: int) -> Found:
    """Return the kinds of failure: poison first, then new ones, then by failed attempts since then.

    New is what the lake did not know at that moment, as told by its older version. If that is not
    kept any more, or the lake is younger, it is what was first seen since then by the devices'
    clocks.

    Raises:
        LakeError: there is no table of failures, or a file of it is damaged.
    """
    rows = lake.dataset(_TABLE).to_table().to_pylist()
    before = _known_before(lake, since_ns)
    findings = sorted((_finding(row, before, since_ns) for row in rows), key=_rank)
    return Found(
        findings[:limit],
        len(findings),
        sum(one.is_new for one in findings),
        sum(one.poison_jobs > 0 for one in findings),
        since_ns,
    )


def moment_ns(since: str | datetime, now_ns: int) -> int:
    """Return a moment, or a span back from now, in nanoseconds since 1970."""
    if isinstance(since, str):
        return now_ns - nanoseconds(since)
    return int(since.timestamp() * 1_000_000) * 1_000


def _known_before(lake: Lake, since_ns: int) -> dict[str, int] | None:
    """Failed attempts by fingerprint as the lake knew them then; None if it cannot be told."""
    try:
        older = lake.as_of(_TABLE, since_ns)
        if older is None:
            return None
        columns = ["fingerprint", "failed_attempts"]
        table = older.dataset(_TABLE).to_table(columns=columns)
    except (LakeError, OSError, pa.ArrowInvalid):  # its files may have been vacuumed, even now
        return None
    return dict(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def _finding(row: dict[str, Any], before: dict[str, int] | None, since_ns: int) -> Finding:
    fingerprint, failed = row["fingerprint"], row["failed_attempts"]
    told = {one.name: row[one.name] for one in fields(Finding) if one.name in row}
    seen: dict[str, Any] = {
        f"{name}_ns": moment_ns(row[name], 0) for name in ("first_seen", "last_seen")
    }
    first_seen_ns = seen["first_seen_ns"]
    told["example_reason"] = row["example_reason"] or ""
    return Finding(
        **told,
        **seen,
        is_new=first_seen_ns >= since_ns if before is None else fingerprint not in before,
        grown=None if before is None else max(failed - before.get(fingerprint, 0), 0),
    )


def _rank(one: Finding) -> tuple[bool, bool, int, int, int, str]:
    grown = one.failed_attempts if one.grown is None else one.grown
    return (
        not one.poison_jobs,
        not one.is_new,
        -grown,
        -one.dead_jobs,
        -one.failed_attempts,
        one.fingerprint,
    )


def _show(lake: Path, table: str, where: str) -> str:
    return f"taskq pipeline show {table} --lake {_quoted(str(lake))} --where {_quoted(where)}"


def _quoted(text: str) -> str:
    """For a shell: in double quotes where that does, since SQL is full of single ones."""
    return f'"{text}"' if "'" in text and not _SHELL_READS & set(text) else shlex.quote(text)


def _matches(pattern: str) -> str:
    """Return a condition that holds for all reasons of a pattern, and hardly for others."""
    if pattern == NO_REASON:
        return "reason IS NULL"
    text = "%".join(literals(pattern)).rstrip("%")
    return f"reason LIKE {_literal(f'{text}%')}"


def _equals(column: str, value: str | None) -> str:
    return f"{column} IS NULL" if value is None else f"{column} = {_literal(value)}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


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
    now_ns = time.time_ns()
    lake = Lake.open(lake_path)
    found = find(lake, moment_ns(moment_of("--since", since) or _SINCE_DEFAULT, now_ns), limit)
    if as_json:
        render.print_json(_document(found, lake_path))
        return
    _tell(found, lake_path, now_ns)


def _tell(found: Found, lake: Path, now_ns: int) -> None:
    if not found.kinds:
        render.echo("Nothing fails: no attempt failed, and no job is dead.")
        return
    since = render.when(found.since_ns, now_ns)
    counts = [f"{count_of(found.kinds, 'kind')} of failure"]
    if found.new:
        counts.append(f"{found.new} new since {since}")
    if found.poison:
        counts.append(f"{found.poison} with poison")
    render.echo(", ".join(counts))
    for rank, one in enumerate(found.findings, start=1):
        render.echo()
        _tell_one(one, rank, lake, now_ns)
    if found.kinds > len(found.findings):
        more = count_of(found.kinds - len(found.findings), "more kind")
        render.echo(f"\nand {more}; --limit shows more")


def _tell_one(one: Finding, rank: int, lake: Path, now_ns: int) -> None:
    marks = ""
    if one.is_new:
        marks += click.style(" NEW", fg="yellow", bold=True)
    if one.poison_jobs:
        marks += click.style(" POISON", fg="red", bold=True)
    title = click.style(flat(f"{one.task or '-'}: {one.pattern}"), bold=True)
    click.echo(f"{rank}.{marks} {title}")
    grown = f" (+{one.grown:,})" if one.grown else ""
    render.echo(
        f"   {count_of(one.failed_attempts, 'failed attempt')}{grown}, {one.dead_jobs:,} dead of "
        f"{count_of(one.jobs, 'job')}, on {count_of(one.devices, 'device')}, last "
        f"{render.when(one.last_seen_ns, now_ns)}"
    )
    if one.poison_jobs:
        render.echo(f"   {one.poison_jobs:,} of the dead died in two places: no other worker helps")
    reason = printable(one.example_reason.strip().partition("\n")[0])
    example = f"{one.example_job_id} of {one.example_device}: {reason[:_REASON_CHARACTERS_MAX]}"
    render.echo(f"   for example {flat(example)}")
    for action in one.actions(lake):
        render.echo(f"   {action.what + ':':8} {flat(action.command)}")


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
