"""The server: stores notes by revision and photos by hash; repeated requests do no harm."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

_ID: Final = re.compile(r"[0-9a-f]{32}\Z")
_PHOTO_BYTES_MAX: Final = 32 * 1024 * 1024


def make_server(home: Path) -> Starlette:
    """Return an ASGI app that stores notes and photos below a directory."""
    for folder in ("notes", "photos"):
        (home / folder).mkdir(parents=True, exist_ok=True)

    # Without an await between check and write, so no other revision comes in between.
    def keep(path: Path, data: bytes) -> None:
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(data)
        temporary.replace(path)

    async def note(request: Request) -> Response:
        sent, note_id = await request.json(), request.path_params["id"]
        if not _ID.match(note_id):
            return Response(status_code=404)
        path = home / "notes" / f"{note_id}.json"
        known = json.loads(path.read_bytes())["revision"] if path.exists() else 0
        if sent["revision"] < known:
            return Response(status_code=409)
        keep(path, json.dumps(sent).encode())
        return Response(status_code=204)

    async def photo(request: Request) -> Response:
        data, digest = await request.body(), request.path_params["digest"]
        if len(data) > _PHOTO_BYTES_MAX or hashlib.sha256(data).hexdigest() != digest:
            return Response(status_code=422)
        keep(home / "photos" / digest, data)
        return Response(status_code=204)

    return Starlette(
        routes=[
            Route("/notes/{id:str}", note, methods=["PUT"]),
            Route("/photos/{digest:str}", photo, methods=["PUT"]),
        ]
    )
