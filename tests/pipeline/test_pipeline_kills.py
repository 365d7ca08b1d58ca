"""Runs that are killed with -9, all of it or a part, while the logs change.

Most are drivers in a session that goes on without them, killed at a step of their own; each fourth
starts Java, and is killed at a random moment. TASKQ_TORTURE_KILLS and TASKQ_TORTURE_SEED change how
often, and when.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from taskq_plugins.spark.lake.store import DERIVED, Lake, positions_of
from taskq_plugins.spark.source.logs import look
from tests.bench.harness import family
from tests.fleet.made_logs import MadeLog
from tests.pipeline.kit import check_records, check_tables, run
from tests.pipeline.test_pipeline_histories import Fleet

KILLS = int(os.environ.get("TASKQ_TORTURE_KILLS", "40"))
SEED = int(os.environ.get("TASKQ_TORTURE_SEED", "0")) or random.randrange(2**32)
#: Acts of the fleet between two runs, and bytes of a batch: some batches a run.
ACTS, MAX_BYTES = 40, 12_000
#: Steps of a run, about.
STEPS = 150
SCRIPT = Path(__file__).with_name("scripts") / "struck.py"


@contextlib.contextmanager
def running(
    root: Path, *program: str, words: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, *(program or ("-m", "taskq")), "pipeline", "run", "--json", *words]
    command += ["--master", "local[2]", "--max-bytes", str(MAX_BYTES)]
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
    assert process.stdout is not None
    while count and (line := process.stdout.readline()):
        count -= json.loads(line)["event"] == "batch"
    return not count


def killed(root: Path, chance: random.Random, start_seconds: float) -> bool:
    """Start a run, and kill it somewhere: all of it, or Java or the driver alone."""
    with running(root) as process:
        count = chance.choice([0, 1, 1, 2])
        seconds = chance.uniform(0.2, start_seconds) if not count else chance.uniform(0, 3)
        if batches(process, count):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        if process.poll() is not None:
            return ended(process, root)
        everybody = family(process.pid)
        only_java = [pid for pid in everybody if is_java(pid)] if chance.randrange(3) == 0 else []
        kill(only_java or chance.choice([everybody, [process.pid]]))
        process.communicate()
        if not process.returncode:  # it ended in that very moment
            return ended(process, root)
        said = (root / "said").read_text()
        assert process.returncode == (1 if only_java else -signal.SIGKILL), said
        assert "Traceback" not in said, said
    return True


def struck(root: Path, chance: random.Random, spark: SparkSession) -> bool:
    """Run a driver in a session that outlives it, up to one of its steps."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    where = (str(gateway.gateway_parameters.port), gateway.gateway_parameters.auth_token)
    with running(root, str(SCRIPT), str(chance.randint(1, STEPS)), *where) as process:
        process.communicate()
    return process.returncode == -signal.SIGKILL or ended(process, root)


def ended(process: subprocess.Popen[str], root: Path) -> bool:
    """Check how a run ended before its kill, perhaps with logs that it held; return False."""
    said = (root / "said").read_text()
    assert process.returncode == 0 or (process.returncode == 1 and "held back" in said), said
    assert "Traceback" not in said, said
    return False


def positions(root: Path) -> dict[str, int]:
    lake = Lake.open(root / "lake", create=True)
    rows = positions_of(lake).to_pylist()
    return {row["log_id"]: json.loads(row["position"])["lsn"] for row in rows}


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_rows_equal_a_plain_fold_after_kills(tmp_path: Path, spark: SparkSession) -> None:
    print("seed", SEED)  # noqa: T201 - pytest shows it with a failure
    chance = random.Random(SEED)
    fleet = Fleet(tmp_path, chance)
    fleet.live[0].enqueue(3)
    began = time.monotonic()
    with running(tmp_path) as process:
        assert batches(process, 1), (tmp_path / "said").read_text()
    start_seconds = time.monotonic() - began
    left = KILLS
    for turn in range(3 * KILLS):
        for _ in range(ACTS):
            fleet.act()
        if chance.randrange(2):
            fleet.hurt(positions(tmp_path))
        if turn % 4:
            left -= struck(tmp_path, chance, spark)
        else:
            left -= killed(tmp_path, chance, start_seconds)
        if not left:
            break
    assert not left
    problems = " ".join(run(spark, tmp_path / "hub", tmp_path / "lake").problems)
    at = positions(tmp_path)
    for log_id, log in look(tmp_path / "hub").logs.items():
        is_read = at.get(log_id, 0) >= log.end.lsn or log.end.place == log.earliest.place
        # A problem may name a file of another copy of the log.
        names = {log.log.device, log_id, *(place.path for place in log.places)}
        assert is_read or any(name in problems for name in names)
    check_records(tmp_path / "lake", fleet.records())
    check_tables(tmp_path / "lake", tmp_path / "hub", "jobs", "attempts", "steps", *DERIVED)


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_ctrl_c_ends_a_run_that_is_kept_open(tmp_path: Path) -> None:
    MadeLog(tmp_path / "hub" / "edge").enqueue(1)
    with running(tmp_path, words=("--keep-open",)) as process:
        assert batches(process, 1), (tmp_path / "said").read_text()
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert [
        line for line in (tmp_path / "said").read_text().splitlines() if "WARN" not in line
    ] == []
