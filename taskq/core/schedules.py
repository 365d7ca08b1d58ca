"""State of schedules: a fold of the log.

Workers compute the ticks from a schedule's rule. This module holds the state that they share.
"""

from __future__ import annotations

from typing import Final

from taskq.core.values import NamedTuple

#: Limits of a log: the number of schedules, and the total bytes of their names and rules.
SCHEDULES_MAX: Final = 10_000
SCHEDULES_BYTES_MAX: Final = 4 * 1024 * 1024
#: Longest rule of a schedule, and longest details.
RULE_BYTES_MAX: Final = 512
DETAILS_BYTES_MAX: Final = 2_048
#: Longest details of a schedule that was added at run time, with the arguments of its call.
ADDED_BYTES_MAX: Final = 32 * 1024
_HASH_RANGE: Final = 2**64


class ScheduleState(NamedTuple):
    """State of a schedule. Moments are wall time: no step of the clock shifts them."""

    #: latest moment of a tick; 0: no tick yet
    last_ns: int = 0
    #: all moments up to here are handled: ticked, skipped, or from before the schedule was known
    done_ns: int = 0
    is_paused: bool = False
    #: rule for its ticks, from the worker that started last
    rule: bytes = b""
    #: its task and other details for people, as JSON
    details: bytes = b""


def is_added(details: bytes) -> bool:
    """Return whether a schedule was added at run time: its call is in the log."""
    return b'"call":' in details


class TickRecord(NamedTuple):
    """Content of a TICKED record: the new state of one schedule."""

    name: str
    state: ScheduleState
    #: the schedule is forgotten
    is_gone: bool = False
    #: whether the record has rule and details; otherwise they stay
    has_rule: bool = True


def apply_ticked(schedules: dict[str, ScheduleState], ticked: TickRecord) -> None:
    name, state = ticked.name, ticked.state
    known = schedules.get(name)
    if ticked.is_gone:
        schedules.pop(name, None)
    elif known is not None:
        if not ticked.has_rule:
            state = state._replace(rule=known.rule, details=known.details)
        schedules[name] = state
    elif len(schedules) < SCHEDULES_MAX:
        schedules[name] = state


def jitter_ns(name: str, moment_ns: int, most_ns: int) -> int:
    """Return the delay of a tick: 0 to ``most_ns``, the same in all processes."""
    if most_ns <= 0:
        return 0
    import hashlib  # noqa: PLC0415 - loads OpenSSL, and few schedules have a jitter

    seed = f"{name}\n{moment_ns}".encode("utf-8", "surrogatepass")
    number = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "little")
    return number * (most_ns + 1) // _HASH_RANGE


SCHEDULE_HEADER: Final = "taskq-schedule"
#: Moment of the tick, in ISO 8601 with the offset of the schedule's zone.
MOMENT_HEADER: Final = "taskq-scheduled-at"
