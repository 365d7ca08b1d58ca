"""HTTP server of a hub, ``taskq hub serve``. Only requests of one device run one after another.

A gate checks each request before the app gets it: token, size, speed, number of requests at once.
Put a proxy with TLS between the hub and the internet.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import stat
import time
import zlib
from asyncio import get_running_loop, timeout
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import uvicorn
from anyio import CapacityLimiter, create_task_group
from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI, Header, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from taskq.engine import PatientDisk
from taskq.errors import LogError, TaskqError
from taskq.values import SECOND_NS
from taskq_plugins.hub import copies, models
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.line import device_of
from taskq_plugins.hub.outbox import OutboxServer
from taskq_plugins.hub.registry import Registry
from taskq_plugins.patience import Patient, config_of

if TYPE_CHECKING:
    import socket
    from types import FrameType

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log: Final = logging.getLogger("taskq")


# -- the gate --------------------------------------------------------------------------------------

#: Time limit of a body, and of a body that arrives with less than a KiB a second.
BODY_SECONDS: Final = 600.0
_SLOW_SECONDS: Final = 15.0
_SLOW_BYTES: Final = 1_024
_REQUESTS_MAX: Final = 256
_OF_DEVICE_MAX: Final = 4
_DIGITS_MAX: Final = 20
_REFUSAL: Final = 400
_TOO_LARGE: Final = 413
_UNKNOWN: Final = 401
_RETRY_SECONDS: Final = 5
_AGAIN: Final = frozenset({408, 429, 503, 507})
_NOT_THERE: Final = frozenset({404, 405})
#: Invalid tokens and codes from one address in a minute, at most.
_TRIES_MAX: Final = 10
_MINUTE: Final = 60.0
#: Paths without a token.
_OPEN: Final = frozenset({"/healthz", "/openapi.json"})
_ENROLL: Final = models.PATHS[models.Enroll]
_BODY_BYTES_MAX: Final = {
    _ENROLL: models.CODE_BYTES_MAX,
    models.PATHS[models.Question]: models.QUESTION_BYTES_MAX,
    models.PATHS[models.Append]: models.PART_BYTES_MAX,
}


class Gate:
    """Admits requests to an app; refuses the others without reading their bodies.

    Args:
        app: gets requests with whole bodies.
        device_of: returns the device of a token, or None.
        asking: returns the device of each waiting long poll, which takes no slot.
        note: notes for ``taskq hub devices`` why a device was refused.

    Attributes:
        refused: number of refusals by status.
        received: bytes of bodies.
    """

    def __init__(
        self,
        app: ASGIApp,
        device_of: Callable[[str], Awaitable[str | None]],
        asking: Callable[[], list[str]],
        note: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._app, self._device_of, self._asking, self._note = app, device_of, asking, note
        self._waiting: dict[str, int] = {}
        self._tries: dict[str, int] = {}
        self._tries_began = 0.0
        self.refused, self.received = Counter[int](), 0

    async def __call__(self, scope: Scope, receive: Receive, forward: Send) -> None:
        async def send(message: Message) -> None:
            if message.get("status", 0) >= _REFUSAL:
                self.refused[message["status"]] += 1
            await forward(message)

        if scope["type"] != "http" or scope["path"] in _OPEN:
            await self._app(scope, receive, send)
            return
        try:
            async with self._admitted(Request(scope)):
                await self._app(scope, await self._bounded(Request(scope), receive), send)
        except HTTPException as error:
            if error.status_code == _TOO_LARGE:
                await _drained(receive)  # a proxy reads the answer only after sending it all
            await _problem(error)(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _admitted(self, request: Request) -> AsyncIterator[None]:
        if request.url.path == _ENROLL:
            await self._require_version(request)
            yield
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        device = await self._device_of(token) if scheme.lower() == "bearer" else None
        if device is None:
            refusal = self.unknown(request, "the token is not known here")
            if refusal.status_code == _UNKNOWN:
                await self._note(device_of(token), _STRANGER)
            raise refusal
        request.state.device = device
        await self._require_version(request)
        # A long poll uses no slot, neither while waiting nor when thousands wake up together.
        waiting, asking = self._waiting.get(device, 0), self._asking()
        if waiting - asking.count(device) >= _OF_DEVICE_MAX:
            raise HTTPException(429, "one request after the other")
        if sum(self._waiting.values()) - len(asking) >= _REQUESTS_MAX:
            raise HTTPException(503, "too many at once: try again later")
        self._waiting[device] = waiting + 1
        try:
            yield
        finally:
            self._waiting[device] -= 1
            if not self._waiting[device]:
                del self._waiting[device]

    async def _bounded(self, request: Request, receive: Receive) -> Receive:
        if request.method in ("GET", "HEAD"):
            return receive
        most = _BODY_BYTES_MAX.get(request.url.path, models.JSON_BYTES_MAX)
        length = request.headers.get("content-length", "")
        if not length.isdecimal() or len(length) > _DIGITS_MAX:
            raise HTTPException(411, "a request names its length")
        if int(length) > most:
            raise HTTPException(_TOO_LARGE, f"this takes at most {most} bytes")
        body = [await _read(receive, most)]
        self.received += len(body[0])

        async def received() -> Message:
            return {"type": "http.request", "body": body.pop()} if body else await receive()

        return received

    def unknown(self, request: Request, title: str) -> HTTPException:
        """Return the refusal of a token or a code."""
        now, address = time.monotonic(), request.client.host if request.client else ""
        if now - self._tries_began > _MINUTE:
            self._tries.clear()
            self._tries_began = now
        tries = self._tries[address] = self._tries.get(address, 0) + 1
        return HTTPException(_UNKNOWN if tries <= _TRIES_MAX else 429, title)

    async def _require_version(self, request: Request) -> None:
        spoken = request.headers.get(models.SPOKEN, "")
        if not models.agreed(spoken.replace(" ", "").split(",")):
            device = getattr(request.state, "device", "")
            ours = ", ".join(map(str, models.VERSIONS))
            text = f"this hub speaks protocol {ours}, and the device {spoken[:40] or 'none'}"
            _log.warning("hub: %s was refused: %s", device or "a new device", text)
            text += ": bring the older one up to date"
            await self._note(device, text)
            raise HTTPException(426, text)


async def _read(receive: Receive, most: int) -> bytes:
    """Read a body within its time limit; an incomplete body is refused."""
    body, begin = bytearray(), get_running_loop().time()
    with contextlib.suppress(TimeoutError):
        async with timeout(None) as limit:
            while len(body) <= most:
                limit.reschedule(begin + min(_SLOW_SECONDS + len(body) / _SLOW_BYTES, BODY_SECONDS))
                message = await receive()
                if message["type"] != "http.request":
                    break
                body += message.get("body", b"")
                if not message.get("more_body"):
                    return bytes(body)
    raise HTTPException(408, "its body did not come in time: try again later")


async def _drained(receive: Receive) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_RETRY_SECONDS):
            while (await receive()).get("more_body"):
                """It is not kept."""


def _problem(error: HTTPException) -> Response:
    status, title = error.status_code, error.detail
    if status in _NOT_THERE:
        status, title = 404, "not found"
    wait = {"Retry-After": str(_RETRY_SECONDS)} if status in _AGAIN else {}
    return JSONResponse({"type": "about:blank", "title": title}, status, wait, models.PROBLEM)


# -- disk quota of a device ------------------------------------------------------------------------

#: A file takes whole blocks; a folder or an empty file takes one.
_BLOCK: Final = 4_096
#: A request writes at most this in addition to its bytes: folders, a file of names, notes.
_BESIDE_BYTES: Final = 64 * 1024
#: Free space reserved for the operator.
_FREE_BYTES_MIN: Final = 64 * 1024 * 1024
#: Disk quota of a device.
DEVICE_BYTES_MAX: Final = 10 * 2**30


def used_bytes(folder: Path) -> int:
    """Return the disk space of a folder with everything in it."""
    sizes: dict[int, int] = {}
    for path, _, names in os.walk(folder):
        for name in (".", *names):
            status = os.lstat(f"{path}/{name}")
            blocks = 1 if name == "." else max(-(-status.st_size // _BLOCK), 1)
            sizes[status.st_ino] = blocks * _BLOCK
    return sum(sizes.values())


class Account:
    """Disk usage and quota of one device.

    Attributes:
        used: counted bytes, plus the most that requests since may have written.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self.used = used_bytes(folder)

    def charge(self, size: int) -> None:
        """Count bytes that a request may write, if they fit."""
        if self.used + size > self._most:
            self.used = used_bytes(self._folder)
        if self.used + size > self._most:
            raise OSError(
                errno.EDQUOT,
                f"this device has {self.used / 2**30:.1f} GiB there, as much as it may: let the "
                f"hub keep less with 'taskq hub serve HUB --keep SPAN'",
            )
        if PatientDisk().free_bytes(str(self._folder.parent)) < _FREE_BYTES_MIN + size:
            raise OSError(errno.ENOSPC, _FULL)
        self.used += size


