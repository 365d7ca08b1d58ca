"""taskq beside a hand-written SQLite queue and the bare disk, in turn, in one run.

Run: ``python -m tests.bench.bench [--quick]``. Each contender has a process of its own for each
scenario (``one.py``), which is warm before the clock runs and checks by the store's own counts that
each job succeeded. See README.md for the columns.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any, Final

from tests.bench.harness import (
    Others,
    Table,
    median,
    microseconds,
    options,
    percentile,
    say,
    scratch,
    start,
)  # fmt: skip

if TYPE_CHECKING:
    import subprocess
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


def take(process: subprocess.Popen[str], jobs: int) -> dict[str, Any]:
    """Let a warm process take one sample."""
    assert process.stdout is not None
    late = threading.Timer(SAMPLE_SECONDS_MAX, process.kill)
    late.start()
    say(process, str(jobs))
    line = process.stdout.readline()
    late.cancel()
    assert line, f"{process.args!r} ended with {process.wait()}"
    sample: dict[str, Any] = json.loads(line)
    return sample


def samples_of(
    scenario: str, names: list[str], mode: str, jobs: int, rounds: int, place: Path
) -> Samples:
    """Take so many samples of each, in turn (A B C A B C …), after one to warm up."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(scratch(place))
        contenders = {}
        for name in names:
            process = start("tests.bench.one", scenario, name, mode, directory)
            stack.callback(process.communicate)
            contenders[name] = process
            take(process, max(jobs // 10, 1))
        samples: Samples = {name: [] for name in names}
        for _ in range(rounds):
            for name, process in contenders.items():
                samples[name].append(take(process, jobs))
    return samples


def rate(run: dict[str, Any]) -> float:
    """Return jobs per second."""
    jobs: float = run["jobs"] / run["seconds"]
    return jobs


def latency(samples: list[dict[str, Any]], percent: float) -> float | None:
    """Return the median over the samples of that percentile; None when none was taken."""
    if not samples or not samples[0]["latencies"]:
        return None
    return median([percentile(run["latencies"], percent) for run in samples])


def beside(taken: list[dict[str, Any]], base: list[dict[str, Any]] | None) -> str:
    """Return the median over the rounds of how many times as fast it is, "-" without a base."""
    if not base:
        return "-"
    return f"{median([rate(a) / rate(b) for a, b in zip(taken, base, strict=True)]):.2f}"


def summary(samples: Samples) -> dict[str, dict[str, Any]]:
    """Return medians, spread and ratios of each contender."""
    disk = latency(samples.get("disk", []), 50)
    rows: dict[str, dict[str, Any]] = {}
    for name, taken in samples.items():
        p50, p99, rates = latency(taken, 50), latency(taken, 99), list(map(rate, taken))
        rows[name] = {
            "jobs/s": f"{median(rates):,.0f}",
            "min": f"{min(rates):,.0f}",
            "max": f"{max(rates):,.0f}",
            "CPU µs/job": microseconds(median([run["cpu_seconds"] / run["jobs"] for run in taken])),
            "batches/s": f"{median([run['batches'] / run['seconds'] for run in taken]):,.0f}",
            "p50 µs": microseconds(p50) if p50 else "-",
            "p99 µs": microseconds(p99) if p99 else "-",
            "/ sqlite": beside(taken, samples.get("sqlite")),
            "/ tuned": beside(taken, samples.get("sqlite-tuned")),
            "/ disk p50": f"{p50 / disk:.2f}" if p50 and disk else "-",
        }
    return rows


def main() -> None:
    """Print a table a scenario, and at the end one of all ratios."""
    given = options(
        __doc__,
        quick=False,
        jobs=int,
        scale=1.0,
        rounds=5,
        mode=("fsync", "os"),
        only=tuple(JOBS),
        contender=CONTENDERS,
        json=False,
    )
    rounds, scale = (1, 0.1) if given.quick else (given.rounds, given.scale)
    modes = given.mode or ("fsync", "os")
    heads = (f"{mode}, {base}" for mode in modes for base in ("/ sqlite", "/ tuned"))
    whole = Table("taskq beside SQLite", "", *heads)
    for scenario in given.only or JOBS:
        cells = []
        for mode in modes:
            jobs = given.jobs or int(JOBS[scenario][mode == "os"] * scale)
            chosen = given.contender or CONTENDERS
            names = [name for name in chosen if name != "disk" or scenario == "one_by_one"]
            others = Others()
            rows = summary(samples_of(scenario, names, mode, jobs, rounds, given.dir))
            if given.json:
                head = {"scenario": scenario, "mode": mode, "jobs": jobs, "others": str(others)}
                print(json.dumps(head | {"rows": rows}), flush=True)
                continue
            table = Table(f"{scenario}, {mode}, {jobs:,} jobs; {others}", "", *rows[names[0]])
            for name, row in rows.items():
                table.row(name, *row.values())
            table.print()
            cells += [rows.get("taskq", {}).get(key, "-") for key in ("/ sqlite", "/ tuned")]
        if not given.json:
            whole.row(scenario, *cells)
    if not given.json:
        whole.print()


if __name__ == "__main__":
    main()
