"""Circuit breakers: a queue pauses when the network fails several jobs in a row."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from taskq.core import durations, errors, exceptions, parsing
from taskq.core.values import dataclass

if TYPE_CHECKING:
    from taskq.conditions.base import Check, Condition

FAILURES_DEFAULT: Final = 5
FAILURES_MAX: Final = 1_000_000
PAUSE_SECONDS_DEFAULT: Final = 1.0
PAUSE_SECONDS_MAX_DEFAULT: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRule:
    """Rule for a queue to back off, and to resume.

    Attributes:
        queue: name of the queue.
        failures: network failures in a row that open the breaker.
        pause_seconds: pause before the first try; each pause is twice the one before.
        pause_seconds_max: the longest pause.
        probe: condition that must hold before a try; None: none.
        is_failure: whether an error is a network failure.
    """

    queue: str
    failures: int
    pause_seconds: float
    pause_seconds_max: float
    probe: Condition | None
    is_failure: Callable[[BaseException], bool]


def breaker_rule(
    queue: str,
    failures: int,
    pause: durations.Duration,
    pause_max: durations.Duration,
    probe: Condition | Check | None,
    is_failure: Callable[[BaseException], bool],
) -> BreakerRule:
    """Return the rule from the checked arguments of ``app.breaker``.

    Raises:
        UsageError: an argument is wrong.
    """
    parsing.check_name("queue name", queue)
    failures = parsing.whole(failures, f"breaker({queue!r}): failures")
    if not 1 <= failures <= FAILURES_MAX:
        raise errors.UsageError(
            f"breaker({queue!r}): failures is {failures}, it must be 1 to {FAILURES_MAX}"
        )
    first, longest = durations.seconds(pause, "pause"), durations.seconds(pause_max, "pause_max")
    if not 0 < first <= longest:
        raise errors.UsageError(
            f"breaker({queue!r}): pause is {first:g} s and pause_max {longest:g} s: "
            f"the first must be above 0 and not above the second"
        )
    if not callable(is_failure):
        raise errors.UsageError(
            f"breaker({queue!r}): is_failure is {is_failure!r:.60}: give a function of an error"
        )
    return BreakerRule(
        queue=queue,
        failures=failures,
        pause_seconds=first,
        pause_seconds_max=longest,
        probe=None if probe is None else _checked_probe(queue, probe),
        is_failure=is_failure,
    )


def _checked_probe(queue: str, probe: Condition | Check) -> Condition:
    from taskq.conditions.base import checked_conditions  # noqa: PLC0415 - few breakers have one

    return checked_conditions(f"breaker({queue!r})", [probe], "probe")[0]


#: Error numbers of an ``OSError`` that come from the network.
NETWORK_ERRNOS: Final = frozenset(
    {
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENETRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EADDRNOTAVAIL,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.EPIPE,
    }
)
#: Names of errors of common clients and sockets; names, so that no client is imported.
NETWORK_ERRORS: Final = frozenset(
    {
        "aiohttp.ClientConnectionError",
        "httpcore.NetworkError",
        "httpcore.TimeoutException",
        "httpx.TransportError",
        "requests.ConnectionError",
        "requests.Timeout",
        "socket.gaierror",
        "socket.herror",
        "urllib3.MaxRetryError",
        "urllib3.TimeoutError",
    }
)
_ERRNO: Final[Any] = vars(OSError)["errno"]


def is_network_failure(error: BaseException) -> bool:
    """Return whether an error or one of its causes is a network failure.

    For a group, one of its failures is enough.
    """
    return any(
        _is_network(item) for generation in exceptions.generations(error) for item in generation
    )


def _is_network(error: BaseException) -> bool:
    if exceptions.is_a(error, (ConnectionError, TimeoutError)):
        return True
    if exceptions.is_a(error, OSError):
        if _ERRNO.__get__(error) in NETWORK_ERRNOS:
            return True
        # urllib.error.URLError stores the original error here.
        reason = vars(error).get("reason")
        if reason is not error and exceptions.is_a(reason, OSError) and is_network_failure(reason):
            return True
    names = map(exceptions.names_of, type.mro(type(error)))
    return any(f"{home.partition('.')[0]}.{name}" in NETWORK_ERRORS for home, name in names)
