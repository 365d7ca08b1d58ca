"""A hub of a test, its devices, and no line between."""

import asyncio
import contextlib
import hashlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import Any, Final

import httpx
import uvicorn
from anyio import to_thread
from click.testing import CliRunner, Result
from starlette.types import ASGIApp

from taskq import TaskLog
from taskq.cli.main import main
from taskq.connection.settings import HubSettings
from taskq.engine import LogReader
from taskq_plugins.hub import Hub, copies
from taskq_plugins.hub.copies import newest
from taskq_plugins.hub.line import Http, HubReply, Line, last_note
from taskq_plugins.hub.models import JSON, SPOKEN, Request, carried
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.server import Server
from taskq_plugins.hub.sync import Verdict, follow, sync
from tests.processes.harness import STEP_SECONDS, eventually

DEVICE: Final = "edge-7"
_URL: Final = "http://localhost"


class Direct(Http):
    def __init__(self, server: Server) -> None:
        super().__init__("http://hub")
        self._transport = httpx.ASGITransport(server.app)

    async def __call__(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> HubReply:
        async with httpx.AsyncClient(transport=self._transport, base_url="http://hub") as client:
            answer = await client.request(method, path, headers=headers, content=body)
        return HubReply(answer.status_code, answer.content)


class Place:
    """A hub and devices of one machine, with no line between."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hub = path / "hub"
        self._servers: list[Server] = []
        self.restart()

    @property
    def log(self) -> Path:
        return self.path / DEVICE

    @property
    def copy(self) -> Path:
        return Path(newest(self.hub, DEVICE).path)

    @cached_property
    def token(self) -> str:
        return Registry(self.hub).enroll(DEVICE)

    async def write(self, count: int = 3, size: int = 10) -> None:
        async with TaskLog.open(self.log) as log:
            for number in range(count):
                await log.put(b"%d" % number + bytes(size))

    def line(self, token: str | None = None, **settings: Any) -> Line:
        own = self.token if token is None else token
        return Line(_URL, own, Direct(self.server), HubSettings(**settings))

    async def sync(self, token: str | None = None, **settings: Any) -> list[Verdict]:
        return await self.sync_over(self.line(token, **settings))

    async def sync_over(self, line: Line) -> list[Verdict]:
        try:
            return (await sync(str(self.log), line)).verdicts
        finally:
            await line.close()

    async def order(self, url: str, count: int, seconds: float = STEP_SECONDS) -> None:
        await self.write()
        log = self.log
        settings = HubSettings(accept=("update",), every=900, poll=900)
        line = Line(url, self.token, None, settings)
        following = asyncio.create_task(follow(str(log), line))

        def has(count: int) -> bool:
            with LogReader.open(str(log)) as reader:
                return len(reader.jobs(None, None, "update", 10)) == count

        try:
            await to_thread.run_sync(eventually, lambda: last_note(str(log)).get("lsn"))
            async with Hub(self.hub) as hub:
                for number in range(1, count + 1):
                    await hub.device(DEVICE).enqueue(hub.call_by_name("update", number))
                    await to_thread.run_sync(eventually, partial(has, number), seconds)
        finally:
            following.cancel()
            await asyncio.wait([following])
            await line.close()

    def copies(self) -> dict[str, bytes]:
        if not any((self.hub / "devices" / DEVICE).glob("*/taskq.json")):
            return {}
        return {file.name: file.read_bytes() for file in (self.copy / "log").glob("*.log")}

    def segments(self) -> dict[str, bytes]:
        files = (self.log / "log").glob("*.log")
        return {file.name: file.read_bytes() for file in files}

    async def ask(
        self, method: str, path: str, token: str | None = None, **given: object
    ) -> httpx.Response:
        own = self.token if token is None else token
        headers = httpx.Headers({"Authorization": f"Bearer {own}", SPOKEN: "1"})
        headers["Content-Type"] = JSON
        headers.update(given.pop("headers", {}))  # type: ignore[arg-type]
        transport = httpx.ASGITransport(self.server.app)
        async with httpx.AsyncClient(transport=transport, base_url=_URL) as client:
            return await client.request(method, path, headers=headers, **given)  # type: ignore[arg-type]

    async def sent(self, asked: Request) -> httpx.Response:
        method, path, headers, body = carried(asked)
        return await self.ask(method, path, headers=headers, content=body)

    def restart(self, **settings: Any) -> None:
        self.server = Server(self.hub, **settings)
        self._servers.append(self.server)

    async def close(self) -> None:
        for server in self._servers:
            await server.close()

    def remove(self) -> None:
        shutil.rmtree(self.log)

    def tree(self) -> dict[str, str]:
        return {
            str(file): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in self.hub.rglob("*")
            if file.is_file() and not file.name.startswith("registry.db")
        }


@contextlib.contextmanager
def served(what: uvicorn.Server | ASGIApp) -> Iterator[str]:
    server = what
    if not isinstance(server, uvicorn.Server):
        server = uvicorn.Server(uvicorn.Config(server, log_level="warning", lifespan="off"))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()  # an early caller waits
        thread = Thread(target=server.run, args=([sock],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def running(port: int, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    def is_there() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(is_there)
            yield process
        finally:
            process.terminate()


def all_kept(hub: Path) -> list[copies.CopyFiles]:
    return [copy for device in copies.devices(hub) for copy in copies.kept(hub, device)]


def faults(hub: Path, *, deep: bool) -> list[copies.Fault]:
    return [fault for copy in all_kept(hub) for fault in copies.faults_of(copy, deep=deep)]


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def is_copy(copies: dict[str, bytes], segments: dict[str, bytes]) -> bool:
    return copies.keys() == segments.keys() and all(
        segments[name].startswith(data) and len(segments[name]) - len(data) <= 2 * 56
        for name, data in copies.items()
    )