# -- the app ---------------------------------------------------------------------------------------

#: How long the hub keeps segments that the log itself no longer needs.
KEEP_SECONDS: Final = 30 * 86_400.0
_KEEP_EVERY_SECONDS: Final = 3_600.0
_THREADS: Final = 16
#: How often a device's last contact is noted, apart from completed syncs.
_NOTED_SECONDS: Final = 10.0
_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL: Final = "its disk is full: free some space there, then try again"
_LATER: Final = "it could not be written: try again later"
_STRANGER: Final = "its token does not hold: 'taskq hub enroll HUB NAME --replace' gives it another"
_WHY: Final = {
    models.Trouble.CLONED: "another machine has its token: give that one a name of its own with "
    "'taskq hub enroll HUB OTHER', or this name with 'taskq hub enroll HUB NAME --replace'",
    models.Trouble.DAMAGED: "a frame of its log is damaged, or a segment is missing: run 'taskq "
    "verify' and 'taskq repair' on the device",
}
_ANEW: Final = models.Refused(models.Trouble.SUPERSEDED, models.NOWHERE)


def _asker(request: Request) -> str:
    device: str = request.state.device
    return device


Device = Annotated[str, Depends(_asker)]
_Segment = Annotated[str, InPath(pattern=r"^[0-9]{20}$")]
_REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"model": models.Refused, "description": "refused"}
}
_BYTES: Final = {"schema": {"type": "string", "format": "binary"}}
_FRAMES_BODY: Final = {
    "requestBody": {"required": True, "content": {models.FRAMES: _BYTES, models.PACKED: _BYTES}}
}


