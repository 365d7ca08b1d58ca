"""The read commands: what they show, and that they change nothing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from taskq import TaskLog
from taskq.log.inbox.writer import publish
from tests.cli.helpers import Sample, taskq, taskq_json
from tests.programs import run_taskq

if TYPE_CHECKING:
    from pathlib import Path

READ_COMMANDS = ("ls", "peek", "stats", "workers", "verify")


def test_ls_lists_the_newest_first(sample: Sample) -> None:
    newest_first = [
        sample.ids[name] for name in ("task", "bytes", "cancelled", "retried", "dead", "succeeded")
    ]
    assert [job["id"] for job in taskq_json("ls", "-d", sample.path)] == newest_first
    heading, *rows = taskq("ls", "-d", sample.path).stdout.splitlines()
    assert heading.split() == [
        *("ID", "STATE", "QUEUE", "TASK", "PRIO", "ATTEMPT", "ENQUEUED", "NOTE")
    ]
    assert [row.split()[0] for row in rows] == newest_first
    assert rows[0].split()[1:6] == ["scheduled", "mail", "mail.send", "5", "0/5"]
    assert rows[0].endswith("due in 2h")
    assert rows[4].endswith("ValueError: [red]bad\\x1b[31m")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--state", "dead"], ["dead"]),
        (["--state", "dead", "--state", "succeeded"], ["dead", "succeeded"]),
        (["--queue", "other"], ["bytes"]),
        (["--task", "mail.send"], ["task"]),
        (["--limit", "2"], ["task", "bytes"]),
        (["--state", "running"], []),
    ],
)
def test_ls_keeps_to_what_is_asked_for(
    sample: Sample, options: list[str], names: list[str]
) -> None:
    jobs = taskq_json("ls", "-d", sample.path, *options)
    assert [job["id"] for job in jobs] == [sample.ids[name] for name in names]


def test_ls_says_that_nothing_matches(sample: Sample) -> None:
    assert taskq("ls", "-d", sample.path, "-Q", "nowhere").stdout == "No job matches.\n"


def test_show_tells_a_dead_jobs_whole_story(sample: Sample) -> None:
    text = taskq("show", sample.ids["dead"], "-d", sample.path).stdout
    for part in (
        "state        dead\n",
        "attempt      1/1\n",
        "header from  here\n",
        "\nreason\nValueError: [red]bad\\x1b[31m\nline 2 of the traceback\n",
        "\npayload\nb'\\xff\\x00'\n",
    ):
        assert part in text
    assert "\x1b" not in text


def test_show_prints_json_payloads_with_indents_and_results(sample: Sample) -> None:
    text = taskq("show", sample.ids["succeeded"], "-d", sample.path).stdout
    assert text.endswith('\npayload\n{\n  "n": 1\n}\n\nresult\n"done"\n')


def test_show_for_programs_is_one_document(sample: Sample) -> None:
    job = taskq_json("show", sample.ids["retried"], "-d", sample.path)
    (attempt,) = job["attempts"]
    assert (job["state"], job["key"], job["attempt"], job["attempts_max"]) == (
        "scheduled", "k", 1, 3,
    )  # fmt: skip
    assert job["payload"] == {"encoding": "json", "data": [1]}
    assert job["result"] is None
    assert (attempt["number"], attempt["outcome"]) == (1, "retried")
    assert attempt["reason"] == "TimeoutError: slow"
    assert datetime.fromisoformat(job["due_at"]) > datetime.fromisoformat(attempt["ended_at"])


def test_show_of_an_unknown_job_names_the_newest(sample: Sample) -> None:
    tag = sample.ids["task"].partition("-")[0]
    result = taskq("show", f"{tag}-999999", "-d", sample.path)
    assert result.exit_code == 1
    assert result.stderr == (
        f"taskq: there is no job {tag}-999999 in this log (the newest is {sample.ids['task']}); "
        f"they are listed by: taskq ls -d {sample.path}\n"
    )


@pytest.mark.parametrize("job_id", ["hello", "00000000-1", "-", "x-1e5", "", "a-" + "9" * 40])
def test_show_refuses_what_is_no_id_of_this_log(sample: Sample, job_id: str) -> None:
    result = taskq("show", "-d", sample.path, "--", job_id)
    assert result.exit_code == 2
    assert result.stderr.startswith("taskq: ")
    assert result.stderr.count("\n") <= 2


def test_stats_counts_by_queue_and_state(sample: Sample) -> None:
    stats = taskq_json("stats", "-d", sample.path)
    queues = {queue.pop("queue"): queue for queue in stats["queues"]}
    ages = {name: queue.pop("oldest_ready_seconds") for name, queue in queues.items()}
    assert ages.pop("other") >= 0
    assert set(ages.values()) == {None}
    rates = {queue.pop("throughput_per_second") for queue in queues.values()}
    assert rates == {None}, "a reader that has just come has seen nothing end"
    nothing = dict.fromkeys(queues["default"], 0)
    assert queues["mail"] == nothing | {"scheduled": 1}
    assert queues["other"] == nothing | {"ready": 1}
    expected = {"scheduled": 1, "succeeded": 1, "dead": 1, "cancelled": 1}
    assert queues["default"] == nothing | expected
    assert uuid.UUID(stats["log_id"]).hex[:8] == sample.ids["task"].partition("-")[0]
    assert stats["segments"] >= 1
    assert stats["size_bytes"] > 0
    shown = taskq("stats", "-d", sample.path).stdout
    assert "(all)" in shown
    assert "OLDEST READY" in shown


def test_stats_tell_of_uploads_that_nobody_has_adopted_yet(tmp_path: Path) -> None:
    for number in (1, 2):
        publish(tmp_path, f"nightly@{number}", [])
        assert taskq_json("stats", "-d", tmp_path)["uploads"] == number
    assert "2 uploads wait to be adopted" in taskq("stats", "-d", tmp_path).stdout


async def test_workers_shows_who_has_the_log_open_and_what_they_hold(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path, name="me") as log:
        await log.put(b"x")
        (delivery,) = await log.claim()
        (owner,) = await asyncio.to_thread(owners_seen_by_a_process, tmp_path)
        await log.ack(delivery)
    assert (owner["name"], owner["pid"], owner["alive"], owner["running"]) == (
        "me", os.getpid(), True, 1,
    )  # fmt: skip
    assert "No process has this task log open" in taskq("workers", "-d", tmp_path).stdout


def owners_seen_by_a_process(path: Path) -> list[dict[str, object]]:
    """Return what another process sees: a reader must not touch the locks of this one."""
    command = [sys.executable, "-m", "taskq", "workers", "-d", str(path), "--json"]
    owners: list[dict[str, object]] = json.loads(
        subprocess.run(command, capture_output=True, check=True).stdout
    )
    return owners


def test_verify_of_a_whole_log_is_quiet_and_0(sample: Sample) -> None:
    result = taskq("verify", "-d", sample.path)
    assert result.exit_code == 0
    assert result.stdout.endswith("records: no damage\n")
    report = taskq_json("verify", "-d", sample.path)
    assert (report["ok"], report["damage"], report["jobs"]) == (True, [], [])
    assert report["records"] >= 12


def test_no_read_command_changes_a_byte(sample: Sample) -> None:
    before = snapshot(sample.path)
    for command in (*READ_COMMANDS, ("show", sample.ids["dead"])):
        words = (command,) if isinstance(command, str) else command
        assert taskq(*words, "-d", sample.path).exit_code == 0
    assert snapshot(sample.path) == before


def snapshot(path: Path) -> dict[str, tuple[int, int]]:
    return {
        str(file): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(path.rglob("*"))
    }


@pytest.mark.parametrize("command", [*READ_COMMANDS, "show"])
def test_a_directory_without_a_log_gets_a_remedy(tmp_path: Path, command: str) -> None:
    words = (command, "a-1") if command == "show" else (command,)
    result = taskq(*words, "-d", tmp_path / "nowhere")
    assert result.exit_code == 1
    assert result.stderr == (
        f"taskq: {tmp_path / 'nowhere'} is not a task log: give its directory with -d, "
        f"or start one with: taskq put BODY -d {tmp_path / 'nowhere'}\n"
    )
    assert not (tmp_path / "nowhere").exists()


def test_the_directory_comes_from_the_environment_too(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_DATA_DIR", str(sample.path))
    assert len(taskq_json("ls")) == len(sample.ids)


def test_a_piped_listing_has_no_colours_and_whole_ids(sample: Sample) -> None:
    done = run_taskq(
        "ls", "-d", sample.path, check=True, env={**os.environ, "COLUMNS": "20", "FORCE_COLOR": "1"}
    )
    assert "\x1b" not in done.stdout
    assert all(job_id in done.stdout for job_id in sample.ids.values())


def test_a_listing_whose_reader_goes_away_ends_quietly(sample: Sample) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "taskq", "ls", "-d", str(sample.path)],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("command", ["ls", "dead ls", "tail"])
def test_a_reason_is_whole_in_a_pipe(path: Path, command: str) -> None:
    """Whoever searches there finds what stands at its end."""
    reason = f"ValueError: {'much ' * 60}the end"

    async def die() -> None:
        async with TaskLog.open(path) as log:
            await log.put(b"1", attempts=1)
            (job,) = await log.claim(1)
            await log.nack(job, reason)

    asyncio.run(die())
    assert f"{reason}\n" in taskq(*command.split(), "-d", path).stdout
