"""taskq beside other job frameworks that need no server: huey and flexiq, on SQLite.

Run: ``python -m tests.bench.peers``. Each peer is installed on demand into a virtual environment of
its own (``--venvs``), and used as its documentation says for one machine: see the modules of
``contenders/``. Every sample is a fresh process in a fresh directory (``sample.py`` there), taken
in turn, that checks its end state by the store's own counts. See README.md for the rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import taskq
from tests.bench import harness
from tests.bench.harness import ROOT, Table, median, percentile, scratch

Sample = dict[str, Any]


class Contender(NamedTuple):
    """How many jobs a sample of a few seconds has."""

    #: of a cycle or a drain
    many: int
    #: of lone enqueues
    lone: int
    #: the package to install; empty for ours
    package: str = ""


#: By framework and mode.
CONTENDERS = {
    "taskq fsync": Contender(50_000, 3_000),
    "taskq os": Contender(50_000, 10_000),
    "huey": Contender(5_000, 5_000, "huey"),
    "flexiq": Contender(400, 10_000, "flexiq"),
}
#: Contenders of equal durability, also shown as ratios.
PAIRS = (("taskq fsync", "huey"), ("taskq os", "flexiq"))
LATENCIES = 30
SAMPLE_SECONDS_MAX = 300
#: Fewer rounds for slow rows that hardly vary.
ROUNDS_MAX = {"takeover": 3}


class Metric(NamedTuple):
    """A row: its value for a sample of some jobs, and its format."""

    name: str
    of: Callable[[Sample, int], float | None]
    shape: str


def at(percent: float, unit: float) -> Callable[[Sample, int], float]:
    return lambda sample, _: percentile(sample["latencies"], percent) * unit


def rate(sample: Sample, jobs: int) -> float:
    return jobs / float(sample["seconds"])


SCENARIOS: dict[str, tuple[Metric, ...]] = {
    "cycle": (Metric("full cycle, jobs/s", rate, ",.0f"),),
    "drain": (Metric("drain, jobs/s", rate, ",.0f"),),
    "lone": (
        Metric("lone enqueue, jobs/s", rate, ",.0f"),
        Metric("- p50, µs", at(50, 1e6), ",.0f"),
        Metric("- p99, µs", at(99, 1e6), ",.0f"),
        Metric("- awaited, jobs/s", lambda sample, _: sample.get("awaited"), ",.0f"),
    ),
    "latency": (
        Metric("enqueue to first line, p50, ms", at(50, 1e3), ",.1f"),
        Metric("- p99, ms", at(99, 1e3), ",.1f"),
    ),
    "start": (
        Metric("worker start to first job, ms", lambda sample, _: sample["seconds"] * 1e3, ",.0f"),
    ),
    "takeover": (Metric("takeover after kill -9, s", lambda sample, _: sample["seconds"], ",.2f"),),
}


class FailedError(Exception):
    """A contender's sample did not end, or ended wrong."""


class Bench(NamedTuple):
    """The directory of samples, the interpreters of the contenders, and the options."""

    place: Path
    pythons: dict[str, str]
    given: Any

    def jobs(self, scenario: str, name: str) -> int:
        many, lone, _ = CONTENDERS[name]
        sizes = {"cycle": many, "drain": many, "lone": lone, "latency": LATENCIES}
        most = sizes.get(scenario, 1)
        return min(most, self.given.jobs or most)

    def take(self, scenario: str, name: str) -> Sample:
        """Take one sample. Raises FailedError."""
        output = self._run(name, scenario, self.jobs(scenario, name))
        sample: Sample = json.loads(output.splitlines()[-1])
        return sample

    def _run(self, name: str, scenario: str, jobs: int) -> str:
        """Run a sample's process to its end, and end its children."""
        app, _, mode = name.partition(" ")
        words = ("-m", "tests.bench.contenders.sample", f"{app}_app", scenario, str(jobs))
        with scratch(self.place) as directory:
            errors = directory / "errors"
            with errors.open("wb") as stderr:
                process = subprocess.Popen(
                    (self.pythons[name], *words),
                    cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True,
                    start_new_session=True,
                    env=os.environ | {
                        # Byte code is kept, as for an installed package.
                        "PYTHONPYCACHEPREFIX": str(self.place / "pyc"),
                        "PEERS_DIRECTORY": str(directory), "PEERS_JOBS": str(jobs),
                        "PEERS_MODE": mode, "PEERS_TAKEOVER_SECONDS": str(self.given.takeover),
                    },
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
                *_, last = ["it said nothing", *errors.read_text(errors="replace").splitlines()]
                raise FailedError(f"it ended with {process.returncode}: {last}")
        return output


#: By contender its value in each round, or what went wrong.
Row = dict[str, list[float] | str]


def rows(bench: Bench, scenario: str) -> dict[str, Row]:
    """Take a scenario's samples in turn; return the rows of its metrics."""
    samples: dict[str, list[Sample]] = {name: [] for name in bench.pythons}
    failed: dict[str, str] = {}
    rounds = min(bench.given.rounds, ROUNDS_MAX.get(scenario, bench.given.rounds))
    for name in [*samples] * rounds:
        if name not in failed:
            try:
                sample = bench.take(scenario, name)
            except (FailedError, AssertionError) as error:
                sample = {"never": str(error)}
            samples[name].append(sample)
            if "never" in sample:  # it is not waited for again
                failed[name] = sample["never"]
    result: dict[str, Row] = {}
    for metric in SCENARIOS[scenario]:
        row = result[metric.name] = {}
        for name, taken in samples.items():
            jobs = bench.jobs(scenario, name)
            values = [] if name in failed else [metric.of(sample, jobs) for sample in taken]
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
    shapes = {metric.name: metric.shape for metrics in SCENARIOS.values() for metric in metrics}
    for name, row in everything.items():
        cells = []
        for values in row.values():
            if not isinstance(values, str):
                cells.append(f"{median(values):{shapes[name]}}")
            elif len(values) > len("never: lost"):
                notes.append(values)
                cells.append(f"({len(notes)})")
            else:
                cells.append(values)
        table.row(name, *cells, *(beside(row, *pair) for pair in pairs))
    table.print()
    for number, note in enumerate(notes, start=1):
        print(f"({number}) {note}")


def prepare(bench: Bench) -> dict[str, str]:
    """Install what is missing; return versions, or why a peer that cannot run a job is left out.

    The first start of each compiles its modules, too, and is not counted.
    """
    versions = {}
    for name in bench.given.contender or CONTENDERS:
        python, version = sys.executable, taskq.__version__
        try:
            if package := CONTENDERS[name].package:
                python, version = harness.installed(python, package, directory=bench.given.venvs)
            bench.pythons[name] = python
            bench.take("start", name)
            versions[name] = version
        except (FailedError, subprocess.SubprocessError) as error:
            bench.pythons.pop(name, None)
            versions[name] = f"left out: {getattr(error, 'stderr', None) or error}"
    return versions


def main() -> None:
    """Measure in turn (A B C A B C …), and print the medians."""
    given = harness.options(
        __doc__, jobs=int, rounds=5, takeover=90.0, venvs=harness.kept_for(sys.executable),
        only=tuple(SCENARIOS), contender=tuple(CONTENDERS),
    )  # fmt: skip
    everything: dict[str, Row] = {}
    with scratch(given.dir) as directory:
        bench = Bench(directory, {}, given)
        print(", ".join(f"{name} {version}" for name, version in prepare(bench).items()))
        for scenario in given.only or SCENARIOS:
            everything |= rows(bench, scenario)
    summary(tuple(bench.pythons), everything)


if __name__ == "__main__":
    main()
