"""The receiver: an HTTP server that stores files, and fails a share of requests on purpose."""

from __future__ import annotations

import hashlib
import random
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import aiofiles
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from .scan import FILE_BYTES_MAX

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

_SEED: Final = 20


class Refused(Exception):
    """A request that is refused for good, with its status code."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Receiver:
    """Stores bodies of ``PUT /files/PATH`` below ``base/files``, whole or not at all.

    Attributes:
        received: paths of the stored files.
        failed: number of requests answered 503 on purpose.
        held: requests that wait for ``is_open``, after ``pause_at`` files have arrived.
    """

    def __init__(
        self,
        base: Path,
        *,
        fail_share: float = 0.0,
        pause_at: int | None = None,
        bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self.received: set[str] = set()
        self.failed = self.held = 0
        self.is_open = threading.Event()
        self._fail_share = fail_share
        self._pause_at = pause_at
        self._bytes_max = bytes_max
        self._random = random.Random(_SEED)
        self._root, self._parts = base.resolve() / "files", base / "parts"
        for folder in (self._root, self._parts):
            folder.mkdir(parents=True, exist_ok=True)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/files/{path:path}", self.put, methods=["PUT"])])

    async def put(self, request: Request) -> Response:
        """Store one file, or fail on purpose."""
        if self._random.random() < self._fail_share:
            self.failed += 1
            return PlainTextResponse("try again later", 503)
        if self._pause_at is not None and len(self.received) >= self._pause_at:
            self.held += 1
            await anyio.to_thread.run_sync(self.is_open.wait)
        path = str(request.path_params["path"])
        part = self._parts / uuid.uuid4().hex
        try:
            target = self._target(path)
            await self._receive(request, part)
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)
        except Refused as refused:
            return PlainTextResponse(str(refused), refused.status)
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            return PlainTextResponse(f"another kind of file is there: {error.filename}", 409)
        except ClientDisconnect:
            return Response(status_code=499)
        finally:
            part.unlink(missing_ok=True)
        self.received.add(path)
        return Response(status_code=201)

    def _target(self, path: str) -> Path:
        """Return the path of a file; refuse a path outside the tree, also through a link."""
        parts = path.split("/")
        target = self._root.joinpath(*parts)
        if (
            "\0" in path
            or any(part in {"", ".", ".."} for part in parts)
            or not target.parent.resolve().is_relative_to(self._root)
        ):
            raise Refused(400, f"unsafe path {path!r}")
        return target

    async def _receive(self, request: Request, part: Path) -> None:
        """Write the body to ``part``; refuse a body that is too large or has another hash."""
        digest = hashlib.sha256()
        size = 0
        async with aiofiles.open(part, "xb") as file:
            async for block in request.stream():
                size += len(block)
                if size > self._bytes_max:
                    raise Refused(413, f"larger than {self._bytes_max} bytes")
                digest.update(block)
                await file.write(block)
        if digest.hexdigest() != request.headers.get("x-content-sha256"):
            raise Refused(422, "the content is not what its hash promised")


@contextmanager
def serving(receiver: Receiver, listener: socket.socket) -> Iterator[None]:
    """Serve on a bound socket, in a thread, while the block runs."""
    config = uvicorn.Config(receiver.app(), log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield
    finally:
        receiver.is_open.set()
        server.should_exit = True
        thread.join()
