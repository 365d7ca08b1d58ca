"""``taskq schedules``: what the log knows of them, without the app."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskq import TaskQ
from taskq_workers.services.scheduler import Scheduler
from tests.cli.helpers import taskq, taskq_json


async def _enrol(path: Path) -> None:
    async with TaskQ(path, durability="os") as app:
        call = app.call_by_name("report", 1).options(queue="reports")
        app.schedule("nightly", call, cron="30 2 * * *", tz="Europe/Berlin", catch_up="all")
        app.schedule("often", call, every="10m", jitter="1m")
        await Scheduler(app).look(app.store())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    asyncio.run(_enrol(tmp_path / "log"))
    return tmp_path / "log"


def test_schedules_are_listed_with_their_next_ticks(path: Path) -> None:
    nightly, often = taskq_json("schedules", "ls", "-n", "2", "-d", path)
    assert nightly == {
        "name": "nightly", "rule": "30 2 * * *", "tz": "Europe/Berlin", "task": "report",
        "queue": "reports", "catch_up": "all", "overlap": "allow", "jitter_seconds": 0.0,
        "paused": False, "last_tick": None, "done_until": nightly["done_until"],
        "next_ticks": nightly["next_ticks"],
    }  # fmt: skip
    assert len(nightly["next_ticks"]) == 2
    assert all("T02:30:00+0" in moment for moment in nightly["next_ticks"])
    assert (often["rule"], often["tz"], often["jitter_seconds"]) == ("every 0:10:00", None, 60.0)
    lines = taskq("schedules", "-d", path).stdout.splitlines()
    assert lines[0].split() == ["NAME", "RULE", "ZONE", "TASK", "LAST", "TICK", "NEXT", "STATE"]
    assert lines[1].startswith("nightly  30 2 * * *")
    assert lines[1].count("02:30:00+0") == 3
    assert lines[2].rstrip().endswith("active")
    assert taskq_json("schedules", "-d", path)[0]["name"] == "nightly"


def test_pause_and_resume_say_what_they_did(path: Path) -> None:
    result = taskq("schedules", "pause", "often", "-d", path)
    assert (result.exit_code, result.stdout) == (0, "often: paused\n")
    assert taskq("schedules", "pause", "often", "-d", path).stdout == "often: was paused already\n"
    assert [row["paused"] for row in taskq_json("schedules", "-d", path)] == [False, True]
    assert "paused" in taskq("schedules", "ls", "-d", path).stdout
    assert taskq_json("schedules", "resume", "often", "-d", path) == {
        "name": "often", "action": "resume", "changed": True,
    }  # fmt: skip
    assert taskq("schedules", "resume", "often", "-d", path).stdout == "often: was not paused\n"
    assert taskq("schedules", "reset", "often", "-d", path).stdout == "often: counts from now\n"
    assert taskq("schedules", "forget", "often", "-d", path).stdout == "often: forgotten\n"
    assert [row["name"] for row in taskq_json("schedules", "-d", path)] == ["nightly"]
    taskq("schedules", "forget", "nightly", "-d", path)
    assert taskq("schedules", "-d", path).stdout.startswith("This log knows no schedule")


def test_an_unknown_schedule_is_told_from_known_ones(path: Path) -> None:
    result = taskq("schedules", "pause", "nightly2", "-d", path)
    assert result.exit_code != 0
    assert "no schedule 'nightly2' (it knows nightly, often)" in result.stderr


def test_the_log_shows_ticks_as_records(path: Path) -> None:
    taskq("schedules", "pause", "often", "-d", path)
    shown = taskq("tail", "-n", "9", "-d", path)
    assert shown.stdout.count("ticked") == 3, shown.stdout
    assert "often" in shown.stdout
