"""Odd names and long texts: taken or refused at every door, and shown in tables that fit."""

import asyncio
import contextlib
import json
import random
import re
import shutil
import sys
import unicodedata
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from taskq import State, TaskLog, TaskQ
from taskq.cli import render
from taskq.cli.main import main
from taskq.errors import TaskqError, UsageError
from taskq.log.format import codec
from taskq.log.format.frames import segment_name
from taskq.log.journal.lock import process_state
from taskq.log.read.reader import LogReader
from tests.cli.helpers import Sample, taskq, taskq_json
from tests.effort import grows, some
from tests.processes.harness import Child

GOOD: Final = {
    "slashes": "a/b//c/", "dots": "../../etc/passwd", "absolute": "/",
    "200 characters": "q" * 200, "255 bytes": "é" * 127 + "e", "unicode": "приём-邮件-🚀",
    "spaces": "  two  words ", "percent": "50%s{x}$(rm -rf)`", "quotes": "'\"\\", "a dash": "-x",
    "wildcards": "*?[a]", "brackets": "[red]mail[/red]", "json": '{"a": 1}', "a number": "0",
    "decomposed": unicodedata.normalize("NFD", "é"),
}  # fmt: skip
BAD: Final = {
    "empty": "", "nul": "a\0b", "newline": "a\nb", "escape": "a\x1b[31mb", "tab": "a\tb",
    "256 characters": "q" * 256, "200 wide characters": "é" * 200, "no break": "a\u00a0b",
    "a lone surrogate": "a\ud800", "right to left": "a\u202eb", "zero width": "a\u200bb",
}  # fmt: skip
good = pytest.mark.parametrize("name", GOOD.values(), ids=GOOD)
bad = pytest.mark.parametrize("name", BAD.values(), ids=BAD)


@good
def test_a_strange_name_is_the_same_everywhere(tmp_path: Path, name: str) -> None:
    path = tmp_path / "q"
    app = TaskQ(path, durability="os")
    aliases = [f"{name[:250]}2"] if len(name.encode()) < 250 else []

    @app.task(name=name, queue=name, aliases=aliases)
    async def work(a: int) -> int:
        return a + 1

    with app:
        with app.worker_thread(queues=[name]):
            job = work.enqueue_sync(1)
            other = app.enqueue_sync(app.call_by_name(name, 2).options(queue=name))
            assert [it.result_sync(20) for it in (job, other)] == [2, 3]
        app.enqueue_by_name_sync("other")
        waits = work.options(key="k").enqueue_sync(3)
        assert [view.job_id for view in app.peek_sync(9, queue=name)] == [waits.id]
        view = job.view_sync()
        assert (view.task, view.queue) == (name, name)
    with LogReader.open(str(path)) as reader:
        jobs = reader.jobs({State.SUCCEEDED}, name, name, 9)
        assert {job.job_id for job in jobs} == {job.id, other.id}
    again = taskq("put", "-d", path, f"--queue={name}", f"--task={name}", '{"a": 1}')
    assert again.exit_code == 0, again.output
    for what in ("queue", "task"):
        listed = taskq_json("ls", "-d", path, f"--{what}={name}")
        assert [job[what] for job in listed] == [name] * 4
    assert taskq_json("show", job.id, "-d", path)["task"] == name
    assert taskq("ls", "-d", path).exit_code == 0
    counted = {row["queue"]: row for row in taskq_json("stats", "-d", path)["queues"]}
    assert (counted[name]["ready"], counted[name]["succeeded"]) == (2, 2)
    assert counted.keys() == {name, "default"}
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


