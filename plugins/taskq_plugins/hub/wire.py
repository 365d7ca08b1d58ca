"""Protocol 1: requests and answers as HTTP carries them. No line here, so both ends use the same.

``PROTOCOL.md`` has all of it in words; ``WAYS`` is its table of requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from pydantic import TypeAdapter

from taskq.engine import Border, Replica, segment_lsn
from taskq.errors import LogError
from taskq_plugins.hub.messages import (
    CAUSE_CHARACTERS_MAX,
    Answer,
    Append,
    Ask,
    CopyEnd,
    Declare,
    Enrol,
    Enrolled,
    Given,
    HubJob,
    Missing,
    PlacesKnown,
    Question,
    Refused,
    Request,
    Resend,
    Seal,
    Stored,
    Sync,
    Trouble,
)

Carried: TypeAlias = tuple[str, str, dict[str, str], bytes]
M = TypeVar("M")
PROTOCOL: Final = 1
FRAMES: Final = "application/vnd.taskq.frames"
#: The same through zlib.
PACKED: Final = FRAMES + "+zlib"
JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"
PROBLEM: Final = "application/problem+json"
#: Limit of a body without frames.
JSON_BYTES_MAX: Final = 256 * 1024
#: Limit for a device without a token.
_CODE_BYTES_MAX: Final = 1_024
#: A part, or one frame that is larger; whether it comes packed or not.
PART_BYTES_MAX: Final = Replica.BODY_BYTES_MAX + 64 * 1024
ID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LOG: Final = "/v1/logs/{log_id}"
_NAMES: Final = {"log_id": ID, "segment": "[0-9]{20}", "name": "[0-9a-f]{64}"}
_DIGITS: Final = re.compile(r"[0-9]{1,19}\Z")
_STEM: Final = re.compile(r"(?:none|[0-9a-f]{112})\Z")
_TAG: Final = re.compile(r"[0-9a-f]{8}\Z")
#: Fields of a job but for its payload, the last one.
_OF_JOB: Final = HubJob._fields[:-1]
_DIGEST: Final = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):\Z")


class HubRoute(NamedTuple):
    """A kind of request: where it goes, what it holds at most, and what it is answered.

    Attributes:
        path: with the fields that it holds in braces.
        asks: what it may be.
        answer: what it is answered if all is well.
        has_frames: its body is bytes, and all else is in the path and in headers.
    """

    method: str
    path: str
    asks: tuple[type, ...]
    answer: type
    bytes_max: int = JSON_BYTES_MAX
    has_frames: bool = False


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"{(\w+)}", lambda field: f"(?P<{field[1]}>{_NAMES[field[1]]})", path))


WAYS: Final = (
    HubRoute("POST", "/v1/enrol", (Enrol,), Enrolled, _CODE_BYTES_MAX),
    HubRoute("POST", "/v1/sync", (Sync,), CopyEnd),
    HubRoute("POST", f"{_LOG}/ask", (Ask,), PlacesKnown),
    HubRoute("PATCH", f"{_LOG}/segments/{{segment}}", (Append, Seal), Stored, PART_BYTES_MAX, True),
    HubRoute("POST", f"{_LOG}/breaks", (Declare,), Stored),
    HubRoute("PATCH", f"{_LOG}/again/{{name}}", (Resend,), Missing, PART_BYTES_MAX, True),
    HubRoute("POST", "/v1/down", (Question,), Given),
)
_WAY_OF: Final = {kind: way for way in WAYS for kind in way.asks}
_STATUS: Final = {
    Trouble.MISMATCH: 409,
    Trouble.GAP: 409,
    Trouble.SUPERSEDED: 409,
    Trouble.DAMAGED: 422,
    Trouble.LARGE: 413,
    Trouble.CLONED: 409,
    Trouble.HELD: 403,
}
_WELL, _NOTHING = 200, 204


class HubError(LogError):
    """An answer of a hub that the device cannot continue from; the message names the remedy.

    Attributes:
        seconds: minimal wait before the next request.
    """

    seconds: float = 0.0


class HubStops(HubError):
    """It will answer so until a person has done something."""


class OtherProtocol(ValueError):
    """A request of a version that is not spoken here."""


def way_to(method: str, path: str) -> tuple[HubRoute, dict[str, Any]] | None:
    for way in WAYS:
        if way.method == method and (match := _pattern(way.path).fullmatch(path)):
            return way, match.groupdict()
    return None


def carried(asked: Request | Enrol) -> Carried:
    way = _WAY_OF[type(asked)]
    if isinstance(asked, Append | Seal | Resend):
        return _carried_part(way, asked)
    path = way.path.format(log_id=getattr(asked, "log_id", None))
    # The path has it already.
    body = as_json(asked, {"log_id"} if way.path != path else None)
    if isinstance(asked, Sync):
        body = b'{"protocol":%d,' % PROTOCOL + body[1:]
    return way.method, path, {"Content-Type": JSON}, body


def _carried_part(way: HubRoute, asked: Append | Seal | Resend) -> Carried:
    headers = {"Taskq-Session": str(asked.session), "Content-Type": FRAMES}
    body = b"" if isinstance(asked, Seal) else asked.data
    if isinstance(asked, Resend):
        headers |= {"Upload-Offset": str(asked.offset), "Upload-Complete": f"?{int(asked.is_last)}"}
        path = way.path.format(log_id=asked.log_id, name=asked.name)
        return way.method, path, headers, body
    behind = asked.end if isinstance(asked, Seal) else asked.behind
    headers |= {"Upload-Offset": str(behind.offset), "Taskq-Stem": behind.stem.hex() or "none"}
    if isinstance(asked, Seal):
        digest = base64.b64encode(asked.digest).decode()
        headers |= {"Upload-Complete": "?1", "Repr-Digest": f"sha-256=:{digest}:"}
    path = way.path.format(log_id=asked.log_id, segment=f"{behind.segment:020d}")
    return way.method, path, headers, body


def delivered(
    method: str, path: str, headers: Mapping[str, str], body: bytes
) -> Request | Enrol | None:
    matched = way_to(method, path)
    if matched is None:
        return None
    way, fields = matched
    if way.has_frames:
        return _part(fields, headers, body)
    values: dict[str, Any] = adapter(dict).validate_json(body)
    if way.asks == (Sync,) and values.get("protocol") != PROTOCOL:
        raise OtherProtocol
    request: Request | Enrol = read(way.asks[0], values | fields)
    return request


def _part(fields: dict[str, Any], headers: Mapping[str, str], body: bytes) -> Request | None:
    segment = segment_lsn(f"{fields['segment']}.log") if "segment" in fields else None
    if "segment" in fields and segment is None:
        return None
    fields |= {"session": int(_header(headers, "taskq-session", _DIGITS)), "data": body}
    offset = int(_header(headers, "upload-offset", _DIGITS))
    is_last = headers.get("upload-complete", "?0")
    if is_last not in ("?0", "?1"):
        raise ValueError("neither the last bytes nor others")
    if segment is None:
        return read(Resend, fields | {"offset": offset, "is_last": is_last == "?1"})
    stem = _header(headers, "taskq-stem", _STEM).removeprefix("none")
    behind = Border.at_offset(segment, offset, bytes.fromhex(stem)).as_list()
    if is_last == "?0":
        return read(Append, fields | {"behind": behind})
    digest = base64.b64decode(_header(headers, "repr-digest", _DIGEST)[9:-1])
    if body:
        raise ValueError("a seal has no body")
    return read(Seal, fields | {"end": behind, "digest": digest})


def _header(headers: Mapping[str, str], name: str, pattern: re.Pattern[str]) -> str:
    value = headers.get(name, "")
    if not pattern.match(value):
        raise ValueError(f"{name} is not as it should be")
    return value


# -- answers ---------------------------------------------------------------------------------------


def answered(answer: Answer | None) -> tuple[int, str, bytes]:
    if answer is None:
        return _NOTHING, JSON_LINES, b""
    if isinstance(answer, Given):
        return _WELL, JSON_LINES, encode_given(answer)
    if isinstance(answer, Refused):
        return _STATUS[answer.trouble], PROBLEM, as_json(answer)
    return _WELL, JSON, as_json(answer)


def understood(
    asked: Request, status: int, body: bytes, wait_seconds: float = 0.0
) -> Answer | None:
    title = ""
    if isinstance(asked, Question) and status in (_WELL, _NOTHING):
        return decode_given(body) if status == _WELL else None
    try:
        if status == _WELL:
            answer: Answer = adapter(_WAY_OF[type(asked)].answer).validate_json(body)
            return answer
        if status in _STATUS.values():
            refused: Refused = adapter(Refused).validate_json(body)
            if refused.trouble in _STOPS:
                raise HubStops(_STOPS[refused.trouble])
            return refused
        title = str(adapter(dict).validate_json(body).get("title", ""))[:CAUSE_CHARACTERS_MAX]
    except ValueError:
        """It is no answer of a hub: its status has to do."""
    error = refusal(status, title)
    error.seconds = wait_seconds
    raise error


def refusal(status: int, title: str = "") -> HubError:
    kind = HubStops if status in (401, 403, 410, 426) else HubError
    return kind(f"the hub answers {status}: {_ADVICE.get(status) or title or _SEE_HUB}")


# -- jobs on their way down, a line of JSON each ---------------------------------------------------


def encode_given(given: Given) -> bytes:
    lines: list[dict[str, Any]] = [
        job._asdict() | {"kind": "enqueue", "payload": base64.b64encode(job.payload).decode()}
        for job in given.jobs
    ]
    lines += ({"kind": "cancel", "id": job, "job": number} for job, number in given.cancels)
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    last = {"kind": "end", "outbox": given.tag, "end": given.end}
    last |= {"lines": len(lines), "sha256": _sha256(body)}
    return body + json.dumps(last).encode() + b"\n"


def decode_given(data: bytes) -> Given:
    start = data.rfind(b"\n", 0, -1) + 1
    try:
        last, *lines = (json.loads(line) for line in (data[start:], *data[:start].splitlines()))
        end = {"kind": "end", "lines": len(lines), "sha256": _sha256(data[:start])}
        jobs, cancels = list[HubJob](), list[tuple[str, int]]()
        for line in lines:
            if line["kind"] == "enqueue":
                payload = base64.b64decode(line["payload"], validate=True)
                jobs.append(HubJob._make([*(line[name] for name in _OF_JOB), payload]))
            elif line["kind"] == "cancel":
                cancels.append((str(line["id"]), int(line["job"])))
        if last == last | end and _TAG.match(last["outbox"]):
            return Given(last["outbox"], int(last["end"]), jobs, cancels)
    except (ValueError, KeyError, TypeError):
        """Answer that it is none."""
    raise HubError("what the hub has for this device did not come whole")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- messages as JSON, by the names of their fields -----------------------------------------------


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def as_json(message: Any, without: set[str] | None = None) -> bytes:
    kind: Any = type(message)
    text: bytes = adapter(kind).dump_json(message, by_alias=True, exclude=without)
    return text


def read(kind: type[M], values: dict[str, Any]) -> M:
    of: Any = kind
    message: M = adapter(of).validate_python(values)
    return message


_STOPS: Final = {
    Trouble.CLONED: "another machine sends under this device's name, so the token was copied: let "
    "this one go on with 'taskq hub move' there, or give it a name of its own with 'taskq hub "
    "enrol'",
    Trouble.HELD: "the hub holds this device, since its log was set back more than three times in "
    "a day, as where two machines send one log: see 'taskq hub breaks' there, then let it go on "
    "with 'taskq hub move'",
}
_SEE_HUB: Final = "see the hub's own log, and try again later"
_ADVICE: Final = {
    401: "it does not know the token: ask for another with 'taskq hub enrol' there",
    404: "there is no hub at this address, or one of another version",
    426: "its taskq and this one speak no protocol in common: bring the older one up to date",
    413: "one commit of the log is larger than a proxy before it takes: let that take 40 MiB, in "
    "nginx with client_max_body_size 40m",
    503: "it could not write just now: try again later",
}
