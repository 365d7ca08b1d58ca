"""The group: lazy, helpful about mistakes, and quiet when its output goes away."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from taskq import TaskQ
from taskq.cli.errors import Failure
from taskq.cli.main import BUILT_IN, Commands, main
from taskq.core.errors import JobNotFound, UsageError, as_typed
from tests.cli.helpers import Sample, taskq
from tests.cli.logs import fill_letters
from tests.programs import run_python

TASKQ = (sys.executable, "-m", "taskq")


def group_with(name: str, run: Callable[[], None]) -> click.Group:
    group = Commands(name="taskq")
    command = click.Command(name, callback=run)
    point = SimpleNamespace(dist=None, name="extra", value="extra:command", load=lambda: command)
    group.__dict__["brought_in"] = {name: point}
    return group


def test_help_lists_every_command_without_importing_one() -> None:
    program = (
        "import sys\n"
        "from taskq.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'taskq.cli.commands.jobs', 'taskq_workers', 'rich', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = run_python("-c", program, check=True)
    assert set(re.findall(r"^  (\w+) ", done.stdout, re.MULTILINE)) >= {*BUILT_IN, "worker"}
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", sorted(BUILT_IN.keys() - {"pipeline", "hub"}))
def test_each_built_in_command_loads_and_has_help(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: taskq {name} ")
    assert "--data-dir" in result.output or name == "alerts"  # its app knows the directory


def test_taskq_alone_prints_its_help() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 0
    version = CliRunner().invoke(main, ["--version"]).output
    assert re.fullmatch(r"taskq \d+\.\d+\.\d+\S*\n", version)
    assert [line for line in result.output.splitlines() if line.endswith(":")] == [
        "Options:", "Run:", "Look:", "Act:", "Files:", "Pipeline:", "Hub:",
    ]  # fmt: skip


def test_what_others_bring_stands_last_under_a_heading_of_its_own() -> None:
    lines = CliRunner().invoke(group_with("extra", print), ["--help"]).output.splitlines()
    assert lines[lines.index("More:") + 1].split()[0] == "extra"
    assert len(lines) == lines.index("More:") + 2


@pytest.mark.parametrize(("error", "code", "message"), [
    (UsageError("priority is 12"), 2, "taskq: priority is 12\n"),
    (JobNotFound("no job a-1"), 1, "taskq: no job a-1\n"),
    (Failure("the disk is full"), 1, "taskq: the disk is full\n"),
    (
        PermissionError(13, "Permission denied", "/x"),
        1,
        "taskq: /x: Permission denied. Check the path and its permissions\n",
    ),
    (ZeroDivisionError("a bug keeps its traceback"), 1, ""),
    (KeyboardInterrupt(), 130, ""),
    (BrokenPipeError(), 141, ""),
])  # fmt: skip
def test_errors_of_a_command_are_a_message_and_an_exit_code(
    error: BaseException, code: int, message: str
) -> None:
    def run() -> None:
        raise error

    result = CliRunner().invoke(group_with("extra", run), ["extra"])
    assert (result.exit_code, result.stderr) == (code, message)
    assert (result.exception is error) is isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize(("value", "detail"), [
    ("no_such_module_here:command", "ModuleNotFoundError: No module named"),
    ("os:sep", "is no click command"),
])  # fmt: skip
def test_a_broken_command_names_its_package_and_stops_no_others(value: str, detail: str) -> None:
    group = Commands(name="taskq", invoke_without_command=True)
    group.__dict__["brought_in"] = {"extra": EntryPoint("extra", value, "taskq.commands")}
    assert "extra" in CliRunner().invoke(group, ["--help"]).output
    result = CliRunner().invoke(group, ["extra"])
    assert result.exit_code == 1
    assert detail in result.stderr
    assert "'extra'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_ctrl_c_ends_a_command_quietly_with_130(tmp_path: Path) -> None:
    """``put`` waits for its payload on a fifo, so that the signal certainly finds it running."""
    fifo = tmp_path / "payload"
    os.mkfifo(fifo)
    command = [*TASKQ, "put", f"@{fifo}", "-d", str(tmp_path / "queue")]
    # Opening a fifo for writing returns once its reader has opened it too.
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process, fifo.open("wb"):
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, b"")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    app = TaskQ(tmp_path / "data", durability="os")
    for queue, task in (("mail", "shop.send"), ("mail", "shop.spell"), ("films", "cut")):
        app.enqueue_sync(app.call_by_name(task).options(queue=queue))
    app.close_sync()
    return tmp_path / "data"


def completed(*words: object) -> list[str]:
    line = ["taskq", *map(str, words)]
    variables = {
        "_TASKQ_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(line).replace(os.sep, "/"),
        "COMP_CWORD": str(len(line) - 1),
    }
    result = CliRunner().invoke(main, env=variables, prog_name="taskq")
    assert result.exit_code == 0, result.output
    return [word.partition(",")[2] for word in result.stdout.split()]


def test_queues_tasks_and_ids_are_completed_wherever_a_command_takes_them(path: Path) -> None:
    tag = completed("show", "-d", path, "")[0].partition("-")[0]
    assert completed("show", "-d", path, "") == [f"{tag}-{number}" for number in (3, 2, 1)]
    assert completed("cancel", "-d", path, f"{tag}-2") == [f"{tag}-2"]
    assert completed("ls", path, "-Q", "") == ["films", "mail"]
    assert completed("pause", "-d", path, "m") == ["mail"]
    assert completed("-d", path, "cancel", "-t", "shop.s") == ["shop.send", "shop.spell"]
    assert completed("dead", "requeue", "-d", path, "-t", "c") == ["cut"]
    assert completed("tail", "-d", path, "-Q", "f") == ["films"]


def test_commands_are_completed_and_where_there_is_no_log_nothing_is(tmp_path: Path) -> None:
    assert "timeline" in completed("ti")
    assert completed("show", "-d", tmp_path / "nowhere", "") == []


#: Time goes on between two commands.
_AGO = re.compile(r" *\d+[smh](?= ago|$)", re.MULTILINE)
#: Commands about a whole log, which need no more than its directory.
WHOLE = (
    ("ls",), ("peek",), ("stats",), ("workers",), ("tail",), ("export",), ("verify",),
    ("dead", "ls"), ("schedules", "ls"), ("compact", "--dry-run"),
)  # fmt: skip


@pytest.mark.parametrize("command", WHOLE, ids=" ".join)
def test_the_directory_stands_anywhere_before_the_variable(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TASKQ_DATA_DIR", f"{sample.path} of another")
    expected = taskq(*command, "-d", sample.path)
    assert expected.exit_code == 0, expected.output
    for arguments in ([*command, sample.path], ["-d", sample.path, *command]):
        result = taskq(*arguments)
        assert result.exit_code == 0
        assert _AGO.sub("", result.stdout) == _AGO.sub("", expected.stdout)


@pytest.mark.parametrize(("typed", "here"), [
    ((), "project"), (("project",), "."), (("project/taskq-dat",), "."),
    (("project/taskq-data/log",), "."), ((), "."), ((), "project/src"),
    ((), "project/src/shop"),
], ids=["beside", "above", "misspelt", "below", "down", "up", "two_up"])  # fmt: skip
def test_a_log_nearby_is_offered(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    typed: tuple[str, ...], here: str,
) -> None:  # fmt: skip
    log = tmp_path / "project" / ("my jobs" if here == "project" else "taskq-data")
    shutil.copytree(sample.path, log)
    (tmp_path / "project/src/shop").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / here)
    monkeypatch.delenv("TASKQ_DATA_DIR", raising=False)
    result = taskq("ls", *typed)
    quoted = as_typed(str(log))
    wanted = (tmp_path / here / (typed[0] if typed else "taskq-data")).absolute()
    said = f"taskq: {wanted} is not a task log; there is one nearby:\n  -d {quoted}\n"
    assert (result.exit_code, result.stderr) == (1, said)


def test_of_several_logs_nearby_the_first_three_are_offered(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        shutil.copytree(sample.path, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    lines = taskq("ls", "nothing").stderr.splitlines()
    assert lines[0] == f"taskq: {tmp_path / 'nothing'} is not a task log; these are nearby:"
    assert lines[1:] == [f"  -d {tmp_path / name}" for name in "abc"]


def test_a_person_is_asked_with_the_number_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(fill_letters(tmp_path / "letters"))
    monkeypatch.setattr("taskq.cli.many._is_asked", lambda: True)
    purge = ("dead", "purge", "-d", tmp_path / "letters")
    result = taskq(*purge, "--all", data=b"n\n")
    assert result.exit_code == 130
    assert "Purge 3 jobs? [y/N]" in result.output
    result = taskq(*purge, "-Q", "sync", data=b"y\n")
    assert result.exit_code == 0
    assert "purged 1 dead letter" in result.stdout
    result = taskq(*purge, "-Q", "sync", data=b"")
    assert (result.exit_code, result.stdout) == (0, "purged 0 dead letters\n")
