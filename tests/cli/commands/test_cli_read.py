"""Commands that read a log (ls, show, peek, workers, tail), and put."""

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

from taskq import JobHandle, Put, TaskLog, TaskQ
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.log.config import SEGMENT_BYTES_MIN
from tests.cli.helpers import Sample, taskq, taskq_json
from tests.cli.logs import fill_reader
from tests.processes.harness import Child
from tests.programs import run_taskq

#: Commands that create no log.
ON_A_LOG = (
    *("ls", "peek", "stats", "workers", "verify", "show a-1", "tail", "reader ls", "dead ls"),
    *("reader seek x start", "reader forget x", "dead requeue --all -y", "dead purge --all -y"),
    *("pause q", "resume q", "cancel -Q q -y", "tail --reader billing", "replay --all", "compact"),
)


@pytest.mark.parametrize("command", ON_A_LOG)
def test_a_directory_without_a_log_gets_a_remedy(tmp_path: Path, command: str) -> None:
    result = taskq(*command.split(), "-d", tmp_path / "nowhere")
    assert result.exit_code == 1
    assert result.stderr == (
        f"taskq: {tmp_path / 'nowhere'} is not a task log: give its directory with -d, "
        f"or start one with: taskq put BODY -d {tmp_path / 'nowhere'}\n"
    )
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_has_whole_ids_and_no_color(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = run_taskq("ls", "-d", sample.path, check=True)
    assert "\x1b" not in done.stdout
    assert all(job_id in done.stdout for job_id in sample.ids.values())


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
    job = (sample.ids["dead"], "-d", sample.path)
    try:
        begun = datetime.fromisoformat(taskq_json("show", *job)["enqueued_at"])
        assert begun.utcoffset() == timedelta(0)
        here, there = (f"{begun + timedelta(hours=hours):%Y-%m-%d %H:%M}" for hours in (9, 0))
        for name in ("show", "timeline"):
            local, utc = taskq(name, *job).stdout, taskq(name, *job, "--utc").stdout
            assert (here in local, there in local, here in utc, there in utc) == (
                True, False, False, True,
            )  # fmt: skip
            assert local.count("JST, UTC+09:00") == 1
        line = taskq("tail", "-n", 100, "-d", sample.path).stdout.splitlines()[0]
        assert line.startswith(here.replace(" ", "T"))
        assert "+09:00" in line
    finally:
        monkeypatch.undo()
        time.tzset()


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
            assert (owner["pid"], owner["alive"], owner["running"]) == (os.getpid(), True, 0)
            assert owner["serves"] == [{"queues": ["mail"], "tasks": ["known"], "slots": 3}]
            assert taskq("workers", "-d", tmp_path).stdout.splitlines()[1].endswith(" mail")
        await _told(other)
        assert taskq_json("why", other.id, "-d", tmp_path)["code"] == "no_worker"
        with Child("actors.py", "answer", tmp_path) as claimer:
            pid = claimer.pid
            claimer.say("claim")
            claimer.expect("claimed")
            shown = {
                owner["pid"]: owner["running"] for owner in taskq_json("workers", "-d", tmp_path)
            }
            assert shown == {os.getpid(): 0, pid: 1}


async def test_a_process_that_claims_from_a_queue_counts_as_serving_it(tmp_path: Path) -> None:
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
    with TaskLog.open(tailed, segment_bytes=SEGMENT_BYTES_MIN) as log:
        return log.put_many_sync([Put(payload=payload, **options) for payload in payloads])


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TASKQ, "tail", *map(str, arguments)], stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **options,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], code: int) -> None:
    """Press Ctrl-C for the code 130; the process ends with its code and no complaint."""
    if code == 130:
        process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == code
    assert process.stderr is not None
    assert process.stderr.read() == ""


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_tail_finds_the_end_of_a_log_of_many_segments(tmp_path: Path) -> None:
    for _ in range(5):
        put(tmp_path / "q", *[b"x" * 9_000] * 9)
    assert len(list((tmp_path / "q" / "log").glob("*.log"))) > 3
    for count in (1, 9, 10, 28, 44, 45, 100):
        seen = [row["lsn"] for row in tail_json("-d", tmp_path / "q", "-n", count)]
        assert seen == list(range(max(46 - count, 1), 46))


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
        ended(process, 130)
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


@pytest.mark.posix("shows the end of a reader at the next line")
def test_tail_f_ends_when_nobody_reads_it_any_more(tmp_path: Path) -> None:
    put(tmp_path / "q", b"1")
    read, write = os.pipe()
    with start("-d", tmp_path / "q", "-f", stdout=write) as process:
        os.close(write)
        assert os.read(read, 100)
        os.close(read)
        ended(process, 141)


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
        ended(process, 130)
    assert taskq("tail", "-d", tailed, "--reader", "a/b").exit_code == 2


