"""Commands that read a log: ls, show, why, peek, stats, timeline, workers, tail."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskq import JobHandle, Put, TaskLog, TaskQ, chain
from taskq.core.fingerprints import fingerprint, pattern_of
from taskq.errors import JobFailed
from taskq.log.config import SEGMENT_BYTES_MIN
from tests.cli.helpers import Sample, taskq, taskq_json
from tests.programs import run_taskq

#: Commands that create no log.
ON_A_LOG = (
    *("ls", "peek", "stats", "workers", "verify", "show a-1", "tail", "reader ls", "dead ls"),
    *("reader seek x start", "reader forget x", "dead requeue --all -y", "dead purge --all -y"),
    *("pause q", "resume q", "cancel -Q q -y", "tail --reader billing", "replay --all", "compact"),
)


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


def test_show_tells_a_dead_jobs_whole_story(sample: Sample) -> None:
    text = taskq("show", sample.ids["dead"], "-d", sample.path).stdout
    for part in (
        "state        dead\n",
        "attempt      1/1\n",
        "header from  here\n",
        "\nreason\n  ValueError: [red]bad\\x1b[31m\n  line 2 of the traceback\n",
        "\npayload\n  b'\\xff\\x00'\n",
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


@pytest.mark.parametrize("command", ON_A_LOG)
def test_a_directory_without_a_log_gets_a_remedy(tmp_path: Path, command: str) -> None:
    result = taskq(*command.split(), "-d", tmp_path / "nowhere")
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


def test_a_piped_listing_has_no_colours_and_whole_ids(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = run_taskq("ls", "-d", sample.path, check=True)
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
    """A search there finds the entries at its end."""
    reason = f"ValueError: {'much ' * 60}the end"

    async def die() -> None:
        async with TaskLog.open(path) as log:
            await log.put(b"1", attempts=1)
            (job,) = await log.claim(1)
            await log.nack(job, reason)

    asyncio.run(die())
    assert f"{reason}\n" in taskq(*command.split(), "-d", path).stdout


async def test_peek_shows_in_which_order_jobs_are_claimed(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        low = await log.put(b"low", priority=1)
        await log.put(b"later", delay="1h", priority=9)
        first, second = await log.put(b"first"), await log.put(b"second", queue="other")
        await log.put(b"paused", queue="closed", priority=9)
        await log.pause("closed")
        shown = [job["id"] for job in taskq_json("peek", "-d", tmp_path)]
        assert shown == [first, second, low]
        assert [job["id"] for job in taskq_json("peek", "-d", tmp_path, "-n", 1)] == [first]
        assert [job["id"] for job in taskq_json("peek", "-d", tmp_path, "-Q", "other")] == [second]
        claimed = [delivery.job_id for delivery in await log.claim(9)]
    assert claimed == shown


def test_peek_prints_payloads_that_drive_no_terminal(sample: Sample) -> None:
    heading, *rows = taskq("peek", "-d", sample.path).stdout.splitlines()
    assert heading.split() == ["ID", "QUEUE", "TASK", "PRIO", "ENQUEUED", "PAYLOAD"]
    assert [row.split()[0] for row in rows] == [sample.ids["bytes"]]
    assert rows[0].endswith("plain text")
    (job,) = taskq_json("peek", "-d", sample.path)
    assert job["payload"] == {"encoding": "text", "data": "plain text"}


async def test_peek_cuts_what_is_long_and_escapes_what_is_no_text(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        await log.put(b"\x1b[31m\xff\n" + b"x" * 2_000)
    (row,) = taskq("peek", "-d", tmp_path).stdout.splitlines()[1:]
    assert "\\x1b[31m\\xff xxx" in row
    assert row.endswith("x…")
    assert len(row) < 150


def test_peek_says_that_nothing_is_ready(sample: Sample) -> None:
    result = taskq("peek", "-d", sample.path, "-Q", "nosuch")
    assert (result.exit_code, result.stdout) == (0, "No job of that queue is ready.\n")
    assert taskq("peek", "-d", sample.path, "--at", "1").stdout.count("\n") == 2


def test_a_timeline_shows_each_event_with_its_worker_and_note(sample: Sample) -> None:
    result = taskq("timeline", sample.ids["retried"], "-d", sample.path)
    assert result.exit_code == 0
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["TIME", "(UTC)", "AFTER", "KIND", "ATTEMPT", "WORKER", "NOTE"]
    assert [row.split()[3] for row in rows] == ["enqueued", "claimed", "retried"]
    assert " sample" in rows[1]
    assert "due in 59m: TimeoutError: slow" in rows[2] or "due in 1h: TimeoutError" in rows[2]


def test_a_timeline_tells_programs_everything(sample: Sample) -> None:
    events = taskq_json("timeline", sample.ids["dead"], "-d", sample.path)
    assert [event["kind"] for event in events] == ["enqueued", "claimed", "dead"]
    dead = events[-1]
    assert (dead["attempt"], dead["worker"], dead["cause"]) == (1, "sample", "exhausted")
    assert dead["reason"].endswith("line 2 of the traceback")
    assert dead["lsn"] > events[0]["lsn"]
    assert dead["time"].endswith("+00:00")


def test_times_are_in_the_zone_of_the_machine_which_is_said_and_for_programs_in_utc(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        begun = datetime.fromisoformat(
            taskq_json("show", sample.ids["dead"], "-d", sample.path)["enqueued_at"]
        )
        assert begun.utcoffset() == timedelta(0)
        here, there = (f"{begun + timedelta(hours=hours):%Y-%m-%d %H:%M}" for hours in (9, 0))
        for name in ("show", "timeline"):
            asked = (name, sample.ids["dead"], "-d", sample.path)
            local, utc = taskq(*asked).stdout, taskq(*asked, "--utc").stdout
            assert (here in local, local.count("JST, UTC+09:00"), there in local) == (
                True,
                1,
                False,
            )
            assert (there in utc, here in utc) == (True, False)
        line = taskq("tail", "-n", 100, "-d", sample.path).stdout.splitlines()[0]
        assert line.startswith(here.replace(" ", "T"))
        assert "+09:00" in line
    finally:
        monkeypatch.undo()
        time.tzset()


def test_ls_finds_by_the_words_of_the_page(sample: Sample) -> None:
    for query, count in (
        ("state:dead", 1),
        ("task:=mail.send arg.to:=a@b.c", 1),
        ("arg.to:=bob", 0),
    ):
        jobs = taskq_json("ls", "-q", query, "-d", sample.path)
        assert len(jobs) == count, query
    both = taskq_json("ls", "-s", "dead", "-q", "queue:=nowhere", "-d", sample.path)
    assert both == []
    refused = taskq("ls", "-q", "tsak:x", "-d", sample.path)
    assert (refused.exit_code, "no property" in refused.stderr) == (2, True)


def test_a_timeline_of_no_job_says_so(sample: Sample) -> None:
    tag = sample.ids["dead"].partition("-")[0]
    result = taskq("timeline", f"{tag}-999", "-d", sample.path)
    assert result.exit_code == 1
    assert "there is no job" in result.stderr


SLOW = fingerprint("", pattern_of("TimeoutError: slow"))


def test_show_names_the_process_and_the_fingerprint_of_each_attempt(sample: Sample) -> None:
    text = taskq("show", sample.ids["retried"], "-d", sample.path).stdout
    assert "FINGERPRINT" in text
    assert SLOW in text
    assert f"{os.getpid()} sample" in text


def test_show_tells_programs_class_message_fingerprint_and_process(sample: Sample) -> None:
    (attempt,) = taskq_json("show", sample.ids["retried"], "-d", sample.path)["attempts"]
    seen = {name: attempt[name] for name in ("error", "message", "fingerprint", "pid", "worker")}
    assert seen == {
        "error": "TimeoutError",
        "message": "slow",
        "fingerprint": SLOW,
        "pid": os.getpid(),
        "worker": "sample",
    }
    assert attempt["host"]


def test_a_timeline_for_programs_tells_the_same_where_an_attempt_failed(sample: Sample) -> None:
    events = taskq_json("timeline", sample.ids["retried"], "-d", sample.path)
    seen = {event["kind"]: (event["error"], event["fingerprint"]) for event in events}
    assert seen == {
        "enqueued": (None, None),
        "claimed": (None, None),
        "retried": ("TimeoutError", SLOW),
    }


@pytest.fixture
def held(tmp_path: Path) -> str:
    """Return a job that waits for another one."""
    app = TaskQ(tmp_path)

    @app.task
    def increment(number: int) -> int:
        return number + 1

    with app:
        return chain(increment.call(1), increment.step()).enqueue_sync().id


def test_a_held_job_is_due_at_no_time(held: str, tmp_path: Path) -> None:
    enqueued = taskq("timeline", held, "-d", tmp_path).stdout.splitlines()[-1]
    assert enqueued.endswith("waits for jobs or a signal")
    assert taskq_json("timeline", held, "-d", tmp_path)[0]["due_at"] is None


def test_a_job_is_cancelled_for_the_input_that_failed(tmp_path: Path) -> None:
    app = TaskQ(tmp_path)

    @app.task(retry=1)
    def fail() -> int:
        raise ValueError

    @app.task
    def increment(number: int) -> int:
        return number + 1

    with app, app.worker_thread():
        handle = chain(fail.call(), increment.step()).enqueue_sync()
        with pytest.raises(JobFailed) as caught:
            handle.result_sync(30)
        other = increment.options(delay="1h").enqueue_sync(1)
        other.cancel_sync()
    output = taskq("why", handle.id, "-d", tmp_path).stdout
    assert output.endswith(f"ago, for an input failed: {caught.value.job_id} (dead)\n")
    assert taskq("why", other.id, "-d", tmp_path).stdout.endswith("ago\n")


def test_its_records_tell_no_time_either(held: str, tmp_path: Path) -> None:
    lines = taskq("tail", "-d", tmp_path).stdout.splitlines()
    assert [line.partition("increment")[2].strip() for line in lines if held in line] == [
        "waits for jobs or a signal"
    ]
    exported = taskq("export", "--records", "-d", tmp_path).stdout
    assert "2116-" not in exported
    assert "2116-" not in taskq("tail", "--json", "-d", tmp_path).stdout


def lsn_of(sample: Sample, name: str) -> int:
    """Return the position of a job's enqueue; each job of the sample came in a frame of its own."""
    return int(sample.ids[name].rpartition("-")[2])


