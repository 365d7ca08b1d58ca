"""Permissions of a device: sending, reading, its quota, and the answers to it."""

import asyncio
import os
import shutil
import time
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from taskq import TaskLog
from taskq.core.model import PAYLOAD_BYTES_MAX, State
from taskq.engine import Border
from taskq.errors import LogError
from taskq.log.read.reader import LogReader
from taskq.log.upkeep.backup import restore
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.models import (
    FRAMES,
    PACKED,
    PART_BYTES_MAX,
    SPOKEN,
    Append,
    HubError,
    HubStops,
    carried,
)
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.server import used_bytes
from taskq_plugins.hub.sync import Verdict, sync
from taskq_plugins.hub.sync_command import _fetched
from tests.hub.place import DEVICE, Direct, Place, is_copy, run

_LARGE: Final = 1_500_000
_NOT_FOUND: Final = {"type": "about:blank", "title": "not found"}


# -- tokens, codes, machines ----------------------------------------------------------------------


async def test_a_code_gets_one_token_within_a_day(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Registry(place.hub).invite(DEVICE)
    line = place.line("")
    token = await line.redeem(code)
    assert Registry(place.hub).device_of(token) == DEVICE
    for wrong in (code, "edge-8." + "A" * 16, "", "edge-7.x", "é"):
        with pytest.raises(HubError, match="401"):
            await line.redeem(wrong)
    kept = b"".join(path.read_bytes() for path in place.hub.glob("registry.db*"))
    assert code.partition(".")[2].encode() not in kept
    late, later = Registry(place.hub).invite(DEVICE), time.time_ns() + 86_401 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    with pytest.raises(HubError, match="401"):
        await line.redeem(late)


async def test_a_token_is_refused_on_a_second_machine_until_it_is_moved(place: Place) -> None:
    await place.write()
    assert await place.sync(machine="first") == [Verdict.NEW]
    with pytest.raises(HubStops, match="enroll HUB NAME --replace"):
        await place.sync(machine="second")
    assert "another machine has its token" in run("hub", "devices", place.hub).output
    assert await place.sync(machine="first") == [Verdict.BEHIND]
    assert await place.sync(machine="") == [Verdict.BEHIND]
    Registry(place.hub).replace(DEVICE)
    with pytest.raises(HubStops, match="401"):
        await place.sync(machine="first")
    token = Registry(place.hub).enroll(DEVICE)
    assert await place.sync(token, machine="second") == [Verdict.BEHIND]
    assert b"second" not in b"".join(path.read_bytes() for path in place.hub.glob("*.db*"))


async def _other_machine(place: Place) -> None:
    await place.sync(machine="first")
    await place.sync(machine="second")


async def _wrong_token(place: Place) -> None:
    await place.sync(place.token[:-9] + "A" * 9)


async def _old_version(place: Place) -> None:
    line = place.line()
    line._own[SPOKEN] = "0"
    await place.sync_over(line)


def _harm(harm: Callable[[Path], object]) -> Callable[[Place], Awaitable[None]]:
    async def synced(place: Place) -> None:
        async with TaskLog.open(place.log, segment_bytes=64 * 1024) as log:
            for _ in range(60):
                await log.put(bytes(4_000))
        harm(sorted((place.log / "log").glob("*.log"))[1])
        await place.sync()

    return synced


async def _large(place: Place) -> None:
    place.restart(device_bytes=150_000)
    await place.write(1, 150_000)
    await place.sync()


async def _unreadable_copy(place: Place) -> None:
    await place.sync()
    (place.copy / "taskq.json").write_text("{")
    place.restart()
    await place.sync()


@pytest.mark.parametrize(("act", "remedy"), [
    (_other_machine, "taskq hub enroll HUB OTHER"),
    (_wrong_token, "taskq hub enroll HUB NAME --replace"),
    (_old_version, "bring the older one up to date"),
    (_harm(lambda file: file.write_bytes(file.read_bytes()[::-1])), "taskq repair"),
    (_harm(Path.unlink), "taskq repair"),
    (_large, "taskq hub serve HUB --keep"),
    (_unreadable_copy, "restore it from a backup"),
])  # fmt: skip
async def test_a_refused_device_is_shown_with_its_remedy_and_stops_no_other(
    place: Place, act: Callable[[Place], Awaitable[None]], remedy: str
) -> None:
    other = Registry(place.hub).enroll("edge-8")
    await place.write()
    with pytest.raises(LogError):
        await act(place)
    shown, well = run("hub", "devices", place.hub).output.splitlines()
    assert ("edge-7: " in shown, remedy in shown) == (True, True)
    assert "edge-8: heard of never" in well
    place.remove()
    await place.write()
    assert await place.sync(other) == [Verdict.NEW]


# -- what it may fill -----------------------------------------------------------------------------


async def test_a_device_fills_what_it_may_and_no_more(place: Place) -> None:
    place.restart(device_bytes=300_000)
    await place.write(1, 50_000)
    assert await place.sync() == [Verdict.NEW]
    await place.write(3, 50_000)
    with pytest.raises(HubError, match="507"):
        await place.sync()
    assert 50_000 < used_bytes(place.hub / "devices" / DEVICE) < 120_000
    place.restart()
    assert await place.sync() == [Verdict.BEHIND]
    assert is_copy(place.copies(), place.segments())


async def test_a_body_that_would_become_larger_than_it_may_is_not_unpacked(place: Place) -> None:
    await place.write()
    await place.sync()
    before = place.tree()
    bomb = zlib.compress(bytes(20 * PART_BYTES_MAX), 9)
    append = Append(1, UUID(place.copy.name), Border(1), b"")
    method, path, headers, _ = carried(append)
    for body, status in ((bomb, 413), (b"no stream", 400)):
        headers["Content-Type"] = PACKED
        refused = await place.ask(method, path, content=body, headers=headers)
        assert refused.status_code == status
    assert place.tree() == before


async def test_a_line_compresses_frames_and_the_copy_does_not(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq_plugins.hub.line._LOOPBACK", frozenset())
    await place.write(30, 20_000)
    line = Line("https://hub.example", place.token, Direct(place.server))
    done = await sync(str(place.log), line)
    segments, copies = place.segments(), place.copies()
    assert done.sent_bytes < sum(map(len, copies.values())) / 10
    assert all(segments[name].startswith(data) for name, data in copies.items())


async def test_a_commit_of_the_largest_payload_goes_as_a_whole(place: Place) -> None:
    async with TaskLog.open(place.log) as log:
        job = await log.put(os.urandom(PAYLOAD_BYTES_MAX))
        (delivery,) = await log.claim()
        await log.ack(delivery, os.urandom(PAYLOAD_BYTES_MAX))
    await place.sync()
    assert is_copy(place.copies(), place.segments())
    with LogReader.open(str(place.copy)) as reader:
        view = reader.job(reader.parse_id(job))
    assert view is not None
    assert len(view.result or b"") == len(view.payload) == PAYLOAD_BYTES_MAX


# -- what it may read -----------------------------------------------------------------------------


async def test_a_device_reads_its_own_logs_and_nothing_else(place: Place) -> None:
    other = Registry(place.hub).enroll("edge-8")
    await place.write(40, 5_000)
    await place.sync()
    logs = (await place.ask("GET", "/logs")).json()["logs"]
    secret = place.hub / "devices" / DEVICE / place.copy.name / "log" / f"{9:020}.log"
    secret.symlink_to(place.hub / "registry.db")
    log = f"/logs/{logs[0]['log_id']}"
    whole = await place.ask("GET", f"{log}/segments/{1:020}")
    assert whole.content == place.copies()[f"{1:020}.log"]
    part = {"Range": "bytes=100-199"}
    piece = await place.ask("GET", f"{log}/segments/{1:020}", headers=part)
    assert (piece.status_code, piece.content) == (206, whole.content[100:200])
    paths = [log, f"{log}/segments/{1:020}"]
    foreign = [(path, other) for path in paths]
    names = ("...", "..%2f", "%00", "é", "a" * 300, f"segments/{9:020}")
    foreign += [(f"{log}/{name}", place.token) for name in names]
    for path, whose in foreign:
        answer = await place.ask("GET", path, whose)
        assert (answer.status_code, answer.json()) == (404, _NOT_FOUND), path
    before, kind = place.tree(), {"Content-Type": FRAMES}
    odd = ("/", log, "/logs/../../../registry.db/ask", f"{log}%00/ask", f"/logs/{'é' * 36}/ask")
    for path in odd:
        for method in ("POST", "PATCH"):
            answer = await place.ask(method, path, content=b"{}", headers=kind)
            assert (answer.status_code, answer.json()) == (404, _NOT_FOUND), path
    assert place.tree() == before


@pytest.mark.parametrize("route", ["/ask", "/gaps", "/append"])
async def test_no_route_takes_another_log_or_an_older_session(place: Place, route: str) -> None:
    other = Registry(place.hub).enroll("edge-8")
    await place.write()
    await place.sync()
    before = place.tree()
    position, log_id = [1, 0, 0, ""], place.copy.name
    values = {
        "session": 1, "log_id": log_id, "places": [position], "left": position,
        "at": position, "end_lsn": 1, "cause": "",
    }  # fmt: skip
    asked: dict[str, Any] = {"method": "POST", "path": route, "json": values}
    if route == "/append":
        _, _, headers, data = carried(Append(1, UUID(log_id), Border(1), b"frames"))
        asked = {"method": "POST", "path": route, "content": data, "headers": headers}
    for token in (other, place.token):
        refused = await place.ask(**asked, token=token)
        assert (refused.status_code, refused.json()["type"]) == (409, "superseded")
    assert place.tree() == before


# -- back to a device, and by hand ----------------------------------------------------------------


async def test_a_lost_device_is_rebuilt_from_its_hub_and_goes_on(place: Place) -> None:
    async with TaskLog.open(place.log) as log:
        jobs = [await log.put(b"%d" % number + bytes(3_000)) for number in range(60)]
        jobs.append(await log.put(os.urandom(_LARGE)))
    await place.sync()
    shutil.rmtree(place.log)
    await _fetched(place.line(), place.log)
    async with TaskLog.open(place.log) as log:
        assert {(await log.get(job)).state for job in jobs} == {State.READY}
        assert await log.put(b"more") not in jobs
    copy, before = place.copy, place.copies()
    assert await place.sync() == [Verdict.NEW], "it is another log of the device"
    assert before.items() <= {file.name: file.read_bytes() for file in copy.rglob("*.log")}.items()
    restore(str(copy), str(place.path / "again"))
    async with TaskLog.open(place.path / "again") as log:
        assert (await log.get(jobs[0])).state is State.READY


async def test_a_backup_carried_by_hand_goes_on_after_the_line(place: Place) -> None:
    assert place.token
    await place.write(40, 5_000)
    stick = place.path / "stick"

    def take() -> str:
        assert run("backup", place.log, stick).exit_code == 0
        return run("hub", "take", place.hub, DEVICE, stick).output

    assert f"{DEVICE}/" in await asyncio.to_thread(take)
    assert is_copy(place.copies(), place.segments())
    await place.write()
    assert await place.sync() == [Verdict.BEHIND]
    await place.write()
    await asyncio.to_thread(take)
    place.restart()
    assert await place.sync() == [Verdict.BEHIND]
    older = await asyncio.to_thread(run, "hub", "take", place.hub, DEVICE, stick)
    assert older.exit_code == 0, "an older one changes nothing"
    refused = await asyncio.to_thread(run, "hub", "take", place.hub, "edge-9", stick)
    assert (refused.exit_code, "no device" in refused.output) == (2, True)
    assert await place.sync() == [Verdict.BEHIND]


def test_what_server_and_commands_note_of_a_device_at_once_is_all_there(tmp_path: Path) -> None:
    token = Registry(tmp_path).enroll("edge-7")

    def change(name: str) -> None:
        for number in range(20):
            with Registry(tmp_path)._changed("edge-7") as facts:
                facts[name] = number
            assert Registry(tmp_path)._facts("edge-7")[name] == number

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(change, "abcd")] == [None] * 4
    assert Registry(tmp_path).device_of(token) == "edge-7"
