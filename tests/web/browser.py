"""Asks a site without a socket, as a browser or a program would."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio
import httpx

from taskq_plugins.web.door import ENTRY, AccessKeys, SiteAddress
from taskq_plugins.web.mount import make_site

HOST: Final = "127.0.0.1:8321"
ORIGIN: Final = f"http://{HOST}"
SECRET: Final = "s" * 43
#: A real browser, for the tests that need one.
CHROMIUM: Final = os.environ.get("TASKQ_CHROMIUM") or shutil.which("chromium") or ""


@contextlib.asynccontextmanager
async def stranger(
    path: Path, *, allow_actions: bool = False, show_secrets: bool = False
) -> AsyncIterator[tuple[httpx.AsyncClient, AccessKeys]]:
    hosts = (HOST, "localhost:8321")
    place = SiteAddress(
        scheme="http", hosts=hosts, allow_actions=allow_actions, show_secrets=show_secrets
    )
    keys = AccessKeys(SECRET)
    site = make_site(str(path), place, keys)
    async with (
        running(site),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=site), base_url=ORIGIN) as client,
    ):
        yield client, keys


@contextlib.asynccontextmanager
async def running(site: Any) -> AsyncIterator[None]:
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    values: list[Any] = []
    started, stopping = anyio.Event(), anyio.Event()

    async def receive() -> Any:
        if len(events) == 1:
            await stopping.wait()
        return events.pop(0)

    async def send(message: Any) -> None:
        values.append(message)
        started.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site, {"type": "lifespan", "state": {}}, receive, send)
        await started.wait()
        assert values == [{"type": "lifespan.startup.complete"}]
        try:
            yield
        finally:
            stopping.set()


@contextlib.asynccontextmanager
async def browser(path: Path, **place: bool) -> AsyncIterator[httpx.AsyncClient]:
    async with stranger(path, **place) as (client, keys):
        entered = await client.get(ENTRY, params={"token": keys.entry()})
        assert entered.status_code == 200
        client.headers["Origin"] = ORIGIN
        yield client


@contextlib.asynccontextmanager
async def program(path: Path, *, allow_actions: bool = False) -> AsyncIterator[httpx.AsyncClient]:
    async with stranger(path, allow_actions=allow_actions) as (client, _):
        client.headers["Authorization"] = f"Bearer {SECRET}"
        yield client
