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
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import taskq
from tests.bench.harness import (
    MIB,
    ROOT,
    Table,
    installed,
    kept_for,
    machine,
    median,
    options,
    percentile,
    scratch,
)  # fmt: skip

Sample = dict[str, Any]


class Metric(NamedTuple):
    """A row: its name, its value for a sample, and its format."""

    name: str
    of: Callable[[Sample, int], float | None]
    shape: str


class Contender(NamedTuple):
    """One framework in one mode."""

    app: str
    #: packages to install; empty for ours
    package: str
    #: the line that programs which use it begin with
    line: str
    #: no-ops of a cycle or a drain, of lone enqueues, and jobs whose latency is taken: such that a
    #: sample takes a few seconds
    many: int
    lone: int
    some: int
    mode: str = ""


CONTENDERS: Final = {
    "taskq fsync": Contender(
        "taskq_app", "", "from taskq import TaskQ", 50_000, 3_000, 30, "fsync"
    ),
    "taskq os": Contender("taskq_app", "", "from taskq import TaskQ", 50_000, 10_000, 30, "os"),
    "huey": Contender("huey_app", "huey", "from huey import SqliteHuey", 5_000, 5_000, 30),
    "flexiq": Contender("flexiq_app", "flexiq", "from flexiq import Queue", 400, 10_000, 30),
}
#: Contenders of equal durability, also shown as ratios.
PAIRS: Final = (("taskq fsync", "huey"), ("taskq os", "flexiq"))
WAITING: Final = 200_000
#: Enqueues whose syncs are counted, without opening, warm-up and closing.
SYNCED: Final = 100
SAMPLE_SECONDS_MAX: Final = 300
#: Fewer rounds for slow rows that hardly vary.
ROUNDS_MAX: Final = {"syncs": 1, "memory": 3, "takeover": 3}
SCENARIOS: Final[dict[str, tuple[Metric, ...]]] = {
    "cycle": (Metric("full cycle, jobs/s", lambda s, jobs: jobs / s["seconds"], ",.0f"),),
    "drain": (Metric("drain, jobs/s", lambda s, jobs: jobs / s["seconds"], ",.0f"),),
    "lone": (
        Metric("lone enqueue, jobs/s", lambda s, jobs: jobs / s["seconds"], ",.0f"),
        Metric("- p50, µs", lambda s, _: percentile(s["latencies"], 50) * 1e6, ",.0f"),
        Metric("- p99, µs", lambda s, _: percentile(s["latencies"], 99) * 1e6, ",.0f"),
        Metric("- awaited, jobs/s", lambda s, _: s.get("awaited"), ",.0f"),
    ),
    "syncs": (Metric("- syncs each", lambda s, _: s["syncs"], ".2f"),),
    "latency": (
        Metric("enqueue to first line, p50, ms", lambda s, _: _ms(s, 50), ",.1f"),
        Metric("- p99, ms", lambda s, _: _ms(s, 99), ",.1f"),
    ),
    "start": (Metric("worker start to first job, ms", lambda s, _: s["seconds"] * 1e3, ",.0f"),),
    "import": (Metric("import, CPU ms", lambda s, _: s["seconds"] * 1e3, ",.0f"),),
    "memory": (
        Metric(f"RSS, {WAITING:,} jobs waiting, MiB", lambda s, _: s["bytes"] / MIB, ",.0f"),
    ),
    "takeover": (Metric("takeover after kill -9, s", lambda s, _: s["seconds"], ",.2f"),),
}


def _ms(sample: Sample, percent: float) -> float:
    return percentile(sample["latencies"], percent) * 1e3


class FailedError(Exception):
    """A contender's sample did not end, or ended wrong."""


