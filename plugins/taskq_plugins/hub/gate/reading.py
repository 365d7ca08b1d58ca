"""What a hub has of a device, for the device to read: its logs and their segments.

Only what is durable is told of, and what is told of may be read in pieces. A segment's strong ETag
is its SHA-256 once it is sealed.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, Response

from taskq.engine import PatientDisk
from taskq_plugins.hub.kept import IDENTITY, LOG, Kept, kept
from taskq_plugins.hub.wire import ID, JSON

_PATH: Final = re.compile(rf"/v1/logs(?:/({ID})/(segments|identity|segments/[0-9]{{20}}))?\Z")
_BYTES: Final = "application/octet-stream"


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
            return _found(Kept(PatientDisk(), hub, device, UUID(match[1])), match[2], headers)
    except FileNotFoundError:
        """Answer that it is not there, as for what has no such name."""
    raise HTTPException(404, "not found")


def _found(copy: Kept, what: str, headers: Mapping[str, str]) -> Response:
    kind, _, name = what.partition("/")
    if kind == "identity":
        return _file(Path(copy.path, IDENTITY), "", headers, JSON)
    if not name:
        return JSONResponse(_listing(copy))
    digest = copy.seals.get(int(name), {}).get("sha256", "")
    return _file(Path(copy.path, LOG, f"{name}.log"), digest, headers)


def _listing(copy: Kept) -> dict[str, Any]:
    if not copy.is_there:
        raise FileNotFoundError
    known = copy.seals
    with copy.files() as files:
        segments = [[lsn, files.size(lsn), known.get(lsn, {}).get("sha256")] for lsn in files.lsns]
    return {"segments": segments, "high_lsn": copy.high_lsn}


def _file(
    file: Path, digest: str, headers: Mapping[str, str], media_type: str = _BYTES
) -> Response:
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):  # a link or a folder is not there
        raise FileNotFoundError
    etag = {"ETag": f'"{digest}"'} if digest else {}
    if etag and headers.get("if-none-match") == etag["ETag"]:
        return Response(None, 304, etag)
    return FileResponse(file, 200, etag, media_type, stat_result=status)
