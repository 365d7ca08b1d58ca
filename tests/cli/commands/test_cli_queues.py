"""``taskq pause``, ``resume``, ``purge`` and ``cancel``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskq import TaskLog
from tests.cli.helpers import state, taskq, taskq_json


async def _fill(path: Path) -> dict[str, str]:
    async with TaskLog.open(path, durability="os") as log:
        ids = {
            "running": await log.put(b"x", queue="mail", priority=9),
            "mail": await log.put(b"x", queue="mail"),
            "late": await log.put(b"x", queue="mail", delay="1h"),
            "sync": await log.put(b"x", queue="sync"),
        }
        (delivery,) = await log.claim()
        assert delivery.job_id == ids["running"]
        await log.nack(delivery, "no", delay=0)
        done = await log.put(b"x", queue="sync", priority=9)
        (delivery,) = await log.claim(queues=["sync"])
        await log.ack(delivery)
        ids["done"] = done
        return ids


@pytest.fixture
def ids(path: Path) -> dict[str, str]:
    return asyncio.run(_fill(path))


def test_pause_and_resume_say_what_they_did(path: Path, ids: dict[str, str]) -> None:
    result = taskq("pause", "mail", "sync", "-d", path)
    assert (result.exit_code, result.stdout) == (0, "mail: paused\nsync: paused\n")
    result = taskq("pause", "mail", "-d", path)
    assert (result.exit_code, result.stdout) == (0, "mail: was paused already\n")
    assert "mail (paused)" in taskq("stats", "-d", path).stdout
    queues = {row["queue"]: row["paused"] for row in taskq_json("stats", "-d", path)["queues"]}
    assert queues == {"mail": True, "sync": True}
    result = taskq("resume", "mail", "other", "-d", path)
    assert (result.exit_code, result.stdout) == (0, "mail: resumed\nother: was not paused\n")
    assert taskq_json("resume", "sync", "-d", path) == [
        {"queue": "sync", "paused": False, "changed": True}
    ]
    assert "paused" not in taskq("stats", "-d", path).stdout


def test_a_wrong_name_changes_no_queue(path: Path, ids: dict[str, str]) -> None:
    result = taskq("pause", "mail", "a\x07b", "-d", path)
    assert result.exit_code == 2
    assert "queue name" in result.stderr
    assert "paused" not in taskq("stats", "-d", path).stdout


def test_a_cancel_of_a_whole_queue_wants_a_yes_and_counts(path: Path, ids: dict[str, str]) -> None:
    assert taskq("cancel", "-Q", "mail", "-d", path).exit_code == 2
    result = taskq("cancel", "-Q", "mail", "-d", path, "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "would have cancelled 3 jobs\n")
    assert taskq_json("cancel", "-Q", "mail", "-d", path, "--yes") == {
        "dry_run": False, "cancelled": 3, "running": 0, "refused": 0, "errors": [],
    }  # fmt: skip
    assert state(path, ids["late"]) == "cancelled"
    assert state(path, ids["sync"]) == "ready"


def test_cancel_by_id_tells_of_those_that_are_settled(path: Path, ids: dict[str, str]) -> None:
    result = taskq("cancel", ids["mail"], ids["late"], "-d", path)
    assert (result.exit_code, result.stdout) == (0, "cancelled 2 jobs\n")
    result = taskq("cancel", ids["sync"], ids["done"], ids["mail"], "-d", path)
    assert (result.exit_code, result.stdout) == (1, "cancelled 1 job\n")
    assert result.stderr == (
        f"taskq: job {ids['done']} is succeeded: it is too late to cancel it\n"
        f"taskq: job {ids['mail']} is cancelled: it is too late to cancel it\n"
    )
    unknown = f"{ids['mail'].partition('-')[0]}-4711"
    result = taskq("cancel", unknown, "-d", path)
    assert result.exit_code == 1
    assert "4711" in result.stderr


def test_cancel_by_filter(path: Path, ids: dict[str, str]) -> None:
    assert taskq("cancel", "-Q", "mail", "-d", path).exit_code == 2
    for filters, count in (
        (("-Q", "mail"), 3),
        (("-t", "none"), 0),
        (("-s", "scheduled"), 1),
        (("--before", "1h"), 0),
        (("--before", "2100-01-01"), 4),
    ):
        document = taskq_json("cancel", "-d", path, *filters, "--dry-run")
        assert (document["cancelled"], document["dry_run"]) == (count, True), filters
    result = taskq("cancel", "-Q", "mail", "-s", "ready", "-n", "1", "-y", "-d", path)
    assert (result.exit_code, result.stdout) == (0, "cancelled 1 job\n")
    assert state(path, ids["running"]) == "cancelled"
    assert state(path, ids["mail"]) == "ready"


def test_edit_lets_jobs_wait_elsewhere_and_the_timeline_tells_how(
    path: Path, ids: dict[str, str]
) -> None:
    result = taskq("edit", ids["late"], ids["mail"], "--priority", "9", "-Q", "vip", "-d", path)
    assert (result.exit_code, result.stdout) == (0, "edited 2 jobs\n")
    shown = taskq_json("show", ids["late"], "-d", path)
    assert (shown["state"], shown["queue"], shown["priority"]) == ("scheduled", "vip", 9)
    assert taskq("edit", ids["late"], "--run-now", "-d", path).exit_code == 0
    assert taskq("edit", ids["mail"], "--delay", "2h", "-d", path).exit_code == 0
    assert [state(path, ids[name]) for name in ("late", "mail")] == ["ready", "scheduled"]
    answer = [
        row for row in taskq_json("timeline", ids["late"], "-d", path) if row["kind"] == "edited"
    ]
    assert [line["reason"] for line in answer] == [
        "queue mail, now vip; priority 5, now 9",
        "ready",
    ]
    assert [line["due_at"] is None for line in answer] == [False, True]
    assert ids["late"] in taskq("ls", path, "-Q", "vip").stdout
    assert ids["late"] not in taskq("ls", path, "-Q", "mail").stdout
    assert taskq("tail", "--json", "-d", path, "-n", "99").stdout.count('"kind": "edited"') == 4


def test_edit_refuses_what_does_not_wait_and_wishes_that_contradict(
    path: Path, ids: dict[str, str]
) -> None:
    result = taskq("edit", ids["done"], ids["mail"], "--priority", "9", "-d", path)
    assert (result.exit_code, result.stdout) == (1, "edited 1 job\n")
    assert f"job {ids['done']} does not wait: it is succeeded" in result.stderr
    for wish, message in (
        ((), "give at least one of --run-now"),
        (("--run-now", "--delay", "1h"), "one due time"),
        (("--eta", "2h"), "give a time"),
        (("--delay", "soon"), "soon"),
    ):
        result = taskq("edit", ids["mail"], *wish, "-d", path)
        assert result.exit_code == 2, wish
        assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name job ids, or choose jobs"),
        (("x-1", "-Q", "mail"), "name job ids, or choose jobs"),
        (("x-1", "--dry-run"), "are for filters, not for job ids"),
        (("nonsense",), "is no job id"),
        (("0000ffff-1",), "belongs to log 0000ffff"),
        (("--before", "soon"), "--before 'soon'"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    path: Path, ids: dict[str, str], arguments: tuple[str, ...], message: str
) -> None:
    result = taskq("cancel", "-d", path, "-y", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert state(path, ids["mail"]) == "ready"
