"""``python -m examples.fleet.report LAKE``: a lake's tables for people, in 80 columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taskq.core.durations import spoken

if TYPE_CHECKING:
    from taskq_plugins.spark.lake import Lake

#: Rows of one table, and devices that nothing is the matter with.
ROWS_MAX: Final = 24
QUIET_MAX: Final = 3
NAMES_MAX: Final = 4
PATTERN_CHARACTERS_MAX: Final = 60
_SECOND_NS: Final = 1_000_000_000

Row = dict[str, Any]


def report(lake_path: Path, console: Console) -> None:
    """Print the tables of a lake, after ``taskq pipeline run``."""
    # Imported here, since it takes a second: a wrong option is told at once.
    from taskq_plugins.spark.lake import Lake  # noqa: PLC0415

    lake = Lake.open(lake_path)
    for table in (_hours(lake), _failures(lake), _duplicates(lake), _devices(lake)):
        console.print(table)
        console.print()


def _hours(lake: Lake) -> Table:
    """Return the hours of the fleet in which most happened, in order, all tasks together."""
    totals: dict[Any, Row] = {}
    names = ("enqueued", "succeeded", "dead", "cancelled", "expired", "attempts_ended")
    shown = (*names[:-1], "attempts", "failed")
    for row in _rows(lake, "rollup_hour"):
        total = totals.setdefault(row["hour"], dict.fromkeys((*names, "failed"), 0))
        for name in names:
            total[name] += row[name]
        total["failed"] += sum(row[f"attempts_{name}"] for name in ("retried", "dead", "lost"))
    busiest = sorted(totals, key=lambda hour: -totals[hour]["attempts_ended"])[:ROWS_MAX]
    table = _table("The fleet by the hour", "hour (UTC)", *(f">{name}" for name in shown))
    for hour in sorted(busiest):
        counts = (f"{value:,}" for value in totals[hour].values())
        table.add_row(f"{hour:%m-%d %H:00}", *counts)
    return table


def _failures(lake: Lake) -> Table:
    """Return what fails, the worst first."""
    table = _table("What fails", "task", "~what", ">attempts", ">dead", ">devices", "poison")
    rows = sorted(_rows(lake, "failures"), key=lambda row: -row["failed_attempts"])
    for row in rows[:ROWS_MAX]:
        table.add_row(
            row["task"] or "-",
            Text(row["pattern"][:PATTERN_CHARACTERS_MAX]),
            *(f"{row[name]:,}" for name in ("failed_attempts", "dead_jobs", "devices")),
            Text(f"{row['poison_jobs']} jobs", "red") if row["poison"] else "",
        )
    return table


def _duplicates(lake: Lake) -> Table:
    """Work that several devices did."""
    table = _table("On several devices", "queue", "~key", ">devices", ">jobs", "~first run on")
    rows = sorted(_rows(lake, "duplicates"), key=lambda row: (-row["devices"], row["key"]))
    for row in rows[:ROWS_MAX]:
        names = [run["device"] for run in row["runs"][:NAMES_MAX]]
        more = ", ..." if row["devices"] > len(names) else ""
        table.add_row(
            row["queue"],
            Text(row["key"].decode("utf-8", "backslashreplace")),
            f"{row['devices']:,}",
            f"{row['jobs']:,}",
            ", ".join(names) + more,
        )
    return table


def _devices(lake: Lake) -> Table:
    """Devices with which something is the matter, and a few others."""
    rows = sorted(_rows(lake, "device_lag"), key=lambda row: (row["device"], not row["is_current"]))
    newest = max((row["last_arrival_at"] for row in rows if row["last_arrival_at"]), default=None)
    table = _table(
        "Devices", "device", "log", ">heard of", "~clock", ">skew", ">waiting", ">oldest", ">dead",
        ">missing",
    )  # fmt: skip
    quiet = 0
    for row in rows:
        arrived = row["last_arrival_at"]
        behind = (newest - arrived).total_seconds() if arrived and newest else None
        is_odd = row["clock"] != "ok" or row["logs_of_device"] > 1 or row["missing_segments"]
        if not (is_odd or behind or row["waiting"]):
            quiet += 1
            if quiet > QUIET_MAX:
                continue
        table.add_row(
            row["device"],
            "" if row["logs_of_device"] == 1 else "current" if row["is_current"] else "earlier",
            "never" if behind is None else f"-{_spoken(behind)}" if behind else "last",
            Text(row["clock"] or "unknown", "" if row["clock"] == "ok" else "red"),
            _spoken(row["clock_skew_seconds"]),
            f"{row['waiting']:,}",
            _age(row),
            f"{row['dead']:,}",
            f"{row['missing_segments']:,}",
        )
    if quiet > QUIET_MAX:
        table.caption = f"and {quiet - QUIET_MAX} devices with which nothing is the matter"
    return table


def _age(row: Row) -> str:
    """Return how long the oldest job had waited when the log told its last."""
    if row["oldest_waiting_at"] is None:
        return ""
    return _spoken((row["last_record_at"] - row["oldest_waiting_at"]).total_seconds())


def _spoken(seconds: float | None) -> str:
    if seconds is None:
        return ""
    sign = "-" if seconds < 0 else ""
    return sign + spoken(int(abs(seconds) * _SECOND_NS))


def _rows(lake: Lake, table: str) -> list[Row]:
    rows: list[Row] = lake.dataset(table).to_table().to_pylist()
    return rows


def _table(title: str, *columns: str) -> Table:
    """Return an empty table; a heading with ``>`` is of numbers, one with ``~`` of text to fold."""
    table = Table(
        title=title, title_justify="left", title_style="bold", header_style="dim", box=None,
        padding=(0, 2, 0, 0), pad_edge=False,
    )  # fmt: skip
    for column in columns:
        table.add_column(
            column.lstrip(">~"),
            justify="right" if column.startswith(">") else "left",
            no_wrap=not column.startswith("~"),
            overflow="fold",
        )
    return table


@click.command()
@click.argument("lake", type=click.Path(path_type=Path, exists=True))
def main(lake: Path) -> None:
    """Print the tables of LAKE."""
    report(lake, Console())


if __name__ == "__main__":
    main()
