"""The messages of the protocol as types, and their form in HTTP.

``PROTOCOL.md`` explains each field, and a test compares it with the types here. Both sides validate
every message. ``GET /openapi.json`` is generated from the same types.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from itertools import pairwise
from typing import Annotated, Any, Final, TypeAlias
from uuid import UUID

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from taskq.engine import Border
from taskq.errors import LogError
from taskq.text import flat

#: Versions of the protocol, and the header that lists them in requests and answers.
VERSIONS: Final = (1,)
SPOKEN: Final = "Taskq-Versions"
#: Limit of a body with bytes of a log, compressed or not: proxies accept this by default.
PART_BYTES_MAX: Final = 1024 * 1024
#: Limits of other bodies; the last is for requests without a token.
JSON_BYTES_MAX: Final = 128 * 1024
QUESTION_BYTES_MAX: Final = 256 * 1024
CODE_BYTES_MAX: Final = 1_024
FRAMES: Final = "application/vnd.taskq.frames"
#: Frames compressed with zlib.
PACKED: Final = FRAMES + "+zlib"
JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
NOWHERE: Final = Border()

#: Positions in one ``Ask`` at most.
ASKED_MAX: Final = 64
#: Segments that one answer may request again.
AGAIN_MAX: Final = 1_000
#: Features of a log at most.
FEATURES_MAX: Final = 32
#: Parents of a log at most.
PARENTS_MAX: Final = 1_000
#: Limit of texts for people; longer ones are cut.
CAUSE_CHARACTERS_MAX: Final = 200
#: Header of a job on a device, with the job's id in the outbox.
JOB: Final = "hub-job"
#: Longest wait of a question for its answer.
WAIT_SECONDS_MAX: Final = 50.0
#: Jobs of one answer at most, and outboxes in one question.
JOBS_MAX: Final = 256
OUTBOXES_MAX: Final = 256
#: Payload bytes of an answer, unless a single job is larger.
BYTES_MAX: Final = 1024 * 1024


# -- the types of fields ---------------------------------------------------------------------------


def _place(_source: Any, handler: Any) -> CoreSchema:
    values: CoreSchema = handler.generate_schema(tuple[Lsn, Size, Size, _Stem])
    listed = core_schema.plain_serializer_function_ser_schema(Border.as_list)
    return core_schema.no_info_after_validator_function(
        Border.from_list, values, serialization=listed
    )


def _words(characters: int) -> AfterValidator:
    return AfterValidator(lambda text: flat(text[:characters])[:characters])


def _rising(parents: tuple[tuple[UUID, int], ...]) -> tuple[tuple[UUID, int], ...]:
    ends = [1, *(next_lsn for _, next_lsn in parents)]
    if any(end >= following for end, following in pairwise(ends)):
        raise ValueError("parents follow one another")
    return parents


#: A device writes later lsns, so this limit leaves room below 2^63.
Lsn = Annotated[int, Field(strict=True, ge=0, lt=2**62)]
#: Size of a file, or an offset in it.
Size = Annotated[int, Field(strict=True, ge=0, lt=2**40)]
Number = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
#: Nanoseconds since 1970.
Moment = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Truth = Annotated[bool, Field(strict=True)]
_Stem = Annotated[str, Field(strict=True, pattern=r"^([0-9a-f]{112})?$")]
Place = Annotated[Border, GetPydanticSchema(_place)]
Machine = Annotated[str, Field(strict=True, pattern=r"^([0-9a-f]{64})?$")]
Feature = Annotated[str, Field(strict=True, pattern=r"^[a-z0-9-]{1,40}$")]
#: First part of a job's id, derived from the log's id.
Tag = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{8}$")]
JobId = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{8}-[0-9]{1,19}$")]
Seconds = Annotated[float, Field(strict=True, ge=0, le=WAIT_SECONDS_MAX, allow_inf_nan=False)]
Code = Annotated[str, Field(strict=True, max_length=100)]
Features = Annotated[frozenset[Feature], Field(max_length=FEATURES_MAX), PlainSerializer(sorted)]
Cause = Annotated[str, Field(strict=True), _words(CAUSE_CHARACTERS_MAX)]
Name = Annotated[str, Field(strict=True, max_length=255)]
#: Bytes, in base64.
Payload = Annotated[
    bytes,
    BeforeValidator(lambda text: base64.b64decode(text, validate=True)),
    PlainSerializer(lambda data: base64.b64encode(data).decode(), return_type=str),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
Parents = Annotated[
    tuple[tuple[UUID, Lsn], ...], Field(max_length=PARENTS_MAX), AfterValidator(_rising)
]


# -- requests of a device --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Enroll:
    """Ask for a token, with a code that is valid once."""

    code: Code
    machine: Machine


@dataclass(frozen=True, slots=True)
class Sync:
    """Begin a session, which ends earlier sessions of the log."""

    log_id: UUID
    created_ns: Moment
    incompat: Features
    end: Place
    parents: Parents = ()
    grace_seconds: Number = 0
    machine: Machine = ""
    clock_ns: Moment = 0


@dataclass(frozen=True, slots=True)
class _OfSession:
    """Ask something within a session of a log."""

    session: Number
    log_id: UUID


@dataclass(frozen=True, slots=True)
class Ask(_OfSession):
    """Ask which of these positions are in the copy, too."""

    places: Annotated[tuple[Place, ...], Field(max_length=ASKED_MAX)]


@dataclass(frozen=True, slots=True)
class Append(_OfSession):
    """Append whole frames after a position; a new segment starts with its header, at offset 0.

    A frame larger than a request is sent in pieces; ``held`` is the number of bytes sent before.
    A sealed segment that the copy lacks is sent in pieces, too, from its offset 0. ``before`` is
    the header of the last frame of the segment before a new one.
    """

    after: Place
    data: bytes
    held: Size = 0
    before: _Stem = ""


@dataclass(frozen=True, slots=True)
class Declare(_OfSession):
    """Declare a gap: the device has lost the next records, so the copy continues after them."""

    left: Place
    at: Place
    end_lsn: Lsn
    cause: Cause


@dataclass(frozen=True, slots=True)
class Leave(_OfSession):
    """Leave a log that was set back: it continues from a position as another log."""

    at: Place


@dataclass(frozen=True, slots=True)
class Question(_OfSession):
    """Ask for jobs after the last record taken from each outbox, by the tag of its log."""

    after: Annotated[dict[Tag, Lsn], Field(max_length=OUTBOXES_MAX)]
    wait_seconds: Seconds = 0.0
    bytes_max: Size = BYTES_MAX


Request = Sync | Ask | Append | Declare | Leave | Question


# -- answers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A token, shown only once."""

    token: Annotated[str, Field(strict=True)]


