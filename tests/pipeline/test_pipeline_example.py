"""The fleet from its first device to its last check, as a user runs it, only smaller."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from examples.fleet.__main__ import main
from tests.programs import run_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
WORDS = ["--devices", "12", "--hours", "6", "--work"]
TABLES = 6
COLUMNS = 80


def check(work: Path, shown: str) -> None:
    assert len(re.findall(r"rows, equal to the Python fold", shown)) == TABLES
    assert (work / "lake").is_dir()
    assert max(map(len, shown.splitlines())) <= COLUMNS


@pytest.mark.slow
def test_the_tables_of_a_fleet_equal_the_python_fold_of_its_logs(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.range(1).count() == 1
    result = CliRunner().invoke(main, [*WORDS, str(tmp_path / "work")])
    assert result.exit_code == 0, result.output
    check(tmp_path / "work", result.stdout)


@pytest.mark.slow
# With the tests that share a session: two of Java at a time would be slow on two cores.
@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(
    shutil.which("java") is None and "TASKQ_TESTS_NEED_JAVA" not in os.environ,
    reason="there is no Java on this machine, and Spark needs Java 17",
)
def test_a_fleet_is_a_program_of_its_own(tmp_path: Path) -> None:
    work = tmp_path / "work"
    run = run_python("-m", "examples.fleet", *WORDS, work, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    check(work, run.stdout)