def test_stats_count_what_there_was_at_an_lsn(sample: Sample) -> None:
    """After the second job nothing was claimed yet, and the other queues were not there."""
    lsn = lsn_of(sample, "dead")
    [queue] = taskq_json("stats", "-d", sample.path, "--at", lsn)["queues"]
    assert (queue["queue"], queue["ready"], queue["dead"]) == ("default", 2, 0)
    printed = taskq("stats", "-d", sample.path, "--at", lsn)
    assert f"next position {lsn + 1}," in printed.stdout
    assert printed.stdout.rstrip().endswith(f"as of {lsn}")


def test_ls_and_show_tell_a_job_as_it_was(sample: Sample) -> None:
    lsn, job_id = lsn_of(sample, "retried"), sample.ids["retried"]
    listed = taskq_json("ls", "-d", sample.path, "--at", lsn)
    assert [(job["id"], job["state"]) for job in listed[:1]] == [(job_id, "ready")]
    assert len(listed) == 3
    then = taskq_json("show", job_id, "-d", sample.path, "--at", lsn)
    assert (then["state"], then["attempts"], then["reason"]) == ("ready", [], None)
    assert taskq_json("show", job_id, "-d", sample.path)["state"] == "scheduled"


def test_a_span_back_from_now_reaches_the_time_before_the_log_began(sample: Sample) -> None:
    assert taskq_json("stats", "-d", sample.path, "--at", "1d")["queues"] == []
    assert taskq_json("ls", "-d", sample.path, "--at", "1d") == []
    assert taskq("ls", "-d", sample.path, "--at", "1d").stdout == "No jobs yet.\n"


