"""taskq beside other job frameworks that need no server: huey and flexiq, on SQLite.

Run: ``python -m tests.bench.peers``. Each peer is installed on demand into a virtual environment of
its own (``--venvs``). Every sample is a fresh process in a fresh directory (``contenders.py``),
taken in turn, that checks its end state by the store's own counts. See README.md for the rows.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import taskq
from tests.bench import harness
from tests.bench.harness import ROOT, Table, median, percentile, scratch

Sample = dict[str, Any]
#: By framework and mode: jobs of a cycle or a drain, and lone enqueues, for a few seconds.
CONTENDERS: Final = {
    "taskq fsync": (50_000, 3_000), "taskq os": (50_000, 10_000),
    "huey": (5_000, 5_000), "flexiq": (400, 10_000),
}  # fmt: skip
#: Contenders of equal durability, also shown as ratios.
PAIRS: Final = (("taskq fsync", "huey"), ("taskq os", "flexiq"))
LATENCIES: Final = 30
SAMPLE_SECONDS_MAX: Final = 300
_MAIN: Final = "from tests.bench.contenders import main; main()"
#: A row of a scenario: its name, its value for a sample of some jobs, and its format.
Metric = tuple[str, Callable[[Sample, int], float | None], str]


def at(percent: float, unit: float) -> Callable[[Sample, int], float]:
    return lambda sample, _: percentile(sample["latencies"], percent) * unit


def rate(sample: Sample, jobs: int) -> float:
    return jobs / float(sample["seconds"])


SCENARIOS: Final[dict[str, tuple[Metric, ...]]] = {
    "cycle": (("full cycle, jobs/s", rate, ",.0f"),),
    "drain": (("drain, jobs/s", rate, ",.0f"),),
    "lone": (
        ("lone enqueue, jobs/s", rate, ",.0f"),
        ("- p50, µs", at(50, 1e6), ",.0f"),
        ("- p99, µs", at(99, 1e6), ",.0f"),
        ("- awaited, jobs/s", lambda sample, _: sample.get("awaited"), ",.0f"),
    ),
    "latency": (
        ("enqueue to first line, p50, ms", at(50, 1e3), ",.1f"),
        ("- p99, ms", at(99, 1e3), ",.1f"),
    ),
    "start": (("worker start to first job, ms", lambda taken, _: taken["seconds"] * 1e3, ",.0f"),),
    "takeover": (("takeover after kill -9, s", lambda taken, _: taken["seconds"], ",.2f"),),
}


class FailedError(Exception):
    """A contender's sample did not end, or ended wrong."""


def jobs_of(scenario: str, name: str, most: int | None) -> int:
    many, lone = CONTENDERS[name]
    sizes = {"cycle": many, "drain": many, "lone": lone, "latency": LATENCIES}
    size = sizes.get(scenario, 1)
    return min(size, most or size)


def take(place: Path, python: str, name: str, scenario: str, jobs: int) -> Sample:
    """Take one sample in a process, and end its children. Raises FailedError."""
    app, _, mode = name.partition(" ")
    with scratch(place) as directory, (directory / "errors").open("w+", errors="replace") as errors:
        environment = {
            "PYTHONPYCACHEPREFIX": str(place / "pyc"),  # kept, as for an installed package
            "PEERS_APP": app, "PEERS_MODE": mode,
            "PEERS_DIRECTORY": str(directory), "PEERS_JOBS": str(jobs),
        }  # fmt: skip
        process = subprocess.Popen(
            (python, "-c", _MAIN, scenario, str(jobs)), cwd=ROOT, stdout=subprocess.PIPE,
            stderr=errors, text=True, start_new_session=True, env=os.environ | environment,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=SAMPLE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise FailedError(f"it did not end within {SAMPLE_SECONDS_MAX} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            errors.seek(0)
            *_, last = ["it said nothing", *errors.read().splitlines()]
            raise FailedError(f"it ended with {process.returncode}: {last}")
    sample: Sample = json.loads(output.splitlines()[-1])
    return sample


#: By contender its value in each round, or what went wrong.
Row = dict[str, list[float] | str]


def rows(place: Path, pythons: dict[str, str], scenario: str, given: Any) -> dict[str, Row]:
    """Take a scenario's samples in turn; return the rows of its metrics."""
    samples: dict[str, list[Sample]] = {name: [] for name in pythons}
    jobs = {name: jobs_of(scenario, name, given.jobs) for name in pythons}
    failed: dict[str, str] = {}
    for name in [*samples] * given.rounds:
        if name not in failed:
            try:
                samples[name].append(take(place, pythons[name], name, scenario, jobs[name]))
            except FailedError as error:  # it is not waited for again
                failed[name] = str(error)
    result: dict[str, Row] = {}
    for title, value_of, _ in SCENARIOS[scenario]:
        row = result[title] = {}
        for name, taken in samples.items():
            values = [value_of(sample, jobs[name]) for sample in taken]
            row[name] = failed.get(name) or [value for value in values if value is not None] or "-"
    return result


def beside(row: Row, name: str, base: str) -> str:
    """Return the median over the rounds of how many times as much it is as the other's."""
    mine, theirs = row[name], row[base]
    if isinstance(mine, str) or isinstance(theirs, str):
        return "-"
    return f"{median([value / other for value, other in zip(mine, theirs, strict=True)]):.2f}"


def summary(columns: tuple[str, ...], everything: dict[str, Row]) -> None:
    """Print the medians of all, and below them what went wrong."""
    pairs = [pair for pair in PAIRS if {*pair} <= {*columns}]
    table = Table("", "", *columns, *(" / ".join(pair) for pair in pairs))
    notes: list[str] = []
    shapes = {title: shape for metrics in SCENARIOS.values() for title, _, shape in metrics}
    for title, row in everything.items():
        cells = []
        for values in row.values():
            if not isinstance(values, str):
                cells.append(f"{median(values):{shapes[title]}}")
            elif values == "-":
                cells.append(values)
            else:
                notes.append(values)
                cells.append(f"({len(notes)})")
        table.row(title, *cells, *(beside(row, *pair) for pair in pairs))
    table.print()
    for number, note in enumerate(notes, start=1):
        print(f"({number}) {note}")


def prepare(place: Path, given: Any) -> dict[str, str]:
    """Install what is missing; return interpreters, without peers that cannot run a job.

    The first start of each compiles its modules, too, and is not counted.
    """
    pythons = {}
    for name in given.contender or CONTENDERS:
        python, version = sys.executable, taskq.__version__
        try:
            if not name.startswith("taskq"):
                python, version = harness.installed(python, name, directory=given.venvs)
            take(place, python, name, "start", 1)
            pythons[name] = python
        except (FailedError, subprocess.SubprocessError) as error:
            version = f"left out: {getattr(error, 'stderr', None) or error}"
        print(name, version)
    return pythons


def main() -> None:
    given = harness.options(
        __doc__, jobs=int, rounds=5, venvs=harness.kept_for(sys.executable),
        only=tuple(SCENARIOS), contender=tuple(CONTENDERS),
    )  # fmt: skip
    everything: dict[str, Row] = {}
    with scratch(given.dir) as place:
        pythons = prepare(place, given)
        for scenario in given.only or SCENARIOS:
            everything |= rows(place, pythons, scenario, given)
    summary(tuple(pythons), everything)


if __name__ == "__main__":
    main()
