"""Commands leave upkeep to the processes that work on a log; ``compact`` does it now."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from taskq import Put, TaskLog, TaskQ
from taskq.connection.logoptions import LogOptions
from taskq.errors import UsageError
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.upkeep.upkeep import Upkeep
from tests.cli.helpers import taskq, taskq_json


@pytest.mark.parametrize(
    "words",
    [
        ("put", "x"),
        ("cancel", "-Q", "default", "--yes"),
        ("pause", "default"),
        ("dead", "requeue", "--all", "--yes"),
        ("replay", "--all"),
        ("tail", "--reader", "billing", "-n", "1"),
        ("reader", "ls"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_removes_nothing_by_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Its settings come from the environment and files; an app may have said otherwise in code."""
    assert taskq("put", "x", "-d", tmp_path).exit_code == 0
    looks: list[Upkeep] = []

    def work(upkeep: Upkeep) -> object:
        looks.append(upkeep)
        yield None

    monkeypatch.setattr(Upkeep, "_work", work)
    result = taskq(*words, "-d", tmp_path)
    assert result.exit_code == 0, result.output
    assert not looks


def test_compact_does_what_it_is_told_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert taskq("put", "x", "-d", tmp_path).exit_code == 0
    monkeypatch.setattr(Upkeep, "_work", lambda _: pytest.fail("it was not asked to"))
    result = taskq("compact", "-d", tmp_path)
    assert (result.exit_code, result.stdout) == (0, "Nothing to do: no segment is due.\n")


#: Upkeep would be faster than the tests.
OPTIONS: LogOptions = {"segment_bytes": SEGMENT_BYTES_MIN, "upkeep": False}


async def _grow(tmp_path: Path) -> tuple[Path, str, str]:
    async with TaskLog.open(tmp_path, **OPTIONS) as log:
        waits = await log.put(b"later", delay="1d")
        ids: list[str] = []
        for _ in range(12):
            ids += await log.put_many([Put(payload=bytes(4_000))] * 8)
            for delivery in await log.claim(8):
                await log.ack(delivery, b"done")
    return tmp_path, ids[0], waits


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Path, str, str]:
    """Return a log of several segments, its oldest finished job and a waiting one."""
    return asyncio.run(_grow(tmp_path))


def logs(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "log").glob("*.log"))


def test_nothing_goes_before_its_time(grown: tuple[Path, str, str]) -> None:
    path, _, _ = grown
    before = logs(path)
    result = taskq("compact", "-d", path)
    assert (result.exit_code, result.stdout) == (0, "Nothing to do: no segment is due.\n")
    assert logs(path) == before


def test_the_settings_that_it_obeys_are_named_before_anything_goes(
    grown: tuple[Path, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _ = grown
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / ".env").write_text("OTHER=1\nTASKQ_KEEP=0s\n")
    (here / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert "settings" not in taskq("compact", "-d", path, "--dry-run").stderr
    (here / "taskq.toml").write_text(f"keep_segments = 9\ndata_dir = '{path}'\n")
    output = taskq("compact", "--dry-run")
    assert output.stderr == f"taskq: with the settings of {here}/.env, {here}/taskq.toml\n"
    assert "would go" in output.stdout
    (path / "taskq.toml").write_text("keep = '0s'\n")
    as_json = taskq_json("compact", "-d", path, "--dry-run")
    assert as_json["settings_files"] == [f"{path}/taskq.toml"]


@pytest.mark.parametrize("name", [".env", "taskq.toml", "pyproject.toml"])
def test_settings_that_another_user_could_plant_are_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In a directory that all may write to; elsewhere who owns the file is nobody's business."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("")
    monkeypatch.setattr("os.geteuid", lambda: 12_345)
    assert TaskQ().name == ""
    tmp_path.chmod(0o1777)
    if os.getuid() == 0:
        assert TaskQ().name == "", "root's files are root's"
        os.chown(tmp_path / name, 12_346, -1)
        with pytest.raises(UsageError, match=rf"{name} is another user's, in a directory that all"):
            TaskQ()
    os.chown(tmp_path, (tmp_path / name).stat().st_uid, -1)
    assert TaskQ().name == "", "who owns the directory may"


def test_a_dry_run_tells_the_same_and_changes_nothing(grown: tuple[Path, str, str]) -> None:
    path, _, _ = grown
    before = logs(path)
    output = taskq_json("compact", "-d", path, "--keep", "0", "--dry-run")
    assert output["dry_run"]
    assert [line["segment"] for line in output["segments"] if line["removed"]] == before
    assert logs(path) == before
    printed = taskq("compact", "-d", path, "--keep", "0", "--dry-run").stdout
    assert printed.count("would go") == len(before)
    assert "would be freed" in printed


def test_compact_removes_what_is_over_and_leaves_what_waits(grown: tuple[Path, str, str]) -> None:
    """A bare number is seconds, as everywhere on the command line."""
    path, finished, waits = grown
    before = logs(path)
    result = taskq("compact", "-d", path, "--keep", "0")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("gone") == len(before)
    assert "1 jobs written again" not in result.stdout
    assert "1 job written again" in result.stdout
    assert before[0] not in logs(path)
    assert taskq("show", finished, "-d", path).exit_code == 1
    assert taskq_json("show", waits, "-d", path)["state"] == "scheduled"


def test_a_wrong_time_is_named(grown: tuple[Path, str, str]) -> None:
    result = taskq("compact", "-d", grown[0], "--keep", "soon")
    assert result.exit_code == 2
    assert result.stderr.startswith("taskq: keep is 'soon': give seconds")


def test_dead_letters_over_their_limit_go_too_and_a_dry_run_leaves_them(tmp_path: Path) -> None:
    """By hand as by a worker: ``dead_max`` holds for ``compact`` as well."""

    async def compacted() -> tuple[int, int]:
        options: LogOptions = {**OPTIONS, "dead_max": 1}
        async with TaskLog.open(tmp_path, **options) as log:
            for number in range(3):
                await log.put(b"%d" % number, attempts=1)
                await log.nack((await log.claim(1))[0], "no")
            await log.compact(dry_run=True)
            before = await log.dead.count()
            await log.compact()
            return before, await log.dead.count()

    assert asyncio.run(compacted()) == (3, 1)
