"""Who has no token shuts nobody out, however many lines it opens."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import TYPE_CHECKING

import pytest
from anyio import fail_after

from taskq_plugins.hub.device.line import Line
from taskq_plugins.hub.device.push import Verdict
from taskq_plugins.hub.gate.listening import Listener
from taskq_plugins.hub.gate.server import Server
from taskq_plugins.hub.sync import sync
from tests.hub.place import served
from tests.processes.harness import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.hub.place import Place

_HEAD = b"POST /v1/enrol HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{"
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


@pytest.mark.parametrize("data", [b"", b"POST /v1/sync HTT", _HEAD], ids=["none", "head", "body"])
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
