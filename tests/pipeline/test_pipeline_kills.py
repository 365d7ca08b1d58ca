"""Exactly once: a run that is killed with -9 anywhere makes the tables of an undisturbed one.

TASKQ_TORTURE_KILLS and TASKQ_TORTURE_SEED change how often, and at which moments.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from taskq_plugins.spark.lake import Lake
from taskq_plugins.spark.run.inprocess import RunOptions, run_here
from taskq_plugins.spark.run.report import Lines
from taskq_plugins.spark.run.tablenames import DERIVED
from tests.bench.process import family
from tests.pipeline.rowmaking import live
from tests.pipeline.scripts.pipeline_run import STEPS
from tests.pipeline.twolakes import rows_of_equal_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600), pytest.mark.xdist_group("spark")]
KILLS = int(os.environ.get("TASKQ_TORTURE_KILLS", "20"))
SEED = int(os.environ.get("TASKQ_TORTURE_SEED", "0")) or random.randrange(2**32)
SCRIPT = Path(__file__).with_name("scripts") / "pipeline_run.py"
LOGS = 3
TURNS = 300
#: In the order in which a batch commits them.
BASE = ("records", "attempts", "_open", "jobs")
BY_SPARK = ("--master", "local[2]")


class Hub:
    """Logs, a lake that runs fill that are killed, and how large a batch is."""

    def __init__(self, folder: Path, batches: int) -> None:
        self.journals, self.lake, self.plain = folder / "hub", folder / "lake", folder / "plain"
        self.said = folder / "said"
        for number in range(LOGS):
            asyncio.run(live(self.journals / f"edge-{number}", SEED + number, TURNS))
        size = sum(path.stat().st_size for path in self.journals.rglob("*.log"))
        self.max_bytes = size // batches

    @contextmanager
    def run(
        self, *options: str, step: str = "", table: str = ""
    ) -> Iterator[subprocess.Popen[str]]:
        """A run in a session of its own, killed at the end unless it has ended."""
        command = [sys.executable, str(SCRIPT), step, table, "--json", *options]
        command += ["--journals", str(self.journals), "--lake", str(self.lake)]
        command += ["--max-bytes", str(self.max_bytes)]
        with (
            self.said.open("w") as said,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True
            ) as process,
        ):
            try:
                yield process
            finally:
                kill(family(process.pid))

    def killed_at(self, step: str, table: str, *options: str) -> None:
        """Have a run stand still at that step, and kill it there."""
        with self.run(*options, step=step, table=table) as process:
            assert process.stdout is not None
            assert "here\n" in process.stdout, (step, table, self.said.read_text())

    def batch(self, process: subprocess.Popen[str]) -> float:
        """The seconds that the next batch of a run takes."""
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            if told["event"] == "batch":
                return float(told["seconds"])
        raise AssertionError(self.said.read_text() or "it ended: take more batches")

    def finish(self, *options: str) -> dict[str, int]:
        """Let a last run come to its end: how many rows are as an undisturbed one makes them."""
        with self.run(*options) as process:
            assert process.stdout is not None
            process.stdout.read()
        assert process.returncode == 0, self.said.read_text()
        options_here = RunOptions(journals=self.journals, max_bytes=2**30)
        with Lake.open(self.plain, create=True).writer() as writer:
            run_here(writer, options_here, Lines())
        return rows_of_equal_tables(self.plain, self.lake)


def kill(pids: list[int]) -> None:
    """Kill processes at one moment, as far as that is possible."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def java_of(pids: list[int]) -> list[int]:
    """Which of these processes is Java."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text(encoding="ascii") == "java\n":
                found.append(pid)
    return found


def test_a_run_killed_at_random_moments_makes_the_tables_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    print("seed", SEED)  # noqa: T201 - pytest shows it with a failure
    draw = random.Random(SEED)
    hub = Hub(tmp_path, 8 * KILLS)
    began = time.monotonic()
    with hub.run(*BY_SPARK) as process:
        hub.batch(process)
        start_seconds = time.monotonic() - began
    for number in range(KILLS):
        with hub.run(*BY_SPARK) as process:
            if number % 4:
                hub.batch(process)  # takes many times as long as those behind it
                seconds = draw.uniform(0, 2 * hub.batch(process))
            else:  # while Spark starts, or in the first steps
                seconds = draw.uniform(0.2, start_seconds)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            assert process.poll() is None, "it ended before it was killed: take more batches"
            everybody = family(process.pid)
            only_java = java_of(everybody) if number % 4 == 1 else []
            chosen = only_java or ([process.pid] if number % 4 == 2 else everybody)
            kill(chosen)
            process.communicate()
            said = hub.said.read_text()
            assert process.returncode == (1 if only_java else -signal.SIGKILL), said
            assert said.startswith("taskq: Spark's Java ended before") or not only_java, said
        last = Lake(hub.lake).batch()
        print("killed", len(chosen), "behind batch", last and last.number)  # noqa: T201
    rows = hub.finish(*BY_SPARK)
    assert rows["attempts"] > LOGS * TURNS


@pytest.mark.parametrize("options", [(), BY_SPARK], ids=["here", "spark"])
def test_a_run_killed_at_each_step_of_each_commit_makes_the_tables_of_an_undisturbed_one(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Each run is killed a step further than the one before: as tables are made, and once more."""
    print("seed", SEED)  # noqa: T201 - pytest shows it with a failure
    hub = Hub(tmp_path, 4)
    for steps in (STEPS, STEPS.keys() - {"created"}):
        for table in BASE:
            hub.killed_at("staged", table, *options)
        for table in BASE:
            for step in STEPS:
                if step in steps and step != "staged":
                    hub.killed_at(step, table, *options)
    # What is left of the batches goes as before; Java has no part in the derived tables.
    for table in DERIVED:
        for step in ("staged", "created", "committing", "committed"):
            hub.killed_at(step, table, *options)
            options = ()
    hub.finish()