class Server:
    """A hub's HTTP server.

    Args:
        path: directory of the hub.
        keep_seconds: see KEEP_SECONDS.
        device_bytes: see DEVICE_BYTES_MAX.

    Attributes:
        app: the ASGI application, for a single process.
        site: the part of the application after the gate.
    """

    def __init__(
        self, path: Path, keep_seconds: float = KEEP_SECONDS, device_bytes: int = DEVICE_BYTES_MAX
    ) -> None:
        self._path = path
        self._keep_seconds, self._device_bytes = keep_seconds, device_bytes
        self._registry = Registry(path)
        self._copies = Copies(PatientDisk, str(path), self._registry)
        self._outbox = OutboxServer(path, self._registry)
        #: one lock for each device, since the copies have no locks of their own
        self._turns: dict[str, asyncio.Lock] = {}
        self._accounts: dict[str, Account] = {}
        self._noted: dict[tuple[str, UUID], tuple[float, int]] = {}
        self._threads = CapacityLimiter(_THREADS)
        self.site = self._routes()
        self.app = self._gate = Gate(
            self.site,
            lambda token: self._on_thread(self._registry.device_of, token),
            lambda: [device for device, _ in self._outbox.asking],
            self._note_refusal,
        )

    def _routes(self) -> FastAPI:
        app = FastAPI(
            title="A hub of task logs", version=str(max(models.VERSIONS)), docs_url=None,
            redoc_url=None, lifespan=self._life, responses=_REFUSED,
            exception_handlers={
                HTTPException: _refused, RequestValidationError: _misread,
                OSError: self._failed, TaskqError: self._failed,
            },
        )  # fmt: skip
        app.get("/healthz")(self._health)
        app.post(_ENROLL, status_code=201)(self._enroll)
        known = [Depends(HTTPBearer(auto_error=False, description="a device's token"))]
        app.post(models.PATHS[models.Question], dependencies=known)(self._down)
        for kind in (models.Sync, models.Ask, models.Declare, models.Leave):
            about: dict[str, Any] = {"name": kind.__name__, "description": kind.__doc__}
            answering = self._answering(kind, models.ANSWERS[kind])
            app.post(models.PATHS[kind], dependencies=known, **about)(answering)
        taking: dict[str, Any] = {"dependencies": known, "openapi_extra": _FRAMES_BODY}
        app.post(models.PATHS[models.Append], **taking)(self._append)
        for path, read in (
            ("/logs", self._logs), ("/logs/{log_id}/segments/{segment}", self._bytes_of),
        ):  # fmt: skip
            app.get(path, dependencies=known)(read)
        return app

    # -- lifespan and upkeep ----------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _life(self, _app: FastAPI) -> AsyncIterator[None]:
        async with create_task_group() as tasks:
            tasks.start_soon(self._mend)
            tasks.start_soon(self._keep)
            tasks.start_soon(self._outbox.run)
            yield
            tasks.cancel_scope.cancel()
        await self.close()

    async def close(self) -> None:
        """Note the durable ends of the copies, and close their files."""
        self._copies.close()
        self._registry.close()

    def end(self) -> None:
        """Answer all waiting long polls."""
        self._outbox.end()

    async def _mend(self) -> None:
        """Request missing data of copies after a live backup, or after the hub was set back."""
        try:
            if await self._on_thread(copies.is_elsewhere, self._path):
                for copy in await self._on_thread(self._copies.all):
                    async with self._turn(copy.device):
                        await self._on_thread(self._mend_copy, copy)
            await self._on_thread(copies.note_place, self._path)
        except OSError as error:
            _log.warning("hub: copies are looked through at the next start: %s", error)

    def _mend_copy(self, copy: copies.CopyFiles) -> None:
        self._copies.forget(copy.device, copy.log_id)
        for fault in copies.faults_of(copy, deep=True):
            _log.warning("hub: %s: %s: asked for again", copy.path, fault.what)
            copies.ask_again(self._registry, fault)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_EVERY_SECONDS)
            await self._tidy()

    async def _tidy(self) -> None:
        now_ns = await self._on_thread(self._registry.upkeep_ns)
        before_ns = now_ns - round(self._keep_seconds * SECOND_NS)
        for copy in await self._on_thread(self._copies.all):
            async with self._turn(copy.device):
                try:
                    await self._on_thread(self._copies.keep, copy, before_ns)
                except (OSError, LogError) as error:
                    _log.warning("hub: %s stays as it is: %s", copy.path, error)

    # -- requests ---------------------------------------------------------------------------------

    async def _health(self) -> dict[str, str]:
        return {}

    async def _enroll(self, asked: models.Enroll, request: Request) -> models.Enrolled:
        async with self._turn(""):  # one attempt at a time
            token = await self._on_thread(self._registry.redeem, asked.code, asked.machine)
        if token is None:
            raise self._gate.unknown(request, "the code is not known here")
        return models.Enrolled(token)

    def _answering(self, kind: type, answer: type) -> Callable[..., Awaitable[Any]]:
        async def answered(asked: Any, device: Device) -> Any:
            return await self._answer(device, lambda: asked)

        answered.__annotations__ |= {"asked": kind, "return": answer}
        return answered

    async def _append(
        self, request: Request, device: Device, taskq_append: Annotated[str, Header()]
    ) -> models.Stored:
        """Append frames."""
        data = await request.body()

        def asked() -> Any:
            fields = models.adapter(dict).validate_json(taskq_append)
            fields["data"] = _unpacked(request, data)
            return models.adapter(models.Append).validate_python(fields)

        stored: models.Stored = await self._answer(device, asked)
        return stored

    async def _answer(self, device: str, asked: Callable[[], Any]) -> Any:
        async with self._turn(device):
            answer = await self._on_thread(self._done, device, asked)
        return await self._sent(device, answer)

    async def _down(self, asked: models.Question, device: Device) -> models.Given:
        """Ask for jobs."""

        async def look(asked: models.Question) -> models.Answer | None:
            async with self._turn(device):  # held for each look, not for the wait
                if not self._copies.is_latest(device, asked):
                    return _ANEW
                given: models.Given | None = await self._on_thread(
                    self._outbox.given, device, asked
                )
                return given

        answer: Any = await self._outbox.answer(device, asked, look)
        given: models.Given = await self._sent(device, answer or Response(None, 204))
        return given

    def _done(self, device: str, make: Callable[[], Any]) -> models.Answer:
        try:
            asked = make()
        except (ValueError, zlib.error) as error:
            raise HTTPException(400, "that is no request of this protocol") from error
        registry = self._registry
        if isinstance(asked, models.Sync) and not registry.is_bound(device, asked.machine):
            return models.Refused(models.Trouble.CLONED, models.NOWHERE)
        if isinstance(asked, models.Sync) and registry.standing(device)["state"] == "held":
            return models.Refused(models.Trouble.HELD, models.NOWHERE)
        is_new = isinstance(asked, models.Sync) and not self._place(device, asked.log_id).is_there
        if is_new or isinstance(asked, models.Append | models.Declare):
            self._account(device).charge(_written(asked))
        answer = self._copies.answer(device, asked)
        if isinstance(answer, models.CopyEnd | models.Stored):
            self._note(device, asked, answer)
        return answer

    def _note(self, device: str, asked: Any, answer: models.CopyEnd | models.Stored) -> None:
        now, lsn = time.monotonic(), answer.at.next_lsn if answer.at.stem else 0
        key = device, asked.log_id
        noted, end = self._noted.get(key, (-_NOTED_SECONDS, 0))
        if isinstance(asked, models.Sync):
            end = asked.end.next_lsn
        elif now - noted < _NOTED_SECONDS and lsn < end:
            return
        self._noted[key] = now, end
        device_ns = asked.clock_ns if isinstance(asked, models.Sync) else 0
        clock = {"clock_ns": device_ns - time.time_ns()} if device_ns else {}
        copy = self._copy(device, asked.log_id)
        gaps = len(copies.gaps(copy))
        self._registry.note_end(device, copy.identity, (lsn, end, gaps), **clock)

    # -- refusals ---------------------------------------------------------------------------------

    async def _sent(self, device: str, answer: Any) -> Any:
        if not isinstance(answer, models.Refused):
            return answer
        if why := _WHY.get(answer.trouble):
            await self._note_refusal(device, why)
        return Response(models.as_json(answer), models.STATUS[answer.trouble], None, models.PROBLEM)

    async def _failed(self, request: Request, error: Exception) -> Response:
        device = getattr(request.state, "device", "")
        _log.warning("hub: a request of %s failed: %s", device or "a new device", error)
        title = error.strerror if isinstance(error, OSError) and error.errno in _ROOM else None
        await self._note_refusal(device, title or str(error))
        return _problem(HTTPException(507 if title else 503, title or _LATER))

    async def _note_refusal(self, device: str, why: str) -> None:
        """Note it for a device of the hub; a wrong token may have any name."""
        if await self._on_thread(self._registry.is_known, device):
            await self._on_thread(
                partial(self._registry.note, refused=[time.time_ns(), why]), device
            )

    # -- reads by a device of its own logs, for a restore -----------------------------------------

    def _logs(self, device: Device) -> dict[str, Any]:
        logs = []
        for copy in copies.kept(self._path, device):
            identity = f"{copy.path}/{copies.IDENTITY}"
            with copy.files() as files:
                segments = [[lsn, files.size(lsn)] for lsn in files.lsns]
            logs.append({
                "log_id": str(copy.log_id), "arrived_ns": copy.arrived_ns, "segments": segments,
                "identity": copies.content(copy.disk, identity).decode(),
            })  # fmt: skip
        return {"logs": logs}

    def _bytes_of(self, device: Device, log_id: UUID, segment: _Segment) -> FileResponse:
        return _file(Path(self._copy(device, log_id).path, copies.LOG, f"{segment}.log"))

    def _place(self, device: str, log_id: UUID) -> copies.CopyFiles:
        return copies.CopyFiles(PatientDisk(), self._path, device, log_id)

    def _copy(self, device: str, log_id: UUID) -> copies.CopyFiles:
        copy = self._place(device, log_id)
        if not copy.is_there:
            raise _not_there()
        return copy

    # -- accounts and threads ---------------------------------------------------------------------

    def _turn(self, device: str) -> asyncio.Lock:
        return self._turns.setdefault(device, asyncio.Lock())

    def _account(self, device: str) -> Account:
        account = self._accounts.get(device)
        if account is None:
            folder = self._path / "devices" / device
            account = self._accounts[device] = Account(folder, self._device_bytes)
        return account

    async def _on_thread(self, function: Any, *arguments: Any) -> Any:
        return await run_sync(function, *arguments, limiter=self._threads)


