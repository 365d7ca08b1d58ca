"""How upkeep between batches asks for batches of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from taskq.log.requests import Answer, Op, Request

Steps = Generator["InnerRequest | None", None, None]


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