def test_a_job_that_was_not_there_yet_is_told_with_the_newest_of_then(sample: Sample) -> None:
    lsn = lsn_of(sample, "dead")
    result = taskq("show", sample.ids["task"], "-d", sample.path, "--at", lsn)
    assert result.exit_code == 1
    assert f"at that moment (its newest was {sample.ids['dead']})" in result.stderr


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("succeeded", "succeeded", "it succeeded "),
        ("dead", "dead", "its attempt is spent (ValueError: [red]bad\\x1b[31m)"),
        ("retried", "not_due", "attempt 1 of 3 failed (TimeoutError: slow); the next is due in "),
        ("cancelled", "cancelled", "it was cancelled "),
        ("bytes", "no_worker", "it was put as bytes, and no process claims any"),
        ("task", "not_due", "it is due in 2h, at 20"),
    ],
)
def test_why_tells_one_reason_for_people_and_for_programs(
    sample: Sample, name: str, code: str, text: str
) -> None:
    job_id = sample.ids[name]
    printed = taskq("why", job_id, "-d", sample.path)
    assert printed.exit_code == 0
    [line] = printed.stdout.splitlines()
    assert line.startswith(f"{job_id}: ")
    assert text in line
    answer = taskq_json("why", job_id, "-d", sample.path)
    assert (answer["id"], answer["code"]) == (job_id, code)
    assert bool(answer["until"]) is (code == "not_due")


