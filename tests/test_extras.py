"""Each extra alone does what its part of the guides says, and a message names the right one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from taskq_plugins.spark import errors
from tests.programs import run_python

ROOT: Final = Path(__file__).parents[1]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: As where the extra ``spark`` was not installed.
ABSENT: Final = """
import sys

class Absent:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {"deltalake", "pandas", "pyspark", "py4j"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
EXTRAS: Final = ("sql", "web", "metrics", "hub", "zstd", "parquet", "reload")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_is_enough_for_its_commands(tmp_path: Path, extra: str) -> None:
    """From a wheel, in an environment that holds nothing else."""
    python = shutil.which("python3.11") or sys.executable
    done = subprocess.run(
        [python, str(ROOT / ".ci/extras"), extra],
        capture_output=True, text=True, check=False, env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_that_checks_extras_knows_each_of_them() -> None:
    text = (ROOT / ".ci/extras").read_text()
    assert re.findall(r'^    "(\w+)": check_', text, re.MULTILINE) == [*EXTRAS]
    assert {*EXTRAS} <= {*PROJECT["project"]["optional-dependencies"]}


def test_each_package_of_the_pipeline_is_told_with_its_extra() -> None:
    asked = PROJECT["project"]["optional-dependencies"]
    wanted = [*asked["spark"], *asked["parquet"]]
    packages = {re.split(r"[<>=\[]", job)[0] for job in wanted} - {"taskq-local"}
    assert packages <= {*errors._EXTRAS}


@pytest.mark.parametrize(
    "code",
    [
        "import taskq_plugins.spark.tables.fold, taskq_plugins.spark.sql",
        "import taskq.arrow.decoder, taskq.cli.commands.parquet",
    ],
)
def test_questions_in_sql_need_nothing_of_the_pipeline(code: str) -> None:
    """Tables are made of the log there, too, and never written."""
    done = run_python("-c", ABSENT + code)
    assert not done.returncode, done.stderr


def test_the_package_holds_nothing_that_only_these_tests_use() -> None:
    kit = {path.stem for path in (ROOT / "taskq/testing").glob("*.py")} - {"__init__"}
    assert kit == {"plugin", "sandbox"}