@pytest.fixture
def tailed(tmp_path: Path) -> Path:
    asyncio.run(fill_reader(tmp_path))
    return tmp_path


@pytest.mark.parametrize("command", [
    "ls", "stats", "workers", "health", "verify", "peek", "schedules", "tail", "dead ls",
    "reader ls", "export", "show 1", "why 1", "timeline 1",
])  # fmt: skip
def test_reading_leaves_a_copied_log_as_it_is(command: str, tailed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tailed, copy, ignore=shutil.ignore_patterns("copy"))
    before = _files(copy)
    result = taskq(*command.split(), "-d", copy)
    assert result.exit_code == (command == "health"), result.output  # no worker runs
    assert _files(copy) == before


def _files(tailed: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(item.relative_to(tailed)): (item.stat().st_mtime_ns, item.read_bytes())
        for item in tailed.rglob("*")
        if item.is_file()
    }


def put_by_command(path: Path, *arguments: str, data: bytes | None = None) -> str:
    result = taskq("put", "-d", path, *arguments, data=data)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


@pytest.mark.parametrize("source", ["argument", "file", "stdin", "dash"])
def test_put_takes_a_payload_from_an_argument_a_file_or_stdin(tmp_path: Path, source: str) -> None:
    body = "grüße\n".encode()
    (tmp_path / "body").write_bytes(body)
    words = {"argument": [body.decode()], "file": [f"@{tmp_path / 'body'}"], "dash": ["-"]}
    data = body if source in {"stdin", "dash"} else b"other"
    job = put_by_command(tmp_path / "q", *words.get(source, []), data=data)
    shown = taskq_json("show", job, "-d", tmp_path / "q")
    assert shown["payload"] == {"encoding": "text", "data": "grüße\n"}
    assert (shown["queue"], shown["task"], shown["priority"]) == ("default", None, 5)


def test_a_payload_over_the_limit_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(2**33)
    result = taskq("put", "-d", tmp_path / "q", f"@{big}")
    assert result.exit_code == 2
    way_out = "bytes: put the data into a file and pass its path"
    assert f"over {PAYLOAD_BYTES_MAX} {way_out}" in result.stderr


@pytest.mark.parametrize("words", [["--compress", "zlib"], ["--compress", "zstd"], ["-t", "task"]])
def test_a_long_payload_is_shown_as_it_was_given(tmp_path: Path, words: list[str]) -> None:
    text = "the same words again and again, " * 200
    job = put_by_command(tmp_path, *words, json.dumps({"a": text}))
    assert taskq_json("show", job, "-d", tmp_path)["payload"]["data"] == {"a": text}
    assert text in taskq("show", job, "-d", tmp_path).stdout


SHOP = """
from taskq import TaskQ, retry
app = TaskQ("elsewhere", durability="os")

@app.task(queue="mail", priority=7, retry=3, expires="1d")
def send(to: str, count: int = 1) -> None: ...
"""


def test_put_of_a_task_takes_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_to_put.py").write_text(SHOP)
    (tmp_path / "bare_to_put.py").write_text(SHOP.partition("@")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("-A", "shop_to_put:app", "-t", "shop_to_put.send", '{"to": "a@b.c"}')
    shown = taskq_json(
        "show", put_by_command(tmp_path / "data", *words, "--priority", "9"), "-d", "data"
    )
    assert (shown["queue"], shown["priority"], shown["attempts_max"]) == ("mail", 9, 3)
    assert shown["expires_at"] is not None
    done = taskq("put", "-d", "data", "-A", "bare_to_put", "-t", "shop.send", "{}")
    assert done.exit_code == 2
    assert "no task is registered with it; give -A the module that defines them" in done.stderr


async def test_put_warns_of_a_task_that_no_worker_knows(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, durability="os")
    app.task(name="known")(abs)
    done = await asyncio.to_thread(taskq, "put", "-d", tmp_path, "-t", "known", '{"*": [1]}')
    assert done.exit_code == 0
    assert "no worker that runs here now knows the task known: it waits until" in done.stderr
    async with app, app.worker():
        for _ in range(2):
            await app.stats()
        for name in ("known", "knwon"):
            words = ("put", "-d", tmp_path, "-t", name, '{"*": [1]}')
            run = await asyncio.to_thread(run_taskq, *words, check=True)
            assert ("no worker" in run.stderr) is (name == "knwon")
