"""Log time: wall time that never goes back, and the steps of the clock that must be recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.model import SECOND_NS

if TYPE_CHECKING:
    from taskq.log.machine.ports import Clock

#: Wall time that moved this far against the steady clock has made a step.
STEP_NS: Final = 5 * SECOND_NS
#: Wall time is never so far behind the log's, unless a fall was not recorded yet.
_UNTOLD_NS: Final = 2 * STEP_NS


class LogTime:
    """Distance of wall time from the steady clock, which all processes of a boot share.

    Attributes:
        base_ns: that distance, as of the last step that the log holds. The log's processes hand
            it on with the lock, so that each step is recorded once, also when some of them came
            between the step and its record.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.base_ns = self._seen_ns = clock.wall_ns() - clock.steady_ns()

    def learn(self, base_ns: int) -> None:
        self.base_ns = self._seen_ns = base_ns

    def recorded(self) -> None:
        """The frame that was made with the last ``read`` is in the log, with its step."""
        self.base_ns = self._seen_ns

    def read(self, last_ns: int) -> tuple[int, int]:
        """(time of the next frame, step to record before anything else in it, or 0)."""
        wall, steady = self._clock.wall_ns(), self._clock.steady_ns()
        expected = steady + self.base_ns
        step = wall - expected
        # A fall may have come before this process, and no frame have told of it yet. A step after
        # that is none of the log's time: with it the clock may just have been set right again.
        if abs(step) > STEP_NS and expected >= last_ns - _UNTOLD_NS:
            self._seen_ns = wall - steady
            return wall, step
        self._seen_ns = self.base_ns if abs(step) <= STEP_NS else wall - steady
        step = wall - last_ns
        if step >= -STEP_NS:
            return max(wall, last_ns), 0
        self._seen_ns = wall - steady
        return wall, step
