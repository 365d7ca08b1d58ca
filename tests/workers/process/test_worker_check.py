"""``taskq check``: what is wrong before the start."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskq import TaskQ
from taskq.cli.main import main
from taskq.log.config import LogConfig
from taskq.log.machine.disk import SystemClock
from taskq.log.upkeep.health import check_start

numbers = itertools.count()

SHOP = """
from taskq import Inject, TaskQ, injected
app = TaskQ("data")

@app.task(name="shop.send")
async def send(to: str) -> int:
    return 1
"""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, own_settings: None) -> None:
    """The working directory is put on the path, and off it again."""
    monkeypatch.setattr(sys, "path", sys.path[:])


def check(*words: object) -> tuple[int, dict[str, tuple[bool, str]]]:
    """(exit code, by name whether it is well and what was found)."""
    result = CliRunner().invoke(main, ["check", *map(str, words), "--json"])
    assert result.stdout, result.output
    answer = json.loads(result.stdout)
    assert answer["ok"] is (result.exit_code == 0)
    return result.exit_code, {
        line["name"]: (line["ok"], line["detail"]) for line in answer["checks"]
    }


def module(text: str) -> str:
    name = f"checked_{next(numbers)}"
    Path(f"{name}.py").write_text(text)
    return f"{name}:app"


def test_all_that_is_well_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    code, result = check(module(SHOP))
    assert code == 0
    assert list(result) == [
        *("versions", "app", "tasks", "schedules", "jobs", "settings", "directory", "clock"),
    ]
    assert result["tasks"] == (True, "1 task")
    assert not (tmp_path / "data").exists()
    text = CliRunner().invoke(main, ["check"])
    assert text.exit_code == 0
    assert text.output.startswith("ok      versions")


def test_an_app_that_does_not_import_is_told_with_the_rest() -> None:
    code, result = check(module("import nowhere_at_all"))
    assert code == 1
    assert result["app"][0] is False
    assert "nowhere_at_all" in result["app"][1]
    assert result["clock"][0]


def test_tasks_and_schedules_that_could_not_run_are_told() -> None:
    wrong = """
class Database: ...

@app.task
async def unnamed(n: "Nowhere") -> None: ...

@app.task
async def lent(db: Inject[Database] = injected()) -> None: ...

@app.every("1h")
async def tick(n: int) -> None: ...
"""
    code, result = check(module(SHOP + wrong))
    assert code == 1
    ok, detail = result["tasks"]
    assert not ok
    assert "Nowhere" in detail
    assert "lent takes db from a lifespan, and the app has none" in detail
    assert result["schedules"][0] is False
    assert "the schedule" in result["schedules"][1]
    assert check(module(SHOP.partition("@app")[0]))[1]["tasks"][0] is False


def test_jobs_that_nobody_would_take_are_told() -> None:
    with TaskQ("data") as app:
        app.enqueue_by_name_sync("shop.send", "a@b.c")
        known = check(module(SHOP))
        app.enqueue_by_name_sync("shop.sned", "a@b.c")
        code, result = check(module(SHOP))
    assert known[0] == 0
    assert known[1]["jobs"] == (
        True,
        "1 waits, all for tasks that are known; the arguments of 1 were tried",
    )
    assert code == 1
    assert "shop.sned" in result["jobs"][1]


def test_jobs_of_paused_queues_and_of_later_are_counted_and_their_arguments_tried() -> None:
    with TaskQ("data") as app:
        app.enqueue_by_name_sync("shop.send", to="a@b.c")
        app.enqueue_sync(app.call_by_name("shop.send", number=7).options(delay="1h"))
        app.enqueue_sync(app.call_by_name("shop.gone").options(queue="old"))
        app.pause_sync("old")
        code, result = check(module(SHOP))
    assert code == 1
    detail = result["jobs"][1]
    assert "1 job waits that no worker knows: shop.gone (1)" in detail
    assert "1 of the 2 that were tried do not fit shop.send, such as " in detail
    assert "number" in detail


def test_settings_that_are_refused_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQ_DURABILITY", "often")
    code, result = check()
    assert code == 1
    assert result["settings"][0] is False
    assert "TASKQ_DURABILITY" in result["settings"][1]


def test_a_directory_that_is_no_log_or_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("x")
    assert check("-d", "other")[1]["directory"][0] is False
    with TaskQ("data") as app:
        app.store()
    assert check("-d", "data")[0] == 0
    # The user of the tests may have every permission.
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    code, result = check("-d", "data")
    assert code == 1
    assert result["directory"][0] is False
    assert check("-d", "not/there")[1]["directory"][0] is False


def test_a_clock_behind_the_logs_last_record_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TaskQ(tmp_path / "data") as app:
        app.enqueue_by_name_sync("shop.send", "a@b.c")
    now_ns = SystemClock().wall_ns()
    for moment_ns, item in ((now_ns - 7200 * 10**9, "2h before the log"), (5, "1970-01-01")):
        monkeypatch.setattr(SystemClock, "wall_ns", lambda _, ns=moment_ns: ns)
        (clock,) = [
            item for item in check_start(tmp_path / "data", LogConfig()) if item.name == "clock"
        ]
        assert not clock.ok
        assert item in clock.detail


def test_modules_without_an_app_are_a_mistake() -> None:
    result = CliRunner().invoke(main, ["check", "-I", "shop"])
    assert result.exit_code == 2
    assert "give MODULE:APP" in result.output
