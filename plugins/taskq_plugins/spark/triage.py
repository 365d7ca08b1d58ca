"""``taskq pipeline triage``: what fails, the worst first, and what to type next. Needs no Java."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pyarrow as pa

import taskq.views as documents
from taskq.cli import count_of, json_option, moment_of, render
from taskq.engine import FailureKind
from taskq.text import flat, printable
from taskq.values import nanoseconds
from taskq_plugins.spark.cli import lake_option
from taskq_plugins.spark.lake.errors import LakeError
from taskq_plugins.spark.lake.store import Lake

_LIMIT_DEFAULT: Final = 10
_SINCE_DEFAULT: Final = "1d"
_REASON_CHARACTERS_MAX: Final = 160
#: Columns of a failure kind that a document has unchanged.
_SHOWN: Final = (
    "fingerprint", "task", "pattern", "failed_attempts", "jobs", "dead_jobs", "poison_jobs",
    "poison_job_ids", "devices", "workers",
)  # fmt: skip
_TABLE: Final = "failures"
#: Poisonous jobs that a command names.
_POISON_SHOWN: Final = 5
#: Characters that a shell interprets within double quotes.
_SHELL_READS: Final = frozenset('"$`\\!')


class Action(NamedTuple):
    """A command to type: what it is for, and the whole line."""

    what: str
    command: str


class Finding(NamedTuple):
    """Describe a kind of failure, and what is new about it.

    Attributes:
        row: of the table ``failures``.
        is_new: whether it is not in the table as it was then.
        grown: failed attempts since then; None if the lake does not know any more how many there
            were.
    """

    row: dict[str, Any]
    is_new: bool
    grown: int | None

    @property
    def rank(self) -> tuple[Any, ...]:
        row = self.row
        failed = row["failed_attempts"]
        grown = failed if self.grown is None else self.grown
        return (
            not row["poison_jobs"], not self.is_new, -grown, -row["dead_jobs"], -failed,
            row["fingerprint"],
        )  # fmt: skip

    def actions(self, lake: Path | str) -> list[Action]:
        """Return what to type about it: first to look, then to act.

        A poisonous job is not offered for replay, as it would be exhausted once more; where there
        are more of them than the table names, none of the kind is.
        """
        row = self.row
        kind = FailureKind(row["task"], row["pattern"])
        own = f"{_equals('task', kind.task)} AND {_matches(kind)}"
        dead = f"state = 'dead' AND {own}"
        actions = []
        if row["poison_jobs"]:
            ids = [_literal(job_id) for job_id in row["poison_job_ids"]]
            some = ", ".join(ids[:_POISON_SHOWN])
            actions.append(Action("poison", _show(lake, "jobs", f"job_id IN ({some})")))
            dead += f" AND job_id NOT IN ({', '.join(ids)})"
        if row["failed_attempts"]:
            failed = f"outcome IN ('retried', 'dead') AND {own}"
            if kind.is_loss:
                failed = f"outcome = 'lost' AND {_equals('task', kind.task)}"
            actions.append(Action("look", _show(lake, "attempts", failed)))
        if row["dead_jobs"] > row["poison_jobs"] == len(row["poison_job_ids"]):
            words = f"taskq pipeline replay --lake {_quoted(str(lake))} --where {_quoted(dead)}"
            actions.append(Action("replay", f"{words} --to DIR"))
        return actions


def find(lake: Lake, since: datetime) -> list[Finding]:
    """Return the kinds of failure: poison first, then new ones, then by failed attempts since then.

    New is what the lake did not know at that moment, as told by its older version. If that is not
    kept any more, or the lake is younger, it is what was first seen since then by the devices'
    clocks.
    """
    before = _known_before(lake, since)
    findings = []
    for row in lake.dataset(_TABLE).to_table().to_pylist():
        if before is None:
            findings.append(Finding(row, row["first_seen"] >= since, None))
        else:
            known = before.get(row["fingerprint"])
            grown = max(row["failed_attempts"] - (known or 0), 0)
            findings.append(Finding(row, known is None, grown))
    return sorted(findings, key=lambda finding: finding.rank)


def _known_before(lake: Lake, since: datetime) -> dict[str, int] | None:
    try:
        older = lake.as_of(_TABLE, int(since.timestamp() * 1_000) * 1_000_000)
        if older is None:
            return None
        columns = ["fingerprint", "failed_attempts"]
        table = older.dataset(_TABLE).to_table(columns=columns)
    except (LakeError, OSError, pa.ArrowInvalid):  # its files may have been vacuumed, even now
        return None
    return dict(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def _show(lake: Path | str, table: str, where: str) -> str:
    query = f"FROM {table} WHERE {where}"
    return f"taskq sql --lake {_quoted(str(lake))} {_quoted(query)}"


def _quoted(text: str) -> str:
    return f'"{text}"' if "'" in text and not _SHELL_READS & set(text) else shlex.quote(text)


def _matches(kind: FailureKind) -> str:
    literals = kind.literals()
    if not literals:
        return "reason IS NULL"
    text = "%".join(literals).rstrip("%")
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
def triage(lake_path: Path | str, limit: int, since: str, as_json: bool) -> None:
    """Rank what fails, and what to do about it.

    Poison comes first: calls that were exhausted in two places, which no other worker will help.
    Then what is new, then what fails most now.
    """
    now = datetime.now(UTC)
    moment = moment_of("--since", since) or _SINCE_DEFAULT
    if isinstance(moment, str):
        moment = now - timedelta(microseconds=nanoseconds(moment) // 1_000)
    findings = find(Lake.open(lake_path), moment)
    if as_json:
        render.print_json(_document(findings, limit, moment, lake_path))
    else:
        _print(findings, limit, _ns(moment), lake_path, _ns(now))


def _ns(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1_000


def _print(
    findings: list[Finding], limit: int, since_ns: int, lake: Path | str, now_ns: int
) -> None:
    if not findings:
        render.echo("Nothing fails: no attempt failed, and no job is dead.")
        return
    new, poison = _counts(findings)
    counts = [f"{count_of(len(findings), 'kind')} of failure"]
    if new:
        counts.append(f"{new} new since {render.when(since_ns, now_ns)}")
    if poison:
        counts.append(f"{poison} with poison")
    render.echo(", ".join(counts))
    for rank, finding in enumerate(findings[:limit], start=1):
        render.echo()
        _print_finding(finding, rank, lake, now_ns)
    if len(findings) > limit:
        more = count_of(len(findings) - limit, "more kind")
        render.echo(f"\nand {more}; --limit shows more")


def _counts(findings: list[Finding]) -> tuple[int, int]:
    poison = sum(finding.row["poison_jobs"] > 0 for finding in findings)
    return sum(finding.is_new for finding in findings), poison


def _print_finding(finding: Finding, rank: int, lake: Path | str, now_ns: int) -> None:
    row = finding.row
    marks = ""
    if finding.is_new:
        marks += click.style(" NEW", fg="yellow", bold=True)
    if row["poison_jobs"]:
        marks += click.style(" POISON", fg="red", bold=True)
    title = click.style(flat(f"{row['task'] or '-'}: {row['pattern']}"), bold=True)
    click.echo(f"{rank}.{marks} {title}")
    grown = f" (+{finding.grown:,})" if finding.grown else ""
    seen = render.when(_ns(row["last_seen"]), now_ns)
    several = row["devices"] != 1
    where = count_of(row["devices"], "device") if several else f"{row['example_device']} alone"
    render.echo(
        f"   {count_of(row['failed_attempts'], 'failed attempt')}{grown}, "
        f"{row['dead_jobs']:,} dead of {count_of(row['jobs'], 'job')}, "
        f"on {where}, last {seen}"
    )
    if row["poison_jobs"]:
        dead = f"{row['poison_jobs']:,} of the dead"
        render.echo(f"   {dead} died in two places: no other worker helps")
    reason = printable((row["example_reason"] or "").strip().partition("\n")[0])
    whose = f"{row['example_job_id']} of {row['example_device']}"
    render.echo(f"   for example {flat(f'{whose}: {reason[:_REASON_CHARACTERS_MAX]}')}")
    for action in finding.actions(lake):
        render.echo(f"   {action.what + ':':8} {flat(action.command)}")


def _document(
    findings: list[Finding], limit: int, since: datetime, lake: Path | str
) -> dict[str, object]:
    new, poison = _counts(findings)
    return {
        "since": documents.moment(_ns(since)),
        "kinds": len(findings),
        "new": new,
        "poison": poison,
        "failures": [
            {name: finding.row[name] for name in _SHOWN}
            | {
                "new": finding.is_new,
                "poison": finding.row["poison_jobs"] > 0,
                "failed_attempts_since": finding.grown,
                "first_seen": documents.moment(_ns(finding.row["first_seen"])),
                "last_seen": documents.moment(_ns(finding.row["last_seen"])),
                "example": {
                    "device": finding.row["example_device"],
                    "job_id": finding.row["example_job_id"],
                    "reason": finding.row["example_reason"] or "",
                },
                "next": [action._asdict() for action in finding.actions(lake)],
            }
            for finding in findings[:limit]
        ],
    }
