"""``taskq pipeline``: lists its commands without importing them; errors name missing packages."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from taskq.cli.main import main
from taskq.extras import missing
from taskq_plugins.spark.cli import COMMANDS, PipelineCommands
from taskq_plugins.spark.errors import missing_package
from tests.programs import run_python

if TYPE_CHECKING:
    from collections.abc import Callable

HEAVY = ("duckdb", "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "rich")


def help_of(*arguments: str) -> tuple[str, set[str]]:
    """Return what the command prints, and which heavy packages it imported for that."""
    program = (
        "import sys\n"
        "from taskq.cli.main import main\n"
        f"try: main({[*arguments]!r})\n"
        "except SystemExit: pass\n"
        f"print('heavy:', *(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = run_python("-c", program, check=True)
    text, _, modules = done.stdout.rpartition("heavy:")
    return text, set(modules.split())


def test_the_help_of_taskq_has_a_line_for_pipeline_and_imports_nothing_heavy() -> None:
    text, heavy = help_of("--help")
    assert re.search(r"^  pipeline +\w", text, re.MULTILINE)
    assert not heavy


def test_the_groups_help_lists_every_command_and_imports_nothing_heavy() -> None:
    text, heavy = help_of("pipeline", "--help")
    assert re.findall(r"^  (\w+)  ", text, re.MULTILINE) == list(COMMANDS)
    assert not heavy


@pytest.mark.parametrize("chosen", ["", "mimalloc"])
def test_a_run_has_arrow_take_memory_that_it_can_give_back(chosen: str) -> None:
    """Unless somebody chose another pool; what the run starts is not told."""
    program = (
        "import os, sys\n"
        "from taskq.cli.main import main\n"
        "try: main(['pipeline', 'run', '--help'])\n"
        "except SystemExit: pass\n"
        "import pyarrow\n"
        "told = os.environ.get('ARROW_DEFAULT_MEMORY_POOL')\n"
        "print(pyarrow.default_memory_pool().backend_name, told, file=sys.stderr)"
    )
    pool = {"ARROW_DEFAULT_MEMORY_POOL": chosen} if chosen else {}
    done = run_python("-c", program, check=True, env={**os.environ, **pool})
    assert done.stderr.split() == ([chosen, chosen] if chosen else ["system", "None"])


def test_a_mistyped_command_gets_a_hint() -> None:
    result = CliRunner().invoke(main, ["pipeline", "docter"])
    assert result.exit_code == 2
    assert result.stderr == "taskq: there is no command 'docter': did you mean doctor?\n"


@pytest.mark.parametrize(
    "arguments", [["run", "--lake", "x"], ["enqueue", "a.parquet", "--task", "t", "--to", "x"]]
)
def test_without_pyspark_a_command_says_in_one_line_what_to_install(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "from taskq.cli.main import main\n"
        f"main(['pipeline', *{arguments!r}])\n"
    )
    done = run_python("-c", program)
    assert done.returncode in {1, 2}
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def invoke(run: Callable[[], None]) -> tuple[int, str]:
    group = PipelineCommands(name="pipeline", commands={})
    group.table = {"one": (__name__, "")}
    command = click.Command("one", callback=run)
    globals()["one"] = command
    top = click.Group(commands={"pipeline": group})
    result = CliRunner().invoke(top, ["pipeline", "one"])
    return result.exit_code, result.stderr


def test_a_package_that_is_missing_at_run_time_is_told_in_one_line() -> None:
    def run() -> None:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    code, message = invoke(run)
    assert code == 1
    assert message == f"taskq: {missing('this command', 'pyspark', 'spark')}\n"


def test_an_import_that_fails_for_another_reason_keeps_its_traceback() -> None:
    error = ModuleNotFoundError("No module named 'shop'", name="shop")
    assert missing_package(error, "this") is None


def test_a_package_that_pyspark_finds_too_old_is_told_likewise() -> None:
    class PySparkImportError(ImportError):
        pass

    result = missing_package(PySparkImportError("[UNSUPPORTED] pandas >= 2.2.0"), "run")
    assert result is not None
    assert result.package == "pandas"


def test_a_command_that_does_not_load_spoils_neither_help_nor_the_others() -> None:
    group = PipelineCommands(name="pipeline")
    group.table = {"absent": ("taskq_plugins.spark.nothing_here", "Not there.")}
    runner = CliRunner()
    assert "Not there." in runner.invoke(group, ["--help"]).output
    result = runner.invoke(group, ["absent"])
    assert result.exit_code == 1
    assert "the command 'absent' does not load" in result.stderr
