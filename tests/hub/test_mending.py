"""A hub that was copied while it ran, or damaged, has again what its devices still have."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
from click.testing import CliRunner

from taskq import TaskLog
from taskq.cli.main import main
from taskq.engine import Border, Identity, LocalDisk, LogReader, PatientDisk
from taskq_plugins.fleet.inventory import segments
from taskq_plugins.fleet.places import find_logs
from taskq_plugins.hub import Hub
from taskq_plugins.hub.copies import CompactionFloor, Copies, due, newest
from taskq_plugins.hub.models import NOWHERE, CopyEnd, Declare, HubStops, Stored, Sync
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import Verdict
from taskq_plugins.hub.transport import hub_backed_up
from tests.hub.place import DEVICE, Place, all_kept, faults, is_copy, run

_MIB: Final = 2**20


async def _work(place: Place, jobs: int = 60, body: int = 0) -> None:
    async with TaskLog.open(place.log, segment_bytes=64 * 1024) as log:
        for _ in range(jobs):
            await log.put(os.urandom(4_000))
        if body:
            await log.put(os.urandom(body))


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
    assert is_copy(place.copies(), place.segments())
    assert not list(faults(place.hub, deep=True))


def _shorter(copy: Path) -> None:
    file = sorted((copy / "log").glob("*.log"))[1]
    os.truncate(file, file.stat().st_size // 2)


def _gone(copy: Path) -> None:
    sorted((copy / "log").glob("*.log"))[1].unlink()


def _other(copy: Path, number: int) -> None:
    file = sorted((copy / "log").glob("*.log"))[number]
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        opened.write(b"other than it was")


@pytest.mark.parametrize(("break_it", "repairs"), [
    (_shorter, False), (_gone, False), (_shorter, True), (lambda copy: _other(copy, 0), True),
    (lambda copy: _other(copy, 1), True), (lambda copy: _other(copy, -1), True),
])  # fmt: skip
async def test_what_is_wrong_in_a_copy_comes_again_by_itself_or_by_a_repair(
    place: Place, break_it: Callable[[Path], None], repairs: bool
) -> None:
    """A hole between segments is found by the hub, and other bytes by a check."""
    await _work(place)
    await place.sync()
    break_it(place.copy)
    if repairs:
        checked = run("hub", "check", place.hub, "--repair")
        assert (checked.exit_code, "asked for again" in checked.output) == (1, True)
    else:
        assert list(faults(place.hub, deep=False))
    place.restart()
    for jobs in (3, 100):
        await _work(place, jobs)
        await place.sync()
        assert is_copy(place.copies(), place.segments())
    assert run("hub", "check", place.hub, "--deep").output == ""


async def test_what_the_device_has_no_more_stays_as_it_is_and_stops_nothing(place: Place) -> None:
    await _work(place)
    await place.sync()
    _other(place.copy, 0)
    place.restart()
    min(path for path in (place.log / "log").glob("*.log")).unlink()
    run("hub", "check", place.hub, "--repair")
    place.restart()
    await place.sync()
    assert list(faults(place.hub, deep=True))


async def test_no_command_advises_to_repair_a_copy(place: Place) -> None:
    await _work(place)
    await place.sync()
    _gone(place.copy)
    for words in (("verify",), ("health",), ("ls",), ("stats",)):
        output = run(*words, "-d", place.copy).output
        assert "taskq repair" not in output, words
    assert f"taskq hub check {place.hub} --repair" in run("verify", "-d", place.copy).output


async def test_devices_go_on_with_a_backup_beside_a_server(place: Place, url: str) -> None:
    await _work(place, 20, 2 * _MIB)
    await place.sync()
    before = shutil.copytree(place.log, place.path / "before")
    await _work(place, 20)
    await place.sync()
    place.remove()
    before.rename(place.log)
    await _work(place, 30)
    await place.sync()
    put = "hub", "put", place.hub, DEVICE, "update"
    job = (await asyncio.to_thread(run, *put)).output.strip()
    token = place.token
    backup = place.path / "backup"
    assert run("hub", "backup", place.hub, backup).output == f"{backup}: 2 logs\n"
    assert run("hub", "backup", place.hub, backup).exit_code == 1
    assert not list(faults(backup, deep=True))
    await _work(place, 30, 3 * _MIB)
    await place.sync()
    shutil.rmtree(place.hub)
    assert run("hub", "backup", backup, place.hub).exit_code == 0
    place.restart()
    await place.sync(token, accept=("update",))
    await place.sync(token)  # the job came
    assert is_copy(place.copies(), place.segments())
    assert "goes on from log" in run("hub", "devices", place.hub, DEVICE).output
    assert "handed over" in run("why", job, "-d", place.hub).output


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


async def test_an_erased_device_is_gone_and_its_token_is_refused(place: Place) -> None:
    await _work(place, 3)
    await place.sync()
    assert run("hub", "erase", place.hub, DEVICE).exit_code == 2
    assert place.copies()
    assert run("hub", "erase", place.hub, DEVICE, "--yes").exit_code == 0
    assert not [path for path in place.hub.rglob("*") if DEVICE in str(path.relative_to(place.hub))]
    assert "has no device yet" in run("hub", "devices", place.hub).output
    place.restart()
    with pytest.raises(HubStops, match="401"):
        await place.sync()


async def test_a_device_with_a_file_for_its_folder_is_erased(place: Place) -> None:
    await _work(place, 3)
    await place.sync()
    folder = place.hub / "devices" / DEVICE
    shutil.rmtree(folder)
    folder.write_text("")
    assert run("hub", "erase", place.hub, DEVICE, "--yes").exit_code == 0
    assert not folder.exists()


async def test_the_error_of_a_copy_without_its_identity_shows_what_makes_it_the_copy_again(
    place: Place,
) -> None:
    await _work(place, 3)
    await place.sync()
    file = place.copy / "taskq.json"
    file.unlink()
    shown = run("ls", file.parent).output
    assert "be this hub's copy again" in shown
    file.write_text("{" + shown.partition("{")[2])
    assert _identity(file.parent).is_replica
    await _work(place, 3)
    await place.sync()
    assert run("hub", "check", place.hub, "--deep").exit_code == 0


async def test_a_served_hub_erases_nothing(place: Place) -> None:
    await _work(place, 3)
    await place.sync()
    disk = LocalDisk()
    lock = disk.open(str(place.hub / "serve.lock"), create=True)
    assert disk.try_lock(lock)
    for words in (("erase", place.hub, DEVICE, "--yes"), ("take", place.hub, DEVICE, place.log)):
        assert "served by another process" in run("hub", *words).output
    assert place.copies()
    disk.close(lock)


async def test_a_registry_older_than_the_copies_is_named_with_a_remedy(place: Place) -> None:
    """Its pages fit: it was copied before a device came."""
    registry = Registry(place.hub)
    registry.open()
    registry.close()
    before = (place.hub / "registry.db").read_bytes()
    await _work(place, 3)
    await place.sync()
    await place.close()
    assert run("hub", "check", place.hub).output == ""
    for file in place.hub.glob("registry.db*"):
        file.unlink()
    (place.hub / "registry.db").write_bytes(before)
    checked = run("hub", "check", place.hub)
    assert f"taskq hub enroll {place.hub} {DEVICE}" in checked.output
    assert checked.exit_code == 1
    assert run("hub", "enroll", place.hub, DEVICE).exit_code == 0
    assert run("hub", "check", place.hub).output == ""


@pytest.mark.parametrize("at", [0, 1_000, 9_000])
async def test_a_registry_copied_while_written_names_a_remedy(place: Place, at: int) -> None:
    registry = Registry(place.hub)
    for number in range(60):
        registry.enroll(f"edge-{number}")
    registry.close()
    file = place.hub / "registry.db"
    data = bytearray(file.read_bytes())
    data[at : at + 4_096] = b"of another time!" * 256
    file.write_bytes(data)
    for command in (("devices",), ("enroll", "edge-7"), ("serve", "--bind", "127.0.0.1:0")):
        done = run("hub", command[0], place.hub, *command[1:])
        assert done.exit_code == 1, done.output
        assert str(file) in done.output
        assert "taskq hub backup" in done.output
    assert file.read_bytes() == bytes(data)


def _identity(path: Path) -> Identity:
    identity = Identity.read(LocalDisk(), str(path))
    assert identity is not None
    return identity


def _files(log: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in log.rglob("*") if file.is_file()}


def _roll_back(log: Path, files: dict[Path, bytes]) -> None:
    """Bring a directory back as a snapshot of its file system does: no file of it is another."""
    for file in log.rglob("*"):
        if file.is_file() and file not in files:
            file.unlink()
    for file, data in files.items():
        file.write_bytes(data)


async def _ids(path: Path | str) -> dict[str, bytes]:
    with LogReader.open(str(path)) as reader:
        return {view.job_id: view.payload for view in reader.jobs(None, None, None, 1_000)}


@pytest.mark.parametrize("way", ["before_contact", "after_contact", "as_a_copy", "had_a_copy"])
async def test_a_rolled_back_disk_parts_at_the_hubs_frames(place: Place, way: str) -> None:
    """They are in the hub's copy of the log, of its parent or of its child."""
    await place.write(5)
    await place.sync()
    before, old, original = _files(place.log), _identity(place.log), place.path / "original"
    await place.write(5, 20)
    if way == "had_a_copy":
        shutil.copytree(place.log.rename(original), place.log)
        await place.write(1)
    await place.sync()
    if way == "had_a_copy":
        shutil.rmtree(place.log)
        original.rename(place.log)
    _roll_back(place.log, before)
    if way != "before_contact":
        await place.write(3, 50)
        assert _identity(place.log).log_id == old.log_id, "nothing of it shows"
    if way == "as_a_copy":
        shutil.copytree(place.log.rename(original), place.log)
        await place.write(1)
    verdict = Verdict.AHEAD if way == "before_contact" else Verdict.DIFFERS
    assert await place.sync() == [verdict, Verdict.NEW]
    own = _identity(place.log)
    assert [tuple(parent) for parent in own.parents] == [(old.log_id, 6)]
    await place.write(1, 70)
    assert await place.sync() == [Verdict.BEHIND]
    assert is_copy(place.copies(), place.segments())
    copies = [copy.path for copy in all_kept(place.hub)]
    others = [await _ids(path) for path in copies if path != str(place.copy)]
    ours, lost = await _ids(place.copy), max(others, key=len)
    both = ours.keys() & lost.keys()
    assert (len(both), len(lost)) == (5, 11 if way == "had_a_copy" else 10)
    assert {lost[job] for job in both} == {ours[job] for job in both}
    assert "goes on from log" in run("hub", "devices", place.hub, DEVICE).output
    assert not list(faults(place.hub, deep=True))


