"""``first_guesses.md``, ``wrong_usage.md`` and ``sessions.md``, line by line."""

import contextlib
import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from taskq import TaskQ
from taskq.cli.main import main
from taskq.errors import TaskqError
from tests.cli.logs import Session
from tests.processes.harness import memory_disk
from tests.terminal import Shell, answers, matches, steps

HERE: Final = Path(__file__).parent
GUESSES: Final = list(answers((HERE / "first_guesses.md").read_text()))
WRONG: Final = list(answers((HERE / "wrong_usage.md").read_text()))
SHOP: Final = """
from taskq import TaskQ

app = TaskQ("data")


@app.task
def send(to: str, count: int = 1) -> None: ...
"""
#: A directory that takes no writes.
_READ_ONLY: Final = "readonly"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("shop", None)
    with TaskQ("data") as app:
        app.enqueue_by_name_sync("shop.send", "ada")
    yield tmp_path
    sys.modules.pop("shop", None)


def at_home(output: str, home: Path) -> str:
    return output.replace(str(home), "/home/you").replace(os.sep, "/")


@pytest.mark.parametrize(("typed", "shown"), GUESSES, ids=[typed for typed, _ in GUESSES])
def test_a_first_guess_is_answered_as_it_is_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, typed: str, shown: str
) -> None:
    with read_only(home, wanted=_READ_ONLY in typed):
        output = command(typed[2:], monkeypatch) if typed.startswith("$") else call(typed[4:])
    output = at_home(output, home)
    assert matches(output, shown), output


@pytest.mark.parametrize(("typed", "shown"), WRONG)
def test_wrong_usage_is_a_line_or_two_with_the_remedy_and_writes_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, typed: str, shown: str
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = sorted(home.rglob("*"))
    output = at_home(command(typed[2:], monkeypatch), home)
    assert matches(output, shown), output
    assert len(shown.splitlines()) <= 3
    assert sorted(home.rglob("*")) == before


def command(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    words = shlex.split(line)
    given = dict(word.split("=", 1) for word in words[: words.index("taskq")])
    rest = words[words.index("taskq") + 1 :]
    without = given.pop("WITHOUT", "")
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    if without:
        code = f"import sys; sys.modules |= dict.fromkeys({without.split(',')!r})"
        program = [sys.executable, "-c", f"{code}; from taskq_start import main; main()", *rest]
        ended = subprocess.run(program, capture_output=True, text=True, check=False)
        return f"{ended.stderr}{ended.stdout}[{ended.returncode}]"
    done = CliRunner().invoke(main, rest, input=b"", prog_name="taskq")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return f"{done.output}[{done.exit_code}]"


def call(line: str) -> str:
    names: dict[str, Any] = {**vars(importlib.import_module("shop"))}
    try:
        exec(line, names)  # noqa: S102 - our own lines
    except (TaskqError, AttributeError, ImportError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        names["app"].close_sync()
    return "nothing"


@contextlib.contextmanager
def read_only(home: Path, *, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    with memory_disk(home / _READ_ONLY, 4 * 1024 * 1024) as place:
        with TaskQ(place / "data") as app:
            app.enqueue_by_name_sync("shop.send", "ada")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        yield


#: Typed lines and their output on each log, by heading.
SESSIONS: Final = (HERE / "sessions.md").read_text().split("\n## ")[1:]


@pytest.mark.parametrize("section", SESSIONS, ids=[text.partition(":")[0] for text in SESSIONS])
def test_a_command_on_a_log_prints_and_does_what_is_written(section: str, tmp_path: Path) -> None:
    session = Session(section.split("`")[1], tmp_path)
    typed = list(steps(section))
    assert typed
    for step in typed:
        shown = session.run(step.typed.removeprefix("taskq "))
        assert matches(shown, step.shown), f"$ {step.typed}\n{shown}"


SESSION: Final = HERE / "terminal_session.md"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_hour_at_a_terminal_reads_as_it_is_written(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    wrong: list[str] = []
    try:
        for step in steps(SESSION.read_text()):
            shown = shell.run(step.typed).replace(str(tmp_path), "/home/you")
            if not matches(shown, step.shown):
                parts = (f"line {step.line}: $ {step.typed}", step.shown, shown)
                wrong.append("\n--- ".join(parts))
    finally:
        shell.close()
    assert not wrong, "\n\n".join(wrong)
