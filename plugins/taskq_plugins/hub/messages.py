"""What a device asks of a hub, and what it is answered; also what it asks of its own log."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.engine import Border

if TYPE_CHECKING:
    from uuid import UUID

NOWHERE: Final = Border()

#: Most positions that one ``Ask`` names.
ASKED_MAX = 64
#: Most files that one ``SpillAsk`` names.
SPILL_MAX = 1_000


class Kind(enum.StrEnum):
    """Why a copy does not go on where it ends."""

    #: the device has not got what comes next any more
    GAP = "gap"
    #: the device went on from an earlier place, with other records
    FORK = "fork"


class Sync(NamedTuple):
    """Begin a session: the newest one of a device wins."""

    log_id: UUID
    created_ns: int
    incompat: frozenset[str]
    #: where the device's log ends, as far as it is durable; NOWHERE if it holds nothing
    end: Border
    #: so long the hub is to have had what is called safe
    grace_seconds: int = 0
    #: this machine, hashed; "" if it has no name that is its own
    machine: str = ""
    #: what time it is there, for people
    clock_ns: int = 0


class Ask(NamedTuple):
    """Ask which of these the copy has, too: at most ASKED_MAX."""

    session: int
    log_id: UUID
    places: tuple[Border, ...]


class Append(NamedTuple):
    """Whole frames behind a position; those of a new segment with its header, at offset 0."""

    session: int
    log_id: UUID
    behind: Border
    data: bytes


class Seal(NamedTuple):
    """The segment ends there, and this is the SHA-256 of it up to there."""

    session: int
    log_id: UUID
    end: Border
    digest: bytes


class Declare(NamedTuple):
    """Nothing follows where the hub ends: it is to go on at another place.

    Attributes:
        left: where the hub ends.
        at: where it is to go on; of a gap the start of a segment.
        end_lsn: behind the last record of the device's log now.
        cause: in words, for people.
    """

    session: int
    log_id: UUID
    kind: Kind
    left: Border
    at: Border
    end_lsn: int
    cause: str


class SpillAsk(NamedTuple):
    """Ask which of these files beside the log the hub lacks: at most SPILL_MAX."""

    session: int
    log_id: UUID
    names: tuple[str, ...]


class SpillPart(NamedTuple):
    """Bytes of a file beside the log, from an offset on; ``is_last``: with them it is whole."""

    session: int
    log_id: UUID
    name: str
    offset: int
    data: bytes
    is_last: bool


Request = Sync | Ask | Append | Seal | Declare | SpillAsk | SpillPart


class Skip(NamedTuple):
    """An order to the device's own log: write nothing any more below what a hub has seen."""

    lsn: int


class Synced(NamedTuple):
    """Where the hub's copy ends.

    Attributes:
        at: NOWHERE if it has nothing; after a break, where it waits to go on.
        is_sealed: the segment ends there.
        has_end: the end of the device's log stands in the copy.
        high_lsn: no record of this log that the hub has seen, on any branch, reaches it.
        begins: first lsn of the copy's oldest segment, 0 if it never had one.
        safe: all below this lsn has been there for the grace that was asked for.
    """

    session: int
    at: Border
    is_sealed: bool
    has_end: bool
    high_lsn: int
    begins: int
    safe: int = 0


class Known(NamedTuple):
    """Whether the copy has each of the places."""

    has: tuple[bool, ...]


class Missing(NamedTuple):
    """Which of the files the hub lacks, and how many bytes of each it has."""

    files: tuple[tuple[str, int], ...]


class Stored(NamedTuple):
    """It is durable up to there."""

    at: Border


class Trouble(enum.Enum):
    """Why a request was refused."""

    #: the copy ends elsewhere: compare, and go on from there
    MISMATCH = "mismatching-upload-offset"
    #: the segment does not follow the copy's end: what is between must be declared
    GAP = "gap"
    #: a frame is not as it was written
    DAMAGED = "damaged-frame"
    #: the hub has no room for it
    FULL = "full"
    #: the device has sent as much as it may
    QUOTA = "quota"
    #: the token came from another machine: a person says which one goes on
    CLONED = "cloned"
    #: a newer session of the device has begun, or the hub began anew
    SUPERSEDED = "superseded"


class Refused(NamedTuple):
    """Nothing of the request counts, or only what ``at`` says."""

    trouble: Trouble
    at: Border


Answer = Synced | Known | Stored | Missing | Refused


class Refusal(Exception):
    """A refusal on its way to who answers."""

    def __init__(self, trouble: Trouble, at: Border) -> None:
        super().__init__(trouble.value)
        self.answer = Refused(trouble, at)
