"""How a hub ends, and what a mistyped path, a wrong token and a strange word do: little."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

import httpx
import pytest
from click.testing import CliRunner

from examples.hub.line import free_port
from taskq.cli.main import main
from taskq_plugins.hub import Hub
from taskq_plugins.hub import server as servers
from taskq_plugins.hub.commands import hub as group
from taskq_plugins.hub.models import NOWHERE, Sync, carried
from tests.effort import at_most, grows
from tests.hub.place import DEVICE
from tests.processes.harness import eventually

if TYPE_CHECKING:
    from tests.hub.place import Place

_COMMANDS: Final = (
    ("enroll", "edge-7"), ("retire", "edge-7"), ("devices",), ("check",), ("backup", "x"),
    ("erase", "edge-7"), ("take", "edge-7", "x"), ("put", "edge-7", "t"), ("jobs",), ("find", "x"),
)  # fmt: skip


@pytest.mark.parametrize("words", _COMMANDS, ids=lambda words: words[0])
def test_a_mistyped_path_makes_no_hub_and_is_told(tmp_path: Path, words: tuple[str, ...]) -> None:
    hub = str(tmp_path / "hob")
    done = CliRunner().invoke(main, ["hub", words[0], hub, *words[1:]])
    assert done.exit_code == 2
    assert "hob is no hub" in done.output
    assert not list(tmp_path.iterdir())


def test_every_verb_but_serve_asks_for_a_hub_that_is_there() -> None:
    assert {words[0] for words in _COMMANDS} | {"serve"} == group.commands.keys()


def test_a_directory_with_something_else_in_it_becomes_no_hub(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = CliRunner().invoke(main, ["hub", "serve", str(tmp_path)])
    assert (done.exit_code, "is no hub, and not empty" in done.output) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_devices_of_a_hub_without_any_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "devices").mkdir()
    done = CliRunner().invoke(main, ["hub", "devices", str(tmp_path)])
    assert done.exit_code == 1
    assert "taskq hub enroll" in done.output


async def test_wrong_tokens_are_answered_later_each_and_then_no_more(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def slept(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("taskq_plugins.hub.server.asyncio.sleep", slept)
    answers = [(await place.ask("GET", "/logs", "wrong")).status_code for _ in range(12)]
    monkeypatch.undo()
    assert answers == [401] * 10 + [429] * 2
    assert waits == [servers._TRY_SECONDS] * 9
    assert (await place.ask("GET", "/logs")).status_code == 200


_HANGS: Final = """
import threading
from taskq.cli.main import main
from taskq_plugins.hub.copies import Copies
Copies.answer = Copies.close = lambda *_, **__: threading.Event().wait()
main()
"""


def _status(url: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}", "Taskq-Versions": "1"}
    try:
        return httpx.get(f"{url}/logs", headers=headers, trust_env=False).status_code
    except httpx.HTTPError:
        return 0


@grows
async def test_a_hub_ends_within_ten_seconds_whatever_hangs(place: Place) -> None:
    assert place.token
    port = free_port()
    command = [sys.executable, "-c", _HANGS, "hub", "serve", str(place.hub), "--bind"]
    url, lines = f"http://127.0.0.1:{port}", []
    errors = place.path / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen([*command, f"127.0.0.1:{port}"], stderr=file)  # noqa: ASYNC220
    try:
        await asyncio.to_thread(eventually, lambda: _status(url, place.token) == 200)
        for length in (None, None, None, 900):
            head, body = _sync(place)
            asked = head + f"Content-Length: {length or len(body)}\r\n\r\n".encode() + body
            lines.append(await asyncio.open_connection("127.0.0.1", port))
            lines[-1][1].write(asked)
            await lines[-1][1].drain()
        # All requests of a device hang by now.
        await asyncio.to_thread(eventually, lambda: _status(url, place.token) == 429)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 30)
        assert time.monotonic() - began < at_most(10)
        assert "what was answered is on the disk" in errors.read_text()
    finally:
        process.kill()
        process.wait()
        for _, writer in lines:
            writer.close()


def _sync(place: Place) -> tuple[bytes, bytes]:
    *_, body = carried(Sync(UUID(int=7), 5, frozenset(), NOWHERE))
    head = "POST /sync HTTP/1.1\r\nHost: x\r\nTaskq-Versions: 1\r\n"
    head += f"Content-Type: application/json\r\nAuthorization: Bearer {place.token}\r\n"
    return head.encode(), body


def test_a_hub_ends_though_nobody_reads_what_it_says(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_read, ended = threading.Event(), list[int]()
    monkeypatch.setattr(servers, "_TELL_SECONDS", 0.01)
    monkeypatch.setattr("taskq_plugins.hub.server.os._exit", ended.append)
    monkeypatch.setattr(servers._log, "warning", lambda _text: is_read.wait(60))
    servers.Listener(place.server, (None, None))._give_up()
    is_read.set()
    assert ended == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="lists the files of a process in /proc")
async def test_a_hub_that_ended_has_no_file_open(place: Place) -> None:
    await place.write()
    async with place.server.site.router.lifespan_context(place.server.site):
        await place.sync()
        assert _open_files(place.hub)
    assert _open_files(place.hub) == []


@pytest.mark.skipif(sys.platform != "linux", reason="lists the files of a process in /proc")
async def test_who_sends_has_no_file_open_once_that_is_closed(place: Place) -> None:
    assert place.token
    async with Hub(place.hub) as hub:
        await hub.device(DEVICE).enqueue(hub.call_by_name("update", "7.2"))
        assert _open_files(place.hub)
    assert _open_files(place.hub) == []


def _open_files(folder: Path) -> list[str]:
    links = Path("/proc/self/fd").iterdir()
    files = [str(link.readlink()) for link in links if link.is_symlink()]
    return [file for file in files if file.startswith(str(folder))]
