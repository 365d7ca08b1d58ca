"""``taskq hub`` and ``taskq sync`` from a terminal, and other commands on a copy."""

from __future__ import annotations

import asyncio
import glob
import json
import shutil
import sqlite3
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from taskq import Shards, TaskLog, TaskQ
from taskq.engine import LogReader
from taskq.log.machine.disk import PatientDisk
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.messages import NOWHERE, Sync
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.wire import HubStops
from tests.hub.place import DEVICE as _DEVICE
from tests.hub.place import run as _run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hub.place import Place


async def test_status_tells_who_is_late_and_what_is_missing_and_exits_by_it(place: Place) -> None:
    _run("hub", "init", place.hub)
    _run("hub", "enrol", place.hub, _DEVICE).output.strip()
    result = _run("hub", "status", place.hub)
    assert (result.exit_code, result.output) == (0, "edge-7: heard of never\n"), "just enrolled"
    result = _run("hub", "status", place.hub, "--late", "0s")
    assert (result.exit_code, "edge-7: heard of never, LATE" in result.output) == (1, True)
    await place.write()
    await place.sync()
    result = _run("hub", "status", place.hub)
    assert (result.exit_code, "behind" in result.output) == (0, False)
    result = _run("hub", "status", place.hub, _DEVICE, "--late", "0s", "--json")
    (row,) = json.loads(result.output)
    assert (result.exit_code, row["device"], row["late"], row["behind"]) == (1, _DEVICE, True, 0)
    assert _run("hub", "retire", place.hub, _DEVICE).exit_code == 0
    result = _run("hub", "status", place.hub, "--late", "0s")
    assert (result.exit_code, "retired" in result.output) == (0, True)
    for words in (("move", "edge-9"), ("retire", "edge-9"), ("status", "edge-9")):
        assert _run("hub", words[0], place.hub, words[1]).exit_code == 2


async def test_commands_tell_of_a_fork_and_check_keep_and_restore_a_copy(place: Place) -> None:
    await place.write()
    await place.sync()
    backup = place.path / "backup"
    assert _run("backup", place.log, backup).exit_code == 0
    await place.write(5)
    await place.sync()
    place.remove()
    assert _run("restore", backup, place.log).exit_code == 0
    await place.write(4, 20)
    await place.sync()
    result = _run("hub", "breaks", place.hub)
    assert "edge-7: fork from lsn" in result.output
    assert "/old/1" in result.output
    assert _run("hub", "check", place.hub, "--deep").exit_code == 0
    assert _run("hub", "keep", place.hub).output == ""
    assert "files" in _run("hub", "keep", place.hub, "--keep", "0s", "--dry-run").output
    assert _run("hub", "restore", place.hub, _DEVICE, place.path / "new").exit_code == 0
    assert _run("ls", "-d", place.path / "new").exit_code == 0


def test_a_copy_says_whose_it_is_and_how_old_and_stays_as_it_is(place: Place) -> None:
    asyncio.run(place.write())
    asyncio.run(place.sync())
    copy = place.copy
    before = place.tree()
    job = json.loads(_run("ls", copy, "--json").stdout)[0]["id"]
    for words in (
        ("ls",), ("ls", "--at", "0s"), ("show", job), ("why", job), ("timeline", job), ("stats",),
        ("workers",), ("verify",), ("export",), ("tail",), ("dead", "ls"), ("schedules", "ls"),
    ):  # fmt: skip
        result = _run(*words, "-d", copy)
        assert result.exit_code == 0, (words, result.output)
        assert "copy of edge-7, as of 2" in result.stderr, words
    for words in (("put", "x"), ("cancel", job), ("compact",), ("pause", "default")):
        result = _run(*words, "-d", copy)
        assert result.exit_code == 1, words
        assert "run workers on edge-7" in result.stderr, words
    assert place.tree() == before


def test_a_copy_never_speaks_as_the_machine(place: Place) -> None:
    async def write() -> None:
        async with TaskLog.open(place.log) as log:
            await log.put(b"1")
            await log.put(b"2", delay="1h")
            await log.put(b"3", queue="paused")
            await log.put(b"4", queue="running")
            await log.pause("paused")
            await log.claim(1, queues=["running"])
            await place.sync()

    asyncio.run(write())
    copy = place.copy
    jobs = [job["id"] for job in json.loads(_run("ls", copy, "--json").stdout)]
    assert len(jobs) == 4
    for words in (*(("why", job) for job in jobs), ("workers",), ("health",)):
        result = _run(*words, "-d", copy)
        assert result.exit_code == 0, (words, result.output)
        assert "copy of edge-7, as of 2" in result.output, words
        assert "start" not in result.output, words
        assert "-d " not in result.output, words
    with LogReader.open(str(copy)) as reader:
        stands = reader.standing()
    assert stands.text.startswith("Copy of edge-7, as of 2")
    assert stands.text.endswith(": 1 job runs, 1 waits, 1 waits in a paused queue, 1 is due later")


def test_devices_stand_in_the_order_of_their_numbers_and_lag_counts_records(place: Place) -> None:
    registry = Registry(place.hub)
    for name in ("edge-10", "edge-2", "edge-1", "b2-x"):
        registry.enrol(name)
    names = ["b2-x", "edge-1", "edge-2", "edge-10"]
    assert registry.names() == list(registry.all_standing()) == names
    skip = 1 << 20
    for at, end, behind in ((40, 44, 4), (44, 41 + skip, 1), (40, 45 + skip, 5), (44, 41, 0)):
        registry.note("edge-1", at_lsn=at, end_lsn=end)
        assert registry.all_standing()["edge-1"]["behind"] == behind


