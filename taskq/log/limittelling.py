"""The limits of a worker's tasks, as it tells them to people who ask why a job does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.errors import UsageError
from taskq.core.rates import Limit, Rate

if TYPE_CHECKING:
    from collections.abc import Mapping


def limits_told(limits: Mapping[str, Limit] | None) -> dict[str, list[object]]:
    """A limit by the name of its task: scope, concurrency, count and nanoseconds of the rate."""
    return {
        task: [
            one.scope,
            one.concurrency,
            *((one.rate.count, one.rate.window_ns) if one.rate else (0, 0)),
        ]
        for task, one in (limits or {}).items()
    }


def limits_read(told: object) -> dict[str, Limit] | None:
    """What was told, without what does not fit; None if there is nothing."""
    limits: dict[str, Limit] = {}
    for task, values in told.items() if isinstance(told, dict) else ():
        match values:
            case [str(scope), int(concurrency), int(count), int(window_ns)]:
                try:
                    rate = Rate(count, window_ns) if count else None
                except UsageError:
                    continue
                limits[task] = Limit(concurrency=concurrency, rate=rate, scope=scope)
    return limits or None
