"""A client without a token shuts nobody out, however many lines it opens."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
from typing import TYPE_CHECKING
from unittest.mock import Mock, call

import pytest
from anyio import fail_after

from taskq_plugins.hub import server
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.server import Listener, Server
from taskq_plugins.hub.sync import Verdict, sync
from tests.hub.place import served
from tests.processes.harness import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.hub.place import Place

_HEAD = b"POST /enroll HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{"
_LINES = 540


@contextlib.asynccontextmanager
async def _slow(url: str, data: bytes) -> AsyncIterator[None]:
    port = int(url.rpartition(":")[2])
    lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(_LINES)]
    for _, writer in lines:
        writer.write(data)
    try:
        yield
    finally:
        for _, writer in lines:
            writer.close()


def test_a_hub_has_a_file_for_each_line_that_may_be_there(place: Place) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        with served(Listener(Server(place.hub))):
            eventually(lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(4_000, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("chosen", [False, True])
def test_memory_of_bodies_is_kept_unless_somebody_chose_otherwise(
    monkeypatch: pytest.MonkeyPatch, *, chosen: bool
) -> None:
    library, monkey = Mock(), monkeypatch
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkey.delenv(name)
    if chosen:
        monkey.setenv("MALLOC_ARENA_MAX", "2")
    monkey.setattr(ctypes, "CDLL", lambda _name: library)
    server.keep_memory()
    one_arena, mapped, given_back = call(-8, 1), call(-3, 2**24), call(-1, 2**26)
    assert library.mallopt.mock_calls == ([] if chosen else [one_arena, mapped, given_back])


@pytest.mark.parametrize("data", [b"", b"POST /sync HTT", _HEAD], ids=["none", "head", "body"])
async def test_hundreds_of_slow_lines_without_a_token_shut_no_device_out(
    place: Place, url: str, data: bytes
) -> None:
    await place.write()
    line = Line(url, place.token)
    async with _slow(url, data):
        with fail_after(5):
            done = await sync(str(place.path / "edge-7"), line)
        assert done.verdicts == [Verdict.NEW]
        await asyncio.sleep(0)
        await place.write()
        with fail_after(5):
            done = await sync(str(place.path / "edge-7"), line)
        assert done.verdicts == [Verdict.BEHIND]
    await line.close()
