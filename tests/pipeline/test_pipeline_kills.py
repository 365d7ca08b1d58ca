"""Runs that are killed with -9 at random moments, all of it or a part, while the logs change.

TASKQ_TORTURE_KILLS and TASKQ_TORTURE_SEED change how often, and at which moments.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from taskq_plugins.spark.lake.files import LAST_BATCH
from taskq_plugins.spark.lake.state import lineage_of, positions_of
from taskq_plugins.spark.lake.store import DERIVED, Lake
from tests.bench.harness import family
from tests.pipeline.kit import run, table_rows
from tests.pipeline.test_pipeline_histories import Fleet, by_hand, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("TASKQ_TORTURE_KILLS", "40"))
SEED = int(os.environ.get("TASKQ_TORTURE_SEED", "0")) or random.randrange(2**32)
#: Acts of the fleet between two runs, and bytes of a batch: some batches a run.
ACTS, MAX_BYTES = 40, 6_000


@contextlib.contextmanager
def running(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a run with its Java and executors, in a session of its own."""
    command = [sys.executable, "-m", "taskq", "pipeline", "run", "--json", "--master", "local[2]"]
    command += ["--max-bytes", str(MAX_BYTES)]
    command += ["--journals", str(root / "hub"), "--lake", str(root / "lake")]
    with (
        (root / "said").open("w") as said,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            kill(family(process.pid))


def kill(pids: list[int]) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def is_java(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="ascii") == "java\n"
    return False


def batches(process: subprocess.Popen[str], count: int) -> bool:
    """Wait for some batches of a run; return whether there are that many."""
    assert process.stdout is not None
    while count and (line := process.stdout.readline()):
        count -= json.loads(line)["event"] == "batch"
    return not count


def killed(root: Path, chance: random.Random, start_seconds: float) -> bool:
    """Start a run, and kill it somewhere: all of it, or Java or the driver alone."""
    with running(root) as process:
        count = chance.choice([0, 1, 1, 2])
        seconds = chance.uniform(0.2, start_seconds) if not count else chance.uniform(0, 5)
        if batches(process, count):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        if process.poll() is not None:
            assert process.returncode == 0, (root / "said").read_text()
            return False
        everybody = family(process.pid)
        only_java = [pid for pid in everybody if is_java(pid)] if chance.randrange(3) == 0 else []
        kill(only_java or chance.choice([everybody, [process.pid]]))
        process.communicate()
        said = (root / "said").read_text()
        assert process.returncode == (1 if only_java else -signal.SIGKILL), said
        assert "Traceback" not in said, said
    return True


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_a_run_killed_at_random_moments_makes_the_tables_of_an_undisturbed_one(
    tmp_path: Path, spark: SparkSession
) -> None:
    print("seed", SEED)  # noqa: T201 - pytest shows it with a failure
    chance = random.Random(SEED)
    fleet = Fleet(tmp_path, chance)
    fleet.live[0].enqueue(3)
    began = time.monotonic()
    with running(tmp_path) as process:
        assert batches(process, 1), (tmp_path / "said").read_text()
    start_seconds = time.monotonic() - began
    left = KILLS
    for _ in range(3 * KILLS):
        for _ in range(ACTS):
            fleet.act()
        left -= killed(tmp_path, chance, start_seconds)
        if not left:
            break
    assert not left
    assert not run(spark, tmp_path / "hub", tmp_path / "lake").problems
    lake = Lake.open(tmp_path / "lake")
    records, jobs = (lake.dataset(name).to_table().to_pylist() for name in ("records", "jobs"))
    assert shown(jobs) == by_hand(records, lineage_of(positions_of(lake)))
    assert len({(row["log_id"], row["lsn"]) for row in records}) == len(records)
    # The derived tables, from the same others, at once.
    shutil.copytree(tmp_path / "lake", tmp_path / "anew")
    (tmp_path / "anew" / LAST_BATCH).unlink()
    for name in DERIVED:
        shutil.rmtree(tmp_path / "anew" / name)
    run(spark, tmp_path / "hub", tmp_path / "anew")
    assert table_rows(tmp_path / "lake") == table_rows(tmp_path / "anew")
