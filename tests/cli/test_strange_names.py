"""Names of queues and tasks that somebody will give sooner or later: they work, or are refused."""

from __future__ import annotations

import asyncio
import sys
import unicodedata
from pathlib import Path
from typing import Final

import pytest

from taskq import State, TaskLog, TaskQ
from taskq.errors import UsageError
from taskq.log.journal.lock import process_state
from taskq.log.read.reader import LogReader
from tests.cli.helpers import taskq, taskq_json
from tests.processes.harness import Child

GOOD: Final = {
    "slashes": "a/b//c/",
    "dots": "../../etc/passwd",
    "absolute": "/",
    "200 characters": "q" * 200,
    "255 bytes": "é" * 127 + "e",
    "unicode": "приём-邮件-🚀",
    "spaces": "  two  words ",
    "percent": "50%s{x}$(rm -rf)`",
    "quotes": "'\"\\",
    "a dash": "-x",
    "wildcards": "*?[a]",
    "brackets": "[red]mail[/red]",
    "decomposed": unicodedata.normalize("NFD", "é"),
    "json": '{"a": 1}',
    "a number": "0",
}
BAD: Final = {
    "empty": "",
    "nul": "a\0b",
    "newline": "a\nb",
    "escape": "a\x1b[31mb",
    "tab": "a\tb",
    "256 characters": "q" * 256,
    "200 wide characters": "é" * 200,
    "a lone surrogate": "a\ud800",
    "right to left": "a\u202eb",
    "no break": "a\u00a0b",
    "zero width": "a\u200bb",
}
good = pytest.mark.parametrize("name", GOOD.values(), ids=GOOD)
bad = pytest.mark.parametrize("name", BAD.values(), ids=BAD)


@good
def test_a_strange_queue_name_is_the_same_everywhere(tmp_path: Path, name: str) -> None:
    """Put, claimed, listed, counted and filtered by; and no other queue is touched."""

    async def run() -> str:
        async with TaskLog.open(tmp_path / "q", durability="os") as log:
            job_id = await log.put(b"x", queue=name)
            await log.put(b"other", queue="other")
            (delivery,) = await log.claim(9, queues=[name])
            assert (delivery.queue, delivery.job_id) == (name, job_id)
            await log.ack(delivery)
            await log.put(b"y", queue=name, key="k")
            assert [view.payload for view in await log.peek(9, queue=name)] == [b"y"]
            assert (await log.get(job_id)).queue == name
            counts = {queue.queue: queue for queue in (await log.stats()).queues}
            assert (counts[name].ready, counts[name].succeeded) == (1, 1)
            return job_id

    job_id = asyncio.run(run())
    with LogReader.open(str(tmp_path / "q")) as reader:
        jobs = reader.jobs({State.SUCCEEDED}, name, None, 9)
        assert [(job.queue, job.job_id) for job in jobs] == [(name, job_id)]
        assert len(reader.jobs(None, None, None, 9)) == 3
    again = taskq("put", "-d", tmp_path / "q", f"--queue={name}", "z")
    assert again.exit_code == 0, again.output
    listed = taskq_json("ls", "-d", tmp_path / "q", f"--queue={name}")
    assert [job["queue"] for job in listed] == [name] * 3
    shown = taskq("ls", "-d", tmp_path / "q")
    assert shown.exit_code == 0, shown.output
    counted = taskq_json("stats", "-d", tmp_path / "q")["queues"]
    assert {row["queue"] for row in counted} == {name, "other"}
    assert not (tmp_path / "etc").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q"]


@good
def test_a_strange_task_name_is_the_same_everywhere(tmp_path: Path, name: str) -> None:
    app = TaskQ(tmp_path / "q", durability="os")

    @app.task(name=name, aliases=[f"{name[:250]}2"] if len(name.encode()) < 250 else [])
    async def work(a: int) -> int:
        return a + 1

    async def run() -> str:
        async with app, app.worker():
            job = await work.enqueue(1)
            assert await job.result(20) == 2
            other = await app.enqueue_by_name(name, 2)
            assert await other.result(20) == 3
            assert (await job.view()).task == name
            return job.id

    job_id = asyncio.run(run())
    with LogReader.open(str(tmp_path / "q")) as reader:
        assert len(reader.jobs(None, None, name, 9)) == 2
    assert taskq_json("show", job_id, "-d", tmp_path / "q")["task"] == name
    put = taskq("put", "-d", tmp_path / "q", f"--task={name}", '{"a": 1}')
    assert put.exit_code == 0, put.output
    listed = taskq_json("ls", "-d", tmp_path / "q", f"--task={name}")
    assert [job["task"] for job in listed] == [name] * 3


@bad
def test_a_name_that_cannot_be_is_refused_at_every_door(tmp_path: Path, name: str) -> None:
    app = TaskQ(tmp_path / "q", durability="os")

    async def work() -> None: ...

    with pytest.raises(UsageError, match="queue name"):
        app.task(queue=name)(work)
    if name:
        with pytest.raises(UsageError, match="task name"):
            app.task(name=name)(work)
        with pytest.raises(UsageError, match="task name"):
            app.call_by_name(name)
    with pytest.raises(UsageError, match="task name"):
        app.task(aliases=[name])(work)
    task = app.task(work)
    with pytest.raises(UsageError, match="queue name"):
        task.options(queue=name)
    with pytest.raises(UsageError, match="queue name"):
        task.call().options(queue=name)
    with pytest.raises(UsageError, match="queue name"):
        app.worker(queues=[name])

    async def run() -> None:
        async with TaskLog.open(tmp_path / "q", durability="os") as log:
            with pytest.raises(UsageError, match="queue name"):
                await log.put(b"x", queue=name)
            with pytest.raises(UsageError, match="queue name"):
                await log.claim(1, queues=["good", name])
            assert await log.peek() == []

    asyncio.run(run())
    if "\0" not in name and "\ud800" not in name:  # which no command line can hold
        result = taskq("put", "-d", tmp_path / "q", f"--queue={name}", "x")
        assert result.exit_code == 2
        assert "queue name" in result.output


def test_names_that_look_alike_are_queues_of_their_own(tmp_path: Path) -> None:
    """Composed or decomposed, upper or lower case, with a space at the end: bytes decide."""
    names = ["é", unicodedata.normalize("NFD", "é"), "E", "e", "e ", " e"]

    async def run() -> None:
        async with TaskLog.open(tmp_path / "q", durability="os") as log:
            for name in names:
                await log.put(name.encode(), queue=name)
            for name in names:
                claimed = await log.claim(9, queues=[name])
                assert [delivery.payload for delivery in claimed] == [name.encode()]

    asyncio.run(run())


def test_a_process_is_told_by_its_name_alone_and_that_drives_no_terminal() -> None:
    script = (
        "import ctypes, sys\n"
        "ctypes.CDLL(None).prctl(15, b'\\x1b]0;) R\\n', 0, 0, 0)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    with Child(sys.executable, "-c", script, "--password=secret\x1b[31m") as child:
        child.line()
        output = process_state(child.pid)
    assert output in {"sleeping: ?]0;) R?", "running: ?]0;) R?"}


def test_no_message_of_an_error_drives_the_terminal(tmp_path: Path) -> None:
    failed = taskq("ls", "-d", tmp_path / "a\x1b[31m\rb")
    assert failed.exit_code == 1
    assert "\\x1b[31m\\rb" in failed.output
    assert not {"\x1b", "\r"} & set(failed.output)
