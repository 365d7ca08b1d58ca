"""The hub's HTTP: ``taskq hub serve``. Requests of one log run one by one, others in parallel.

Each request is bounded before it is read: body size, number of bodies in memory, speed of headers
and bodies, rate of token attempts. Put a proxy with TLS between the hub and the internet.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import re
import stat
import time
import zlib
from asyncio import get_running_loop, timeout
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from anyio import CapacityLimiter, create_task_group
from anyio.to_thread import run_sync
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from taskq.engine import PatientDisk
from taskq.errors import LogError, TaskqError
from taskq.values import SECOND_NS
from taskq_plugins.hub import wire
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.copyfiles import (
    IDENTITY,
    LOG,
    CopyFiles,
    ask_again,
    faults_of,
    is_elsewhere,
    kept,
    note_place,
)
from taskq_plugins.hub.hub_outbox import OutboxServer
from taskq_plugins.hub.messages import (
    NOWHERE,
    Answer,
    Append,
    CopyEnd,
    Declare,
    Enrol,
    Enrolled,
    Given,
    Missing,
    Question,
    Refused,
    Resend,
    Stored,
    Sync,
    Trouble,
)
from taskq_plugins.hub.messages import Request as Asked
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.wire import (
    FRAMES,
    ID,
    JSON,
    JSON_LINES,
    PACKED,
    PROBLEM,
    PROTOCOL,
    WAYS,
    HubRoute,
    OtherProtocol,
    adapter,
    delivered,
)

if TYPE_CHECKING:
    from taskq.engine import Disk

_OCTETS: Final = "application/octet-stream"
_REFS: Final = "#/components/schemas/{model}"
#: A device's reads of its own logs, for a restore.
_READS: Final = {
    "/v1/logs": JSON,
    "/v1/logs/{log_id}/identity": JSON,
    "/v1/logs/{log_id}/segments": JSON,
    "/v1/logs/{log_id}/segments/{segment}": _OCTETS,
}
_HEADERS: Final = (
    "Taskq-Session", "Upload-Offset", "Taskq-Stem", "Upload-Complete", "Repr-Digest",
)  # fmt: skip


@cache
def document() -> bytes:
    """Return the document as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for way in WAYS:
        paths.setdefault(way.path, {})[way.method.lower()] = _asked(way)
    for path, kind in _READS.items():
        paths.setdefault(path, {})["get"] = _operation(path, {kind: {}})
    token = {"type": "http", "scheme": "bearer"}
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "A hub of task logs", "version": str(PROTOCOL)},
            "paths": paths,
            "components": {"schemas": _schemas(), "securitySchemes": {"token": token}},
            "security": [{"token": []}],
        }
    ).encode()


def _schemas() -> dict[str, Any]:
    kinds = {kind for way in WAYS for kind in (*way.asks, way.answer) if not way.has_frames}
    kinds |= {way.answer for way in WAYS} | {Refused}
    named = [(kind, "validation", adapter(kind)) for kind in kinds - {Given}]
    _, whole = TypeAdapter.json_schemas(named, ref_template=_REFS)  # type: ignore[arg-type]
    schemas: dict[str, Any] = whole["$defs"]
    for way in WAYS:
        for kind in way.asks if "{log_id}" in way.path and not way.has_frames else ():
            body = schemas[kind.__name__]
            del body["properties"]["log_id"]  # the path has it
            body["required"].remove("log_id")
    return schemas


def _asked(way: HubRoute) -> dict[str, Any]:
    content = {JSON_LINES: {}} if way.answer is Given else {JSON: _ref(way.answer)}
    status = "201" if way.path.endswith("enrol") else "200"
    operation = _operation(way.path, content, status, _HEADERS if way.has_frames else ())
    bodies = {FRAMES: {}, PACKED: {}} if way.has_frames else {JSON: _ref(way.asks[0])}
    summary = " or ".join(str(kind.__doc__).partition("\n")[0] for kind in way.asks)
    return operation | {"summary": summary, "requestBody": {"required": True, "content": bodies}}


