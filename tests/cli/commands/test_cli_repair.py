"""Commands for a log that is damaged, or lacks a segment: verify, repair, and the others' words."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from pathlib import Path

import pytest

from taskq import Put, Shards, TaskLog, TaskQ
from taskq.log.upkeep.health import Check, check_health
from tests.cli.helpers import Sample, taskq, taskq_json
from tests.processes.harness import same_log


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


def damaged_log(sample: Sample, tmp_path: Path) -> Path:
    """Return a copy of the sample with one flipped bit inside the first job's payload."""
    copy = tmp_path / "queue"
    shutil.copytree(sample.path, copy)
    segment = min((copy / "log").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[data.index(b'{"n":1}')] ^= 1
    segment.write_bytes(data)
    return copy


def test_verify_reports_damage_with_its_place_and_jobs_and_exits_1(
    sample: Sample, tmp_path: Path
) -> None:
    copy = damaged_log(sample, tmp_path)
    result = taskq("verify", "-d", copy)
    assert result.exit_code == 1
    assert "DAMAGED" in result.stdout
    assert "SEGMENT" in result.stdout
    assert f"job {sample.ids['succeeded']}\n" in result.stdout
    document = taskq("verify", "-d", copy, "--json")
    assert document.exit_code == 1


def test_the_other_jobs_of_a_damaged_log_are_still_listed(sample: Sample, tmp_path: Path) -> None:
    ids = {job["id"] for job in taskq_json("ls", "-d", damaged_log(sample, tmp_path))}
    assert sample.ids["task"] in ids


_KIB = 1024


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a closed log of six segments."""
    path = tmp_path_factory.mktemp("whole") / "data"

    async def write() -> None:
        async with TaskLog.open(path, segment_bytes=64 * _KIB) as log:
            while len(list((path / "log").glob("*.log"))) < 6:
                await log.put_many([Put(payload=os.urandom(4 * _KIB))] * 5)
            await log.put_many([Put(payload=b"{}")] * 5)
            await log.put(b"[]")

    asyncio.run(write())
    return path


@pytest.fixture
def queue(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of it that is taken for the log itself, not for an older copy."""
    path = shutil.copytree(whole, tmp_path / "queue", ignore=shutil.ignore_patterns("*.pipe"))
    same_log(path)
    return path


def _segments(path: Path) -> list[Path]:
    return sorted((path / "log").glob("*.log"))


def _log_check(path: Path) -> Check:
    return next(check for check in check_health(path) if check.name == "log")


@pytest.mark.parametrize("size", [None, 0, 64])
@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_lost_segment_is_told_by_all_until_a_person_accepts_it(
    queue: Path, number: int, size: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert taskq("verify", "-d", queue).exit_code == 0
    assert _log_check(queue).ok
    victim = _segments(queue)[number]
    if size is None:
        victim.unlink()
    else:
        os.truncate(victim, size)
    result = taskq("verify", "-d", queue)
    assert result.exit_code == 1
    assert "records are lost, of lsns" in result.stdout
    assert not _log_check(queue).ok
    assert "taskq repair" in _log_check(queue).detail
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "taskq"):
            assert taskq("put", "-d", queue, "[1]").exit_code == 0
        assert "records are lost, of lsns" in caplog.text
        caplog.clear()
        assert taskq("verify", "-d", queue).exit_code == 1
    new = queue.with_name("new")
    done = taskq("repair", "-d", queue, "--to", new)
    assert done.exit_code == 0
    assert taskq("verify", "-d", queue).exit_code == 1
    queue = new
    assert taskq("verify", "-d", queue).exit_code == 0
    assert _log_check(queue).ok
    with caplog.at_level(logging.WARNING, "taskq"):
        assert taskq("put", "-d", queue, "[1]").exit_code == 0
    assert "lost" not in caplog.text
    assert taskq_json("ls", "-d", queue)


def test_an_accepted_loss_is_named_and_no_more(queue: Path) -> None:
    """The lsns stay out: who counts them finds a line, and exit code 0."""
    _segments(queue)[2].unlink()
    taskq("repair", "-d", queue, "--to", queue.with_name("new"))
    result = taskq("verify", "-d", queue.with_name("new"))
    assert result.exit_code == 0
    assert "no damage" in result.stdout
    assert "lsns were lost at lsn" in result.stdout
