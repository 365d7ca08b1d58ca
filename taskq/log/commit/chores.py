"""Upkeep of the log between batches, and how it asks for batches of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from typing import Any, Final

from taskq.core.model import SECOND_NS
from taskq.log.journal.journal import Journal
from taskq.log.requests import Answer, Op, Request

Steps = Generator["InnerRequest | None", None, None]


#: Seconds between two looks whether another process is done, for a caller that waits for it.
_TURN_NS: Final = SECOND_NS // 20
#: Work between two batches: seconds, or the number of the smallest steps.
_STEP_NS: Final = SECOND_NS // 1_000
STEPS_MAX: Final = 64


class InnerRequest:
    """A request and its answer; it stands in for a future.

    Attributes:
        value: the answer, once ``done``.
    """

    def __init__(self, op: Op, port: InnerPort, operand: object) -> None:
        self.request: Request = (int(op), port, self, operand)
        self.value: Any = None
        self._answered = False
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._answered

    def cancelled(self) -> bool:
        return False

    def set_result(self, value: object) -> None:
        self.value, self._answered = value, True

    def set_exception(self, error: BaseException) -> None:
        self._error, self._answered = error, True

    def wait(self) -> Iterator[InnerRequest | None]:
        """Be sent, and wait for the answer, which is in ``value`` then.

        Raises:
            TaskqError: it could not be done.
        """
        yield self
        while not self._answered:
            yield None
        if self._error is not None:
            raise self._error


class InnerPort:
    """The port that inner requests come from."""

    def make(self, op: Op, operand: object) -> InnerRequest:
        return InnerRequest(op, self, operand)

    def deliver(self, answers: list[Answer]) -> None:
        for _, inner, value in answers:
            if isinstance(value, Exception):
                inner.set_exception(value)
            else:
                inner.set_result(value)


class Chore(ABC):
    """Work in steps that one of the processes sharing a directory does at a time.

    The storage thread takes a step between batches, and while it has nothing else to do. A subclass
    defines the steps, when there are any, and how trouble is reported.

    Args:
        lock_path: a file that the process at work holds locked.
    """

    def __init__(self, journal: Journal, lock_path: str) -> None:
        self._journal = journal
        self._lock_path = lock_path
        self._port = InnerPort()
        self._steps: Steps | None = None
        self._lock = -1
        self._look_at_ns = self._pause_until_ns = 0

    @abstractmethod
    def _is_ours(self) -> bool:
        """Return whether this process looks for work itself; else it does what it is asked for."""

    @abstractmethod
    def _is_asked(self) -> bool: ...

    @abstractmethod
    def _next_steps(self) -> Steps | None: ...
    @abstractmethod
    def _finished(self) -> None: ...

    @abstractmethod
    def _trouble(self, error: Exception) -> None: ...
    def _next_look_ns(self) -> int:
        return self._look_at_ns

    @property
    def busy(self) -> bool:
        if self._steps is None:
            return self._is_asked()
        return self._journal.clock.steady_ns() >= self._pause_until_ns

    def seconds_until_look(self) -> float:
        if self._steps is None and not self._is_ours():
            return float("inf")
        at_ns = self._next_look_ns() if self._steps is None else self._pause_until_ns
        return max(at_ns - self._journal.clock.steady_ns(), 0) / SECOND_NS

    def step(self) -> list[Request]:
        """Work for a millisecond; return the requests for the next batch, mostly none.

        Raises nothing: trouble is logged, reported to the caller of an order, and retried later.
        """
        try:
            if self._steps is None:
                self._steps = self._next_steps()
            if self._steps is None or not self.busy:
                return []
            inner = self._advance(self._steps)
        except StopIteration:
            self._finished()
        except Exception as error:  # noqa: BLE001 - a bug here must not close the log
            self._trouble(error)
        else:
            return [] if inner is None else [inner.request]
        return []

    def _advance(self, steps: Steps) -> InnerRequest | None:
        """As many steps as fit into a millisecond, since many are much shorter; at least one.

        Returns:
            The request that the last of them makes, if any.

        Raises:
            StopIteration: there are no more.
        """
        clock = self._journal.clock
        until_ns = clock.steady_ns() + _STEP_NS
        for _ in range(STEPS_MAX):
            inner = next(steps)
            if inner is not None:
                return inner
            now_ns = clock.steady_ns()
            if now_ns >= until_ns or now_ns < self._pause_until_ns:
                break
        return None

    def _pause(self) -> None:
        """Let some time pass before the next step: another process is at something."""
        self._pause_until_ns = self._journal.clock.steady_ns() + _TURN_NS

    def _take_turn(self) -> bool:
        disk = self._journal.disk
        self._lock = disk.open(self._lock_path, create=True)
        if disk.try_lock(self._lock):
            return True
        disk.close(self._lock)  # before a pause that may be the last of these steps
        self._lock = -1
        return False

    def _stop(self, pause_ns: int) -> None:
        """End the steps, if any are left, and look again after ``seconds``."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()
        self._pause_until_ns = 0
        if self._lock >= 0:
            self._journal.disk.close(self._lock)  # and with it the lock goes
            self._lock = -1
        self._look_at_ns = self._journal.clock.steady_ns() + pause_ns