async def test_a_cloned_card_stops_its_device_until_a_person_decides(place: Place) -> None:
    """Machines alike in all, files included, have one name: their frames differ."""
    other = Registry(place.hub).enroll("edge-8")
    await place.write(5)
    await place.sync()
    card = _files(place.log)
    await place.write(2, 20)
    await place.sync()
    first = _files(place.log)
    _roll_back(place.log, card)
    await place.write(2, 40)  # the second machine
    assert await place.sync() == [Verdict.DIFFERS, Verdict.NEW]
    second = _files(place.log)
    _roll_back(place.log, first)
    await place.write(2, 60)
    with pytest.raises(HubStops, match=r"taskq hub devices HUB NAME"):
        await place.sync()
    shown = run("hub", "devices", place.hub, DEVICE).output
    assert "two machines have this token" in shown
    assert "enroll" in shown
    first = _files(place.log)
    _roll_back(place.log, second)
    with pytest.raises(HubStops):
        await place.sync()
    assert await place.sync(other) == [Verdict.NEW], "it has a name of its own from now on"
    _roll_back(place.log, first)
    Registry(place.hub).replace(DEVICE)
    token = Registry(place.hub).enroll(DEVICE)
    assert await place.sync(token) == [Verdict.BEHIND]
    assert not list(faults(place.hub, deep=True))