@dataclass(frozen=True, slots=True)
class CopyEnd:
    """End of the hub's copy."""

    session: Number
    at: Place
    has_end: Truth
    begins: Lsn
    safe: Lsn = 0
    lacks: Annotated[tuple[tuple[Lsn, Size], ...], Field(max_length=AGAIN_MAX)] = ()
    kin: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class PlacesKnown:
    """For each position whether the copy has it."""

    has: tuple[Truth, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """All bytes before ``at`` are durable; the hub holds ``held`` bytes of a frame in pieces."""

    at: Place
    held: Size = 0


@dataclass(frozen=True, slots=True)
class HubJob:
    """A job on its way to a device.

    ``number`` is the job's lsn in the outbox, ``id`` its id everywhere. ``due_ns`` is a span from
    now, or a moment with ``due_is_wall``. ``expires_ns`` is a span from now.
    """

    number: Lsn
    id: JobId
    queue: Name
    task: Name
    priority: Number
    attempts: Number
    flags: Number
    headers: dict[str, str]
    due_ns: Moment
    due_is_wall: Truth
    expires_ns: Moment
    payload: Payload


@dataclass(frozen=True, slots=True)
class Given:
    """Jobs of an outbox for a device, after record ``after`` of their log and up to ``end``.

    A device takes them only if ``after`` is its own position, since an answer may be a late one.
    ``cancels`` are (id, queue) of jobs that the device took before and must cancel.
    """

    tag: Tag
    after: Lsn
    end: Lsn
    jobs: tuple[HubJob, ...]
    cancels: tuple[tuple[JobId, Name], ...]

    @property
    def is_empty(self) -> bool:
        return not (self.jobs or self.cancels)


class Trouble(enum.Enum):
    """Reasons to refuse a request."""

    #: the copy ends elsewhere: compare again, and continue from its end
    MISMATCH = "mismatching-upload-offset"
    #: a frame is damaged
    DAMAGED = "damaged-frame"
    #: the hub, or a proxy before it, accepts only smaller bodies
    LARGE = "too-large"
    #: another machine used the token: a person must decide
    CLONED = "cloned"
    #: a log grows after its device left it, so two machines have the token: a person must decide
    HELD = "held"
    #: a newer session of the log has begun, or the hub was restarted
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal: nothing of the request is stored, or only the bytes before ``at``."""

    trouble: Annotated[Trouble, Field(alias="type")]
    at: Place


Answer = CopyEnd | PlacesKnown | Stored | Given | Refused


class Refusal(Exception):
    """A refusal as an exception."""

    def __init__(self, trouble: Trouble, at: Border) -> None:
        super().__init__(trouble.value)
        self.answer = Refused(trouble, at)


class HubError(LogError):
    """An answer of a hub that the device cannot continue from; the message names the remedy.

    Attributes:
        seconds: minimal wait before the next request.
    """

    seconds: float = 0.0


class HubStops(HubError):
    """A refusal that lasts until a person acts."""


# -- messages in HTTP ------------------------------------------------------------------------------

Carried: TypeAlias = tuple[str, str, dict[str, str], bytes]
#: Paths of the requests.
PATHS: Final[dict[type, str]] = {
    Enroll: "/enroll",
    Sync: "/sync",
    Ask: "/ask",
    Append: "/append",
    Declare: "/gaps",
    Leave: "/leave",
    Question: "/down",
}
#: Header of an ``Append``: its fields as JSON. The data is the body.
APPEND: Final = "Taskq-Append"
ANSWERS: Final[dict[type, Any]] = {
    Sync: CopyEnd,
    Ask: PlacesKnown,
    Append: Stored,
    Declare: Stored,
    Leave: Stored,
    Question: Given,
}
#: Status of each refusal.
STATUS: Final = {
    Trouble.MISMATCH: 409,
    Trouble.SUPERSEDED: 409,
    Trouble.DAMAGED: 422,
    Trouble.LARGE: 413,
    Trouble.CLONED: 409,
    Trouble.HELD: 403,
}
_WELL, _NOTHING = 200, 204


def carried(asked: Request | Enroll) -> Carried:
    """Return method, path, headers and body of a request."""
    if not isinstance(asked, Append):
        return "POST", PATHS[type(asked)], {"Content-Type": JSON}, as_json(asked)
    fields: bytes = adapter(Append).dump_json(asked, exclude={"data"})
    headers = {APPEND: fields.decode(), "Content-Type": FRAMES}
    return "POST", PATHS[Append], headers, asked.data


def understood(
    asked: Request, status: int, body: bytes, wait_seconds: float = 0.0
) -> Answer | None:
    """Return the answer in a status and body.

    Raises:
        HubError: the device cannot continue after this answer.
    """
    title = ""
    if isinstance(asked, Question) and status == _NOTHING:
        return None
    try:
        if status == _WELL:
            answer: Answer = adapter(ANSWERS[type(asked)]).validate_json(body)
            return answer
        if status in STATUS.values():
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
    """Return an error that explains a status to a person."""
    kind = HubStops if status in (401, 403, 410, 426) else HubError
    by = _SEE_HUB if status >= HTTPStatus.BAD_REQUEST and status not in _ON_THE_WAY else _PORTAL
    return kind(f"the hub answers {status}: {_ADVICE.get(status) or title or by}")


def agreed(spoken: Iterable[str]) -> int:
    """Return the highest version that both sides have, or 0."""
    return max((version for version in VERSIONS if str(version) in spoken), default=0)


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def as_json(message: Any) -> bytes:
    kind: Any = type(message)
    text: bytes = adapter(kind).dump_json(message, by_alias=True)
    return text


_STOPS: Final = {
    Trouble.CLONED: "another machine sends under this device's name, so its token was copied. On "
    "the hub: 'taskq hub enroll HUB OTHER' gives this machine a name of its own; or, if the other "
    "machine is gone, 'taskq hub enroll HUB NAME --replace' lets this one go on in its place",
    Trouble.HELD: "the hub holds this device: see why with 'taskq hub devices HUB NAME' there, and "
    "let it go on with 'taskq hub enroll HUB NAME --replace'",
}
_ON_THE_WAY: Final = {
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED, HTTPStatus.NETWORK_AUTHENTICATION_REQUIRED,
}  # fmt: skip
_PORTAL: Final = (
    "that is no answer of a hub, but of a network's login page or a proxy on the way: open the "
    "address in a browser"
)
_SEE_HUB: Final = "see the hub's own log, and try again later"
_ADVICE: Final = {
    401: "it does not know the token: ask for another with 'taskq hub enroll HUB NAME --replace' "
    "there",
    404: "there is no hub at this address, or one of another version",
    413: "a proxy before the hub takes less than 64 KiB at a time: let it take 1 MiB, in nginx "
    "with client_max_body_size 1m",
    503: "it could not write just now: try again later",
}
