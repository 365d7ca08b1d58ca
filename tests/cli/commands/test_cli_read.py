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
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskq import JobHandle, Put, TaskLog, TaskQ, chain
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


async def test_peek_cuts_what_is_long_and_escapes_what_is_no_text(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        await log.put(b"\x1b[31m\xff\n" + b"x" * 2_000)
    (row,) = taskq("peek", "-d", tmp_path).stdout.splitlines()[1:]
    assert "\\x1b[31m\\xff xxx" in row
    assert row.endswith("x…")
    assert len(row) < 150


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


def test_tail_tells_programs_everything(sample: Sample) -> None:
    records = tail_json("-d", sample.path, "-n", "1000")
    assert [record["lsn"] for record in records] == list(range(1, 15))
    born = records[1]
    assert born["payload"] == {"encoding": "base64", "data": "/wA="}
    assert (born["priority"], born["headers"]) == (8, {"from": "here"})
    owner = next(record["owner"] for record in records if record["kind"] == "owner")
    assert {record["owner"] for record in records if record["kind"] == "claimed"} == {owner}
    assert records[-1]["task"] == "mail.send"


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
