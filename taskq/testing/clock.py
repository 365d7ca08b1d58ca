"""A clock that stands still until a test moves it."""

from __future__ import annotations

from typing import Final

#: 2024-01-01 00:00 UTC, in seconds.
START_SECONDS: Final = 1_704_067_200
_SECOND_NS: Final = 1_000_000_000
#: A machine has run for a while when a test begins.
_UPTIME_SECONDS: Final = 1_000


class FakeClock:
    """Wall time and steady time, in nanoseconds, moved by hand. Implements ``Clock``."""

    def __init__(self, wall_seconds: float = START_SECONDS) -> None:
        self._wall_ns = round(wall_seconds * _SECOND_NS)
        self._steady_ns = _UPTIME_SECONDS * _SECOND_NS

    def wall_ns(self) -> int:
        """Nanoseconds since 1970."""
        return self._wall_ns

    def steady_ns(self) -> int:
        """Nanoseconds since boot."""
        return self._steady_ns

    def advance(self, seconds: float) -> None:
        """Let time pass: both clocks go on."""
        passed = round(seconds * _SECOND_NS)
        self._wall_ns += passed
        self._steady_ns += passed

    def step(self, seconds: float) -> None:
        """Set the wall clock forth or back, as a person or NTP does."""
        self._wall_ns += round(seconds * _SECOND_NS)

    def reboot(self, off_seconds: float = 0.0, wall_seconds: float | None = None) -> None:
        """Start the steady clock anew; the wall clock kept running, or lost its time."""
        self._steady_ns = _SECOND_NS
        self._wall_ns += round(off_seconds * _SECOND_NS)
        if wall_seconds is not None:
            self._wall_ns = round(wall_seconds * _SECOND_NS)
