"""A device's line to its hub: through a proxy, with a limit to answers, given up at any time."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from anyio import create_task_group, to_thread

from taskq.connection.settings import HubSettings
from taskq.errors import UsageError
from taskq_plugins.hub import line as lines
from taskq_plugins.hub.line import Allowance, Http, HubReply, Line
from taskq_plugins.hub.models import Ask, HubError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

TOKEN = "tq1.edge-7.secret"  # noqa: S105 - of nobody


@pytest.fixture(autouse=True)
def _no_proxy_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def answering(answer: bytes, again: bytes = b"") -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port that notes what it is asked and answers, then says ``again`` until nobody listens."""
    asked: list[bytes] = []
    ended: list[asyncio.Event] = []

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.Event())
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        with suppress(ConnectionError):
            while again:
                writer.write(again)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended[-1].set()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked
        for end in ended:
            await end.wait()


async def test_a_hub_is_reached_through_the_proxy_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with answering(b"HTTP/1.1 403 Forbidden\r\n\r\n") as (port, asked):
        monkeypatch.setenv("https_proxy", f"http://ada:love%40lace@127.0.0.1:{port}")
        line = Line("https://hub.example:8443", TOKEN)
        with pytest.raises(HubError, match=r"cannot be reached .*403"):
            await line.request("GET", "/logs", {})
    (head,) = asked
    assert head.startswith(b"CONNECT hub.example:8443 HTTP/1.")
    assert b"Proxy-Authorization: Basic YWRhOmxvdmVAbGFjZQ==\r\n" in head
    assert b"secret" not in head, "the token is for the hub"


async def test_a_hub_that_is_excepted_is_reached_straight_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with answering(b"") as (port, asked):
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "hub.invalid")
        with pytest.raises(HubError, match="cannot be reached"):
            await Line("https://hub.invalid", TOKEN).request("GET", "/logs", {})
    assert not asked


def test_a_proxy_of_another_kind_is_refused_with_what_to_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1080")
    with pytest.raises(UsageError, match="give a proxy as http://host:port"):
        Line("https://hub.example", TOKEN)


async def test_an_answer_without_an_end_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_ANSWER_BYTES_MAX", 100_000)
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 10_000) as (port, _):
        with pytest.raises(HubError, match="an answer of over 100000 bytes"):
            await Line(f"http://127.0.0.1:{port}", TOKEN).request("GET", "/logs", {})


async def test_an_answer_may_end_with_its_connection_and_a_question_ends_with_its_head() -> None:
    async with answering(b"HTTP/1.0 200 OK\r\n\r\n{}") as (port, asked):
        answer = await Line(f"http://127.0.0.1:{port}", TOKEN).request("GET", "/logs", {})
    assert answer == HubReply(200, b"{}")
    assert b"transfer-encoding" not in asked[0].lower()


async def test_a_request_that_was_given_up_is_no_end_of_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked again while the first still waits for a connection that nobody accepts."""
    monkeypatch.setattr(lines, "_CONNECT_SECONDS", 0.5)
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for item in (first, second):
            item.setblocking(False)
            item.connect_ex(full.getsockname())
        line = Line(f"http://127.0.0.1:{full.getsockname()[1]}", TOKEN)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await line.request("GET", "/logs", {})
        with pytest.raises(HubError, match="cannot be reached"):
            await line.request("GET", "/logs", {})


async def test_who_asked_for_nothing_is_not_told_that_a_line_cannot_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    allowance = Allowance(HubSettings(), "http://127.0.0.1")
    await allowance.look()
    assert allowance.left() is None
    assert not caplog.records


async def test_a_hub_that_is_busy_says_how_long_to_wait() -> None:
    async def busy(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(busy, "127.0.0.1", 0) as server:
        line = Line(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", TOKEN)
        with pytest.raises(HubError, match="503") as error:
            await line.ask(Ask(1, UUID(int=1), ()))
        assert error.value.seconds == 7
        await line.close()


async def test_a_request_given_up_before_it_connected_leaves_no_connection_behind() -> None:
    """Its thread began late: nobody would hang up what it opens."""
    began, given_up = threading.Event(), threading.Event()

    class Late(Http):
        def close(self) -> None:
            if threading.current_thread() is not threading.main_thread():
                began.set()
                assert given_up.wait(10)
            super().close()

    with socket.create_server(("127.0.0.1", 0)) as hub:
        line = Late(f"http://127.0.0.1:{hub.getsockname()[1]}")
        async with create_task_group() as group:
            group.start_soon(line, "GET", "/", {}, b"")
            await to_thread.run_sync(began.wait, 10)
            group.cancel_scope.cancel()
        given_up.set()
        for thread in threading.enumerate():
            if thread.name == "taskq-probe":
                await to_thread.run_sync(thread.join, 5)
        assert line._connection is None or line._connection.sock is None
