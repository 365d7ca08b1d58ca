"""Odd files in a log's directory give one or two lines, never a traceback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from taskq import TaskLog
from taskq.cli.main import main
from taskq.errors import TaskqError
from taskq.log.format import codec
from taskq.log.format.frames import segment_name
from tests.cli.helpers import Sample

_DEEP: Final = b"[" * 100_000 + b"]" * 100_000
_COMMANDS: Final = (
    "ls", "ls --json", "show ID", "why ID", "timeline ID", "stats", "workers", "dead ls", "peek",
    "tail -n 20", "verify", "health", "export", "export --records", "schedules ls", "reader ls",
)  # fmt: skip


def _look(path: Path, job: str, command: str) -> None:
    """Run a read command: it works, or says in a line or two why not."""
    words = [job if word == "ID" else word for word in command.split()]
    result = CliRunner().invoke(main, [*words, "-d", str(path)])
    error = result.exception
    assert error is None or isinstance(error, SystemExit), (command, error, error.__traceback__)
    assert result.exit_code in (0, 1), (command, result.output)
    assert "Traceback" not in result.output
    if result.exit_code and not result.stdout:
        assert 0 < len(result.stderr.splitlines()) <= 3, result.stderr


def _open(path: Path) -> None:
    async def work() -> None:
        async with TaskLog.open(path, upkeep=False) as log:
            await log.claim(20)
            await log.put(b"one more")

    with contextlib.suppress(TaskqError):
        asyncio.run(work())


def _holds(path: Path, job: str) -> bool:
    async def work() -> bool:
        async with TaskLog.open(path, upkeep=False) as log:
            return await log.get(job) is not None

    return asyncio.run(work())


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


def _emptied(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def _deep(path: Path, _: random.Random) -> None:
    path.write_bytes(_DEEP)


def _directory(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _gone(path: Path, _: random.Random) -> None:
    path.unlink()


def _renamed(path: Path, chance: random.Random) -> None:
    digits = chance.choice(("9" * 20, "0" * 20, "1" * 20, "18446744073709551616", "x", "-1"))
    path.rename(path.with_name(digits + chance.choice((path.suffix, ".log", ""))))


_CHANGES: Final[list[Callable[[Path, random.Random], None]]] = [
    _garbage, _flipped, _flipped, _cut, _emptied, _deep, _directory, _gone, _renamed,
]  # fmt: skip


def _change_one(path: Path, chance: random.Random) -> str:
    files = sorted(path for path in path.rglob("*") if path.is_file())
    chosen = chance.choice(files)
    change = chance.choice(_CHANGES)
    change(chosen, chance)
    return f"{change.__name__} {chosen.relative_to(path)}"


def _check_seed(seed: int, sample: Sample, place: Path, commands: int) -> None:
    chance = random.Random(seed)
    path = place / "log of its own"  # no other log lies nearby, to be offered
    shutil.copytree(sample.path, path)
    if chance.random() < 0.3:
        (path / "failed").write_bytes(b'{"segment": 1, "durable_lsn": 1, "error": "EIO"}')
    what = _change_one(path, chance)
    job = sample.ids[chance.choice(sorted(sample.ids))]
    try:
        for command in chance.sample(_COMMANDS, commands):
            _look(path, job, command)
        _open(path)
    except Exception as error:
        error.add_note(f"seed {seed}: {what}")
        raise


@pytest.mark.parametrize("seed", range(24))
def test_a_file_that_is_not_what_it_was_gives_no_traceback(
    seed: int, sample: Sample, tmp_path: Path
) -> None:
    _check_seed(seed, sample, tmp_path / "log", 4)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_a_file_that_is_not_what_it_was_gives_no_traceback_at_length(
    block: int, sample: Sample, tmp_path: Path
) -> None:
    for seed in range(1_000 + block * 20, 1_020 + block * 20):
        _check_seed(seed, sample, tmp_path / str(seed), len(_COMMANDS))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"null", b"[]", b'"x"', b"1e999", b'{"segment": "x", "durable_lsn": "x"}', _DEEP,
        b'{"segment": null, "durable_lsn": null}', b'{"durable_lsn": 1e999}', b"\xff\xfe",
        b'{"segment": [], "durable_lsn": -5}', b'{"durable_lsn": 99999999999999999999999999}',
    ],
    ids=lambda content: content[:24].decode("latin-1") or "empty",
)  # fmt: skip
def test_a_marker_of_a_failed_sync_may_hold_anything(
    content: bytes, sample: Sample, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    shutil.copytree(sample.path, path)
    (path / "failed").write_bytes(content)
    for command in ("stats", "verify", "health"):
        _look(path, "", command)
    assert _holds(path, sample.ids["bytes"])
    assert not (path / "failed").exists()


@pytest.mark.parametrize("name", ["9" * 20, "18446744073709551616", "0" * 20, "٣" * 20])
def test_a_file_named_like_no_segment_is_none(name: str, sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "log"
    shutil.copytree(sample.path, path)
    (path / "log" / f"{name}.log").write_bytes(b"taskqlog of nothing" * 9)
    for command in _COMMANDS:
        _look(path, sample.ids["bytes"], command)
    assert _holds(path, sample.ids["bytes"])


@pytest.mark.parametrize("time_ns", [-(2**63), -1, 2**63 - 1])
def test_a_frame_of_any_time_is_read(time_ns: int, tmp_path: Path) -> None:

    async def write() -> str:
        async with TaskLog.open(tmp_path, upkeep=False) as log:
            return await log.put(b"a job")

    job = asyncio.run(write())
    _set_times(tmp_path, time_ns)
    for command in _COMMANDS:
        _look(tmp_path, job, command)
    _open(tmp_path)


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
