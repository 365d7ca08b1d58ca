"""Protocol 1: requests and answers as HTTP carries them. No line here, so both ends use the same.

================================================ ================================================
request                                          answers
================================================ ================================================
``POST /v1/sync``                                200, ``Synced``
``POST /v1/logs/{log id}/ask``                   200, ``Known``
``PATCH /v1/logs/{log id}/segments/{lsn}``       200, ``Stored``; with ``Upload-Complete: ?1`` and
                                                 ``Repr-Digest``, without a body: ``Seal``
``POST /v1/logs/{log id}/breaks``                200, ``Stored``
``POST /v1/logs/{log id}/spill``                 200, ``Missing``
``PATCH /v1/logs/{log id}/spill/{sha-256}``      200, ``Missing``; with ``Upload-Complete: ?1`` the
                                                 last bytes of the file
================================================ ================================================

What does not fit where the copy ends is 409, a frame that is not as it was written 422, both as
``application/problem+json`` with ``at``, the place to go on from. The names of headers are those of
resumable uploads (draft-ietf-httpbis-resumable-upload); nothing else of that is promised. What
anybody asks for without a token is 401, and all else that is not there is one 404.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import UUID

from taskq.engine import Border, segment_lsn
from taskq.errors import LogError
from taskq_plugins.hub.messages import (
    ASKED_MAX,
    SPILL_MAX,
    Append,
    Ask,
    Declare,
    Kind,
    Known,
    Missing,
    Refused,
    Seal,
    SpillAsk,
    SpillPart,
    Stored,
    Sync,
    Synced,
    Trouble,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taskq_plugins.hub.messages import Answer, Request

M = TypeVar("M")
PROTOCOL: Final = 1
FRAMES: Final = "application/vnd.taskq.frames"
#: The same through zlib.
PACKED: Final = FRAMES + "+zlib"
JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
#: Of a body that is no frames.
JSON_BYTES_MAX: Final = 256 * 1024
_DIGEST: Final = re.compile(r"sha-256=:([A-Za-z0-9+/=]{44}):\Z")
_MACHINE: Final = re.compile(r"[0-9a-f]{64}\Z")
_LOG: Final = re.compile(
    r"/v1/logs/([0-9a-f-]{36})/(ask|breaks|spill|segments/([0-9]{20})|spill/([0-9a-f]{64}))\Z"
)
_STATUS: Final = {
    Trouble.MISMATCH: 409,
    Trouble.GAP: 409,
    Trouble.SUPERSEDED: 409,
    Trouble.DAMAGED: 422,
    Trouble.FULL: 507,
    Trouble.QUOTA: 507,
    Trouble.CLONED: 409,
}
_WELL: Final = 200
_CAUSE_MAX: Final = 200
#: A device goes on above it; beyond, lsns would come to an end.
_LSN_MAX: Final = 2**62


class HubError(LogError):
    """A hub answered what the device cannot go on from; the message says what to do.

    Attributes:
        seconds: how long to wait at least before it is asked again.
    """

    seconds: float = 0.0


class HubStops(HubError):
    """It will answer so until a person has done something."""


class OtherProtocol(ValueError):
    """A request of a version that is not spoken here."""


class Carried(NamedTuple):
    """A request on its way, but for the token."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def carried(asked: Request) -> Carried:
    """Make a request fit for the line."""
    if isinstance(asked, Sync):
        return _post("/v1/sync", {"protocol": PROTOCOL, **asked._asdict()})
    log = f"/v1/logs/{asked.log_id}"
    if isinstance(asked, Ask | Declare | SpillAsk):
        return _post(f"{log}/{_POSTED[type(asked)]}", asked._asdict())
    if isinstance(asked, SpillPart):
        headers = {
            "Taskq-Session": str(asked.session),
            "Upload-Offset": str(asked.offset),
            "Upload-Complete": f"?{int(asked.is_last)}",
            "Content-Type": FRAMES,
        }
        return Carried("PATCH", f"{log}/spill/{asked.name}", headers, asked.data)
    behind = asked.behind if isinstance(asked, Append) else asked.end
    headers = {
        "Taskq-Session": str(asked.session),
        "Upload-Offset": str(behind.offset),
        "Taskq-Stem": behind.stem.hex() or "none",
        "Content-Type": FRAMES,
    }
    if isinstance(asked, Seal):
        digest = base64.b64encode(asked.digest).decode()
        headers |= {"Upload-Complete": "?1", "Repr-Digest": f"sha-256=:{digest}:"}
    body = asked.data if isinstance(asked, Append) else b""
    return Carried("PATCH", f"{log}/segments/{behind.segment:020d}", headers, body)


def _post(path: str, values: dict[str, Any]) -> Carried:
    return Carried("POST", path, {"Content-Type": JSON}, as_json(values))


