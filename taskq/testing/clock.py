"""Clocks that a test moves: one stands still in between, the other goes on as the machine does."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskq.engine import SystemClock
from taskq.errors import UsageError
from taskq.values import Duration, nanoseconds

if TYPE_CHECKING:
    from taskq import TaskQ
    from taskq.engine import Clock
    from taskq.hooks import Connection

#: 2024-01-01 00:00 UTC, in seconds.
START_SECONDS: Final = 1_704_067_200
_SECOND_NS: Final = 1_000_000_000
#: A machine has run for a while when a test begins.
_UPTIME_SECONDS: Final = 1_000


class MovedClock:
    """A clock that tells the logs that go by it when it was moved."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()

    def note(self, connection: Connection) -> None:
        """Note that a log goes by this clock."""
        self._connections.add(connection)

    def _moved(self) -> None:
        for connection in self._connections:
            store = connection.current
            if store is not None and store.usable:
                # What has fallen due by now must not wait for its time as it was before.
                store.mailbox.wake_up()


class FakeClock(MovedClock):
    """Wall time and steady time, in nanoseconds, moved by hand. Implements ``Clock``."""

    def __init__(self, wall_seconds: float = START_SECONDS) -> None:
        super().__init__()
        self._wall_ns = round(wall_seconds * _SECOND_NS)
        self._steady_ns = _UPTIME_SECONDS * _SECOND_NS

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return self._wall_ns

    def steady_ns(self) -> int:
        """Return nanoseconds since boot."""
        return self._steady_ns

    def advance(self, duration: Duration) -> None:
        """Let time pass, such as "1h": both clocks go on, and logs look what has fallen due."""
        passed = nanoseconds(duration, "advance")
        self._wall_ns += passed
        self._steady_ns += passed
        self._moved()

    def step(self, seconds: float) -> None:
        """Set the wall clock forth or back, as a person or NTP does."""
        self._wall_ns += round(seconds * _SECOND_NS)
        self._moved()

    def reboot(self, off_seconds: float = 0.0, wall_seconds: float | None = None) -> None:
        """Start the steady clock anew; the wall clock kept running, or lost its time."""
        self._steady_ns = _SECOND_NS
        self._wall_ns += round(off_seconds * _SECOND_NS)
        if wall_seconds is not None:
            self._wall_ns = round(wall_seconds * _SECOND_NS)


class TravelClock(MovedClock):
    """The machine's clock, begun at another moment and sent ahead by hand. Implements ``Clock``.

    It never stands still, so real threads and processes that wait by it come to their end.

    Args:
        wall_seconds: what its wall clock shows at first, in seconds since 1970; now if None.
    """

    def __init__(self, wall_seconds: float | None = None) -> None:
        super().__init__()
        self._machine = SystemClock()
        self._ahead_ns = 0
        self._step_ns = 0
        if wall_seconds is not None:
            self._step_ns = round(wall_seconds * _SECOND_NS) - self._machine.wall_ns()

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return self._machine.wall_ns() + self._ahead_ns + self._step_ns

    def steady_ns(self) -> int:
        """Return nanoseconds since boot."""
        return self._machine.steady_ns() + self._ahead_ns

    def advance(self, duration: Duration) -> None:
        """Let so much more time have passed, on both clocks."""
        self._ahead_ns += nanoseconds(duration, "advance")
        self._moved()

    def step(self, seconds: float) -> None:
        """Set the wall clock forth or back, as a person or NTP does."""
        self._step_ns += round(seconds * _SECOND_NS)
        self._moved()


def use_clock(app: TaskQ, clock: Clock) -> None:
    """Let an app's log tell the time by this clock; before the app is opened.

    Raises:
        UsageError: the app is open.
    """
    connection = app.connection
    if connection.current is not None and connection.current.usable:
        raise UsageError(f"{connection.path} is open: set the clock before first use")
    connection.config = replace(connection.config, clock=clock)
    if isinstance(clock, MovedClock):
        clock.note(connection)