def test_why_of_a_job_that_is_not_there_says_so(sample: Sample) -> None:
    tag = sample.ids["dead"].partition("-")[0]
    result = taskq("why", f"{tag}-999", "-d", sample.path)
    assert result.exit_code == 1
    assert f"there is no job {tag}-999 in this log" in result.stderr
    result = taskq("why", "999", "-d", sample.path)
    assert result.exit_code == 1
    assert "there is no job 999 in this log (the newest is" in result.stderr
    assert taskq("why", "x999", "-d", sample.path).exit_code == 2


async def _told(job: JobHandle[Any]) -> None:
    for _ in range(2):
        await job.status()


async def test_a_reader_sees_which_queues_and_tasks_live_workers_serve(tmp_path: Path) -> None:
    app = TaskQ(tmp_path)

    @app.task(name="known", queue="mail")
    async def known() -> None: ...

    async with app:
        other = await app.enqueue(app.call_by_name("unknown").options(queue="mail"))
        elsewhere = await app.enqueue(app.call_by_name("known").options(queue="sync"))
        assert taskq_json("why", other.id, "-d", tmp_path)["code"] == "no_worker"
        async with app.worker(concurrency=3, queues=["mail"]):
            await _told(other)
            assert taskq_json("why", other.id, "-d", tmp_path)["code"] == "task_unknown"
            assert taskq_json("why", elsewhere.id, "-d", tmp_path)["code"] == "queue_not_served"
            [owner] = taskq_json("workers", "-d", tmp_path)
            assert owner["serves"] == [{"queues": ["mail"], "tasks": ["known"], "slots": 3}]
            assert taskq("workers", "-d", tmp_path).stdout.splitlines()[1].endswith(" mail")
        await _told(other)
        assert taskq_json("why", other.id, "-d", tmp_path)["code"] == "no_worker"


async def test_who_claims_bytes_by_hand_serves_them(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        job_id = await log.put(b"bytes", queue="q")
        await log.claim(queues=["other"])
        await log.get(job_id)
        assert taskq_json("why", job_id, "-d", tmp_path)["code"] == "queue_not_served"
        await log.claim(1, queues=["q", "r"])
        second = await log.put(b"more", queue="q")
        assert taskq_json("why", second, "-d", tmp_path)["code"] == "next"
        assert taskq_json("why", job_id, "-d", tmp_path)["code"] == "running"
    assert taskq_json("why", job_id, "-d", tmp_path)["code"] == "worker_lost"
    assert not list((tmp_path / "owners").glob("*.serves*"))


TASKQ = (sys.executable, "-m", "taskq")
#: Time for a process to start and print, on a busy machine.
SECONDS = 30


def tail_json(*arguments: object) -> list[dict[str, Any]]:
    result = taskq("tail", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def put(tailed: Path, *payloads: bytes, **options: Any) -> list[str]:
    async def run() -> list[str]:
        async with TaskLog.open(tailed, segment_bytes=SEGMENT_BYTES_MIN) as log:
            return await log.put_many([Put(payload=payload, **options) for payload in payloads])

    return asyncio.run(run())


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TASKQ, "tail", *map(str, arguments)],
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        **options,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def files(tailed: Path) -> dict[str, tuple[int, int]]:
    stats = ((tailed, tailed.stat()) for tailed in sorted(tailed.rglob("*")))
    return {str(item): (stat.st_size, stat.st_mtime_ns) for item, stat in stats}


def test_tail_shows_what_happened_last_and_to_whom(sample: Sample) -> None:
    lines = taskq("tail", "-d", sample.path, "-n", "7").stdout.splitlines()
    seen = [line.split("  ", 1)[1].split() for line in lines]
    ids = sample.ids
    # Jobs that were enqueued before what is shown have their queue, too.
    assert [words[:3] for words in seen] == [
        ["succeeded", ids["succeeded"], "default"],
        ["dead", ids["dead"], "default"],
        ["retried", ids["retried"], "default"],
        ["enqueued", ids["cancelled"], "default"],
        ["cancelled", ids["cancelled"], "default"],
        ["enqueued", ids["bytes"], "other"],
        ["enqueued", ids["task"], "mail"],
    ]
    assert lines[1].endswith("attempt 1: ValueError: [red]bad\\x1b[31m")
    assert lines[2].endswith("attempt 1, due in 1h: TimeoutError: slow")
    assert lines[6].endswith("mail  mail.send  due in 2h")


def test_tail_tells_programs_everything(sample: Sample) -> None:
    records = tail_json("-d", sample.path, "-n", "1000")
    assert [record["lsn"] for record in records] == list(range(1, 15))
    born = records[1]
    assert born["payload"] == {"encoding": "base64", "data": "/wA="}
    assert (born["priority"], born["headers"]) == (8, {"from": "here"})
    owner = next(record["owner"] for record in records if record["kind"] == "owner")
    assert {record["owner"] for record in records if record["kind"] == "claimed"} == {owner}
    assert records[-1]["task"] == "mail.send"


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (["-n", "0"], []),
        (["--kind", "dead"], ["dead"]),
        (["--kind", "dead", "--kind", "retried", "-n", "1"], ["retried"]),
        (["-Q", "other"], ["enqueued"]),
        (["-Q", "default", "-n", "2"], ["enqueued", "cancelled"]),
        (["-t", "mail.send"], ["enqueued"]),
        (["-Q", "nowhere"], []),
    ],
)
def test_tail_keeps_to_what_is_asked_for(
    sample: Sample, options: list[str], kinds: list[str]
) -> None:
    assert [row["kind"] for row in tail_json("-d", sample.path, *options)] == kinds


