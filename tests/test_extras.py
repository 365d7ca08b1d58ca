"""Each extra alone does what its guide says; one version is kept, and names go after a warning."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

import taskq
from taskq.deprecation import _deprecated, goes_with
from taskq_plugins.spark import errors
from tests.programs import run_python

ROOT = Path(__file__).parents[1]
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


def test_the_command_that_checks_extras_knows_each_of_them() -> None:
    text = (ROOT / ".ci/extras").read_text()
    assert re.findall(r'^    "(\w+)": check_', text, re.MULTILINE) == [*EXTRAS]
    assert {*EXTRAS} <= {*PROJECT["project"]["optional-dependencies"]}


def test_each_missing_pipeline_package_is_named_with_its_extra() -> None:
    asked = PROJECT["project"]["optional-dependencies"]
    wanted = [*asked["spark"], *asked["parquet"]]
    packages = {re.split(r"[<>=\[]", job)[0] for job in wanted} - {"taskq-local"}
    assert packages <= {*errors._EXTRAS}


@pytest.mark.parametrize(
    "code",
    [
        "import taskq_plugins.spark.log_tables, taskq_plugins.spark.sql",
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


NUMBER = r"(?:0|[1-9]\d*)"


def minor(text: str) -> tuple[int, int]:
    major, minor, *_ = map(int, text.split("."))
    return major, minor


def overdue(source: str, now: str) -> Iterator[str]:
    """Yield since when what should have gone by now is deprecated."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name("_deprecated"), args=[ast.Constant(str(since)), *_]):
                if minor(goes_with(since)) <= minor(now):
                    yield since


def old(value: int) -> int:
    _deprecated("0.4", "new(value)")
    return value


async def old_coroutine(value: int) -> int:
    _deprecated("0.4", "new(value)")
    return value


class Old:
    def __init__(self, value: int) -> None:
        _deprecated("0.4", "New(value)")
        self.value = value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: old(7), "old is deprecated since taskq 0.4 and goes with 0.5: write new(value)"),
        (
            lambda: Old(7).value,
            "Old.__init__ is deprecated since taskq 0.4 and goes with 0.5: write New(value)",
        ),
    ],
    ids=["function", "class"],
)
def test_what_is_deprecated_works_and_says_what_to_write(
    call: Callable[[], int], message: str
) -> None:
    with pytest.warns(DeprecationWarning, match="is deprecated") as warned:
        assert call() == 7
    assert [str(warning.message) for warning in warned] == [message]
    assert warned[0].filename == __file__
    assert warned[0].lineno == call.__code__.co_firstlineno


async def test_a_deprecated_coroutine_names_the_line_that_awaits_it() -> None:
    with pytest.warns(DeprecationWarning, match="old_coroutine is deprecated") as warned:
        assert await old_coroutine(7) == 7
    assert warned[0].filename == __file__


def test_the_deprecation_helper_is_not_in_dir_of_taskq() -> None:
    assert taskq._deprecated is _deprecated  # type: ignore[attr-defined]
    assert "_deprecated" not in dir(taskq)


def test_what_is_deprecated_goes_with_the_next_minor_version() -> None:
    assert list(overdue('_deprecated("0.4", "new()")', "0.4.9")) == []
    assert list(overdue('_deprecated("0.4", "new()")', "0.5.0")) == ["0.4"]
    assert list(overdue('_deprecated("0.4", "new()")', "1.0.0")) == ["0.4"]
    for folder in ("taskq", "workers", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            if "_deprecated(" in (source := path.read_text()):
                assert not list(overdue(source, taskq.__version__)), path


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
