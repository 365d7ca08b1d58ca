"""Log time: wall time that never goes back, and the steps of the clock that must be recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.model import SECOND_NS

if TYPE_CHECKING:
    from taskq.log.ports import Clock

#: Wall time that moved this far against the steady clock has made a step.
STEP_NS: Final = 5 * SECOND_NS


class LogTime:
    """What one process knows of the clock's steps.

    Attributes:
        shift_ns: sum of the steps recorded in the log, as far as this process knows.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: what wall time was ahead of the steady clock, less the steps not recorded yet
        self._base = clock.wall_ns() - clock.steady_ns()
        self.shift_ns = 0

    def start(self, shift_ns: int) -> None:
        """This process has just come: whatever was recorded lies before its own first look."""
        self.shift_ns = shift_ns

    def learn(self, shift_ns: int) -> None:
        """Another process recorded a step: it is none to record again."""
        self._base += shift_ns - self.shift_ns
        self.shift_ns = shift_ns

    def read(self, last_ns: int) -> tuple[int, int]:
        """(time of the next frame, step to record before anything else in it, or 0).

        Args:
            last_ns: time of the last frame.
        """
        wall, steady = self._clock.wall_ns(), self._clock.steady_ns()
        step = wall - steady - self._base
        if abs(step) <= STEP_NS:
            # This process saw no step; if the log's time lies ahead, one fell before it came.
            step = wall - last_ns
            if step >= -STEP_NS:
                return max(wall, last_ns), 0
        self._base = wall - steady
        self.shift_ns += step
        return wall, step
