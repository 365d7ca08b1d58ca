"""Odd names and long texts: taken or refused at every door, and shown in tables that fit."""

from __future__ import annotations

import asyncio
import re
import sys
import unicodedata
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskq import State, TaskLog, TaskQ
from taskq.cli import render
from taskq.core import views as documents
from taskq.core.model import SECOND_NS
from taskq.errors import UsageError
from taskq.log.journal.lock import process_state
from taskq.log.read.reader import LogReader
from tests.cli.helpers import taskq, taskq_json
from tests.effort import grows, some
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


NOW = 1_700_000_000 * SECOND_NS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s ago"), (-59, "59s ago"), (-180, "3m ago"), (-7_300, "2h ago"), (-200_000, "2d ago"),
     (80, "in 1m"), (86_400, "in 1d"), (7_197, "in 2h"), (3_570, "in 1h")],
)  # fmt: skip
def test_moments_read_as_people_say_them(seconds: int, text: str) -> None:
    assert render.when(NOW + seconds * SECOND_NS, NOW) == text


def test_never_is_empty_for_people_and_null_for_programs() -> None:
    assert render.when(0, NOW) == ""
    assert documents.moment(0) is None


def test_moments_for_programs_are_iso_8601_in_utc() -> None:
    assert documents.moment(NOW + 1_500) == "2023-11-14T22:13:20.000001+00:00"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.25, "0.2ms"), (12, "12ms"), (3_400, "3.4s"), (300_000, "5m"), (-1, "0.0ms")],
)
def test_spans_keep_the_digits_that_matter(milliseconds: float, text: str) -> None:
    assert render.precise(int(milliseconds * 1e6)) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1_023, "1023 B"), (1_024, "1.0 KiB"), (5 * 2**30, "5.0 GiB"), (2**41, "2.0 TiB")],
)
def test_sizes_are_in_binary_units(count: int, text: str) -> None:
    assert render.size(count) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"a":1}', '{\n  "a": 1\n}'),
        ("grüße".encode(), "  grüße"),
        (b"\xff\x00", "  b'\\xff\\x00'"),
        (b"\x1b[31mred\nx", "  \\x1b[31mred\n  x"),
    ],
)
def test_a_payload_never_drives_the_terminal(body: bytes, text: str) -> None:
    assert render.body_block(body) == text


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (None, None),
        (b"[1]", {"encoding": "json", "data": [1]}),
        (b"hello", {"encoding": "text", "data": "hello"}),
        (b"\xff", {"encoding": "base64", "data": "/w=="}),
    ],
)
def test_a_payload_for_programs_says_how_it_is_encoded(
    body: bytes | None, document: object
) -> None:
    assert documents.body_document(body) == document


def test_a_piped_table_is_plain_and_cuts_nothing_off(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    render.print_table(("ID", ">N", "NOTE"), [("a-1", "7", long), ("a-10", "10", "[red]no\x1b")])
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.split() == ["ID", "N", "NOTE"]
    assert rows == [f"a-1    7  {long}", "a-10  10  [red]no\\x1b"]


_STYLE = re.compile(r"\x1b\[[0-9;]*m")
JOBS = 6


async def _fill(path: Path) -> list[str]:
    ids = []
    async with TaskLog.open(path, name="a-worker-of-this-machine") as log:
        for i in range(JOBS):
            queue = f"newsletters-and-{'other-' * (i % 4)}mails"
            ids.append(await log.put(b'{"text":"%s"}' % (b"x" * 80), queue=queue, attempts=1))
        for delivery in await log.claim(3):
            await log.nack(delivery, f"ValueError: {'the server refused it ' * 4}")
    return ids


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a log whose names, payloads and reasons are all too long for a table."""
    path = tmp_path_factory.mktemp("wide") / "queue"
    return path, asyncio.run(_fill(path))


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize(
    ("command", "rows"),
    [("ls", JOBS), ("peek", 3), ("dead ls", 3), ("tail -n 200", 13), ("stats", 5)],
)
def test_a_job_is_one_line_of_a_narrow_terminal_and_its_id_is_whole(
    wide: tuple[Path, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    rows: int,
    columns: int,
) -> None:
    path, ids = wide
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = _STYLE.sub("", taskq(*command.split(), path).stdout).splitlines()
    if command == "stats":
        lines = lines[: lines.index("")]
    assert all(len(line) <= columns for line in lines)
    assert len(lines) - (not command.startswith("tail")) == rows
    if command == "ls":
        assert [line.split()[0] for line in lines[1:]] == ids[::-1]


COLUMNS = st.lists(
    st.tuples(st.sampled_from(["", ">"]), st.text("ABC", min_size=1, max_size=12),
              st.sampled_from(["", "~", "?", "~?", "??"])).map("".join),
    min_size=1, max_size=9,
)  # fmt: skip


@given(COLUMNS, st.data(), st.integers(40, 120))
@grows
@settings(
    max_examples=some(33, 100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_table_fits_whenever_what_must_stay_does(
    capsys: pytest.CaptureFixture[str], columns: list[str], data: st.DataObject, limit: int
) -> None:
    """Columns that may not be cut are whole, and each row is a line of at most that width."""
    cells = st.text("abc déf漢", max_size=30)
    row = st.tuples(*(cells for _ in columns))
    rows = data.draw(st.lists(row, min_size=1, max_size=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "on_terminal", lambda: True)
        patch.setenv("COLUMNS", str(limit))
        render.print_table(columns, rows)
    lines = _STYLE.sub("", capsys.readouterr().out).splitlines()
    kept = [(i, name) for i, name in enumerate(columns) if "?" not in name]
    whole = [i for i, name in kept if "~" not in name]
    least = sum(
        render.cell_width(columns[i].strip(">~?"), *(row[i] for row in rows)) for i in whole
    )
    may_be_cut = [i for i, name in kept if "~" in name]
    least += sum(
        max(4, render.cell_width(*(row[i] for row in rows))) if columns[i].startswith(">") else 6
        for i in may_be_cut
    )
    assert len(lines) == len(rows) + 1
    if least + 2 * (len(kept) - 1) <= limit:
        assert all(render.cell_width(line.rstrip()) <= limit for line in lines)
    for i in whole:
        assert all(row[i].strip() in line for row, line in zip(rows, lines[1:], strict=True))
