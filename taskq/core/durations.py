"""Parse durations and moments as people write them, into whole nanoseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, SupportsFloat, TypeAlias

from taskq.core.errors import UsageError
from taskq.core.model import SECOND_NS, TIME_NS_MAX

#: Word for a limit that never ends.
NEVER: Final = "never"
#: Seconds, a timedelta, or text such as "30s", "5m", "2h", "1d", "250ms".
Duration: TypeAlias = float | timedelta | str

_UNITS_NS: Final = {
    "ms": SECOND_NS // 1_000,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3_600 * SECOND_NS,
    "d": 86_400 * SECOND_NS,
}
_TEXT: Final = r"(?a)\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)\s*"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FORMS: Final = 'give seconds, a timedelta, or text such as "250ms", "30s", "5m", "2h", "1d"'


def nanoseconds(value: Duration, what: str = "duration") -> int:
    """Return the duration in nanoseconds, 0 or more.

    Args:
        value: seconds, a timedelta or text with a unit.
        what: how an error names the value.

    Raises:
        UsageError: the value is no duration, negative, or longer than 146 years.
    """
    if isinstance(value, str):
        exact = _text_ns(value, what)
    elif isinstance(value, timedelta):
        exact = value // _MICROSECOND * 1_000
    elif isinstance(value, int) and not isinstance(value, bool):
        exact = value * SECOND_NS
    elif isinstance(value, float) and abs(value) <= TIME_NS_MAX:
        exact = round(value * SECOND_NS)
    else:
        exact = _other_ns(value, what)
    if exact < 0:
        raise UsageError(f"{what} is {_shown(value)}: it must not be negative")
    if exact > TIME_NS_MAX:
        raise UsageError(f"{what} is {_shown(value)}: it must be at most 146 years")
    return exact


def positive_nanoseconds(value: Duration, what: str = "duration") -> int:
    """Return the duration in nanoseconds; refuse 0."""
    span = nanoseconds(value, what)
    if not span:
        raise UsageError(f"{what} is {_shown(value)}: it must be longer than nothing")
    return span


def seconds(value: Duration, what: str = "duration") -> float:
    """Return the duration in seconds, 0 or more.

    Raises:
        UsageError: as ``nanoseconds``.
    """
    return nanoseconds(value, what) / SECOND_NS


def moment_ns(value: datetime, what: str = "moment") -> int:
    if not isinstance(value, datetime):
        raise UsageError(f"{what} is {_shown(value)}: give a datetime with a time zone")
    if value.utcoffset() is None:
        raise UsageError(
            f"{what} is {value.isoformat()} without a time zone: "
            f"add one, for example value.replace(tzinfo=datetime.UTC)"
        )
    moment = (value - _EPOCH) // _MICROSECOND * 1_000
    if not 0 <= moment <= TIME_NS_MAX:
        raise UsageError(f"{what} is {value.isoformat()}: it must lie between 1970 and 2116")
    return moment


def utc_moment(at_ns: int) -> datetime:
    """Return the moment in UTC, to the microsecond.

    It works after 2038, too, unlike ``datetime.fromtimestamp`` on systems with a small ``time_t``.
    """
    return _EPOCH + timedelta(microseconds=at_ns // 1_000)


def spoken(span_ns: int) -> str:
    """Return a duration in its largest unit that fits, rounded: ``3m``, ``2d``, ``0s``.

    The sign is dropped. Just under two hours is ``2h``.
    """
    span_ns = abs(span_ns)
    for unit, smaller in (("d", "h"), ("h", "m"), ("m", "s")):
        if span_ns + _UNITS_NS[smaller] // 2 >= _UNITS_NS[unit]:
            return f"{(span_ns + _UNITS_NS[unit] // 2) // _UNITS_NS[unit]}{unit}"
    return f"{(span_ns + SECOND_NS // 2) // SECOND_NS}s"


def _text_ns(text: str, what: str) -> int:
    match = re.fullmatch(_TEXT, text)
    if match is None:
        raise UsageError(f"{what} is {_shown(text)}: {_FORMS}")
    # Decimal keeps "0.1s" exact, unlike a float of nanoseconds; its import takes 3 ms.
    from decimal import Decimal  # noqa: PLC0415

    return int(Decimal(match[1]) * _UNITS_NS[match[2]])


def _other_ns(value: object, what: str) -> int:
    if isinstance(value, SupportsFloat) and not isinstance(value, bool | float | int | type):
        number = float(value)
        if abs(number) <= TIME_NS_MAX:
            return round(number * SECOND_NS)
    raise UsageError(f"{what} is {_shown(value)}: {_FORMS}")


def _shown(value: object) -> str:
    return f"{value!r:.60}"


def seconds_or_never(value: Duration | None, what: str) -> float | None:
    """Return a duration in seconds; None for "never" or None."""
    if value is None or value == NEVER:
        return None
    return seconds(value, what)
