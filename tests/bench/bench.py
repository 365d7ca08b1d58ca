"""taskq beside a hand-written SQLite queue and the bare disk, in turn, in one run.

Run: ``python -m tests.bench.bench [--quick]``. Every sample is a fresh process (``one.py``) that
checks by the store's own counts that each job succeeded. See README.md for the columns.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tests.bench.harness import (
    Table,
    answer,
    median,
    microseconds,
    options,
    percentile,
    scratch,
    start,
)

if TYPE_CHECKING:
    from pathlib import Path

#: Scenario -> jobs of a sample in fsync mode and in os mode.
JOBS: Final = {
    "one_by_one": (2_000, 10_000),
    "enqueue_64": (50_000, 50_000),
    "enqueue_1000": (50_000, 50_000),
    "enqueue_many": (100_000, 100_000),
    "drain": (100_000, 100_000),
    "cycle_64": (50_000, 50_000),
    "cycle_1000": (100_000, 100_000),
    "two_processes_64": (50_000, 50_000),
    "two_processes_1000": (100_000, 100_000),
    "cycle_cpu_64": (20_000, 20_000),
}
#: A sample takes a few seconds; one that takes so long hangs.
SAMPLE_SECONDS_MAX: Final = 120
CONTENDERS: Final = ("taskq", "sqlite", "sqlite-tuned", "disk")
Samples = dict[str, list[dict[str, Any]]]


def sample(
    scenario: str, contender: str, mode: str, jobs: int, parent: Path | None
) -> dict[str, Any]:
    """Return one run in a fresh process and a fresh directory of the real disk."""
    with scratch(parent) as directory:
        process = start("tests.bench.one", scenario, contender, mode, jobs, directory)
        return answer(process, SAMPLE_SECONDS_MAX)


def rate(samples: list[dict[str, Any]]) -> float:
    """Return the median of jobs per second."""
    return median([run["jobs"] / run["seconds"] for run in samples])


def latency(samples: list[dict[str, Any]], percent: float) -> float | None:
    """Return the median over the samples of that percentile; None when none was taken."""
    if not samples or not samples[0]["latencies"]:
        return None
    return median([percentile(run["latencies"], percent) for run in samples])


def ratio(value: float | None, base: float | None) -> str:
    """Return ``value / base`` as text, "-" when there is no base."""
    return f"{value / base:.2f}" if value and base else "-"


def summary(samples: Samples) -> dict[str, dict[str, Any]]:
    """Return medians and ratios of each contender."""
    rates = {name: rate(taken) for name, taken in samples.items()}
    disk = latency(samples.get("disk", []), 50)
    rows: dict[str, dict[str, Any]] = {}
    for name, taken in samples.items():
        p50, p99 = latency(taken, 50), latency(taken, 99)
        rows[name] = {
            "jobs/s": f"{rates[name]:,.0f}",
            "best": f"{max(run['jobs'] / run['seconds'] for run in taken):,.0f}",
            "µs/job": microseconds(1 / rates[name]),
            "batches/s": f"{median([run['batches'] / run['seconds'] for run in taken]):,.0f}",
            "p50 µs": microseconds(p50) if p50 else "-",
            "p99 µs": microseconds(p99) if p99 else "-",
            "/ sqlite": ratio(rates[name], rates.get("sqlite")),
            "/ tuned": ratio(rates[name], rates.get("sqlite-tuned")),
            "/ disk p50": ratio(p50, disk),
        }
    return rows


def main() -> None:
    """Measure in turn (A B C A B C …), print a table a scenario."""
    given = options(
        __doc__,
        quick=False,
        jobs=int,
        rounds=3,
        mode=("fsync", "os"),
        only=tuple(JOBS),
        contender=CONTENDERS,
        json=False,
    )
    for mode in given.mode or ("fsync", "os"):
        for scenario in given.only or JOBS:
            jobs = given.jobs or JOBS[scenario][mode == "os"] // (10 if given.quick else 1)
            names = [
                name
                for name in given.contender or CONTENDERS
                if name != "disk" or scenario == "one_by_one"
            ]
            samples: Samples = {name: [] for name in names}
            for _ in range(1 if given.quick else given.rounds):
                for name in names:
                    samples[name].append(sample(scenario, name, mode, jobs, given.dir))
            rows = summary(samples)
            if given.json:
                print(json.dumps({"scenario": scenario, "mode": mode, "jobs": jobs, "rows": rows}))
                continue
            table = Table(f"{scenario}, {mode}, {jobs:,} jobs", "", *rows[names[0]])
            for name, row in rows.items():
                table.row(name, *row.values())
            table.print()


if __name__ == "__main__":
    main()
