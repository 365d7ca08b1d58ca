"""Answers on their way out, and requests on their way in: what a committer owes to whom."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final

from taskq.core.errors import TaskqError, refusal
from taskq.core.kinds import SUCCESS
from taskq.log.requests import Answer, Op, Request, Settlement

#: Settlements that nobody waits for: tried again while the disk is full.
SOON: Final = frozenset({int(Op.SETTLE_SOON), int(Op.SUCCEED_SOON)})


class Answers:
    """Answers that are not handed out yet.

    Attributes:
        now: answers that may go out at once.
        later: answers that wait until the log is durable up to ``later_lsn``.
    """

    __slots__ = ("later", "later_lsn", "now")

    def __init__(self) -> None:
        self.now: list[Answer] = []
        self.later: list[Answer] = []
        self.later_lsn = 0

    def add_later(self, answers: list[Answer], lsn: int) -> None:
        if answers:
            self.later += answers
            self.later_lsn = max(self.later_lsn, lsn)

    def refuse_later(self, error: TaskqError) -> None:
        self.later = [(port, future, error) for port, future, _ in self.later if future is not None]

    def take_now(self) -> list[Answer]:
        answers, self.now = self.now, []
        return answers

    def take_all(self) -> list[Answer]:
        answers = self.now + self.later
        self.now, self.later, self.later_lsn = [], [], 0
        return answers

    def stand(self) -> tuple[int, int, int]:
        """Return how many there are, for ``go_back_to``."""
        return len(self.now), len(self.later), self.later_lsn

    def go_back_to(self, stand: tuple[int, int, int]) -> None:
        """Drop what was added since: the batch was not written."""
        now, later, self.later_lsn = stand
        del self.now[now:], self.later[later:]


class Undecided:
    """Requests that a committer has and did not decide; the thread that takes them answers them.

    While one thread waits for the lock another may answer for it.

    Attributes:
        in_flight: the batch that waits for the lock.
        held: requests for the next batch: settlements that the disk refused and no caller waits
            for, and requests that need a fold that is still being built.
    """

    def __init__(self) -> None:
        self.in_flight: list[Request] = []
        self.held: list[Request] = []
        self._guard = threading.Lock()

    def take_in_flight(self) -> list[Request]:
        with self._guard:
            requests, self.in_flight = self.in_flight, []
            return requests

    def take_held(self) -> list[Request]:
        with self._guard:
            requests, self.held = self.held, []
            return requests

    def hold(self, requests: list[Request]) -> None:
        with self._guard:
            self.held += requests


def settlements(op: int, items: list[Any]) -> list[Settlement]:
    """Return what a request of ``SOON`` settles."""
    if op == Op.SETTLE_SOON:
        return items
    return [Settlement(SUCCESS, delivery) for delivery in items]


def refusals(requests: Iterable[Request], error: TaskqError) -> list[Answer]:
    answers: list[Answer] = []
    for op, port, future, operand in requests:
        if op in SOON:
            items, on_error = operand
            answers += [(port, None, (on_error, item, error)) for item in settlements(op, items)]
        else:
            answers.append((port, future, error))
    return answers


def tell_all(waiting: Iterable[tuple[Any, Any]], error: TaskqError) -> list[Answer]:
    return [(port, future, error) for port, future in waiting]


def failure(error: BaseException) -> TaskqError:
    if isinstance(error, TaskqError):
        return error
    if isinstance(error, OSError):
        return refusal("the log", error)
    return TaskqError(f"{type(error).__name__}: {error}")
