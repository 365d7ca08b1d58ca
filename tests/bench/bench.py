"""taskq beside a hand-written SQLite queue and the bare disk, in turn, in one run.

Run: ``python -m tests.bench.bench [--quick]``. Every sample is a fresh process (``one.py``) that
checks by the store's own counts that each job succeeded. See README.md for the columns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.bench.tables import Table, median, microseconds, percentile

ROOT: Final = Path(__file__).parents[2]
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
    with tempfile.TemporaryDirectory(dir=parent, prefix=".bench-") as directory:
        arguments = ("tests.bench.one", scenario, contender, mode, str(jobs), directory)
        done = subprocess.run(
            (sys.executable, "-m", *arguments),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=True,
            timeout=SAMPLE_SECONDS_MAX,
        )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def rate(samples: list[dict[str, Any]]) -> float:
    """Median jobs per second."""
    return median([one["jobs"] / one["seconds"] for one in samples])


def latency(samples: list[dict[str, Any]], percent: float) -> float | None:
    """Median over the samples of that percentile in seconds; None when none was taken."""
    if not samples or not samples[0]["latencies"]:
        return None
    return median([percentile(one["latencies"], percent) for one in samples])


def ratio(value: float | None, base: float | None) -> str:
    """``value / base`` as text, "-" when there is no base."""
    return f"{value / base:.2f}" if value and base else "-"


def summary(samples: Samples) -> dict[str, dict[str, Any]]:
    """Medians and ratios of each contender."""
    rates = {name: rate(taken) for name, taken in samples.items()}
    disk = latency(samples.get("disk", []), 50)
    rows: dict[str, dict[str, Any]] = {}
    for name, taken in samples.items():
        p50, p99 = latency(taken, 50), latency(taken, 99)
        rows[name] = {
            "jobs/s": f"{rates[name]:,.0f}",
            "best": f"{max(one['jobs'] / one['seconds'] for one in taken):,.0f}",
            "µs/job": microseconds(1 / rates[name]),
            "batches/s": f"{median([one['batches'] / one['seconds'] for one in taken]):,.0f}",
            "p50 µs": microseconds(p50) if p50 else "-",
            "p99 µs": microseconds(p99) if p99 else "-",
            "/ sqlite": ratio(rates[name], rates.get("sqlite")),
            "/ tuned": ratio(rates[name], rates.get("sqlite-tuned")),
            "/ disk p50": ratio(p50, disk),
        }
    return rows


def options() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs, one round")
    parser.add_argument("--jobs", type=int, help="jobs of every sample")
    parser.add_argument("--rounds", type=int, default=3, help="samples of each contender")
    parser.add_argument("--mode", choices=("fsync", "os"), help="only this durability")
    parser.add_argument("--only", action="append", choices=tuple(JOBS), help="only this scenario")
    parser.add_argument(
        "--contender", action="append", choices=CONTENDERS, help="only this contender"
    )
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="a directory of the disk")
    parser.add_argument("--json", action="store_true", help="one JSON object a scenario")
    return parser.parse_args()


def main() -> None:
    """Measure in turn (A B C A B C …), print a table a scenario."""
    given = options()
    for mode in (given.mode,) if given.mode else ("fsync", "os"):
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
            table = Table(f"{scenario}, {mode}, {jobs:,} jobs", ("", *rows[names[0]]))
            for name, row in rows.items():
                table.row(name, *row.values())
            table.print()


if __name__ == "__main__":
    main()