def _written(asked: Any) -> int:
    """Return the most that a request writes; a piece of a frame is written to two files."""
    parents = 100 * len(asked.parents) if isinstance(asked, models.Sync) else 0
    return _BESIDE_BYTES + parents + 2 * len(getattr(asked, "data", b""))


def _unpacked(request: Request, data: bytes) -> bytes:
    kind, most = request.headers.get("content-type"), models.PART_BYTES_MAX
    if kind == models.PACKED:
        data = zlib.decompressobj().decompress(data, most + 1)
    elif kind != models.FRAMES:
        raise HTTPException(415, f"this takes {models.FRAMES}, with +zlib or without")
    if len(data) > most:
        raise HTTPException(_TOO_LARGE, f"this takes at most {most} bytes")
    return data


def _file(file: Path) -> FileResponse:
    with contextlib.suppress(FileNotFoundError):
        status = file.lstat()
        if stat.S_ISREG(status.st_mode):  # links and folders do not count
            return FileResponse(file, media_type="application/octet-stream", stat_result=status)
    raise _not_there()


def _not_there() -> HTTPException:
    return HTTPException(404)


async def _refused(_request: Request, error: Any) -> Response:
    return _problem(error)


async def _misread(_request: Request, error: Any) -> Response:
    is_path = any(each["loc"][:1] == ("path",) for each in error.errors())
    return _problem(HTTPException(404 if is_path else 400, "that is no request of this protocol"))


