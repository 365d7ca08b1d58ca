"""Requests that the log makes of itself: upkeep asks for its batches as any caller does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskq.log.ports import Clock
    from taskq.log.requests import Answer, Op, Request


class Errand:
    """One request and its answer; it stands in for a future.

    Attributes:
        value: the answer, once ``done``.
    """

    def __init__(self, op: Op, port: Errands, operand: object) -> None:
        self.request: Request = (int(op), port, self, operand)
        self.value: Any = None
        self._answered = False
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether it is answered."""
        return self._answered

    def cancelled(self) -> bool:
        """Nobody gives up on it."""
        return False

    def set_result(self, value: object) -> None:
        """It was done."""
        self.value, self._answered = value, True

    def set_exception(self, error: BaseException) -> None:
        """It could not be done."""
        self._error, self._answered = error, True

    def wait(self) -> Iterator[Errand | None]:
        """Be sent, and wait for the answer, which is in ``value`` then.

        Raises:
            TaskqError: it could not be done.
        """
        yield self
        while not self._answered:
            yield None
        if self._error is not None:
            raise self._error


class Errands:
    """The port that errands come from."""

    def make(self, op: Op, operand: object) -> Errand:
        """An errand, not sent yet."""
        return Errand(op, self, operand)

    def deliver(self, answers: list[Answer]) -> None:
        """Take answers; on the storage thread."""
        for _, errand, value in answers:
            if isinstance(value, Exception):
                errand.set_exception(value)
            else:
                errand.set_result(value)


def advance(
    steps: Iterator[Errand | None],
    clock: Clock,
    step_ns: int,
    steps_max: int,
    pause_until_ns: Callable[[], int],
) -> Errand | None:
    """As many steps as fit into ``step_ns``, since many are much shorter; at least one.

    Returns:
        The errand that the last of them asks for, if any.

    Raises:
        StopIteration: there are no more.
    """
    until_ns = clock.steady_ns() + step_ns
    for _ in range(steps_max):
        errand = next(steps)
        if errand is not None:
            return errand
        now_ns = clock.steady_ns()
        if now_ns >= until_ns or now_ns < pause_until_ns():
            break
    return None
