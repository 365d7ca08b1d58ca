"""Beside a server all others only read: no byte, time or name below the hub changes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest
from click.testing import CliRunner

from taskq import TaskLog
from taskq.cli.main import main
from taskq.engine import Border
from taskq.log.machine.disk import PatientDisk
from taskq_plugins.fleet import find_logs, segments
from taskq_plugins.hub import Hub
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.models import NOWHERE, CopyEnd, Declare, Stored, Sync
from tests.hub.place import DEVICE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hub.place import Place

_LONG_AGO: Final = time.time() - 40 * 86_400


def _run(*words: object) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code in (0, 1), (words, done.output)
    assert not done.exception or isinstance(done.exception, SystemExit), words
    return done.output


def _all_below(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return inode, time and bytes of everything below a directory."""
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns, _bytes(path))
        for path in [folder, *folder.rglob("*")]
    }


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


async def _grown(place: Place) -> Path:
    """Return the copy of a device with a gap, bodies, jobs from here, and old files."""
    job = None
    async with TaskLog.open(place.log, segment_bytes=64 * 1024) as log:
        for _ in range(60):
            await log.put(bytes(4_000))
        await log.put(os.urandom(2 * 2**20))
    await place.sync()
    copies = Copies(PatientDisk, str(place.hub))
    log_id = UUID(place.copy.name)
    synced = copies.answer(DEVICE, Sync(log_id, 1, frozenset(), NOWHERE))
    assert isinstance(synced, CopyEnd)
    gap = Declare(synced.session, log_id, synced.at, Border(10**6), 99, "a test")
    assert copies.answer(DEVICE, gap) == Stored(gap.at)
    copies.close()
    async with Hub(place.hub) as hub:
        job = await hub.device(DEVICE).enqueue(hub.call_by_name("update"))
        assert job is not None
    for path in place.hub.rglob("*"):
        if path.is_file():
            os.utime(path, (_LONG_AGO, _LONG_AGO))
    return place.copy


def _being_written(copy: Path) -> None:
    last = max(copy.rglob("*.log"))
    with last.open("ab") as file:
        file.write(bytes(100) + b"half of a frame")
    (copy / "log" / "00000000000000099999.log.tmp").write_bytes(b"half of a segment")
    with (copy / "seals.jsonl").open("ab") as file:
        file.write(b'{"segment": 1, "en')
    lines = (copy / "breaks.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "breaks.jsonl").write_bytes(b"".join(lines[:-1]))


@pytest.mark.parametrize("is_busy", [False, True])
async def test_whoever_is_not_the_server_changes_nothing(
    place: Place, url: str, *, is_busy: bool
) -> None:
    assert url
    copy = await _grown(place)
    if is_busy:
        _being_written(copy)
    before = _all_below(place.hub)
    _run("restore", copy, place.path / "new")
    _run("hub", "jobs", place.hub)
    for words in (("check",), ("check", "--deep"), ("devices",), ("devices", "--json")):
        _run("hub", words[0], place.hub, *words[1:])
    for words in (("ls",), ("stats",), ("verify",), ("export",), ("health",), ("dead", "ls")):
        _run(*words, "-d", copy)
    assert all(map(segments, find_logs(place.hub / "devices"))) or is_busy
    reading = Copies(PatientDisk, str(place.hub))
    gone = [reading.keep(each, time.time_ns(), dry_run=True) for each in reading.all()]
    assert any(gone) is not is_busy, "what is being set aside is not due"
    reading.close()
    assert _all_below(place.hub) == before