@bad
def test_a_name_that_cannot_be_is_refused_at_every_door(tmp_path: Path, name: str) -> None:
    app = TaskQ(tmp_path / "q", durability="os")

    async def work() -> None: ...

    task = app.task(work)
    with TaskLog.open(tmp_path / "q", durability="os") as log:
        doors: list[tuple[str, Callable[[], object]]] = [
            ("queue", lambda: app.task(queue=name)(work)),
            ("task", lambda: app.task(aliases=[name])(work)),
            ("queue", lambda: task.options(queue=name)),
            ("queue", lambda: task.call().options(queue=name)),
            ("queue", lambda: app.worker(queues=[name])),
            ("queue", lambda: log.put_sync(b"x", queue=name)),
            ("queue", lambda: log.claim_sync(1, queues=["good", name])),
        ]
        if name:
            doors.append(("task", lambda: app.task(name=name)(work)))
            doors.append(("task", lambda: app.call_by_name(name)))
        for kind, door in doors:
            with pytest.raises(UsageError, match=f"{kind} name"):
                door()
        assert log.peek_sync() == []
    if "\0" not in name and "\ud800" not in name:  # which no command line can hold
        result = taskq("put", "-d", tmp_path / "q", f"--queue={name}", "x")
        assert result.exit_code == 2
        assert "queue name" in result.output


@pytest.mark.posix("names itself by a call of Linux")
def test_a_process_is_shown_by_name_only_and_without_control_characters() -> None:
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


_STYLE = re.compile(r"\x1b\[[0-9;]*m")
JOBS = 6


def _fill(path: Path) -> list[str]:
    ids = []
    with TaskLog.open(path, name="a-worker-of-this-machine") as log:
        for i in range(JOBS):
            queue = f"newsletters-and-{'other-' * (i % 4)}mails"
            ids.append(log.put_sync(b'{"text":"%s"}' % (b"x" * 80), queue=queue, attempts=1))
        for delivery in log.claim_sync(3):
            log.nack_sync(delivery, f"ValueError: {'the server refused it ' * 4}")
    return ids


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    path = tmp_path_factory.mktemp("wide") / "queue"
    return path, _fill(path)


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize(("command", "rows"), [
    ("ls", JOBS), ("peek", 3), ("dead ls", 3), ("tail -n 200", 13), ("stats", 5),
])  # fmt: skip
def test_a_job_is_one_line_of_a_narrow_terminal_and_its_id_is_whole(
    wide: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, command: str, rows: int,
    columns: int,
) -> None:  # fmt: skip
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


@pytest.mark.parametrize("charset", ["cp437", "cp1252"])
def test_an_output_without_a_sign_for_it_gets_it_escaped(tmp_path: Path, charset: str) -> None:
    """As a console of Windows, whose output is a pipe or has an old code page."""
    name = GOOD["unicode"]

    async def fill() -> str:
        async with TaskLog.open(tmp_path, durability="os", name=name) as log:
            job = await log.put(name.encode(), queue=name, attempts=1)
            await log.nack((await log.claim(1, queues=[name]))[0], name)
            return job

    job = asyncio.run(fill())
    commands = f"ls|peek|show {job}|why {job}|timeline {job}|dead ls|tail -n 9|stats|top --once"
    for command in commands.split("|"):
        done = CliRunner(charset=charset).invoke(main, [*command.split(), "-d", str(tmp_path)])
        assert done.exception is None, command
        assert r"\u043f" in done.output or command == "peek"


_DEEP: Final = b"[" * 100_000 + b"]" * 100_000
_COMMANDS: Final = (
    "ls", "ls --json", "show ID", "why ID", "timeline ID", "stats", "workers", "dead ls", "peek",
    "tail -n 20", "verify", "health", "export", "export --records", "schedules ls", "reader ls",
)  # fmt: skip


def _look(path: Path, job: str, command: str) -> None:
    words = [job if word == "ID" else word for word in command.split()]
    result = CliRunner().invoke(main, [*words, "-d", str(path)])
    error = result.exception
    assert error is None or isinstance(error, SystemExit), (command, error, error.__traceback__)
    assert result.exit_code in (0, 1), (command, result.output)
    assert "Traceback" not in result.output
    if result.exit_code and not result.stdout:
        assert 0 < len(result.stderr.splitlines()) <= 3, result.stderr


def _open(path: Path) -> None:
    with contextlib.suppress(TaskqError), TaskLog.open(path, upkeep=False) as log:
        log.claim_sync(20)
        log.put_sync(b"one more")


def _holds(path: Path, job: str) -> bool:
    with TaskLog.open(path, upkeep=False) as log:
        return log.get_sync(job) is not None


def _garbage(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(chance.choice((1, 40, 5_000))))


def _flipped(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 3, 30)) if data else 0):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)


def _cut(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data) + 1)])