def _operation(
    path: str, content: dict[str, Any], status: str = "200", headers: tuple[str, ...] = ()
) -> dict[str, Any]:
    text, problem = {"type": "string"}, {PROBLEM: _ref(Refused)}
    fields = [(name, "path") for name in re.findall(r"{(\w+)}", path)]
    fields += ((name, "header") for name in headers)
    parameters = [
        {"name": name, "in": place, "required": place == "path", "schema": text}
        for name, place in fields
    ]
    answers = {
        status: {"description": "done", "content": content},
        "default": {"description": "it was refused", "content": problem},
    }
    return {"parameters": parameters, "responses": answers}


def _ref(kind: type) -> dict[str, Any]:
    return {"schema": {"$ref": _REFS.format(model=kind.__name__)}}


#: A slow body grows no larger than this without room.
_SMALL_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 1024 * 1024
#: Time limit of a body, and of a body slower than a KiB a second.
BODY_SECONDS: Final = 600.0
_SLOW_SECONDS: Final = 15.0
_SLOW_BYTES: Final = 1_024


class BodyReader:
    """A body on its way.

    Args:
        request: whose it is.
        way: what kind of request.
        room: waits until there is memory for a large one.

    Attributes:
        pieces: what came last.
        is_over: nothing more comes.
        is_whole: all came that was to.
    """

    def __init__(
        self, request: Request, way: HubRoute, room: Callable[[], Awaitable[None]]
    ) -> None:
        self._stream, self._limit, self._room = request.stream(), way.bytes_max, room
        self._most = _PIECE_BYTES if way.has_frames else way.bytes_max + 1
        self._size, self._passed = 0, 0.0
        self.pieces: list[bytes] = []
        self.is_over, self.is_whole = False, True

    async def read(self) -> None:
        pieces: list[bytes] = []
        size, begin = 0, get_running_loop().time() - self._passed
        try:
            async with timeout(None) as limit:
                while size < self._most:
                    patience = min(_SLOW_SECONDS + self._size / _SLOW_BYTES, BODY_SECONDS)
                    limit.reschedule(begin + patience)
                    data = await anext(self._stream)
                    size += len(data)
                    self._size += len(data)
                    if self._size > self._limit:  # it said that it was shorter
                        self.is_over, self.is_whole = True, False
                        break
                    if self._size - len(data) <= _SMALL_BYTES < self._size:
                        limit.reschedule(None)
                        waits = get_running_loop().time()
                        await self._room()
                        begin += get_running_loop().time() - waits
                    pieces.append(data)
        except StopAsyncIteration:
            self.is_over = True
        except (ClientDisconnect, TimeoutError):
            self.is_over, self.is_whole = True, False
        self._passed = get_running_loop().time() - begin
        self.pieces = pieces