# -- the process: sockets, limits, prompt shutdown -------------------------------------------------

#: Connections: long polls of devices, and others.
_LINES_MAX: Final = 2_500
_STRANGERS_MAX: Final = 400
#: Descriptors for the connections and their files.
_FILES: Final = 4_096
_HEAD_BYTES_MAX: Final = 16 * 1024
#: Parameters of mallopt(3): arenas, size from which memory is mapped, size from which it is freed.
_MALLOC: Final = {-8: 1, -3: 16 * 2**20, -1: 64 * 2**20}
#: Time for running requests at shutdown.
_DRAIN_SECONDS: Final = 2


class Protocol(Patient):
    """A connection to a device; ``_read`` limits the time of a body."""

    body_seconds = BODY_SECONDS
    strangers_max = _STRANGERS_MAX
    _was_known = False

    @property
    def is_known(self) -> bool:
        scope = getattr(self, "scope", None) or {}
        self._was_known |= "device" in scope.get("state", {})
        return self._was_known


def _allow_files() -> None:
    import resource  # noqa: PLC0415 - Windows lacks it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


class Listener(uvicorn.Server):
    """Serves a hub until a signal, then ends promptly.

    Acknowledged data is already durable, so aborting requests loses nothing.

    Attributes:
        began: called once the server listens.
    """

    def __init__(
        self,
        hub: Server,
        tls: tuple[str | None, str | None] = (None, None),
        **more: Any,
    ) -> None:
        self._hub = hub
        self.began: Callable[[], object] = bool
        super().__init__(
            config_of(
                hub.app,
                tls,
                lines_max=_LINES_MAX,
                http=Protocol,
                h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
                timeout_graceful_shutdown=_DRAIN_SECONDS,
                **more,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        with contextlib.suppress(ImportError):  # Windows has no such limit
            _allow_files()
        super().run(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self.began()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._hub.end()


def keep_memory() -> None:
    """Make malloc keep a body's memory for the next one; otherwise each MiB costs 160 page faults.

    ``MALLOC_…`` variables of the user keep their effect.
    """
    if not any(name.startswith("MALLOC_") for name in os.environ):
        with contextlib.suppress(AttributeError, OSError, TypeError):  # only glibc has mallopt
            library = ctypes.CDLL(None)
            for parameter, value in _MALLOC.items():
                library.mallopt(parameter, value)
