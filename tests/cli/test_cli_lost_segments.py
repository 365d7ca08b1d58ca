"""Lost segments: ``verify``, ``health`` and writers report them until ``repair``."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path

import pytest

from taskq import Put, TaskLog
from taskq.log.upkeep.health import Check, check_health
from tests.cli.helpers import taskq, taskq_json
from tests.processes.harness import same_log

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
