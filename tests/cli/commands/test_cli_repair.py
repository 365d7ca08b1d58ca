"""``taskq repair``: asks first, names who is in the way, and leaves a log that verifies clean."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from taskq import TaskLog
from tests.cli.helpers import Sample, taskq, taskq_json


@pytest.fixture
def damaged(sample: Sample, tmp_path: Path) -> Path:
    """Return a copy of the sample with one flipped bit inside the first job's payload."""
    copy = tmp_path / "queue"
    shutil.copytree(sample.path, copy, ignore=shutil.ignore_patterns("*.pipe"))
    segment = min((copy / "log").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[data.index(b'{"n":1}')] ^= 1
    segment.write_bytes(data)
    return copy


def files(path: Path) -> dict[str, bytes]:
    """Return every file of a directory."""
    return {str(path): path.read_bytes() for path in path.rglob("*") if path.is_file()}


def test_repair_leaves_a_log_that_verifies_clean_and_names_the_jobs_that_are_lost(
    sample: Sample, damaged: Path
) -> None:
    others = {job["id"] for job in taskq_json("ls", "-d", damaged)}
    assert taskq("verify", "-d", damaged).exit_code == 1
    result = taskq("repair", "-d", damaged, "--yes")
    assert result.exit_code == 0
    assert f"lost job {sample.ids['succeeded']}\n" in result.stdout
    assert "written anew; the original is torn/" in result.stdout
    assert taskq("verify", "-d", damaged).exit_code == 0
    assert {job["id"] for job in taskq_json("ls", "-d", damaged)} == others
    assert taskq("repair", "-d", damaged).stdout == "no damage: nothing to repair\n"


@pytest.mark.parametrize(
    ("arguments", "answer", "code"), [(["--dry-run"], None, 0), ([], b"n\n", 1), ([], b"", 1)]
)
def test_repair_changes_nothing_before_a_person_says_so(
    damaged: Path, arguments: list[str], answer: bytes | None, code: int
) -> None:
    before = files(damaged)
    result = taskq("repair", "-d", damaged, *arguments, data=answer)
    assert result.exit_code == code
    assert "SEGMENT" in result.stdout
    assert ("nothing was changed" in result.stderr) is bool(code)
    assert files(damaged) == before


def test_repair_goes_on_when_it_is_told_to(damaged: Path) -> None:
    assert taskq("repair", "-d", damaged, data=b"y\n").exit_code == 0
    assert taskq("verify", "-d", damaged).exit_code == 0


async def test_repair_names_the_process_that_has_the_log_open(damaged: Path) -> None:
    async with TaskLog.open(damaged, name="the-worker"):
        before = files(damaged / "log")
        result = taskq("repair", "-d", damaged, "--yes")
        assert result.exit_code == 1
        assert f"is open in process {os.getpid()} (the-worker on " in result.stderr
        assert "stop it, then repair" in result.stderr
        assert files(damaged / "log") == before


def test_repair_tells_programs_what_it_did(damaged: Path) -> None:
    result = taskq("repair", "-d", damaged, "--json")
    assert result.exit_code == 2
    assert "--json asks nothing" in result.stderr
    output = json.loads(taskq("repair", "-d", damaged, "--json", "--dry-run").stdout)
    assert (len(output["damage"]), output["kept"], len(output["lost_jobs"])) == (1, [], 1)
    output = json.loads(taskq("repair", "-d", damaged, "--json", "--yes").stdout)
    assert len(output["kept"]) == 1
    assert output["lost_records"] == 1