class Bench(NamedTuple):
    """The directories of samples, and their interpreters."""

    place: Path
    pythons: dict[str, str]
    given: Any

    def jobs(self, scenario: str, name: str) -> int:
        """Return how many jobs a sample has."""
        first = CONTENDERS[name]
        own = {"cycle": first.many, "drain": first.many, "lone": first.lone, "latency": first.some}
        most = WAITING if scenario == "memory" else own.get(scenario, 1)
        return min(most, self.given.jobs or most)

    def take(self, scenario: str, name: str) -> Sample:
        """Take one sample. Raises FailedError."""
        first = CONTENDERS[name]
        if scenario == "import":
            return {"seconds": self._cpu(name, first.line) - self._cpu(name, "")}
        if scenario == "syncs":
            return {"syncs": (self._syncs(name, SYNCED + 10) - self._syncs(name, 10)) / SYNCED}
        output = self._run(name, scenario, self.jobs(scenario, name))
        sample: Sample = json.loads(output.splitlines()[-1])
        return sample

    def _cpu(self, name: str, line: str) -> float:
        """Run a program of one line to its end, and return its processor time."""
        process = subprocess.Popen(
            (self.pythons[name], "-c", line), cwd=self.place, env=self._environment()
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise FailedError(f"{line}: it ended with {process.returncode}")
        return float(usage.ru_utime + usage.ru_stime)

    def _environment(self) -> dict[str, str]:
        """Return an interpreter that keeps byte code, like an installed package."""
        return {**os.environ, "PYTHONPYCACHEPREFIX": str(self.place / "pyc")}

    def _syncs(self, name: str, jobs: int) -> int:
        """Count the waits for the disk, in all threads of an enqueueing process."""
        if not (strace := shutil.which("strace")):
            raise FailedError("not counted: there is no strace")
        answer = self.place / "syncs"
        calls = "fsync,fdatasync,sync_file_range,msync,sync,syncfs"
        self._run(
            name, "calls", jobs, strace, "-f", "-qq", "-e", f"trace={calls}", "-o", str(answer)
        )
        return sum("sync" in line and "resumed" not in line for line in answer.open())

    def _run(self, name: str, scenario: str, jobs: int, *before: str) -> str:
        """Run a sample's process to its end, and end its children."""
        first = CONTENDERS[name]
        with scratch(self.place) as directory:
            errors = directory / "errors"
            with errors.open("wb") as stderr:
                process = subprocess.Popen(
                    (
                        *(*before, self.pythons[name], "-m", "tests.bench.contenders.sample"),
                        *(first.app, scenario, str(jobs)),
                    ),
                    cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True,
                    start_new_session=True,
                    env=self._environment() | {
                        "PEERS_DIRECTORY": str(directory), "PEERS_JOBS": str(jobs),
                        "PEERS_MODE": first.mode,
                        "PEERS_TAKEOVER_SECONDS": str(self.given.takeover),
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


def measure(bench: Bench, scenario: str) -> tuple[dict[str, list[Sample]], dict[str, str]]:
    """Take a scenario's samples in turn; return them by contender, and failures with reasons."""
    samples: dict[str, list[Sample]] = {name: [] for name in bench.pythons}
    failed: dict[str, str] = {}
    rounds: int = bench.given.rounds
    for _ in range(min(rounds, ROUNDS_MAX.get(scenario, rounds))):
        for name, taken in samples.items():
            if name in failed:
                continue
            try:
                row = bench.take(scenario, name)
            except (FailedError, AssertionError) as error:
                failed[name] = str(error)
                continue
            if "never" in row:
                # It is not waited for again.
                failed[name] = row["never"]
                continue
            taken.append(row)
    return samples, failed


Row = dict[str, dict[str, Any] | str]


def rows(bench: Bench, scenario: str) -> dict[str, Row]:
    """Measure a scenario: metric -> contender -> median and all values, or what went wrong."""
    samples, failed = measure(bench, scenario)
    result: dict[str, Row] = {}
    for metric in SCENARIOS[scenario]:
        row: Row = {}
        for name, taken in samples.items():
            jobs = bench.jobs(scenario, name)
            values = [value for sample in taken if (value := metric.of(sample, jobs)) is not None]
            has_all = name not in failed and len(values) == len(taken)
            row[name] = (
                {"median": median(values), "values": values, "jobs": jobs}
                if has_all
                else failed.get(name, "-")
            )
        result[metric.name] = row
    return result


def beside(row: Row, name: str, base: str) -> str:
    """Return the median over the rounds of how many times as much it is as the other's."""
    mine, theirs = row.get(name), row.get(base)
    if not (isinstance(mine, dict) and isinstance(theirs, dict)):
        return "-"
    pairs = zip(mine["values"], theirs["values"], strict=True)
    return f"{median([value / other for value, other in pairs]):.2f}"


def summary(columns: Sequence[str], everything: dict[str, Row]) -> None:
    """Print the medians of all, and below them what went wrong."""
    pairs = [pair for pair in PAIRS if {*pair} <= {*columns}]
    table = Table("", "", *columns, *(" / ".join(pair) for pair in pairs))
    notes: list[str] = []
    shapes = {metric.name: metric.shape for metrics in SCENARIOS.values() for metric in metrics}
    for name, row in everything.items():
        cells = []
        for text in row.values():
            if isinstance(text, str) and len(text) > len("never: lost"):
                notes.append(text)
                text = f"({len(notes)})"  # noqa: PLW2901 - the note stands below
            cells.append(text if isinstance(text, str) else f"{text['median']:{shapes[name]}}")
        table.row(name, *cells, *(beside(row, *pair) for pair in pairs))
    table.print()
    for number, note in enumerate(notes, start=1):
        print(f"({number}) {note}")


def prepare(given: Any, place: Path) -> tuple[Bench, dict[str, str]]:
    """Install what is missing, and skip, with its message, a peer that cannot run one job.

    The first start of each compiles its modules, too, and is not counted.
    """
    bench, versions = Bench(place, {}, given), {}
    for name in given.contender or CONTENDERS:
        package = CONTENDERS[name].package
        try:
            python, version = (
                installed(sys.executable, package, directory=given.venvs)
                if package
                else (sys.executable, taskq.__version__)
            )
            bench.pythons[name] = python
            bench.take("start", name)
            versions[name] = version
        except (FailedError, subprocess.SubprocessError) as error:
            bench.pythons.pop(name, None)
            versions[name] = f"left out: {getattr(error, 'stderr', None) or error}"
    return bench, versions


def main() -> None:
    """Measure in turn (A B C A B C …), and print the medians."""
    given = options(
        __doc__, jobs=int, rounds=5, takeover=90.0, venvs=kept_for(sys.executable), json=False,
        only=tuple(SCENARIOS), contender=tuple(CONTENDERS),
    )  # fmt: skip
    everything: dict[str, Row] = {}
    with scratch(given.dir) as directory:
        bench, versions = prepare(given, directory)
        if given.json:
            print(json.dumps({"machine": machine(given.dir), "versions": versions}))
        else:
            print(", ".join(f"{name} {version}" for name, version in versions.items()))
        for scenario in given.only or SCENARIOS:
            result = rows(bench, scenario)
            everything |= result
            if given.json:
                print(json.dumps({"scenario": scenario, "rows": result}), flush=True)
    if not given.json:
        summary(tuple(bench.pythons), everything)


if __name__ == "__main__":
    main()
