"""Types for the project's terms: states, limits, and options of a caller."""

from __future__ import annotations

import enum
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal

from taskq.core.values import dataclass

if TYPE_CHECKING:
    from taskq.core.flows import FlowPart

#: Users of a log: the user of its directory alone, or the directory's group.
Mode = Literal["private", "group"]

SECOND_NS: Final = 1_000_000_000
#: Longest delay of a timeout of ``result`` while the log does not answer.
LATE_SECONDS_MAX: Final = 0.5

#: Longest queue name, task name and dedup key, in UTF-8 bytes.
NAME_BYTES_MAX: Final = 255
KEY_BYTES_MAX: Final = 1_024
#: Encoded bytes of all headers of a job.
HEADERS_BYTES_MAX: Final = 32 * 1_024
#: Largest payload or result.
PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024
#: Largest transaction. A result in addition, or a job carried with its result, still fits one
#: frame.
TRANSACTION_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 1024 * 1024
#: Longest reason of a retry or a dead letter; a longer one loses its middle.
REASON_BYTES_MAX: Final = 8 * 1024
#: Bytes of logged lines that are kept for each attempt.
LINES_BYTES_MAX: Final = 64 * 1024
#: Most steps of a job, most signals that no step has taken, and most bytes of the value of each.
STEPS_MAX: Final = 10_000
SIGNALS_MAX: Final = 1_000
SIGNAL_BYTES_MAX: Final = 64 * 1024
PRIORITY_MAX: Final = 9
PRIORITY_DEFAULT: Final = 5
#: Attempts are counted in 16 bits; 0 as a maximum means no limit.
ATTEMPTS_MAX: Final = 65_535
ATTEMPTS_DEFAULT: Final = 5
#: Latest moment, so that sums of moments fit in 63 bits.
TIME_NS_MAX: Final = 2**62


class State(enum.IntEnum):
    """State of a job."""

    #: not (or no longer) a job of this log
    ABSENT = 0
    #: waits for its time: delay, eta or backoff
    SCHEDULED = 1
    #: may be claimed now
    READY = 2
    #: claimed by a living owner
    RUNNING = 3
    #: succeeded; its result is kept unless the task has ``store_result=False``
    SUCCEEDED = 4
    #: used up its attempts or was rejected; kept with its reason
    DEAD = 5
    #: withdrawn before it ran, or stopped while it did
    CANCELLED = 6
    #: its ``expires`` passed before it ran
    EXPIRED = 7

    def __str__(self) -> str:
        """Return its name in lower case, as in the command line and JSON."""
        return self.name.lower()

    def __format__(self, how: str) -> str:
        return format(str(self), how)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - slow to import

        names = {str(state): state for state in cls}
        return core_schema.no_info_before_validator_function(
            lambda given: names.get(given, given) if isinstance(given, str) else given,
            core_schema.enum_schema(cls, list(cls)),
            serialization=core_schema.plain_serializer_function_ser_schema(str, when_used="json"),
        )


LIVE_STATES: Final = frozenset({State.SCHEDULED, State.READY, State.RUNNING})
WAITING_STATES: Final = frozenset({State.SCHEDULED, State.READY})
SETTLED_STATES: Final = frozenset(State) - LIVE_STATES - {State.ABSENT}
#: States by their names in the command line and JSON.
STATES: Final[dict[str, State]] = {
    str(state): state for state in State if state is not State.ABSENT
}
#: States of jobs that compaction removes after the retention.
PASSING_STATES: Final = SETTLED_STATES - {State.DEAD}


class Durability(enum.StrEnum):
    """Worst failure that an awaited answer survives."""

    #: a power loss
    FSYNC = "fsync"
    #: a process crash now, a power loss after at most ``interval_seconds``
    INTERVAL = "interval"
    #: a process crash
    OS = "os"


class Conflict(enum.StrEnum):
    """Behaviour of an enqueue if another job holds its key."""

    #: nothing new is enqueued; the answer is the job that holds the key
    FIRST = "first"
    #: it takes the key over unless the holder runs; a waiting holder is cancelled
    REPLACE = "replace"
    #: it is refused with ``DuplicateKey``
    RAISE = "raise"


@dataclass(slots=True, kw_only=True)
class Extras:
    """Rare options of one enqueue; an enqueue without any of them has None instead.

    ``due_ns`` is a delay from the frame's time, or with ``due_is_wall`` a moment of wall time. The
    same holds for ``expires_ns`` and ``expires_is_wall``. ``window_ns`` of 0: the key holds until
    the job is settled; with ``until_settled`` it holds until window and job are both over.
    ``keep_ns`` counts from the job's end; 0: the retention of its queue or log. ``flow`` relates
    the job to other jobs of its transaction; such a job has neither key nor due time.
    """

    due_ns: int = 0
    due_is_wall: bool = False
    expires_ns: int = 0
    expires_is_wall: bool = False
    key: bytes | None = None
    window_ns: int = 0
    until_settled: bool = False
    on_conflict: Conflict = Conflict.FIRST
    headers: dict[str, str] = field(default_factory=dict)
    keep_ns: int = 0
    concurrency_key: bytes = b""
    flow: FlowPart | None = None
