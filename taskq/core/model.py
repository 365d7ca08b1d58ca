"""The words of the project as types: states, limits, and what a caller hands to the log."""

from __future__ import annotations

import enum
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal

from taskq.core.values import dataclass

if TYPE_CHECKING:
    from taskq.core.flows import FlowPart

#: Users of a log: its user alone, or the group of its directory.
Mode = Literal["private", "group"]

SECOND_NS: Final = 1_000_000_000
#: Longest delay of a timeout of ``result`` while the log does not answer.
LATE_SECONDS_MAX: Final = 0.5

#: Longest queue name, task name and dedup key, in UTF-8 bytes.
NAME_BYTES_MAX: Final = 255
KEY_BYTES_MAX: Final = 1_024
#: All headers of a job together, in encoded bytes.
HEADERS_BYTES_MAX: Final = 32 * 1_024
#: Largest payload or result.
PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024
#: Largest transaction; a result beside it, or a job carried with its result, fits one frame, too.
TRANSACTION_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 1024 * 1024
#: Longest reason kept with a retry or a dead letter; longer ones lose their middle.
REASON_BYTES_MAX: Final = 8 * 1024
#: Bytes kept of the lines that an attempt logged.
LINES_BYTES_MAX: Final = 64 * 1024
#: Steps of one job, signals for it that no step has taken, and bytes of the value of one.
STEPS_MAX: Final = 10_000
SIGNALS_MAX: Final = 1_000
SIGNAL_BYTES_MAX: Final = 64 * 1024
PRIORITY_MAX: Final = 9
PRIORITY_DEFAULT: Final = 5
#: Attempts are counted in 16 bits; 0 as a maximum means no limit.
ATTEMPTS_MAX: Final = 65_535
ATTEMPTS_DEFAULT: Final = 5
#: A log forgets nothing by time, so moments are bounded to keep their sums in 63 bits.
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
    #: settled well; its result is kept unless the task said otherwise
    SUCCEEDED = 4
    #: used up its attempts or was rejected; kept with its reason
    DEAD = 5
    #: withdrawn before it ran, or stopped while it did
    CANCELLED = 6
    #: its ``expires`` passed before it ran
    EXPIRED = 7

    def __str__(self) -> str:
        """Return its name, as people and ``--json`` have it."""
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
#: By the names that people and ``--json`` have for them.
STATES: Final[dict[str, State]] = {
    str(state): state for state in State if state is not State.ABSENT
}
#: States of jobs that are removed with their part of the log after the retention.
PASSING_STATES: Final = SETTLED_STATES - {State.DEAD}


class Durability(enum.StrEnum):
    """Failures that an awaited answer survives."""

    #: a power loss
    FSYNC = "fsync"
    #: a process crash now, a power loss after at most ``interval_seconds``
    INTERVAL = "interval"
    #: a process crash
    OS = "os"


class Conflict(enum.StrEnum):
    """Behaviour of an enqueue whose key is held."""

    #: nothing new is enqueued; the answer is the job that holds the key
    FIRST = "first"
    #: it takes the key over unless the holder runs; a waiting holder is cancelled
    REPLACE = "replace"
    #: it is refused with ``DuplicateKey``
    RAISE = "raise"


@dataclass(slots=True, kw_only=True)
class Extras:
    """The rarer options of one enqueue; an enqueue without any passes None instead.

    ``due_ns`` is a delay from the frame's time unless ``due_is_wall``, then a moment of wall time.
    ``expires_ns`` likewise with ``expires_is_wall``. ``window_ns`` of 0: the key holds until the
    job is settled; with ``until_settled`` it holds until both, window and job, are over.
    ``keep_ns`` counts from the job's end; 0: it is kept as its queue or log says. ``flow`` is what
    the job has to do with others of its transaction; such a job has neither key nor due time.
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