class Intake:
    """Do what the pieces of one body ask for, on a thread."""

    def __init__(self, request: Request, way: HubRoute) -> None:
        self._request, self._way, self._left = request, way, way.bytes_max
        is_packed = way.has_frames and request.headers.get("content-type") == PACKED
        self._inflate = zlib.decompressobj() if is_packed else None
        self._asked: Asked | Enrol | None = None
        self._rest = b""

    def ask(self, pieces: list[bytes], *, is_last: bool, is_whole: bool) -> Asked | Enrol:
        """Make the request from new data and the rest before it.

        A packed body is unpacked as far as it is valid, up to the limit of its way.
        """
        if not is_whole and Append not in self._way.asks:
            raise HTTPException(408, "its body came too slowly: try again later")
        try:
            if self._inflate is not None:
                pieces = [self._inflate.decompress(b"".join(pieces), max(self._left, 1))]
            self._left -= sum(map(len, pieces))
            asked = self._read(b"".join((self._rest, *pieces)))
        except OtherProtocol as error:
            raise HTTPException(426, f"this hub speaks protocol {PROTOCOL}") from error
        except (ValueError, zlib.error) as error:
            raise HTTPException(400, f"that is no request of protocol {PROTOCOL}") from error
        self._asked = asked
        if isinstance(asked, Resend) and not is_last:
            return replace(asked, is_last=False)
        return asked

    def _read(self, data: bytes) -> Asked | Enrol:
        if isinstance(self._asked, Append | Resend):
            return replace(self._asked, data=data)
        request = self._request
        asked = delivered(request.method, request.url.path, request.headers, data)
        if asked is None:
            raise HTTPException(404, "not found")
        return asked

    def goes_on(self, answer: Answer) -> bool:
        asked = self._asked
        if isinstance(asked, Append) and isinstance(answer, Stored):
            behind, at, self._rest = asked.behind, answer.at, asked.data
            if at.segment == behind.segment:
                self._rest = asked.data[at.offset - behind.offset :]
                self._asked = replace(asked, behind=at)
            return True
        if isinstance(asked, Resend) and isinstance(answer, Missing):
            offset = asked.offset + len(asked.data)
            self._asked = replace(asked, offset=offset)
            return answer.files == ((asked.name, offset),)
        return False


#: A file takes whole blocks, and a folder or an empty file one.
_BLOCK: Final = 4_096
#: Free space that stays for the operator.
_FREE_BYTES_MIN: Final = 64 * 1024 * 1024


def used_bytes(folder: Path) -> int:
    sizes: dict[int, int] = {}
    for path, _, names in os.walk(folder):
        for name in (".", *names):
            status = os.lstat(f"{path}/{name}")
            sizes[status.st_ino] = _blocks(status.st_size) if name != "." else _BLOCK
    return sum(sizes.values())


class Account:
    """Disk usage and quota of one device; ``used`` counts bytes in blocks."""

    def __init__(self, folder: Path, most: int) -> None:
        self._disk, self._path, self._most = PatientDisk(), str(folder.parent), most
        self.used = used_bytes(folder)

    def require(self, size: int) -> None:
        """Make sure that this many more bytes fit."""
        if self.used + size > self._most:
            raise OSError(errno.EDQUOT, "the device has as much there as it may")
        if self._disk.free_bytes(self._path) < _FREE_BYTES_MIN + size:
            raise OSError(errno.ENOSPC, "the disk is nearly full")

    def charge(self, size: int) -> None:
        if size > 0:
            self.require(size)
            self.used += size


class ChargedDisk(PatientDisk):
    """The machine's disk, as requests of one device write to it, whose account is asked for."""

    def __init__(self, account: Callable[[], Account]) -> None:
        super().__init__()
        self._account = account

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        if create and self.status(path) is None:
            self._account().charge(_BLOCK)
        return super().open(path, create=create, write=write)

    def make_directory(self, path: str) -> None:
        above = path
        while self.status(above) is None:
            self._account().charge(_BLOCK)
            above = above.rpartition("/")[0]
        super().make_directory(path)

    def write(self, descriptor: int, data: bytes, offset: int) -> int:
        grown = _blocks(offset + len(data)) - _blocks(self.size(descriptor))
        self._account().charge(grown)
        return super().write(descriptor, data, offset)


