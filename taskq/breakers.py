"""Circuit breakers: a queue whose jobs meet one network failure after the other backs off whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from taskq.conditionsbase import checked_conditions
from taskq.core.counts import whole
from taskq.core.durations import Duration, seconds
from taskq.core.errors import UsageError
from taskq.log.requests import check_name
from taskq.networkfailures import is_network_failure
from taskq.origins import origin_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.conditionsbase import Check, Condition
    from taskq.origins import Origin

FAILURES_DEFAULT: Final = 5
FAILURES_MAX: Final = 1_000_000
PAUSE_SECONDS_DEFAULT: Final = 1.0
PAUSE_SECONDS_MAX_DEFAULT: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRule:
    """When a queue backs off, and how it comes back.

    Attributes:
        queue: name of the queue.
        failures: network failures in a row that open it.
        pause_seconds: before the first try; each pause is twice the one before.
        pause_seconds_max: the longest.
        probe: what must hold before a try; None: nothing.
        is_failure: whether an error is a network failure.
        origin: where it was declared.
    """

    queue: str
    failures: int
    pause_seconds: float
    pause_seconds_max: float
    probe: Condition | None
    is_failure: Callable[[BaseException], bool]
    origin: Origin = field(compare=False)


class AppBreakers:
    """The circuit breakers of an app."""

    _breakers: dict[str, BreakerRule]

    def breaker(
        self,
        queue: str = "default",
        *,
        failures: int = FAILURES_DEFAULT,
        pause: Duration = PAUSE_SECONDS_DEFAULT,
        pause_max: Duration = PAUSE_SECONDS_MAX_DEFAULT,
        probe: Condition | Check | None = None,
        is_failure: Callable[[BaseException], bool] = is_network_failure,
    ) -> None:
        """Let a queue back off as a whole after so many network failures in a row.

        While it does, its jobs wait and burn no attempt; then one of them is tried, after pauses
        that grow, or at once when the network is seen to come back. Each worker process counts for
        itself. Call it before workers start.

        Args:
            queue: name of the queue.
            failures: how many in a row.
            pause: before the first try; each further one waits twice as long.
            pause_max: the longest pause.
            probe: a condition, such as ``online(...)``, that must hold before a try.
            is_failure: which errors count; by default those of connections, names and timeouts,
                also of httpx, aiohttp and requests.

        Raises:
            UsageError: an argument is wrong, or the queue has another breaker already.
        """
        check_name("queue name", queue)
        failures = whole(failures, f"breaker({queue!r}): failures")
        if not 1 <= failures <= FAILURES_MAX:
            raise UsageError(
                f"breaker({queue!r}): failures is {failures}, it must be 1 to {FAILURES_MAX}"
            )
        first, longest = seconds(pause, "pause"), seconds(pause_max, "pause_max")
        if not 0 < first <= longest:
            raise UsageError(
                f"breaker({queue!r}): pause is {first:g} s and pause_max {longest:g} s: "
                f"the first must be above 0 and not above the second"
            )
        if not callable(is_failure):
            raise UsageError(
                f"breaker({queue!r}): is_failure is {is_failure!r:.60}: give a function of an error"
            )
        probes = (
            () if probe is None else checked_conditions(f"breaker({queue!r})", [probe], "probe")
        )
        rule = BreakerRule(
            queue=queue,
            failures=failures,
            pause_seconds=first,
            pause_seconds_max=longest,
            probe=probes[0] if probes else None,
            is_failure=is_failure,
            origin=origin_here(),
        )
        known = self._breakers.get(queue, rule)
        if known != rule and not rule.origin.is_rerun_of(known.origin):
            raise UsageError(f"queue {queue!r} has another breaker already: declare it once")
        self._breakers[queue] = rule
