"""What a task raises to say how it wants to end. These are wishes, not errors."""

from __future__ import annotations

from datetime import timedelta

from taskq.core.durations import Duration, nanoseconds


class Signal(Exception):
    """The root of the three."""


def _until_ns(delay: Duration, what: str) -> int:
    """The delay in nanoseconds; 0 for one that is over, such as the rest of a pause."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    is_over = isinstance(seconds, int | float) and seconds < 0
    return 0 if is_over else nanoseconds(delay, what)


class Retry(Signal):
    """This attempt failed: run the job again, even for an error that the policy gives up on.

    The attempt counts, so after the last one the job is dead all the same.

    Attributes:
        delay_ns: until the next attempt, 0 if that is past; None leaves it to the task's policy.
        reason: kept with the attempt.
    """

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason or "the task asked for another attempt")
        self.delay_ns = None if delay is None else _until_ns(delay, "Retry(delay=)")
        self.reason = reason


class Snooze(Signal):
    """Not now: put the job back for a while, without burning an attempt.

    Attributes:
        delay_ns: until the job is due again, 0 if that is past.
    """

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"the task asked to wait for {delay!s}")
        self.delay_ns = _until_ns(delay, "Snooze(delay)")


class Discard(Signal):
    """Never again: the job goes to the dead letters now, whatever attempts are left.

    Attributes:
        reason: kept with the dead letter.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the task discarded the job")
        self.reason = reason