def _blocks(size: int) -> int:
    return max(-(-size // _BLOCK), 1) * _BLOCK


_PATH: Final = re.compile(rf"/v1/logs(?:/({ID})/(segments|identity|segments/[0-9]{{20}}))?\Z")


def read(hub: Path, device: str, path: str, headers: Mapping[str, str]) -> Response:
    match = _PATH.match(path)
    try:
        if match is not None and match[1] is None:
            logs = [
                {"log_id": str(copy.log_id), "arrived_ns": copy.arrived_ns}
                for copy in kept(hub, device=device)
            ]
            return JSONResponse({"logs": logs})
        if match is not None:
            return _found(CopyFiles(PatientDisk(), hub, device, UUID(match[1])), match[2], headers)
    except FileNotFoundError:
        """Answer that it is not there, as for what has no such name."""
    raise HTTPException(404, "not found")


def _found(copy: CopyFiles, what: str, headers: Mapping[str, str]) -> Response:
    kind, _, name = what.partition("/")
    if kind == "identity":
        return _file(Path(copy.path, IDENTITY), "", headers, JSON)
    if not name:
        return JSONResponse(_listing(copy))
    digest = copy.seals.get(int(name), {}).get("sha256", "")
    return _file(Path(copy.path, LOG, f"{name}.log"), digest, headers)


def _listing(copy: CopyFiles) -> dict[str, Any]:
    if not copy.is_there:
        raise FileNotFoundError
    known = copy.seals
    with copy.files() as files:
        segments = [[lsn, files.size(lsn), known.get(lsn, {}).get("sha256")] for lsn in files.lsns]
    return {"segments": segments, "high_lsn": copy.high_lsn}


def _file(
    file: Path, digest: str, headers: Mapping[str, str], media_type: str = _OCTETS
) -> Response:
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):  # a link or a folder is not there
        raise FileNotFoundError
    etag = {"ETag": f'"{digest}"'} if digest else {}
    if etag and headers.get("if-none-match") == etag["ETag"]:
        return Response(None, 304, etag)
    return FileResponse(file, 200, etag, media_type, stat_result=status)


_log: Final = logging.getLogger("taskq")
#: Disk quota of a device.
DEVICE_BYTES_MAX: Final = 10 * 2**30
#: How long the hub has what the log itself does not need any more.
KEEP_SECONDS: Final = 30 * 86_400.0
_KEEP_EVERY_SECONDS: Final = 3_600.0
#: Bodies of over 64 KiB that come at a time; a commit of up to 34 MiB is held until it is whole.
_BODIES_MAX: Final = 6
_REQUESTS_MAX: Final = 256
_OF_DEVICE_MAX: Final = 4
_THREADS: Final = 16
#: Disk space of a break, without the copied bytes.
_BREAK_BYTES: Final = 64 * 1024
_DIGITS_MAX: Final = 20
_TOO_LARGE: Final = 413
_RETRY_SECONDS: Final = 5
_AGAIN: Final = frozenset({408, 429, 503, 507})
#: Tokens and codes that do not hold, of one address in a minute.
_TRIES_MAX: Final = 10
#: Attempts answered without delay; each further one waits longer.
_TRIES_FREE: Final = 3
_TRY_SECONDS: Final = 1.0
_MINUTE: Final = 60.0
#: How often it is noted when a device was heard of, unless it came to its end.
_NOTED_SECONDS: Final = 10.0
_ANEW: Final = Refused(Trouble.SUPERSEDED, NOWHERE)
_FULL: Final = {
    errno.ENOSPC: "its disk is full: free some space there, then try again",
    errno.EDQUOT: "this device has as much there as it may: let go of some with 'taskq hub keep'",
}


class Server:
    """A hub's HTTP server.

    Args:
        path: of its directory.
        keep_seconds: see KEEP_SECONDS.
        device_bytes: see DEVICE_BYTES_MAX.

    Attributes:
        app: for an ASGI server, in one process.
    """

    def __init__(
        self, path: Path, keep_seconds: float = KEEP_SECONDS, device_bytes: int = DEVICE_BYTES_MAX
    ) -> None:
        self._path = path
        self._keep_seconds, self._device_bytes = keep_seconds, device_bytes
        self._registry = Registry(path)
        self._copies = Copies(
            PatientDisk, str(path), self._registry,
            disk_of=self._disk_of, may_fork=self._registry.may_fork,
        )  # fmt: skip
        self._outbox = OutboxServer(path, self._registry, self._spend)
        #: one request of a device at a time; the hub has no locks of its own
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}
        self._accounts: dict[str, Account] = {}
        self._noted: dict[str, tuple[float, int]] = {}
        self._tries: dict[str, int] = {}
        self._tries_began = 0.0
        self._bodies = asyncio.Semaphore(_BODIES_MAX)
        self._threads = CapacityLimiter(_THREADS)
        self.app = Starlette(
            routes=[
                Route("/healthz", self._health, methods=["GET"]),
                Route("/openapi.json", self._document, methods=["GET"]),
                Route("/v1/enrol", self._enrol, methods=["POST"]),
                Route("/{path:path}", self._serve, methods=["GET", "POST", "PATCH"]),
            ],
            lifespan=self._life,
            exception_handlers={HTTPException: _refused, OSError: _failed, TaskqError: _failed},
        )

    @contextlib.asynccontextmanager
    async def _life(self, _app: Starlette) -> AsyncIterator[None]:
        async with create_task_group() as tasks:
            tasks.start_soon(self._mend)
            tasks.start_soon(self._keep)
            tasks.start_soon(self._outbox.expire, self._on_thread)
            yield
            tasks.cancel_scope.cancel()
        await self.close()

    async def close(self) -> None:
        self._copies.close()
        await self._outbox.close()
        self._registry.close()

    async def _mend(self) -> None:
        """Request the missing data of copies after a live backup or a set-back of the hub."""
        try:
            if await self._on_thread(is_elsewhere, self._path):
                for copy in await self._on_thread(self._copies.all):
                    async with self._turn(copy.device):
                        await self._on_thread(self._mend_copy, copy)
            await self._on_thread(note_place, self._path)
        except OSError as error:
            _log.warning("hub: copies are looked through at the next start: %s", error)

    def _mend_copy(self, copy: CopyFiles) -> None:
        self._copies.forget(copy.device, copy.log_id)
        for fault in faults_of(copy, deep=True):
            _log.warning("hub: %s: %s: asked for again", copy.path, fault.what)
            ask_again(self._registry, fault)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_EVERY_SECONDS)
            before_ns = time.time_ns() - round(self._keep_seconds * SECOND_NS)
            for copy in await self._on_thread(self._copies.all):
                async with self._turn(copy.device):
                    try:
                        await self._on_thread(self._copies.keep, copy, before_ns)
                    except (OSError, LogError) as error:
                        _log.warning("hub: %s stays as it is: %s", copy.path, error)
                self._accounts.pop(copy.device, None)

    def _turn(self, device: str) -> asyncio.Lock:
        return self._turns.setdefault(device, asyncio.Lock())

    async def _health(self, _request: Request) -> Response:
        return Response(b"{}", media_type="application/json")

    async def _document(self, _request: Request) -> Response:
        return Response(await self._on_thread(document), media_type=wire.JSON)

    # -- authentication ----------------------------------------------------------------------------

    async def _serve(self, request: Request) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        device = None
        if scheme.lower() == "bearer":
            device = await self._on_thread(self._registry.device_of, token)
        if device is None:
            raise await self._unknown(request, "the token is not known here")
        request.state.device = device
        waiting = self._waiting.get(device, 0)
        # Waiting for jobs, or waking up with thousands of others, uses no slot.
        if waiting - self._outbox.asked_by(device) >= _OF_DEVICE_MAX:
            raise HTTPException(429, "one request after the other")
        if sum(self._waiting.values()) - len(self._outbox.asking) >= _REQUESTS_MAX:
            raise HTTPException(503, "too many at once: try again later")
        self._waiting[device] = waiting + 1
        try:
            return await self._bounded(device, request)
        finally:
            self._waiting[device] -= 1
            if not self._waiting[device]:
                del self._waiting[device]

    async def _unknown(self, request: Request, title: str) -> HTTPException:
        now, address = time.monotonic(), request.client.host if request.client else ""
        if now - self._tries_began > _MINUTE:
            self._tries.clear()
            self._tries_began = now
        tries = self._tries[address] = self._tries.get(address, 0) + 1
        if tries > _TRIES_FREE:
            await asyncio.sleep(_TRY_SECONDS)
        return HTTPException(401 if tries <= _TRIES_MAX else 429, title)

    async def _enrol(self, request: Request) -> Response:
        asked = await self._taken(request, _way_of(request))
        assert isinstance(asked, Enrol)
        async with self._turn(""):  # one attempt at a time
            token = await self._on_thread(self._registry.redeem, asked.code, asked.machine)
        if token is None:
            raise await self._unknown(request, "the code is not known here")
        return Response(wire.as_json(Enrolled(token)), 201, media_type=wire.JSON)

    # -- what is asked ----------------------------------------------------------------------------

    async def _bounded(self, device: str, request: Request) -> Response:
        if request.method in ("GET", "HEAD"):
            where = self._path, device, request.url.path, request.headers
            return await run_sync(read, *where, limiter=self._threads)
        way = _way_of(request)
        if way.has_frames:
            return _told(*wire.answered(await self._grown(device, request, way)))
        asked = await self._taken(request, way)
        if isinstance(asked, Enrol):
            raise _not_there()
        if isinstance(asked, Question):
            return await self._down(device, asked)
        async with self._turn(device):
            return _told(*wire.answered(await self._on_thread(self._done, device, asked)))

    async def _taken(self, request: Request, way: wire.HubRoute) -> Asked | Enrol:
        body = BodyReader(request, way, _no_wait)
        await body.read()
        asking = partial(Intake(request, way).ask, body.pieces, is_last=True)
        asked: Asked | Enrol
        asked = await self._on_thread(partial(asking, is_whole=body.is_whole))
        return asked

    async def _grown(self, device: str, request: Request, way: wire.HubRoute) -> Answer:
        """Take in bytes of a log, piece by piece; more than a little waits for room."""
        intake = Intake(request, way)
        async with contextlib.AsyncExitStack() as stack:
            body = BodyReader(request, way, partial(stack.enter_async_context, self._bodies))
            await body.read()
            while True:
                pieces, states = body.pieces, {"is_last": body.is_over, "is_whole": body.is_whole}
                failure: Exception | None = None
                async with create_task_group() as tasks:
                    if not body.is_over:
                        tasks.start_soon(body.read)
                    try:
                        answer = await self._piece(device, intake, pieces, states)
                    except (HTTPException, OSError, TaskqError) as error:
                        failure = error  # as it is, and not in a group
                        tasks.cancel_scope.cancel()
                if failure is not None:
                    raise failure
                if states["is_last"] or not intake.goes_on(answer):
                    return answer

    async def _piece(
        self, device: str, intake: Intake, pieces: list[bytes], states: dict[str, bool]
    ) -> Answer:
        def done() -> Answer:
            asked: Any = intake.ask(pieces, **states)
            more = not states["is_last"] and isinstance(asked, Append)
            return self._done(device, asked, more=more)

        async with self._turn(device):
            answer: Answer = await self._on_thread(done)
            return answer

    async def _down(self, device: str, asked: Question) -> Response:
        async def look(asked: Question) -> Answer:
            async with self._turn(device):  # for each look, but not for the wait
                if not await self._on_thread(self._copies.is_at, device, asked):
                    return _ANEW
                given: Answer = await self._on_thread(self._outbox.handing.give, device, asked)
                return given

        async with self._turn(device):
            is_known = await self._on_thread(self._copies.is_at, device, asked)
        answer = await self._outbox.answer(device, asked, look) if is_known else _ANEW
        return _told(*await self._on_thread(wire.answered, answer))

    def end(self) -> None:
        self._outbox.end()

    def _account(self, device: str) -> Account:
        account = self._accounts.get(device)
        if account is None:
            folder = self._path / "devices" / device
            account = self._accounts[device] = Account(folder, self._device_bytes)
        return account

    def _spend(self, device: str, size: int) -> None:
        self._account(device).used += size

    def _disk_of(self, device: str) -> Disk:
        return ChargedDisk(lambda: self._account(device))

    def _done(self, device: str, asked: Asked, *, more: bool = False) -> Answer:
        registry = self._registry
        if isinstance(asked, Sync) and not registry.is_bound(device, asked.machine):
            registry.note(device, refused_ns=time.time_ns())
            return Refused(Trouble.CLONED, NOWHERE)
        if isinstance(asked, Sync) and registry.standing(device)["state"] == "held":
            return Refused(Trouble.HELD, NOWHERE)
        if isinstance(asked, Declare):  # the branch to set aside may end jobs
            self._outbox.arrived(device)
            # A declared break is carried out as a whole, with a copy of the segment's beginning.
            self._account(device).require(asked.at.offset + _BREAK_BYTES)
        answer = self._copies.answer(device, asked, more=more)
        if more:
            return answer
        if isinstance(asked, Append) and isinstance(answer, Stored):
            self._outbox.arrived(device)
        if isinstance(answer, CopyEnd | Stored):
            self._note(device, asked, answer)
        return answer

    def _note(self, device: str, asked: Asked, answer: CopyEnd | Stored) -> None:
        now, lsn = time.monotonic(), answer.at.next_lsn if answer.at.stem else 0
        noted, end = self._noted.get(device, (-_NOTED_SECONDS, 0))
        if isinstance(asked, Sync):
            end = asked.end.next_lsn
        elif now - noted < _NOTED_SECONDS and lsn < end:
            return
        self._noted[device] = now, end
        tells = isinstance(asked, Sync) and asked.clock_ns
        clock = {"clock_ns": tells - time.time_ns()} if tells else {}
        breaks, forks = self._copies.breaks(device, asked.log_id)
        self._registry.note(
            device, heard_ns=time.time_ns(), log_id=str(asked.log_id), end_lsn=end, at_lsn=lsn,
            breaks=breaks, forks=forks, **clock,
        )  # fmt: skip

    async def _on_thread(self, function: Any, *arguments: Any) -> Any:
        return await run_sync(function, *arguments, limiter=self._threads)


