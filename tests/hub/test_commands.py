"""``taskq hub`` and ``taskq sync`` from a terminal, and other commands on a copy."""

import asyncio
import json
import re
import shutil
import socket
import sqlite3
from pathlib import Path
from typing import Final
from uuid import UUID

import click
import pytest
from anyio import to_thread

from taskq import Shards, TaskLog, TaskQ
from taskq.cli.main import main
from taskq.engine import Identity, LogReader, PatientDisk
from taskq_plugins.hub import line, sync_command
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.line import last_note
from taskq_plugins.hub.models import NOWHERE, HubStops, Sync
from taskq_plugins.hub.registry import Registry
from tests.hub.place import DEVICE as _DEVICE
from tests.hub.place import Place
from tests.hub.place import run as _run
from tests.processes.harness import eventually


async def test_devices_shows_late_devices_and_gaps_in_its_exit_code(place: Place) -> None:
    (place.hub / "devices").mkdir(parents=True)
    _run("hub", "enroll", place.hub, _DEVICE)
    result = _run("hub", "devices", place.hub)
    assert (result.exit_code, result.output) == (0, "edge-7: heard of never\n"), "just enrolled"
    result = _run("hub", "devices", place.hub, "--late", "0s")
    assert (result.exit_code, "edge-7: heard of never, LATE" in result.output) == (1, True)
    await place.write()
    await place.sync()
    Registry(place.hub).note(_DEVICE, clock_ns=-(10**17))
    result = _run("hub", "devices", place.hub)
    assert (result.exit_code, "behind" in result.output) == (0, False)
    assert "clock -100000000 s: set it on the device" in result.output
    result = _run("hub", "devices", place.hub, _DEVICE, "--late", "0s", "--json")
    (row,) = json.loads(result.output)
    assert (result.exit_code, row["device"], row["late"], row["behind"]) == (1, _DEVICE, True, 0)
    (log,) = row["logs"]
    assert (log["path"], log["next_lsn"], log["gaps"]) == (str(place.copy), 4, [])
    assert f"log {place.copy}" in _run("hub", "devices", place.hub, _DEVICE).output
    assert _run("hub", "retire", place.hub, _DEVICE).exit_code == 0
    result = _run("hub", "devices", place.hub, "--late", "0s")
    assert (result.exit_code, "retired" in result.output) == (0, True)
    before = place.copies()
    with pytest.raises(HubStops, match="401"):
        await place.sync()
    assert place.copies() == before != {}
    for words in (
        ("retire", "edge-9"), ("devices", "edge-9"), ("jobs", "edge-9"),
        ("enroll", "edge-9", "--replace"), ("erase", "edge-9", "-y"), ("take", "edge-9", place.hub),
    ):  # fmt: skip
        result = _run("hub", words[0], place.hub, *words[1:])
        assert (result.exit_code, "'edge-9'" in result.stderr) == (2, True), result.output


def test_a_name_belongs_to_one_machine_until_it_is_replaced(place: Place) -> None:
    (place.hub / "devices").mkdir(parents=True)
    first = _run("hub", "enroll", place.hub, _DEVICE)
    assert f"on {_DEVICE}: taskq sync DIR --url" in first.stderr
    again = _run("hub", "enroll", place.hub, _DEVICE)
    assert (again.exit_code, "--replace" in again.output) == (1, True)
    second = _run("hub", "enroll", place.hub, _DEVICE, "--replace", "--group", "eu")
    known = [Registry(place.hub).device_of(done.stdout.strip()) for done in (first, second)]
    assert known == [None, _DEVICE]
    assert Registry(place.hub).groups() == {"eu": [_DEVICE]}
    lost = _run("hub", "enroll", place.hub, _DEVICE, "--replace", "--code")
    coded = _run("hub", "enroll", place.hub, _DEVICE, "--code")
    assert Registry(place.hub).redeem(lost.stdout.strip(), "") is None, "the latest holds"
    assert f"--code {coded.stdout.strip()}" in coded.stderr
    assert Registry(place.hub).redeem(coded.stdout.strip(), "") is not None
    retired = _run("hub", "retire", place.hub, _DEVICE)
    assert retired.exit_code == _run("hub", "enroll", place.hub, _DEVICE).exit_code == 0


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
        registry.enroll(name)
    names = ["b2-x", "edge-1", "edge-2", "edge-10"]
    assert list(registry.all_standing()) == names
    skip = 1 << 20
    for at, end, behind in ((40, 44, 4), (44, 41 + skip, 1), (40, 45 + skip, 5), (44, 41, 0)):
        registry.note_end("edge-1", Identity(UUID(int=1), 0), (at, end, 0))
        assert registry.all_standing()["edge-1"]["behind"] == behind
    registry.note_end("edge-1", Identity(UUID(int=2), 0), (3, 10, 1))
    assert registry.all_standing()["edge-1"]["behind"] == 7, "of all its logs"
    child = Identity.of_replica(UUID(int=3), 0, frozenset(), [(UUID(int=2), 5)])
    registry.note_end("edge-1", child, (9, 10, 1))
    assert registry.all_standing()["edge-1"]["gaps"] == 2, "those of what was left, too"
    assert registry.all_standing()["edge-1"]["behind"] == 1, "what was left is behind for good"


