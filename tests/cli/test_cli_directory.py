"""Which directory a command means: after it, before it, as its one argument, or none at all."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.cli.helpers import Sample, taskq

#: Time goes on between two commands.
_AGO = re.compile(r" *\d+[smh](?= ago|$)", re.MULTILINE)
#: Commands about a whole log, which need no more than its directory.
WHOLE = (
    ("ls",), ("peek",), ("stats",), ("workers",), ("tail",), ("export",), ("verify",),
    ("dead", "ls"), ("schedules", "ls"), ("compact", "--dry-run"),
)  # fmt: skip


@pytest.mark.parametrize("command", WHOLE, ids=" ".join)
def test_a_directory_may_stand_before_the_command_after_it_or_behind_d(
    sample: Sample, command: tuple[str, ...]
) -> None:
    expected = taskq(*command, "-d", sample.path)
    assert expected.exit_code == 0, expected.output
    for arguments in ([*command, sample.path], ["-d", sample.path, *command]):
        result = taskq(*arguments)
        assert result.exit_code == 0
        assert _AGO.sub("", result.stdout) == _AGO.sub("", expected.stdout)


def test_a_command_about_one_job_takes_the_directory_before_it(sample: Sample) -> None:
    job_id = sample.ids["dead"]
    assert taskq("-d", sample.path, "why", job_id).stdout.startswith(f"{job_id}: ")
    assert taskq("-d", sample.path, "dead", "show", job_id).exit_code == 0


def test_what_is_typed_comes_before_the_variable(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_DATA_DIR", str(tmp_path / "another"))
    for arguments in (["ls", sample.path], ["-d", sample.path, "ls"], ["ls", "-d", sample.path]):
        assert taskq(*arguments).exit_code == 0


@pytest.mark.parametrize(
    "arguments", [["ls", "a", "-d", "b"], ["-d", "a", "ls", "b"], ["-d", "a", "ls", "-d", "b"]]
)
def test_two_directories_are_wrong_usage(arguments: list[str]) -> None:
    result = taskq(*arguments)
    assert result.exit_code == 2
    assert result.stderr == ("taskq: two directories were given, a and b: give the one you mean\n")


def test_a_command_that_has_no_directory_takes_none_before_it(sample: Sample) -> None:
    result = taskq("-d", sample.path, "pipeline")
    assert result.exit_code == 2
    assert result.stderr == "taskq: pipeline takes no -d before it: see taskq pipeline --help\n"


@pytest.mark.parametrize(
    ("typed", "here"),
    [
        ((), "project"),
        (("project",), "."),
        (("project/taskq-dat",), "."),
        (("project/taskq-data/log",), "."),
        ((), "."),
        ((), "project/src"),
        ((), "project/src/shop"),
    ],
    ids=["beside", "above", "misspelt", "below", "down", "up", "two_up"],
)
def test_a_log_nearby_is_offered(
    sample: Sample,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: tuple[str, ...],
    here: str,
) -> None:
    log = tmp_path / "project/my jobs" if here == "project" else tmp_path / "project/taskq-data"
    shutil.copytree(sample.path, log)
    (tmp_path / "project/src/shop").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / here)
    monkeypatch.delenv("TASKQ_DATA_DIR", raising=False)
    result = taskq("ls", *typed)
    if result.exit_code == 0:  # the directory of the settings is there
        assert here == "project"
        return
    quoted = f"'{log}'" if " " in str(log) else str(log)
    assert result.exit_code == 1
    wanted = (tmp_path / here / (typed[0] if typed else "taskq-data")).absolute()
    assert (
        result.stderr == f"taskq: {wanted} is not a task log; there is one nearby:\n  -d {quoted}\n"
    )


def test_of_several_logs_nearby_the_first_three_are_offered(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        shutil.copytree(sample.path, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    lines = taskq("ls", "nothing").stderr.splitlines()
    assert lines[0] == f"taskq: {tmp_path}/nothing is not a task log; these are nearby:"
    assert lines[1:] == [f"  -d {tmp_path}/{name}" for name in "abc"]


def test_with_no_log_nearby_the_ways_to_one_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert taskq("ls", "nothing").stderr == (
        f"taskq: {tmp_path}/nothing is not a task log: give its directory with -d, "
        f"or start one with: taskq put BODY -d {tmp_path}/nothing\n"
    )
