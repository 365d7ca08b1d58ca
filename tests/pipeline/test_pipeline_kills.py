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

from taskq_plugins.spark.lake.erase import erase_jobs
from taskq_plugins.spark.lake.store import DERIVED, Lake
from taskq_plugins.spark.run.batch import commit_batch
from taskq_plugins.spark.run.command import RunReport
from taskq_plugins.spark.run.executor import LocalExecutor
from taskq_plugins.spark.run.increment import BatchStream, RunOptions
from taskq_plugins.spark.run.increment import run as run_increment
from taskq_plugins.spark.run.progress import reached
from tests.bench.harness import family
from tests.pipeline.rowmaking import do_steps, live
from tests.pipeline.twolakes import rows_of_equal_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from taskq_plugins.spark.source.positions import Offsets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600), pytest.mark.xdist_group("spark")]
KILLS = int(os.environ.get("TASKQ_TORTURE_KILLS", "20"))
SEED = int(os.environ.get("TASKQ_TORTURE_SEED", "0")) or random.randrange(2**32)
SCRIPT = Path(__file__).with_name("scripts") / "pipeline_run.py"
LOGS = 3
TURNS = 300
EVERYTHING = 2**30
#: In the order in which a batch commits them.
BASE = ("records", "attempts", "_open", "jobs")
BY_SPARK = ("--master", "local[2]")
#: The calls that commit a table.
COMMIT = ("created", "committing", "committed", "durable")
#: At a batch that makes tables: all stages, then the commit of each.
FIRST = (
    *(("staged", table) for table in BASE),
    *((step, table) for table in BASE for step in COMMIT),
)
#: ... and at a later one.
LATER = tuple(item for item in FIRST if item[0] != "created")
#: Jobs that are erased between two batches, which is killed at each step of it.
CHOSEN = "job % 5 = 0"
ERASING = (
    *((step, "erased") for step in ("staged", "created", "committing", "committed")),
    *(
        (step, table)
        for table in ("records", "_open", "attempts", "jobs")
        for step in ("staged", "committing", "committed", "durable")
    ),
)
#: The lake's upkeep after all tables.
IN_ORDER = (
    *((step, table) for table in ("records", "jobs") for step in ("committing", "committed")),
    ("noting", "last_batch.json"),
    ("noted", "last_batch.json"),
)
#: A later step through Spark, which starts slowly: a step of each table. The commits are made by
#: the same code, and by a driver that Java waits for.
LATER_BY_SPARK = tuple(zip(("staged", "committing", "committed", "durable"), BASE, strict=True))


#: Spark's message of a Python worker that took ten seconds to start, as on a busy machine. The next
#: run goes on from there.
TOO_BUSY = "Python worker failed to connect back"
TRIES = 5


class TooBusy(Exception):
    """A run ended since the machine was too busy."""