async def test_a_box_is_replaced_under_its_old_and_under_a_new_name(place: Place) -> None:
    await place.write(5)
    await place.sync(machine="a")
    copy, jobs = place.copy, await _ids(place.log)
    for name in (DEVICE, "edge-9"):
        shutil.rmtree(place.log)
        assert run("restore", copy, place.log).exit_code == 0
        if name == DEVICE:
            Registry(place.hub).replace(DEVICE)
        token = Registry(place.hub).enroll(name)
        await place.write(1, 9)
        assert await place.sync(token, machine=f"new {name}") == [Verdict.NEW]
        there = await _ids(newest(place.hub, name).path)
        assert jobs.items() <= there.items()
        assert len(there) == 6
    logs = {copy.log_id for copy in all_kept(place.hub)}
    assert len(logs) == 3
    assert UUID(copy.name) in logs


async def test_a_copy_whose_making_was_cut_short_is_none(place: Place) -> None:
    await place.write()
    await place.sync()
    before = place.copy
    (before.parent / str(UUID(int=7)) / "log").mkdir(parents=True)
    assert [copy.path for copy in all_kept(place.hub)] == [str(before)]
    assert not faults(place.hub, deep=True)


_LONG_AGO: Final = time.time() - 40 * 86_400


def _output(*words: object) -> str:
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


async def _grown_with_a_gap(place: Place) -> Path:
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


async def test_upkeep_carries_out_the_gap_of_a_log_that_comes_no_more(place: Place) -> None:
    copy = await _grown_with_a_gap(place)
    breaks, aside = copy / "breaks.jsonl", copy / "old/1"
    lines = breaks.read_bytes().splitlines(keepends=True)
    breaks.write_bytes(b"".join(lines[:-1]))  # the hub was killed before it was done
    for name in ("seals.jsonl", f"log/{1:020}.log"):
        (copy / name).hardlink_to(aside / name)
    place.restart()
    assert not faults(place.hub, deep=True), "a device need not send anything again"
    await place.server._tidy()
    assert breaks.read_bytes().splitlines(keepends=True) == lines
    assert not [*(copy / "log").iterdir()]
    assert not faults(place.hub, deep=True)


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
async def test_only_the_server_changes_a_hub(place: Place, url: str, *, is_busy: bool) -> None:
    assert url
    copy = await _grown_with_a_gap(place)
    if is_busy:
        _being_written(copy)
    before = _all_below(place.hub)
    _output("restore", copy, place.path / "new")
    _output("hub", "jobs", place.hub)
    for words in (("check",), ("check", "--deep"), ("devices",), ("devices", "--json")):
        _output("hub", words[0], place.hub, *words[1:])
    for words in (("ls",), ("stats",), ("verify",), ("export",), ("health",), ("dead", "ls")):
        _output(*words, "-d", copy)
    assert all(map(segments, find_logs(place.hub / "devices"))) or is_busy
    reading = Copies(PatientDisk, str(place.hub))
    gone = [due(each, time.time_ns(), CompactionFloor())[0] for each in reading.all()]
    assert any(gone) is not is_busy, "what is being set aside is not due"
    reading.close()
    assert _all_below(place.hub) == before
