"""A hub that was copied while it ran, or damaged, has again what its devices still have."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Final

import pytest

from taskq import TaskLog
from taskq.log.machine.disk import LocalDisk
from taskq_plugins.hub.copies import faults
from taskq_plugins.hub.models import HubStops
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.transport import hub_backed_up
from tests.hub.place import DEVICE as _DEVICE
from tests.hub.place import is_copy
from tests.hub.place import run as _run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.hub.place import Place

_MIB: Final = 2**20


async def _work(place: Place, jobs: int = 60, body: int = 0) -> None:
    async with TaskLog.open(place.log, segment_bytes=64 * 1024) as log:
        for _ in range(jobs):
            await log.put(os.urandom(4_000))
        if body:
            await log.put(os.urandom(body))


def _is_whole(place: Place) -> bool:
    copies = {file.name: file.read_bytes() for file in (place.copy / "log").glob("*.log")}
    return is_copy(copies, place.segments())


@pytest.mark.parametrize("late", ["seals.jsonl", "taskq.json", "log"])
async def test_a_hub_that_was_copied_while_it_ran_is_filled_again(place: Place, late: str) -> None:
    """All but one file, or folder, is of before what came while the copy was made."""
    await _work(place, 20, 2 * _MIB)
    await place.sync()
    await place.server._mend()
    copied = shutil.copytree(place.hub, place.path / "copied")
    await _work(place, 80, 2 * _MIB)
    await place.sync()
    (newest,), (older,) = place.hub.rglob(late), copied.rglob(late)
    if newest.is_dir():
        shutil.rmtree(older)
        shutil.copytree(newest, older)
    else:
        shutil.copy2(newest, older)
    shutil.rmtree(place.hub)
    copied.rename(place.hub)
    place.restart()
    await place.server._mend()
    await _work(place, 3)
    await place.sync()
    await place.sync()
    assert _is_whole(place)
    assert not list(faults(place.hub, deep=True))


def _shorter(copy: Path) -> None:
    file = sorted((copy / "log").glob("*.log"))[1]
    os.truncate(file, file.stat().st_size // 2)


def _gone(copy: Path) -> None:
    sorted((copy / "log").glob("*.log"))[1].unlink()


async def _check_holes(place: Place, break_it: Callable[[Path], None]) -> None:
    await _work(place)
    await place.sync()
    break_it(place.copy)
    place.restart()


@pytest.mark.parametrize("break_it", [_shorter, _gone])
async def test_a_hole_between_segments_is_filled_by_itself(
    place: Place, break_it: Callable[[Path], None]
) -> None:
    await _check_holes(place, break_it)
    assert list(faults(place.hub, deep=False))
    await place.sync()
    assert _is_whole(place)
    assert not list(faults(place.hub, deep=True))


def _other(copy: Path, number: int) -> None:
    file = sorted((copy / "log").glob("*.log"))[number]
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        opened.write(b"other than it was")


@pytest.mark.parametrize(
    "break_it",
    [
        lambda copy: _other(copy, 0), lambda copy: _other(copy, 1), lambda copy: _other(copy, -1),
        _shorter,
    ],
)  # fmt: skip
async def test_a_repair_has_the_device_send_again_what_is_wrong(
    place: Place, break_it: Callable[[Path], None]
) -> None:
    await _work(place)
    await place.sync()
    break_it(place.copy)
    checked = _run("hub", "check", place.hub, "--repair")
    assert (checked.exit_code, "asked for again" in checked.output) == (1, True), checked.output
    place.restart()
    await _work(place, 3)
    await place.sync()
    assert _is_whole(place)
    assert _run("hub", "check", place.hub, "--deep").output == ""
    await _work(place, 100)
    await place.sync()
    assert _is_whole(place)


async def test_what_the_device_has_no_more_stays_as_it_is_and_stops_nothing(place: Place) -> None:
    await _check_holes(place, lambda copy: _other(copy, 0))
    min(path for path in (place.log / "log").glob("*.log")).unlink()
    _run("hub", "check", place.hub, "--repair")
    place.restart()
    await place.sync()
    assert list(faults(place.hub, deep=True))


async def test_no_command_advises_to_repair_a_copy(place: Place) -> None:
    await _work(place)
    await place.sync()
    _gone(place.copy)
    for words in (("verify",), ("health",), ("ls",), ("stats",)):
        output = _run(*words, "-d", place.copy).output
        assert "taskq repair" not in output, words
    assert f"taskq hub check {place.hub} --repair" in _run("verify", "-d", place.copy).output


async def test_a_backup_beside_a_server_is_a_hub_that_devices_go_on_with(
    place: Place, url: str
) -> None:
    await _work(place, 20, 2 * _MIB)
    await place.sync()
    before = shutil.copytree(place.log, place.path / "before")
    await _work(place, 20)
    await place.sync()
    place.remove()
    before.rename(place.log)
    await _work(place, 30)
    await place.sync()
    put = "hub", "put", place.hub, _DEVICE, "update"
    job = (await asyncio.to_thread(_run, *put)).output.strip()
    token = place.token
    backup = place.path / "backup"
    assert _run("hub", "backup", place.hub, backup).output == f"{backup}: 2 logs\n"
    assert _run("hub", "backup", place.hub, backup).exit_code == 1
    assert not list(faults(backup, deep=True))
    await _work(place, 30, 3 * _MIB)
    await place.sync()
    shutil.rmtree(place.hub)
    assert _run("hub", "backup", backup, place.hub).exit_code == 0
    place.restart()
    await place.sync(token, accept=("update",))
    await place.sync(token)  # the job came
    assert _is_whole(place)
    assert "goes on from log" in _run("hub", "devices", place.hub, _DEVICE).output
    assert "handed over" in _run("hub", "find", place.hub, job).output


async def test_a_backup_that_is_made_while_the_hub_grows_is_whole(place: Place) -> None:
    await _work(place)
    await place.sync()
    backups: list[Path] = []
    for number in range(4):
        syncing = asyncio.create_task(_grown(place))
        while not syncing.done():
            target = place.path / f"backup-{number}-{len(backups)}"
            await asyncio.to_thread(hub_backed_up, place.hub, target)
            backups.append(target)
    assert backups
    for target in backups:
        assert not list(faults(target, deep=True))


async def _grown(place: Place) -> None:
    await _work(place, 30, 2 * _MIB)
    await place.sync()


async def test_what_is_erased_is_gone_and_its_token_holds_no_more(place: Place) -> None:
    await _work(place, 3)
    await place.sync()
    assert _run("hub", "erase", place.hub, _DEVICE).exit_code == 2
    assert _run("hub", "erase", place.hub, _DEVICE, "--yes").exit_code == 0
    assert not [
        path for path in place.hub.rglob("*") if _DEVICE in str(path.relative_to(place.hub))
    ]
    assert "has no device yet" in _run("hub", "devices", place.hub).output
    place.restart()
    with pytest.raises(HubStops, match="401"):
        await place.sync()


async def test_a_served_hub_erases_nothing(place: Place) -> None:
    await _work(place, 3)
    await place.sync()
    disk = LocalDisk()
    lock = disk.open(str(place.hub / "serve.lock"), create=True)
    assert disk.try_lock(lock)
    for words in (("erase", place.hub, _DEVICE, "--yes"), ("take", place.hub, _DEVICE, place.log)):
        assert "served by another process" in _run("hub", *words).output
    assert place.copies()
    disk.close(lock)


async def test_a_hub_whose_disk_refuses_what_it_notes_is_served_all_the_same(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await _work(place, 3)
    await place.sync()
    (place.hub / ".place").mkdir()
    await place.server._mend()
    assert "at the next start" in caplog.text
    await place.sync()


async def test_a_registry_that_is_older_than_the_copies_is_named_with_what_helps(
    place: Place,
) -> None:
    """Its pages fit: it was copied before a device came."""
    registry = Registry(place.hub)
    registry.open()
    registry.close()
    before = (place.hub / "registry.db").read_bytes()
    await _work(place, 3)
    await place.sync()
    await place.close()
    assert _run("hub", "check", place.hub).output == ""
    for file in place.hub.glob("registry.db*"):
        file.unlink()
    (place.hub / "registry.db").write_bytes(before)
    checked = _run("hub", "check", place.hub)
    assert f"taskq hub enroll {place.hub} {_DEVICE}" in checked.output
    assert checked.exit_code == 1
    assert _run("hub", "enroll", place.hub, _DEVICE).exit_code == 0
    assert _run("hub", "check", place.hub).output == ""


@pytest.mark.parametrize("at", [0, 1_000, 9_000])
async def test_a_registry_that_was_copied_while_it_was_written_is_named_with_what_helps(
    place: Place, at: int
) -> None:
    registry = Registry(place.hub)
    for number in range(60):
        registry.enroll(f"edge-{number}")
    registry.close()
    file = place.hub / "registry.db"
    data = bytearray(file.read_bytes())
    data[at : at + 4_096] = b"of another time!" * 256
    file.write_bytes(data)
    for command in (("devices",), ("enroll", "edge-7"), ("serve", "--bind", "127.0.0.1:0")):
        done = _run("hub", command[0], place.hub, *command[1:])
        assert done.exit_code == 1, done.output
        assert str(file) in done.output
        assert "taskq hub backup" in done.output
    assert file.read_bytes() == bytes(data)
