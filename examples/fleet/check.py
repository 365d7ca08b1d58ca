"""Compare the tables of a lake with the Python fold of the logs, row by row."""

from __future__ import annotations

import math
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from . import fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from rich.console import Console

    from taskq_plugins.spark.lake.store import Lake

#: Differences that are printed one by one.
SHOWN_MAX: Final = 5
_HOUR_SECONDS: Final = 3_600


class Check(NamedTuple):
    """One table and the result of its comparison."""

    table: str
    rows: int
    differences: tuple[str, ...]


def check(lake: Lake, root: Path) -> Iterator[Check]:
    logs = fold.read_logs(root)
    lake = lake.pinned()
    wanted_jobs = {
        (log.log_id, view.lsn): fold.job_row(log, view) for log in logs for view in log.views
    }
    found_jobs = {(row["log_id"], row["job"]): row for row in _rows(lake, "jobs")}
    yield _compare("jobs", wanted_jobs, found_jobs)
    wanted_attempts = {
        (key, number): {**attempt, "task": row["task"], "device": row["device"]}
        for key, row in wanted_jobs.items()
        for number, attempt in enumerate(row["attempts"])
    }
    yield _compare("attempts", wanted_attempts, _numbered(_rows(lake, "attempts")))
    rows = {_hour_key(row): row for row in _rows(lake, "rollup_hour")}
    yield _compare("rollup_hour", fold.hours(logs), rows)
    failed: dict[str, int] = {}
    for row in _rows(lake, "failures"):
        failed[row["task"]] = failed.get(row["task"], 0) + row["failed_attempts"]
    wanted_failed = {task: {"failed": count} for task, count in fold.failed_attempts(logs).items()}
    yield _compare("failures", wanted_failed, {task: {"failed": n} for task, n in failed.items()})
    names = ("devices", "jobs", "succeeded")
    wanted_duplicates = {
        key: dict(zip(names, counts, strict=True)) for key, counts in fold.duplicates(logs).items()
    }
    found_duplicates = {(row["queue"], row["key"]): row for row in _rows(lake, "duplicates")}
    yield _compare("duplicates", wanted_duplicates, found_duplicates)
    found_lag = {row["log_id"]: row for row in _rows(lake, "device_lag")}
    yield _compare("device_lag", fold.backlogs(logs), found_lag)


@contextmanager
def workplace(work: Path | None) -> Iterator[Path]:
    """Yield an empty directory; a named one is kept."""
    if work is None:
        with tempfile.TemporaryDirectory(prefix="taskq-fleet-") as name:
            yield Path(name)
        return
    work.mkdir(parents=True, exist_ok=True)
    if any(work.iterdir()):
        raise click.UsageError(f"--work {work} is not empty: name a new directory")
    yield work


def check_tables(console: Console, journals: Path, lake_path: Path) -> int:
    """Run the pipeline and check its tables; return the number of wrong rows."""
    # These imports take a second, so they come after the checks of options.
    from taskq_plugins.spark.lake.store import Lake  # noqa: PLC0415
    from taskq_plugins.spark.run.command import run  # noqa: PLC0415

    run.main(["--journals", str(journals), "--lake", str(lake_path)], standalone_mode=False)
    wrong = 0
    for table, rows, differences in check(Lake.open(lake_path), journals):
        wrong += len(differences)
        verdict = "DIFFERENT" if differences else "equal to the Python fold"
        console.print(f"{table}: {rows} rows, {verdict}")
        show_differences(console, differences)
    return wrong


def show_differences(console: Console, differences: Sequence[str]) -> None:
    for difference in differences[:SHOWN_MAX]:
        console.print(f"  {difference}", markup=False)


def _rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lake.dataset(table).to_table().to_pylist()
    return rows


def _numbered(rows: list[dict[str, Any]]) -> dict[tuple[tuple[str, int], int], dict[str, Any]]:
    rows.sort(key=lambda row: (row["log_id"], row["job"], row["started_ns"], row["number"]))
    numbered: dict[tuple[tuple[str, int], int], dict[str, Any]] = {}
    last, number = None, 0
    for row in rows:
        key = (row["log_id"], row["job"])
        number = number + 1 if key == last else 0
        last = key
        numbered[key, number] = row
    return numbered


def _hour_key(row: Mapping[str, Any]) -> fold.HourKey:
    hour: datetime = row["hour"]
    seconds = math.floor(hour.timestamp())
    return fold.HourKey(row["device"], row["queue"], row["task"], seconds // _HOUR_SECONDS)


def _compare(
    table: str, wanted: Mapping[Any, Mapping[str, Any]], rows: Mapping[Any, Mapping[str, Any]]
) -> Check:
    problems = [f"{key} is missing" for key in wanted.keys() - rows.keys()]
    problems += [f"{key} is not in any log" for key in rows.keys() - wanted.keys()]
    for key in wanted.keys() & rows.keys():
        row = rows[key]
        problems += [
            f"{key}: {name} is {row.get(name)!r:.80}, by the log {value!r:.80}"
            for name, value in wanted[key].items()
            if not _same(row.get(name), value)
        ]
    return Check(table, len(rows), tuple(problems))


def _same(value: object, wanted: object) -> bool:
    if isinstance(value, float) and isinstance(wanted, float):
        return math.isclose(value, wanted, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(_same, value, wanted))
    if isinstance(value, dict) and isinstance(wanted, dict):
        return all(_same(value.get(name), other) for name, other in wanted.items())
    return value == wanted
