"""The hub's HTTP: ``taskq hub serve``. Each log's requests come one after another, others beside.

What a request may take is bounded before it is read: the size of its body, how many bodies are in
memory at a time, and how long one may come. Before the internet belongs a proxy, which also bounds
how long headers may come, and brings TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from taskq.core.errors import LogError
from taskq.log.format.codec import FRAME_BODY_MAX
from taskq.log.machine.disk import PatientDisk
from taskq_plugins.hub.devices import device_of
from taskq_plugins.hub.hub import Hub
from taskq_plugins.hub.messages import Append
from taskq_plugins.hub.wire import FRAMES, JSON_BYTES_MAX, NOT_THERE, PROBLEM, answered, delivered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_log: Final = logging.getLogger("taskq")
#: A part, or one frame that is larger.
PART_BYTES_MAX: Final = FRAME_BODY_MAX + 64 * 1024
#: Bodies of frames in memory at a time: 128 MiB of them.
_BODIES_MAX: Final = 14
_THREADS: Final = 16
#: How long a body may come.
_BODY_SECONDS: Final = 600.0
_DIGITS_MAX: Final = 20
_RETRY_SECONDS: Final = 5
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Server:
    """One hub behind HTTP.

    Attributes:
        app: to be served by an ASGI server, in one process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hub = Hub(PatientDisk, str(path))
        #: one request of a device at a time; the hub has no locks of its own
        self._turns: dict[str, asyncio.Lock] = {}
        self._bodies = asyncio.Semaphore(_BODIES_MAX)
        self._threads = anyio.CapacityLimiter(_THREADS)
        self.app = Starlette(
            routes=[
                Route("/healthz", self._health, methods=["GET"]),
                Route("/{path:path}", self._serve, methods=["GET", "POST", "PATCH"]),
            ],
            lifespan=self._life,
        )

    @contextlib.asynccontextmanager
    async def _life(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        self._hub.close()

    async def _health(self, _request: Request) -> Response:
        return Response(b"{}", media_type="application/json")

    async def _serve(self, request: Request) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        device = None
        if scheme.lower() == "bearer":
            device = await self._on_thread(device_of, self._path, token)
        if device is None:
            return _problem(401, "the token is not known here")
        is_frames = request.headers.get("content-type", "") == FRAMES
        limit = PART_BYTES_MAX if is_frames else JSON_BYTES_MAX
        length = request.headers.get("content-length", "")
        if not length.isdecimal() or len(length) > _DIGITS_MAX:
            return _problem(411, "a request says how long it is")
        if int(length) > limit:
            return _problem(413, f"a request has at most {limit} bytes")
        async with self._bodies if is_frames else contextlib.nullcontext():
            return await self._answer(device, request, limit)

    async def _answer(self, device: str, request: Request, limit: int) -> Response:
        body, is_whole = await _read(request, limit)
        try:
            asked = delivered(request.method, request.url.path, request.headers, body)
        except (ValueError, KeyError, TypeError):
            return _problem(400, "that is no request of protocol 1")
        if asked is None:
            return Response(NOT_THERE[2], NOT_THERE[0], media_type=NOT_THERE[1])
        if not (is_whole or isinstance(asked, Append)):
            return _problem(400, "the line dropped")
        async with self._turns.setdefault(device, asyncio.Lock()):
            try:
                answer = await self._on_thread(self._hub.answer, device, asked)
            except (OSError, LogError) as error:
                _log.warning("hub: a request of %s failed: %s", device, error)
                is_full = isinstance(error, OSError) and error.errno in _FULL
                return _problem(507 if is_full else 503, "it could not be written: try again later")
        status, media_type, data = answered(answer)
        return Response(data, status, media_type=media_type)

    async def _on_thread(self, function: Any, *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._threads)


async def _read(request: Request, limit: int) -> tuple[bytes, bool]:
    """(the body as far as it came, whether that is all of it)."""
    pieces: list[bytes] = []
    size, is_whole = 0, True
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for piece in request.stream():
                size += len(piece)
                if size > limit:  # it said that it was shorter
                    is_whole = False
                    break
                pieces.append(piece)
    except (ClientDisconnect, TimeoutError):
        is_whole = False
    return b"".join(pieces), is_whole


def _problem(status: int, title: str) -> Response:
    data = f'{{"type": "about:blank", "title": "{title}"}}'
    headers = {"Retry-After": str(_RETRY_SECONDS)} if status in (503, 507) else {}
    return Response(data, status, headers, media_type=PROBLEM)
