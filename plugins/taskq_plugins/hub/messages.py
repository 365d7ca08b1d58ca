"""Requests of a device to a hub and their answers; also questions to its own log.

``PROTOCOL.md`` explains each field, and a test compares it with the types here. Data from a line is
validated as a whole first (``wire``), and ``GET /openapi.json`` is made from the types.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple
from uuid import UUID

from pydantic import AfterValidator, Field, GetPydanticSchema, PlainSerializer
from pydantic_core import CoreSchema, core_schema

from taskq.engine import Border
from taskq.text import flat

NOWHERE: Final = Border()

#: Most positions that one ``Ask`` names.
ASKED_MAX: Final = 64
#: Most segments that one answer asks for again.
AGAIN_MAX: Final = 1_000
#: Features that a log may have.
FEATURES_MAX: Final = 32
#: Limit of texts for people; longer ones are cut.
CAUSE_CHARACTERS_MAX: Final = 200
REASON_CHARACTERS_MAX: Final = 500
#: Header of a job on a device: its id in the outbox.
JOB: Final = "hub-job"
#: Longest a question may wait for its answer.
WAIT_SECONDS_MAX: Final = 50.0
#: Jobs that one question refuses: as many as an answer holds.
JOBS_MAX: Final = 256
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
#: SHA-256 in hex.
Sha = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{64}$")]
Machine = Annotated[str, Field(strict=True, pattern=r"^([0-9a-f]{64})?$")]
Feature = Annotated[str, Field(strict=True, pattern=r"^[a-z0-9-]{1,40}$")]
#: The first part of the id of a job.
Tag = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{8}$")]
JobId = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{8}-[0-9]{1,19}$")]
Seconds = Annotated[float, Field(strict=True, ge=0, le=WAIT_SECONDS_MAX, allow_inf_nan=False)]
Code = Annotated[str, Field(strict=True, max_length=100)]
Features = Annotated[frozenset[Feature], Field(max_length=FEATURES_MAX), PlainSerializer(sorted)]
Cause = Annotated[str, Field(strict=True), _words(CAUSE_CHARACTERS_MAX)]
Reason = Annotated[str, Field(strict=True), _words(REASON_CHARACTERS_MAX)]


class BreakKind(enum.StrEnum):
    """Why a copy does not go on where it ends."""

    #: the device has not got what comes next any more
    GAP = "gap"
    #: the device went on from an earlier place, with other records
    FORK = "fork"


# -- what a device asks ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Enrol:
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
    """Whole frames after a position; a new segment comes with its header, at offset 0."""

    behind: Place
    data: bytes


@dataclass(frozen=True, slots=True)
class Seal(_OfSession):
    """The segment ends there, and this is the SHA-256 of it up to there."""

    end: Place
    digest: bytes


@dataclass(frozen=True, slots=True)
class Declare(_OfSession):
    """Nothing follows where the hub ends: it is to go on at another place."""

    kind: BreakKind
    left: Place
    at: Place
    end_lsn: Lsn
    cause: Cause


@dataclass(frozen=True, slots=True)
class Resend(_OfSession):
    """Bytes of a sealed segment that comes again; ``is_last``: with them it is whole."""

    name: Sha
    offset: Size
    data: bytes
    is_last: Truth


@dataclass(frozen=True, slots=True)
class Question(_OfSession):
    """Ask what is there for a device."""

    up: Place
    after: Annotated[dict[Tag, Lsn], Field(max_length=JOBS_MAX)]
    waiting: Truth
    refused: Annotated[tuple[tuple[JobId, Reason], ...], Field(max_length=JOBS_MAX)] = ()
    wait_seconds: Seconds = 0.0
    bytes_max: Size = BYTES_MAX


Request = Sync | Ask | Append | Seal | Declare | Resend | Question


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
    is_sealed: Truth
    has_end: Truth
    high_lsn: Lsn
    begins: Lsn
    safe: Lsn = 0
    lacks: Annotated[tuple[tuple[Lsn, Size, Sha], ...], Field(max_length=AGAIN_MAX)] = ()


@dataclass(frozen=True, slots=True)
class PlacesKnown:
    """For each place whether the copy has it."""

    has: tuple[Truth, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """How many bytes of a segment that comes again the hub has; empty: it lacks nothing of it."""

    files: tuple[tuple[Sha, Size], ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """It is durable up to there."""

    at: Place


class HubJob(NamedTuple):
    """A job on its way to a device.

    Attributes:
        number: of the record that enqueued it, which grows with a requeue.
        id: of the outbox's job; ``key`` is its key on the device.
        due_ns: a span from now, or a moment if ``due_is_wall``.
        expires_ns: a span from now.
    """

    number: int
    id: str
    key: str
    queue: str
    task: str
    priority: int
    attempts: int
    flags: int
    headers: dict[str, str]
    due_ns: int
    due_is_wall: bool
    expires_ns: int
    payload: bytes


class Given(NamedTuple):
    """Jobs for a device.

    Attributes:
        tag: of the outbox.
        end: the last number of these jobs, or ``after`` if there are none.
        cancels: (id, number of the device's own job) of jobs to cancel there.
    """

    tag: str
    end: int
    jobs: list[HubJob]
    cancels: list[tuple[str, int]]

    @property
    def is_empty(self) -> bool:
        return not (self.jobs or self.cancels)


class Trouble(enum.Enum):
    """Why a request was refused."""

    #: the copy ends elsewhere: compare, and go on from there
    MISMATCH = "mismatching-upload-offset"
    #: the segment does not follow the copy's end: what is between must be declared
    GAP = "gap"
    #: a frame is not as it was written
    DAMAGED = "damaged-frame"
    #: the hub, or a proxy before it, takes less at a time
    LARGE = "too-large"
    #: the token came from another machine: a person decides
    CLONED = "cloned"
    #: the device was set back again and again within a day: a person looks why
    HELD = "held"
    #: a newer session of the device has begun, or the hub began anew
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing of the request counts, or only what ``at`` says."""

    trouble: Annotated[Trouble, Field(alias="type")]
    at: Place


Answer = CopyEnd | PlacesKnown | Stored | Missing | Given | Refused


class Refusal(Exception):
    """A refusal as an exception."""

    def __init__(self, trouble: Trouble, at: Border) -> None:
        super().__init__(trouble.value)
        self.answer = Refused(trouble, at)
