"""The messages of the protocol, as types, and how HTTP carries them.

``PROTOCOL.md`` explains each field, and a test compares it with the types here. Both sides validate
every message; ``GET /openapi.json`` is made from the same types.
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

#: Versions of the protocol, and the header that lists them, both ways.
VERSIONS: Final = (1,)
SPOKEN: Final = "Taskq-Versions"
#: Limit of a body with bytes of a log, packed or not: what proxies take by default.
PART_BYTES_MAX: Final = 1024 * 1024
#: Limits of other bodies; the last is for a device without a token.
JSON_BYTES_MAX: Final = 128 * 1024
QUESTION_BYTES_MAX: Final = 256 * 1024
CODE_BYTES_MAX: Final = 1_024
FRAMES: Final = "application/vnd.taskq.frames"
#: The same through zlib.
PACKED: Final = FRAMES + "+zlib"
JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
NOWHERE: Final = Border()

#: Most positions that one ``Ask`` names.
ASKED_MAX: Final = 64
#: Most segments that one answer asks for again.
AGAIN_MAX: Final = 1_000
#: Features that a log may have.
FEATURES_MAX: Final = 32
#: Logs that a log goes on from.
PARENTS_MAX: Final = 1_000
#: Limit of texts for people; longer ones are cut.
CAUSE_CHARACTERS_MAX: Final = 200
#: Header of a job on a device: its id in the outbox.
JOB: Final = "hub-job"
#: Longest a question may wait for its answer.
WAIT_SECONDS_MAX: Final = 50.0
#: Most jobs of one answer, and most outboxes in one question.
JOBS_MAX: Final = 256
OUTBOXES_MAX: Final = 256
#: Payload bytes of an answer, unless one job is larger.
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


#: A device goes on above it; beyond, lsns would come to an end.
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
#: The first part of the id of a job.
Tag = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{8}$")]
JobId = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{8}-[0-9]{1,19}$")]
Seconds = Annotated[float, Field(strict=True, ge=0, le=WAIT_SECONDS_MAX, allow_inf_nan=False)]
Code = Annotated[str, Field(strict=True, max_length=100)]
Features = Annotated[frozenset[Feature], Field(max_length=FEATURES_MAX), PlainSerializer(sorted)]
Cause = Annotated[str, Field(strict=True), _words(CAUSE_CHARACTERS_MAX)]
Name = Annotated[str, Field(strict=True, max_length=255)]
#: In base64.
Payload = Annotated[
    bytes,
    BeforeValidator(lambda text: base64.b64decode(text, validate=True)),
    PlainSerializer(lambda data: base64.b64encode(data).decode(), return_type=str),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
Parents = Annotated[
    tuple[tuple[UUID, Lsn], ...], Field(max_length=PARENTS_MAX), AfterValidator(_rising)
]


# -- what a device asks ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Enroll:
    """Ask for a token, by a code that holds once."""

    code: Code
    machine: Machine


@dataclass(frozen=True, slots=True)
class Sync:
    """Begin a session: the newest one of a device wins."""

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
    """Ask which of these the copy has, too."""

    places: Annotated[tuple[Place, ...], Field(max_length=ASKED_MAX)]


@dataclass(frozen=True, slots=True)
class Append(_OfSession):
    """Whole frames after a position; a new segment comes with its header, at offset 0.

    A frame that is larger than a request comes in pieces, of which ``held`` bytes came before; so
    does a sealed segment that the copy lacks, from its offset 0. ``before`` is the header of
    the last frame of the segment before a new one.
    """

    behind: Place
    data: bytes
    held: Size = 0
    before: _Stem = ""


@dataclass(frozen=True, slots=True)
class Declare(_OfSession):
    """The device has not got what comes next any more: the copy is to go on at another place."""

    left: Place
    at: Place
    end_lsn: Lsn
    cause: Cause


@dataclass(frozen=True, slots=True)
class Leave(_OfSession):
    """The log was set back, so it goes on as another from there, and as this one nowhere."""

    at: Place


@dataclass(frozen=True, slots=True)
class Question(_OfSession):
    """Ask for jobs after the last record that was taken of each outbox, by the tag of its log."""

    after: Annotated[dict[Tag, Lsn], Field(max_length=OUTBOXES_MAX)]
    wait_seconds: Seconds = 0.0
    bytes_max: Size = BYTES_MAX


Request = Sync | Ask | Append | Declare | Leave | Question


# -- what it is answered ---------------------------------------------------------------------------


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
    """For each place whether the copy has it."""

    has: tuple[Truth, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """All bytes before ``at`` are durable; the hub holds ``held`` bytes of a frame in pieces."""

    at: Place
    held: Size = 0


@dataclass(frozen=True, slots=True)
class HubJob:
    """A job on its way to a device.

    Its ``number`` is the job's in the outbox, and ``id`` its name everywhere. ``due_ns`` is a span
    from now, or a moment with ``due_is_wall``; ``expires_ns`` is a span from now.
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

    A device takes them only if that is how far it has come: an answer may be of an earlier day.

    ``cancels`` are ids of jobs that it took before and is to cancel, each with its queue.
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
    """Why a request was refused."""

    #: the copy ends elsewhere: compare, and go on from there
    MISMATCH = "mismatching-upload-offset"
    #: a frame is not as it was written
    DAMAGED = "damaged-frame"
    #: the hub, or a proxy before it, takes less at a time
    LARGE = "too-large"
    #: the token came from another machine: a person decides
    CLONED = "cloned"
    #: a log that was left goes on, too, so two machines have this token: a person looks
    HELD = "held"
    #: a newer session of the device has begun, or the hub began anew
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing of the request counts, or only what ``at`` says."""

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
    """It will answer so until a person has done something."""


# -- as HTTP carries them --------------------------------------------------------------------------

Carried: TypeAlias = tuple[str, str, dict[str, str], bytes]
#: Paths of the requests with a JSON body.
PATHS: Final[dict[type, str]] = {
    Enroll: "/enroll",
    Sync: "/sync",
    Ask: "/ask",
    Declare: "/gaps",
    Leave: "/leave",
    Question: "/down",
}
APPEND: Final = "/logs/{log_id}/segments/{segment}"
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
    headers = {"Taskq-Session": str(asked.session), "Content-Type": FRAMES}
    behind, stem = asked.behind, asked.behind.stem.hex() or asked.before
    headers |= {"Upload-Offset": str(behind.offset), "Taskq-Stem": stem or "none"}
    headers |= {"Taskq-Held": str(asked.held)} if asked.held else {}
    path = APPEND.format(log_id=asked.log_id, segment=f"{behind.segment:020d}")
    return "PATCH", path, headers, asked.data


def understood(
    asked: Request, status: int, body: bytes, wait_seconds: float = 0.0
) -> Answer | None:
    """Return what an answer says.

    Raises:
        HubError: the device cannot go on from it.
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
    """Return what an answer of that status means for a person."""
    kind = HubStops if status in (401, 403, 410, 426) else HubError
    by = _SEE_HUB if status >= HTTPStatus.BAD_REQUEST and status not in _ON_THE_WAY else _PORTAL
    return kind(f"the hub answers {status}: {_ADVICE.get(status) or title or by}")


def agreed(spoken: Iterable[str]) -> int:
    """Return the highest version of both sides, 0 without one."""
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
