"""taskq tail: the end of the log, as it grows, without a trace; under a name, with one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskq import Put, TaskLog
from taskq.log.config import SEGMENT_BYTES_MIN
from tests.cli.helpers import Sample, taskq, taskq_json

TASKQ = (sys.executable, "-m", "taskq")
#: Time for a process to start and print, on a busy machine.
SECONDS = 30


def tail_json(*arguments: object) -> list[dict[str, Any]]:
    result = taskq("tail", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def put(path: Path, *payloads: bytes, **options: Any) -> list[str]:
    async def run() -> list[str]:
        async with TaskLog.open(path, segment_bytes=SEGMENT_BYTES_MIN) as log:
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


def files(path: Path) -> dict[str, tuple[int, int]]:
    stats = ((path, path.stat()) for path in sorted(path.rglob("*")))
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
    path = tmp_path / "q"
    first, second = put(path, b"1", b"2")
    with start("-d", path, "-f", "-n", "1") as process:
        assert second in line_of(process)
        owners = sorted((path / "owners").iterdir())
        for number in range(12):
            (job,) = put(path, bytes(20_000), queue=f"q{number}")
            assert line_of(process).endswith(f"enqueued   {job}  q{number}")
        assert sorted((path / "owners").iterdir()) == owners
        assert not (path / "readers").exists()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert first


def test_tail_of_a_log_that_was_just_made_waits_for_its_first_record(tmp_path: Path) -> None:
    path = tmp_path / "q"
    put(path, b"1")
    for file in (path / "log").iterdir():
        file.unlink()
    (path / "write.lock").unlink()
    assert tail_json("-d", path) == []
    with start("-d", path, "-f") as process:
        (job,) = put(path, b"2")
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
    path = tmp_path / "q"
    put(path, *(b"%d" % number for number in range(5)))
    assert [row["lsn"] for row in tail_json("-d", path, "--reader", "billing", "-n", 2)] == [1, 2]
    assert [row["lsn"] for row in tail_json("-d", path, "--reader", "billing")] == [3, 4, 5]
    assert tail_json("-d", path, "--reader", "billing") == []
    with start("-d", path, "-f", "--reader", "billing") as process:
        (job,) = put(path, b"6")
        assert job in line_of(process)
        second = taskq("tail", "-d", path, "--reader", "billing")
        assert second.exit_code == 1
        assert f"process {process.pid} reads under the name 'billing'" in second.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert taskq("tail", "-d", path, "--reader", "a/b").exit_code == 2


def test_tail_shows_what_is_behind_damage(tmp_path: Path) -> None:
    path = tmp_path / "q"
    for _ in range(6):
        put(path, b"x" * 300)
    (segment,) = (path / "log").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[900:1_000] = bytes(100)
    segment.write_bytes(data)
    seen = [row["lsn"] for row in tail_json("-d", path, "-n", 100)]
    assert seen[0] == 1
    assert seen[-1] == 6
    assert 4 <= len(seen) < 6


async def _fill(path: Path) -> None:
    async with TaskLog.open(path) as log:
        for number in range(5):
            await log.put(b"%d" % number)
        stream = log.stream(reader="billing", follow=False)
        async with stream:
            await anext(stream)
            await anext(stream)
            await stream.commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a log of five jobs of which "billing" has read two."""
    asyncio.run(_fill(tmp_path))
    return tmp_path


def test_readers_are_listed_with_how_far_behind_they_are(path: Path) -> None:
    (answer,) = taskq_json("reader", "ls", "-d", path)
    size = answer.pop("lag_bytes")
    assert size > 0
    assert answer == {
        "name": "billing",
        "lsn": 3,
        "lag_records": 3,
        "alive": False,
        "problem": None,
    }
    heading, row = taskq("reader", "ls", "-d", path).stdout.splitlines()
    assert heading.split() == ["NAME", "NEXT", "LSN", "BEHIND", "BYTES", "STATE", "PROBLEM"]
    assert row.split()[:3] == ["billing", "3", "3"]
    assert row.endswith("idle")


@pytest.mark.parametrize(
    ("place", "lsn"), [("start", 1), ("end", 6), ("4", 4), ("2h", 1), ("2020-01-01T00:00", 1)]
)
def test_a_reader_goes_on_where_it_is_told_to(path: Path, place: str, lsn: int) -> None:
    result = taskq("reader", "seek", "billing", place, "-d", path)
    assert (result.exit_code, result.stdout) == (0, f"billing: goes on at lsn {lsn}\n")
    shown = taskq("tail", "--reader", "billing", "-n", "1", "-d", path).stdout
    assert shown.count("enqueued") == (lsn < 6)


def test_a_forgotten_reader_keeps_nothing(path: Path) -> None:
    assert taskq("reader", "forget", "billing", "-d", path).stdout == "billing: forgotten\n"
    assert taskq("reader", "ls", "-d", path).stdout == "Nobody reads this log under a name.\n"
    again = taskq("reader", "forget", "billing", "-d", path)
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
def test_what_cannot_be_meant_is_refused(path: Path, words: tuple[str, ...], message: str) -> None:
    result = taskq("reader", *words, "-d", path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert taskq_json("reader", "ls", "-d", path)[0]["lsn"] == 3


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
    words: list[str], path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("copy"))
    before = _files(copy)
    taskq(*words, "-d", copy)
    assert _files(copy) == before


def _files(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(item.relative_to(path)): (item.stat().st_mtime_ns, item.read_bytes())
        for item in path.rglob("*")
        if item.is_file()
    }