class Hub:
    """Logs, a lake that runs fill that are killed, and how large a batch is."""

    def __init__(self, folder: Path, batches: int) -> None:
        self.journals, self.lake, self.plain = folder / "hub", folder / "lake", folder / "plain"
        self.said = folder / "said"
        for number in range(LOGS):
            asyncio.run(live(self.journals / f"edge-{number}", SEED + number, TURNS))
        asyncio.run(do_steps(self.journals / "orders", TURNS))
        size = sum(path.stat().st_size for path in self.journals.rglob("*.log"))
        self.max_bytes = size // batches
        #: which jobs were erased, and how far the logs were read then
        self.erased: list[str] = []
        self.until: Offsets = {}

    @contextmanager
    def start(
        self, *words: str, step: str = "", table: str = ""
    ) -> Iterator[subprocess.Popen[str]]:
        """Yield a command in a session of its own, killed at the end unless it has ended."""
        command = [sys.executable, str(SCRIPT), step, table, *words, "--lake", str(self.lake)]
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

    def words(self, *options: str, max_bytes: int = 0) -> tuple[str, ...]:
        size = str(max_bytes or self.max_bytes)
        return ("run", "--json", *options, "--journals", str(self.journals), "--max-bytes", size)

    def killed_at(self, step: str, table: str, *words: str) -> None:
        for _ in range(TRIES):
            with self.start(*words, step=step, table=table) as process:
                assert process.stdout is not None
                if "here\n" in process.stdout:
                    return
            assert TOO_BUSY in self.said.read_text(), (step, table, self.said.read_text())
        pytest.fail(TOO_BUSY)

    def erase(self) -> None:
        lake = Lake.open(self.lake)
        self.until = reached(lake).offsets
        jobs = lake.dataset("jobs").to_table(columns=["job_id", "job"])
        self.erased = [row["job_id"] for row in jobs.to_pylist() if row["job"] % 5 == 0]
        words = ("erase", "--where", CHOSEN, "--yes")
        for step, table in ERASING:
            self.killed_at(step, table, *words)
        with self.start(*words) as process:
            process.communicate()
        assert process.returncode == 0, self.said.read_text()

    def batch(self, process: subprocess.Popen[str]) -> float:
        assert process.stdout is not None
        for line in process.stdout:
            shown = json.loads(line)
            if shown["event"] == "batch":
                return float(shown["seconds"])
        raise self.ended()

    def ended(self) -> Exception:
        """Return what to raise where a run has come to its end unkilled."""
        said = self.said.read_text()
        if TOO_BUSY in said:
            return TooBusy(said)
        return AssertionError(said or "it ended before it was killed: take more batches")

    def finish(self, *options: str) -> dict[str, int]:
        """Let a last run end; return the rows that equal an undisturbed run.

        The planned batch comes first; the rest makes one batch. From the other lake the same jobs
        are erased after the same bytes.
        """
        with self.start(*self.words(*options, max_bytes=EVERYTHING)) as process:
            process.communicate()
        assert process.returncode == 0, self.said.read_text()
        options_here = RunOptions(journals=self.journals, max_bytes=EVERYTHING)
        with Lake.open(self.plain, create=True).writer() as writer:
            if self.erased:
                hands = LocalExecutor()
                stream = BatchStream(writer, options_here, hands, ({}, self.until))
                while (batch := stream.plan()) is not None:
                    commit_batch(writer, stream.read(batch), batch, hands)
                erase_jobs(writer, self.erased)
            run_increment(writer, options_here, RunReport())
        return rows_of_equal_tables(self.plain, self.lake)


def kill(pids: list[int]) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def java_of(pids: list[int]) -> list[int]:
    result = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text(encoding="ascii") == "java\n":
                result.append(pid)
    return result


def kill_at_random(hub: Hub, number: int, draw: random.Random, start_seconds: float) -> None:
    """Kill a run somewhere: all of it, or Java or the driver alone."""
    with hub.start(*hub.words(*BY_SPARK)) as process:
        if number % 4:
            hub.batch(process)  # takes much longer than later ones
            seconds = draw.uniform(0, 2 * hub.batch(process))
        else:  # while Spark starts, or in the first steps
            seconds = draw.uniform(0.2, start_seconds)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        if process.poll() is not None:
            raise hub.ended()
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


def test_a_run_killed_at_random_moments_makes_the_tables_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    print("seed", SEED)  # noqa: T201 - pytest shows it with a failure
    draw = random.Random(SEED)
    hub = Hub(tmp_path, 8 * KILLS)
    began = time.monotonic()
    with hub.start(*hub.words(*BY_SPARK)) as process:
        hub.batch(process)
        start_seconds = time.monotonic() - began
    left = list(range(KILLS))
    for _ in range(TRIES * KILLS):
        with contextlib.suppress(TooBusy):
            kill_at_random(hub, left[-1], draw, start_seconds)
            left.pop()
        if not left:
            break
    assert not left, TOO_BUSY
    rows = hub.finish(*BY_SPARK)
    assert rows["attempts"] > LOGS * TURNS


@pytest.mark.parametrize(
    ("options", "later"), [((), LATER), (BY_SPARK, LATER_BY_SPARK)], ids=["here", "spark"]
)
def test_a_run_killed_at_each_step_of_each_commit_makes_the_tables_of_an_undisturbed_one(
    tmp_path: Path, options: tuple[str, ...], later: Iterable[tuple[str, str]]
) -> None:
    """Each run is killed a step further than the one before: as tables are made, and once more.

    So is an erasure between two batches, and the lake's upkeep after them.
    """
    print("seed", SEED)  # noqa: T201 - pytest shows it with a failure
    hub = Hub(tmp_path, 4)
    for step, table in FIRST:
        hub.killed_at(step, table, *hub.words(*options))
    hub.erase()
    for step, table in later:
        hub.killed_at(step, table, *hub.words(*options))
    # The rest of the batches goes as before; Java has no part in later ones.
    for table in DERIVED:
        for step in ("staged", "created", "committing", "committed"):
            hub.killed_at(step, table, *hub.words(*options))
            options = ()
    for step, table in IN_ORDER:
        hub.killed_at(step, table, *hub.words())
    hub.finish()
