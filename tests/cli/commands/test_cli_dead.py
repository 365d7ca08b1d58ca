"""Commands that change what waits: dead letters, queues, jobs, schedules."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import pytest

from taskq import TaskLog, TaskQ
from taskq_workers.services.scheduler import Scheduler
from tests.cli.helpers import state, taskq, taskq_json


async def _fill(path: Path) -> dict[str, str]:
    ids = {}
    async with TaskLog.open(path, durability="os") as log:
        for name, queue, reason in (
            ("mail", "mail", "TimeoutError: slow\ntraceback"),
            ("sync", "sync", "ValueError: bad\x1b[31m"),
            ("held", "mail", "ValueError: held"),
        ):
            key = "k" if name == "held" else None
            ids[name] = await log.put(b'{"n": 1}', queue=queue, attempts=1, key=key)
            (delivery,) = await log.claim(queues=[queue])
            await log.nack(delivery, reason)
        ids["live"] = await log.put(b"x", queue="mail", key="k")
    return ids


@pytest.fixture
def ids(path: Path) -> dict[str, str]:
    return asyncio.run(_fill(path))


def dead_ids(path: Path, *filters: str) -> list[str]:
    return [job["id"] for job in taskq_json("dead", "ls", "-d", path, *filters)]


def test_ls_shows_reasons_and_writes_nothing(path: Path, ids: dict[str, str]) -> None:
    before = {path: path.read_bytes() for path in path.rglob("*") if path.is_file()}
    result = taskq("dead", "ls", "-d", path)
    assert result.exit_code == 0
    assert "TimeoutError: slow" in result.stdout
    assert "ValueError: bad\\x1b[31m" in result.stdout
    assert "traceback" not in result.stdout
    assert set(dead_ids(path)) == {ids["mail"], ids["sync"], ids["held"]}
    assert before == {path: path.read_bytes() for path in path.rglob("*") if path.is_file()}


def test_ls_filters(path: Path, ids: dict[str, str]) -> None:
    for filters, expected in (
        (("-Q", "sync"), ["sync"]),
        (("--error", "slow"), ["mail"]),
        (("--match", "^Value.*d$"), ["held"]),
        (("--since", "1h", "-Q", "sync"), ["sync"]),
        (("--before", "1h"), []),
        (("--since", "2100-01-01"), []),
    ):
        assert dead_ids(path, *filters) == [ids[name] for name in expected], filters
    assert len(dead_ids(path, "-n", "2")) == 2
    result = taskq("dead", "ls", "-d", path, "--error", "nothing of the kind")
    assert (result.exit_code, result.stdout) == (0, "No dead letter matches.\n")


def test_show_shows_dead_letters_only(path: Path, ids: dict[str, str]) -> None:
    result = taskq("dead", "show", ids["mail"], "-d", path)
    assert result.exit_code == 0
    assert "traceback" in result.stdout
    assert taskq_json("dead", "show", ids["mail"], "-d", path)["reason"].startswith("TimeoutError")
    result = taskq("dead", "show", ids["live"], "-d", path)
    assert result.exit_code == 1
    assert result.stderr == (
        f"taskq: job {ids['live']} is no dead letter: it is ready; they are listed by: "
        f"taskq dead ls -d {path}\n"
    )


def test_requeue_by_id_works_once(path: Path, ids: dict[str, str]) -> None:
    result = taskq("dead", "requeue", ids["mail"], "-d", path)
    assert (result.exit_code, result.stdout) == (0, "requeued 1 dead letter\n")
    assert state(path, ids["mail"]) == "ready"
    result = taskq("dead", "requeue", ids["mail"], ids["held"], "-d", path)
    assert (result.exit_code, result.stdout) == (1, "requeued 0 dead letters\n")
    assert f"job {ids['mail']} is no dead letter: it is ready" in result.stderr
    assert f"job {ids['live']} holds its dedup key" in result.stderr
    document = taskq("dead", "requeue", ids["sync"], ids["mail"], "-d", path, "--json")
    assert document.exit_code == 1
    assert '"requeued": 1' in document.stdout
    assert '"refused": 1' in document.stdout


def test_requeue_by_filter_asks_first(path: Path, ids: dict[str, str]) -> None:
    result = taskq("dead", "requeue", "-d", path, "-Q", "sync")
    assert result.exit_code == 2
    assert "add --yes" in result.stderr
    result = taskq("dead", "requeue", "-d", path, "--all", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "would have requeued 3 dead letters\n")
    assert len(dead_ids(path)) == 3
    result = taskq("dead", "requeue", "-d", path, "-Q", "sync", "--yes")
    assert (result.exit_code, result.stdout) == (0, "requeued 1 dead letter\n")
    assert state(path, ids["sync"]) == "ready"
    result = taskq("dead", "requeue", "-d", path, "--all", "--limit", "1", "-y")
    assert result.stdout == "requeued 1 dead letter\n"
    assert state(path, ids["mail"]) == "ready"


def test_a_person_is_asked_with_the_number_of_jobs(
    path: Path, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq.cli.many._is_asked", lambda: True)
    result = taskq("dead", "purge", "-d", path, "--all", data=b"n\n")
    assert result.exit_code == 130
    assert "Purge 3 jobs? [y/N]" in result.output
    assert len(dead_ids(path)) == 3
    result = taskq("dead", "purge", "-d", path, "-Q", "sync", data=b"y\n")
    assert result.exit_code == 0
    assert "purged 1 dead letter" in result.stdout
    assert ids["sync"] not in dead_ids(path)
    result = taskq("dead", "purge", "-d", path, "-Q", "sync", data=b"")
    assert (result.exit_code, result.stdout) == (0, "purged 0 dead letters\n")


def test_purge_forgets_the_job(path: Path, ids: dict[str, str]) -> None:
    result = taskq("dead", "purge", ids["mail"], "-d", path)
    assert (result.exit_code, result.stdout) == (0, "purged 1 dead letter\n")
    assert taskq("show", ids["mail"], "-d", path).exit_code == 1
    result = taskq("dead", "purge", ids["mail"], "-d", path)
    assert result.exit_code == 1
    assert f"there is no job {ids['mail']}" in result.stderr
    assert taskq_json("dead", "purge", "-d", path, "--all", "-y")["purged"] == 2


def test_the_group_tells_its_commands() -> None:
    result = taskq("dead", "--help")
    assert result.exit_code == 0
    for verb in ("ls", "show", "requeue", "purge"):
        assert f"\n  {verb} " in result.stdout
        assert "--data-dir" in taskq("dead", verb, "--help").stdout


async def _fill_queues(path: Path) -> dict[str, str]:
    async with TaskLog.open(path, durability="os") as log:
        queued = {
            "running": await log.put(b"x", queue="mail", priority=9),
            "mail": await log.put(b"x", queue="mail"),
            "late": await log.put(b"x", queue="mail", delay="1h"),
            "sync": await log.put(b"x", queue="sync"),
        }
        (delivery,) = await log.claim()
        assert delivery.job_id == queued["running"]
        await log.nack(delivery, "no", delay=0)
        done = await log.put(b"x", queue="sync", priority=9)
        (delivery,) = await log.claim(queues=["sync"])
        await log.ack(delivery)
        queued["done"] = done
        return queued


@pytest.fixture
def queued(path: Path) -> dict[str, str]:
    return asyncio.run(_fill_queues(path))


def test_pause_and_resume_say_what_they_did(path: Path, queued: dict[str, str]) -> None:
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


def test_a_wrong_name_changes_no_queue(path: Path, queued: dict[str, str]) -> None:
    result = taskq("pause", "mail", "a\x07b", "-d", path)
    assert result.exit_code == 2
    assert "queue name" in result.stderr
    assert "paused" not in taskq("stats", "-d", path).stdout


def test_a_cancel_of_a_whole_queue_wants_a_yes_and_counts(
    path: Path, queued: dict[str, str]
) -> None:
    assert taskq("cancel", "-Q", "mail", "-d", path).exit_code == 2
    result = taskq("cancel", "-Q", "mail", "-d", path, "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "would have cancelled 3 jobs\n")
    assert taskq_json("cancel", "-Q", "mail", "-d", path, "--yes") == {
        "dry_run": False, "cancelled": 3, "running": 0, "refused": 0, "errors": [],
    }  # fmt: skip
    assert state(path, queued["late"]) == "cancelled"
    assert state(path, queued["sync"]) == "ready"


def test_cancel_by_id_tells_of_those_that_are_settled(path: Path, queued: dict[str, str]) -> None:
    result = taskq("cancel", queued["mail"], queued["late"], "-d", path)
    assert (result.exit_code, result.stdout) == (0, "cancelled 2 jobs\n")
    result = taskq("cancel", queued["sync"], queued["done"], queued["mail"], "-d", path)
    assert (result.exit_code, result.stdout) == (1, "cancelled 1 job\n")
    assert result.stderr == (
        f"taskq: job {queued['done']} is succeeded: it is too late to cancel it\n"
        f"taskq: job {queued['mail']} is cancelled: it is too late to cancel it\n"
    )
    unknown = f"{queued['mail'].partition('-')[0]}-4711"
    result = taskq("cancel", unknown, "-d", path)
    assert result.exit_code == 1
    assert "4711" in result.stderr


def test_cancel_by_filter(path: Path, queued: dict[str, str]) -> None:
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
    assert state(path, queued["running"]) == "cancelled"
    assert state(path, queued["mail"]) == "ready"


def test_edit_lets_jobs_wait_elsewhere_and_the_timeline_tells_how(
    path: Path, queued: dict[str, str]
) -> None:
    result = taskq(
        "edit", queued["late"], queued["mail"], "--priority", "9", "-Q", "vip", "-d", path
    )
    assert (result.exit_code, result.stdout) == (0, "edited 2 jobs\n")
    shown = taskq_json("show", queued["late"], "-d", path)
    assert (shown["state"], shown["queue"], shown["priority"]) == ("scheduled", "vip", 9)
    assert taskq("edit", queued["late"], "--run-now", "-d", path).exit_code == 0
    assert taskq("edit", queued["mail"], "--delay", "2h", "-d", path).exit_code == 0
    assert [state(path, queued[name]) for name in ("late", "mail")] == ["ready", "scheduled"]
    answer = [
        row for row in taskq_json("timeline", queued["late"], "-d", path) if row["kind"] == "edited"
    ]
    assert [line["reason"] for line in answer] == [
        "queue mail, now vip; priority 5, now 9",
        "ready",
    ]
    assert [line["due_at"] is None for line in answer] == [False, True]
    assert queued["late"] in taskq("ls", path, "-Q", "vip").stdout
    assert queued["late"] not in taskq("ls", path, "-Q", "mail").stdout
    assert taskq("tail", "--json", "-d", path, "-n", "99").stdout.count('"kind": "edited"') == 4


def test_edit_refuses_what_does_not_wait(path: Path, queued: dict[str, str]) -> None:
    result = taskq("edit", queued["done"], queued["mail"], "--priority", "9", "-d", path)
    assert (result.exit_code, result.stdout) == (1, "edited 1 job\n")
    assert f"job {queued['done']} does not wait: it is succeeded" in result.stderr


async def _enrol(scheduled: Path) -> None:
    async with TaskQ(scheduled, durability="os") as app:
        call = app.call_by_name("report", 1).options(queue="reports")
        app.schedule("nightly", call, cron="30 2 * * *", tz="Europe/Berlin", catch_up="all")
        app.schedule("often", call, every="10m", jitter="1m")
        await Scheduler(app).look(app.store())


@pytest.fixture
def scheduled(tmp_path: Path) -> Path:
    asyncio.run(_enrol(tmp_path / "log"))
    return tmp_path / "log"


def test_schedules_are_listed_with_their_next_ticks(scheduled: Path) -> None:
    nightly, often = taskq_json("schedules", "ls", "-n", "2", "-d", scheduled)
    assert nightly == {
        "name": "nightly", "rule": "30 2 * * *", "tz": "Europe/Berlin", "task": "report",
        "queue": "reports", "catch_up": "all", "overlap": "allow", "jitter_seconds": 0.0,
        "paused": False,
        "added": False, "last_tick": None, "done_until": nightly["done_until"],
        "next_ticks": nightly["next_ticks"],
    }  # fmt: skip
    assert len(nightly["next_ticks"]) == 2
    assert all("T02:30:00+0" in moment for moment in nightly["next_ticks"])
    assert (often["rule"], often["tz"], often["jitter_seconds"]) == ("every 0:10:00", None, 60.0)
    lines = taskq("schedules", "-d", scheduled).stdout.splitlines()
    assert lines[0].split() == ["NAME", "RULE", "ZONE", "TASK", "LAST", "TICK", "NEXT", "STATE"]
    assert lines[1].startswith("nightly  30 2 * * *")
    first = datetime.fromisoformat(nightly["next_ticks"][0]).astimezone()
    assert f"{first:%H:%M:%S%z}" in lines[1]
    assert lines[2].rstrip().endswith("active")
    assert taskq_json("schedules", "-d", scheduled)[0]["name"] == "nightly"


def test_a_schedule_is_paused_and_resumed_and_says_so(scheduled: Path) -> None:
    result = taskq("schedules", "pause", "often", "-d", scheduled)
    assert (result.exit_code, result.stdout) == (0, "often: paused\n")
    assert (
        taskq("schedules", "pause", "often", "-d", scheduled).stdout
        == "often: was paused already\n"
    )
    assert [row["paused"] for row in taskq_json("schedules", "-d", scheduled)] == [False, True]
    assert "paused" in taskq("schedules", "ls", "-d", scheduled).stdout
    assert taskq_json("schedules", "resume", "often", "-d", scheduled) == {
        "name": "often", "action": "resume", "changed": True,
    }  # fmt: skip
    assert (
        taskq("schedules", "resume", "often", "-d", scheduled).stdout == "often: was not paused\n"
    )
    assert (
        taskq("schedules", "reset", "often", "-d", scheduled).stdout == "often: counts from now\n"
    )
    assert taskq("schedules", "forget", "often", "-d", scheduled).stdout == "often: forgotten\n"
    assert [row["name"] for row in taskq_json("schedules", "-d", scheduled)] == ["nightly"]
    taskq("schedules", "forget", "nightly", "-d", scheduled)
    assert taskq("schedules", "-d", scheduled).stdout.startswith("This log knows no schedule")


def test_an_unknown_schedule_is_told_from_known_ones(scheduled: Path) -> None:
    result = taskq("schedules", "pause", "nightly2", "-d", scheduled)
    assert result.exit_code != 0
    assert "no schedule 'nightly2' (it knows nightly, often)" in result.stderr


def test_the_log_shows_ticks_as_records(scheduled: Path) -> None:
    taskq("schedules", "pause", "often", "-d", scheduled)
    shown = taskq("tail", "-n", "9", "-d", scheduled)
    assert shown.stdout.count("ticked") == 3, shown.stdout
    assert "often" in shown.stdout
