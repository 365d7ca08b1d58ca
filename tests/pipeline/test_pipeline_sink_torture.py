"""A stream into the sink, killed with everything that belongs to it: each row is one job.

TASKQ_TORTURE_ROWS and TASKQ_TORTURE_KILLS make it larger: 2 000 000 rows take 5 minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from taskq import TaskLog
from tests.pipeline.sinking import jobs

ROWS = int(os.environ.get("TASKQ_TORTURE_ROWS", "200_000"))
KILLS = int(os.environ.get("TASKQ_TORTURE_KILLS", "5"))
FILES = 4 * (KILLS + 1)
SCRIPT = Path(__file__).with_name("scripts") / "sink_stream.py"


class Stream:
    """The stream's process, and how far it has come."""

    def __init__(self, folder: Path) -> None:
        self._commits = folder / "checkpoint" / "commits"
        names = ("rows", "data", "checkpoint")
        with (folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), *(str(folder / name) for name in names)],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def batches(self) -> int:
        return len([item for item in self._commits.glob("*") if item.name.isdigit()])

    def kill_behind(self, batches: int, seconds: float) -> None:
        while self.batches() < batches and self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.mark.slow
async def test_each_row_of_a_killed_stream_is_one_job(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # noqa: T201 - pytest shows it with a failure
    chance = random.Random(seed)
    (tmp_path / "rows").mkdir()
    for number, part in enumerate(np.array_split(np.arange(ROWS), FILES)):
        parquet.write_table(pa.table({"n": part}), tmp_path / "rows" / f"{number:04d}.parquet")
    for kill in range(KILLS):
        stream = Stream(tmp_path)
        stream.kill_behind(stream.batches() + chance.randint(1, 2), chance.uniform(0, 2))
        print("killed", kill + 1, "with", stream.batches(), "batches committed")  # noqa: T201
    stream = Stream(tmp_path)
    assert stream.process.wait() == 0, (tmp_path / "output").read_text()[-2_000:]
    # Spark that is killed between noting a file and noting its batch gives the next one two files.
    assert FILES - KILLS <= stream.batches() <= FILES
    result = np.array([int((job.body or b"")[5:-1]) for job in jobs(tmp_path / "data")])
    assert len(result) == ROWS
    assert (np.sort(result) == np.arange(ROWS)).all()
    async with TaskLog.open(tmp_path / "data", upkeep=False) as log:
        assert [queue.ready for queue in (await log.stats()).queues] == [ROWS]
