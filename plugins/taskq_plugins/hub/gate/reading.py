"""What a hub has of a device, for the device to read: its logs, their segments, files beside them.

Only what is durable is told of, and what is told of may be read in pieces. A segment's strong ETag
is its SHA-256 once it is sealed.
"""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, Response

from taskq.engine import PatientDisk, segment_lsn
from taskq_plugins.hub.aside import IDENTITY, SEALS, high_lsn, noted
from taskq_plugins.hub.copy import NAME
from taskq_plugins.hub.wire import ID, JSON

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LOG: Final = re.compile(ID + r"\Z")
_PATH: Final = re.compile(
    rf"/v1/logs(?:/({ID})/(segments|identity|(?:segments/[0-9]{{20}}|spill/[0-9a-f]{{64}})))?\Z"
)


class Reading:
    """The reading half of the hub's URLs, for any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path / "devices"

    def answer(self, device: str, path: str, headers: Mapping[str, str]) -> Response:
        """Answer a GET of a device; what is not there is one 404."""
        match = _PATH.match(path)
        try:
            if match is not None:
                return _found(self._path / device, match[1], match[2] or "", headers)
        except FileNotFoundError:
            """It is not there, as what has no such name."""
        raise HTTPException(404, "not found")


def _found(place: Path, log_id: str | None, what: str, headers: Mapping[str, str]) -> Response:
    if log_id is None:
        logs = sorted(folder for folder in place.glob("*-*") if _LOG.match(folder.name))
        return JSONResponse({"logs": [_about(folder) for folder in logs]})
    log, (kind, _, name) = place / log_id, what.partition("/")
    if kind == "identity":
        return _file(log / IDENTITY, "", headers, JSON)
    if not name:
        return JSONResponse(_listing(log))
    file = log / "log" / f"{name}.log" if kind == "segments" else log / "spill" / name
    return _file(file, name if kind == "spill" else _sealed(log, name), headers)


def _about(log: Path) -> dict[str, Any]:
    sizes = [file.stat().st_mtime_ns for file in (log / "log").glob("*.log")]
    return {"log_id": log.name, "arrived_ns": max(sizes, default=0)}


def _listing(log: Path) -> dict[str, Any]:
    known = {line["segment"]: line for line in noted(PatientDisk(), str(log), SEALS)}
    segments = sorted(
        (lsn, file.stat().st_size)
        for file in (log / "log").iterdir()
        if (lsn := segment_lsn(file.name)) is not None
    )
    spill = log / "spill"
    names = sorted(file.name for file in spill.glob("?" * 64) if NAME.match(file.name))
    return {
        "segments": [[lsn, size, known.get(lsn, {}).get("sha256")] for lsn, size in segments],
        "spill": [[name, (spill / name).stat().st_size] for name in names],
        "high_lsn": high_lsn(str(log)),
    }


def _sealed(log: Path, name: str) -> str:
    lines = noted(PatientDisk(), str(log), SEALS)
    return next((line["sha256"] for line in lines if line["segment"] == int(name)), "")


def _file(
    file: Path,
    digest: str,
    headers: Mapping[str, str],
    media_type: str = "application/octet-stream",
) -> Response:
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):  # a link or a folder is not there
        raise FileNotFoundError
    etag = {"ETag": f'"{digest}"'} if digest else {}
    if etag and headers.get("if-none-match") == etag["ETag"]:
        return Response(None, 304, etag)
    return FileResponse(file, 200, etag, media_type, stat_result=status)
