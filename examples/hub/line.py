"""A hub process to kill, and an unreliable line to it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Final, Self

import httpx

if TYPE_CHECKING:
    from pathlib import Path

_PIECE_BYTES: Final = 64 * 1024
_LOOK_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 120


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class HubProcess:
    """``taskq hub serve`` in a process of its own.

    Attributes:
        kills: number of kills so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_port()
        self.kills = 0
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "taskq", "hub", "serve", str(self.path), "--bind"]
        self._process = subprocess.Popen(  # noqa: ASYNC220 - it takes a millisecond
            [*command, f"127.0.0.1:{self.port}"], stderr=subprocess.DEVNULL
        )
        async with asyncio.timeout(_PATIENCE_SECONDS), httpx.AsyncClient(trust_env=False) as line:
            while True:
                if self._process.poll() is not None:
                    raise RuntimeError(f"the hub ended by itself: {self._process.returncode}")
                with contextlib.suppress(httpx.HTTPError):
                    await line.get(f"http://127.0.0.1:{self.port}/healthz")
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def kill(self) -> None:
        self.stop()
        self.kills += 1
        await self.start()

    def size(self) -> int:
        return sum(file.stat().st_size for file in (self.path / "devices").rglob("*.log"))


class BadLine:
    """A proxy to a port whose connections sometimes break in the middle of a transfer.

    Args:
        to_port: the target.
        drops: fraction of pieces at which a connection breaks.

    Attributes:
        port: port of the proxy.
        dropped: number of broken connections.
        carried: bytes in both directions together.
    """

    def __init__(self, to_port: int, drops: float, seed: int = 1) -> None:
        self.port = 0
        self.dropped = self.carried = 0
        self._to_port = to_port
        self._drops = drops
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _carry(self, near: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        try:
            far, requests = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            answers.transport.abort()
            return
        with contextlib.suppress(OSError, asyncio.CancelledError):
            pieces = {
                asyncio.ensure_future(self._pass(near, requests)),
                asyncio.ensure_future(self._pass(far, answers)),
            }
            _, left = await asyncio.wait(pieces, return_when=asyncio.FIRST_COMPLETED)
            for piece in left:
                piece.cancel()
        requests.transport.abort()
        answers.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(_PIECE_BYTES):
                self.carried += len(piece)
                if self._random.random() < self._drops:
                    self.dropped += 1
                    target.write(piece[: self._random.randrange(len(piece))])
                    return
                target.write(piece)
                await target.drain()
