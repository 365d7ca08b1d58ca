"""Who sends half a request and no key shuts nobody out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from taskq import TaskQ
from taskq_plugins import patience
from taskq_plugins.web import mount
from taskq_plugins.web.door import AccessKeys, SiteAddress
from taskq_plugins.web.mount import make_site

HALVES = {
    "nothing": b"",
    "a head": b"GET /api/stats HTTP/1.1\r\nHost: x\r\nX-Slow:",
    "a body": b"POST /api/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{",
}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Yield a page that is served as ``taskq web`` serves it."""
    app = TaskQ(tmp_path / "data", durability="os")
    app.stats_sync()
    app.close_sync()
    with mount.listen("127.0.0.1", 0) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        place = SiteAddress(scheme="http", hosts=(host,), allow_actions=True)
        server = mount.server_of(make_site(str(tmp_path / "data"), place, AccessKeys()), None)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_as_many_half_requests_as_there_are_lines_shut_nobody_out(
    address: tuple[str, int], half: bytes
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(mount._CONNECTIONS_MAX):
            line = stack.enter_context(socket.create_connection(address, timeout=20))
            line.sendall(half)
        for _ in range(3):
            answer = httpx.get(f"http://{address[0]}:{address[1]}/api/stats", timeout=20)
            assert answer.status_code == 401, answer.text


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_what_does_not_come_ends_its_line(
    address: tuple[str, int], half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(patience, "BODY_SECONDS", 0.3)
    whole = b"GET /api/stats HTTP/1.1\r\nHost: x\r\n\r\n"
    for before in (b"", whole):
        with (
            contextlib.suppress(ConnectionError),  # another notice of the end
            socket.create_connection(address, timeout=20) as line,
        ):
            line.sendall(before + half)
            while line.recv(65_536):
                line.sendall(b" ")


async def test_small_answers_are_sent_at_once() -> None:
    served = asyncio.Event()
    nodelay: list[int] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = writer.get_extra_info("socket")
        nodelay.append(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        served.set()

    with mount.listen("127.0.0.1", 0) as listener:
        async with await asyncio.start_server(serve, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            await served.wait()
            writer.close()
    assert nodelay == [1]
