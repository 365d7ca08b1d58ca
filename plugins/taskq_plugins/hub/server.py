"""The hub's HTTP: ``taskq hub serve``. Each log's requests come one after another, others beside.

What a request may take is bounded before it is read: the size of its body, how many bodies are in
memory at a time, how slowly headers and bodies may come, how often somebody may try a token. Before
the internet belongs a proxy, which brings TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import time
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from anyio import CapacityLimiter, create_task_group
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from taskq.engine import PatientDisk, Replica
from taskq.errors import LogError, TaskqError
from taskq.values import SECOND_NS
from taskq_plugins.hub import devices
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.messages import (
    NOWHERE,
    Append,
    Declare,
    Refused,
    SpillPart,
    Stored,
    Sync,
    Synced,
    Trouble,
)
from taskq_plugins.hub.outbox.lines import DOWN, JSON_LINES, decode_question, encode_given
from taskq_plugins.hub.outbox.serving import Serving
from taskq_plugins.hub.reading import Reading
from taskq_plugins.hub.wire import (
    FRAMES,
    JSON_BYTES_MAX,
    NOT_THERE,
    PACKED,
    PROBLEM,
    PROTOCOL,
    OtherProtocol,
    answered,
    delivered,
)
from taskq_plugins.patience import Patient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from taskq_plugins.hub.messages import Answer
    from taskq_plugins.hub.messages import Request as Asked
    from taskq_plugins.hub.outbox.lines import Question

_log: Final = logging.getLogger("taskq")
#: A part, or one frame that is larger.
PART_BYTES_MAX: Final = Replica.BODY_BYTES_MAX + 64 * 1024
#: What a device may have on the hub's disk.
DEVICE_BYTES_MAX: Final = 10 * 2**30
#: How long the hub has what the log itself does not need any more.
KEEP_SECONDS: Final = 30 * 86_400.0
_KEEP_EVERY_SECONDS: Final = 3_600.0
#: Bodies in memory at a time, 128 MiB of them; one that comes slowly does not become that large.
_BODIES_MAX: Final = 14
_SMALL_BYTES: Final = 64 * 1024
_REQUESTS_MAX: Final = 256
_OF_DEVICE_MAX: Final = 4
_THREADS: Final = 16
#: How long a body may come at most, and one that comes slower than a KiB a second.
_BODY_SECONDS: Final = 600.0
_SLOW_SECONDS: Final = 15.0
_SLOW_BYTES: Final = 1_024
_DIGITS_MAX: Final = 20
_RETRY_SECONDS: Final = 5
#: Those who wait for something look so long after the outbox grew: many at a time, once.
_GATHER_SECONDS: Final = 0.25
#: Questions that wait for their answer at a time; one more is answered at once.
_ASKING_MAX: Final = 2_000
#: Tokens and codes that do not hold, of one address in a minute.
_TRIES_MAX: Final = 10
_MINUTE: Final = 60.0
#: How often it is noted when a device was heard of, unless it came to its end.
_NOTED_SECONDS: Final = 10.0
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Server:
    """One hub behind HTTP.

    Args:
        path: of its directory.
        keep_seconds: as KEEP_SECONDS.
        device_bytes: as DEVICE_BYTES_MAX.

    Attributes:
        app: to be served by an ASGI server, in one process.
    """

    def __init__(
        self, path: Path, keep_seconds: float = KEEP_SECONDS, device_bytes: int = DEVICE_BYTES_MAX
    ) -> None:
        self._path = path
        self._keep_seconds, self._device_bytes = keep_seconds, device_bytes
        self._copies = Copies(PatientDisk, str(path))
        self._reading = Reading(path)
        self._outbox = Serving(path)
        #: one request of a device at a time; the hub has no locks of its own
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}
        self._asking = 0
        self._used: dict[str, int] = {}
        self._noted: dict[str, tuple[float, int]] = {}
        self._tries: dict[str, int] = {}
        self._tries_began = 0.0
        self._bodies = asyncio.Semaphore(_BODIES_MAX)
        self._threads = CapacityLimiter(_THREADS)
        self.app = Starlette(
            routes=[
                Route("/healthz", self._health, methods=["GET"]),
                Route("/v1/enrol", self._enrol, methods=["POST"]),
                Route("/{path:path}", self._serve, methods=["GET", "POST", "PATCH"]),
            ],
            lifespan=self._life,
        )

    @contextlib.asynccontextmanager
    async def _life(self, _app: Starlette) -> AsyncIterator[None]:
        async with create_task_group() as tasks:
            tasks.start_soon(self._keep)
            tasks.start_soon(self._outbox.expire, self._on_thread)
            yield
            tasks.cancel_scope.cancel()
        self._copies.close()
        await self._outbox.close()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_EVERY_SECONDS)
            before_ns = time.time_ns() - round(self._keep_seconds * SECOND_NS)
            for device, log_id in await self._on_thread(self._copies.logs):
                async with self._turn(device):
                    try:
                        await self._on_thread(self._copies.keep, device, log_id, before_ns)
                    except (OSError, LogError) as error:
                        _log.warning("hub: %s keeps all of %s: %s", device, log_id, error)
                self._used.pop(device, None)

    def _turn(self, device: str) -> asyncio.Lock:
        return self._turns.setdefault(device, asyncio.Lock())

    async def _health(self, _request: Request) -> Response:
        return Response(b"{}", media_type="application/json")

    # -- who asks ---------------------------------------------------------------------------------

    async def _serve(self, request: Request) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        device = None
        if scheme.lower() == "bearer":
            device = await self._on_thread(devices.device_of, self._path, token)
        if device is None:
            return self._unknown(request, "the token is not known here")
        waiting = self._waiting.get(device, 0)
        if waiting >= _OF_DEVICE_MAX:
            return _problem(429, "one request after the other")
        if sum(self._waiting.values()) >= _REQUESTS_MAX:
            return _problem(503, "too many at once: try again later")
        self._waiting[device] = waiting + 1
        try:
            return await self._bounded(device, request)
        finally:
            self._waiting[device] -= 1
            if not self._waiting[device]:
                del self._waiting[device]

    def _unknown(self, request: Request, title: str) -> Response:
        """Tell that token or code do not hold; who tries many is told no more."""
        now, address = time.monotonic(), request.client.host if request.client else ""
        if now - self._tries_began > _MINUTE:
            self._tries.clear()
            self._tries_began = now
        tries = self._tries[address] = self._tries.get(address, 0) + 1
        return _problem(401 if tries <= _TRIES_MAX else 429, title)

    async def _enrol(self, request: Request) -> Response:
        body, _ = await _read(request, JSON_BYTES_MAX)
        try:
            values = json.loads(body)
            code, machine = str(values["code"]), str(values["machine"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return _problem(400, "that is no request of protocol 1")
        async with self._turn(""):  # of all who try one at a time
            token = await self._on_thread(devices.redeem, self._path, code, machine)
        if token is None:
            return self._unknown(request, "the code is not known here")
        return Response(json.dumps({"token": token}), 201, media_type="application/json")

    # -- what is asked ----------------------------------------------------------------------------

    async def _bounded(self, device: str, request: Request) -> Response:
        if request.method == "GET":
            path, headers, limiter = request.url.path, request.headers, self._threads
            return await run_sync(self._reading.answer, device, path, headers, limiter=limiter)
        is_frames = request.headers.get("content-type", "") in (FRAMES, PACKED)
        limit = PART_BYTES_MAX if is_frames else JSON_BYTES_MAX
        length = request.headers.get("content-length", "")
        if not length.isdecimal() or len(length) > _DIGITS_MAX:
            return _problem(411, "a request says how long it is")
        if int(length) > limit:
            return _problem(413, f"a request has at most {limit} bytes")
        if request.url.path == DOWN:
            return await self._down(device, request)
        async with contextlib.AsyncExitStack() as room:
            wait = partial(room.enter_async_context, self._bodies)
            body, is_whole = await _read(request, limit, wait if is_frames else None)
            return await self._answer(device, request, body, is_whole, limit)

    async def _down(self, device: str, request: Request) -> Response:
        body, is_whole = await _read(request, JSON_BYTES_MAX)
        try:
            asked = decode_question(body if is_whole else b"")
        except (ValueError, KeyError, TypeError, RecursionError):
            return _problem(400, "that is no question of protocol 1")
        try:
            lines = await self._given(device, asked)
        except (OSError, TaskqError) as error:
            _log.warning("hub: a question of %s failed: %s", device, error)
            return _problem(503, "it could not be told: try again later")
        if lines is None:
            return _told(*answered(Refused(Trouble.SUPERSEDED, NOWHERE)))
        return Response(lines, 200 if lines else 204, media_type=JSON_LINES)

    async def _given(self, device: str, asked: Question) -> bytes | None:
        """Return the lines that a question is answered with, b"" for nothing; None: ask anew."""
        at, outbox = (device, asked.session, asked.log_id, asked.up), self._outbox
        loop = asyncio.get_running_loop()
        until = loop.time() + (asked.wait_seconds if self._asking < _ASKING_MAX else 0)
        self._asking += 1
        try:
            while outbox.is_there:
                port, seen = await outbox.end()
                async with self._turn(device):  # for each look, but not for the wait
                    if not await self._on_thread(self._copies.is_at, *at):
                        return None
                    given = await self._on_thread(outbox.handing.give, device, asked)
                if given.jobs or given.cancels or loop.time() >= until:
                    return encode_given(given)
                asked = asked._replace(refused=())
                grown = port.extent(seen)
                await asyncio.wait((grown,), timeout=max(until - loop.time(), 0))
                if grown.done():
                    await asyncio.sleep(_GATHER_SECONDS)
                else:
                    grown.cancel()
            return b""
        finally:
            self._asking -= 1

    async def _answer(
        self, device: str, request: Request, body: bytes, is_whole: bool, limit: int
    ) -> Response:
        if request.headers.get("content-type", "") == PACKED:
            body = await self._on_thread(_unpacked, body, limit)
        try:
            asked = delivered(request.method, request.url.path, request.headers, body)
        except OtherProtocol:
            return _problem(426, f"this hub speaks protocol {PROTOCOL}")
        except (ValueError, KeyError, TypeError):
            return _problem(400, "that is no request of protocol 1")
        if asked is None:
            return _told(*NOT_THERE)
        if not (is_whole or isinstance(asked, Append)):
            return _problem(400, "the line dropped")
        async with self._turn(device):
            try:
                answer = await self._on_thread(self._done, device, asked)
            except (OSError, LogError) as error:
                _log.warning("hub: a request of %s failed: %s", device, error)
                is_full = isinstance(error, OSError) and error.errno in _FULL
                return _problem(507 if is_full else 503, "it could not be written: try again later")
        return _told(*answered(answer))

    def _done(self, device: str, asked: Asked) -> Answer:
        """Carry a request out, on a thread."""
        if isinstance(asked, Sync) and not devices.is_bound(self._path, device, asked.machine):
            return Refused(Trouble.CLONED, NOWHERE)
        if isinstance(asked, Append | SpillPart):
            used = self._used.get(device)
            if used is None:
                used = devices.used_bytes(self._path, device)
            if used + len(asked.data) > self._device_bytes:
                return Refused(Trouble.QUOTA, NOWHERE)
            self._used[device] = used
        if isinstance(asked, Declare):  # what is about to be set aside may end jobs
            self._outbox.arrived(device)
        answer = self._copies.answer(device, asked)
        if isinstance(asked, Append | SpillPart) and not isinstance(answer, Refused):
            self._used[device] = self._used.get(device, 0) + len(asked.data)
        if isinstance(asked, Append) and isinstance(answer, Stored):
            self._outbox.arrived(device)
        if isinstance(answer, Synced | Stored):
            self._note(device, asked, answer)
        return answer

    def _note(self, device: str, asked: Asked, answer: Synced | Stored) -> None:
        """Note when the device was heard of, and how it stands."""
        now, lsn = time.monotonic(), answer.at.next_lsn if answer.at.stem else 0
        noted, end = self._noted.get(device, (-_NOTED_SECONDS, 0))
        if isinstance(asked, Sync):
            end = asked.end.next_lsn
        elif now - noted < _NOTED_SECONDS and lsn < end:
            return
        self._noted[device] = now, end
        clock = {"clock_ns": asked.clock_ns - time.time_ns()} if isinstance(asked, Sync) else {}
        known = devices.facts(self._path, device) | clock
        breaks, forks = self._copies.breaks(device, asked.log_id)
        known |= {"heard_ns": time.time_ns(), "log_id": str(asked.log_id), "end_lsn": end}
        known |= {"at_lsn": lsn, "breaks": breaks, "forks": forks}
        devices.note(self._path, device, **known)

    async def _on_thread(self, function: Any, *arguments: Any) -> Any:
        return await run_sync(function, *arguments, limiter=self._threads)


async def _read(
    request: Request, limit: int, room: Callable[[], Awaitable[None]] | None = None
) -> tuple[bytes, bool]:
    """Return (the body as it came, whether it is all); a large one waits for room."""
    pieces: list[bytes] = []
    size, is_whole, begin = 0, True, asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(_SLOW_SECONDS) as timeout:
            async for piece in request.stream():
                size += len(piece)
                if size > limit:  # it said that it was shorter
                    is_whole = False
                    break
                if room is not None and size - len(piece) <= _SMALL_BYTES < size:
                    timeout.reschedule(None)
                    waits = time.monotonic()
                    await room()
                    begin += time.monotonic() - waits
                pieces.append(piece)
                patience = min(_SLOW_SECONDS + size / _SLOW_BYTES, _BODY_SECONDS)
                timeout.reschedule(begin + patience)
    except (ClientDisconnect, TimeoutError):
        is_whole = False
    return b"".join(pieces), is_whole


def _unpacked(body: bytes, limit: int) -> bytes:
    """Return what a body was, as far as it reads back, and no more than it may be."""
    try:
        return zlib.decompressobj().decompress(body, limit)
    except zlib.error:
        return b""


def _told(status: int, media_type: str, data: bytes) -> Response:
    return Response(data, status, media_type=media_type)


def _problem(status: int, title: str) -> Response:
    data = f'{{"type": "about:blank", "title": "{title}"}}'
    headers = {"Retry-After": str(_RETRY_SECONDS)} if status in (429, 503, 507) else {}
    return Response(data, status, headers, media_type=PROBLEM)


class Protocol(Patient):
    """A line to a device: how slowly a body may come is seen to where it is read."""

    body_seconds = _BODY_SECONDS + _SLOW_SECONDS
