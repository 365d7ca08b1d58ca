"""Each extra alone does the work of its guide; the version is in one place."""

import importlib
import json
import ntpath
import posixpath
import re
import subprocess
import tomllib
import urllib.request
from importlib import metadata
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import unquote

import pytest

import taskq
from taskq import extras
from taskq_plugins.spark import errors
from tests.programs import run_python

ROOT = Path(__file__).parents[1]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: Code that simulates a missing extra ``spark``.
ABSENT: Final = """
import sys

class Absent:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {"deltalake", "pandas", "pyspark", "py4j"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
EXTRAS: Final = ("sql", "web", "metrics", "hub", "zstd", "parquet", "reload")
#: Extras for work on taskq itself, and extras with Java, which the pipeline's tests check.
NOT_ALONE: Final = {"demo", "examples", "docs", "browser", "dev", "spark", "s3", "spark-jre"}


def test_the_check_of_extras_covers_every_extra() -> None:
    text = (ROOT / ".ci/extras").read_text()
    assert re.findall(r'^    "(\w+)": check_', text, re.MULTILINE) == [*EXTRAS]
    assert {*EXTRAS} == {*PROJECT["project"]["optional-dependencies"]} - NOT_ALONE


def test_each_missing_pipeline_package_is_named_with_its_extra() -> None:
    asked = PROJECT["project"]["optional-dependencies"]
    wanted = [*asked["spark"], *asked["parquet"]]
    packages = {re.split(r"[<>=\[]", job)[0] for job in wanted} - {"taskq-local"}
    assert packages <= {*errors._EXTRAS}


@pytest.mark.parametrize("code", [
    "import taskq_plugins.spark.log_tables, taskq_plugins.spark.sql",
    "import taskq.arrow.decoder, taskq.cli.commands.parquet",
])  # fmt: skip
def test_questions_in_sql_need_nothing_of_the_pipeline(code: str) -> None:
    """The queries compute their tables from the log, and write none."""
    done = run_python("-c", ABSENT + code)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize(("folder", "system", "line"), [
    ("/home/me/a%20clone", posixpath, "pip install -e '/home/me/a clone[hub]'"),
    ("/C:/me/a%20clone", ntpath, 'pip install -e "C:\\me\\a clone[hub]"'),
], ids=["posix", "windows"])  # fmt: skip
@pytest.mark.filterwarnings("ignore:'nturl2path':DeprecationWarning")  # of Python 3.14
def test_what_is_missing_is_installed_by_the_line_that_an_error_shows(
    folder: str, system: Any, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell of each system runs the line unchanged."""
    origin = json.dumps({"url": f"file://{folder}", "dir_info": {"editable": True}})
    distribution = SimpleNamespace(read_text=lambda _: origin)
    monkeypatch.setattr(metadata, "distribution", lambda _: distribution)
    monkeypatch.setattr(extras, "os", system)
    windows = importlib.import_module("nturl2path").url2pathname
    paths = windows if system is ntpath else unquote
    monkeypatch.setattr(urllib.request, "url2pathname", paths)
    assert extras.install_line("hub") == line


def test_the_package_holds_nothing_that_only_these_tests_use() -> None:
    kit = {path.stem for path in (ROOT / "taskq/testing").glob("*.py")} - {"__init__"}
    assert kit == {"plugin", "sandbox"}


NUMBER = r"(?:0|[1-9]\d*)"


def test_the_version_stands_in_one_place() -> None:
    assert re.fullmatch(rf"{NUMBER}\.{NUMBER}\.{NUMBER}", taskq.__version__)
    assert version("taskq-local") == taskq.__version__


def test_each_version_of_the_changelog_has_its_day_and_a_tagged_commit_its_version() -> None:
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = heads[1:] if heads[0] == "Not released yet" else heads
    for head in released:
        assert re.fullmatch(rf"{NUMBER}\.{NUMBER}\.{NUMBER} - 20\d\d-\d\d-\d\d", head)
    numbers = [tuple(map(int, head.split()[0].split("."))) for head in released]
    assert numbers == sorted(set(numbers), reverse=True)
    assert released[0].split()[0] == taskq.__version__
    done = subprocess.run(
        ["git", "tag", "--points-at", "HEAD", "v*"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() in ([], [f"v{taskq.__version__}"])