def delivered(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Request | None:
    """Read a request that came; None if nothing is there.

    Raises:
        OtherProtocol: it is of another version.
        ValueError: it is not as the protocol has it.
    """
    if (method, path) == ("POST", "/v1/sync"):
        values = _object(body)
        if values["protocol"] != PROTOCOL:
            raise OtherProtocol
        return _read(Sync, values)
    match = _LOG.match(path)
    if match is None or method != ("PATCH" if match[3] or match[4] else "POST"):
        return None
    log_id = UUID(match[1])
    if match[3]:
        return _frames(log_id, f"{match[3]}.log", headers, body)
    if match[4]:
        session, offset = int(headers["taskq-session"]), int(headers["upload-offset"])
        is_last = headers["upload-complete"] == "?1"
        return SpillPart(session, log_id, match[4], offset, body, is_last)
    kind = next(kind for kind, what in _POSTED.items() if what == match[2])
    return _read(kind, _object(body) | {"log_id": log_id})


def _object(body: bytes) -> dict[str, Any]:
    try:
        values = json.loads(body)
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(values, dict):
        raise TypeError("no object")
    return values


def _frames(log_id: UUID, name: str, headers: Mapping[str, str], body: bytes) -> Request | None:
    segment = segment_lsn(name)
    if segment is None:
        return None
    session, offset = int(headers["taskq-session"]), int(headers["upload-offset"])
    text = headers["taskq-stem"]
    stem = b"" if text == "none" else bytes.fromhex(text)
    header = Border(segment, offset, 0, stem).header
    frame = 0 if header is None else offset - header.size
    behind = Border.from_list([segment, offset, frame, stem.hex()])
    if headers.get("upload-complete") != "?1":
        return Append(session, log_id, behind, body)
    digest = _DIGEST.match(headers["repr-digest"])
    if digest is None or body:
        raise ValueError("a seal has a digest, and no body")
    return Seal(session, log_id, behind, base64.b64decode(digest[1], validate=True))


# -- answers ---------------------------------------------------------------------------------------


def answered(answer: Answer) -> tuple[int, str, bytes]:
    """Return (status, content type, body) of an answer."""
    if isinstance(answer, Refused):
        values = {"type": answer.trouble.value, "at": answer.at}
        return _STATUS[answer.trouble], PROBLEM, as_json(values)
    return _WELL, JSON, as_json(answer._asdict())


def understood(asked: Request, status: int, body: bytes) -> Answer:
    """Read what a request was answered.

    Raises:
        HubError: it is none that one can go on from.
    """
    title = ""
    try:
        values = _object(body)
        if status in _STATUS.values():
            trouble = Trouble(values["type"])
            if trouble is Trouble.CLONED:
                raise HubStops(_CLONED)
            if trouble not in (Trouble.FULL, Trouble.QUOTA):
                return Refused(trouble, Border.from_list(values["at"]))
        if status == _WELL:
            return _read(_ANSWERS.get(type(asked), Stored), values)
        title = str(values.get("title", ""))[:_CAUSE_MAX]
    except (ValueError, KeyError, TypeError):
        """It is no answer of a hub: its status has to do."""
    raise refusal(status, title)


def refusal(status: int, title: str = "") -> HubError:
    """Return what an answer means from which nobody can go on."""
    kind = HubStops if status in (401, 403, 410, 426) else HubError
    return kind(f"the hub answers {status}: {_ADVICE.get(status) or title or _SEE_HUB}")


# -- messages as JSON, by the names of their fields -----------------------------------------------


def as_json(values: dict[str, Any]) -> bytes:
    """Return values of a message as JSON: bytes in hex, ids as text."""
    return json.dumps(values, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return sorted(value) if isinstance(value, frozenset) else str(value)


def _read(kind: type[M], values: dict[str, Any]) -> M:
    return kind(**{name: _FIELDS[name](values[name]) for name in kind.__annotations__})


def _machine(value: Any) -> str:
    if value and not _MACHINE.match(value):
        raise ValueError("no hash of a machine")
    return str(value)


def _lsn(value: Any) -> int:
    if not 0 <= int(value) < _LSN_MAX:
        raise ValueError("no lsn")
    return int(value)


_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("session", "created_ns", "clock_ns", "end_lsn", "begins", "safe"), int),
    **dict.fromkeys(("at", "left", "end"), Border.from_list),
    **dict.fromkeys(("is_sealed", "has_end"), lambda value: value is True),
    "log_id": lambda value: UUID(str(value)),
    "incompat": lambda value: frozenset(map(str, value)),
    "grace_seconds": lambda value: abs(int(value)),
    "machine": _machine,
    "places": lambda value: tuple(map(Border.from_list, value[:ASKED_MAX])),
    "kind": Kind,
    "cause": lambda value: str(value)[:_CAUSE_MAX],
    "names": lambda value: tuple(map(str, value[:SPILL_MAX])),
    "high_lsn": _lsn,
    "has": lambda value: tuple(item is True for item in value),
    "files": lambda value: tuple((str(name), int(size)) for name, size in value),
}
_POSTED: Final[dict[type[Ask | Declare | SpillAsk], str]] = {
    Ask: "ask",
    Declare: "breaks",
    SpillAsk: "spill",
}
_ANSWERS: Final[dict[type, type[Synced | Known | Missing | Stored]]] = {
    Sync: Synced,
    Ask: Known,
    SpillAsk: Missing,
    SpillPart: Missing,
}
_CLONED: Final = (
    "another machine sends under this device's name, so the token was copied: let this one go on "
    "with 'taskq hub move' there, or give it a name of its own with 'taskq hub enrol'"
)
_SEE_HUB: Final = "see the hub's own log, and try again later"
_ADVICE: Final = {
    401: "it does not know the token: ask for another with 'taskq hub enrol' there",
    404: "there is no hub at this address, or one of another version",
    426: "its taskq and this one speak no protocol in common: bring the older one up to date",
    413: "the request is too large for it, or for a proxy before it",
    503: "it could not write just now: try again later",
    507: "its disk is full: free some space there, then try again",
}
#: (status, content type, body) of what is not there, whatever was asked for.
NOT_THERE: Final = (404, PROBLEM, b'{"type": "about:blank", "title": "not found"}')
