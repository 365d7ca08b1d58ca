"""``taskq repair``: copies what reads into a log that verifies clean, and changes no other file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from taskq import Shards, TaskLog, TaskQ
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
    return {str(path): path.read_bytes() for path in path.rglob("*") if path.is_file()}


def test_a_repaired_copy_verifies_clean_and_lacks_the_jobs_that_are_named_as_lost(
    sample: Sample, damaged: Path, tmp_path: Path
) -> None:
    others = {job["id"] for job in taskq_json("ls", "-d", damaged)}
    before = files(damaged)
    assert taskq("verify", "-d", damaged).exit_code == 1
    new = tmp_path / "new"
    result = taskq("repair", "-d", damaged, "--to", new)
    assert result.exit_code == 0, result.stderr
    assert f"lost job {sample.ids['succeeded']}\n" in result.stdout
    assert f"what reads is in {new}; {damaged} is as it was\n" in result.stdout
    assert files(damaged) == before
    assert taskq("verify", "-d", new).exit_code == 0
    assert {job["id"] for job in taskq_json("ls", "-d", new)} == others
    assert taskq("repair", "-d", new).stdout == "no damage: nothing to repair\n"
    assert taskq("put", "-d", new, "[1]").exit_code == 0


def test_without_a_place_for_the_copy_a_repair_only_says_what_it_would_do(damaged: Path) -> None:
    before = files(damaged)
    result = taskq("repair", "-d", damaged)
    assert result.exit_code == 0
    assert "SEGMENT" in result.stdout
    assert f"taskq repair -d {damaged} --to NEW" in result.stdout
    assert files(damaged) == before


def test_a_repair_writes_over_nothing(damaged: Path, sample: Sample) -> None:
    before = files(sample.path)
    result = taskq("repair", "-d", damaged, "--to", sample.path)
    assert result.exit_code == 1
    assert "is not empty" in result.stderr
    assert files(sample.path) == before


async def test_repair_names_the_process_that_has_the_log_open(
    damaged: Path, tmp_path: Path
) -> None:
    async with TaskLog.open(damaged, name="the-worker"):
        result = taskq("repair", "-d", damaged, "--to", tmp_path / "new")
        assert result.exit_code == 1
        assert f"is open in process {os.getpid()} (the-worker on " in result.stderr
        assert "stop it, then repair" in result.stderr
        assert not (tmp_path / "new").exists()


def test_repair_gives_programs_what_it_did(damaged: Path, tmp_path: Path) -> None:
    output = json.loads(taskq("repair", "-d", damaged, "--json").stdout)
    assert (len(output["damage"]), output["target"], len(output["lost_jobs"])) == (1, None, 1)
    new = tmp_path / "new"
    output = json.loads(taskq("repair", "-d", damaged, "--json", "--to", new).stdout)
    assert (output["lost_records"], output["target"]) == (1, str(new))


def test_a_damaged_shard_is_repaired_below_the_new_place_under_its_name(tmp_path: Path) -> None:
    with TaskQ(shards=Shards(tmp_path / "root")) as app:
        app.enqueue_by_name_sync("mail.send", "Ada")
    [segment] = [
        path
        for path in (tmp_path / "root").glob("*/log/*.log")
        if b"mail.send" in path.read_bytes()
    ]
    data = bytearray(segment.read_bytes())
    data[data.index(b"mail.send")] ^= 1
    segment.write_bytes(data)
    result = taskq("repair", tmp_path / "root", "--to", tmp_path / "new")
    assert "1 lost" in result.stdout
    [new] = (tmp_path / "new").iterdir()
    assert new.name == segment.parents[1].name
    assert taskq("verify", new).exit_code == 0