def test_a_job_is_found_by_its_id_on_whichever_device_it_is(place: Place) -> None:
    asyncio.run(place.write())
    asyncio.run(place.sync())
    job = json.loads(_run("ls", place.copy, "--json").stdout)[0]["id"]
    for words in ("show", "why", "timeline"):
        result = _run(words, job, "-d", place.hub)
        assert (result.exit_code, "copy of edge-7" in result.stderr) == (0, True), result.output
    result = _run("show", "00000000-7", "-d", place.hub)
    assert result.exit_code == 1
    assert "no device of" in result.stderr


def test_a_full_disk_is_named_and_not_the_rights(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    Registry(place.hub).enrol(_DEVICE)

    def refuse(*_: object) -> None:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    full = shutil.disk_usage(place.hub)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    monkeypatch.setattr(Registry, "_opened", refuse)
    result = _run("hub", "status", place.hub)
    assert result.exit_code == 1
    assert "Free some space" in result.stderr
    assert "permissions" not in result.stderr


@pytest.mark.parametrize("bind", ["127.0.0.1:70000", "a b:1", ":8477", "::1"])
def test_a_place_that_is_none_to_listen_is_refused(place: Place, bind: str) -> None:
    _run("hub", "init", place.hub)
    result = _run("hub", "serve", place.hub, "--bind", bind)
    assert (result.exit_code, "is no place to listen" in result.stderr) == (2, True)


def test_a_device_sees_how_it_went_and_writes_to_a_stick(place: Place) -> None:
    asyncio.run(place.write())
    log, stick = place.log, place.path / "stick"
    result = _run("sync", log, "--status")
    assert (result.exit_code, "never in sync" in result.output) == (1, True)
    assert _run("sync", log, "--url", "https://hub.example").exit_code == 2
    assert _run("sync", log, "--to", stick).exit_code == 0
    assert list(stick.rglob("*.log"))


def test_each_shard_below_a_root_is_sent(tmp_path: Path) -> None:
    with TaskQ(shards=Shards(tmp_path / "root", prefix="jobs", bits=1)) as app:
        for number in range(20):
            app.enqueue_sync(app.call_by_name("t", number).options(key=str(number)))
    logs = [path.name for path in (tmp_path / "root").glob("jobs*")]
    result = _run("sync", tmp_path / "root", "--to", tmp_path / "stick")
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "stick").glob("devices/*/*/taskq.json"))) == len(logs)


def test_a_stick_has_the_device_by_the_name_that_the_hub_gave_it(place: Place) -> None:
    asyncio.run(place.write())
    log, token, stick = place.log, place.path / "token", place.path / "stick"
    assert _run("hub", "init", place.hub).exit_code == 0
    token.write_text(_run("hub", "enrol", place.hub, "pump-3").output)
    token.chmod(0o600)
    assert _run("sync", log, "--to", stick, "--token-file", token).exit_code == 0
    assert "pump-3" in _run("hub", "import", place.hub, stick).output


def test_a_stick_never_has_a_device_by_another_name(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(place.write())
    log, token, stick = place.log, place.path / "token", place.path / "stick"
    token.write_text("garbage")
    token.chmod(0o600)
    result = _run("sync", log, "--to", stick, "--token-file", token)
    assert (result.exit_code, "no token of a hub" in result.stderr) == (2, True)
    assert not stick.exists()
    monkeypatch.setenv("TASKQ_HUB_URL", "http://hub.example")
    monkeypatch.setenv("TASKQ_HUB_TOKEN", place.token)
    assert _run("sync", log, "--to", stick).exit_code == 0
    assert [path.name for path in (stick / "devices").iterdir()] == [_DEVICE]


def test_a_clone_that_was_refused_shows_in_status(place: Place) -> None:
    asyncio.run(place.write())
    asyncio.run(place.sync(machine="a"))
    with pytest.raises(HubStops, match="another machine"):
        asyncio.run(place.sync(machine="b"))
    assert "another machine with its token was refused" in _run("hub", "status", place.hub).output


def test_a_copy_of_which_nothing_came_yet_is_an_empty_log(place: Place) -> None:
    assert place.token
    hub = Copies(PatientDisk, str(place.hub))
    hub.answer(_DEVICE, Sync(UUID(int=1), 1, frozenset(), NOWHERE))
    (copy,) = (place.hub / "devices" / _DEVICE).iterdir()
    for words in (("ls",), ("stats",), ("verify",), ("export",), ("tail",)):
        result = _run(*words, "-d", copy)
        assert result.exit_code == 0, (words, result.output)
        assert "copy of edge-7, of which nothing came yet" in result.stderr, words
    assert _run("hub", "check", place.hub, "--deep").exit_code == 0


def test_why_tells_which_device_a_job_of_the_outbox_waits_for(place: Place) -> None:
    asyncio.run(place.write())
    asyncio.run(place.sync())
    job = _run("hub", "put", place.hub, _DEVICE, "update").output.strip()
    result = _run("why", "-d", place.hub / "outbox", job)
    assert result.exit_code == 0, result.output
    assert "edge-7 has not taken it yet; edge-7 was last heard of" in result.output
    assert "ago" in result.output


def test_what_a_shell_finds_in_the_directory_of_a_device_is_its_log(place: Place) -> None:
    asyncio.run(place.write())
    asyncio.run(place.sync())
    logs = glob.glob(f"{place.hub}/devices/{_DEVICE}/*")  # noqa: PTH207 - as a shell does
    assert _run("ls", "-d", *logs).exit_code == 0