def _directory(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _renamed(path: Path, chance: random.Random) -> None:
    digits = chance.choice(("9" * 20, "0" * 20, "1" * 20, "18446744073709551616", "x", "-1"))
    path.rename(path.with_name(digits + chance.choice((path.suffix, ".log", ""))))


_CHANGES: Final[list[tuple[str, Callable[[Path, random.Random], object]]]] = [
    ("garbage", _garbage), ("flipped", _flipped), ("flipped", _flipped), ("cut", _cut),
    ("emptied", lambda path, _: path.write_bytes(b"")),
    ("deep", lambda path, _: path.write_bytes(_DEEP)), ("directory", _directory),
    ("gone", lambda path, _: path.unlink()), ("renamed", _renamed),
]  # fmt: skip


def _check_seed(seed: int, sample: Sample, place: Path, commands: int) -> None:
    chance = random.Random(seed)
    path = place / "log of its own"  # no other log lies nearby, to be offered
    shutil.copytree(sample.path, path)
    if chance.random() < 0.3:
        (path / "failed").write_bytes(b'{"segment": 1, "durable_lsn": 1, "error": "EIO"}')
    chosen = chance.choice(sorted(path for path in path.rglob("*") if path.is_file()))
    what, change = chance.choice(_CHANGES)
    change(chosen, chance)
    job = sample.ids[chance.choice(sorted(sample.ids))]
    try:
        for command in chance.sample(_COMMANDS, commands):
            _look(path, job, command)
        _open(path)
    except Exception as error:
        error.add_note(f"seed {seed}: {what} {chosen}")
        raise


@grows
@pytest.mark.parametrize("block", range(some(6, 106)))
def test_a_changed_file_gives_no_traceback(block: int, sample: Sample, tmp_path: Path) -> None:
    for seed in range(block * 4, block * 4 + 4):
        _check_seed(seed, sample, tmp_path / str(seed), some(4, len(_COMMANDS)))


def _set_times(path: Path, time_ns: int) -> None:
    log_id = uuid.UUID(json.loads((path / "taskq.json").read_bytes())["log_id"])
    file = path / "log" / segment_name(1)
    data, seed, at = file.read_bytes(), codec.segment_seed(log_id, 1), codec.SEGMENT_HEADER.size
    parts = [data[:at]]
    while (header := codec.decode_frame_header(data, at, seed, at)) is not None:
        start = at + codec.FRAME_HEADER_SIZE
        parts.append(
            codec.encode_frame(
                data[start : start + header.body_size], header.records, header.first_lsn,
                header.epoch, time_ns, header.synced_through, seed, at,
            )
        )  # fmt: skip
        at += header.size
    file.write_bytes(b"".join(parts))


def _garbled(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(content)


_MARKERS: Final = (
    b"", b"null", b"[]", b'"x"', b"1e999", b'{"segment": "x", "durable_lsn": "x"}', _DEEP,
    b'{"segment": null, "durable_lsn": null}', b'{"durable_lsn": 1e999}', b"\xff\xfe",
    b'{"segment": [], "durable_lsn": -5}', b'{"durable_lsn": 99999999999999999999999999}',
)  # fmt: skip
#: Odd contents of a log: markers of failed syncs, files named like no segment, frames of any time.
_HELD: Final[dict[str, Callable[[Path], object]]] = {
    **{f"marker {text[:24]!r}": _garbled("failed", text) for text in _MARKERS},
    **{
        f"segment {name}": _garbled(f"log/{name}.log", b"taskqlog of nothing" * 9)
        for name in ("9" * 20, "18446744073709551616", "0" * 20, "٣" * 20)
    },
    **{f"time {ns}": partial(_set_times, time_ns=ns) for ns in (-(2**63), -1, 2**63 - 1)},
}


@pytest.mark.parametrize("what", _HELD)
def test_a_log_is_shown_and_goes_on_whatever_it_holds(
    what: str, sample: Sample, tmp_path: Path
) -> None:
    path, job = tmp_path / "log", sample.ids["bytes"]
    shutil.copytree(sample.path, path)
    _HELD[what](path)
    for command in ("stats", "verify", "health") if what.startswith("marker") else _COMMANDS:
        _look(path, job, command)
    assert _holds(path, job)
    assert not (path / "failed").exists()