def test_tail_finds_the_end_of_a_log_of_many_segments(tmp_path: Path) -> None:
    for _ in range(5):
        put(tmp_path / "q", *[b"x" * 9_000] * 9)
    assert len(list((tmp_path / "q" / "log").glob("*.log"))) > 3
    for count in (1, 9, 10, 28, 44, 45, 100):
        seen = [row["lsn"] for row in tail_json("-d", tmp_path / "q", "-n", count)]
        assert seen == list(range(max(46 - count, 1), 46))


def test_tail_leaves_no_trace(sample: Sample) -> None:
    before = files(sample.path)
    assert taskq("tail", "-d", sample.path).exit_code == 0
    assert files(sample.path) == before


def test_tail_f_goes_on_with_what_is_written(tmp_path: Path) -> None:
    tailed = tmp_path / "q"
    first, second = put(tailed, b"1", b"2")
    with start("-d", tailed, "-f", "-n", "1") as process:
        assert second in line_of(process)
        owners = sorted((tailed / "owners").iterdir())
        for number in range(12):
            (job,) = put(tailed, bytes(20_000), queue=f"q{number}")
            assert line_of(process).endswith(f"enqueued   {job}  q{number}")
        assert sorted((tailed / "owners").iterdir()) == owners
        assert not (tailed / "readers").exists()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert first


def test_tail_of_a_log_that_was_just_made_waits_for_its_first_record(tmp_path: Path) -> None:
    tailed = tmp_path / "q"
    put(tailed, b"1")
    for file in (tailed / "log").iterdir():
        file.unlink()
    (tailed / "write.lock").unlink()
    assert tail_json("-d", tailed) == []
    with start("-d", tailed, "-f") as process:
        (job,) = put(tailed, b"2")
        assert job in line_of(process)
        process.kill()


def test_tail_f_ends_when_nobody_reads_it_any_more(tmp_path: Path) -> None:
    put(tmp_path / "q", b"1")
    read, write = os.pipe()
    with start("-d", tmp_path / "q", "-f", stdout=write) as process:
        os.close(write)
        assert os.read(read, 100)
        os.close(read)
        assert process.wait(SECONDS) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_tail_under_a_name_goes_on_where_it_stopped(tmp_path: Path) -> None:
    tailed = tmp_path / "q"
    put(tailed, *(b"%d" % number for number in range(5)))
    assert [row["lsn"] for row in tail_json("-d", tailed, "--reader", "billing", "-n", 2)] == [1, 2]
    assert [row["lsn"] for row in tail_json("-d", tailed, "--reader", "billing")] == [3, 4, 5]
    assert tail_json("-d", tailed, "--reader", "billing") == []
    with start("-d", tailed, "-f", "--reader", "billing") as process:
        (job,) = put(tailed, b"6")
        assert job in line_of(process)
        second = taskq("tail", "-d", tailed, "--reader", "billing")
        assert second.exit_code == 1
        assert f"process {process.pid} reads under the name 'billing'" in second.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert taskq("tail", "-d", tailed, "--reader", "a/b").exit_code == 2


