"""Small helpers for every room: durations, names, JSON, limits, hints, exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq._lazy import lazily

if TYPE_CHECKING:
    from taskq.core.durations import Duration, nanoseconds, seconds, spoken
    from taskq.core.errors import as_typed, command, worker_command
    from taskq.core.exceptions import (
        causes_in,
        failures,
        find_error,
        is_a,
        is_cancellation,
        members,
        names_of,
        set_causes,
        text_of,
    )
    from taskq.core.model import (
        PAYLOAD_BYTES_MAX,
        PRIORITY_MAX,
        REASON_BYTES_MAX,
        SECOND_NS,
        TIME_NS_MAX,
        TRANSACTION_BYTES_MAX,
    )
    from taskq.core.parsing import (
        check_name,
        checked_names,
        checked_queues,
        listed,
        nearest,
        parse_json,
        rather,
        refuse_constant,
        size_bytes,
        whole,
    )
    from taskq.core.retry import wish_in
    from taskq.core.values import NamedTuple, dataclass

__all__ = [
    "PAYLOAD_BYTES_MAX",
    "PRIORITY_MAX",
    "REASON_BYTES_MAX",
    "SECOND_NS",
    "TIME_NS_MAX",
    "TRANSACTION_BYTES_MAX",
    "Duration",
    "NamedTuple",
    "as_typed",
    "causes_in",
    "check_name",
    "checked_names",
    "checked_queues",
    "command",
    "dataclass",
    "failures",
    "find_error",
    "is_a",
    "is_cancellation",
    "listed",
    "members",
    "names_of",
    "nanoseconds",
    "nearest",
    "parse_json",
    "rather",
    "refuse_constant",
    "seconds",
    "set_causes",
    "size_bytes",
    "spoken",
    "text_of",
    "whole",
    "wish_in",
    "worker_command",
]

_HOMES: Final = {
    "taskq.core.durations": "Duration nanoseconds seconds spoken",
    "taskq.core.errors": "as_typed command worker_command",
    "taskq.core.exceptions": (
        "causes_in failures find_error is_a is_cancellation members names_of set_causes text_of"
    ),
    "taskq.core.model": (
        "PAYLOAD_BYTES_MAX PRIORITY_MAX REASON_BYTES_MAX SECOND_NS "
        "TIME_NS_MAX TRANSACTION_BYTES_MAX"
    ),
    "taskq.core.parsing": (
        "check_name checked_names checked_queues listed nearest parse_json rather "
        "refuse_constant size_bytes whole"
    ),
    "taskq.core.retry": "wish_in",
    "taskq.core.values": "NamedTuple dataclass",
}

if not TYPE_CHECKING:  # a type checker would accept any name otherwise
    __getattr__ = lazily(__name__, _HOMES)
