"""A device that stays at its hub: a worker that syncs, and what a line without end does."""

from __future__ import annotations

import asyncio
import os
import pty
import socket
import subprocess
import sys
import threading
from functools import partial
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest
from anyio import fail_after, to_thread

from taskq import TaskQ
from taskq.connection.settings import HubSettings
from taskq.core.errors import UsageError
from taskq.log.machine.disk import LocalDisk
from taskq.log.segments.identity import read_identity
from taskq_plugins.hub.copies import kept
from taskq_plugins.hub.line import Line, last_note
from taskq_plugins.hub.models import HubError
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import _pause, follow, sync
from tests.processes.harness import eventually
from tests.programs import run_forked

if TYPE_CHECKING:
    from tests.hub.place import Place


async def test_a_worker_sends_its_log_while_it_runs_jobs(
    place: Place, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_HUB_URL", url)
    monkeypatch.setenv("TASKQ_HUB_TOKEN", Registry(place.hub).enroll("edge-7"))
    monkeypatch.setenv("TASKQ_HUB_EVERY", "0")
    app = TaskQ(place.path / "edge-7")

    @app.task
    async def double(number: int) -> int:
        return number * 2

    async with app, app.worker(sync=True):
        job = await double.enqueue(21)
        assert await job.result() == 42
        path = str(place.path / "edge-7")
        await to_thread.run_sync(eventually, lambda: "lsn" in last_note(path))
        await to_thread.run_sync(eventually, place.copies)
    assert last_note(path)["error"] == ""


async def test_a_worker_of_several_logs_sends_each_as_one_of_the_devices(
    place: Place, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("URL", url), ("TOKEN", place.token), ("EVERY", "0")):
        monkeypatch.setenv(f"TASKQ_HUB_{name}", value)
    app, logs = TaskQ(place.path / "a"), [place.path / "a", place.path / "b"]

    @app.task
    async def double(number: int) -> int:
        return number * 2

    other = TaskQ(place.path / "b")
    async with other:
        await other.enqueue_many([other.call_by_name(double.name, 1)])
    async with app, app.worker(logs=logs, sync=True):
        for log in logs:
            await to_thread.run_sync(eventually, lambda log=log: "lsn" in last_note(str(log)))
    copies = [copy for copy in kept(place.hub, device="edge-7") if copy.is_there]
    names = {read_identity(LocalDisk(), str(log)).log_id for log in logs}  # type: ignore[union-attr]
    assert {copy.log_id for copy in copies} == names


async def test_what_a_device_needs_to_sync_loads_nothing_of_a_server() -> None:
    code = (
        "import sys, taskq_plugins.hub.sync, taskq_plugins.hub.sync_command as command\n"
        "served = {'fastapi', 'starlette', 'uvicorn', 'httpx'}\n"
        "print(sorted(served & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = await to_thread.run_sync(partial(run_forked, "-c", code, check=True))
    assert done.stdout == "[]\n"


async def test_a_worker_that_knows_no_hub_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.path)
    with pytest.raises(UsageError, match="which hub"):
        TaskQ(place.path / "edge-7").worker(sync=True)


async def test_a_job_for_a_device_that_rests_comes_within_seconds(place: Place, url: str) -> None:
    """Also the first one of the hub, and the next, though nothing was written meanwhile."""
    await place.order(url, 2)


async def test_what_is_written_is_there_within_a_moment_and_a_line_that_fails_is_tried_again(
    place: Place, url: str
) -> None:
    await place.write()
    line = Line(url, place.token, None, HubSettings())
    failing = Line("http://127.0.0.1:9", place.token, None, HubSettings())
    following = asyncio.create_task(follow(str(place.path / "edge-7"), line, at_once=True))
    try:
        for count in (1, 2, 3):
            await place.write(count)
            wanted = place.segments().keys()
            is_there = partial(lambda names: place.copies().keys() == names, wanted)
            await to_thread.run_sync(eventually, is_there)
    finally:
        following.cancel()
        await asyncio.wait([following])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await follow(str(place.path / "edge-7"), failing, once=True)
    assert "cannot be reached" in last_note(str(place.path / "edge-7"))["error"]
    await follow(str(place.path / "edge-7"), line, once=True)
    for each in (line, failing):
        await each.close()


async def test_headers_and_bodies_that_do_not_come_end_their_lines(
    place: Place, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("patience.HEAD_SECONDS", "hub.server._SLOW_SECONDS"):
        monkeypatch.setattr(f"taskq_plugins.{name}", 0.3)
    head = "POST /sync HTTP/1.1\r\nHost: x\r\nTaskq-Versions: 1\r\n"
    head += f"Authorization: Bearer {place.token}\r\n"
    for data in ("", "POST /sync HTT", head, head + "Content-Length: 900\r\n\r\n{"):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(data.encode())
        with fail_after(30):
            reply = await reader.read(100)
        assert reply == b"" or reply.startswith(b"HTTP/1.1 408")
        writer.close()
    monkeypatch.undo()
    await place.write()
    line = Line(url, place.token)
    assert (await sync(str(place.path / "edge-7"), line)).sent_bytes
    await line.close()


async def test_a_device_tries_again_at_once_when_there_is_a_way_to_its_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes = iter([False, False, True])
    monkeypatch.setattr("taskq_plugins.hub.sync.has_route", lambda _host: next(routes))
    monkeypatch.setattr("taskq_plugins.hub.sync._LOOK_SECONDS", 0.01)
    with fail_after(30):
        await _pause(600, "https://hub.example")
    assert next(routes, None) is None
    monkeypatch.setattr("taskq_plugins.hub.sync.has_route", lambda _host: True)
    began = asyncio.get_running_loop().time()
    await _pause(0.05, "https://hub.example")
    assert asyncio.get_running_loop().time() - began >= 0.05


async def test_a_terminal_shows_how_much_has_gone_and_a_file_nothing_of_it(
    place: Place, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_HUB_URL", url)
    monkeypatch.setenv("TASKQ_HUB_TOKEN", Registry(place.hub).enroll("edge-7"))
    monkeypatch.setenv("TERM", "xterm")
    await place.write(4, 500_000)
    words = ["-m", "taskq", "sync", "-d", str(place.path / "edge-7")]
    command = [sys.executable, *words]
    terminal, end = pty.openpty()
    await to_thread.run_sync(partial(subprocess.run, command, check=True, stderr=end))
    shown = ""
    while "\x1b[?25h" not in shown:  # the cursor is back: a terminal passes on a part at a time
        shown += os.read(terminal, 100_000).decode()
    os.close(terminal)
    os.close(end)
    assert "1.9/1.9 MiB" in shown
    await place.write(4, 500_000)
    result = await to_thread.run_sync(partial(run_forked, *words, check=True))
    assert "MiB" not in result.stderr


async def test_a_line_goes_on_after_a_request_that_was_cancelled_and_one_that_was_cut(
    place: Place, url: str
) -> None:
    line = Line(url, Registry(place.hub).enroll("edge-7"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silence = Line(f"http://127.0.0.1:{silent.getsockname()[1]}", "token")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await silence.request("GET", "/healthz", {})
        accepted = [silent.accept()[0] for _ in range(3)]
        assert [peer.recv(4)[:3] for peer in accepted] == [b"GET"] * 3
        assert all(peer.recv(2_000) and not peer.recv(1) for peer in accepted)  # it hung up
        for peer in accepted:
            peer.close()
    for status in (200, 200):
        assert (await line.request("GET", "/healthz", {})).status == status
    assert line._carrier._connection is not None
    line._carrier._connection.sock.shutdown(socket.SHUT_RDWR)
    assert (await line.request("GET", "/healthz", {})).status == 200
    await line.close()
    await silence.close()


async def test_a_request_that_is_cancelled_while_it_connects_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on, closed = threading.Event(), threading.Event(), threading.Event()
    connect, close = HTTPConnection.connect, HTTPConnection.close

    def connecting(connection: HTTPConnection) -> None:
        begun.set()
        assert goes_on.wait(30)
        connect(connection)

    def closing(connection: HTTPConnection) -> None:
        had_one = connection.sock is not None
        close(connection)
        if had_one:
            closed.set()

    monkeypatch.setattr(HTTPConnection, "connect", connecting)
    monkeypatch.setattr(HTTPConnection, "close", closing)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        line = Line(f"http://127.0.0.1:{silent.getsockname()[1]}", "token")
        asked = asyncio.create_task(line.request("GET", "/healthz", {}))
        assert await to_thread.run_sync(begun.wait, 30)
        asked.cancel()
        await asyncio.wait([asked])
        goes_on.set()
        assert await to_thread.run_sync(closed.wait, 30)
        await line.close()


async def test_a_token_that_is_none_is_told_as_a_line_that_fails(url: str) -> None:
    line = Line(url, "two\nlines")
    with pytest.raises(HubError, match="Invalid header value"):
        await line.request("GET", "/healthz", {})
