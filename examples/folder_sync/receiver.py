"""The far end: an HTTP receiver that stores files, and fails a share of requests on purpose.

``python -m folder_sync.receiver --fd N --base DIR`` serves on a socket that its parent has bound,
and ends when its standard input does. ``PUT /files/PATH`` stores one file, ``GET /status`` counts.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import socket
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiofiles
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from .scan import FILE_BYTES_MAX

_SEED: Final = 20


class Refused(Exception):
    """A request that will never be taken, with its status code."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Inbox:
    """Files on disk, below ``base/files``; a file shows up whole or not at all."""

    def __init__(self, base: Path) -> None:
        self.files = base / "files"
        self._parts = base / "parts"
        self.files.mkdir(parents=True, exist_ok=True)
        self._parts.mkdir(exist_ok=True)
        self._root = self.files.resolve()

    def target(self, path: str) -> Path:
        """Return where a file belongs.

        Raises:
            Refused: the path leaves the tree, by its parts or through a link.
        """
        parts = path.split("/")
        if "\0" in path or any(part in {"", ".", ".."} for part in parts):
            raise Refused(400, f"unsafe path {path!r}")
        target = self._root.joinpath(*parts)
        if not target.parent.resolve().is_relative_to(self._root):
            raise Refused(400, f"unsafe path {path!r}")
        return target

    def part(self) -> Path:
        """Return a name of its own for a file that is on its way."""
        return self._parts / uuid.uuid4().hex

    def keep(self, part: Path, target: Path) -> None:
        """Move a whole file to its place, over an older one.

        Raises:
            Refused: a directory stands where the file should, or a file where its directory should.
        """
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            raise Refused(409, f"another kind of file is in the way: {error.filename}") from error


class Receiver:
    """The HTTP side.

    Attributes:
        received: paths that have arrived.
        failed: requests answered 503 on purpose.
    """

    def __init__(
        self,
        base: Path,
        *,
        fail_share: float = 0.0,
        pause_at: int | None = None,
        bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self.inbox = Inbox(base)
        self.received: set[str] = set()
        self.failed = 0
        self._held = 0
        self._fail_share = fail_share
        self._pause_at = pause_at
        self._bytes_max = bytes_max
        self._random = random.Random(_SEED)
        self._open = asyncio.Event()

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/files/{path:path}", self.put, methods=["PUT"]),
                Route("/status", self.status),
                Route("/resume", self.resume, methods=["POST"]),
            ]
        )

    async def put(self, request: Request) -> Response:
        """Store one file, unless this request is one of the unlucky ones."""
        if self._random.random() < self._fail_share:
            self.failed += 1
            return PlainTextResponse("try again later", 503)
        if self._pause_at is not None and len(self.received) >= self._pause_at:
            self._held += not self._open.is_set()
            await self._open.wait()
        path = str(request.path_params["path"])
        part = self.inbox.part()
        try:
            target = self.inbox.target(path)
            await self._receive(request, part)
            self.inbox.keep(part, target)
        except Refused as refused:
            return PlainTextResponse(str(refused), refused.status)
        except ClientDisconnect:
            return Response(status_code=499)
        finally:
            part.unlink(missing_ok=True)
        self.received.add(path)
        return Response(status_code=201)

    async def _receive(self, request: Request, part: Path) -> None:
        """Write the body to ``part``; refuse too much of it, and what is not what was promised."""
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

    async def status(self, request: Request) -> Response:
        """Tell counts, and whether requests are held back until ``/resume``."""
        del request
        return JSONResponse(
            {"received": len(self.received), "failed": self.failed, "held": self._held}
        )

    async def resume(self, request: Request) -> Response:
        """Let the requests go on that were held back half-way."""
        del request
        self._open.set()
        return Response(status_code=204)


def serve(listener: socket.socket, receiver: Receiver) -> None:
    """Serve until standard input ends, as it does when the parent is gone, however it went."""
    config = uvicorn.Config(
        receiver.app(), log_level="warning", access_log=False, lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)

    def watch() -> None:
        with suppress(OSError):
            while os.read(sys.stdin.fileno(), 1):
                pass
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    server.run(sockets=[listener])


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True, help="a bound TCP socket")
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--fail-share", type=float, default=0.0)
    parser.add_argument("--pause-at", type=int, help="hold requests after so many files")
    options = parser.parse_args()
    receiver = Receiver(options.base, fail_share=options.fail_share, pause_at=options.pause_at)
    serve(socket.socket(fileno=options.fd), receiver)


if __name__ == "__main__":
    main()
