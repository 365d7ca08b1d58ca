"""A program that is one executable runs jobs in child processes, and never a copy of itself."""

import importlib.util
import os
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.programs import run_python

ROOT: Final = Path(__file__).parents[2]
PROGRAM: Final = ROOT / "tests/samples/frozen_program.py"
SPEC: Final = Path(__file__).parent / "both.spec"
#: The module of the tasks. The program's own file is harder: children import it anew.
WHERE: Final = ["main", pytest.param("module", marks=pytest.mark.slow)]
#: Names the folder of a user's programs' data.
DATA: Final = "WIN_PD_OVERRIDE_LOCAL_APPDATA" if os.name == "nt" else "XDG_DATA_HOME"
#: For two jobs in children.
SECONDS = 50
ADVICE: Final = "call multiprocessing.freeze_support() first"


class Ran(NamedTuple):
    lines: list[str]
    errors: str
    copies: int


def run(
    program: Path, *words: str, home: Path, seconds: int | None = None,
    variables: dict[str, str] | None = None,
) -> Ran:  # fmt: skip
    copies = home / "copies"
    own = {
        "OWN_DATA": str(home / "data"), "COPIES": str(copies), "PATIENCE": str(seconds or SECONDS),
    }  # fmt: skip
    done = subprocess.run(
        [program, *words], check=False, capture_output=True, text=True, timeout=2 * SECONDS + 10,
        env={**os.environ, **own, **(variables or {})},
    )  # fmt: skip
    count = len(copies.read_text().splitlines()) if copies.exists() else 0
    return Ran(done.stdout.splitlines(), done.stderr, count)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that starts the program as its executable would, without the time to freeze it."""
    if os.name == "nt":
        pytest.skip("Windows runs no script of sh; the slow tests run a frozen program")
    file = tmp_path / "program"
    file.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(PROGRAM)])} "$@"\n')
    file.chmod(0o755)
    monkeypatch.setenv("STANDS_IN", str(file))
    return file


@pytest.mark.parametrize("where", WHERE)
def test_children_start_like_multiprocessing(where: str, stand_in: Path, tmp_path: Path) -> None:
    ran = run(stand_in, where, home=tmp_path)
    assert (ran.lines, ran.copies) == (["1 True", "2 True"], 1), ran.errors


@pytest.mark.parametrize("where", WHERE)
def test_a_program_without_freeze_support_gets_advice(
    where: str, stand_in: Path, tmp_path: Path
) -> None:
    ran = run(stand_in, where, home=tmp_path, seconds=3, variables={"FORGETS": "1"})
    assert ADVICE in ran.errors
    assert "jobs of frozen_" in ran.errors
    assert ran.copies <= 1 + 2, "one for each of two jobs, which then wait"


def test_several_workers_are_started_by_their_command(stand_in: Path, tmp_path: Path) -> None:
    words = ["worker", "frozen_tasks:app", "-d", str(tmp_path / "data"), "--processes", "2"]
    ran = run(stand_in, *words, "--burst", home=tmp_path)
    assert "guard stopped" in ran.lines[-1], ran
    assert ran.copies == 3


@pytest.mark.parametrize("options", [["-"], ["-c"]])
def test_a_process_task_without_a_file_is_refused(options: list[str], tmp_path: Path) -> None:
    text = 'from taskq import TaskQ\n@TaskQ("data").task(runs_in="process")\ndef work(): ...\n'
    given = [*options, text] if options == ["-c"] else options
    done = run_python(*given, input=text, cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot import work, which stands in no file" in done.stderr


def test_children_have_the_options_of_this_interpreter() -> None:
    code = "from taskq_workers.children.programs import interpreter; print(*interpreter('x')[1:])"
    options = ["-B", "-O", "-X", "utf8", "-W", "ignore"]
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, text=True, capture_output=True, check=True)
    assert {"-B", "-O", "-X", "utf8", "-Wignore"} <= set(done.stdout.split()), done.stdout


@pytest.fixture(scope="session")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs that PyInstaller made; a venv gets it if it is missing."""
    home = tmp_path_factory.mktemp("frozen")
    python = sys.executable
    if importlib.util.find_spec("PyInstaller") is None:
        subprocess.run([python, "-m", "venv", home / "venv"], check=True)
        python = str(home / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
        subprocess.run([python, "-m", "pip", "install", "-q", "pyinstaller", ROOT], check=True)
    (home / "both.spec").write_text(SPEC.read_text().replace("ROOT", ROOT.as_posix()))
    command = [python, "-m", "PyInstaller", "--log-level", "ERROR", "both.spec"]
    subprocess.run(command, cwd=home, check=True, env={**os.environ, **_installed(home)})
    return home / "dist"


def _installed(home: Path) -> dict[str, str]:
    """Return variables by which PyInstaller finds taskq's hooks though it is not installed."""
    if any(each.module == "taskq.frozen" for each in entry_points(group="pyinstaller40")):
        return {}
    folder = home / "taskq_local-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: taskq-local\nVersion: 0.1.0\n")
    hooks = "[pyinstaller40]\nhook-dirs = taskq.frozen:hook_dirs\n"
    (folder / "entry_points.txt").write_text(hooks)
    return {"PYTHONPATH": os.pathsep.join([str(home), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["onedir/program", "onefile"])
def test_a_frozen_program_runs_jobs_in_children(program: str, frozen: Path, tmp_path: Path) -> None:
    for number, where in enumerate(["module", "main", "forgotten module"]):
        home = tmp_path / str(number)
        home.mkdir()
        forgets = {"FORGETS": "1"} if "forgotten" in where else {}
        ran = run(frozen / program, where.split()[-1], home=home, variables=forgets)
        assert (ran.lines, ran.copies) == (["1 True", "2 True"], 1), (where, ran.errors)
    forgot = run(frozen / program, "main", home=tmp_path, seconds=5, variables={"FORGETS": "1"})
    assert ADVICE in forgot.errors
    assert forgot.copies <= 3


@pytest.mark.slow
@pytest.mark.parametrize("program", ["onedir/program", "onefile"])
def test_a_frozen_program_has_taskqs_commands(program: str, frozen: Path, tmp_path: Path) -> None:
    assert run(frozen / program, "--version", home=tmp_path).lines == ["taskq 0.1.0"]
    words = ["worker", "frozen_tasks:app", "-d", str(tmp_path / "data"), "--processes", "2"]
    assert "guard stopped" in run(frozen / program, *words, "--burst", home=tmp_path).lines[-1]


@pytest.mark.slow
def test_the_frozen_example_works_and_reads_nothing_where_it_is_started(
    frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taskq.toml").write_text("this is none\n")
    ran = run(frozen / "example/program", home=tmp_path, variables={DATA: str(tmp_path / "share")})
    assert ran.lines == [
        "6 words",
        "shrunk to 50, frozen: True, elsewhere: True",
        "shrunk to 100, frozen: True, elsewhere: True",
    ]
    assert (tmp_path / "share/Picture Book/taskq/taskq.json").is_file()


def test_the_example_works_unfrozen(tmp_path: Path) -> None:
    done = run_python(
        "-m", "examples.desktop.program", cwd=ROOT, check=True,
        env={**os.environ, DATA: str(tmp_path), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "6 words",
        "shrunk to 50, frozen: False, elsewhere: True",
        "shrunk to 100, frozen: False, elsewhere: True",
    ]