def _way_of(request: Request) -> wire.HubRoute:
    """Return the kind of request from its path, which limits its size."""
    matched, headers = wire.way_to(request.method, request.url.path), request.headers
    if matched is None:
        raise _not_there()
    way, _ = matched
    length, kind = headers.get("content-length", ""), headers.get("content-type", "")
    if not length.isdecimal() or len(length) > _DIGITS_MAX:
        raise HTTPException(411, "a request says how long it is")
    if int(length) > way.bytes_max:
        raise HTTPException(_TOO_LARGE, f"this takes at most {way.bytes_max} bytes")
    if way.has_frames and kind not in (wire.FRAMES, wire.PACKED):
        raise HTTPException(415, f"this takes {wire.FRAMES}, with +zlib or without")
    return way


async def _no_wait() -> None: ...


def _told(status: int, media_type: str, data: bytes) -> Response:
    return Response(data, status, media_type=media_type)


def _not_there() -> HTTPException:
    return HTTPException(404, "not found")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == _TOO_LARGE:  # a proxy that cannot send all of it hears no answer
        with contextlib.suppress(ClientDisconnect, TimeoutError):
            async with asyncio.timeout(_RETRY_SECONDS):
                async for _ in request.stream():
                    """It is not kept."""
    values = {"type": "about:blank", "title": error.detail}
    wait = {"Retry-After": str(_RETRY_SECONDS)} if error.status_code in _AGAIN else {}
    return Response(json.dumps(values), error.status_code, wait, media_type=wire.PROBLEM)


async def _failed(request: Request, error: Exception) -> Response:
    _log.warning(
        "hub: a request of %s failed: %s", getattr(request.state, "device", "a new device"), error
    )
    full = _FULL.get(error.errno or 0) if isinstance(error, OSError) else None
    title = full or "it could not be written: try again later"
    return await _refused(request, HTTPException(507 if full else 503, title))
