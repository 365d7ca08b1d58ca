"""The hub's HTTP, and the session of a device over it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest

from examples.hub.line import free_port
from taskq.core.errors import LogDamaged, ReaderBusy, UsageError
from taskq.log.machine.disk import LocalDisk, PatientDisk
from taskq.log.read.readers import NamedReader
from taskq.log.segments.identity import read_identity
from taskq.log.upkeep.backup import repair_directory
from taskq_plugins.hub.line import Line, check_url
from taskq_plugins.hub.models import FRAMES, PART_BYTES_MAX, Ask, HubError, HubStops
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import Verdict
from tests.cli.helpers import taskq
from tests.hub.place import Place, is_copy, running

if TYPE_CHECKING:
    from pathlib import Path

_URL: Final = "http://localhost"
_NOT_THERE: Final = b'{"type":"about:blank","title":"not found"}'
_LOG_ID: Final = "12345678-1234-5678-1234-567812345678"


async def test_a_log_goes_to_the_hub_and_grows_there(place: Place) -> None:
    await place.write(300, 5_000)
    assert await place.sync() == [Verdict.NEW]
    assert is_copy(place.copies(), place.segments())
    await place.write()
    assert await place.sync() == [Verdict.BEHIND]
    before = place.tree()
    assert await place.sync() == [Verdict.BEHIND]
    assert place.tree() == before
    assert is_copy(place.copies(), place.segments())


async def test_two_devices_with_the_same_log_touch_their_own_copies_only(place: Place) -> None:
    other = Registry(place.hub).enroll("edge-8")
    await place.write()
    await place.sync()
    before = place.copies()
    assert await place.sync(other) == [Verdict.NEW]
    assert place.copies("edge-8") == before == place.copies()


@pytest.mark.parametrize(
    "token",
    ["", "x", "tq1.edge-7." + "A" * 43, "tq1.edge-9." + "A" * 43, "tq1...." + "A" * 43, "é" * 20],
)
async def test_a_token_that_does_not_hold_is_told_the_same_whatever_it_is(
    place: Place, token: str
) -> None:
    Registry(place.hub).enroll("edge-7")
    before = place.tree()
    headers = {"Authorization": f"Bearer {token}".encode()}
    bodies = {
        (await place.ask(method, path, "", headers=headers)).content
        for method, path in (("POST", "/sync"), ("GET", "/"), ("PATCH", f"/logs/{_LOG_ID}"))
    }
    assert bodies == {b'{"type":"about:blank","title":"the token is not known here"}'}
    assert place.tree() == before


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/nowhere",
        f"/logs/{_LOG_ID}",
        f"/logs/{_LOG_ID}/segments/..",
        "/logs/../../../registry.db/ask",
        "/logs/%2e%2e/%2e%2e/ask",
        f"/logs/{_LOG_ID}%00/ask",
        f"/logs/{'é' * 36}/ask",
        "/logs/" + "a" * 300 + "/ask",
    ],
)
async def test_all_that_is_not_there_is_one_404(place: Place, path: str) -> None:
    assert place.token
    before = place.tree()
    for method in ("POST", "PATCH"):
        answer = await place.ask(method, path, content=b"{}", headers={"Content-Type": FRAMES})
        assert (answer.status_code, answer.content) == (404, _NOT_THERE)
    assert place.tree() == before


async def test_a_log_that_the_hub_has_not_got_is_none_of_a_sessions(place: Place) -> None:
    answer = await place.sent(Ask(1, UUID(_LOG_ID), ()))
    assert (answer.status_code, answer.json()["type"]) == (409, "superseded")


@pytest.mark.parametrize("spoken", ["2, 3", "", "one", "11"])
async def test_two_sides_without_a_common_version_both_say_so_and_what_helps(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, spoken: str
) -> None:
    await place.write()
    assert place.token
    before = place.tree()
    monkeypatch.setattr(Line, "spoken", spoken)
    said = f"this hub speaks protocol 1, and the device {spoken or 'none'}"
    with pytest.raises(HubStops, match=f"426: {said}: bring the older one up to date"):
        await place.sync()
    assert f"edge-7 was refused: {said}" in caplog.text
    assert place.tree() == before
    monkeypatch.setattr(Line, "spoken", "3, 1")
    assert await place.sync() == [Verdict.NEW]


async def test_a_body_is_bounded_before_it_is_read(place: Place) -> None:
    path = f"/logs/{_LOG_ID}/segments/00000000000000000001"
    frames = {"Content-Type": FRAMES, "Content-Length": str(PART_BYTES_MAX + 1)}
    assert (await place.ask("PATCH", path, headers=frames)).status_code == 413
    large = b" " * (128 * 1024 + 1)
    assert (await place.ask("POST", "/sync", content=large)).status_code == 413
    endless = {"Content-Length": "9" * 30}
    assert (await place.ask("POST", "/sync", headers=endless)).status_code == 411
    assert (await place.ask("POST", "/sync", content=b"[]")).status_code == 400


async def test_a_full_disk_is_told_before_anything_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.write()
    with monkeypatch.context() as patch:
        patch.setattr(PatientDisk, "free_bytes", lambda _disk, _path: 1_000)
        with pytest.raises(HubError, match=r"507.*free some space"):
            await place.sync()
    assert not place.copies()
    assert await place.sync() == [Verdict.NEW]


async def test_the_two_latest_tokens_of_a_device_hold(place: Place) -> None:
    tokens = [Registry(place.hub).enroll("edge-7") for _ in range(3)]
    assert [Registry(place.hub).device_of(token) for token in tokens] == [None, "edge-7", "edge-7"]
    await place.write()
    with pytest.raises(HubError, match=r"401.*enrol"):
        await place.sync(tokens[0])
    kept = b"".join(file.read_bytes() for file in place.hub.glob("registry.db*"))
    assert not any(token.rpartition(".")[2].encode() in kept for token in tokens)


@pytest.mark.parametrize("name", ["", "..", "Edge", "a/b", "-a", "a" * 64, "a\n", "ü"])
def test_a_name_that_could_lead_elsewhere_is_none_of_a_device(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no name of a device"):
        Registry(tmp_path).enroll(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["", "hub", "ftp://hub", "http://hub.example", "http://10.0.0.1"])
def test_a_token_goes_over_tls_or_not_at_all(url: str) -> None:
    with pytest.raises(UsageError):
        check_url(url)
    assert check_url("https://hub.example/x/") == "https://hub.example/x"


async def test_a_frame_that_does_not_read_back_is_told_and_the_rest_goes_once_it_is_repaired(
    place: Place,
) -> None:
    await place.write(6, 500)
    (segment,) = (place.path / "edge-7" / "log").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(LogDamaged, match="taskq verify"):
        await place.sync()
    assert place.copies()
    repaired = place.path / "repaired"
    assert repair_directory(str(place.log), str(repaired)).damage
    place.remove()
    repaired.rename(place.log)
    await place.write()
    assert await place.sync() == [Verdict.NEW], "what was repaired is another log"
    assert is_copy(place.copies(), place.segments())


async def test_one_process_at_a_time_sends_a_log(place: Place) -> None:
    disk = LocalDisk()
    await place.write()
    path = str(place.path / "edge-7")
    identity = read_identity(disk, path)
    assert identity is not None
    other = NamedReader.take(disk, path, identity, "hub")
    with pytest.raises(ReaderBusy):
        await place.sync()
    other.release()
    assert await place.sync() == [Verdict.NEW]


def test_a_hub_that_is_killed_goes_on_where_it_was_and_commands_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, hub, port = tmp_path / "log", tmp_path / "hub", free_port()
    monkeypatch.setenv("TASKQ_HUB_URL", f"http://127.0.0.1:{port}")
    monkeypatch.chdir(tmp_path)
    taskq("put", "one", "-d", log)
    (hub / "devices").mkdir(parents=True)
    (tmp_path / "token").write_text(taskq("hub", "enroll", hub, "edge-7").stdout)
    send = ("sync", log, "--token-file", "token")
    done = taskq(*send)
    assert (done.exit_code, "cannot be reached" in done.stderr) == (1, True)
    command = (sys.executable, "-m", "taskq", "hub", "serve", hub, "--bind", f"127.0.0.1:{port}")
    with running(port, *command) as server:
        assert taskq("hub", "serve", hub).exit_code == 1
        assert "sent (new)" in taskq(*send).stdout
        taskq("put", "two", "-d", log)
        server.kill()
    with running(port, *command):
        assert re.search(r"up to lsn 2; .* B sent \(behind\)", taskq(*send).stdout)
        assert "up to lsn 2; nothing to send" in taskq(*send).stdout
        (copy,) = (hub / "devices" / "edge-7").glob("*-*")
        assert "no damage" in taskq("verify", "-d", copy).stdout
        refused = taskq("put", "three", "-d", copy)
        assert (refused.exit_code, "edge-7" in refused.stderr) == (1, True)
    assert taskq("sync", log).exit_code == 2