def test_a_job_is_found_by_its_id_on_whichever_device_it_is(place: Place) -> None:
    asyncio.run(place.write())
    asyncio.run(place.sync())
    job = json.loads(_run("ls", place.copy, "--json").stdout)[0]["id"]
    odd = place.hub / "devices" / "edge-1" / place.copy.name / "taskq.json"
    odd.parent.mkdir(parents=True)
    odd.write_text("{")
    for words in ("show", "why", "timeline"):
        result = _run(words, job, "-d", place.hub)
        assert (result.exit_code, "copy of edge-7" in result.stderr) == (0, True), result.output
    result = _run("show", "00000000-7", "-d", place.hub)
    assert result.exit_code == 1
    assert "no device of" in result.stderr


def test_a_full_disk_is_named_as_such(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    Registry(place.hub).enroll(_DEVICE)

    def refuse(*_: object) -> None:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    full = shutil.disk_usage(place.hub)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    monkeypatch.setattr(Registry, "_opened", refuse)
    result = _run("hub", "devices", place.hub)
    assert result.exit_code == 1
    assert "Free some space" in result.stderr
    assert "permissions" not in result.stderr


@pytest.mark.parametrize("bind", ["127.0.0.1:70000", "a b:1", ":8477", "::1"])
def test_a_place_that_is_none_to_listen_is_refused(place: Place, bind: str) -> None:
    (place.hub / "devices").mkdir(parents=True)
    result = _run("hub", "serve", place.hub, "--bind", bind)
    assert (result.exit_code, "is no place to listen" in result.stderr) == (2, True)


def test_a_device_sees_how_it_went(place: Place) -> None:
    asyncio.run(place.write())
    result = _run("sync", place.log, "--status")
    assert (result.exit_code, "never in sync" in result.output) == (1, True)
    assert _run("sync", place.log, "--url", "https://hub.example").exit_code == 2


def _sharded(path: Path) -> list[str]:
    with TaskQ(shards=Shards(path, prefix="jobs", bits=1)) as app:
        for number in range(20):
            app.enqueue_sync(app.call_by_name("t", number).options(key=str(number)))
    return sorted(file.parent.name for file in path.glob("*/taskq.json"))


def test_one_code_sends_all_shards(place: Place, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(place.path / "state"))
    root = place.path / "root"
    shards, code = _sharded(root), Registry(place.hub).invite(_DEVICE)
    result = _run("sync", root, "--url", url, "--code", code)
    assert result.exit_code == 0, result.output
    assert len(shards) == len(list((place.hub / "devices" / _DEVICE).glob("*/taskq.json"))) == 2


async def test_shards_are_followed_log_by_log(
    place: Place, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_HUB_TOKEN", place.token)
    root = place.path / "root"
    shards = await to_thread.run_sync(_sharded, root)
    given = {"url": url, "token_file": None, "code": None, "restore": False}
    following = asyncio.create_task(sync_command._follow_all(root, given))
    logs = [root / name for name in shards]
    try:
        for log in logs:
            await to_thread.run_sync(eventually, lambda log=log: last_note(str(log)).get("lsn"))
    finally:
        following.cancel()
        await asyncio.wait([following])
    assert len(list((place.hub / "devices" / _DEVICE).iterdir())) == 2


def test_a_copy_without_data_reads_as_an_empty_log(place: Place) -> None:
    assert place.token
    hub = Copies(PatientDisk, str(place.hub))
    hub.answer(_DEVICE, Sync(UUID(int=1), 1, frozenset(), NOWHERE))
    (copy,) = (place.hub / "devices" / _DEVICE).iterdir()
    for words in (("ls",), ("stats",), ("verify",), ("export",), ("tail",)):
        result = _run(*words, "-d", copy)
        assert result.exit_code == 0, (words, result.output)
        assert "copy of edge-7, of which nothing came yet" in result.stderr, words
    assert _run("hub", "check", place.hub, "--deep").exit_code == 0


def test_why_names_the_device_that_a_job_of_the_outbox_waits_for(place: Place) -> None:
    asyncio.run(place.write())
    asyncio.run(place.sync())
    job = _run("hub", "put", place.hub, _DEVICE, "update").output.strip()
    result = _run("why", "-d", place.hub / "outbox" / _DEVICE, job)
    assert result.exit_code == 0, result.output
    assert "edge-7 has not taken it yet; edge-7 was last heard of" in result.output
    assert "ago" in result.output


# -- what messages say to type ---------------------------------------------------------------------

_SAID: Final = re.compile(
    r"\btaskq ((?:hub|sync\b|verify\b|repair\b|restore\b|backup\b)[^'\"`;,)]*)"
)
_SOURCES: Final = sorted(Path(line.__file__).parent.glob("*.py"))


def _said() -> list[str]:
    """Return the commands that strings name; what is put into one is the word VALUE."""
    whole = (re.sub(r"\{[^{}\n]*\}", "VALUE", source.read_text()) for source in _SOURCES)
    texts = (re.sub(r'"\s+f?"', "", text).replace("``", "'") for text in whole)
    commands = (seen[1] for text in texts for seen in _SAID.finditer(text))
    return sorted({said.split(":")[0].split("  #")[0].strip() for said in commands})


def test_there_are_messages_that_name_commands() -> None:
    named = {command.split()[1] for command in _said() if command.startswith("hub ")}
    assert named >= {"serve", "enroll", "devices", "backup"}


@pytest.mark.parametrize("said", _said())
def test_each_command_in_a_message_exists(said: str) -> None:
    command: click.Command = main
    words = said.split()
    while words and isinstance(command, click.Group):
        seen = command.get_command(click.Context(command), words[0])
        assert seen is not None, words
        command, words = seen, words[1:]
    names = {name for each in command.params for name in each.opts}
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    options = [word.partition("=")[0].strip(".") for word in words if word.startswith("-")]
    assert set(options) <= names
    given = [word for word in words if word.isupper() or word in ("./hub", "https://…")]
    assert len(given) <= len(arguments) + len(options)


async def test_wrong_ports_tokens_and_places_are_named(place: Place, tmp_path: Path) -> None:
    new = tmp_path / "new"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = _run("hub", "serve", new, "--bind", f"127.0.0.1:{port}")
    assert (result.exit_code, new.exists()) == (1, False)
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in result.output
    await place.write()
    (tmp_path / "key").write_text("-----BEGIN KEY-----\nsecret\n")
    given = ("--url", "http://127.0.0.1:1", "--token-file", tmp_path / "key")
    result = _run("sync", "-d", place.log, *given)
    assert (result.exit_code, "secret" in result.output) == (2, False)
    assert f"{tmp_path / 'key'} holds no token" in result.output
    Registry(place.hub).open()
    (place.hub / "devices").mkdir(parents=True, exist_ok=True)
    assert "lies within" in _run("hub", "backup", place.hub, place.hub / "x").output
    assert f"-d {place.hub / 'devices'}/NAME/LOG" in _run("ls", "-d", place.hub).output