def test_tail_shows_what_is_behind_damage(tmp_path: Path) -> None:
    tailed = tmp_path / "q"
    for _ in range(6):
        put(tailed, b"x" * 300)
    (segment,) = (tailed / "log").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[900:1_000] = bytes(100)
    segment.write_bytes(data)
    seen = [row["lsn"] for row in tail_json("-d", tailed, "-n", 100)]
    assert seen[0] == 1
    assert seen[-1] == 6
    assert 4 <= len(seen) < 6


async def _fill(tailed: Path) -> None:
    async with TaskLog.open(tailed) as log:
        for number in range(5):
            await log.put(b"%d" % number)
        stream = log.stream(reader="billing", follow=False)
        async with stream:
            await anext(stream)
            await anext(stream)
            await stream.commit()


@pytest.fixture
def tailed(tmp_path: Path) -> Path:
    """Return a log of five jobs of which "billing" has read two."""
    asyncio.run(_fill(tmp_path))
    return tmp_path


def test_readers_are_listed_with_how_far_behind_they_are(tailed: Path) -> None:
    (answer,) = taskq_json("reader", "ls", "-d", tailed)
    size = answer.pop("lag_bytes")
    assert size > 0
    assert answer == {
        "name": "billing",
        "lsn": 3,
        "lag_records": 3,
        "alive": False,
        "problem": None,
    }
    heading, row = taskq("reader", "ls", "-d", tailed).stdout.splitlines()
    assert heading.split() == ["NAME", "NEXT", "LSN", "BEHIND", "BYTES", "STATE", "PROBLEM"]
    assert row.split()[:3] == ["billing", "3", "3"]
    assert row.endswith("idle")


@pytest.mark.parametrize(
    ("place", "lsn"), [("start", 1), ("end", 6), ("4", 4), ("2h", 1), ("2020-01-01T00:00", 1)]
)
def test_a_reader_goes_on_where_it_is_told_to(tailed: Path, place: str, lsn: int) -> None:
    result = taskq("reader", "seek", "billing", place, "-d", tailed)
    assert (result.exit_code, result.stdout) == (0, f"billing: goes on at lsn {lsn}\n")
    shown = taskq("tail", "--reader", "billing", "-n", "1", "-d", tailed).stdout
    assert shown.count("enqueued") == (lsn < 6)


def test_a_forgotten_reader_keeps_nothing(tailed: Path) -> None:
    assert taskq("reader", "forget", "billing", "-d", tailed).stdout == "billing: forgotten\n"
    assert taskq("reader", "ls", "-d", tailed).stdout == "Nobody reads this log under a name.\n"
    again = taskq("reader", "forget", "billing", "-d", tailed)
    assert again.exit_code == 2
    assert "has no reader 'billing'" in again.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("seek", "billing", "soon"), "PLACE is 'soon': give a span back from now"),
        (("seek", "billing", "99"), "lsn 99 is still to come"),
        (("seek", "a/b", "start"), "becomes a file's name"),
        (("seek", "billing"), "Missing argument 'PLACE'"),
        (("forget",), "Missing argument 'NAME'"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tailed: Path, words: tuple[str, ...], message: str
) -> None:
    result = taskq("reader", *words, "-d", tailed)
    assert result.exit_code == 2
    assert message in result.stderr
    assert taskq_json("reader", "ls", "-d", tailed)[0]["lsn"] == 3


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["ls"],
            ["stats"],
            ["workers"],
            ["health"],
            ["verify"],
            ["peek"],
            ["schedules"],
            ["tail"],
        ),
        *(
            ["dead", "ls"],
            ["reader", "ls"],
            ["export"],
            ["show", "1"],
            ["why", "1"],
            ["timeline", "1"],
        ),
    ],
    ids=" ".join,
)
def test_a_command_that_reads_leaves_a_copied_log_as_it_is(
    words: list[str], tailed: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tailed, copy, ignore=shutil.ignore_patterns("copy"))
    before = _files(copy)
    taskq(*words, "-d", copy)
    assert _files(copy) == before


def _files(tailed: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(item.relative_to(tailed)): (item.stat().st_mtime_ns, item.read_bytes())
        for item in tailed.rglob("*")
        if item.is_file()
    }
