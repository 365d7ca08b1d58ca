"""The fleet from its first device to its last check, as a user runs it, only smaller."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TABLES = 7


# With the tests that share a session: two of Java at a time would be slow on two cores.
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    shutil.which("java") is None and "TASKQ_TESTS_NEED_JAVA" not in os.environ,
    reason="there is no Java on this machine, and Spark needs Java 17",
)
def test_the_tables_of_a_fleet_equal_the_python_fold_of_its_logs(tmp_path: Path) -> None:
    work = tmp_path / "work"
    run = subprocess.run(
        [sys.executable, "-m", "examples.fleet", "--devices", "12", "--hours", "6", "--work", work],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(re.findall(r"rows, equal to the Python fold", run.stdout)) == TABLES
    assert len(list((work / "charts").glob("*.png"))) == 3
